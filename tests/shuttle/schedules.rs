//! What threads share, under many orders of their steps: readers, writers, the store's threads, time, ends.
//!
//! A wake-up that is lost shows as a deadlock, because nobody here waits for a time. TAILROPE_SCHEDULES is how many
//! orders each test is given, TAILROPE_SEED which; TAILROPE_SCHEDULE repeats the one that a failure printed, as long as
//! the test is run alone.

use std::collections::BTreeMap;

use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler};
use shuttle::{Config, Runner};
use tailrope_shuttle::engine::{
    Connection, Engine, EngineError, LookUp, ManualClock, Options, OutgoingMessage, Sent, SessionHandle, Wake,
};
use tailrope_shuttle::protocol::{Dialect, RequestId, Revision, StreamNonce};
use tailrope_shuttle::store::threaded::PANICS;
use tailrope_shuttle::store::{
    Complete, Epoch, EventStore, Hold, Limits, MemoryStore, Operation, Outcome, SessionRecord, StoreError,
    ThreadedStore, Ticket, session_name,
};
use tailrope_shuttle::stream::{CloseReason, Drain};
use tailrope_shuttle::sync::{Arc, Condvar, Mutex, Weak, thread};

const REVISION: Revision = Revision::V2025_11_25;
const TIMEOUT_MS: u64 = 10;

/// What stands in the environment, or this.
fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |value| value.parse().expect("a number"))
}

/// Runs a test under random orders, and under orders with few changes of thread at unlucky places.
fn under_many_orders(test: impl Fn() + Copy + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = 512 << 10;
    if let Ok(schedule) = std::env::var("TAILROPE_SCHEDULE") {
        Runner::new(ReplayScheduler::new_from_encoded(&schedule), config).run(test);
        return;
    }
    let count = usize::try_from(setting("TAILROPE_SCHEDULES", 100)).expect("a count");
    let seed = setting("TAILROPE_SEED", 1);
    Runner::new(RandomScheduler::new_from_seed(seed, count), config.clone()).run(test);
    Runner::new(PctScheduler::new_from_seed(seed, 3, count), config).run(test);
}

/// Stores that answer at once, and on threads of their own.
fn stores() -> [Arc<dyn EventStore>; 2] {
    [Arc::new(MemoryStore::new(Limits::default())), threaded()]
}

fn threaded() -> Arc<dyn EventStore> {
    Arc::new(ThreadedStore::delayed(Limits::default(), 0))
}

/// An engine with a clock that stands still until somebody moves it. A test closes it, or the store's threads would
/// wait for ever.
fn engine(store: &Arc<dyn EventStore>) -> (Engine, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::default());
    let options = Options {
        store: Some(Arc::clone(store)),
        clock: Some(Arc::clone(&clock) as _),
        store_timeout_ms: TIMEOUT_MS,
        ..Options::default()
    };
    (Engine::new(options), clock)
}

fn open(engine: &Engine, bell: &Arc<Bell>) -> SessionHandle {
    let session = engine.open_session("s", None, &Dialect::MCP_PYTHON_2, Arc::clone(bell) as _, 0).unwrap();
    session.assume_revision(REVISION);
    session
}

/// Waits until it was rung.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Bell {
    fn wake(&self, _key: u64) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl Bell {
    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

fn id(number: i64) -> RequestId {
    RequestId::integer(number)
}

fn notify(session: &SessionHandle, name: &str) -> Result<Sent, EngineError> {
    let payload = format!(r#"{{"jsonrpc":"2.0","method":"notifications/{name}"}}"#);
    session.send(OutgoingMessage::notification(Some(&id(1)), payload.as_bytes()))
}

/// A request to the client, which waits for the store.
fn ask(session: &SessionHandle) -> Result<Sent, EngineError> {
    let payload = br#"{"jsonrpc":"2.0","id":"q","method":"notifications/question"}"#;
    session.send(OutgoingMessage::request(&RequestId::text_id("q"), Some(&id(1)), payload))
}

fn respond(session: &SessionHandle) -> Result<Sent, EngineError> {
    session.send(OutgoingMessage::response(&id(1), br#"{"jsonrpc":"2.0","id":1,"result":{}}"#))
}

/// A connection with its writer's bell.
struct Reader {
    connection: Connection,
    bell: Arc<Bell>,
    text: String,
}

impl Reader {
    fn call(session: &SessionHandle) -> Self {
        let bell = Arc::new(Bell::default());
        let connection = session.call(&[id(1)], None, Arc::clone(&bell) as _, 0).unwrap();
        Self { connection, bell, text: String::new() }
    }

    fn resume(session: &SessionHandle, last_event_id: &str) -> Self {
        let bell = Arc::new(Bell::default());
        let connection = session.resume(last_event_id, None, Arc::clone(&bell) as _, 0).unwrap();
        Self { connection, bell, text: String::new() }
    }

    /// Reads until the answer is as it is wanted, or over. Polls only after bytes and wake-ups, as hosts do.
    fn read_until(&mut self, wanted: impl Fn(&Self) -> bool) -> Option<CloseReason> {
        loop {
            let poll = self.connection.poll(4_096);
            self.text.push_str(&poll.text());
            if poll.end.is_some() || wanted(self) {
                return poll.end;
            }
            if poll.is_empty() {
                self.bell.wait();
            }
        }
    }

    fn read_to_the_end(&mut self) -> CloseReason {
        self.read_until(|_| false).expect("it is over")
    }

    /// The messages: what follows `data: ` and is not a priming event's nothing.
    fn messages(&self) -> Vec<String> {
        let data = self.text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter(|data| !data.is_empty()).map(str::to_owned).collect()
    }

    fn last_id(&self) -> Option<&str> {
        self.text.lines().rev().find_map(|line| line.strip_prefix("id: "))
    }
}

/// The names of notifications, in order, and how many ends came.
fn told(messages: &[String]) -> (Vec<String>, usize) {
    let name = |message: &String| Some(message.split_once("notifications/")?.1.split('"').next()?.to_owned());
    let names: Vec<String> = messages.iter().filter_map(name).collect();
    let ends = messages.iter().filter(|message| !message.contains("notifications/")).count();
    (names, ends)
}

#[test]
fn i2_i3_no_wake_up_is_lost_between_a_writer_and_its_readers() {
    under_many_orders(|| {
        for store in stores() {
            let (engine, _) = engine(&store);
            let session = open(&engine, &Arc::default());
            let mut first = Reader::call(&session);
            let writer = {
                let session = session.clone();
                thread::spawn(move || {
                    for name in ["a", "b", "c"] {
                        notify(&session, name).unwrap();
                    }
                    respond(&session).unwrap();
                })
            };
            // A reader that goes away in the middle, and comes back.
            let over = first.read_until(|reader| reader.messages().len() >= 2);
            let mut messages = first.messages();
            if over.is_none() {
                let cursor = first.last_id().unwrap().to_owned();
                drop(first);
                let mut second = Reader::resume(&session, &cursor);
                second.read_to_the_end();
                messages.extend(second.messages());
            }
            assert_eq!(told(&messages), (["a", "b", "c"].map(str::to_owned).to_vec(), 1));
            writer.join().unwrap();
            engine.close();
        }
    });
}

#[test]
fn i4_of_two_who_come_at_once_one_reads_to_the_end_and_the_other_is_told() {
    under_many_orders(|| {
        for store in stores() {
            let (engine, _) = engine(&store);
            let session = open(&engine, &Arc::default());
            let mut first = Reader::call(&session);
            notify(&session, "a").unwrap();
            first.read_until(|reader| !reader.messages().is_empty());
            let cursor = first.last_id().unwrap().to_owned();
            let readers = [0, 1].map(|_| {
                let (session, cursor) = (session.clone(), cursor.clone());
                thread::spawn(move || {
                    let mut reader = Reader::resume(&session, &cursor);
                    (reader.read_to_the_end(), reader.messages())
                })
            });
            respond(&session).unwrap();
            let ended = readers.map(|reader| reader.join().unwrap());
            for (why, messages) in &ended {
                let complete = (*why == CloseReason::Complete, told(messages).1);
                assert!(matches!(complete, (true, 1) | (false, 0)), "I6: {ended:?}");
            }
            assert!(ended.iter().any(|(why, _)| *why == CloseReason::Complete), "{ended:?}");
            engine.close();
        }
    });
}

#[test]
fn i13_i11_a_session_that_ends_meanwhile_tells_everybody_and_leaves_nothing() {
    under_many_orders(|| {
        for store in stores() {
            let (engine, _) = engine(&store);
            let bell = Arc::new(Bell::default());
            let session = open(&engine, &bell);
            let mut reader = Reader::call(&session);
            let ender = {
                let session = session.clone();
                thread::spawn(move || session.end())
            };
            let writer = {
                let session = session.clone();
                thread::spawn(move || {
                    let sent = ask(&session);
                    let _ = respond(&session);
                    if let Ok(Sent::Pending(number)) = sent {
                        // Whoever waits for the store is told, whether it answers or not.
                        while !session.take_outcomes().iter().any(|(told, _)| *told == number) {
                            bell.wait();
                        }
                    }
                })
            };
            reader.read_to_the_end();
            assert_eq!(told(&reader.messages()).1, 1, "one end: {}", reader.text);
            ender.join().unwrap();
            writer.join().unwrap();
            drop(reader);
            let held = || {
                let stats = engine.stats();
                (stats.sessions, stats.connections, stats.streams, stats.events, stats.bytes)
            };
            while held() != (0, 0, 0, 0, 0) {
                // The store's threads have still to do what they were asked for; if they did, this ends as a fault.
                thread::yield_now();
            }
        }
    });
}

#[test]
fn i11_a_session_that_opens_while_its_engine_closes_is_refused_or_ended() {
    under_many_orders(|| {
        let store: Arc<dyn EventStore> = Arc::new(MemoryStore::new(Limits::default()));
        let (engine, _) = engine(&store);
        let closer = {
            let engine = engine.clone();
            thread::spawn(move || engine.close())
        };
        let wake = Arc::new(Bell::default());
        match engine.open_session("s", None, &Dialect::MCP_PYTHON_2, wake, 0) {
            Ok(session) => {
                closer.join().unwrap();
                assert_eq!(notify(&session, "a"), Err(EngineError::Closed));
            }
            Err(error) => {
                assert_eq!(error, EngineError::Closed);
                closer.join().unwrap();
            }
        }
        assert_eq!(engine.stats().sessions, 0);
    });
}

#[test]
fn i11_a_session_that_gives_way_is_ended_once_or_serves_the_request_that_came_first() {
    under_many_orders(|| {
        let store: Arc<dyn EventStore> = Arc::new(MemoryStore::new(Limits::default()));
        let options = Options { max_sessions: 1, store: Some(Arc::clone(&store)), ..Options::default() };
        let engine = Engine::new(Options { clock: Some(Arc::new(ManualClock::default())), ..options });
        let open = |name| {
            let session =
                engine.open_session(name, None, &Dialect::MCP_PYTHON_2, Arc::new(Bell::default()), 0).unwrap();
            session.assume_revision(REVISION);
            session
        };
        let (old, newcomers) = (open("old"), [open("a"), open("b")]);
        old.take_place().unwrap();
        let caller = {
            let old = old.clone();
            thread::spawn(move || old.call(&[id(1)], None, Arc::new(Bell::default()), 0))
        };
        let closer = {
            let newcomer = newcomers[1].clone();
            thread::spawn(move || newcomer.end())
        };
        let ticker = {
            let engine = engine.clone();
            thread::spawn(move || engine.tick().len())
        };
        let takers = newcomers.clone().map(|newcomer| thread::spawn(move || drop(newcomer.take_place())));
        let called = caller.join().unwrap();
        for taker in takers {
            taker.join().unwrap();
        }
        closer.join().unwrap();
        let told = ticker.join().unwrap() + engine.tick().len();
        assert_eq!(engine.stats().sessions_gave_way, told as u64, "each is told of once");
        assert_eq!(called.is_err(), old.has_ended(), "what was opened is served");
        old.end();
        newcomers.iter().for_each(SessionHandle::end);
        drop(called);
        let next = open("next");
        next.take_place().expect("nobody is left behind in a place");
        assert_eq!(engine.stats().sessions_gave_way, told as u64);
        engine.close();
    });
}

#[test]
fn f_44_a_call_that_comes_while_its_engine_drains_is_sent_away_too() {
    under_many_orders(|| {
        for store in stores() {
            let (engine, _) = engine(&store);
            let session = open(&engine, &Arc::default());
            let drainer = {
                let engine = engine.clone();
                thread::spawn(move || engine.drain(Drain::after(100)))
            };
            let mut reader = Reader::call(&session);
            assert_eq!(reader.read_to_the_end(), CloseReason::Drain);
            assert!(reader.last_id().is_some() && reader.text.contains("retry: "), "I5: {:?}", reader.text);
            drainer.join().unwrap();
            engine.close();
        }
    });
}

#[test]
fn i2_i9_an_answer_of_the_store_that_comes_with_its_timeout_is_told_once() {
    under_many_orders(|| {
        let store = threaded();
        let (engine, clock) = engine(&store);
        let bell = Arc::new(Bell::default());
        let session = open(&engine, &bell);
        let mut reader = Reader::call(&session);
        let time = {
            let engine = engine.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    clock.advance(TIMEOUT_MS);
                    engine.tick();
                }
            })
        };
        let question = ask(&session);
        let sent = ["a", "b", "c"].map(|name| (name, notify(&session, name)));
        let mut outcomes: BTreeMap<u64, Vec<bool>> = BTreeMap::new();
        if let Ok(Sent::Pending(number)) = question {
            while outcomes.is_empty() {
                for (told, outcome) in session.take_outcomes() {
                    outcomes.entry(told).or_default().push(outcome.is_ok());
                }
                if outcomes.is_empty() {
                    bell.wait();
                }
            }
            assert_eq!(outcomes.keys().collect::<Vec<_>>(), [&number], "nobody else waits");
        }
        time.join().unwrap();
        respond(&session).unwrap();
        reader.read_to_the_end();
        outcomes.extend(session.take_outcomes().into_iter().map(|(told, outcome)| (told, vec![outcome.is_ok(); 2])));
        assert!(outcomes.values().all(|told| told.len() == 1), "one outcome: {outcomes:?}");
        let (names, ends) = told(&reader.messages());
        assert_eq!(ends, 1, "I13: {}", reader.text);
        let names: Vec<&String> = names.iter().filter(|name| sent.iter().any(|(sent, _)| sent == name)).collect();
        assert!(names.windows(2).all(|pair| pair[0] < pair[1]), "I2, and none twice: {names:?}");
        for (name, sent) in &sent {
            match sent {
                Ok(Sent::Ahead) => assert!(names.iter().any(|seen| seen == name), "I3: {name} was taken: {names:?}"),
                Err(EngineError::Store(StoreError::TimedOut { .. })) => {}
                other => panic!("nobody waits: {other:?}"),
            }
        }
        engine.close();
    });
}

#[test]
fn i9_a_store_whose_code_panics_harms_one_event() {
    under_many_orders(|| {
        let store = threaded();
        let (engine, _) = engine(&store);
        let bell = Arc::new(Bell::default());
        let session = open(&engine, &bell);
        let mut reader = Reader::call(&session);
        let writer = {
            let session = session.clone();
            thread::spawn(move || {
                for name in ["a", PANICS, "b"] {
                    // Who is told of the failure is the next sender, or nobody: a response is always taken.
                    match notify(&session, name) {
                        Ok(_) | Err(EngineError::Earlier(StoreError::Failed(_))) => {}
                        other => panic!("only the event itself fails: {other:?}"),
                    }
                }
                respond(&session).unwrap();
            })
        };
        reader.read_to_the_end();
        writer.join().unwrap();
        assert_eq!(told(&reader.messages()), (vec!["a".to_owned(), "b".to_owned()], 1), "{}", reader.text);
        assert_eq!(engine.stats().events_unstored, 1);
        engine.close();
    });
}

fn find(engine: &Engine, bell: &Arc<Bell>) -> LookUp {
    engine.look_up_session("s", None, None, &Dialect::MCP_PYTHON_2, Arc::clone(bell) as _, 0).unwrap()
}

/// Who waits for nothing.
struct Nobody;

impl Complete for Nobody {
    fn complete(&self, _: &Ticket, _: Outcome) {}
}

fn known_session(store: &Arc<dyn EventStore>) {
    let standalone = Some(StreamNonce([1; 12]));
    let record = SessionRecord { revision: Some(REVISION), standalone, ..SessionRecord::default() };
    let hold = Hold { epoch: Epoch { number: 1, salt: 7 }, seen: None, record: Some(record) };
    let to: Weak<Nobody> = Weak::new();
    let ticket = Ticket { to, nonce: StreamNonce([0; 12]), operation: Operation::Hold, number: 1 };
    drop(store.hold(&session_name("s"), &hold, &ticket));
}

#[test]
fn i11_a_look_up_has_one_outcome_for_one_taker() {
    under_many_orders(|| {
        let store = threaded();
        known_session(&store);
        let (engine, clock) = engine(&store);
        let bell = Arc::new(Bell::default());
        let look_up = find(&engine, &bell);
        let time = {
            let engine = engine.clone();
            thread::spawn(move || {
                clock.advance(TIMEOUT_MS);
                engine.tick();
            })
        };
        let takers = [0, 1].map(|_| {
            let look_up = look_up.clone();
            thread::spawn(move || look_up.take())
        });
        let mut taken: Vec<_> = takers.into_iter().filter_map(|taker| taker.join().unwrap()).collect();
        if taken.is_empty() {
            bell.wait();
            taken.extend(look_up.take());
        }
        assert_eq!(taken.len(), 1, "it is told when there is something to take, and once: {taken:?}");
        time.join().unwrap();
        assert!(look_up.take().is_none());
        match taken.pop() {
            Some(Ok(Some(session))) => session.let_go(),
            Some(Err(EngineError::Store(_))) => {}
            other => panic!("the session, or the time that it took: {other:?}"),
        }
        assert!(engine.is_idle());
    });
}

#[test]
fn i11_readers_of_one_session_elsewhere_come_and_go_and_leave_nothing() {
    under_many_orders(|| {
        for store in stores() {
            known_session(&store);
            let (engine, clock) = engine(&store);
            let readers = [0, 1].map(|_| {
                let engine = engine.clone();
                thread::spawn(move || {
                    let bell = Arc::new(Bell::default());
                    let look_up = find(&engine, &bell);
                    let session = loop {
                        match look_up.take() {
                            Some(session) => break session.unwrap().expect("it is known"),
                            None => bell.wait(),
                        }
                    };
                    let connection = session.listen(bell, 0);
                    drop(connection);
                    session.let_go();
                })
            });
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            clock.advance(TIMEOUT_MS);
            engine.tick();
            let stats = engine.stats();
            assert_eq!((engine.is_idle(), stats.sessions, stats.connections), (true, 0, 0));
        }
    });
}

#[test]
fn i4_a_session_with_a_reader_is_found_when_another_one_leaves_it() {
    under_many_orders(|| {
        let store: Arc<dyn EventStore> = Arc::new(MemoryStore::new(Limits::default()));
        known_session(&store);
        let (engine, _) = engine(&store);
        let bell = Arc::new(Bell::default());
        let session = find(&engine, &bell).take().expect("it answers at once").unwrap().expect("it is known");
        let first = session.listen(bell, 0).unwrap();
        let leaves = thread::spawn(move || drop(first));
        let comes = {
            let engine = engine.clone();
            thread::spawn(move || {
                let found = engine.session("s", None)?;
                Some(found.listen(Arc::new(Bell::default()), 0).unwrap())
            })
        };
        leaves.join().unwrap();
        let second = comes.join().unwrap();
        // A third reader is to find the second one there.
        assert_eq!(engine.session("s", None).is_some(), second.is_some());
        drop(second);
        assert!(engine.is_idle());
    });
}
