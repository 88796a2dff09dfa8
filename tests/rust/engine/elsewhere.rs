//! Sessions whose process is another one, or is gone: two engines with a store object each, on one file.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::kit::common::{
    Bell, Bench, NEW, OLD, SlowStore, broadcast, call, id, listen, notify, read_now, respond, resume,
};
use crate::kit::folder::Folder;
use crate::kit::late_looks::LateLooks;
use crate::kit::processes::{
    PATIENCE, begun, ended, events, find, find_known, has, open_session, process, read_until, store_in,
    wait_for_a_takeover,
};
use crate::kit::relaying::{ALICE, identity};
use serde_json::{Value, json};
use tailrope_core::Ms;
use tailrope_core::engine::{EngineError, NoWake, Options};
use tailrope_core::exchange::Principal;
use tailrope_core::protocol::{Dialect, EventId, IdEncoder, Origin, StreamNonce};
use tailrope_core::store::contract::Caller;
use tailrope_core::store::{Attach, Limits, SessionRecord, StoreError, StoreOptions, StreamKey, session_name};
use tailrope_core::stream::CloseReason;

#[test]
fn i11_a_look_up_gives_its_session_once() {
    let folder = Folder::new();
    let (here, there) = (process(&folder, 0), process(&folder, 0));
    let _session = open_session(&here, "s", NEW);
    find_known(&there).let_go();
    let look_up = there
        .engine
        .look_up_session("s", Some(&Principal::named("alice")), None, &Dialect::MCP_PYTHON_2, Arc::new(NoWake), 0)
        .unwrap();
    let deadline = Instant::now() + PATIENCE;
    let session = loop {
        if let Some(outcome) = look_up.take() {
            break outcome.unwrap().unwrap();
        }
        assert!(Instant::now() < deadline, "the store tells of the session");
    };
    session.let_go();
    assert_eq!(there.engine.stats().sessions_read, 0);
    assert!(look_up.take().is_none(), "a wake-up that comes late finds nothing to hold");
    assert_eq!(there.engine.stats().sessions_read, 0);
}

#[test]
fn i7_a_session_is_found_by_its_principal_alone() {
    let folder = Folder::new();
    let (here, there) = (process(&folder, 0), process(&folder, 50_000));
    let session = open_session(&here, "s", NEW);
    // Whatever follows is behind the record in the queue of the store.
    let connection = call(&session, 1);
    read_until(&here, &connection, begun);
    assert!(find(&there, "s", Some("bob")).unwrap().is_none());
    assert!(find(&there, "s", None).unwrap().is_none());
    assert!(find(&there, "unknown", Some("alice")).unwrap().is_none());
    let found = find(&there, "s", Some("alice")).unwrap().expect("it is alice's");
    assert_eq!(found.revision(), Some(NEW));
    assert!(
        there.engine.session("s", Some(&Principal::named("bob"))).is_none()
            && there.engine.session("s", Some(&Principal::named("alice"))).is_some()
    );
    let refused = found.call(&[id(9)], None, Arc::new(NoWake), 0).expect_err("it takes no requests here");
    assert_eq!(refused.status, 404);
    session.end();
    let (third, deadline) = (process(&folder, 0), Instant::now() + PATIENCE);
    // Whoever ends it does not wait for the disk.
    while find(&third, "s", Some("alice")).unwrap().is_some() {
        assert!(Instant::now() < deadline, "ended, it is unknown everywhere");
        third.engine.tick();
    }
}

#[test]
fn i11_a_session_that_no_connection_was_opened_of_is_let_go_of() {
    let folder = Folder::new();
    let (here, there) = (process(&folder, 0), process(&folder, 50_000));
    let session = open_session(&here, "s", NEW);
    let cursor = read_until(&here, &call(&session, 1), begun).last_id();
    let seen = find_known(&there);
    seen.resume("12", None, Arc::new(NoWake), 0).expect_err("it is no id of ours");
    seen.let_go();
    assert_eq!(there.engine.stats().sessions_read, 0);
    let seen = find_known(&there);
    let connection = resume(&seen, &cursor);
    seen.let_go();
    session.let_go();
    assert_eq!((there.engine.stats().sessions_read, here.engine.stats().sessions), (1, 1), "they are in use");
    drop(connection);
    assert_eq!(there.engine.stats().sessions_read, 0);
}

#[test]
fn i11_a_session_that_was_let_go_of_ends_without_the_one_that_came_after_it() {
    let folder = Folder::new();
    let (here, there) = (process(&folder, 0), process(&folder, 50_000));
    let session = open_session(&here, "s", NEW);
    let cursor = read_until(&here, &call(&session, 1), begun).last_id();
    let before = find_known(&there);
    before.let_go();
    let connection = resume(&find_known(&there), &cursor);
    before.end();
    assert_eq!(there.engine.stats().sessions_read, 1, "it has a reader");
    drop(connection);
    assert_eq!(there.engine.stats().sessions_read, 0);
}

#[test]
fn i3_a_stream_is_resumed_and_followed_in_another_process() {
    for revision in [NEW, OLD] {
        let folder = Folder::new();
        let (here, there) = (process(&folder, 0), process(&folder, 50_000));
        let session = open_session(&here, "s", revision);
        let first = call(&session, 1);
        notify(&session, 1, "a").unwrap();
        notify(&session, 1, "b").unwrap();
        let cursor = read_until(&here, &first, has(2)).ids().pop().unwrap();
        first.lost();
        notify(&session, 1, "c").unwrap();
        let seen = find_known(&there);
        let second = resume(&seen, &cursor);
        let suffix = read_until(&there, &second, has(1));
        assert_eq!((suffix.status, events(&suffix)), (Some(200), vec![json!({"event": 3, "is": "c"})]));
        notify(&session, 1, "d").unwrap();
        let live = read_until(&there, &second, has(1));
        assert_eq!(events(&live), [json!({"event": 4, "is": "d"})]);
        // It goes back and forth: no position is lost on either.
        let third = resume(&session, &live.last_id());
        notify(&session, 1, "e").unwrap();
        assert_eq!(events(&read_until(&here, &third, has(1))), [json!({"event": 5, "is": "e"})]);
        let fenced = read_until(&there, &second, ended);
        assert_eq!(fenced.end, Some(CloseReason::Superseded), "I4: the newest reader has the stream");
        let fourth = resume(&seen, &live.last_id());
        let back = read_until(&there, &fourth, has(1));
        assert_eq!(events(&back), [json!({"event": 5, "is": "e"})], "I3");
        let fenced = read_until(&here, &third, ended);
        assert_eq!((events(&fenced), fenced.end), (vec![], Some(CloseReason::Superseded)), "I4");
        let second = fourth;
        respond(&session, 1).unwrap();
        let mut rest = read_until(&there, &second, ended);
        rest.text.insert_str(0, &back.text);
        let want = [json!({"event": 5, "is": "e"}), json!({"event": 6, "is": {"result": 1}})];
        assert_eq!((events(&rest), rest.end), (want.to_vec(), Some(CloseReason::Complete)), "I6");
        let complete = resume(&seen, &rest.last_id());
        assert_eq!(read_until(&there, &complete, ended).status, Some(204));
        drop((second, complete));
        assert_eq!((there.engine.stats().sessions, there.engine.stats().connections), (0, 0), "I11");
        assert!(find(&there, "s", Some("alice")).unwrap().is_some(), "the session itself goes on");
    }
}

#[test]
fn a_cursor_that_is_ahead_of_what_was_followed_is_looked_up_anew() {
    let folder = Folder::new();
    let (here, there) = (process(&folder, 0), process(&folder, 50_000));
    let session = open_session(&here, "s", NEW);
    let first = call(&session, 1);
    let cursor = read_until(&here, &first, begun).last_id();
    let seen = find_known(&there);
    let idle = resume(&seen, &cursor);
    read_until(&there, &idle, begun);
    for _ in 0..5 {
        notify(&session, 1, "a").unwrap();
    }
    let ahead = read_until(&here, &resume(&session, &cursor), has(5)).last_id();
    notify(&session, 1, "b").unwrap();
    assert_eq!(read_until(&there, &idle, ended).end, Some(CloseReason::Superseded), "I4");
    let back = resume(&seen, &ahead);
    assert_eq!(events(&read_until(&there, &back, has(1))), [json!({"event": 6, "is": "b"})]);
}

#[test]
fn i4_a_reader_that_was_fenced_elsewhere_gets_nothing_of_what_came_meanwhile() {
    for _ in 0..20 {
        let folder = Folder::new();
        let (here, there) = (process(&folder, 0), process(&folder, 0));
        let session = open_session(&here, "s", NEW);
        let first = call(&session, 1);
        notify(&session, 1, "a").unwrap();
        let cursor = read_until(&here, &first, has(1)).last_id();
        let elsewhere = resume(&find_known(&there), &cursor);
        read_until(&there, &elsewhere, begun);
        // The reader is counted before the event is stored; both are told in one.
        let back = resume(&session, &cursor);
        read_until(&here, &back, begun);
        notify(&session, 1, "b").unwrap();
        assert_eq!(events(&read_until(&here, &back, has(1))), [json!({"event": 2, "is": "b"})]);
        let fenced = read_until(&there, &elsewhere, ended);
        assert_eq!((events(&fenced), fenced.end), (vec![], Some(CloseReason::Superseded)));
    }
}

#[test]
fn i7_a_foreign_cursor_and_an_unknown_one_are_answered_alike_elsewhere() {
    let folder = Folder::new();
    let (here, there) = (process(&folder, 0), process(&folder, 0));
    let sessions = ["s", "other"].map(|name| open_session(&here, name, NEW));
    let connections = sessions.each_ref().map(|session| call(session, 1));
    let cursors = connections.each_ref().map(|connection| read_until(&here, connection, begun).last_id());
    let mut unknown = cursors[0].clone().into_bytes();
    unknown[3..9].fill(b'x');
    let seen = find_known(&there);
    let answers = [cursors[1].clone(), String::from_utf8(unknown).unwrap()].map(|cursor| {
        let answered = read_until(&there, &resume(&seen, &cursor), ended);
        (answered.status, answered.content_type, answered.frames())
    });
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0].2, [json!({"tombstone": {"error": -32603, "id": 1}})]);
}

#[test]
fn i13_a_cursor_that_names_no_stream_is_refused_elsewhere() {
    let folder = Folder::new();
    let (here, there) = (process(&folder, 0), process(&folder, 0));
    let session = open_session(&here, "s", NEW);
    read_until(&here, &call(&session, 1), begun);
    let (seen, of_none) = (find_known(&there), format!("a{}", "A".repeat(32)));
    assert!(seen.resume(&of_none, None, Arc::new(NoWake), 0).is_err());
}

#[test]
fn i7_a_foreign_standalone_cursor_is_answered_elsewhere_with_the_own_stream() {
    let folder = Folder::new();
    let (here, there) = (process(&folder, 0), process(&folder, 0));
    let cursors = ["s", "other"].map(|name| {
        let session = open_session(&here, name, NEW);
        broadcast(&session, name).unwrap();
        let connection = listen(&session);
        let cursor = read_until(&here, &connection, has(1)).last_id();
        (session, cursor)
    });
    let mut unknown = cursors[0].1.clone().into_bytes();
    unknown[3..9].fill(b'x');
    let seen = find_known(&there);
    for cursor in [cursors[1].1.clone(), String::from_utf8(unknown).unwrap()] {
        let answered = read_until(&there, &resume(&seen, &cursor), has(1));
        assert_eq!(events(&answered), [json!({"event": 1, "is": "s"})]);
    }
}

/// The same cursor, of a stream of another kind.
fn as_if_of(cursor: &str, origin: &Origin) -> String {
    let Some(EventId::Position(cursor)) = EventId::parse(cursor) else { panic!("a cursor: {cursor}") };
    let mut id = Vec::new();
    IdEncoder::new(cursor.nonce, origin).encode(cursor.seq, cursor.visit, cursor.tag, &mut id);
    String::from_utf8(id).unwrap()
}

#[test]
fn i7_a_cursor_that_names_another_kind_of_stream_than_its_log_is_unknown() {
    let folder = Folder::new();
    let (here, there) = (process(&folder, 0), process(&folder, 0));
    let session = open_session(&here, "s", NEW);
    broadcast(&session, "a").unwrap();
    let standalone = read_until(&here, &listen(&session), has(1)).last_id();
    let first = call(&session, 1);
    notify(&session, 1, "b").unwrap();
    let called = read_until(&here, &first, has(1)).last_id();
    let seen = find_known(&there);
    for (bench, session) in [(&here, &session), (&there, &seen)] {
        for (cursor, request) in [(&standalone, 1), (&called, 2)] {
            let forged = as_if_of(cursor, &Origin::Request(id(request)));
            let answered = read_until(bench, &resume(session, &forged), ended);
            assert_eq!(answered.frames(), [json!({"tombstone": {"error": -32603, "id": request}})]);
        }
        let answered = read_until(bench, &resume(session, &as_if_of(&called, &Origin::Standalone)), has(1));
        assert_eq!(events(&answered), [json!({"event": 1, "is": "a"})], "the own standalone stream");
        // What was forged has made nothing of the streams themselves.
        let back = resume(session, &standalone);
        let one = read_until(bench, &back, begun);
        assert_eq!(one.frames(), [json!({"priming": 1, "retry_ms": 3000})]);
        let two = resume(session, &standalone);
        read_until(bench, &two, begun);
        assert_eq!(read_now(&back).end, None, "I4: it is parked, as on no stream of a request");
        let called = read_until(bench, &resume(session, &called), begun);
        assert_eq!((called.status, called.end), (Some(200), None));
    }
}

#[test]
fn a_listener_elsewhere_is_served() {
    let folder = Folder::new();
    let (here, there) = (process(&folder, 0), process(&folder, 0));
    let session = open_session(&here, "s", NEW);
    let first = listen(&session);
    read_until(&here, &first, begun);
    let seen = find_known(&there);
    let second = listen(&seen);
    let answered = read_until(&there, &second, begun);
    assert_eq!(answered.frames(), [json!({"priming": 0, "retry_ms": 3000})]);
}

#[test]
fn i2_a_lost_standalone_log_is_created_by_the_owner_of_its_session_alone() {
    // The owner hears no hint. It finds out with its next event, and appends again what was there.
    for before in [0, 1] {
        let folder = Folder::new();
        let deaf = LateLooks::new(store_in(&folder, StoreOptions::default()));
        deaf.hears_nothing.store(true, Ordering::SeqCst);
        let here = Bench::new(Options { store: Some(deaf as _), ..Options::default() });
        let there = process(&folder, 0);
        let session = open_session(&here, "s", NEW);
        for _ in 0..before {
            broadcast(&session, "a").unwrap();
        }
        let seen = find_known(&there);
        let follows = listen(&seen);
        let cursor = read_until(&there, &follows, |answered| has(before)(answered) && begun(answered)).last_id();
        let Some(EventId::Position(at)) = EventId::parse(&cursor) else { panic!("a cursor: {cursor}") };
        let store = store_in(&folder, StoreOptions::default());
        let look = Attach { stream: Some(at.nonce), principal: identity(ALICE), ..Attach::default() };
        let log = || Caller::new(&*store, Ms(0)).attach(&session_name("s"), &look).log;
        let epoch = log().and_then(|log| log.page.owner).expect("another process has it").epoch;
        store.drop_stream(&StreamKey { session: session_name("s"), nonce: at.nonce }, epoch);
        read_until(&there, &follows, ended);
        let back = if before > 0 { resume(&seen, &cursor) } else { listen(&seen) };
        for _ in 0..20 {
            there.advance(50);
            let answered = read_now(&back);
            assert_eq!((events(&answered), answered.end), (vec![], None), "it waits");
            assert_eq!(log(), None);
        }
        broadcast(&session, "b").unwrap();
        assert_eq!(events(&read_until(&there, &back, has(1))), [json!({"event": before + 1, "is": "b"})]);
        assert_eq!(here.engine.stats().logs_lost, 0);
    }
}

#[test]
fn i2_a_session_without_a_standalone_stream_gets_none_elsewhere() {
    let folder = Folder::new();
    let there = process(&folder, 0);
    let store = store_in(&folder, StoreOptions::default());
    let record = SessionRecord { principal: identity(ALICE), revision: Some(NEW), ..SessionRecord::default() };
    Caller::new(&*store, Ms(0)).hold(&session_name("s"), record);
    let mut unknown = Vec::new();
    IdEncoder::new(StreamNonce([7; 12]), &Origin::Standalone).encode(1, 0, 1, &mut unknown);
    let back = resume(&find_known(&there), &String::from_utf8(unknown).unwrap());
    let answered = read_until(&there, &back, ended);
    assert_eq!((events(&answered), answered.end), (vec![], Some(CloseReason::Fault)), "its client comes back");
    assert_eq!(there.engine.stats().streams_opened, 0);
}

#[test]
fn i3_a_listener_that_is_told_a_position_before_its_stream_is_known_goes_on_from_there() {
    let folder = Folder::new();
    let here = process(&folder, 0);
    let looks = LateLooks::new(store_in(&folder, StoreOptions::default()));
    let there = Bench::new(Options { store: Some(Arc::clone(&looks) as _), ..Options::default() });
    let session = open_session(&here, "s", NEW);
    broadcast(&session, "a").unwrap();
    let first = listen(&session);
    read_until(&here, &first, has(1));
    let seen = find_known(&there);
    // Somebody was handed the event already, and still the position that is told is the one before it.
    let one = listen(&seen);
    read_until(&there, &one, has(1));
    looks.sees_nothing.store(true, Ordering::SeqCst);
    let two = listen(&seen);
    let told = read_until(&there, &two, begun);
    // Or that after it, where the process has looked again meanwhile.
    let begins = usize::from(told.frames() == [json!({"priming": 1, "retry_ms": 3000})]);
    assert_eq!(told.frames(), [json!({"priming": begins, "retry_ms": 3000})]);
    looks.sees_nothing.store(false, Ordering::SeqCst);
    broadcast(&session, "b").unwrap();
    let want = &[json!({"event": 1, "is": "a"}), json!({"event": 2, "is": "b"})][begins..];
    assert_eq!(read_until(&there, &two, |answered| answered.text.contains("notifications/b")).frames(), want);
}

#[test]
fn f_94_i5_a_session_elsewhere_has_the_revision_that_it_negotiated() {
    let retry = |frame: &Value| frame["retry_ms"].as_u64();
    for (revision, primed) in [(NEW, true), (OLD, false)] {
        let folder = Folder::new();
        let (here, there) = (process(&folder, 0), process(&folder, 0));
        let session = open_session(&here, "s", revision);
        let first = call(&session, 1);
        notify(&session, 1, "a").unwrap();
        let cursor = read_until(&here, &first, has(1)).last_id();
        notify(&session, 1, "b").unwrap();
        let seen = find_known(&there);
        assert_eq!(seen.revision(), Some(revision));
        let suffix = read_until(&there, &resume(&seen, &cursor), has(1)).frames();
        assert_eq!(suffix.first().and_then(retry), primed.then_some(3_000), "{suffix:?}");
        let listener = read_until(&there, &listen(&seen), |answered| !answered.text.is_empty()).frames();
        assert_eq!(listener.first().and_then(retry), primed.then_some(3_000), "{listener:?}");
    }
}

#[test]
fn i4_a_listener_elsewhere_takes_over_and_one_that_lost_comes_back() {
    let folder = Folder::new();
    let (here, there) = (process(&folder, 0), process(&folder, 0));
    let session = open_session(&here, "s", NEW);
    let first = listen(&session);
    broadcast(&session, "a").unwrap();
    let one = read_until(&here, &first, has(1));
    let seen = find_known(&there);
    let second = resume(&seen, &one.last_id());
    read_until(&there, &second, begun);
    wait_for_a_takeover(&here, 1);
    broadcast(&session, "b").unwrap();
    assert_eq!(events(&read_until(&there, &second, has(1))), [json!({"event": 2, "is": "b"})]);
    let lost = read_now(&first);
    assert_eq!((events(&lost), lost.end), (vec![], Some(CloseReason::Superseded)), "it gets nothing more");
    // A connection that nobody holds any more may have been counted later than the one that its client has (O12).
    let back = resume(&session, &one.last_id());
    assert_eq!(events(&read_until(&here, &back, has(1))), [json!({"event": 2, "is": "b"})]);
    let lost = read_until(&there, &second, ended);
    assert_eq!((events(&lost), lost.end), (vec![], Some(CloseReason::Superseded)), "nobody waits there for good");
}

/// Done all the same, it would fence the reader that its client has elsewhere by now.
#[test]
fn o12_a_look_up_that_nobody_waits_for_is_called_off() {
    let store = SlowStore::new(Limits::default());
    let bench = Bench::new(Options { store: Some(Arc::clone(&store) as _), ..Options::default() });
    store.set(true, false);
    let find = || bench.engine.look_up_session("s", None, None, &Dialect::MCP_PYTHON_2, Arc::new(NoWake), 7).unwrap();
    drop(find());
    assert_eq!((store.pending(), store.abandoned()), (1, 1), "its caller is gone");
    let late = find();
    bench.advance(30_000);
    assert_eq!((store.pending(), store.abandoned()), (2, 2), "it takes too long");
    drop((late, find()));
    store.answer_all();
    assert!(bench.engine.is_idle());
}

#[test]
fn i9_a_session_that_the_store_does_not_tell_of_is_an_error_in_time() {
    let store = SlowStore::new(Limits::default());
    let bench = Bench::new(Options { store: Some(Arc::clone(&store) as _), ..Options::default() });
    store.set(true, false);
    let bell = Arc::new(Bell::default());
    let find =
        || bench.engine.look_up_session("s", None, None, &Dialect::MCP_PYTHON_2, Arc::clone(&bell) as _, 7).unwrap();
    let (late, told) = (find(), find());
    assert!(late.take().is_none());
    store.answer_nth(1, true);
    assert!(matches!(told.take(), Some(Ok(None))) && late.take().is_none());
    assert_eq!(bell.0.load(Ordering::SeqCst), 1);
    assert!(bench.engine.next_deadline().0 <= 30_000, "the tick comes in time");
    bench.advance(30_000);
    assert_eq!(bell.0.load(Ordering::SeqCst), 2, "who waits is woken");
    let timed_out = EngineError::Store(StoreError::TimedOut { after_ms: 30_000 });
    assert_eq!(late.take().map(Result::err), Some(Some(timed_out)));
    store.answer_all();
    assert!(late.take().is_none(), "what comes later changes nothing");
    store.set(false, true);
    assert!(matches!(find().take(), Some(Err(EngineError::Store(_)))));
}

#[test]
fn a_store_does_not_know_the_id_of_a_session() {
    let folder = Folder::new();
    let here = process(&folder, 0);
    let id = "who-has-this-may-come-back";
    let session = open_session(&here, id, NEW);
    let first = call(&session, 1);
    notify(&session, 1, "what is in the file").unwrap();
    read_until(&here, &first, has(1));
    drop((first, session, here));
    let files = [folder.path("a.db"), folder.path("a.db-wal")];
    let bytes: Vec<u8> = files.iter().filter_map(|file| std::fs::read(file).ok()).flatten().collect();
    let has = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has("what is in the file") && !has(id));
}
