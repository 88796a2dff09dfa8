//! Handlers that run ahead of a store that answers later: who waits, and who is told what was not stored.

use crate::kit::common::{Bench, NEW, SlowStore, ask, broadcast, call, id, notify, respond, slow};
use serde_json::{Value, json};
use std::sync::Arc;
use tailrope_core::engine::{
    Connection, EngineError, NoWake, OnStoreFailure, Options, OutgoingMessage, RandomSource, Sent, SessionHandle,
};
use tailrope_core::store::Limits;
use tailrope_core::stream::CloseReason;

const AHEAD_EVENTS: usize = 128;
const AHEAD_BYTES: usize = 256 << 10;

/// A notification of about so many bytes.
fn notify_bytes(session: &SessionHandle, number: i64, bytes: usize) -> Result<Sent, EngineError> {
    let text = format!(r#"{{"jsonrpc":"2.0","method":"notifications/a","params":"{}"}}"#, "x".repeat(bytes));
    session.send(OutgoingMessage::notification(Some(&id(number)), text.as_bytes()))
}

/// A session whose two calls have begun, on a store that does not answer.
fn waiting() -> (Bench, Arc<SlowStore>, SessionHandle, [Connection; 2]) {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let calls = [call(&session, 1), call(&session, 2)];
    for connection in &calls {
        bench.read(connection);
    }
    store.set(true, false);
    (bench, store, session, calls)
}

fn is_pending(sent: &Result<Sent, EngineError>) -> bool {
    matches!(sent, Ok(Sent::Pending(_)))
}

#[test]
fn o13_i10_a_notification_waits_for_the_store_only_behind_many_others_of_its_stream() {
    let (bench, store, session, [one, two]) = waiting();
    for _ in 0..AHEAD_EVENTS {
        assert_eq!(notify(&session, 1, "a"), Ok(Sent::Ahead));
    }
    assert!(is_pending(&notify(&session, 1, "a")) && is_pending(&notify(&session, 1, "a")));
    assert_eq!(notify_bytes(&session, 2, AHEAD_BYTES), Ok(Sent::Ahead), "another stream");
    assert!(is_pending(&notify(&session, 2, "a")), "it has as many bytes");
    assert_eq!(
        (respond(&session, 1), respond(&session, 2)),
        (Ok(Sent::Ahead), Ok(Sent::Ahead)),
        "a response never waits"
    );
    assert_eq!(bench.read(&one).frames(), [] as [Value; 0], "I1");
    store.set(false, false);
    store.answer_all();
    assert_eq!(session.take_outcomes().len(), 3, "who waits is told, and nobody else");
    let frames = bench.read(&one).frames();
    let numbers: Vec<_> = frames.iter().map(|frame| frame["event"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=AHEAD_EVENTS as u64 + 3).collect::<Vec<_>>(), "I2");
    assert_eq!(frames.last().unwrap()["is"], json!({"result": 1}), "the end is behind everything");
    assert_eq!(bench.read(&two).end, Some(CloseReason::Complete));
}

#[test]
fn o13_i9_what_ran_ahead_and_was_not_stored_is_told_once_to_the_next_sender_of_its_stream() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    bench.read(&connection);
    store.set(true, false);
    for name in ["lost", "a"] {
        assert_eq!(notify(&session, 1, name), Ok(Sent::Ahead));
    }
    assert!(store.answer(false) && store.answer(true));
    assert_eq!(broadcast(&session, "x"), Ok(Sent::Ahead), "another stream");
    assert!(is_pending(&notify(&session, 1, "b")), "it is told when it is stored itself");
    assert_eq!(notify(&session, 1, "c"), Ok(Sent::Ahead), "once");
    store.set(false, false);
    store.answer_all();
    let outcomes = session.take_outcomes();
    assert!(matches!(outcomes[..], [(_, Err(EngineError::Earlier(_)))]), "{outcomes:?}");
    let text = outcomes[0].1.clone().unwrap_err().to_string();
    assert_eq!(text, "the event store did not store an event that was sent before");
    respond(&session, 1).unwrap();
    let said: Vec<Value> = bench.read(&connection).frames().into_iter().map(|frame| frame["is"].clone()).collect();
    assert_eq!(said, [json!("a"), json!("b"), json!("c"), json!({"result": 1})]);
}

#[test]
fn o13_i9_a_question_is_not_asked_by_a_handler_that_is_told_of_a_failure() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    bench.read(&connection);
    store.set(true, false);
    notify(&session, 1, "lost").unwrap();
    store.answer(false);
    assert!(matches!(ask(&session, 1, "q"), Err(EngineError::Earlier(_))));
    assert_eq!(store.pending(), 0);
    let Ok(Sent::Pending(number)) = ask(&session, 1, "q") else { panic!("a question waits") };
    store.answer(false);
    let outcomes = session.take_outcomes();
    assert!(matches!(outcomes[..], [(told, Err(EngineError::Store(_)))] if told == number), "its own: {outcomes:?}");
    assert_eq!(respond(&session, 1), Ok(Sent::Ahead), "a response tells of nothing");
}

#[test]
fn progress_that_is_not_stored_is_dropped_where_that_was_asked_for() {
    let (bench, store) = slow(Options { on_store_failure: OnStoreFailure::DropProgress, ..Options::default() });
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    bench.read(&connection);
    store.set(false, true);
    assert_eq!(notify(&session, 1, "lost"), Ok(Sent::Dropped));
    assert!(matches!(ask(&session, 1, "q"), Err(EngineError::Store(_))), "a question is as before");
    store.set(true, false);
    assert_eq!(notify(&session, 1, "lost"), Ok(Sent::Ahead));
    store.answer(false);
    assert_eq!(notify(&session, 1, "a"), Ok(Sent::Ahead), "nobody is told");
    bench.advance(30_000);
    assert_eq!(notify(&session, 1, "lost"), Ok(Sent::Dropped), "while the store takes too long");
    assert!(ask(&session, 1, "q").is_err());
    store.set(false, false);
    store.answer_all();
    respond(&session, 1).unwrap();
    let said: Vec<Value> = bench.read(&connection).frames().into_iter().filter_map(|f| f.get("is").cloned()).collect();
    assert_eq!(said, [json!("a"), json!({"result": 1})]);
    assert_eq!(bench.engine.stats().events_unstored, 4, "it is counted");
    assert_eq!(
        ["raise", "drop_progress", ""].map(OnStoreFailure::parse),
        [Some(OnStoreFailure::Raise), Some(OnStoreFailure::DropProgress), None]
    );
}

#[test]
fn o13_i11_an_engine_takes_no_more_than_it_can_hold_for_a_store_that_stands_still() {
    let (bench, store, session, [one, two]) = waiting();
    for _ in 0..256 {
        notify_bytes(&session, 1, AHEAD_BYTES).unwrap();
    }
    assert_eq!((notify(&session, 1, "a"), notify(&session, 2, "a")), (Err(EngineError::Full), Err(EngineError::Full)));
    assert_eq!(respond(&session, 2), Ok(Sent::Dropped));
    assert_eq!(bench.read(&two).frames(), [json!({"tombstone": {"error": -32603, "id": 2}})], "I13: at once");
    let refused = session.call(&[id(3)], None, Arc::new(NoWake), 0).expect_err("nothing more is taken");
    assert_eq!(refused.status, 503);
    store.set(false, false);
    store.answer_all();
    let three = call(&session, 3);
    assert_eq!(respond(&session, 3), Ok(Sent::Stored));
    assert_eq!(bench.read(&three).end, Some(CloseReason::Complete));
    respond(&session, 1).unwrap();
    assert_eq!(bench.read(&one).end, Some(CloseReason::Complete));
}

#[test]
fn i11_what_a_session_waited_with_goes_with_it() {
    let (bench, store) = slow(Options::default());
    for number in 0..3 {
        let session = bench.session(&format!("s{number}"), NEW);
        let connection = call(&session, 1);
        bench.read(&connection);
        store.set(true, false);
        for _ in 0..256 {
            notify_bytes(&session, 1, AHEAD_BYTES).unwrap();
        }
        session.end();
        store.set(false, false);
        store.answer_all();
    }
}

/// Every stream gets the same name: what is left of one is told of the next.
struct Same;

impl RandomSource for Same {
    fn fill(&self, block: &mut [u8]) {
        block.fill(1);
    }
}

#[test]
fn i11_a_failure_that_nobody_was_told_of_goes_with_its_stream() {
    let (bench, store) = slow(Options { randomness: Some(Arc::new(Same)), ..Options::default() });
    let session = bench.session("s", NEW);
    for number in 1..=2 {
        let connection = call(&session, number);
        bench.read(&connection);
        store.set(true, false);
        assert_eq!(notify(&session, number, "lost"), Ok(Sent::Ahead));
        assert!(store.answer(false));
        store.set(false, false);
        respond(&session, number).unwrap();
        assert_eq!(bench.read(&connection).end, Some(CloseReason::Complete));
        // The name is free again when the log has gone.
        bench.advance(2 * Limits::default().retention_ms);
    }
}
