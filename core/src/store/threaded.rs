//! A store that answers on threads of its own, for the tests of hosts: the memory store behind a delay.
//!
//! Payloads order faults: an event that holds [`FAILS`] is not stored, at one that holds [`PANICS`] the store panics, one that
//! holds [`HANGS`] gets no answer when it is first asked for, and a page with one that holds [`UNREADABLE`] or [`STALLS`]
//! cannot be read, or is not answered.

use std::collections::HashSet;
use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use super::{
    Answer, Ask, Backend, BlockingBackend, EventStore, Fault, Limits, MemoryStore, Op, Outcome, Queued, StoreError,
    StreamKey, Usage, Watcher,
};
use crate::Ms;
use crate::protocol::StreamNonce;
use crate::stream::{Seq, StoredEvent};
use crate::sync::{Arc, Mutex, PoisonError, thread};

/// An event with this in it is not stored.
pub const FAILS: &str = "store-fails";
/// An event with this in it gets no answer before it is asked for again.
pub const HANGS: &str = "store-hangs";
/// A page with such an event in it cannot be read.
pub const UNREADABLE: &str = "store-unreadable";
/// The code of the store panics when it is asked to store such an event.
pub const PANICS: &str = "store-panics";
/// A page with such an event in it gets no answer.
pub const STALLS: &str = "store-stalls";

/// What a driver's error may carry; no client may ever see it (I9).
const SECRET: &str = "redis://user:hunter2@10.0.0.7:6379 is gone";

/// Sessions share these.
const THREADS: usize = 2;
/// Nothing is tried for so long.
const TIMEOUT_MS: u64 = 3_600_000;

/// The memory store, answering later and elsewhere.
pub type ThreadedStore = Queued<Arc<Delayed>>;

/// The memory store behind a delay.
pub struct Delayed {
    memory: MemoryStore,
    delay: Duration,
    began: Instant,
    /// Positions that got no answer once.
    hung: Mutex<HashSet<(StreamNonce, Seq)>>,
}

impl ThreadedStore {
    /// A store that answers after `delay_ms`.
    ///
    /// # Panics
    /// When there are no threads.
    pub fn delayed(limits: Limits, delay_ms: u64) -> Self {
        let delayed = Delayed {
            memory: MemoryStore::new(limits),
            delay: Duration::from_millis(delay_ms),
            began: Instant::now(),
            hung: Mutex::default(),
        };
        Self::start(Arc::new(delayed), &limits, THREADS, TIMEOUT_MS).expect("a store for tests gets its threads")
    }
}

impl Delayed {
    fn now(&self) -> Ms {
        Ms(self.began.elapsed().as_millis().try_into().unwrap_or(u64::MAX))
    }

    /// None where there is no answer.
    fn one(&self, op: &Op) -> Option<Outcome> {
        let Op { session, ask, ticket, .. } = op;
        let key = |nonce: &StreamNonce| StreamKey { session: Arc::clone(session), nonce: *nonce };
        let (memory, ticket) = (&self.memory, ticket.as_ref());
        match ask {
            Ask::Release { epoch } => memory.release(session, *epoch),
            Ask::Settle { nonce, epoch, seq } => memory.settle(&key(nonce), *epoch, *seq),
            Ask::DropStream { nonce, epoch } => memory.drop_stream(&key(nonce), *epoch),
            Ask::DropSession { epoch } => memory.drop_session(session, *epoch),
            Ask::Hold(hold) => return Some(Outcome::Held(result(memory.hold(session, hold, ticket?)))),
            Ask::Append { nonce, append, .. } if holds(&append.events, HANGS) && self.is_new(*nonce, append.first) => {}
            Ask::Append { append, .. } if holds(&append.events, FAILS) => return Some(Outcome::Done(Err(secret()))),
            Ask::Append { nonce, epoch, append } => {
                let appended = memory.append(self.now(), &key(nonce), *epoch, append, ticket?);
                return Some(Outcome::Done(result(appended)));
            }
            Ask::Attach(attach) => {
                let found = result(memory.attach(session, attach, ticket?));
                let log = found.as_ref().ok().and_then(|found| found.log.as_ref());
                let events = log.map(|log| log.page.page.events.clone()).unwrap_or_default();
                return shown(&events, found).map(Outcome::Attached);
            }
            Ask::Take { epoch, after } => {
                return Some(Outcome::Taken(result(memory.take(session, *epoch, *after, ticket?))));
            }
            Ask::Withdraw { nonce, end } => {
                let withdrawn = memory.withdraw(self.now(), &key(nonce), end, ticket?);
                return Some(Outcome::Withdrawn(result(withdrawn)));
            }
            Ask::Read { nonce, after, limit } => {
                let page = result(memory.read(&key(nonce), *after, *limit, ticket?));
                let events = page.as_ref().map(|page| page.page.events.clone()).unwrap_or_default();
                return shown(&events, page).map(Outcome::Page);
            }
            Ask::Keep { .. } => {}
        }
        None
    }

    fn is_new(&self, nonce: StreamNonce, first: Seq) -> bool {
        self.hung.lock().unwrap_or_else(PoisonError::into_inner).insert((nonce, first))
    }
}

/// What is said of a page with these events.
fn shown<T>(events: &[StoredEvent], found: Result<T, StoreError>) -> Option<Result<T, StoreError>> {
    (!holds(events, STALLS)).then(|| if holds(events, UNREADABLE) { Err(secret()) } else { found })
}

fn secret() -> StoreError {
    StoreError::Failed(SECRET.to_owned())
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

impl Backend for Delayed {
    fn watch(&self, _session: &Arc<str>, _watcher: &Watcher) {}

    fn unwatch(&self, _session: &str, _watcher: &Watcher) {}

    fn sweep(&self) {
        self.memory.sweep(self.now());
    }

    fn usage(&self) -> Usage {
        self.memory.usage()
    }

    fn outlives_process(&self) -> bool {
        false
    }
}

impl BlockingBackend for Delayed {
    fn run(&self, batch: &[Op]) -> Result<Vec<Option<Outcome>>, Fault> {
        if batch.iter().any(|op| matches!(&op.ask, Ask::Append { append, .. } if holds(&append.events, PANICS))) {
            // Without the hook, which has nothing to say of a fault that is ordered.
            resume_unwind(Box::new(PANICS));
        }
        let last = batch.iter().map(Op::since).max();
        thread::sleep(
            last.map_or(Duration::ZERO, |last| (last + self.delay).saturating_duration_since(Instant::now())),
        );
        Ok(batch.iter().map(|op| self.one(op)).collect())
    }
}
