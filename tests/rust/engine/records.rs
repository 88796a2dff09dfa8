//! Resumes whose stream has no machine, on stores that tell late what they know of it, or cannot; and
//! what the engine has a store keep of its sessions.

use std::sync::Arc;

use crate::kit::common::{
    Bench, NEW, OLD, SlowStore, broadcast, call, id, listen, notify, read_now, respond, resume, slow, unused,
};
use crate::kit::relaying::{ALICE, identity};
use serde_json::json;
use tailrope_core::Ms;
use tailrope_core::engine::{NoWake, Options, OutgoingMessage, SessionHandle};
use tailrope_core::protocol::{Dialect, ListChanged, Revision};
use tailrope_core::store::contract::Caller;
use tailrope_core::store::{SessionRecord, session_name};
use tailrope_core::stream::{CloseReason, Drain, Pacing};

/// Request 1 got two notifications and its response, nobody is connected, and its machine is gone. Returns
/// the ids of its answer: the priming position, 1, 2 and 3.
fn finished(bench: &Bench, session: &SessionHandle) -> Vec<String> {
    let connection = call(session, 1);
    notify(session, 1, "a").unwrap();
    notify(session, 1, "b").unwrap();
    respond(session, 1).unwrap();
    let ids = bench.read(&connection).ids();
    // Sessions without priming have no id of the position before the first event.
    if ids.len() == 4 { ids } else { [&[String::new()], &ids[..]].concat() }
}

#[test]
fn a_record_that_comes_late_is_waited_for_with_the_whole_answer() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let ids = finished(&bench, &session);
    store.set(true, false);
    let back = resume(&session, &ids[1]);
    let early = bench.read(&back);
    assert_eq!((early.status, early.text.as_str()), (None, ""), "how the answer starts is not known");
    store.answer(true);
    let answered = read_now(&back);
    assert_eq!(answered.status, Some(200));
    let rest = [json!({"event": 2, "is": "b"}), json!({"event": 3, "is": {"result": 1}})];
    assert_eq!(answered.frames(), [&[json!({"priming": 1, "retry_ms": 3000})], &rest[..]].concat());
    assert_eq!((answered.end, store.pending()), (Some(CloseReason::Complete), 0), "one question is enough");
    let at_the_end = resume(&session, &ids[3]);
    store.answer_all();
    assert_eq!(read_now(&at_the_end).status, Some(204));
}

#[test]
fn i7_a_log_that_turns_out_not_to_be_there_is_answered_as_ever() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let other = bench.session("other", NEW);
    let foreign = finished(&bench, &other);
    store.set(true, false);
    let back = resume(&session, &foreign[1]);
    assert_eq!(read_now(&back).status, None);
    store.answer(true);
    let answered = read_now(&back);
    assert_eq!(answered.status, Some(200));
    assert_eq!(answered.frames(), [json!({"tombstone": {"error": -32603, "id": 1}})]);
    let batch = other.call(&[id(2), id(3)], None, Arc::new(NoWake), 0).unwrap();
    bench.read(&batch);
    store.answer_all();
    let unnamed = read_now(&batch).last_id();
    let back = resume(&session, &unnamed);
    store.answer_all();
    assert_eq!(read_now(&back).status, Some(400));
}

#[test]
fn i4_who_came_last_reads_the_stream_whatever_the_order_of_looking_it_up() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let ids = finished(&bench, &session);
    store.set(true, false);
    let first = resume(&session, &ids[1]);
    let second = resume(&session, &ids[2]);
    assert_eq!(store.pending(), 2, "each is looked up with its own cursor");
    store.answer_nth(1, true);
    store.answer(true);
    let (first, second) = (read_now(&first), read_now(&second));
    assert_eq!((first.text.as_str(), first.end), ("", Some(CloseReason::Superseded)));
    assert_eq!(second.frames()[1..], [json!({"event": 3, "is": {"result": 1}})]);
}

#[test]
fn f_21_a_store_that_cannot_tell_is_asked_again_behind_an_answer_that_has_begun() {
    for (revision, ours) in [(NEW, json!({"priming": 1, "retry_ms": 3000})), (OLD, json!({"comment": ""}))] {
        let pacing = Pacing { keep_alive_ms: 400, ..Pacing::default() };
        let (bench, store) = slow(Options { pacing, ..Options::default() });
        let session = bench.session("s", revision);
        let ids = finished(&bench, &session);
        store.set(false, true);
        let back = resume(&session, &ids[1]);
        let begun = read_now(&back);
        assert_eq!(begun.status, Some(200));
        if revision == NEW {
            assert_eq!(begun.frames(), [ours]);
            assert_ne!(begun.ids()[0], ids[1], "I5: the same position under another id");
        }
        assert!(bench.engine.next_deadline() <= session.now() + 250, "the tick comes in time");
        bench.advance(250);
        assert_eq!(read_now(&back).text, "");
        bench.advance(250);
        assert!(read_now(&back).text.starts_with(':'), "comments go on");
        store.set(false, false);
        bench.advance(250);
        let rest = [json!({"event": 2, "is": "b"}), json!({"event": 3, "is": {"result": 1}})];
        let answered = read_now(&back);
        assert_eq!(
            (answered.frames(), answered.end),
            (rest.to_vec(), Some(CloseReason::Complete)),
            "one priming event"
        );
    }
}

#[test]
fn f_21_a_store_that_never_tells_is_given_up_in_time_and_the_id_that_was_told_works() {
    let pacing = Pacing { store_wait_ms: 1_000, ..Pacing::default() };
    let (bench, store) = slow(Options { pacing, ..Options::default() });
    let session = bench.session("s", NEW);
    let ids = finished(&bench, &session);
    store.set(false, true);
    let back = resume(&session, &ids[1]);
    let echo = read_now(&back).last_id();
    for _ in 0..3 {
        bench.advance(250);
        assert_eq!(read_now(&back).end, None);
    }
    bench.advance(250);
    let ended = read_now(&back);
    assert_eq!((ended.text.as_str(), ended.end), ("", Some(CloseReason::Fault)), "a clean end");
    assert_eq!(bench.engine.stats().closes_fault, 1);
    store.set(false, false);
    assert_eq!(bench.read(&resume(&session, &echo)).frames().len(), 3);
}

#[test]
fn f_21_a_look_up_without_an_answer_counts_as_one_that_failed() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let ids = finished(&bench, &session);
    store.set(true, false);
    let back = resume(&session, &ids[1]);
    bench.advance(29_999);
    assert_eq!(read_now(&back).status, None);
    bench.advance(1);
    assert_eq!(read_now(&back).frames(), [json!({"priming": 1, "retry_ms": 3000})]);
    store.set(false, false);
    bench.advance(250);
    assert_eq!(read_now(&back).frames().len(), 2);
    // The answer to the first question comes when nobody waits for it.
    store.answer_all();
    assert_eq!(read_now(&back).text, "");
}

#[test]
fn a_cursor_of_another_history_ends_an_answer_that_has_begun() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let ids = finished(&bench, &session);
    let mut forged = ids[1].clone().into_bytes();
    forged[30] = if forged[30] == b'A' { b'B' } else { b'A' };
    let forged = String::from_utf8(forged).unwrap();
    store.set(false, true);
    let back = resume(&session, &forged);
    read_now(&back);
    store.set(false, false);
    bench.advance(250);
    let answered = read_now(&back);
    assert_eq!(answered.frames(), [json!({"tombstone": {"error": -32603, "id": 1}})]);
    assert!(answered.end.is_some());
}

#[test]
fn i5_a_stream_that_is_given_instead_of_one_that_is_lost_is_named_behind_the_echo() {
    // A cursor into a log that is not there, and one whose tag is of another history of the log that is.
    for (at, is_there) in [(4, false), (30, true)] {
        let (bench, store) = slow(Options::default());
        let session = bench.session("s", NEW);
        let listener = listen(&session);
        broadcast(&session, "a").unwrap();
        let start = bench.read(&listener).ids()[0].clone();
        drop(listener);
        let mut lost = start.clone().into_bytes();
        lost[at] = if lost[at] == b'A' { b'B' } else { b'A' };
        store.set(false, true);
        let back = resume(&session, &String::from_utf8(lost).unwrap());
        let echo = bench.read(&back);
        assert_eq!(echo.frames(), [json!({"priming": 0, "retry_ms": 3000})]);
        store.set(false, false);
        bench.advance(250);
        let answered = read_now(&back);
        let given = [json!({"priming": 0, "retry_ms": 3000}), json!({"event": 1, "is": "a"})];
        assert_eq!(answered.frames(), given, "what is given begins with a name of its own: {is_there}");
        let stream = |id: &str| id[..17].to_owned();
        assert_eq!(stream(&echo.last_id()) == stream(&start), is_there);
        assert_eq!(
            stream(&answered.ids()[0]),
            stream(&start),
            "who leaves now comes back for the stream that is there"
        );
        let again = bench.read(&resume(&session, &answered.ids()[0]));
        assert_eq!(again.frames(), given);
        assert_eq!(bench.engine.stats().resumes_lost, 1, "it is not lost once more");
    }
}

#[test]
fn who_leaves_or_loses_the_session_during_a_look_up_is_not_waited_for() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let ids = finished(&bench, &session);
    store.set(true, false);
    drop(resume(&session, &ids[1]));
    let waiting = resume(&session, &ids[1]);
    let begun = {
        store.set(false, true);
        bench.advance(30_000);
        read_now(&waiting)
    };
    assert_eq!(begun.status, Some(200));
    store.set(true, false);
    let arriving = resume(&session, &ids[2]);
    session.end();
    assert_eq!(read_now(&waiting).end, Some(CloseReason::Ended));
    assert_eq!(read_now(&arriving).status, Some(404));
    store.answer_all();
    bench.advance(60_000);
    drop((waiting, arriving));
    unused(&bench);
}

#[test]
fn a_drain_tells_who_waits_for_a_look_up_to_come_back() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let ids = finished(&bench, &session);
    store.set(true, false);
    let back = resume(&session, &ids[1]);
    bench.engine.drain(Drain::after(7_000));
    let told = read_now(&back);
    assert_eq!((told.status, told.end), (Some(200), Some(CloseReason::Drain)));
    assert_eq!(told.frames().len(), 1);
    store.answer_all();
}

#[test]
fn the_store_is_told_what_readers_elsewhere_have_to_know_of_a_session() {
    let store = SlowStore::new(Options::default().limits);
    let bench = Bench::new(Options { store: Some(Arc::clone(&store) as _), ..Options::default() });
    let session = bench.engine.open_session("s", None, &Dialect::MCP_PYTHON_2, Arc::new(NoWake), 0).unwrap();
    session.claim(&ALICE).unwrap();
    let caller = Caller::new(&*store, Ms(0));
    assert_eq!(caller.session(&session_name("s"), identity(ALICE).as_deref()), None, "not before anything is written");
    let connection = session.call(&[id(0)], Some(Revision::V2025_11_25), Arc::new(NoWake), 0).unwrap();
    let result = br#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true}}}}"#;
    session.send(OutgoingMessage::response(&id(0), result)).unwrap();
    let mut want = SessionRecord {
        revision: Some(Revision::V2025_06_18),
        principal: identity(ALICE),
        retry_ms: 3_000,
        list_changed: ListChanged { tools: true, ..ListChanged::default() },
        ..SessionRecord::default()
    };
    let now = |caller: &Caller<'_>| caller.session(&session_name("s"), identity(ALICE).as_deref());
    assert_eq!(now(&caller).as_ref(), Some(&want));
    session.set_retry_ms(700);
    want.retry_ms = 700;
    assert_eq!(now(&caller).as_ref(), Some(&want));
    drop(connection);
    session.end();
    assert_eq!(now(&caller), None, "F-54");
    session.set_retry_ms(800);
    assert_eq!(now(&caller), None, "what has ended does not come back");
}

#[test]
fn i1_initialize_is_answered_in_json_when_the_store_knows_the_session() {
    for (succeeds, times_out) in [(true, false), (false, false), (false, true)] {
        let (bench, store) = slow(Options { store_timeout_ms: 1_000, ..Options::default() });
        let session =
            bench.engine.open_session("s", None, &Dialect::MCP_PYTHON_2, Arc::new(NoWake), 0).expect("it is new");
        store.set(true, false);
        let connection = session.call_json(&[id(1)], Some(NEW), Arc::new(NoWake), 0).expect("the id is free");
        let answer =
            json!({"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": "2025-11-25", "capabilities": {}}});
        session.send(OutgoingMessage::response(&id(1), answer.to_string().as_bytes())).expect("it is taken");
        assert_eq!(read_now(&connection).status, None, "its client may come to another process next");
        if times_out {
            bench.advance(1_000);
        } else {
            // What the store refuses for good is waited for no longer.
            store.answer(succeeds);
            bench.advance(1_000);
        }
        let answered = read_now(&connection);
        assert_eq!((answered.status, answered.text), (Some(200), answer.to_string()));
    }
}
