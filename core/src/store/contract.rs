//! Puts any store through the rules that are written on [`EventStore`].
//!
//! For the tests of stores: [`check`] panics with the number of the rule that is broken.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::{
    Answer, Complete, EventStore, Operation, Outcome, ReadLimit, Record, StoreError, StreamKey, Ticket, Usage,
};
use crate::Ms;
use crate::protocol::StreamNonce;
use crate::stream::{Chain, ConnectionId, EventKind, Page, Seq, StoredEvent};

/// A store that has not answered for so long counts as hanging.
const PATIENCE: Duration = Duration::from_secs(20);

/// Checks every rule on fresh stores. `make` gives an empty one that takes at least 4,000 events of
/// 100 bytes in a stream, and 20,000 in all, without trimming any.
///
/// # Panics
/// When the store breaks a rule.
pub fn check(make: &dyn Fn() -> Arc<dyn EventStore>) {
    rule_1_a_log_is_named_by_session_and_stream(&*make());
    rule_2_positions_are_dense_and_a_repeated_append_changes_nothing(&*make());
    rule_2_concurrent_appends_to_many_streams_all_count(&*make());
    rule_3_an_event_is_readable_when_it_is_stored(&*make());
    rule_4_events_come_back_in_order_byte_for_byte(&*make());
    rule_4_pages_keep_their_bounds(&*make());
    rule_5_nothing_is_trimmed_below_the_bounds(&*make());
    rule_6_a_finished_log_stays_readable_and_takes_nothing(&*make());
    rule_6_a_synthesized_end_is_kept_with_the_log(&*make());
    rule_7_a_failed_operation_changes_nothing(&*make());
    rule_8_dropping_frees_everything(&*make());
    rule_9_streams_do_not_wait_for_each_other(&*make());
}

/// One caller of a store: waits for late outcomes.
pub struct Caller<'a> {
    store: &'a dyn EventStore,
    inbox: Arc<Inbox>,
    now: Ms,
}

#[derive(Default)]
struct Inbox {
    outcomes: Mutex<HashMap<StreamNonce, Vec<(Operation, Outcome)>>>,
    arrived: Condvar,
}

impl Complete for Inbox {
    fn complete(&self, ticket: &Ticket, outcome: Outcome) {
        lock(&self.outcomes).entry(ticket.nonce).or_default().push((ticket.operation, outcome));
        self.arrived.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Caller<'a> {
    /// A caller whose clock stands at `now`.
    pub fn new(store: &'a dyn EventStore, now: Ms) -> Self {
        Self { store, inbox: Arc::default(), now }
    }

    /// The same caller at another time.
    #[must_use]
    pub fn at(&self, now: Ms) -> Self {
        Self { store: self.store, inbox: Arc::clone(&self.inbox), now }
    }

    /// Creates the log and gives it back with nothing in it.
    ///
    /// # Panics
    /// When the store does not create it.
    pub fn open(&self, session: &str, number: u64) -> Log {
        let log = Log::new(session, number);
        let answer = self.store.open(self.now, &log.key, &self.ticket(&log.key, Operation::Open));
        self.done(&log.key, Operation::Open, answer).expect("a log can be created");
        log
    }

    /// Appends at a position, as the engine would.
    pub fn append(&self, log: &Log, first: Seq, events: &[Event]) -> Result<(), StoreError> {
        let (stored, chain) = log.stored(first, events);
        let ticket = self.ticket(&log.key, Operation::Append);
        let answer = self.store.append(self.now, &log.key, &stored, chain.0, &ticket);
        self.done(&log.key, Operation::Append, answer)
    }

    /// Appends at the end of the log.
    ///
    /// # Panics
    /// When the store does not take the events.
    pub fn push(&self, log: &mut Log, events: &[Event]) {
        let stored = self.append(log, log.head() + 1, events);
        stored.unwrap_or_else(|error| panic!("rule 2: {} events at the head are taken: {error}", events.len()));
        log.events.extend_from_slice(events);
    }

    /// Reads one page.
    pub fn read(&self, log: &Log, after: Seq, limit: ReadLimit) -> Result<Page, StoreError> {
        const CONN: ConnectionId = 7;
        let operation = Operation::Read(CONN);
        match self.store.read(&log.key, after, limit, &self.ticket(&log.key, operation)) {
            Answer::Now(page) => page,
            Answer::Later => match self.wait(&log.key, operation) {
                Outcome::Page(page) => page,
                Outcome::Done(_) => panic!("rule 9: a read ends with a page"),
            },
        }
    }

    /// Reads everything after a position, page by page.
    ///
    /// # Panics
    /// When a page goes back, or the log cannot be read.
    pub fn read_all(&self, log: &Log, after: Seq) -> Vec<StoredEvent> {
        let mut events: Vec<StoredEvent> = Vec::new();
        loop {
            let at = events.last().map_or(after, |event| event.seq);
            let limit = ReadLimit { up_to: Seq::MAX, events: 100, bytes: 64 << 10 };
            let page = self.read(log, at, limit).expect("the log is readable");
            if page.events.is_empty() {
                return events;
            }
            for event in page.events {
                assert!(event.seq > events.last().map_or(after, |last| last.seq), "rule 4: pages go forward");
                events.push(event);
            }
        }
    }

    fn ticket(&self, key: &StreamKey, operation: Operation) -> Ticket {
        let to: Arc<dyn Complete> = Arc::clone(&self.inbox) as Arc<dyn Complete>;
        // One operation of a stream at a time: nothing has to tell them apart.
        Ticket { to: Arc::downgrade(&to), nonce: key.nonce, operation, number: 0 }
    }

    fn done(&self, key: &StreamKey, operation: Operation, answer: Answer<()>) -> Result<(), StoreError> {
        match answer {
            Answer::Now(result) => result,
            Answer::Later => match self.wait(key, operation) {
                Outcome::Done(result) => result,
                Outcome::Page(_) => panic!("rule 9: an append does not end with a page"),
            },
        }
    }

    fn wait(&self, key: &StreamKey, operation: Operation) -> Outcome {
        let outcomes = lock(&self.inbox.outcomes);
        let here = |outcomes: &mut HashMap<StreamNonce, Vec<_>>| outcomes.get(&key.nonce).is_none_or(Vec::is_empty);
        let waited = self.inbox.arrived.wait_timeout_while(outcomes, PATIENCE, here);
        let (mut outcomes, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let own = outcomes.entry(key.nonce).or_default();
        let (of, outcome) = own.pop().expect("rule 9: a store that says later answers some time");
        assert!(of == operation && own.is_empty(), "rule 9: {operation:?} has one outcome");
        outcome
    }
}

/// What a log should hold.
#[derive(Clone)]
pub struct Log {
    /// Its name.
    pub key: StreamKey,
    /// Its events, from position 1.
    pub events: Vec<Event>,
}

/// An event of a check.
pub type Event = (EventKind, Bytes);

/// An ordinary event with some bytes.
pub fn progress(text: &str) -> Event {
    (EventKind::Progress, Bytes::copy_from_slice(text.as_bytes()))
}

impl Log {
    /// The log with this number in this session, which nobody has created yet.
    pub fn new(session: &str, number: u64) -> Self {
        let mut nonce = [0xA5; 12];
        nonce[4..].copy_from_slice(&number.to_be_bytes());
        Self { key: StreamKey { session: session.into(), nonce: StreamNonce(nonce) }, events: Vec::new() }
    }

    /// The last position.
    pub fn head(&self) -> Seq {
        self.events.len() as Seq
    }

    fn chain_at(&self, seq: Seq) -> Chain {
        let events = self.events.iter().zip(0..seq);
        events.fold(Chain::start(&self.key.nonce.0), |chain, ((_, payload), _)| chain.then(payload))
    }

    fn stored(&self, first: Seq, events: &[Event]) -> (Vec<StoredEvent>, Chain) {
        let mut chain = self.chain_at(first - 1);
        let stored = (first..).zip(events).map(|(seq, (kind, payload))| {
            chain = chain.then(payload);
            StoredEvent { seq, kind: *kind, tag: chain.tag(), frame: payload.as_ref().into() }
        });
        (stored.collect(), chain)
    }

    /// Asserts that the store gives exactly this log, from a position on.
    ///
    /// # Panics
    /// When it does not.
    pub fn assert_stored(&self, caller: &Caller<'_>, after: Seq, rule: &str) {
        let (want, chain) = self.stored(1, &self.events);
        let after_index = usize::try_from(after).unwrap_or(usize::MAX).min(want.len());
        let got = caller.read_all(self, after);
        let positions: Vec<Seq> = got.iter().map(|event| event.seq).collect();
        assert_eq!(positions, (after + 1..=self.head()).collect::<Vec<_>>(), "{rule}: positions of {:?}", self.key);
        let same = |(got, want): (&StoredEvent, &StoredEvent)| got.frame == want.frame && got.tag == want.tag;
        assert!(got.iter().zip(&want[after_index..]).all(same), "{rule}: bytes and tags of {:?}", self.key);
        let Some(record) = caller.store.record(&self.key) else { panic!("{rule}: {:?} has a record", self.key) };
        assert_eq!((record.head, record.chain), (self.head(), chain.0), "{rule}: the record of {:?}", self.key);
    }
}

fn rule_1_a_log_is_named_by_session_and_stream(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut logs: Vec<Log> = Vec::new();
    for session in ["s", "s2", "S", ""] {
        logs.extend([1, 2].map(|number| caller.open(session, number)));
    }
    for log in &mut logs {
        caller.push(log, &[progress(&format!("{:?}", log.key))]);
    }
    for log in &logs {
        log.assert_stored(&caller, 0, "rule 1");
    }
    let never_opened = Log::new("s", 3);
    let everything = ReadLimit { up_to: Seq::MAX, events: 10, bytes: 1 << 20 };
    assert!(store.record(&never_opened.key).is_none(), "rule 1: what was not opened is not there");
    assert_eq!(caller.read(&never_opened, 0, everything), Err(StoreError::Gone), "rule 1");
    assert_eq!(caller.append(&never_opened, 1, &[progress("x")]), Err(StoreError::Gone), "rule 1");
}

fn rule_2_positions_are_dense_and_a_repeated_append_changes_nothing(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut log = caller.open("s", 1);
    let batch = [progress("a"), progress("b"), progress("c")];
    assert_eq!(caller.append(&log, 2, &batch), Err(StoreError::OutOfOrder), "rule 2: the first position is 1");
    caller.push(&mut log, &batch);
    let usage = store.usage();
    assert_eq!(caller.append(&log, 1, &batch), Ok(()), "rule 2: the same batch again is a success");
    assert_eq!(store.usage(), usage, "rule 2: and changes nothing");
    log.assert_stored(&caller, 0, "rule 2");
    assert_eq!(
        caller.append(&log, 1, &[progress("x"), progress("y"), progress("z")]),
        Err(StoreError::OutOfOrder),
        "rule 2: another batch there is refused"
    );
    assert_eq!(
        caller.append(&log, 5, &[progress("e")]),
        Err(StoreError::OutOfOrder),
        "rule 2: no position is left out"
    );
    caller.push(&mut log, &[progress("d")]);
    // Opening again is what a second node does.
    let answer = store.open(Ms(0), &log.key, &caller.ticket(&log.key, Operation::Open));
    assert_eq!(caller.done(&log.key, Operation::Open, answer), Ok(()), "rule 2: a log can be opened twice");
    log.assert_stored(&caller, 0, "rule 2");
}

fn rule_2_concurrent_appends_to_many_streams_all_count(store: &dyn EventStore) {
    const THREADS: u64 = 8;
    const STREAMS: u64 = 5;
    const EVENTS: u64 = 200;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let caller = Caller::new(store, Ms(0));
                let session = format!("session {}", thread % 3);
                let mut logs: Vec<Log> = (0..STREAMS).map(|at| caller.open(&session, thread * STREAMS + at)).collect();
                for event in 0..EVENTS {
                    for log in &mut logs {
                        caller.push(log, &[progress(&format!("{thread} {event}"))]);
                    }
                }
                for log in &logs {
                    log.assert_stored(&caller, 0, "rule 2 (F-13)");
                }
            });
        }
    });
    let usage = store.usage();
    assert_eq!((usage.sessions, usage.streams), (3, THREADS * STREAMS), "rule 2");
    assert_eq!(usage.events, THREADS * STREAMS * EVENTS, "rule 2 (F-13)");
}

fn rule_3_an_event_is_readable_when_it_is_stored(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut log = caller.open("s", 1);
    log.assert_stored(&caller, 0, "rule 3");
    for number in 0..50 {
        caller.push(&mut log, &[progress(&format!("event {number}"))]);
        log.assert_stored(&caller, log.head() - 1, "rule 3");
    }
}

fn rule_4_events_come_back_in_order_byte_for_byte(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut log = caller.open("s", 1);
    let every_byte: Vec<u8> = (0..=255).collect();
    let kinds = [EventKind::Progress, EventKind::Answer, EventKind::Question];
    for (number, kind) in (0..30).zip(kinds.into_iter().cycle()) {
        let payload = every_byte.repeat(number);
        caller.push(&mut log, &[(kind, payload.into()), (kind, Bytes::new())]);
    }
    let got = caller.read_all(&log, 0);
    for (event, (kind, payload)) in got.iter().zip(&log.events) {
        assert!(event.kind == *kind && *event.frame == **payload, "rule 4: position {}", event.seq);
    }
    for after in [0, 1, 17, 59, 60] {
        log.assert_stored(&caller, after, "rule 4");
    }
}

fn rule_4_pages_keep_their_bounds(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut log = caller.open("s", 1);
    let events: Vec<Event> = (0..20).map(|_| progress(&"x".repeat(100))).collect();
    caller.push(&mut log, &events);
    let page = |after, up_to, events, bytes| {
        let page = caller.read(&log, after, ReadLimit { up_to, events, bytes }).expect("the log is readable");
        assert_eq!((page.head, page.low), (20, 1), "rule 4: head and low do not depend on the bounds");
        page.events.iter().map(|event| event.seq).collect::<Vec<_>>()
    };
    assert_eq!(page(0, 20, 3, 1 << 20), [1, 2, 3], "rule 4: events");
    assert_eq!(page(5, 7, 100, 1 << 20), [6, 7], "rule 4: last position");
    assert_eq!(page(0, 20, 100, 350), [1, 2, 3], "rule 4: bytes");
    assert_eq!(page(4, 20, 100, 1), [5], "rule 4: at least one event");
    assert_eq!(page(20, 20, 100, 1 << 20), [0; 0], "rule 4: nothing is after the head");
    assert_eq!(page(7, 7, 100, 1 << 20), [0; 0], "rule 4: an empty range");
    assert_eq!(page(25, 40, 100, 1 << 20), [0; 0], "rule 4: beyond the head");
    let tag_at = |after| {
        let limit = ReadLimit { up_to: 20, events: 1, bytes: 1 };
        caller.read(&log, after, limit).expect("the log is readable").tag_at
    };
    for after in 0..=20 {
        assert_eq!(tag_at(after), Some(log.chain_at(after).tag()), "rule 4: the tag at {after}");
    }
    assert_eq!(tag_at(21), None, "rule 4: nothing has a tag beyond the head");
}

fn rule_5_nothing_is_trimmed_below_the_bounds(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut log = caller.open("s", 1);
    for _ in 0..40 {
        let events: Vec<Event> = (0..100).map(|_| progress(&"x".repeat(100))).collect();
        caller.push(&mut log, &events);
    }
    let mut question = (EventKind::Question, Bytes::from_static(b"question"));
    caller.push(&mut log, std::slice::from_ref(&question));
    let asked = log.head();
    store.settle(&log.key, asked);
    store.settle(&log.key, asked + 7);
    store.settle(&log.key, 1);
    log.assert_stored(&caller, 0, "rule 5: an answered question is still readable");
    question.0 = EventKind::Terminal;
    caller.push(&mut log, &[question]);
    log.assert_stored(&caller, 0, "rule 5");
    assert_eq!(store.usage().trimmed, 0, "rule 5");
}

fn rule_6_a_finished_log_stays_readable_and_takes_nothing(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[progress("a"), (EventKind::Terminal, Bytes::from_static(b"end"))]);
    let Some(record) = store.record(&log.key) else { panic!("rule 6: a finished log has a record") };
    assert!(record.finished && record.tail.is_none(), "rule 6: {record:?}");
    let last = [(EventKind::Terminal, Bytes::from_static(b"end"))];
    assert_eq!(caller.append(&log, 2, &last), Ok(()), "rule 6: the terminal again is a success (rule 2)");
    assert_eq!(caller.append(&log, 3, &[progress("late")]), Err(StoreError::Gone), "rule 6: nothing more");
    store.finish(Ms(0), &log.key, Bytes::from_static(b"other"));
    assert_eq!(store.record(&log.key), Some(record), "rule 6: the first end wins (I13)");
    store.sweep(Ms(1));
    log.assert_stored(&caller, 0, "rule 6");
}

fn rule_6_a_synthesized_end_is_kept_with_the_log(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[progress("a")]);
    let tail = Bytes::from_static(b"cancelled");
    store.finish(Ms(0), &log.key, tail.clone());
    let chain = log.chain_at(1).0;
    let want = Record { head: 1, low: 1, finished: true, tail: Some(tail), chain, retry_ms: None };
    assert_eq!(store.record(&log.key), Some(want), "rule 6");
    assert_eq!(caller.append(&log, 2, &[progress("late")]), Err(StoreError::Gone), "rule 6: nothing more");
    log.assert_stored(&caller, 0, "rule 6");
    store.set_retry(&log.key, 700);
    let retry_ms = store.record(&log.key).and_then(|record| record.retry_ms);
    assert_eq!(retry_ms, Some(700), "rule 6: later readers get the stream's own delay");
    // What is not there cannot be finished, and is not there afterwards.
    let other = Log::new("s", 2);
    store.set_retry(&other.key, 700);
    store.finish(Ms(0), &other.key, Bytes::new());
    assert!(store.record(&other.key).is_none(), "rule 6");
}

fn rule_7_a_failed_operation_changes_nothing(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut log = caller.open("s", 1);
    let mut other = caller.open("s", 2);
    caller.push(&mut log, &[progress("a")]);
    let usage = store.usage();
    assert!(caller.append(&log, 3, &[progress("x")]).is_err());
    assert!(caller.append(&Log::new("t", 1), 1, &[progress("x")]).is_err());
    assert_eq!(store.usage(), usage, "rule 7");
    caller.push(&mut log, &[progress("b")]);
    caller.push(&mut other, &[progress("c")]);
    log.assert_stored(&caller, 0, "rule 7");
    other.assert_stored(&caller, 0, "rule 7");
}

fn rule_8_dropping_frees_everything(store: &dyn EventStore) {
    let empty = store.usage();
    let caller = Caller::new(store, Ms(0));
    let mut logs: Vec<Log> = (0..6).map(|number| caller.open(["s", "t"][usize::from(number > 3)], number)).collect();
    for log in &mut logs {
        caller.push(log, &[progress("a"), (EventKind::Question, Bytes::from_static(b"q"))]);
    }
    caller.push(&mut logs[0], &[(EventKind::Terminal, Bytes::from_static(b"end"))]);
    store.finish(Ms(0), &logs[1].key, Bytes::from_static(b"tail"));
    store.drop_stream(&logs[2].key);
    store.drop_stream(&logs[2].key);
    assert!(store.record(&logs[2].key).is_none(), "rule 8");
    assert_eq!((store.usage().sessions, store.usage().streams, store.usage().events), (2, 5, 11), "rule 8");
    store.drop_session("s");
    store.drop_session("s");
    store.drop_session("never there");
    for log in &logs[..4] {
        assert!(store.record(&log.key).is_none(), "rule 8 (F-54)");
        assert_eq!(caller.append(log, log.head() + 1, &[progress("late")]), Err(StoreError::Gone), "rule 8");
    }
    logs[4].assert_stored(&caller, 0, "rule 8: another session keeps its own");
    store.drop_session("t");
    store.sweep(Ms(u64::MAX / 2));
    assert_eq!(store.usage(), Usage { trimmed: store.usage().trimmed, ..empty }, "rule 8 (F-54): nothing is left");
}

fn rule_9_streams_do_not_wait_for_each_other(store: &dyn EventStore) {
    // Readers and writers of eight streams at once; a store that lets them wait in a circle hangs here.
    std::thread::scope(|scope| {
        for number in 0..8 {
            scope.spawn(move || {
                let caller = Caller::new(store, Ms(0));
                let mut log = caller.open("s", number);
                for round in 0..100 {
                    caller.push(&mut log, &[progress(&format!("{number} {round}"))]);
                    let read = caller.read_all(&log, log.head() - 1);
                    assert_eq!(read.len(), 1, "rule 9");
                    store.usage();
                    store.sweep(Ms(round));
                    store.settle(&log.key, round);
                }
                log.assert_stored(&caller, 0, "rule 9");
            });
        }
    });
}
