//! A store that answers on threads of its own, for the tests of hosts: the memory store behind a delay.
//!
//! Whatever has an answer is answered later, by a thread that the host does not know. Payloads order faults:
//! an event that holds [`FAILS`] is not stored, one that holds [`HANGS`] gets no answer when it is first asked for, and a
//! page with one that holds [`UNREADABLE`] or [`STALLS`] cannot be read, or is not answered.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::{
    Answer, Append, Attach, Attached, Epoch, EventStore, Hold, Limits, LogPage, MemoryStore, Name, Outcome, ReadLimit,
    RunningLog, StoreError, StreamKey, Ticket, Usage,
};
use crate::Ms;
use crate::protocol::StreamNonce;
use crate::stream::{Seq, StoredEvent};
use crate::sync::mpsc::{Receiver, Sender, channel};
use crate::sync::thread;
use crate::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// An event with this in it is not stored.
pub const FAILS: &str = "store-fails";
/// An event with this in it gets no answer before it is asked for again.
pub const HANGS: &str = "store-hangs";
/// A page with such an event in it cannot be read.
pub const UNREADABLE: &str = "store-unreadable";
/// A page with such an event in it gets no answer.
pub const STALLS: &str = "store-stalls";

/// What a driver's error may carry; no client may ever see it (I9).
const SECRET: &str = "redis://user:hunter2@10.0.0.7:6379 is gone";

/// Sessions share these; the operations of one session stay in order.
const THREADS: usize = 2;

type Work = Box<dyn FnOnce(&MemoryStore) + Send>;

/// The memory store, answering later and elsewhere.
pub struct ThreadedStore {
    memory: Arc<MemoryStore>,
    delay: Duration,
    threads: OnceLock<Vec<Sender<(Instant, Work)>>>,
    abandoned: Arc<Mutex<HashSet<Name>>>,
    /// Positions that got no answer once.
    hung: Arc<Mutex<HashSet<(StreamNonce, Seq)>>>,
}

impl ThreadedStore {
    /// A store that answers after `delay_ms`. Its threads start with the first operation and end with it.
    pub fn new(limits: Limits, delay_ms: u64) -> Self {
        Self {
            memory: Arc::new(MemoryStore::new(limits)),
            delay: Duration::from_millis(delay_ms),
            threads: OnceLock::new(),
            abandoned: Arc::default(),
            hung: Arc::default(),
        }
    }

    fn later(&self, session: &str, ticket: &Ticket, work: impl FnOnce(&MemoryStore, &Ticket) + Send + 'static) {
        let ticket = ticket.clone();
        let abandoned = Arc::clone(&self.abandoned);
        self.queue(session, move |memory| {
            if !lock(&abandoned).remove(&ticket.name()) {
                work(memory, &ticket);
            }
        });
    }

    /// In order with what was asked of the same session before.
    fn queue(&self, session: &str, work: impl FnOnce(&MemoryStore) + Send + 'static) {
        let work: Work = Box::new(work);
        let threads = self.threads.get_or_init(|| (0..THREADS).map(|_| self.start()).collect());
        let thread = &threads[session.bytes().map(usize::from).sum::<usize>() % THREADS];
        thread.send((Instant::now() + self.delay, work)).expect("a store's thread lives as long as the store");
    }

    fn start(&self) -> Sender<(Instant, Work)> {
        let (sender, jobs): (_, Receiver<(Instant, Work)>) = channel();
        let memory = Arc::clone(&self.memory);
        // Not joined: the last one to let go of the store may be its own thread.
        thread::spawn(move || {
            for (due, work) in jobs {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                work(&memory);
            }
        });
        sender
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn holds(events: &[StoredEvent], word: &str) -> bool {
    events.iter().any(|event| event.frame.windows(word.len()).any(|part| part == word.as_bytes()))
}

fn result<T>(answer: Answer<T>) -> Result<T, StoreError> {
    match answer {
        Answer::Now(result) => result,
        Answer::Later => unreachable!("the memory store answers at once"),
    }
}

impl EventStore for ThreadedStore {
    fn hold(&self, session: &str, hold: &Hold, ticket: &Ticket) -> Answer<Vec<RunningLog>> {
        let (name, hold) = (session.to_owned(), hold.clone());
        self.later(session, ticket, move |memory, ticket| {
            ticket.complete(Outcome::Held(result(memory.hold(&name, &hold, ticket))));
        });
        Answer::Later
    }

    fn append(&self, now: Ms, key: &StreamKey, epoch: Epoch, append: &Append, ticket: &Ticket) -> Answer<()> {
        let (name, append) = (key.clone(), append.clone());
        let hung = Arc::clone(&self.hung);
        self.later(&key.session, ticket, move |memory, ticket| {
            if holds(&append.events, HANGS) && lock(&hung).insert((name.nonce, append.first)) {
                return;
            }
            let outcome = if holds(&append.events, FAILS) {
                Err(StoreError::Failed(SECRET.to_owned()))
            } else {
                result(memory.append(now, &name, epoch, &append, ticket))
            };
            ticket.complete(Outcome::Done(outcome));
        });
        Answer::Later
    }

    fn abandon(&self, _key: &StreamKey, ticket: &Ticket) {
        lock(&self.abandoned).insert(ticket.name());
    }

    fn attach(&self, session: &str, attach: &Attach, ticket: &Ticket) -> Answer<Attached> {
        let (name, attach) = (session.to_owned(), attach.clone());
        self.later(session, ticket, move |memory, ticket| {
            let attached = result(memory.attach(&name, &attach, ticket));
            let log = attached.as_ref().ok().and_then(|attached| attached.log.as_ref());
            let holds = |word| log.is_some_and(|log| holds(&log.page.page.events, word));
            if holds(STALLS) {
                return;
            }
            let outcome = if holds(UNREADABLE) { Err(StoreError::Failed(SECRET.to_owned())) } else { attached };
            ticket.complete(Outcome::Attached(outcome));
        });
        Answer::Later
    }

    fn read(&self, key: &StreamKey, after: Seq, limit: ReadLimit, ticket: &Ticket) -> Answer<LogPage> {
        let name = key.clone();
        self.later(&key.session, ticket, move |memory, ticket| {
            let page = result(memory.read(&name, after, limit, ticket));
            let holds = |word| page.as_ref().is_ok_and(|page| holds(&page.page.events, word));
            if holds(STALLS) {
                return;
            }
            let outcome = if holds(UNREADABLE) { Err(StoreError::Failed(SECRET.to_owned())) } else { page };
            ticket.complete(Outcome::Page(outcome));
        });
        Answer::Later
    }

    fn release(&self, session: &str, epoch: Epoch) {
        let name = session.to_owned();
        self.queue(session, move |memory| memory.release(&name, epoch));
    }

    fn settle(&self, key: &StreamKey, epoch: Epoch, seq: Seq) {
        let name = key.clone();
        self.queue(&key.session, move |memory| memory.settle(&name, epoch, seq));
    }

    fn drop_stream(&self, key: &StreamKey, epoch: Epoch) {
        let name = key.clone();
        self.queue(&key.session, move |memory| memory.drop_stream(&name, epoch));
    }

    fn drop_session(&self, session: &str, epoch: Epoch) {
        let name = session.to_owned();
        self.queue(session, move |memory| memory.drop_session(&name, epoch));
    }

    fn sweep(&self, now: Ms) -> Ms {
        self.memory.sweep(now)
    }

    fn usage(&self) -> Usage {
        self.memory.usage()
    }

    fn answers_elsewhere(&self) -> bool {
        true
    }
}
