//! The end of a drain: no connection waits longer than `drain_within_ms` for a store that answers nothing (F-44).

use std::sync::Arc;

use crate::engine::call_records::{ALICE, admit, lines, tool_call};
use crate::kit::common::{
    Answered, Bench, NEW, OLD, SlowStore, call, call_json, listen, notify, read_now, respond, resume, slow,
};
use serde_json::{Value, json};
use tailrope_core::engine::{Connection, NoWake, Options};
use tailrope_core::stream::{CloseReason, Drain};

const OVER_MS: u64 = 10_000;

/// A drain has begun that may take [`OVER_MS`].
fn draining() -> (Bench, Arc<SlowStore>) {
    slow(Options { drain_within_ms: OVER_MS, store_timeout_ms: 60_000, ..Options::default() })
}

/// What the connection has before the end of the drain, without comments; none of it may be an end.
fn waiting(connection: &Connection) {
    let before = read_now(connection);
    assert!(before.end.is_none(), "what was sent before the close is waited for: {before:?}");
}

fn said(answered: &Answered) -> Vec<Value> {
    answered.frames().into_iter().filter(|frame| frame.get("comment").is_none()).collect()
}

/// The delay that the client is told is the drain's.
fn is_told_to_come_back(answered: &Answered) -> bool {
    let said = said(answered);
    let retry_ms = said.last().and_then(|frame| frame["retry_ms"].as_u64());
    answered.end == Some(CloseReason::Drain) && retry_ms.is_some_and(|ms| (5_000..=7_500).contains(&ms))
}

fn error(number: i64) -> Vec<Value> {
    vec![json!({"tombstone": {"error": -32603, "id": number}})]
}

#[test]
fn f_44_i6_a_drain_waits_for_no_response_that_the_store_does_not_take() {
    for (revision, answers) in [(NEW, true), (OLD, true), (OLD, false)] {
        let (bench, store) = draining();
        let session = bench.session("s", revision);
        let connection = call(&session, 1);
        notify(&session, 1, "a").unwrap();
        bench.read(&connection);
        store.set(true, false);
        if answers {
            respond(&session, 1).unwrap();
        }
        bench.engine.drain(Drain::after(5_000));
        bench.advance(OVER_MS - 300);
        waiting(&connection);
        bench.advance(300);
        let answered = read_now(&connection);
        if revision == NEW {
            assert!(is_told_to_come_back(&answered), "{answered:?}");
        } else {
            assert_eq!(said(&answered), error(1), "its client cannot be told to come back");
            assert!(answered.end.is_some());
        }
        assert_eq!(bench.engine.stats().connections, 0);
    }
}

#[test]
fn f_44_i13_a_client_that_was_told_no_id_gets_an_end() {
    for answers in [false, true] {
        let (bench, store) = draining();
        let session = bench.session("s", NEW);
        respond_to(&bench, &session, 1);
        store.set(true, false);
        let connection = call(&session, 2);
        if answers {
            respond(&session, 2).unwrap();
        }
        bench.engine.drain(Drain::after(5_000));
        bench.advance(OVER_MS - 300);
        waiting(&connection);
        bench.advance(300);
        let answered = read_now(&connection);
        assert_eq!((said(&answered), answered.end.is_some()), (error(2), true), "it has nothing to come back with");
        assert_eq!((session.in_flight(), bench.engine.stats().connections), (0, 0));
    }
}

fn respond_to(bench: &Bench, session: &tailrope_core::engine::SessionHandle, number: i64) {
    let connection = call(session, number);
    respond(session, number).unwrap();
    bench.read(&connection);
}

#[test]
fn f_44_a_drain_waits_for_no_other_connection() {
    for revision in [NEW, OLD] {
        let (bench, store) = draining();
        let session = bench.session("s", revision);
        let running = call(&session, 1);
        notify(&session, 1, "a").unwrap();
        let cursor = bench.read(&running).last_id();
        drop(running);
        store.set(true, false);
        let others = [listen(&session), resume(&session, &cursor)];
        let json = call_json(&session, 3);
        let answered = call_json(&session, 4);
        respond(&session, 4).unwrap();
        bench.engine.drain(Drain::after(5_000));
        bench.advance(OVER_MS);
        for connection in others {
            assert!(read_now(&connection).end.is_some(), "{revision:?}");
        }
        assert!(read_now(&json).text.contains("-32603"));
        assert!(read_now(&answered).text.contains("result"));
        assert_eq!(bench.engine.stats().connections, 0);
        // What comes when it is over does not wait either.
        let late = [listen(&session), resume(&session, &cursor)];
        bench.advance(250);
        for connection in late {
            assert!(read_now(&connection).end.is_some(), "{revision:?}");
        }
        assert_eq!(bench.engine.stats().connections, 0);
    }
}

#[test]
fn f_44_what_the_store_had_not_taken_at_the_end_is_said_once() {
    for revision in [NEW, OLD] {
        let records = lines("call ended", || {
            let (bench, store) = draining();
            let session = bench.session("s", revision);
            session.claim(&ALICE).unwrap();
            let admission = admit(&session, &tool_call(1), ALICE);
            let connection = session.open(&admission, false, Arc::new(NoWake), 0).expect("it may begin");
            bench.read(&connection);
            store.set(true, false);
            respond(&session, 1).unwrap();
            bench.engine.drain(Drain::after(5_000));
            bench.advance(OVER_MS);
            assert!(read_now(&connection).end.is_some());
            bench.engine.close();
        });
        let [(_, fields)] = &records[..] else { panic!("{revision:?}: {records:?}") };
        assert_eq!(fields["outcome"], "drained", "{fields:?}");
    }
}

#[test]
fn f_44_a_call_whose_response_the_store_does_not_take_counts_as_ended_by_the_drain() {
    // Some hosts end their sessions before the line is written, and others behind it.
    for ends_first in [false, true] {
        let found = lines("drained, and calls that were still running get an error", || {
            let (bench, store) = draining();
            let session = bench.session("s", NEW);
            let connections = [1, 2].map(|number| call(&session, number));
            connections.iter().for_each(|connection| drop(bench.read(connection)));
            store.set(true, false);
            respond(&session, 1).unwrap();
            bench.engine.drain(Drain::after(5_000));
            bench.advance(OVER_MS);
            if ends_first {
                bench.engine.close();
            }
            bench.engine.tell_drained();
            bench.engine.close();
        });
        let [(_, fields)] = &found[..] else { panic!("{found:?}") };
        assert_eq!((fields["calls_done"].as_str(), fields["calls_ended"].as_str()), ("0", "2"), "{fields:?}");
    }
}
