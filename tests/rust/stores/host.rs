//! A store that a host wrote: what the host is asked for an append, and what its window has of it.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tailrope_core::Ms;
use tailrope_core::store::contract::{Caller, Event, Log, progress};
use tailrope_core::store::{
    Answer, Append, Complete, EventStore, HostRequest, HostStore, Limits, Operation, Outcome, OwnIds, Record,
    StoreError, Ticket, Usage,
};

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
        Self { store: HostStore::new(Limits::default()), answers: Arc::default(), log: Log::new("s", 1) }
    }

    fn ticket(&self) -> Ticket {
        let to: Arc<dyn Complete> = Arc::clone(&self.answers) as _;
        Ticket { to: Arc::downgrade(&to), nonce: self.log.key.nonce, operation: Operation::Append, number: 1 }
    }

    /// The answer, if it is there at once.
    fn ask(&self, append: &Append) -> Option<Result<(), StoreError>> {
        match self.store.append(Ms(0), &self.log.key, append, &self.ticket()) {
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

    fn record(&self) -> Option<Record> {
        Caller::new(&self.store, Ms(0)).record(&self.log)
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
fn the_priming_position_is_stored_before_the_first_event() {
    let world = World::new();
    assert_eq!(world.ask(&world.beginning(&[event("a")])), None);
    let (payloads, numbers) = world.asked();
    assert_eq!(payloads, [None, payload("a")]);
    world.store.stored(numbers[0], "p");
    assert_eq!(world.answers(), [], "the event is not stored");
    world.store.stored(numbers[1], "1");
    assert_eq!((world.answers(), world.ids()), (vec![Ok(())], [Some("p".into()), Some("1".into())]));
}

#[test]
fn a_start_without_an_id_fails_neither_its_log_nor_its_first_event() {
    for (id, events) in [(None, vec![]), (None, vec![event("a")]), (Some("no id"), vec![event("a")])] {
        let world = World::new();
        assert_eq!(world.ask(&world.beginning(&events)), None);
        let (_, numbers) = world.asked();
        match id {
            None => world.store.failed(numbers[0], "the host's disk is full".to_owned()),
            Some(id) => world.store.stored(numbers[0], id),
        }
        if let Some(number) = numbers.get(1) {
            assert_eq!(world.answers(), []);
            world.store.stored(*number, "1");
        }
        assert_eq!(world.answers(), [Ok(())]);
        assert_eq!(world.record().map(|record| record.head), Some(events.len() as u64));
        assert_eq!(world.ids()[0], None);
    }
}

#[test]
fn a_first_event_that_failed_is_followed_by_another_and_by_no_second_priming() {
    let world = World::new();
    world.ask(&world.beginning(&[event("a")]));
    let (_, numbers) = world.asked();
    world.store.failed(numbers[1], "the host's disk is full".to_owned());
    assert!(matches!(world.answers()[..], [Err(StoreError::Failed(_))]));
    assert_eq!(world.record().map(|record| record.head), Some(0), "I9: the event alone is not there");
    world.ask(&world.beginning(&[event("b")]));
    assert_eq!(world.asked().0, [payload("b")], "the host is still at the first one");
    world.store.stored(numbers[0], "p");
    assert_eq!(world.ids()[0].as_deref(), Some("p"));
}

#[test]
fn what_is_called_off_is_not_asked_of_the_host_and_leaves_the_start() {
    let world = World::new();
    world.ask(&world.beginning(&[event("a")]));
    world.store.abandon(&world.log.key, &world.ticket());
    assert_eq!(world.asked().0, [None]);
}

#[test]
fn an_end_is_in_the_window_alone() {
    let end = payload("end");
    let mut world = World::new();
    let alone = Append { end: end.clone(), ..world.log.append(1, &[]) };
    assert_eq!((world.ask(&alone), world.asked().0), (Some(Ok(())), vec![]));
    assert_eq!(world.record().map(|record| (record.head, record.tail)), Some((0, end.clone())));
    world.log = Log::new("s", 2);
    let with_event = Append { end: end.clone(), retry_ms: Some(7), ..world.log.append(1, &[event("a")]) };
    for is_stored in [false, true] {
        assert_eq!(world.ask(&with_event), None);
        let (_, numbers) = world.asked();
        assert_eq!(numbers.len(), 1);
        let before = world.record().map(|record| (record.head, record.tail, record.retry_ms));
        assert_eq!(before, Some((0, None, None)), "rule 7: nothing of it without its event");
        if is_stored {
            world.store.stored(numbers[0], "1");
        } else {
            world.store.failed(numbers[0], "the host's disk is full".to_owned());
        }
    }
    let after = world.record().map(|record| (record.head, record.tail, record.retry_ms));
    assert_eq!(after, Some((1, end, Some(7))));
}

#[test]
fn an_end_finds_room_in_a_window_that_has_none() {
    let max = 1_000;
    let store = HostStore::new(Limits { max_bytes: max, ..Limits::default() });
    let world = World { store, ..World::new() };
    world.ask(&world.log.append(1, &[event(&"x".repeat(300))]));
    // Both fit when they are asked for, and what the host has stored the window takes.
    let mut other = Log::new("s", 2);
    let (ticket, first) = (world.ticket(), event(&"x".repeat(100)));
    world.store.append(Ms(0), &other.key, &other.append(1, std::slice::from_ref(&first)), &ticket);
    for number in world.asked().1 {
        world.store.stored(number, &number.to_string());
    }
    assert!(world.store.usage().bytes > max as u64);
    other.events.push(first);
    let more = world.store.append(Ms(0), &other.key, &other.append(2, &[event("more")]), &ticket);
    assert!(matches!(more, Answer::Now(Err(StoreError::Full { .. }))), "{more:?}");
    let end = Append { end: payload("end"), ..other.append(2, &[]) };
    let ended = world.store.append(Ms(0), &other.key, &end, &ticket);
    assert!(matches!(ended, Answer::Now(Ok(()))), "{ended:?}");
}

#[test]
fn what_the_host_stores_of_a_dropped_log_is_not_there_again() {
    for drops_session in [true, false] {
        let world = World::new();
        world.ask(&world.beginning(&[event("a")]));
        let (_, numbers) = world.asked();
        if drops_session {
            world.store.drop_session("s");
        } else {
            world.store.drop_stream(&world.log.key);
        }
        for number in numbers {
            world.store.stored(number, &number.to_string());
        }
        let told = if drops_session { vec![] } else { vec![Err(StoreError::Gone)] };
        assert_eq!((world.answers(), world.record(), world.store.usage()), (told, None, Usage::default()));
    }
}
