//! A caller of a store, and the log that it should find there.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::Ms;
use crate::protocol::StreamNonce;
use crate::store::{
    Answer, Append, Attach, Attached, AttachedLog, Complete, Epoch, EventStore, Hold, LogPage, Mail, Message,
    Operation, Outcome, ReadLimit, RunningLog, SessionRecord, StoreError, StreamKey, Ticket, Usage,
};
use crate::stream::{Chain, ConnectionId, EventKind, Seq, StoredEvent};

/// A store that has not answered for so long counts as hanging.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// One caller of a store: waits for late outcomes.
pub struct Caller<'a> {
    store: &'a dyn EventStore,
    inbox: Arc<Inbox>,
    now: Ms,
    /// What it writes names this.
    pub epoch: Epoch,
    /// What got no answer in time is asked for again, as the engine does: a disk may stand still for seconds.
    asks_again: bool,
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
        Self { store, inbox: Arc::default(), now, epoch: Epoch { number: 1, salt: 7 }, asks_again: true }
    }

    /// The same caller at another time.
    #[must_use]
    pub fn at(&self, now: Ms) -> Self {
        Self { inbox: Arc::clone(&self.inbox), now, ..*self }
    }

    /// The same caller, writing with another epoch.
    #[must_use]
    pub fn with(&self, epoch: Epoch) -> Self {
        Self { epoch, ..self.at(self.now) }
    }

    /// The same caller, which asks once, and so is told of a time-out.
    #[must_use]
    pub fn once(&self) -> Self {
        Self { asks_again: false, ..self.at(self.now) }
    }

    /// Begins a session, or changes its record.
    ///
    /// # Panics
    /// When the store does not take it.
    pub fn hold(&self, session: &str, record: SessionRecord) {
        let hold = Hold { epoch: self.epoch, seen: None, record: Some(record) };
        assert_eq!(self.try_hold(session, &hold), Ok(Vec::new()), "rule 12: a session begins");
    }

    /// Asks for this hold.
    ///
    /// # Errors
    /// What the store says.
    pub fn try_hold(&self, session: &str, hold: &Hold) -> Result<Vec<RunningLog>, StoreError> {
        let (operation, key) = (Operation::Hold, session_key(session));
        self.until_told(|| match self.store.hold(session, hold, &self.ticket(&key, operation)) {
            Answer::Now(result) => result,
            Answer::Later => match self.wait(key.nonce, operation) {
                Outcome::Held(result) => result,
                other => panic!("rule 9: a hold does not end with {other:?}"),
            },
        })
    }

    /// Begins the session, creates the log, and gives it back with nothing in it.
    ///
    /// # Panics
    /// When the store does not create it.
    pub fn open(&self, session: &str, number: u64) -> Log {
        let log = Log::new(session, number);
        self.hold(session, SessionRecord::default());
        self.open_as(&log);
        log
    }

    /// Creates this log.
    ///
    /// # Panics
    /// When the store does not create it.
    pub fn open_as(&self, log: &Log) {
        self.append(log, 1, &[]).expect("a log can be created");
    }

    /// Appends events at a position.
    pub fn append(&self, log: &Log, first: Seq, events: &[Event]) -> Result<(), StoreError> {
        self.write(log, &log.append(first, events))
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

    /// Ends the log with a payload that is not in it.
    pub fn finish(&self, log: &Log, end: &'static [u8]) -> Result<(), StoreError> {
        self.write(log, &Append { end: Some(Bytes::from_static(end)), ..log.append(log.head() + 1, &[]) })
    }

    /// Asks for this append.
    pub fn write(&self, log: &Log, append: &Append) -> Result<(), StoreError> {
        let operation = Operation::Append;
        let ask = || self.store.append(self.now, &log.key, self.epoch, append, &self.ticket(&log.key, operation));
        self.until_told(|| match ask() {
            Answer::Now(result) => result,
            Answer::Later => match self.wait(log.key.nonce, operation) {
                Outcome::Done(result) => result,
                other => panic!("rule 9: an append does not end with {other:?}"),
            },
        })
    }

    /// Looks for a stream, or for a session alone.
    ///
    /// # Panics
    /// When the store fails.
    pub fn attach(&self, session: &str, attach: &Attach) -> Attached {
        self.try_attach(session, attach).expect("a stream can be looked for")
    }

    /// The same, or what the store says.
    pub fn try_attach(&self, session: &str, attach: &Attach) -> Result<Attached, StoreError> {
        let nonce = attach.stream.unwrap_or(StreamNonce([0; 12]));
        self.until_told(|| self.attached(nonce, self.ask_attach(session, attach)))
    }

    fn ask_attach(&self, session: &str, attach: &Attach) -> Answer<Attached> {
        let nonce = attach.stream.unwrap_or(StreamNonce([0; 12]));
        let key = StreamKey { session: session.into(), nonce };
        self.store.attach(session, attach, &self.ticket(&key, ATTACH))
    }

    fn attached(&self, nonce: StreamNonce, answer: Answer<Attached>) -> Result<Attached, StoreError> {
        match answer {
            Answer::Now(result) => result,
            Answer::Later => match self.wait(nonce, ATTACH) {
                Outcome::Attached(result) => result,
                other => panic!("rule 9: an attach does not end with {other:?}"),
            },
        }
    }

    /// Leaves a message for the owner of nobody's session.
    pub fn post(&self, log: &Log, body: &[u8]) -> Result<Attached, StoreError> {
        self.try_attach(&log.key.session, &posting(log, body))
    }

    /// Leaves many messages, without waiting for each.
    pub fn post_all(&self, logs: &[Log], body: &[u8]) -> Vec<Result<Attached, StoreError>> {
        let asked: Vec<_> = logs.iter().map(|log| self.ask_attach(&log.key.session, &posting(log, body))).collect();
        let told = logs.iter().zip(asked).map(|(log, answer)| match self.attached(log.key.nonce, answer) {
            Err(StoreError::TimedOut { .. }) => self.post(log, body),
            result => result,
        });
        told.collect()
    }

    /// Takes the messages that wait for the owner.
    ///
    /// # Errors
    /// What the store says.
    pub fn take(&self, session: &str, after: u64) -> Result<Vec<Mail>, StoreError> {
        let (operation, key) = (Operation::Take, session_key(session));
        self.until_told(|| match self.store.take(session, self.epoch, after, &self.ticket(&key, operation)) {
            Answer::Now(result) => result,
            Answer::Later => match self.wait(key.nonce, operation) {
                Outcome::Taken(result) => result,
                other => panic!("rule 9: a take does not end with {other:?}"),
            },
        })
    }

    /// Withdraws a message.
    ///
    /// # Errors
    /// What the store says.
    pub fn withdraw(&self, log: &Log, end: &'static [u8]) -> Result<bool, StoreError> {
        let (operation, end) = (Operation::Withdraw, Bytes::from_static(end));
        let ask = || self.store.withdraw(self.now, &log.key, &end, &self.ticket(&log.key, operation));
        self.until_told(|| match ask() {
            Answer::Now(result) => result,
            Answer::Later => match self.wait(log.key.nonce, operation) {
                Outcome::Withdrawn(result) => result,
                other => panic!("rule 9: a withdrawal does not end with {other:?}"),
            },
        })
    }

    /// What the store has of a log of nobody's session besides its events.
    ///
    /// # Panics
    /// When the store fails.
    pub fn log(&self, log: &Log) -> Option<AttachedLog> {
        self.attach(&log.key.session, &Attach { stream: Some(log.key.nonce), ..Attach::default() }).log
    }

    /// What the store knows of a session of this principal.
    ///
    /// # Panics
    /// When the store fails.
    pub fn session(&self, session: &str, principal: Option<&str>) -> Option<SessionRecord> {
        self.attach(session, &Attach { principal: principal.map(Into::into), ..Attach::default() }).session
    }

    /// Reads one page.
    pub fn read(&self, log: &Log, after: Seq, limit: ReadLimit) -> Result<LogPage, StoreError> {
        const CONN: ConnectionId = 7;
        let operation = Operation::Read(CONN);
        match self.store.read(&log.key, after, limit, &self.ticket(&log.key, operation)) {
            Answer::Now(page) => page,
            Answer::Later => match self.wait(log.key.nonce, operation) {
                Outcome::Page(page) => page,
                other => panic!("rule 9: a read ends with a page: {other:?}"),
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
            if page.page.events.is_empty() {
                return events;
            }
            for event in page.page.events {
                assert!(event.seq > events.last().map_or(after, |last| last.seq), "rule 4: pages go forward");
                events.push(event);
            }
        }
    }

    /// Asserts what the store holds, once it has done what it was told.
    ///
    /// # Panics
    /// When it still holds something else after a while.
    pub fn assert_usage(&self, rule: &str, is_right: impl Fn(&Usage) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_right(&self.store.usage()) {
            assert!(Instant::now() < deadline, "{rule}: {:?}", self.store.usage());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Asks until the store has answered: rule 10.
    fn until_told<T>(&self, ask: impl Fn() -> Result<T, StoreError>) -> Result<T, StoreError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let told = ask();
            let is_over = !self.asks_again || Instant::now() >= deadline;
            if is_over || !matches!(told, Err(StoreError::TimedOut { .. })) {
                return told;
            }
        }
    }

    fn ticket(&self, key: &StreamKey, operation: Operation) -> Ticket {
        let to: Arc<dyn Complete> = Arc::clone(&self.inbox) as Arc<dyn Complete>;
        // One operation of a stream at a time: nothing has to tell them apart.
        Ticket { to: Arc::downgrade(&to), nonce: key.nonce, operation, number: 0 }
    }

    fn wait(&self, nonce: StreamNonce, operation: Operation) -> Outcome {
        let outcomes = lock(&self.inbox.outcomes);
        let here = |outcomes: &mut HashMap<StreamNonce, Vec<_>>| outcomes.get(&nonce).is_none_or(Vec::is_empty);
        let waited = self.inbox.arrived.wait_timeout_while(outcomes, PATIENCE, here);
        let (mut outcomes, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let own = outcomes.entry(nonce).or_default();
        let (of, outcome) = own.pop().expect("rule 9: a store that says later answers some time");
        assert!(of == operation && own.is_empty(), "rule 9: {operation:?} has one outcome");
        outcome
    }
}

const ATTACH: Operation = Operation::Attach(7);

fn posting(log: &Log, body: &[u8]) -> Attach {
    let message = Message { about: log.about(), body: Bytes::copy_from_slice(body) };
    Attach { stream: Some(log.key.nonce), message: Some(message), counts: true, ..Attach::default() }
}

/// Stands for a session where a stream is asked for.
fn session_key(session: &str) -> StreamKey {
    StreamKey { session: session.into(), nonce: StreamNonce([0; 12]) }
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

    /// What the log is created with.
    pub(super) fn about(&self) -> Bytes {
        let number = u64::from_be_bytes(std::array::from_fn(|at| self.key.nonce.0[at + 4]));
        format!("about \0 {number}").into()
    }

    pub(super) fn chain_at(&self, seq: Seq) -> Chain {
        let events = self.events.iter().zip(0..seq);
        events.fold(Chain::start(&self.key.nonce.0), |chain, ((_, payload), _)| chain.then(payload, None))
    }

    /// An append of these events at a position, as the engine would ask it, and of nothing else.
    pub fn append(&self, first: Seq, events: &[Event]) -> Append {
        let chain_before = self.chain_at(first - 1);
        let mut chain = chain_before;
        let stored = (first..).zip(events).map(|(seq, (kind, payload))| {
            chain = chain.then(payload, None);
            StoredEvent { seq, kind: *kind, tag: chain.tag(), frame: payload.as_ref().into() }
        });
        Append {
            first,
            events: stored.collect(),
            chain_before: chain_before.0,
            chain: chain.0,
            about: self.about(),
            primes: false,
            end: None,
            paced: None,
        }
    }

    /// Asserts that the store gives exactly this log, from a position on.
    ///
    /// # Panics
    /// When it does not.
    pub fn assert_stored(&self, caller: &Caller<'_>, after: Seq, rule: &str) {
        let Append { events: want, chain, .. } = self.append(1, &self.events);
        let after_index = usize::try_from(after).unwrap_or(usize::MAX).min(want.len());
        let got = caller.read_all(self, after);
        let positions: Vec<Seq> = got.iter().map(|event| event.seq).collect();
        assert_eq!(positions, (after + 1..=self.head()).collect::<Vec<_>>(), "{rule}: positions of {:?}", self.key);
        let same = |(got, want): (&StoredEvent, &StoredEvent)| got.frame == want.frame && got.tag == want.tag;
        assert!(got.iter().zip(&want[after_index..]).all(same), "{rule}: bytes and tags of {:?}", self.key);
        let page = caller.read(self, 0, ReadLimit::default()).expect("the log is readable");
        assert_eq!((page.page.head, page.chain), (self.head(), chain), "{rule}: the end of {:?}", self.key);
    }
}
