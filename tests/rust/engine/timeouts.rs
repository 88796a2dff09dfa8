//! Stores that say later and never answer, or answer when nobody waits any more: what is written is asked for again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::kit::common::{Bell, Bench, NEW, ask, call, id, notify, read_now, respond, resume, slow};
use serde_json::json;
use tailrope_core::ErrorCode;
use tailrope_core::engine::{EngineError, NoWake, Options, Sent};
use tailrope_core::protocol::{Dialect, EventId};
use tailrope_core::store::{HostReplay, HostStore, StoreError, StreamKey, session_name};
use tailrope_core::stream::CloseReason;

const TIMED_OUT: Result<(), EngineError> = Err(EngineError::Store(StoreError::TimedOut { after_ms: 30_000 }));

#[test]
fn o13_i9_a_sender_is_told_in_time_and_its_event_comes_all_the_same() {
    let (bench, store) = slow(Options::default());
    let bell = Arc::new(Bell::default());
    let session = bench.engine.open_session("s", None, &Dialect::MCP_PYTHON_2, Arc::clone(&bell) as _, 0).unwrap();
    session.assume_revision(NEW);
    let connection = call(&session, 1);
    bench.read(&connection);
    store.set(true, false);
    assert_eq!(notify(&session, 1, "a"), Ok(Sent::Ahead));
    let asked = session.now();
    let Ok(Sent::Pending(number)) = ask(&session, 1, "b") else { panic!("a question waits") };
    bench.advance(29_999);
    assert!(session.take_outcomes().is_empty());
    assert!(bench.engine.next_deadline() <= asked + 30_000, "the tick comes in time");
    let rings = bell.0.load(Ordering::SeqCst);
    bench.advance(1);
    assert!(bell.0.load(Ordering::SeqCst) > rings, "who waits is woken");
    assert_eq!(session.take_outcomes(), [(number, TIMED_OUT)]);
    // As long as that lasts nobody waits.
    let told = EngineError::Store(StoreError::TimedOut { after_ms: 30_000 });
    assert_eq!((notify(&session, 1, "c"), ask(&session, 1, "q")), (Err(told.clone()), Err(told)));
    assert_eq!(respond(&session, 1), Ok(Sent::Ahead), "a response is taken");
    let said = bench.read(&connection).frames();
    assert!(said.iter().all(|frame| frame.get("comment").is_some()), "I1: {said:?}");
    store.answer_all();
    store.set(false, false);
    let answered = bench.read(&connection);
    let events = [
        json!({"event": 1, "is": "a"}),
        json!({"event": 2, "is": "roots/list"}),
        json!({"event": 3, "is": {"result": 1}}),
    ];
    assert_eq!((&answered.frames()[..], answered.end), (&events[..], Some(CloseReason::Complete)));
    assert!(session.take_outcomes().is_empty(), "everybody was told once");
    assert_eq!(bench.engine.stats().events_unstored, 0);
}

#[test]
fn i3_an_append_whose_answer_is_lost_is_in_the_log_once() {
    for answers_before in 0..4 {
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
        for _ in 0..answers_before {
            bench.advance(1_000);
            assert!(store.answer_unheard(), "it is asked again");
        }
        bench.advance(1_000);
        assert!(store.answer(false), "a try that failed says nothing of one before it");
        bench.advance(1_000);
        store.answer_all();
        store.set(false, false);
        assert_eq!(respond(&session, 1), Ok(Sent::Stored));
        let events: Vec<_> = (1..).zip(["a", "b", "c"]).map(|(seq, name)| json!({"event": seq, "is": name})).collect();
        let want = [&events[..], &[json!({"event": 4, "is": {"result": 1}})]].concat();
        assert_eq!(bench.read(&connection).frames(), want);
        assert_eq!(bench.read(&resume(&session, &cursor)).frames()[1..], want);
    }
}

/// Whether the store calls off what takes too long, or does it late.
const CALLS_OFF: [bool; 2] = [true, false];

#[test]
fn i13_a_store_that_stands_still_loses_nothing() {
    for (still_ms, calls_off) in [13_000, 60_000, 600_000].into_iter().flat_map(|ms| CALLS_OFF.map(|off| (ms, off))) {
        let (bench, store) = slow(Options::default());
        store.calls_off.store(calls_off, Ordering::SeqCst);
        let session = bench.session("s", NEW);
        let (before, silent) = (call(&session, 1), call(&session, 2));
        let cursor = bench.read(&before).last_id();
        bench.read(&silent);
        store.set(true, false);
        notify(&session, 1, "a").unwrap();
        notify(&session, 1, "b").unwrap();
        let during = call(&session, 3);
        respond(&session, 3).unwrap();
        bench.advance(9_000);
        respond(&session, 1).unwrap();
        let waiting = resume(&session, &cursor);
        let mut passed_ms = 9_000;
        while passed_ms < still_ms {
            bench.advance(1_000);
            passed_ms += 1_000;
        }
        respond(&session, 2).unwrap();
        for connection in [&before, &silent, &during] {
            let frames = bench.read(connection).frames();
            assert!(frames.iter().all(|frame| frame.get("comment").is_some()), "I1, I13: {frames:?}");
        }
        store.set(false, false);
        store.answer_all();
        bench.advance(30_000);
        store.answer_all();
        let events =
            [json!({"event": 1, "is": "a"}), json!({"event": 2, "is": "b"}), json!({"event": 3, "is": {"result": 1}})];
        let resumed = bench.read(&waiting);
        assert_eq!((&resumed.frames()[1..], resumed.end), (&events[..], Some(CloseReason::Complete)), "I2, I3");
        for (connection, result) in [(&silent, 2), (&during, 3)] {
            let answered = bench.read(connection);
            assert_eq!(answered.frames().last(), Some(&json!({"event": 1, "is": {"result": result}})), "I13");
            assert_eq!(answered.end, Some(CloseReason::Complete), "I6");
        }
        assert_eq!(bench.read(&resume(&session, &cursor)).frames()[1..], events);
        assert_eq!(bench.engine.stats().events_unstored, 0);
    }
}

#[test]
fn what_a_try_before_the_last_one_says_counts_where_it_is_done() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    bench.read(&connection);
    store.set(true, false);
    notify(&session, 1, "a").unwrap();
    bench.advance(30_000);
    assert_eq!(store.pending(), 2, "it is asked again");
    assert!(store.answer(true), "the first");
    assert_eq!(bench.read(&connection).text, "", "the page is asked for");
    assert!(store.answer(true), "the second, which nobody waits for");
    store.answer_all();
    assert_eq!(bench.read(&connection).frames(), [json!({"event": 1, "is": "a"})]);
}

#[test]
fn i13_an_end_is_asked_for_until_the_store_has_it() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    let cursor = bench.read(&connection).last_id();
    let Some(EventId::Position(at)) = EventId::parse(&cursor) else { panic!("a position") };
    let key = StreamKey { session: session_name("s"), nonce: at.nonce };
    store.set(true, false);
    session.cancelled(&id(1));
    let tombstone = json!({"tombstone": {"error": -32800, "id": 1}});
    let answered = bench.read(&connection);
    let want = [tombstone];
    assert_eq!((&answered.frames()[..], answered.end), (&want[..], Some(CloseReason::Complete)), "at once");
    for _ in 0..3 {
        assert!(store.answer(false), "the end is asked for");
        bench.advance(1_000);
    }
    bench.advance(60_000);
    assert!(!store.log_now(&key).unwrap().page.is_finished);
    // Who comes meanwhile is given the end that the store has not got.
    store.set(false, false);
    assert_eq!(bench.read(&resume(&session, &cursor)).frames()[1..], want);
    store.answer_all();
    bench.advance(30_000);
    assert!(store.log_now(&key).is_some_and(|log| log.page.is_finished && log.page.tail.is_some()));
    bench.advance(60_000);
    assert_eq!(store.pending(), 0, "it has an answer");
    assert_eq!(bench.read(&resume(&session, &cursor)).frames()[1..], want);
}

#[test]
fn i9_the_text_of_a_timeout_says_nothing_of_the_store() {
    let EngineError::Store(error) = TIMED_OUT.unwrap_err() else { unreachable!() };
    assert_eq!(error.code(), ErrorCode::StoreTimedOut);
    assert_eq!(EngineError::Store(error).to_string(), "the event store did not store the event");
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
fn a_log_is_created_as_soon_as_the_store_answers() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    store.set(true, false);
    let connection = call(&session, 1);
    respond(&session, 1).unwrap();
    assert_eq!(bench.read(&connection).text, "");
    bench.advance(100_000);
    assert_eq!(read_now(&connection).text, ": keep-alive\n\n", "no id is sent before the log exists");
    store.set(false, false);
    store.answer_all();
    let frames = bench.read(&connection).frames();
    assert_eq!(frames.last(), Some(&json!({"event": 1, "is": {"result": 1}})));
}

#[test]
fn without_a_timeout_the_store_is_waited_for() {
    let (bench, store) = slow(Options { store_timeout_ms: 0, ..Options::default() });
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    bench.read(&connection);
    store.set(true, false);
    ask(&session, 1, "a").unwrap();
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
    ask(&session, 1, "a").unwrap();
    ask(&ended, 1, "a").unwrap();
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
    bench.read(&connection);
    let taken = session.take_operations();
    session.stored(taken[0].number, "e0");
    let Ok(Sent::Pending(_)) = notify(&session, 1, "taken") else { panic!("the host is asked") };
    let taken = session.take_operations();
    bench.advance(20_000);
    let other = call(&session, 2);
    assert_eq!(bench.read(&other).text, "");
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
