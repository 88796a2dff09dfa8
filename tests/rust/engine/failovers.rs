//! The engine on a store that several processes use and that is set back: it loses the last of what it had confirmed (I8, I13).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use crate::kit::common::{
    Answered, Bench, NEW, broadcast, call, frames, id, listen, notify, read_now, respond, resume,
};
use crate::kit::eventually::PATIENCE;
use crate::kit::processes::{begun, ended, events, find, find_known, has, open_session, read_until};
use bytes::Bytes;
use serde_json::{Value, json};
use tailrope_core::Ms;
use tailrope_core::engine::{Clock, Connection, Options, SessionHandle};
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::{
    Answer, Append, Attach, Attached, Complete, Epoch, EventStore, Hold, Limits, LogPage, Mail, MemoryStore, Operation,
    Outcome, ReadLimit, RunningLog, StreamKey, Ticket, Usage, Watcher, Watchers,
};
use tailrope_core::stream::{CloseReason, Seq};

enum Done {
    Hold(Box<str>, Hold),
    Append(StreamKey, Epoch, Append),
}

/// A memory store that remembers what it did, so that it can lose the last of that.
struct SetBack {
    inner: Mutex<Arc<MemoryStore>>,
    done: Mutex<Vec<Done>>,
    /// Answers to appends come when they are asked for.
    is_slow: AtomicBool,
    answers: Mutex<Vec<(Ticket, Outcome)>>,
    watchers: Watchers,
}

impl SetBack {
    fn new() -> Arc<Self> {
        let inner = Mutex::new(Arc::new(MemoryStore::new(Limits::default())));
        let (done, is_slow, answers, watchers) = Default::default();
        Arc::new(Self { inner, done, is_slow, answers, watchers })
    }

    /// Gives the answers that were held back.
    fn answer(&self) {
        self.is_slow.store(false, Ordering::SeqCst);
        let answers = std::mem::take(&mut *self.answers.lock().unwrap());
        answers.into_iter().for_each(|(ticket, outcome)| ticket.complete(outcome));
    }

    fn inner(&self) -> Arc<MemoryStore> {
        Arc::clone(&self.inner.lock().unwrap())
    }

    fn done(&self) -> MutexGuard<'_, Vec<Done>> {
        self.done.lock().unwrap()
    }

    /// The store forgets the last appends, and what was done after the first of them.
    fn lose(&self, appends: usize) {
        let mut done = self.done();
        let places = done.iter().enumerate().filter(|(_, done)| matches!(done, Done::Append(..))).map(|(at, _)| at);
        let at = places.rev().nth(appends - 1).expect("there were so many");
        done.truncate(at);
        self.do_again(&done);
    }

    fn lose_all(&self) {
        self.done().clear();
        self.do_again(&[]);
    }

    fn do_again(&self, done: &[Done]) {
        let inner = Arc::new(MemoryStore::new(Limits::default()));
        let nobody: std::sync::Weak<Nobody> = std::sync::Weak::new();
        let ticket = Ticket { to: nobody, nonce: StreamNonce([0; 12]), operation: Operation::Hold, number: 0 };
        for done in done {
            match done {
                Done::Hold(session, hold) => drop(inner.hold(session, hold, &ticket)),
                Done::Append(key, epoch, append) => drop(inner.append(Ms(0), key, *epoch, append, &ticket)),
            }
        }
        *self.inner.lock().unwrap() = inner;
    }

    /// Every process has its connection again.
    fn is_back(&self) {
        self.watchers.all_changed();
    }
}

struct Nobody;

impl Complete for Nobody {
    fn complete(&self, _: &Ticket, _: Outcome) {}
}

impl EventStore for SetBack {
    fn hold(&self, session: &str, hold: &Hold, ticket: &Ticket) -> Answer<Vec<RunningLog>> {
        self.done().push(Done::Hold(session.into(), hold.clone()));
        self.inner().hold(session, hold, ticket)
    }

    fn append(&self, now: Ms, key: &StreamKey, epoch: Epoch, append: &Append, ticket: &Ticket) -> Answer<()> {
        self.done().push(Done::Append(key.clone(), epoch, append.clone()));
        match self.inner().append(now, key, epoch, append, ticket) {
            Answer::Now(result) if self.is_slow.load(Ordering::SeqCst) => {
                self.answers.lock().unwrap().push((ticket.clone(), Outcome::Done(result)));
                Answer::Later
            }
            answer => answer,
        }
    }

    fn attach(&self, session: &str, attach: &Attach, ticket: &Ticket) -> Answer<Attached> {
        self.inner().attach(session, attach, ticket)
    }

    fn read(&self, key: &StreamKey, after: Seq, limit: ReadLimit, ticket: &Ticket) -> Answer<LogPage> {
        self.inner().read(key, after, limit, ticket)
    }

    fn take(&self, session: &str, epoch: Epoch, after: u64, ticket: &Ticket) -> Answer<Vec<Mail>> {
        self.inner().take(session, epoch, after, ticket)
    }

    fn withdraw(&self, now: Ms, key: &StreamKey, end: &Bytes, ticket: &Ticket) -> Answer<bool> {
        self.inner().withdraw(now, key, end, ticket)
    }

    fn release(&self, session: &str, epoch: Epoch) {
        self.inner().release(session, epoch);
    }

    fn watch(&self, session: &Arc<str>, watcher: &Watcher) {
        self.watchers.watch(session, watcher);
    }

    fn unwatch(&self, session: &str, watcher: &Watcher) {
        self.watchers.unwatch(session, watcher);
    }

    fn settle(&self, key: &StreamKey, epoch: Epoch, seq: Seq) {
        self.inner().settle(key, epoch, seq);
    }

    fn drop_stream(&self, key: &StreamKey, epoch: Epoch) {
        self.inner().drop_stream(key, epoch);
    }

    fn drop_session(&self, session: &str, epoch: Epoch) {
        self.inner().drop_session(session, epoch);
    }

    fn sweep(&self, now: Ms) -> Ms {
        self.inner().sweep(now)
    }

    fn usage(&self) -> Usage {
        self.inner().usage()
    }

    fn outlives_process(&self) -> bool {
        true
    }
}

/// A session with a call that has told one thing, the process that runs it, and another one.
struct World {
    store: Arc<SetBack>,
    here: Bench,
    there: Bench,
    session: SessionHandle,
    /// Before the first event of the call.
    cursor: String,
}

impl World {
    fn new() -> Self {
        let store = SetBack::new();
        let process = || Bench::new(Options { store: Some(Arc::clone(&store) as _), ..Options::default() });
        let (here, there) = (process(), process());
        let session = open_session(&here, "s", NEW);
        let connection = call(&session, 1);
        notify(&session, 1, "a").unwrap();
        let cursor = here.read(&connection).ids()[0].clone();
        Self { store, here, there, session, cursor }
    }

    /// What a reader in the other process gets that came before the owner knew of the loss.
    fn read_there(&self) -> Answered {
        let reader = resume(&find_known(&self.there), &self.cursor);
        let before = self.there.read(&reader);
        assert_eq!(before.end, None, "the store has no end: {before:?}");
        self.store.is_back();
        let mut answered = read_until(&self.there, &reader, ended);
        answered.text.insert_str(0, &before.text);
        answered
    }
}

fn is_lost(answered: &Answered) -> bool {
    answered.text.contains("lost stored events")
}

#[test]
fn o10_i13_an_end_that_the_store_lost_is_written_again() {
    let responds: fn(&World) = |world| assert!(respond(&world.session, 1).is_ok());
    let cancels: fn(&World) = |world| assert!(world.session.cancelled(&id(1)));
    let response = json!({"event": 2, "is": {"result": 1}});
    let cancelled = json!({"tombstone": {"error": -32800, "id": 1}});
    for (ends, want) in [(responds, response), (cancels, cancelled)] {
        let world = World::new();
        ends(&world);
        world.store.lose(1);
        assert_eq!(events(&world.read_there()), [json!({"event": 1, "is": "a"}), want.clone()]);
        // It is lost once more, and nobody reads.
        world.store.lose(1);
        world.store.is_back();
        let again = read_until(&world.there, &resume(&find_known(&world.there), &world.cursor), ended);
        assert_eq!(events(&again), [json!({"event": 1, "is": "a"}), want]);
        assert_eq!(world.here.engine.stats().logs_lost, 0);
    }
}

#[test]
fn o10_i13_a_log_that_the_store_lost_as_a_whole_is_written_again() {
    let world = World::new();
    let short = call(&world.session, 2);
    respond(&world.session, 2).unwrap();
    let cursor = world.here.read(&short).ids()[0].clone();
    world.store.lose(1);
    world.store.is_back();
    let answered = read_until(&world.there, &resume(&find_known(&world.there), &cursor), ended);
    assert_eq!(events(&answered), [json!({"event": 1, "is": {"result": 2}})]);
}

#[test]
fn i13_an_end_of_a_log_that_the_store_lost_as_a_whole_is_written_behind_its_events() {
    let world = World::new();
    world.store.lose(1);
    assert!(world.session.cancelled(&id(1)));
    world.store.is_back();
    let answered = read_until(&world.there, &resume(&find_known(&world.there), &world.cursor), ended);
    let want = [json!({"event": 1, "is": "a"}), json!({"tombstone": {"error": -32800, "id": 1}})];
    assert_eq!((events(&answered).as_slice(), world.here.engine.stats().logs_lost), (&want[..], 0));
}

#[test]
fn o10_i13_an_end_that_was_lost_before_its_answer_came_is_written_again() {
    let world = World::new();
    world.store.is_slow.store(true, Ordering::SeqCst);
    respond(&world.session, 1).unwrap();
    world.store.lose(1);
    world.store.is_back();
    world.store.answer();
    let answered = read_until(&world.there, &resume(&find_known(&world.there), &world.cursor), ended);
    assert_eq!(events(&answered), [json!({"event": 1, "is": "a"}), json!({"event": 2, "is": {"result": 1}})]);
}

#[test]
fn i13_an_end_that_is_not_kept_any_more_is_an_error_for_its_readers() {
    let more_is_lost: fn(&World) = |world| {
        notify(&world.session, 1, "b").unwrap();
        respond(&world.session, 1).unwrap();
        world.store.lose(2);
    };
    let long_ago: fn(&World) = |world| {
        respond(&world.session, 1).unwrap();
        world.here.advance(60_000);
        world.here.engine.tick();
        world.store.lose(1);
    };
    for loses in [more_is_lost, long_ago] {
        let world = World::new();
        loses(&world);
        let answered = world.read_there();
        assert_eq!(
            events(&answered),
            [json!({"event": 1, "is": "a"}), json!({"tombstone": {"error": -32603, "id": 1}})]
        );
        assert!(is_lost(&answered), "{}", answered.text);
    }
}

#[test]
fn o10_i8_the_last_event_of_a_call_that_the_store_lost_is_stored_again() {
    let is_silent: fn(&World) = |world| world.store.is_back();
    let goes_on: fn(&World) = |world| assert!(notify(&world.session, 1, "c").is_ok());
    let (b, c) = (json!({"event": 2, "is": "b"}), json!({"event": 3, "is": "c"}));
    for (does, next) in [(is_silent, None), (goes_on, Some(c))] {
        let world = World::new();
        notify(&world.session, 1, "b").unwrap();
        world.store.lose(1);
        does(&world);
        world.store.is_back();
        let want: Vec<Value> = [json!({"event": 1, "is": "a"}), b.clone()].into_iter().chain(next).collect();
        let reader = resume(&find_known(&world.there), &world.cursor);
        let answered = read_until(&world.there, &reader, has(want.len()));
        assert_eq!((events(&answered), world.here.engine.stats().logs_lost), (want, 0));
    }
}

#[test]
fn i8_a_silent_call_whose_events_the_store_lost_gets_its_end_at_once() {
    let world = World::new();
    notify(&world.session, 1, "b").unwrap();
    notify(&world.session, 1, "c").unwrap();
    let here = resume(&world.session, &world.cursor);
    world.store.lose(2);
    let there = world.read_there();
    assert_eq!(events(&there).pop(), Some(json!({"tombstone": {"error": -32603, "id": 1}})), "I13");
    assert!(is_lost(&there) && is_lost(&read_until(&world.here, &here, ended)));
    assert_eq!(world.here.engine.stats().logs_lost, 1);
}

#[test]
fn i8_a_session_that_the_store_lost_is_there_again() {
    let world = World::new();
    world.store.lose_all();
    assert!(find(&world.there, "s", Some("alice")).unwrap().is_none());
    world.store.is_back();
    let there = find_known(&world.there);
    let answered = read_until(&world.there, &resume(&there, &world.cursor), has(1));
    assert_eq!(events(&answered), [json!({"event": 1, "is": "a"})], "the only append of the call was kept");
    let listener = listen(&there);
    broadcast(&world.session, "b").unwrap();
    let answered = read_until(&world.there, &listener, has(1));
    assert_eq!(events(&answered), [json!({"event": 1, "is": "b"})]);
}

/// More than one page has room for.
fn long() -> String {
    "b".repeat(100_000)
}

/// A slow reader of the call: it has the first event, and its process knows of more.
fn behind(world: &World, is_here: bool) -> (&Bench, Connection) {
    let (bench, session) = match is_here {
        true => (&world.here, world.session.clone()),
        false => (&world.there, find_known(&world.there)),
    };
    let reader = resume(&session, &world.cursor);
    let deadline = Instant::now() + PATIENCE;
    let mut text = String::new();
    while !text.contains("method") {
        assert!(Instant::now() < deadline, "{text}");
        bench.advance(20);
        text.push_str(&reader.poll(1).text());
    }
    assert_eq!(frames(&text).len(), 2, "the priming event and the first event");
    (bench, reader)
}

#[test]
fn o10_i8_a_slow_reader_gets_what_the_store_lost_when_its_owner_has_written_it_again() {
    for is_here in [true, false] {
        let world = World::new();
        notify(&world.session, 1, &long()).unwrap();
        let (bench, reader) = behind(&world, is_here);
        world.store.lose(1);
        bench.advance(1_000);
        let during = read_now(&reader);
        assert_eq!((during.frames(), during.end), (Vec::new(), None), "here: {is_here}");
        world.store.is_back();
        assert_eq!(events(&read_until(bench, &reader, has(1))), [json!({"event": 2, "is": long()})], "here: {is_here}");
        respond(&world.session, 1).unwrap();
        let end = read_until(bench, &reader, ended);
        assert_eq!(events(&end), [json!({"event": 3, "is": {"result": 1}})], "here: {is_here}");
        assert_eq!(bench.engine.stats().gaps, 0, "here: {is_here}");
    }
}

#[test]
fn i8_a_slow_reader_gets_the_end_of_a_call_whose_events_do_not_come_back() {
    let is_silent: fn(&World) = |world| world.store.is_back();
    let goes_on: fn(&World) = |world| assert!(notify(&world.session, 1, "d").is_err());
    for (does, lost) in [(is_silent, 2), (goes_on, 2), (is_silent, 3), (goes_on, 3)] {
        for is_here in [true, false] {
            let world = World::new();
            notify(&world.session, 1, &long()).unwrap();
            notify(&world.session, 1, "c").unwrap();
            let (bench, reader) = behind(&world, is_here);
            let began = bench.clock.now();
            world.store.lose(lost);
            does(&world);
            let end = read_until(bench, &reader, ended);
            let case = format!("here: {is_here}, lost: {lost}: {end:?}");
            assert_eq!(events(&end).pop(), Some(json!({"tombstone": {"error": -32603, "id": 1}})), "{case}");
            assert_eq!(end.end, Some(CloseReason::Complete), "{case}");
            assert!(lost == 3 || is_lost(&end), "{case}");
            assert!(bench.clock.now().since(began) < 5_000, "{case}");
        }
    }
}

#[test]
fn i8_a_slow_reader_of_a_response_that_does_not_come_back_gets_an_end() {
    let world = World::new();
    notify(&world.session, 1, &long()).unwrap();
    let (here, reader) = behind(&world, true);
    respond(&world.session, 1).unwrap();
    world.store.lose(2);
    world.store.is_back();
    let end = read_until(here, &reader, ended);
    assert_eq!(events(&end), [json!({"tombstone": {"error": -32603, "id": 1}})], "I13: {}", end.text);
    assert!(is_lost(&end), "{}", end.text);
}

/// A cursor behind the second event of the call, which the store loses then.
fn ahead(world: &World) -> String {
    notify(&world.session, 1, "b").unwrap();
    let reader = resume(&world.session, &world.cursor);
    let cursor = read_until(&world.here, &reader, has(2)).last_id();
    world.store.lose(1);
    cursor
}

#[test]
fn o10_a_cursor_that_is_ahead_of_a_living_owners_log_waits_for_the_owner() {
    let world = World::new();
    let cursor = ahead(&world);
    let reader = resume(&find_known(&world.there), &cursor);
    let mut answered = read_until(&world.there, &reader, begun);
    assert_eq!(answered.frames(), [json!({"priming": 2, "retry_ms": 3000})], "its own position");
    world.there.advance(5_000);
    assert_eq!(read_now(&reader).end, None);
    // A second reader of the same call comes before the owner has heard.
    let newer = resume(&find_known(&world.there), &cursor);
    answered = read_until(&world.there, &newer, begun);
    assert_eq!(answered.frames(), [json!({"priming": 2, "retry_ms": 3000})]);
    assert_eq!(read_until(&world.there, &reader, ended).end, Some(CloseReason::Superseded), "I4");
    world.store.is_back();
    notify(&world.session, 1, "c").unwrap();
    assert_eq!(events(&read_until(&world.there, &newer, has(1))), [json!({"event": 3, "is": "c"})], "I3");
    assert_eq!(world.here.engine.stats().logs_lost, 0);
    assert_eq!(world.there.engine.stats().resumes_lost, 0);
}

#[test]
fn o10_a_cursor_that_stays_ahead_is_unknown_when_the_wait_is_over() {
    let world = World::new();
    let cursor = ahead(&world);
    let reader = resume(&find_known(&world.there), &cursor);
    let began = world.there.clock.now();
    let answered = read_until(&world.there, &reader, ended);
    let unknown = json!({"tombstone": {"error": -32603, "id": 1}});
    assert_eq!((events(&answered), answered.end), (vec![unknown], Some(CloseReason::Complete)), "I13");
    let waited_ms = world.there.clock.now().since(began);
    assert!((10_000..11_000).contains(&waited_ms), "store_wait_ms: {waited_ms}");
    assert_eq!(world.there.engine.stats().resumes_lost, 1);
}

#[test]
fn o10_i13_a_session_that_was_let_go_before_the_store_forgot_that_is_let_go_again() {
    let world = World::new();
    world.here.engine.release();
    let want = [json!({"event": 1, "is": "a"}), json!({"tombstone": {"error": -32603, "id": 1}})];
    for _ in 0..2 {
        let reader = resume(&find_known(&world.there), &world.cursor);
        assert_eq!(events(&read_until(&world.there, &reader, ended)), want);
        // The end, and what came behind it. This process has the session, as far as the store knows.
        world.store.lose(1);
    }
}
