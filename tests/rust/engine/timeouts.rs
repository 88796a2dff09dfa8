//! Stores that say later and never answer, or answer when nobody waits any more.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::kit::common::{
    Bell, Bench, NEW, SlowStore, ask, call, id, notify, read_now, respond, response, resume, slow,
};
use serde_json::json;
use tailrope_core::ErrorCode;
use tailrope_core::engine::{EngineError, NoWake, Options, Sent};
use tailrope_core::protocol::jsonrpc::read;
use tailrope_core::protocol::{Dialect, EventId, IdEncoder};
use tailrope_core::store::{HostReplay, HostStore, Limits, StoreError};
use tailrope_core::stream::{Chain, CloseReason};

const TIMED_OUT: Result<(), EngineError> = Err(EngineError::Store(StoreError::TimedOut { after_ms: 30_000 }));

#[test]
fn i9_an_append_without_an_answer_fails_in_time_and_harms_one_event() {
    let (bench, store) = slow(Options::default());
    let bell = Arc::new(Bell::default());
    let session = bench.engine.open_session("s", None, &Dialect::MCP_PYTHON_2, Arc::clone(&bell) as _, 0).unwrap();
    session.assume_revision(NEW);
    let connection = call(&session, 1);
    bench.read(&connection);
    store.set(true, false);
    let Ok(Sent::Pending(number)) = notify(&session, 1, "lost") else { panic!("the store waits") };
    let asked = session.now();
    store.set(false, false);
    assert!(matches!(notify(&session, 1, "a"), Ok(Sent::Pending(_))), "it waits behind the other");
    bench.advance(29_999);
    assert!(session.take_outcomes().is_empty());
    assert!(bench.engine.next_deadline() <= asked + 30_000, "the tick comes in time");
    let rings = bell.0.load(Ordering::SeqCst);
    bench.advance(1);
    assert!(bell.0.load(Ordering::SeqCst) > rings, "who waits is woken");
    assert_eq!(session.take_outcomes(), [(number, TIMED_OUT), (number + 1, Ok(()))]);
    respond(&session, 1).unwrap();
    let answered = bench.read(&connection);
    let events: Vec<_> = answered.frames().into_iter().filter(|frame| frame.get("event").is_some()).collect();
    assert_eq!(events, [json!({"event": 1, "is": "a"}), json!({"event": 2, "is": {"result": 1}})]);
    assert_eq!(bench.engine.stats().events_unstored, 1);
    // The log has position 1 already: the late append is refused, and nobody asks what became of it.
    store.answer_all();
    assert!(session.take_outcomes().is_empty());
    let again = bench.read(&resume(&session, &answered.ids()[0]));
    assert_eq!(again.frames().len(), 2);
}

#[test]
fn i9_the_text_of_a_timeout_says_nothing_of_the_store() {
    let EngineError::Store(error) = TIMED_OUT.unwrap_err() else { unreachable!() };
    assert_eq!(error.code(), ErrorCode::StoreTimedOut);
    assert_eq!(EngineError::Store(error).to_string(), "the event store did not store the event");
}

#[test]
fn i13_a_response_without_an_answer_of_the_store_is_an_error_for_its_client() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    let cursor = bench.read(&connection).last_id();
    store.set(true, false);
    assert!(matches!(respond(&session, 1), Ok(Sent::Pending(_))));
    store.set(false, false);
    bench.advance(30_000);
    assert!(matches!(session.take_outcomes()[..], [(_, Ok(()))]), "the caller has nothing left to do");
    let tombstone = json!({"tombstone": {"error": -32603, "id": 1}});
    let answered = bench.read(&connection);
    assert_eq!(answered.frames().last(), Some(&tombstone));
    assert_eq!(answered.end, Some(CloseReason::Complete));
    // The log has its end, and takes no other.
    store.answer_all();
    assert_eq!(bench.read(&resume(&session, &cursor)).frames()[1..], [tombstone]);
}

#[test]
fn i6_a_response_that_the_store_took_after_all_is_the_end_from_when_that_is_known() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    let cursor = bench.read(&connection).last_id();
    store.set(true, false);
    respond(&session, 1).unwrap();
    let waiting = resume(&session, &cursor);
    assert!(store.answer_unheard(), "it is in the log, and counts as lost");
    let tombstone = json!({"tombstone": {"error": -32603, "id": 1}});
    assert_eq!(bench.read(&connection).frames(), [tombstone], "those who read now are told");
    // Who was given the response by another process comes here: the log is looked at.
    let Some(EventId::Position(at)) = EventId::parse(&cursor) else { panic!("a position") };
    let tag = Chain::start(&at.nonce.0).then(&response(&id(1))).tag();
    let mut ahead = Vec::new();
    IdEncoder::new(at.nonce, &at.origin).encode(1, 0, tag, &mut ahead);
    let ahead = resume(&session, std::str::from_utf8(&ahead).unwrap());
    store.set(false, false);
    assert!(store.answer_nth(1, true), "the look");
    store.answer_all();
    assert_eq!(read_now(&ahead).status, Some(204), "nothing is left behind a response");
    let answered = bench.read(&waiting);
    assert_eq!(answered.frames()[1..], [json!({"event": 1, "is": {"result": 1}})], "nothing follows the response");
    assert_eq!(answered.end, Some(CloseReason::Complete));
}

#[test]
fn i6_of_a_batch_only_what_is_lost_for_certain_is_told_by_the_end() {
    for second_is_lost in [false, true] {
        let (bench, store) = slow(Options::default());
        let session = bench.session("s", NEW);
        let batch = session.call(&[id(1), id(2), id(3)], None, Arc::new(NoWake), 0).unwrap();
        store.set(true, false);
        respond(&session, 1).unwrap();
        assert!(store.answer_unheard(), "it is in the log, and counts as lost");
        respond(&session, 2).unwrap();
        assert!(store.answer(true), "it is refused behind what is in the log");
        assert!(store.answer(true), "the look at the log");
        assert!(store.answer(!second_is_lost));
        store.set(false, false);
        respond(&session, 3).unwrap();
        let answered = bench.read(&batch);
        let mut want = vec![json!({"event": 1, "is": {"result": 1}})];
        if second_is_lost {
            want.push(json!({"event": 2, "is": {"result": 3}}));
            want.push(json!({"tombstone": {"error": -32603, "id": 2}}));
        } else {
            want.push(json!({"event": 2, "is": {"result": 2}}));
            want.push(json!({"event": 3, "is": {"result": 3}}));
        }
        assert_eq!((&answered.frames()[1..], answered.end), (&want[..], Some(CloseReason::Complete)));
    }
}

#[test]
fn i6_the_last_response_of_a_batch_is_its_end_when_one_before_it_came_through_after_all() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let batch = session.call(&[id(1), id(2)], None, Arc::new(NoWake), 0).unwrap();
    let cursor = bench.read(&batch).last_id();
    store.set(true, false);
    respond(&session, 1).unwrap();
    assert!(store.answer_unheard(), "it is in the log, and counts as lost");
    store.set(false, false);
    assert_eq!(respond(&session, 2), Ok(Sent::Stored));
    let events = [json!({"event": 1, "is": {"result": 1}}), json!({"event": 2, "is": {"result": 2}})];
    let answered = bench.read(&batch);
    assert_eq!((&answered.frames()[..], answered.end), (&events[..], Some(CloseReason::Complete)));
    assert_eq!(bench.read(&resume(&session, &cursor)).frames()[1..], events, "the log has its end");
    assert_eq!(bench.read(&resume(&session, &answered.last_id())).status, Some(204));
}

#[test]
fn i13_all_responses_of_a_lost_append_are_told_by_the_end() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let batch = session.call(&[id(1), id(2), id(3)], None, Arc::new(NoWake), 0).unwrap();
    store.set(true, false);
    notify(&session, 1, "a").unwrap();
    for number in [1, 2, 3] {
        respond(&session, number).unwrap();
    }
    store.answer(true);
    bench.advance(30_000);
    assert_eq!(session.take_outcomes().len(), 4);
    store.set(false, false);
    let errors = json!([1, 2, 3].map(|number| json!({"error": -32603, "id": number})));
    let answered = bench.read(&batch);
    assert_eq!(answered.frames().last(), Some(&json!({"tombstone": errors})));
    assert_eq!(answered.end, Some(CloseReason::Complete));
}

#[test]
fn i13_answers_of_a_batch_that_fail_one_after_the_other_are_all_told_by_the_end() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let batch = session.call(&[id(1), id(2)], None, Arc::new(NoWake), 0).unwrap();
    store.set(true, false);
    respond(&session, 1).unwrap();
    respond(&session, 2).unwrap();
    assert!(store.answer(false) && store.answer(false));
    store.set(false, false);
    let errors = json!([1, 2].map(|number| json!({"error": -32603, "id": number})));
    assert_eq!(bench.read(&batch).frames()[1..], [json!({"tombstone": errors})]);
}

#[test]
fn i2_i3_the_log_goes_on_behind_an_append_that_came_through_after_all() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    let cursor = bench.read(&connection).last_id();
    store.set(true, false);
    notify(&session, 1, "late").unwrap();
    bench.advance(30_000);
    assert!(matches!(session.take_outcomes()[..], [(_, Err(EngineError::Store(StoreError::TimedOut { .. })))]));
    // The store takes it now that nobody waits.
    assert!(store.answer(true));
    store.set(false, false);
    assert_eq!(notify(&session, 1, "a"), Ok(Sent::Stored));
    assert_eq!(respond(&session, 1), Ok(Sent::Stored));
    let events =
        [json!({"event": 1, "is": "late"}), json!({"event": 2, "is": "a"}), json!({"event": 3, "is": {"result": 1}})];
    let live = bench.read(&connection);
    assert_eq!((&live.frames()[..], live.end), (&events[..], Some(CloseReason::Complete)));
    assert_eq!(bench.read(&resume(&session, &cursor)).frames()[1..], events);
}

#[test]
fn f58_the_log_goes_on_behind_an_append_that_the_store_itself_gave_up() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    let cursor = bench.read(&connection).last_id();
    store.set(true, false);
    for name in ["a", "b", "c"] {
        notify(&session, 1, name).unwrap();
    }
    // The others go together, once the first one is stored.
    assert!(store.answer(true) && store.answer_unheard());
    let outcomes: Vec<_> = session.take_outcomes().into_iter().map(|(_, outcome)| outcome).collect();
    let unheard = Err(EngineError::Store(StoreError::TimedOut { after_ms: 10_000 }));
    assert_eq!(outcomes, [Ok(()), unheard.clone(), unheard]);
    assert_eq!(store.pending(), 0, "what may be stored is not stored again");
    store.set(false, false);
    assert_eq!(notify(&session, 1, "d"), Ok(Sent::Stored));
    assert_eq!(respond(&session, 1), Ok(Sent::Stored));
    let events: Vec<_> = (1..).zip(["a", "b", "c", "d"]).map(|(seq, name)| json!({"event": seq, "is": name})).collect();
    let again = bench.read(&resume(&session, &cursor)).frames();
    assert_eq!((&again[1..5], &again[5..]), (&events[..], &[json!({"event": 5, "is": {"result": 1}})][..]));
    assert_eq!(bench.engine.stats().events_unstored, 2);
}

#[test]
fn a_question_behind_an_append_that_came_through_is_settled_where_it_is() {
    let store = SlowStore::new(Limits { max_events_per_stream: 3, ..Limits::default() });
    let bench = Bench::new(Options { store: Some(Arc::clone(&store) as _), ..Options::default() });
    let session = bench.session("s", NEW);
    let cursor = bench.read(&call(&session, 1)).last_id();
    store.set(true, false);
    notify(&session, 1, "late").unwrap();
    bench.advance(30_000);
    store.answer(true);
    store.set(false, false);
    assert_eq!(ask(&session, 1, "q"), Ok(Sent::Stored));
    session.received(read(br#"{"jsonrpc":"2.0","id":"q","result":{}}"#).unwrap().envelopes());
    for _ in 0..4 {
        notify(&session, 1, "a").unwrap();
    }
    // A question without an answer would have outlived the events around it.
    let frames = bench.read(&resume(&session, &cursor)).frames();
    assert_eq!(frames[1..3], [json!({"gap": {"first": 1, "count": 3}}), json!({"event": 4, "is": "a"})]);
}

#[test]
fn f_21_a_read_without_an_answer_is_tried_again_and_given_up_in_time() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let first = call(&session, 1);
    let cursor = bench.read(&first).last_id();
    notify(&session, 1, "a").unwrap();
    drop(first);
    store.set(true, false);
    let back = resume(&session, &cursor);
    bench.advance(29_999);
    assert_eq!(read_now(&back).status, None, "the store has not said how the answer starts");
    bench.advance(1);
    let answered = read_now(&back);
    assert_eq!((answered.status, answered.frames()), (Some(200), vec![json!({"priming": 0, "retry_ms": 3000})]));
    // The page of the first read is late; that of the second counts.
    bench.advance(250);
    read_now(&back);
    assert_eq!(store.pending(), 2);
    store.answer(true);
    assert_eq!(read_now(&back).text, "");
    store.answer(true);
    assert_eq!(read_now(&back).frames(), [json!({"event": 1, "is": "a"})]);

    let away = resume(&session, &cursor);
    let mut answered = read_now(&away);
    let mut waited_ms = 0;
    while answered.end.is_none() {
        assert!(waited_ms < 120_000, "it is given up");
        bench.advance(250);
        waited_ms += 250;
        answered = read_now(&away);
    }
    assert_eq!(answered.end, Some(CloseReason::Fault));
}

#[test]
fn a_log_that_is_never_created_is_an_error_for_its_call() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    store.set(true, false);
    let connection = call(&session, 1);
    respond(&session, 1).unwrap();
    assert_eq!(bench.read(&connection).text, "", "nothing is sent before the log exists");
    store.set(false, false);
    bench.advance(30_000);
    let frames = bench.read(&connection).frames();
    assert_eq!(frames.last(), Some(&json!({"tombstone": {"error": -32603, "id": 1}})));
}

#[test]
fn without_a_timeout_the_store_is_waited_for() {
    let (bench, store) = slow(Options { store_timeout_ms: 0, ..Options::default() });
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    bench.read(&connection);
    store.set(true, false);
    notify(&session, 1, "a").unwrap();
    bench.advance(100_000_000);
    assert!(session.take_outcomes().is_empty());
    store.answer(true);
    assert!(matches!(session.take_outcomes()[..], [(_, Ok(()))]));
}

#[test]
fn i11_what_is_answered_or_over_is_not_waited_for() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let ended = bench.session("ended", NEW);
    let connections = [call(&session, 1), call(&ended, 1)];
    store.set(true, false);
    notify(&session, 1, "a").unwrap();
    notify(&ended, 1, "a").unwrap();
    store.answer(true);
    ended.end();
    drop(connections);
    bench.advance(30_000);
    assert!(matches!(session.take_outcomes()[..], [(_, Ok(()))]));
    assert!(matches!(ended.take_outcomes()[..], [(_, Err(EngineError::SessionEnded))]));
    assert_eq!(bench.engine.stats().events_unstored, 0);
}

#[test]
fn i9_what_the_host_reports_too_late_is_not_stored() {
    let store = Arc::new(HostStore::new(Options::default().limits));
    let bench = Bench::new(Options { store: Some(Arc::clone(&store) as _), ..Options::default() });
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    let taken = session.take_operations();
    session.stored(taken[0].number, "e0");
    let Ok(Sent::Pending(_)) = notify(&session, 1, "taken") else { panic!("the host is asked") };
    let taken = session.take_operations();
    bench.advance(20_000);
    let other = call(&session, 2);
    bench.advance(10_000);
    assert!(matches!(session.take_outcomes()[..], [(_, Err(EngineError::Store(StoreError::TimedOut { .. })))]));
    session.stored(taken[0].number, "e1");
    respond(&session, 1).unwrap();
    bench.advance(20_000);
    // The priming position of the other was never stored: its call goes on without that id.
    respond(&session, 2).unwrap();
    let taken = session.take_operations();
    assert_eq!(taken.len(), 2, "what was not taken is called off: {taken:?}");
    session.stored(taken[0].number, "e2");
    session.stored(taken[1].number, "e3");
    assert_eq!(store.unanswered(), 0);
    let text = bench.read(&connection).text;
    assert!(!text.contains("taken") && text.contains("id: e2\n") && text.contains("\"result\""), "{text}");
    let text = bench.read(&other).text;
    assert!(text.starts_with(": ") && text.contains("id: e3\n"), "{text}");
}

#[test]
fn f_21_a_replay_that_the_host_never_makes_ends_with_the_clients_cursor() {
    let store = Arc::new(HostStore::new(Options::default().limits));
    let bench = Bench::new(Options { store: Some(Arc::clone(&store) as _), ..Options::default() });
    let session = bench.session("s", NEW);
    let waiting = resume(&session, "old");
    let lost = resume(&session, "older");
    drop(lost);
    let replays = session.take_operations();
    assert_eq!(replays.len(), 1);
    bench.advance(29_999);
    assert_eq!(read_now(&waiting).status, None);
    bench.advance(1);
    let answered = read_now(&waiting);
    assert_eq!((answered.status, answered.end), (Some(200), Some(CloseReason::Fault)));
    assert_eq!(answered.text, "id: old\nretry: 3000\ndata: \n\n");
    session.replayed(replays[0].number, Ok(HostReplay::default()));
    assert_eq!(store.unanswered(), 0);
}
