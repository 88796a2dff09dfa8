//! One JSON body for the requests of one POST.

use tailrope_core::exchange::Join;
use tailrope_core::protocol::RequestId;

#[test]
fn w_013_the_answers_of_a_batch_are_an_array_in_the_order_of_its_requests() {
    let [first, second, text] = [RequestId::integer(1), RequestId::integer(2), RequestId::text_id("1")];
    let mut join = Join::new(&[first.clone(), second.clone(), text.clone()]);
    assert!(join.is_array());
    assert_eq!(join.answer(&text, b"c".to_vec()), None);
    assert_eq!(join.answer(&first, b"a".to_vec()), None);
    assert_eq!(join.answer(&first, b"x".to_vec()), None, "the first answer wins");
    assert_eq!(join.answer(&second, b"b".to_vec()).as_deref(), Some(&b"[a,b,c]"[..]));
}

#[test]
fn the_answer_to_the_only_request_is_the_body() {
    let mut join = Join::new(&[RequestId::integer(1)]);
    assert_eq!((join.is_array(), join.answer(&RequestId::integer(1), b"a".to_vec())), (false, Some(b"a".to_vec())));
}
