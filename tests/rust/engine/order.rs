//! Readers whose store answers late, in any order, or not at all: which of them is the newest, and where each begins.

use std::sync::Arc;

use crate::kit::any_order::{AnyOrder, process_in_any_order};
use crate::kit::common::{Answered, Bench, NEW, broadcast, call, listen, notify, read_now, resume};
use crate::kit::folder::Folder;
use crate::kit::processes::{adopt_known, ended, events, has, open_session, process, read_until};
use serde_json::json;
use tailrope_core::engine::{Adoption, Connection, NoWake, SessionHandle};
use tailrope_core::protocol::Dialect;
use tailrope_core::store::Operation;
use tailrope_core::stream::CloseReason;

fn is_record(operation: &Operation) -> bool {
    matches!(operation, Operation::Record)
}

fn is_read(operation: &Operation) -> bool {
    matches!(operation, Operation::Read(_))
}

fn is_session(operation: &Operation) -> bool {
    matches!(operation, Operation::Session)
}

fn begun(answered: &Answered) -> bool {
    !answered.text.is_empty()
}

/// A call with one event whose connection broke: the session where it is written, and a cursor before the event.
fn interrupted_call(here: &Bench) -> (SessionHandle, String) {
    let session = open_session(here, "s", NEW);
    let first = call(&session, 1);
    let cursor = read_until(here, &first, begun).ids().remove(0);
    first.lost();
    notify(&session, 1, "a").unwrap();
    // Others find it: what a reader gets is stored.
    let reader = resume(&session, &cursor);
    read_until(here, &reader, has(1));
    reader.lost();
    (session, cursor)
}

fn look_up(bench: &Bench) -> Adoption {
    bench.engine.adopt_session("s", Some("alice"), &Dialect::MCP_PYTHON_2, Arc::new(NoWake), 0).unwrap()
}

fn found(adoption: &Adoption) -> SessionHandle {
    adoption.take().expect("the store has told").unwrap().expect("it is alice's")
}

/// Time passes, and nothing comes here that is not the first bytes.
fn gets_nothing(bench: &Bench, connection: &Connection) {
    for _ in 0..20 {
        bench.advance(20);
        let answered = read_now(connection);
        assert_eq!((events(&answered), answered.end), (vec![], None));
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// The connection has ended without an event.
fn was_fenced(bench: &Bench, connection: &Connection) {
    let answered = read_until(bench, connection, ended);
    assert_eq!((events(&answered), answered.end), (vec![], Some(CloseReason::Superseded)), "I4");
}

/// Two resumes of one stream that were told their position while the store could not tell, and whose cursors are
/// looked at now: the answers wait, in the order in which they came.
fn two_that_were_told(here: &Bench, there: &Bench, store: &AnyOrder) -> (SessionHandle, [Connection; 2]) {
    let (session, cursor) = interrupted_call(here);
    let seen = adopt_known(there);
    store.hold(is_record);
    let both = [resume(&seen, &cursor), resume(&seen, &cursor)];
    store.fail_all(there);
    assert!(events(&read_until(there, &both[1], begun)).is_empty(), "it is told its own position");
    notify(&session, 1, "b").unwrap();
    store.hold(is_read);
    store.wait_for(there, 2);
    (session, both)
}

#[test]
fn i4_a_reader_whose_session_was_looked_up_for_longer_is_no_newer() {
    let folder = Folder::new();
    let here = process(&folder, 0);
    let (there, store) = process_in_any_order(&folder);
    let (session, cursor) = interrupted_call(&here);
    adopt_known(&there).let_go();
    store.hold(is_session);
    let (older, newer) = (look_up(&there), look_up(&there));
    store.wait_for(&there, 2);
    store.answer(1);
    let second = resume(&found(&newer), &cursor);
    assert_eq!(events(&read_until(&there, &second, has(1))), [json!({"event": 1, "is": "a"})]);
    store.answer(0);
    let handle = found(&older);
    let first = resume(&handle, &cursor);
    was_fenced(&there, &first);
    notify(&session, 1, "b").unwrap();
    assert_eq!(events(&read_until(&there, &second, has(1))), [json!({"event": 2, "is": "b"})]);
    // Only the first of a look-up came when that began.
    let third = resume(&handle, &cursor);
    assert_eq!(events(&read_until(&there, &third, has(2))).len(), 2);
    was_fenced(&there, &second);
}

#[test]
fn i4_a_listener_whose_session_was_looked_up_for_longer_is_no_newer() {
    let folder = Folder::new();
    let here = process(&folder, 0);
    let (there, store) = process_in_any_order(&folder);
    let session = open_session(&here, "s", NEW);
    broadcast(&session, "a").unwrap();
    adopt_known(&there).let_go();
    store.hold(is_session);
    let (older, newer) = (look_up(&there), look_up(&there));
    store.wait_for(&there, 2);
    store.answer(1);
    let second = listen(&found(&newer));
    assert_eq!(events(&read_until(&there, &second, has(1))), [json!({"event": 1, "is": "a"})]);
    store.answer(0);
    was_fenced(&there, &listen(&found(&older)));
    broadcast(&session, "b").unwrap();
    assert_eq!(events(&read_until(&there, &second, has(1))), [json!({"event": 2, "is": "b"})]);
}

#[test]
fn i4_a_reader_that_is_looked_up_once_more_is_no_newer() {
    let folder = Folder::new();
    let here = process(&folder, 0);
    let (there, store) = process_in_any_order(&folder);
    let (session, cursor) = interrupted_call(&here);
    let seen = adopt_known(&there);
    store.hold(is_record);
    // What is asked for this one knows nothing of the event that the older of the others has from elsewhere.
    let asks = resume(&seen, &cursor);
    store.wait_for(&there, 1);
    notify(&session, 1, "b").unwrap();
    let ahead = read_until(&here, &resume(&session, &cursor), has(2)).last_id();
    let (first, second) = (resume(&seen, &ahead), resume(&seen, &cursor));
    asks.lost();
    store.answer(0);
    assert_eq!(events(&read_until(&there, &second, has(1))), [json!({"event": 1, "is": "a"})]);
    store.let_go();
    store.answer_all();
    assert_eq!(events(&read_until(&there, &second, has(1))), [json!({"event": 2, "is": "b"})]);
    was_fenced(&there, &first);
}

#[test]
fn i4_an_older_reader_gets_nothing_while_a_newer_one_was_told_its_position() {
    let folder = Folder::new();
    let here = process(&folder, 0);
    let (there, store) = process_in_any_order(&folder);
    let (_session, [first, second]) = two_that_were_told(&here, &there, &store);
    store.answer(0);
    gets_nothing(&there, &first);
    store.let_go();
    store.answer(0);
    let all = [json!({"event": 1, "is": "a"}), json!({"event": 2, "is": "b"})];
    assert_eq!(events(&read_until(&there, &second, has(2))), all);
    was_fenced(&there, &first);
}

#[test]
fn i4_a_reader_goes_on_when_the_newer_one_that_was_told_its_position_leaves() {
    let folder = Folder::new();
    let here = process(&folder, 0);
    let (there, store) = process_in_any_order(&folder);
    let (_session, [first, second]) = two_that_were_told(&here, &there, &store);
    store.let_go();
    store.answer(0);
    gets_nothing(&there, &first);
    second.lost();
    let all = [json!({"event": 1, "is": "a"}), json!({"event": 2, "is": "b"})];
    assert_eq!(events(&read_until(&there, &first, has(2))), all);
}

#[test]
fn i4_the_answer_for_the_newer_reader_may_come_first() {
    let folder = Folder::new();
    let here = process(&folder, 0);
    let (there, store) = process_in_any_order(&folder);
    let (_session, [first, second]) = two_that_were_told(&here, &there, &store);
    store.let_go();
    store.answer(1);
    let all = [json!({"event": 1, "is": "a"}), json!({"event": 2, "is": "b"})];
    assert_eq!(events(&read_until(&there, &second, has(2))), all);
    store.answer(0);
    was_fenced(&there, &first);
}

#[test]
fn i2_a_listener_begins_where_its_first_id_says() {
    let folder = Folder::new();
    let here = process(&folder, 0);
    let (there, store) = process_in_any_order(&folder);
    let session = open_session(&here, "s", NEW);
    let seen = adopt_known(&there);
    let first = listen(&seen);
    broadcast(&session, "a").unwrap();
    assert_eq!(events(&read_until(&there, &first, has(1))), [json!({"event": 1, "is": "a"})]);
    store.hold(is_record);
    // Nothing that was asked before is under way any more.
    store.fail_all(&there);
    let second = listen(&seen);
    store.fail_all(&there);
    let told = read_until(&there, &second, |answered| !answered.text.is_empty());
    assert_eq!((told.frames().len(), events(&told).len()), (1, 0), "the store cannot tell: {told:?}");
    store.let_go();
    broadcast(&session, "b").unwrap();
    let rest = read_until(&there, &second, has(2));
    assert_eq!(events(&rest), [json!({"event": 1, "is": "a"}), json!({"event": 2, "is": "b"})]);
    let again = resume(&seen, &told.last_id());
    assert_eq!(events(&read_until(&there, &again, has(2))), events(&rest), "the id means the same to a resume");
}
