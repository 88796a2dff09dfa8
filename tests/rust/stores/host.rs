//! A store that a host wrote: what the host is asked for an append, and what its window has of it.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tailrope_core::Ms;
use tailrope_core::store::contract::{Caller, Event, Log, progress};
use tailrope_core::store::{
    Answer, Append, AttachedLog, Complete, EventStore, HostRequest, HostStore, Limits, Operation, Outcome, OwnIds,
    SessionRecord, StoreError, Ticket, Usage,
};
use tailrope_core::stream::Paced;

#[derive(Default)]
struct Answers(Mutex<Vec<Result<(), StoreError>>>);

impl Complete for Answers {
    fn complete(&self, _: &Ticket, outcome: Outcome) {
        let Outcome::Done(result) = outcome else { panic!("of an append: {outcome:?}") };
        self.0.lock().unwrap().push(result);
    }
}

/// A store with whoever asks it, and one log.
struct World {
    store: HostStore,
    answers: Arc<Answers>,
    log: Log,
}

impl World {
    fn new() -> Self {
        Self::of(HostStore::new(Limits::default()))
    }

    fn of(store: HostStore) -> Self {
        let world = Self { store, answers: Arc::default(), log: Log::new("s", 1) };
        world.caller().hold("s", SessionRecord::default());
        world
    }

    fn caller(&self) -> Caller<'_> {
        Caller::new(&self.store, Ms(0))
    }

    fn ticket(&self) -> Ticket {
        let to: Arc<dyn Complete> = Arc::clone(&self.answers) as _;
        Ticket { to: Arc::downgrade(&to), nonce: self.log.key.nonce, operation: Operation::Append, number: 1 }
    }

    /// The answer, if it is there at once.
    fn ask(&self, append: &Append) -> Option<Result<(), StoreError>> {
        self.ask_for(&self.log, append)
    }

    fn ask_for(&self, log: &Log, append: &Append) -> Option<Result<(), StoreError>> {
        match self.store.append(Ms(0), &log.key, self.caller().epoch, append, &self.ticket()) {
            Answer::Now(result) => Some(result),
            Answer::Later => None,
        }
    }

    /// An append that begins the log, with an id for its priming position.
    fn beginning(&self, events: &[Event]) -> Append {
        Append { primes: true, ..self.log.append(1, events) }
    }

    /// The payloads that the host is to store, with the numbers of its operations.
    fn asked(&self) -> (Vec<Option<Bytes>>, Vec<u64>) {
        let stored = |request| match request {
            HostRequest::Store { payload, .. } => payload,
            HostRequest::Replay { .. } => panic!("nothing is replayed"),
        };
        let operations = self.store.take_operations("s").into_iter();
        operations.map(|operation| (stored(operation.request), operation.number)).unzip()
    }

    fn answers(&self) -> Vec<Result<(), StoreError>> {
        std::mem::take(&mut self.answers.0.lock().unwrap())
    }

    /// What the window has of the log besides its events.
    fn window(&self) -> Option<AttachedLog> {
        self.caller().log(&self.log)
    }

    fn head(&self) -> Option<u64> {
        self.window().map(|log| log.page.page.head)
    }

    fn ids(&self) -> [Option<Box<str>>; 2] {
        [0, 1].map(|seq| self.store.id_at(&self.log.key, seq))
    }
}

fn event(payload: &str) -> Event {
    progress(&format!("id: -\ndata: {payload}\n\n"))
}

fn payload(text: &'static str) -> Option<Bytes> {
    Some(Bytes::from_static(text.as_bytes()))
}

#[test]
fn names_of_a_hosts_streams_are_apart_for_sessions_and_streams() {
    let log = |session, number| Log::new(session, number).key.nonce;
    let name = HostStore::stream_name("s", log("s", 1));
    assert!(name.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)), "{name}");
    assert_ne!(name, HostStore::stream_name("t", log("t", 1)));
    assert_ne!(name, HostStore::stream_name("s", log("s", 2)));
}

#[test]
fn a_log_that_is_created_alone_gets_an_id_for_its_start() {
    let world = World::new();
    assert_eq!(world.ask(&world.beginning(&[])), None);
    let (payloads, numbers) = world.asked();
    assert_eq!((payloads, world.answers()), (vec![None], vec![]));
    world.store.stored(numbers[0], "p");
    assert_eq!((world.answers(), world.ids()), (vec![Ok(())], [Some("p".into()), None]));
    assert_eq!((world.ask(&world.beginning(&[])), world.asked().0), (Some(Ok(())), vec![]), "once");
}

#[test]
fn a_start_without_an_id_does_not_fail_its_log() {
    for id in [None, Some("no id")] {
        let world = World::new();
        assert_eq!(world.ask(&world.beginning(&[])), None);
        let (_, numbers) = world.asked();
        match id {
            None => world.store.failed(numbers[0], "the host's disk is full".to_owned()),
            Some(id) => world.store.stored(numbers[0], id),
        }
        assert_eq!((world.answers(), world.head(), world.ids()[0].clone()), (vec![Ok(())], Some(0), None));
    }
}

#[test]
fn a_first_event_that_failed_is_followed_by_another() {
    let world = World::new();
    world.ask(&world.beginning(&[event("a")]));
    let (payloads, numbers) = world.asked();
    assert_eq!(payloads, [payload("a")], "an event is asked for alone");
    world.store.failed(numbers[0], "the host's disk is full".to_owned());
    assert!(matches!(world.answers()[..], [Err(StoreError::Failed(_))]));
    assert_eq!(world.head(), Some(0), "I9: the event alone is not there");
    world.ask(&world.beginning(&[event("b")]));
    assert_eq!(world.asked().0, [payload("b")]);
}

#[test]
fn what_is_called_off_is_not_asked_of_the_host() {
    let world = World::new();
    world.ask(&world.beginning(&[event("a")]));
    world.store.abandon(&world.log.key, &world.ticket());
    assert_eq!(world.asked().0, []);
}

#[test]
fn an_end_is_in_the_window_alone() {
    let end = payload("end");
    let mut world = World::new();
    let alone = Append { end: end.clone(), ..world.log.append(1, &[]) };
    assert_eq!((world.ask(&alone), world.asked().0), (Some(Ok(())), vec![]));
    assert_eq!(world.window().map(|log| (log.page.page.head, log.page.tail)), Some((0, end.clone())));
    world.log = Log::new("s", 2);
    let with_event = Append {
        end: end.clone(),
        paced: Some(Paced { retry_ms: Some(7), ..Paced::default() }),
        ..world.log.append(1, &[event("a")])
    };
    for is_stored in [false, true] {
        assert_eq!(world.ask(&with_event), None);
        let (_, numbers) = world.asked();
        assert_eq!(numbers.len(), 1);
        let before = world.window().map(|log| (log.page.page.head, log.page.tail, log.page.paced.retry_ms));
        assert_eq!(before, Some((0, None, None)), "rule 7: nothing of it without its event");
        if is_stored {
            world.store.stored(numbers[0], "1");
        } else {
            world.store.failed(numbers[0], "the host's disk is full".to_owned());
        }
    }
    let after = world.window().map(|log| (log.page.page.head, log.page.tail, log.page.paced.retry_ms));
    assert_eq!(after, Some((1, end, Some(7))));
}

#[test]
fn an_end_finds_room_in_a_window_that_has_none() {
    let max = 1_000;
    let store = HostStore::new(Limits { max_bytes: max, ..Limits::default() });
    let world = World::of(store);
    world.ask(&world.log.append(1, &[event(&"x".repeat(300))]));
    // Both fit when they are asked for, and what the host has stored the window takes.
    let mut other = Log::new("s", 2);
    let first = event(&"x".repeat(100));
    world.ask_for(&other, &other.append(1, std::slice::from_ref(&first)));
    for number in world.asked().1 {
        world.store.stored(number, &number.to_string());
    }
    assert!(world.store.usage().bytes > max as u64);
    other.events.push(first);
    let more = world.ask_for(&other, &other.append(2, &[event("more")]));
    assert!(matches!(more, Some(Err(StoreError::Full { .. }))), "{more:?}");
    let end = Append { end: payload("end"), ..other.append(2, &[]) };
    assert_eq!(world.ask_for(&other, &end), Some(Ok(())));
}

#[test]
fn what_the_host_stores_of_a_dropped_log_is_not_there_again() {
    for drops_session in [true, false] {
        let world = World::new();
        world.ask(&world.beginning(&[event("a")]));
        let (_, numbers) = world.asked();
        if drops_session {
            world.store.drop_session("s", world.caller().epoch);
        } else {
            world.store.drop_stream(&world.log.key, world.caller().epoch);
        }
        for number in numbers {
            world.store.stored(number, &number.to_string());
        }
        let told = if drops_session { vec![] } else { vec![Err(StoreError::Gone)] };
        let usage = Usage { sessions: u64::from(!drops_session), ..Usage::default() };
        assert_eq!((world.answers(), world.window(), world.store.usage()), (told, None, usage));
    }
}
