//! Sessions whose owner is gone, or seemed to be: who comes for them takes them over, and what ran gets an end (I13).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::kit::any_order::AnyOrder;
use crate::kit::common::{Bench, NEW, call, id, notify, respond, resume};
use crate::kit::folder::Folder;
use crate::kit::late_looks::LateLooks;
use crate::kit::processes::{
    PATIENCE, begun, ended, events, find_known, has, open_session, process, process_at, read_until, store_in,
};
use crate::kit::relaying::{ALICE, identity};
use serde_json::{Value, json};
use tailrope_core::Ms;
use tailrope_core::engine::{Clock, Connection, Engine, LookUp, NoWake, Options, SessionHandle, Wake};
use tailrope_core::exchange::{Principal, Request, Requester, Terms};
use tailrope_core::protocol::{Dialect, EventId, IdEncoder, RequestId, Revision};
use tailrope_core::store::contract::Caller;
use tailrope_core::store::{Attach, AttachedLog, EventStore, Operation, StoreOptions, session_name};
use tailrope_core::stream::{CloseReason, Drain};

const GONE: &str = "process that ran this request is gone";

/// With this every other process that goes on by default counts as gone: the next sign of it takes seconds.
fn impatient() -> StoreOptions {
    StoreOptions { owner_lost_ms: 30, ..StoreOptions::default() }
}

/// A session with two calls that run, and cursors behind what they have told.
fn two_running(bench: &Bench) -> (SessionHandle, [String; 2]) {
    let session = open_session(bench, "s", NEW);
    let cursors = [1, 2].map(|number| {
        let connection = call(&session, number);
        notify(&session, number, "a").unwrap();
        read_until(bench, &connection, has(1)).last_id()
    });
    (session, cursors)
}

/// What the store has of the log of a cursor.
fn log_of(store: &dyn EventStore, cursor: &str) -> AttachedLog {
    let Some(EventId::Position(cursor)) = EventId::parse(cursor) else { panic!("a cursor: {cursor}") };
    let look = Attach { stream: Some(cursor.nonce), principal: identity(ALICE), ..Attach::default() };
    Caller::new(store, Ms(0)).attach(&session_name("s"), &look).log.expect("it is there")
}

/// Waits until the store has the ends of the logs of these cursors.
fn wait_for_ends(folder: &Folder, cursors: &[String]) {
    let store = store_in(folder, StoreOptions::default());
    wait_until(|| cursors.iter().all(|cursor| log_of(&*store, cursor).page.is_finished));
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "it comes");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A session with two calls that have told something: one is answered, one runs.
fn answered_and_running(process: &Bench) -> (SessionHandle, [Connection; 2]) {
    let session = open_session(process, "s", NEW);
    let connections = [1, 2].map(|number| call(&session, number));
    for number in [1, 2] {
        notify(&session, number, "a").unwrap();
    }
    respond(&session, 1).unwrap();
    (session, connections)
}

#[test]
fn i13_after_a_restart_everything_is_readable_and_what_ran_gets_an_end() {
    let close: fn(&Bench, &SessionHandle) = |before, _| before.engine.close();
    let release: fn(&Bench, &SessionHandle) = |before, _| before.engine.release();
    let release_and_end: fn(&Bench, &SessionHandle) = |before, session| {
        before.engine.release();
        session.end();
    };
    let (stopped, over) = ("server stopped before", "session ended before");
    for (leave, text) in [(close, stopped), (release, GONE), (release_and_end, over), (|_, _| {}, GONE)] {
        let folder = Folder::new();
        let (done, running) = {
            let before = process(&folder, 0);
            let (session, connections) = answered_and_running(&before);
            let done = read_until(&before, &connections[0], has(2)).ids()[0].clone();
            let running = read_until(&before, &connections[1], has(1)).ids()[0].clone();
            leave(&before, &session);
            (done, running)
        };
        let after = process_at(&folder, 0, impatient());
        let session = find_known(&after);
        let finished = resume(&session, &done);
        let answered = read_until(&after, &finished, ended);
        let want = [json!({"event": 1, "is": "a"}), json!({"event": 2, "is": {"result": 1}})];
        assert_eq!(events(&answered), want);
        for _ in 0..2 {
            let left = resume(&session, &running);
            let answered = read_until(&after, &left, ended);
            let want = [json!({"event": 1, "is": "a"}), json!({"tombstone": {"error": -32603, "id": 2}})];
            assert_eq!((events(&answered), answered.end), (want.to_vec(), Some(CloseReason::Complete)));
            assert!(answered.text.contains(text), "{}", answered.text);
        }
    }
}

#[test]
fn i13_every_request_of_a_batch_whose_process_is_gone_gets_its_end() {
    let folder = Folder::new();
    let before = process(&folder, 0);
    let session = open_session(&before, "s", Revision::V2025_03_26);
    let connection = session.call(&[id(1), RequestId::text_id("1")], None, Arc::new(NoWake), 0).unwrap();
    notify(&session, 1, "a").unwrap();
    let cursor = read_until(&before, &connection, has(1)).last_id();
    let after = process_at(&folder, 0, impatient());
    let seen = find_known(&after);
    let answered = read_until(&after, &resume(&seen, &cursor), ended);
    let payload = answered.text.lines().rev().find_map(|line| line.strip_prefix("data: ")).expect("an end");
    let ends: Vec<Value> = serde_json::from_str(payload).expect("one end for each request");
    assert_eq!(ends.iter().map(|end| end["id"].clone()).collect::<Vec<_>>(), [json!(1), json!("1")]);
    assert!(ends.iter().all(|end| end["error"]["code"] == -32603), "{ends:?}");
}

/// A process that took every other one for gone when it looked last, and hears the answers when the test says so.
fn late_heir(folder: &Folder) -> (Bench, Arc<AnyOrder>, Arc<LateLooks>) {
    let store = AnyOrder::new(store_in(folder, StoreOptions::default()));
    let looks = LateLooks::new(Arc::clone(&store) as _);
    looks.sees_nobody.store(true, Ordering::SeqCst);
    (Bench::new(Options { store: Some(Arc::clone(&looks) as _), ..Options::default() }), store, looks)
}

#[test]
fn i13_a_reader_of_a_late_heir_is_given_the_end_that_the_log_has() {
    let faster_heir: fn(&Folder, &SessionHandle, &str) = |folder, _, other| {
        let there = process_at(folder, 0, impatient());
        let answered = read_until(&there, &resume(&find_known(&there), other), ended);
        assert!(answered.text.contains(GONE), "{}", answered.text);
    };
    let owner: fn(&Folder, &SessionHandle, &str) = |_, session, _| assert!(respond(session, 1).is_ok());
    let is_gone = json!({"tombstone": {"error": -32603, "id": 1}});
    let is_answered = json!({"event": 2, "is": {"result": 1}});
    for (ends_it, end) in [(faster_heir, is_gone), (owner, is_answered)] {
        let folder = Folder::new();
        let here = process(&folder, 0);
        let (session, cursors) = two_running(&here);
        let (late, store, looks) = late_heir(&folder);
        let seen = find_known(&late);
        store.hold(|operation| matches!(operation, Operation::Look(_)));
        let reader = resume(&seen, &cursors[0]);
        store.wait_for(&late, 1);
        ends_it(&folder, &session, &cursors[1]);
        wait_for_ends(&folder, &cursors[..1]);
        store.let_go();
        store.answer_all();
        let answered = read_until(&late, &reader, ended);
        assert_eq!((events(&answered), answered.end), (vec![end], Some(CloseReason::Complete)));
        assert!(looks.told.load(Ordering::SeqCst) > 0, "the owner was taken for gone");
        wait_for_ends(&folder, &cursors[1..]);
    }
}

#[test]
fn i13_a_session_whose_owner_was_only_slow_ends_there_and_is_read_elsewhere() {
    let hears: fn(&SessionHandle, &str) -> Option<Connection> = |_, _| None;
    let sends: fn(&SessionHandle, &str) -> Option<Connection> = |session, _| {
        drop(notify(session, 1, "b"));
        None
    };
    let answers: fn(&SessionHandle, &str) -> Option<Connection> = |session, _| {
        drop(respond(session, 1));
        None
    };
    let is_read: fn(&SessionHandle, &str) -> Option<Connection> = |session, cursor| Some(resume(session, cursor));
    for (hears_nothing, act) in [(false, hears), (true, sends), (true, answers), (true, is_read)] {
        let folder = Folder::new();
        let store = LateLooks::new(store_in(&folder, StoreOptions::default()));
        store.hears_nothing.store(hears_nothing, Ordering::SeqCst);
        let here = Bench::new(Options { store: Some(store as _), ..Options::default() });
        let (session, cursors) = two_running(&here);
        let open = resume(&session, &cursors[1]);
        read_until(&here, &open, begun);
        let there = process_at(&folder, 0, impatient());
        let elsewhere = read_until(&there, &resume(&find_known(&there), &cursors[0]), ended);
        assert_eq!(events(&elsewhere), [json!({"tombstone": {"error": -32603, "id": 1}})]);
        // The other call, too, which nobody reads there.
        wait_for_ends(&folder, &cursors[1..]);
        let _reader = act(&session, &cursors[0]);
        let mut told = Vec::new();
        wait_until(|| {
            here.clock.advance(20);
            told.extend(here.engine.tick());
            !told.is_empty() && here.engine.stats().sessions == 0
        });
        assert!(told.len() == 1 && told[0].id() == "s" && told[0].has_ended(), "the host is told, once: {told:?}");
        assert_eq!(here.engine.stats().sessions_taken_over, 1);
        let left = read_until(&here, &open, ended);
        assert_eq!((events(&left), left.end), (vec![], Some(CloseReason::Ended)), "its client comes back");
        assert_eq!(here.engine.stats().logs_lost, 0, "nothing is lost");
        let seen = find_known(&here);
        for (cursor, number) in cursors.iter().zip([1, 2]) {
            let answered = read_until(&here, &resume(&seen, cursor), ended);
            assert_eq!(events(&answered), [json!({"tombstone": {"error": -32603, "id": number}})]);
            assert!(answered.text.contains(GONE), "{}", answered.text);
        }
    }
}

#[test]
fn f_45_a_session_that_ends_because_what_serves_it_goes_stays_readable() {
    let ways: [fn(&Engine, &SessionHandle); 3] = [
        |engine, session| {
            engine.drain(Drain::after(100));
            session.end();
        },
        |_, session| {
            session.drain();
            session.end();
        },
        |_, session| session.release(),
    ];
    for leave in ways {
        let folder = Folder::new();
        let there = process(&folder, 0);
        // What a process asked of its store is done when that is closed.
        let cursors = {
            let before = process(&folder, 0);
            let (session, connections) = answered_and_running(&before);
            let cursors =
                connections.each_ref().map(|connection| read_until(&before, connection, has(1)).ids()[0].clone());
            leave(&before.engine, &session);
            cursors
        };
        let seen = find_known(&there);
        let done = read_until(&there, &resume(&seen, &cursors[0]), ended);
        assert_eq!(events(&done), [json!({"event": 1, "is": "a"}), json!({"event": 2, "is": {"result": 1}})]);
        let left = read_until(&there, &resume(&seen, &cursors[1]), ended);
        assert_eq!(events(&left).pop(), Some(json!({"tombstone": {"error": -32603, "id": 2}})), "I13");
    }
}

#[test]
fn i13_a_call_whose_reader_is_sent_away_each_time_gets_its_end() {
    // The owner says goodbye, or stands still: then it takes several looks to know.
    for says_goodbye in [true, false] {
        let folder = Folder::new();
        let owner = process(&folder, 0);
        let session = open_session(&owner, "s", NEW);
        let connection = call(&session, 1);
        notify(&session, 1, "a").unwrap();
        session.close_connection(&id(1), Some(20), Some(0));
        let mut cursor = read_until(&owner, &connection, ended).last_id();
        if says_goodbye {
            owner.engine.release();
        }
        let store = AnyOrder::new(store_in(&folder, impatient()));
        let options = Options { store: Some(Arc::clone(&store) as _), owner_lost_ms: 30, ..Options::default() };
        let heir = Bench::new(options);
        // Nobody is there when the store answers, but to who has come.
        store.hold(|operation| matches!(operation, Operation::Look(_) | Operation::Hold));
        let deadline = Instant::now() + PATIENCE;
        loop {
            let polled = read_until(&heir, &resume(&find_known(&heir), &cursor), ended);
            if polled.end == Some(CloseReason::Complete) {
                assert_eq!(events(&polled), [json!({"tombstone": {"error": -32603, "id": 1}})]);
                assert!(polled.text.contains(GONE), "{}", polled.text);
                break;
            }
            assert_eq!((events(&polled), polled.end), (vec![], Some(CloseReason::Polled)));
            assert!(Instant::now() < deadline, "nobody ends the call");
            cursor = polled.last_id();
            store.answer_all();
        }
        wait_until(|| heir.engine.stats().sessions_read == 0);
    }
}

#[test]
fn i13_a_session_that_is_taken_over_is_kept_until_its_calls_have_their_ends() {
    let folder = Folder::new();
    let owner = process(&folder, 0);
    let (_session, cursors) = two_running(&owner);
    owner.engine.release();
    let (heir, store, _) = late_heir(&folder);
    store.hold(|operation| *operation == Operation::Hold);
    let reader = resume(&find_known(&heir), &cursors[0]);
    read_until(&heir, &reader, begun);
    drop(reader);
    store.wait_for(&heir, 1);
    assert_eq!(heir.engine.stats().sessions_read, 1, "nobody else would end them");
    store.answer_all();
    wait_for_ends(&folder, &cursors);
    wait_until(|| heir.engine.stats().sessions == 0);
}

/// The owner of a session with two calls, which hears nothing of what other processes do.
fn deaf_owner(folder: &Folder) -> (Bench, SessionHandle, [String; 2]) {
    let store = LateLooks::new(store_in(folder, StoreOptions::default()));
    store.hears_nothing.store(true, Ordering::SeqCst);
    let here = Bench::new(Options { store: Some(store as _), ..Options::default() });
    let (session, cursors) = two_running(&here);
    (here, session, cursors)
}

/// Another process takes the session over.
fn take_over(folder: &Folder, cursors: &[String; 2]) {
    let there = process_at(folder, 0, impatient());
    let elsewhere = read_until(&there, &resume(&find_known(&there), &cursors[0]), ended);
    assert_eq!(events(&elsewhere), [json!({"tombstone": {"error": -32603, "id": 1}})]);
    wait_for_ends(folder, &cursors[1..]);
}

/// An owner that has not heard that another process has its session.
fn taken_over(folder: &Folder) -> (Bench, SessionHandle, [String; 2]) {
    let owned = deaf_owner(folder);
    take_over(folder, &owned.2);
    owned
}

#[test]
fn i13_a_session_that_goes_on_elsewhere_is_never_unknown_where_its_owner_comes_back() {
    let folder = Folder::new();
    let (here, session, cursors) = taken_over(&folder);
    // Which of them finds out first does not matter. None of them is told that the session has ended.
    let finds_out = resume(&session, &cursors[0]);
    let answered = read_until(&here, &finds_out, ended);
    assert_eq!((answered.status, answered.end), (Some(503), Some(CloseReason::Ended)), "{}", answered.text);
    assert!(session.has_ended(), "its host looks it up");
    let wake = || Arc::new(NoWake);
    let refused = [
        session.call(&[id(3)], None, wake(), 0),
        session.call_json(&[id(3)], None, wake(), 0),
        session.listen(wake(), 0),
        session.resume(&cursors[0], None, wake(), 0),
    ];
    for refusal in refused.map(|answer| answer.expect_err("it is not served by what is left of it")) {
        assert_eq!(refusal.status, 503, "{}", refusal.message);
    }
    let request =
        Request { requester: Requester { named: Some("alice"), ..Requester::default() }, ..Request::default() };
    session.claim(&request.requester).unwrap();
    let refused = session.admit(&request, &Terms::default()).expect_err("nor is it admitted");
    assert_eq!(refused.status, 503, "{}", refused.message);
    assert!(here.engine.session("s", Some(&Principal::named("alice"))).is_none());
    for (cursor, number) in cursors.iter().zip([1, 2]) {
        let answered = read_until(&here, &resume(&find_known(&here), cursor), ended);
        assert_eq!(events(&answered), [json!({"tombstone": {"error": -32603, "id": number}})]);
    }
}

/// No id of its stream has left, so its client cannot come back for an answer.
#[test]
fn i9_a_call_at_an_owner_that_another_process_took_for_gone_ends_with_an_error() {
    for is_answered in [false, true] {
        let folder = Folder::new();
        let (here, session, _) = taken_over(&folder);
        let connection = call(&session, 3);
        if is_answered {
            respond(&session, 3).unwrap();
        }
        let answered = read_until(&here, &connection, ended);
        assert!(session.has_ended());
        assert_eq!(events(&answered), [json!({"tombstone": {"error": -32603, "id": 3}})], "{}", answered.text);
    }
}

/// Looks a session up at the moment in which its last connections are told that it is over here.
struct LooksUp {
    engine: Engine,
    session: SessionHandle,
    found: Mutex<Vec<(bool, LookUp)>>,
}

impl Wake for LooksUp {
    fn wake(&self, _key: u64) {
        if !self.session.has_ended() {
            return;
        }
        let is_there = self.engine.session("s", Some(&Principal::named("alice"))).is_some();
        let wake = Arc::new(NoWake);
        let found = self
            .engine
            .look_up_session("s", Some(&Principal::named("alice")), None, &Dialect::MCP_PYTHON_2, wake, 0)
            .unwrap();
        self.found.lock().unwrap().push((is_there, found));
    }
}

#[test]
fn i13_what_is_left_of_a_session_that_another_process_has_is_not_found() {
    let folder = Folder::new();
    let (here, session, cursors) = deaf_owner(&folder);
    let looks_up = Arc::new(LooksUp { engine: here.engine.clone(), session: session.clone(), found: Mutex::default() });
    let reader = session.resume(&cursors[1], None, Arc::clone(&looks_up) as _, 7).unwrap();
    read_until(&here, &reader, begun);
    take_over(&folder, &cursors);
    drop(notify(&session, 1, "b"));
    wait_until(|| !looks_up.found.lock().unwrap().is_empty());
    let found = std::mem::take(&mut *looks_up.found.lock().unwrap());
    for (is_there, look_up) in found {
        assert!(!is_there);
        let deadline = Instant::now() + PATIENCE;
        let seen = loop {
            match look_up.take() {
                Some(outcome) => break outcome.unwrap().expect("the store knows it"),
                None => assert!(Instant::now() < deadline, "the store tells of it"),
            }
        };
        let answered = read_until(&here, &resume(&seen, &cursors[0]), ended);
        assert_eq!(events(&answered), [json!({"tombstone": {"error": -32603, "id": 1}})]);
    }
}

#[test]
fn i13_a_call_that_came_to_an_owner_after_it_was_replaced_gets_its_end_there() {
    for revision in [NEW, Revision::V2025_06_18] {
        let folder = Folder::new();
        let (here, session, _) = taken_over(&folder);
        session.assume_revision(revision);
        // Nobody else knows the call: there is no log of it.
        let late = call(&session, 3);
        let answered = read_until(&here, &late, ended);
        assert_eq!(events(&answered), [json!({"tombstone": {"error": -32603, "id": 3}})], "{}", answered.text);
    }
}

#[test]
fn o10_a_cursor_that_is_ahead_of_a_lost_owners_log_does_not_wait_for_the_owner() {
    let release: fn(&Bench) = |before| before.engine.release();
    for (leave, is_known_at_once) in [(release, true), (|_| {}, false)] {
        let folder = Folder::new();
        let before = process(&folder, 0);
        let (session, cursors) = two_running(&before);
        let Some(EventId::Position(at)) = EventId::parse(&cursors[0]) else { panic!("a cursor: {}", cursors[0]) };
        let mut ahead = Vec::new();
        IdEncoder::new(at.nonce, &at.origin).encode(at.seq + 3, at.visit, at.tag, &mut ahead);
        leave(&before);
        drop((before, session));
        let after = process_at(&folder, 0, impatient());
        let seen = find_known(&after);
        let asked = after.clock.now();
        let answered = read_until(&after, &resume(&seen, &String::from_utf8(ahead).unwrap()), ended);
        assert_eq!(events(&answered), [json!({"tombstone": {"error": -32603, "id": 1}})]);
        assert_eq!(answered.frames().len() == 1, is_known_at_once, "an echo: {}", answered.text);
        assert!(after.clock.now().since(asked) < 10_000, "nobody is waited for");
    }
}
