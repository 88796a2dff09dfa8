//! Readers take streams over across processes by claims, and get nothing before theirs has its number (I4).

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::kit::any_order::AnyOrder;
use crate::kit::common::{
    Answered, Bell, Bench, NEW, OLD, SECRET, broadcast, call, listen, notify, read_now, respond, resume,
};
use crate::kit::folder::Folder;
use crate::kit::processes::{PATIENCE, adopt_known, ended, events, has, open_session, process, read_until, store_in};
use serde_json::json;
use tailrope_core::Ms;
use tailrope_core::engine::{Connection, Options, SessionHandle};
use tailrope_core::store::{
    Answer, Append, Complete, EventStore, Operation, Outcome, ReadLimit, Record, SessionRecord, StoreError,
    StoreOptions, StreamKey, Ticket, Usage, Watcher,
};
use tailrope_core::stream::{CloseReason, Page, Seq};

/// A process whose claims wait until the test lets them through.
fn process_with_slow_claims(folder: &Folder) -> (Bench, Arc<SlowClaims>) {
    let inner = AnyOrder::new(store_in(folder, StoreOptions::default()));
    let (asked, watchers) = Default::default();
    let store = Arc::new(SlowClaims { inner, asked, watchers });
    (Bench::new(Options { store: Some(Arc::clone(&store) as _), ..Options::default() }), store)
}

/// A call with one event, and a cursor after it. The connection is gone.
fn interrupted_call(bench: &Bench, session: &SessionHandle) -> String {
    let first = call(session, 1);
    notify(session, 1, "a").unwrap();
    read_until(bench, &first, has(1)).last_id()
}

/// Waits until a claim is asked for, and some more. Until then and after it nothing comes but the head.
fn held(bench: &Bench, store: &SlowClaims, connection: &Connection) {
    let deadline = Instant::now() + PATIENCE;
    let mut rounds = 0;
    while rounds < 20 {
        rounds += usize::from(store.asked() > 0);
        bench.advance(20);
        let answered = read_now(connection);
        assert_eq!((answered.text.as_str(), answered.end), ("", None), "nothing before the claim is stored");
        assert!(Instant::now() < deadline, "a claim is asked for");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(read_now(connection).status, Some(200), "that there will be an answer is known");
}

/// Adds an event, and waits until the store has it.
fn until_stored<T>(bench: &Bench, add: impl FnOnce() -> T) {
    let stored = bench.engine.stats().events_stored;
    drop(add());
    let deadline = Instant::now() + PATIENCE;
    while bench.engine.stats().events_stored == stored {
        assert!(Instant::now() < deadline, "it is stored");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn begun(answered: &Answered) -> bool {
    !answered.text.is_empty()
}

#[test]
fn i4_a_reader_gets_nothing_before_its_claim_has_its_number() {
    for revision in [NEW, OLD] {
        let folder = Folder::new();
        let (here, (there, claims)) = (process(&folder, 0), process_with_slow_claims(&folder));
        let session = open_session(&here, "s", revision);
        let cursor = interrupted_call(&here, &session);
        notify(&session, 1, "b").unwrap();
        let older = resume(&adopt_known(&there), &cursor);
        held(&there, &claims, &older);
        claims.answer();
        let got = read_until(&there, &older, has(1));
        assert_eq!(events(&got), [json!({"event": 2, "is": "b"})]);
        // Who has read something there goes on here: the claim of the older one is not late any more.
        let newer = resume(&session, &got.last_id());
        notify(&session, 1, "c").unwrap();
        assert_eq!(events(&read_until(&here, &newer, has(1))), [json!({"event": 3, "is": "c"})]);
        assert_eq!(read_until(&there, &older, ended).end, Some(CloseReason::Superseded));
        respond(&session, 1).unwrap();
        assert_eq!(read_until(&here, &newer, ended).end, Some(CloseReason::Complete), "it is never fenced");
    }
}

#[test]
fn i4_a_listener_gets_nothing_before_its_claim_has_its_number() {
    let folder = Folder::new();
    let (here, (there, claims)) = (process(&folder, 0), process_with_slow_claims(&folder));
    let session = open_session(&here, "s", NEW);
    broadcast(&session, "a").unwrap();
    // Elsewhere, and where the session is.
    let elsewhere = listen(&adopt_known(&there));
    held(&there, &claims, &elsewhere);
    claims.answer();
    assert_eq!(events(&read_until(&there, &elsewhere, has(1))), [json!({"event": 1, "is": "a"})]);
    let own = open_session(&there, "own", NEW);
    let listener = listen(&own);
    held(&there, &claims, &listener);
    broadcast(&own, "b").unwrap();
    held(&there, &claims, &listener);
    claims.answer();
    assert_eq!(events(&read_until(&there, &listener, has(1))), [json!({"event": 1, "is": "b"})]);
}

#[test]
fn i4_the_first_reader_of_a_call_waits_for_no_claim() {
    let folder = Folder::new();
    let (there, claims) = process_with_slow_claims(&folder);
    let session = open_session(&there, "s", NEW);
    interrupted_call(&there, &session);
    assert_eq!(claims.asked(), 0);
}

#[test]
fn i4_the_claim_of_a_reader_that_left_before_it_was_stored_fences_nobody() {
    let folder = Folder::new();
    let (here, (there, claims)) = (process(&folder, 0), process_with_slow_claims(&folder));
    let session = open_session(&here, "s", NEW);
    let cursor = interrupted_call(&here, &session);
    let seen = adopt_known(&there);
    let older = resume(&seen, &cursor);
    held(&there, &claims, &older);
    older.lost();
    assert_eq!(claims.asked(), 0, "it is called off");
    let newer = resume(&session, &cursor);
    read_until(&here, &newer, begun);
    notify(&session, 1, "b").unwrap();
    let mut got = read_until(&here, &newer, has(1));
    respond(&session, 1).unwrap();
    got.text.push_str(&read_until(&here, &newer, ended).text);
    assert_eq!(events(&got), [json!({"event": 2, "is": "b"}), json!({"event": 3, "is": {"result": 1}})]);
    assert_eq!(here.engine.stats().takeovers_elsewhere, 0);
}

#[test]
fn i4_the_order_of_the_claims_decides_between_two_processes() {
    for older_first in [true, false] {
        let folder = Folder::new();
        let ((here, claims_here), (there, claims_there)) =
            (process_with_slow_claims(&folder), process_with_slow_claims(&folder));
        let session = open_session(&here, "s", NEW);
        let cursor = interrupted_call(&here, &session);
        let at_there = resume(&adopt_known(&there), &cursor);
        held(&there, &claims_there, &at_there);
        let at_here = resume(&session, &cursor);
        held(&here, &claims_here, &at_here);
        // Both are stored before anybody is told.
        let order = if older_first { [&claims_there, &claims_here] } else { [&claims_here, &claims_there] };
        for (ticket, outcome) in order.map(|claims| claims.done()) {
            ticket.complete(outcome);
        }
        notify(&session, 1, "b").unwrap();
        let readers = [(&here, &at_here), (&there, &at_there)];
        let [(winner, has_it), (loser, fenced)] = if older_first { readers } else { [readers[1], readers[0]] };
        let left = read_until(loser, fenced, ended);
        assert_eq!(left.end, Some(CloseReason::Superseded), "older first: {older_first}");
        let got = read_until(winner, has_it, has(1));
        assert_eq!(events(&got), [json!({"event": 2, "is": "b"})]);
        respond(&session, 1).unwrap();
        assert_eq!(read_until(winner, has_it, ended).end, Some(CloseReason::Complete), "older first: {older_first}");
    }
}

#[test]
fn i9_a_claim_that_fails_holds_nobody() {
    let folder = Folder::new();
    let (bench, claims) = process_with_slow_claims(&folder);
    let session = open_session(&bench, "s", NEW);
    let cursor = interrupted_call(&bench, &session);
    notify(&session, 1, "b").unwrap();
    let bell = Arc::new(Bell::default());
    let connection = session.resume(&cursor, None, Arc::clone(&bell) as _, 7).unwrap();
    held(&bench, &claims, &connection);
    let rung = bell.0.load(Ordering::SeqCst);
    claims.fail();
    assert!(bell.0.load(Ordering::SeqCst) > rung, "its writer is woken");
    assert_eq!(events(&read_until(&bench, &connection, has(1))), [json!({"event": 2, "is": "b"})]);
    respond(&session, 1).unwrap();
    assert_eq!(read_until(&bench, &connection, ended).end, Some(CloseReason::Complete));
}

#[test]
fn i9_a_claim_that_is_never_answered_holds_nobody_for_longer_than_the_store_may_take() {
    let folder = Folder::new();
    let (bench, claims) = process_with_slow_claims(&folder);
    let session = open_session(&bench, "s", NEW);
    let cursor = interrupted_call(&bench, &session);
    until_stored(&bench, || notify(&session, 1, "b").unwrap());
    let bell = Arc::new(Bell::default());
    let connection = session.resume(&cursor, None, Arc::clone(&bell) as _, 7).unwrap();
    held(&bench, &claims, &connection);
    let due = connection.poll(64 << 10).wait_until;
    assert!(due.0 <= session.now().0 + 30_000, "the tick comes in time: {due:?}");
    bench.advance(29_000);
    assert_eq!(read_now(&connection).text, "");
    let rung = bell.0.load(Ordering::SeqCst);
    bench.advance(1_000);
    assert!(bell.0.load(Ordering::SeqCst) > rung, "its writer is woken");
    assert_eq!(events(&read_until(&bench, &connection, has(1))), [json!({"event": 2, "is": "b"})]);
    assert_eq!(claims.asked(), 0, "it is called off");
    notify(&session, 1, "c").unwrap();
    assert_eq!(events(&read_until(&bench, &connection, has(1))), [json!({"event": 3, "is": "c"})]);
    assert_eq!(bench.engine.stats().takeovers_elsewhere, 0);
}

#[test]
fn i4_a_newer_reader_here_ends_one_that_is_held() {
    let folder = Folder::new();
    let (bench, claims) = process_with_slow_claims(&folder);
    let session = open_session(&bench, "s", NEW);
    let cursor = interrupted_call(&bench, &session);
    let older = resume(&session, &cursor);
    held(&bench, &claims, &older);
    let newer = resume(&session, &cursor);
    let fenced = read_until(&bench, &older, ended);
    assert_eq!((fenced.text.as_str(), fenced.end), ("", Some(CloseReason::Superseded)));
    while claims.asked() > 0 {
        claims.answer();
    }
    read_until(&bench, &newer, begun);
}

#[test]
fn i11_a_session_that_ends_lets_go_of_those_who_are_held() {
    let folder = Folder::new();
    let (bench, claims) = process_with_slow_claims(&folder);
    let session = open_session(&bench, "s", NEW);
    let cursor = interrupted_call(&bench, &session);
    let connection = resume(&session, &cursor);
    held(&bench, &claims, &connection);
    let late = claims.done();
    session.end();
    let last = read_now(&connection);
    assert_eq!(last.end, Some(CloseReason::Complete), "I13: with the end of the call");
    assert!(last.text.contains("session ended before"), "{}", last.text);
    late.0.complete(late.1);
    let stats = bench.engine.stats();
    assert_eq!((stats.sessions, stats.connections), (0, 0));
}

#[test]
fn f44_a_drain_lets_go_of_those_who_are_held() {
    let folder = Folder::new();
    let (bench, claims) = process_with_slow_claims(&folder);
    let session = open_session(&bench, "s", NEW);
    let cursor = interrupted_call(&bench, &session);
    let [resumed, listener] = [resume(&session, &cursor), listen(&session)];
    held(&bench, &claims, &resumed);
    held(&bench, &claims, &listener);
    bench.engine.drain(100);
    for connection in [&resumed, &listener] {
        let last = read_until(&bench, connection, ended);
        assert_eq!(last.end, Some(CloseReason::Drain));
        assert!(last.frames()[0]["priming"].is_number(), "I5: {}", last.text);
    }
    assert_eq!(claims.asked(), 0, "nobody is fenced for those who are sent away");
    // Who comes now is sent away as well, and need not wait for that.
    let late = read_until(&bench, &resume(&session, &cursor), ended);
    assert_eq!(late.end, Some(CloseReason::Drain));
}

#[test]
fn i10_what_is_held_is_bounded() {
    let folder = Folder::new();
    let (bench, claims) = process_with_slow_claims(&folder);
    let session = open_session(&bench, "s", NEW);
    let cursor = interrupted_call(&bench, &session);
    let connection = resume(&session, &cursor);
    held(&bench, &claims, &connection);
    let name = "x".repeat(8 << 10);
    for _ in 0..64 {
        notify(&session, 1, &name).unwrap();
        bench.advance(20);
        assert_eq!(connection.poll(16 << 10).len(), 0);
    }
    claims.answer();
    let mut most = 0;
    let deadline = Instant::now() + PATIENCE;
    let mut count = 0;
    while count < 64 {
        let poll = connection.poll(16 << 10);
        most = most.max(poll.len());
        count += poll.text().matches("data: {").count();
        assert!(Instant::now() < deadline && poll.end.is_none());
        bench.advance(1);
        if poll.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(most <= 64 << 10, "{most} bytes at once");
}

#[test]
fn i6_what_a_hint_asked_before_the_end_does_not_answer_a_resume_after_it() {
    let folder = Folder::new();
    let (bench, store) = process_with_slow_claims(&folder);
    let session = open_session(&bench, "s", NEW);
    let cursor = interrupted_call(&bench, &session);
    store.inner.hold(|operation| matches!(operation, Operation::Record));
    let watchers = std::mem::take(&mut *store.watchers.lock().unwrap());
    watchers.iter().for_each(|(key, watcher)| watcher.upgrade().expect("it is open").changed(key.nonce));
    store.inner.wait_for(&bench, 1);
    until_stored(&bench, || respond(&session, 1).unwrap());
    // Its stream is over and has no machine: it is looked up.
    let connection = resume(&session, &cursor);
    store.inner.wait_for(&bench, 2);
    store.inner.let_go();
    store.inner.answer_all();
    let rest = read_until(&bench, &connection, ended);
    assert_eq!(
        (events(&rest), rest.end),
        (vec![json!({"event": 2, "is": {"result": 1}})], Some(CloseReason::Complete))
    );
}

/// Another store, whose claims are done when the test says so.
struct SlowClaims {
    inner: Arc<AnyOrder>,
    asked: Mutex<VecDeque<(StreamKey, Ticket)>>,
    watchers: Mutex<Vec<(StreamKey, Watcher)>>,
}

/// Takes the outcome of a claim in the place of who asked for it.
struct Relay(Mutex<mpsc::Sender<Outcome>>);

impl Complete for Relay {
    fn complete(&self, _ticket: &Ticket, outcome: Outcome) {
        self.0.lock().unwrap().send(outcome).expect("it is waited for");
    }
}

/// What the store says to this question, which it answers later.
fn outcome_of(ticket: &Ticket, ask: impl FnOnce(&Ticket) -> bool) -> Outcome {
    let (told, outcome) = mpsc::channel();
    let relay: Arc<dyn Complete> = Arc::new(Relay(Mutex::new(told)));
    assert!(ask(&Ticket { to: Arc::downgrade(&relay), ..ticket.clone() }), "SQLite answers later");
    outcome.recv_timeout(PATIENCE).expect("the store answers")
}

impl SlowClaims {
    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    /// Does the oldest claim, and leaves it to the test to say so.
    fn done(&self) -> (Ticket, Outcome) {
        let (key, ticket) = self.asked.lock().unwrap().pop_front().expect("a claim is asked for");
        let outcome = outcome_of(&ticket, |ticket| matches!(self.inner.claim(&key, ticket), Answer::Later));
        assert!(matches!(outcome, Outcome::Claimed(Ok(_))), "{outcome:?}");
        (ticket, outcome)
    }

    fn answer(&self) {
        let (ticket, outcome) = self.done();
        ticket.complete(outcome);
    }

    fn fail(&self) {
        let (_, ticket) = self.asked.lock().unwrap().pop_front().expect("a claim is asked for");
        ticket.complete(Outcome::Claimed(Err(StoreError::Failed(SECRET.to_owned()))));
    }
}

impl EventStore for SlowClaims {
    passes_on!(
        append read record put_session session unwatch settle drop_stream drop_session sweep usage answers_elsewhere
        outlives_process
    );

    fn claim(&self, key: &StreamKey, ticket: &Ticket) -> Answer<u64> {
        assert_eq!(ticket.operation, Operation::Claim);
        self.asked.lock().unwrap().push_back((key.clone(), ticket.clone()));
        Answer::Later
    }

    fn abandon(&self, key: &StreamKey, ticket: &Ticket) {
        self.asked.lock().unwrap().retain(|(_, asked)| asked.number != ticket.number);
        self.inner.abandon(key, ticket);
    }

    fn watch(&self, key: &StreamKey, watcher: &Watcher) {
        self.watchers.lock().unwrap().push((key.clone(), watcher.clone()));
        self.inner.watch(key, watcher);
    }
}
