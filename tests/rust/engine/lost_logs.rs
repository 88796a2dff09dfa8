//! The engine on a store that loses what it had: restarted empty, or set back to an older state (I8).

use std::sync::Arc;

use crate::kit::common::{Answered, Bench, NEW, SlowStore, broadcast, call, listen, notify, respond, resume, slow};
use bytes::Bytes;
use serde_json::{Value, json};
use tailrope_core::Ms;
use tailrope_core::engine::{EngineError, Options};
use tailrope_core::protocol::{EventId, StreamNonce};
use tailrope_core::store::contract::{Caller, Log, progress};
use tailrope_core::store::{EventStore, StoreError, StreamKey, session_name};
use tailrope_core::stream::CloseReason;

fn key_of(session: &str, event_id: &str) -> StreamKey {
    let nonce = match EventId::parse(event_id) {
        Some(EventId::Position(cursor)) => cursor.nonce,
        other => panic!("a cursor: {other:?}"),
    };
    StreamKey { session: session_name(session), nonce }
}

/// The two ways to lose events: the log is not there, or is there with less in it.
fn lose(store: &SlowStore, key: &StreamKey, all: bool) {
    store.drop_stream(key, store.epoch());
    if !all {
        let caller = Caller::new(store, Ms(0)).with(store.epoch());
        let mut log = Log { key: key.clone(), events: Vec::new() };
        caller.open_as(&log);
        caller.push(&mut log, &[progress("of an older state")]);
    }
}

fn worlds() -> impl Iterator<Item = (bool, Bench, Arc<SlowStore>)> {
    [true, false].into_iter().map(|all| {
        let (bench, store) = slow(Options::default());
        (all, bench, store)
    })
}

fn last(answered: &Answered) -> Option<Value> {
    answered.frames().pop()
}

#[test]
fn i8_a_request_whose_events_the_store_lost_gets_an_end_at_once() {
    for (all, bench, store) in worlds() {
        let session = bench.session("s", NEW);
        let connection = call(&session, 1);
        for name in ["a", "b", "c"] {
            notify(&session, 1, name).unwrap();
        }
        let cursor = bench.read(&connection).last_id();
        lose(&store, &key_of("s", &cursor), all);
        let Err(EngineError::Store(error)) = notify(&session, 1, "d") else { panic!("the handler is told (I9)") };
        assert_eq!(error, if all { StoreError::Gone } else { StoreError::RolledBack });
        let answered = bench.read(&connection);
        assert_eq!(last(&answered), Some(json!({"tombstone": {"error": -32603, "id": 1}})), "I13");
        assert_eq!(answered.end, Some(CloseReason::Complete));
        assert!(answered.text.contains("lost stored events"), "{}", answered.text);
        respond(&session, 1).expect("a late response kills no session");
        assert_eq!(bench.engine.stats().logs_lost, 1);
        // The position that the client has is not in the log any more, whatever else is.
        let again = bench.read(&resume(&session, &cursor));
        assert_eq!(again.frames(), [json!({"tombstone": {"error": -32603, "id": 1}})], "never a silent skip");
        notify_another(&bench, &session);
    }
}

fn notify_another(bench: &Bench, session: &tailrope_core::engine::SessionHandle) {
    let connection = call(session, 2);
    notify(session, 2, "x").unwrap();
    respond(session, 2).unwrap();
    let want = [json!({"event": 1, "is": "x"}), json!({"event": 2, "is": {"result": 2}})];
    assert_eq!(bench.read(&connection).frames()[1..], want, "I9: the next one works");
}

#[test]
fn i8_the_standalone_stream_begins_anew_when_its_log_is_lost() {
    for (all, bench, store) in worlds() {
        let session = bench.session("s", NEW);
        let connection = listen(&session);
        for name in ["a", "b", "c"] {
            broadcast(&session, name).unwrap();
        }
        let cursor = bench.read(&connection).last_id();
        let old = key_of("s", &cursor);
        lose(&store, &old, all);
        assert!(matches!(broadcast(&session, "d"), Err(EngineError::Store(_))), "I9");
        assert_eq!(bench.read(&connection).end, Some(CloseReason::Fault), "its client comes back");
        broadcast(&session, "e").unwrap();
        let back = bench.read(&resume(&session, &cursor));
        assert_eq!(last(&back), Some(json!({"event": 1, "is": "e"})), "a stream of another name, from its start");
        let new: StreamNonce = key_of("s", &back.last_id()).nonce;
        assert!(new != old.nonce && store.log_now(&old).is_none(), "nothing is left of the old one (I11)");
    }
}

#[test]
fn i9_a_log_that_was_not_created_is_created_for_the_next_event() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    store.set(false, true);
    let connection = call(&session, 1);
    assert_eq!(bench.read(&connection).text, "", "nothing is sent before the log exists");
    assert!(notify(&session, 1, "lost").is_err(), "its handler is told");
    store.set(false, false);
    notify(&session, 1, "a").unwrap();
    respond(&session, 1).unwrap();
    let want = [
        json!({"priming": 0, "retry_ms": 3000}),
        json!({"event": 1, "is": "a"}),
        json!({"event": 2, "is": {"result": 1}}),
    ];
    assert_eq!(bench.read(&connection).frames(), want);
}

#[test]
fn a_log_that_is_opened_says_what_it_is_about() {
    // In memory nobody could ask for it later.
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    let key = key_of("s", &bench.read(&connection).last_id());
    assert_eq!(store.log_now(&key).map(|log| log.about), Some(Bytes::new()));
}
