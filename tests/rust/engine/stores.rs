//! The engine on stores that wait, and on stores that fail.

use std::sync::Arc;

use crate::kit::common::{
    Bench, NEW, SECRET, ask, call, id, notification, notify, read_now, respond, resume, slow, unused,
};
use serde_json::json;
use tailrope_core::engine::{Connection, EngineError, NoWake, Options, Sent};
use tailrope_core::protocol::EventId;
use tailrope_core::store::{EncryptionKey, StoreOptions};
use tailrope_core::stream::{Chain, CloseReason, Pacing};
use tailrope_stores::open;

// Stores that wait, and stores that fail

#[test]
fn i1_nothing_is_sent_before_the_store_has_it() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    bench.read(&connection);
    store.set(true, false);
    assert_eq!(notify(&session, 1, "a"), Ok(Sent::Ahead));
    assert_eq!(bench.read(&connection).frames(), [] as [serde_json::Value; 0]);
    store.answer(true);
    assert_eq!(bench.read(&connection).frames(), [json!({"event": 1, "is": "a"})]);
    assert!(session.take_outcomes().is_empty(), "nobody waits");
}

#[test]
fn i2_f_12_events_are_sent_in_the_order_of_publishing() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let connections = [1, 2].map(|number| call(&session, number));
    store.set(true, false);
    for round in 0..5 {
        notify(&session, 1, &format!("a{round}")).unwrap();
        notify(&session, 2, &format!("b{round}")).unwrap();
    }
    respond(&session, 1).unwrap();
    while store.pending() > 0 {
        // The youngest operation first: streams do not wait for each other.
        store.answer_nth(store.pending() - 1, true);
    }
    store.set(false, false);
    let first = bench.read(&connections[0]);
    let events = (0..5).map(|round| json!({"event": round + 1, "is": format!("a{round}")}));
    assert_eq!(first.frames()[1..6], events.collect::<Vec<_>>());
    assert_eq!(first.frames()[6], json!({"event": 6, "is": {"result": 1}}));
    assert_eq!(bench.read(&connections[1]).frames().len(), 6);
}

#[test]
fn f_58_a_store_fault_harms_one_event_and_is_raised_to_its_handler() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    notify(&session, 1, "a").unwrap();
    store.set(false, true);
    let Err(EngineError::Store(error)) = notify(&session, 1, "lost") else { panic!("the handler is told") };
    assert!(error.to_string().contains(SECRET), "the server's own log may know");
    assert!(matches!(ask(&session, 1, "lost"), Err(EngineError::Store(_))));
    store.set(false, false);
    notify(&session, 1, "b").unwrap();
    respond(&session, 1).unwrap();
    let answered = bench.read(&connection);
    let want =
        [json!({"event": 1, "is": "a"}), json!({"event": 2, "is": "b"}), json!({"event": 3, "is": {"result": 1}})];
    assert_eq!(answered.frames()[1..], want);
    assert_eq!(bench.engine.stats().events_unstored, 2);
}

#[test]
fn f_59_a_response_that_the_store_does_not_take_goes_to_its_reader_once_and_no_sdk_hears_of_it() {
    for waits in [false, true] {
        let (bench, store) = slow(Options::default());
        let session = bench.session("s", NEW);
        let (read, detached) = (call(&session, 1), call(&session, 2));
        let cursors = [&read, &detached].map(|connection| bench.read(connection).last_id());
        drop(detached);
        notify(&session, 1, "a").unwrap();
        store.set(waits, !waits);
        for number in [1, 2] {
            let sent = respond(&session, number);
            if waits {
                assert_eq!(sent, Ok(Sent::Ahead), "the caller has nothing left to do");
                store.answer(false);
                store.answer_all();
                assert!(session.take_outcomes().is_empty());
            } else {
                assert_eq!(sent, Ok(Sent::Dropped));
            }
        }
        store.set(false, false);
        bench.advance(1_000);
        let answered = bench.read(&read);
        let want = [json!({"event": 1, "is": "a"}), json!({"tombstone": {"result": 1}})];
        assert_eq!((&answered.frames()[..], answered.end), (&want[..], Some(CloseReason::Complete)), "waits: {waits}");
        for (number, cursor) in (1..).zip(&cursors) {
            let again = bench.read(&resume(&session, cursor));
            assert_eq!(again.frames().last(), Some(&json!({"tombstone": {"error": -32603, "id": number}})));
            assert!(!again.text.contains("db.internal"), "I9: no detail of the store");
        }
        let last = bench.read(&resume(&session, &answered.last_id()));
        assert!(last.text.is_empty(), "it has its end: {}", last.text);
        assert_eq!(bench.engine.stats().events_unstored, 2);
        let next = call(&session, 3);
        assert_eq!(respond(&session, 3), Ok(Sent::Stored));
        assert_eq!(bench.read(&next).frames().len(), 2, "F-58: later calls work");
    }
}

#[test]
fn f_59_a_response_behind_a_log_that_was_not_made_is_not_handed_over_before_it_is_refused() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    call(&session, 2);
    respond(&session, 2).unwrap();
    store.set(true, false);
    let connection = call(&session, 1);
    read_now(&connection);
    bench.advance(20);
    read_now(&connection);
    respond(&session, 1).unwrap();
    assert!(store.pending() == 1 && store.answer(false), "the log is not made");
    store.answer_all();
    store.set(false, false);
    bench.advance(1_000);
    let answered = bench.read(&connection);
    assert_eq!(answered.frames().last(), Some(&json!({"event": 1, "is": {"result": 1}})), "{}", answered.text);
    assert_eq!(bench.engine.stats().events_unstored, 0);
}

#[test]
fn f_59_an_end_that_is_not_stored_yet_is_waited_for() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    store.set(true, false);
    respond(&session, 1).unwrap();
    store.answer(false);
    let answered = bench.read(&connection);
    store.set(false, false);
    let again = resume(&session, &answered.ids()[0]);
    assert_eq!(bench.read(&again).frames(), [json!({"priming": 0, "retry_ms": 3000})], "the log is being written");
    store.answer_all();
    bench.advance(250);
    assert_eq!(read_now(&again).frames(), [json!({"tombstone": {"error": -32603, "id": 1}})]);
}

#[test]
fn f_59_an_answer_of_a_batch_that_is_lost_is_told_at_the_end() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let connection = session.call(&[id(1), id(2), id(3)], None, Arc::new(NoWake), 0).unwrap();
    store.set(false, true);
    assert_eq!(respond(&session, 2), Ok(Sent::Dropped));
    store.set(false, false);
    respond(&session, 1).unwrap();
    session.cancelled(&id(3));
    let answered = bench.read(&connection);
    let errors = json!([{"error": -32603, "id": 2}, {"error": -32800, "id": 3}]);
    assert_eq!(answered.frames()[1..], [json!({"event": 1, "is": {"result": 1}}), json!({"tombstone": errors})]);
    assert_eq!(answered.end, Some(CloseReason::Complete));
}

#[test]
fn f_59_answers_of_a_batch_that_are_lost_together_are_told_at_the_end() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let connection = session.call(&[id(1), id(2), id(3)], None, Arc::new(NoWake), 0).unwrap();
    store.set(true, false);
    for number in [1, 2, 3] {
        respond(&session, number).unwrap();
    }
    // The first alone; then both others in one batch, which fails, and one by one.
    for succeed in [true, false, false, true] {
        store.answer(succeed);
    }
    store.set(false, false);
    let frames = bench.read(&connection).frames();
    let want = [
        json!({"event": 1, "is": {"result": 1}}),
        json!({"event": 2, "is": {"result": 3}}),
        json!({"tombstone": {"error": -32603, "id": 2}}),
    ];
    assert_eq!(frames[1..], want);
}

#[test]
fn a_log_that_could_not_be_created_comes_with_the_response() {
    for waits in [false, true] {
        let (bench, store) = slow(Options::default());
        let session = bench.session("s", NEW);
        store.set(waits, !waits);
        let connection = call(&session, 1);
        assert!(bench.read(&connection).text.is_empty(), "nothing is sent before the log exists");
        store.answer(false);
        store.set(false, false);
        assert_eq!(respond(&session, 1), Ok(Sent::Stored));
        let want = [json!({"priming": 0, "retry_ms": 3000}), json!({"event": 1, "is": {"result": 1}})];
        assert_eq!(bench.read(&connection).frames(), want);
    }
}

#[test]
fn f_10_a_resume_while_an_append_is_under_way_gets_each_event_once() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let first = call(&session, 1);
    notify(&session, 1, "a").unwrap();
    let cursor = bench.read(&first).last_id();
    drop(first);
    store.set(true, false);
    notify(&session, 1, "b").unwrap();
    let second = resume(&session, &cursor);
    assert_eq!(read_now(&second).status, None, "the store has not said how the answer starts");
    // The append, then the read that began before it.
    store.answer(true);
    store.answer(true);
    assert_eq!(read_now(&second).frames(), [json!({"priming": 1, "retry_ms": 3000})]);
    store.answer(true);
    assert_eq!(read_now(&second).frames(), [json!({"event": 2, "is": "b"})]);
}

#[test]
fn i4_what_a_fenced_connection_was_about_to_get_stays_in_the_log() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let first = call(&session, 1);
    let cursor = bench.read(&first).last_id();
    notify(&session, 1, "a").unwrap();
    store.set(true, false);
    read_now(&first);
    store.answer(true);
    store.set(false, false);
    let second = resume(&session, &cursor);
    let fenced = read_now(&first);
    assert_eq!((fenced.text.as_str(), fenced.end), ("", Some(CloseReason::Superseded)));
    assert_eq!(bench.read(&second).frames()[1..], [json!({"event": 1, "is": "a"})]);
}

#[test]
fn f_21_a_store_that_cannot_be_read_is_asked_again_and_given_up_in_time() {
    let pacing = Pacing { store_wait_ms: 1_000, ..Pacing::default() };
    let (bench, store) = slow(Options { pacing, ..Options::default() });
    let session = bench.session("s", NEW);
    let first = call(&session, 1);
    notify(&session, 1, "a").unwrap();
    let cursor = bench.read(&first).ids()[0].clone();
    drop(first);
    store.set(false, true);
    let back = resume(&session, &cursor);
    assert_eq!(bench.read(&back).frames(), [json!({"priming": 0, "retry_ms": 3000})]);
    bench.advance(250);
    assert_eq!(read_now(&back).text, "");
    store.set(false, false);
    bench.advance(250);
    assert_eq!(read_now(&back).frames(), [json!({"event": 1, "is": "a"})]);
    drop(back);
    store.set(false, true);
    let away = resume(&session, &cursor);
    let mut answered = bench.read(&away);
    assert_eq!((answered.status, answered.frames().len()), (Some(200), 1));
    for _ in 0..6 {
        assert_eq!(answered.end, None);
        bench.advance(250);
        answered = read_now(&away);
        if answered.end.is_some() {
            break;
        }
    }
    assert_eq!((answered.text.as_str(), answered.end), ("", Some(CloseReason::Fault)));
}

#[test]
fn a_cursor_that_turns_out_to_be_unknown_after_the_answer_began_ends_it() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let forge = |connection: &Connection| {
        let mut cursor = bench.read(connection).last_id().into_bytes();
        cursor[30] = if cursor[30] == b'A' { b'B' } else { b'A' };
        String::from_utf8(cursor).unwrap()
    };
    let one = call(&session, 1);
    let batch = session.call(&[id(2), id(3)], None, Arc::new(NoWake), 0).unwrap();
    for (of, number) in [(&one, 1), (&batch, 2)] {
        let cursor = forge(of);
        notify(&session, number, "a").unwrap();
        store.set(false, true);
        let back = resume(&session, &cursor);
        assert_eq!(bench.read(&back).frames(), [json!({"priming": 0, "retry_ms": 3000})]);
        store.set(false, false);
        bench.advance(250);
        let answered = read_now(&back);
        let error = json!({"tombstone": {"error": -32603, "id": 1}});
        assert_eq!(answered.frames(), if number == 1 { vec![error] } else { Vec::new() }, "no JSON in an event stream");
        assert_eq!((answered.status, answered.end.is_some()), (Some(200), true));
    }
}

#[test]
fn a_session_that_ends_while_its_store_is_slow_still_answers_everybody() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let stored = call(&session, 1);
    let cursor = bench.read(&stored).last_id();
    let other = bench.session("other", NEW);
    store.set(true, false);
    ask(&session, 1, "on its way").unwrap();
    let opening = call(&session, 2);
    store.set(false, false);
    let gone = call(&other, 1);
    let gone_cursor = bench.read(&gone).last_id();
    notify(&other, 1, "a").unwrap();
    drop(gone);
    store.set(true, false);
    let arriving = resume(&other, &gone_cursor);
    session.end();
    other.end();
    assert_eq!(bench.read(&stored).frames(), [json!({"tombstone": {"error": -32603, "id": 1}})]);
    assert_eq!(bench.read(&opening).frames().last(), Some(&json!({"tombstone": {"error": -32603, "id": 2}})));
    let arriving = bench.read(&arriving);
    assert_eq!((arriving.status, arriving.content_type), (Some(404), Some("application/json")));
    assert!(arriving.text.contains("terminated"));
    let outcomes = session.take_outcomes();
    assert!(matches!(outcomes[..], [(_, Err(EngineError::SessionEnded))]), "who waits is told: {outcomes:?}");
    store.answer_all();
    assert!(session.take_outcomes().is_empty());
    assert!(session.resume(&cursor, None, Arc::new(NoWake), 0).is_err());
    drop((stored, opening));
    unused(&bench);
}

#[test]
fn i13_a_session_that_ends_with_a_response_on_its_way_answers_its_client() {
    let (bench, store) = slow(Options::default());
    let session = bench.session("s", NEW);
    let one = call(&session, 1);
    let batch = session.call(&[id(2), id(3)], None, Arc::new(NoWake), 0).unwrap();
    let stored = call(&session, 4);
    let opened = [&one, &batch, &stored].map(|connection| bench.read(connection).frames().len());
    assert_eq!(opened, [1, 1, 1]);
    store.set(true, false);
    assert_eq!(respond(&session, 4), Ok(Sent::Ahead));
    store.answer(true);
    for number in [1, 2] {
        assert_eq!(respond(&session, number), Ok(Sent::Ahead));
    }
    session.end();
    let error = |number: i64| json!({"error": -32603, "id": number});
    let answered = bench.read(&one);
    assert_eq!((answered.frames(), answered.end.is_some()), (vec![json!({"tombstone": error(1)})], true));
    assert_eq!(bench.read(&batch).frames(), [json!({"tombstone": [error(2), error(3)]})]);
    assert_eq!(bench.read(&stored).frames(), [json!({"event": 1, "is": {"result": 4}})], "it is stored");
    assert!(session.take_outcomes().iter().all(|(_, outcome)| outcome.is_ok()), "I9: never out of a response");
    store.answer_all();
    drop((one, batch, stored));
    unused(&bench);
}

#[test]
fn i10_a_handler_is_held_back_while_too_much_waits_for_the_store() {
    let pacing = Pacing { max_unconfirmed: 3, ..Pacing::default() };
    let (bench, store) = slow(Options { pacing, ..Options::default() });
    let session = bench.session("s", NEW);
    let connection = call(&session, 1);
    store.set(true, false);
    for _ in 0..3 {
        assert_eq!(notify(&session, 1, "a"), Ok(Sent::Ahead));
    }
    assert_eq!(notify(&session, 1, "a"), Err(EngineError::Full));
    assert_eq!(respond(&session, 1), Ok(Sent::Ahead));
    while store.answer(true) {}
    store.set(false, false);
    assert_eq!(bench.read(&connection).frames().len(), 5);
}

#[test]
fn the_hashes_of_an_encrypted_log_confirm_no_guess_of_a_payload() {
    let key = EncryptionKey::from_hex(&"1".repeat(64)).unwrap();
    for (keys, is_confirmed) in [(vec![], true), (vec![key], false)] {
        let store = open("memory:", &StoreOptions { encryption_keys: keys, ..StoreOptions::default() }).unwrap();
        let bench = Bench::new(Options { store: Some(store), ..Options::default() });
        let session = bench.session("s", NEW);
        let connection = call(&session, 1);
        notify(&session, 1, "a").unwrap();
        let Some(EventId::Position(at)) = EventId::parse(&bench.read(&connection).last_id()) else {
            panic!("a position")
        };
        // The tag of an event id is a part of the running hash that is stored.
        let guessed = Chain::start(&at.nonce.0).then(&notification("a"), None);
        assert_eq!(at.tag == guessed.tag(), is_confirmed);
    }
}
