//! What all sessions of an engine share.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::Ms;
use crate::engine::clock::{Clock, Randomness};
use crate::engine::drained::Drained;
use crate::engine::live::Live;
use crate::engine::logs::confirmed::Confirmed;
use crate::engine::sessions::building::Building;
use crate::engine::sessions::cell::Cell;
use crate::engine::sessions::places::Places;
use crate::engine::sessions::released::Released;
use crate::engine::stats::Counters;
use crate::engine::tasks::board::{Board, Expiry};
use crate::engine::tasks::cell::CallCell;
use crate::engine::tasks::following::{Followed, Following};
use crate::engine::tasks::query::Query;
use crate::engine::tasks::subscription::SubscriptionCell;
use crate::engine::telemetry::Observation;
use crate::engine::telemetry::Tools;
use crate::engine::{EngineError, Options};
use crate::maps::OwnMap;
use crate::protocol::StreamNonce;
use crate::repeats::Repeats;
use crate::store::{EventStore, Ticket};
use crate::stream::{AUTO, ChainKey, Cuts, Drain, Spread, retry_floor_ms};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// An engine with sessions is ticked at least this often, in milliseconds.
const MAX_PAUSE_MS: u64 = 60_000;
/// The same if the store outlives the process: then it also matters here what other processes do, or stop doing.
const SHARED_PAUSE_MS: u64 = 1_000;

/// What cuts connections is learned of this many servers: who names servers by their paths may have any number.
const MAX_LEARNED: usize = 1_000;

/// Looks that are due in the same span of this length, in milliseconds, are made together.
const LOOK_TOGETHER_MS: u64 = 125;

/// What has something to do at a time.
#[derive(Clone)]
pub(crate) enum Timed {
    Session(Weak<Cell>),
    /// A question to the store from before there was a session. When the time comes, it has taken too long.
    Question(Ticket),
    Call(Weak<CallCell>),
    Query(Weak<Query>),
    Followed(Weak<Followed>),
    Subscription(Weak<SubscriptionCell>),
    Expiry(Expiry),
}

pub(crate) struct Shared {
    pub(crate) me: Weak<Self>,
    pub(crate) options: Options,
    pub(crate) store: Arc<dyn EventStore>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) randomness: Randomness,
    /// The key for the running hash of each log. There is one if the store encrypts what it keeps.
    pub(crate) chain_key: Option<ChainKey>,
    pub(crate) counters: Counters,
    /// Log lines that came too often to be written.
    pub(crate) repeats: Mutex<Repeats>,
    pub(crate) live: Live,
    /// By their names: two servers may have sessions with the same id.
    pub(crate) sessions: Mutex<OwnMap<Arc<str>, Arc<Cell>>>,
    pub(crate) places: Mutex<Places>,
    pub(crate) building: Mutex<Building>,
    /// Sessions that ended here without the host's doing, until the host is told.
    pub(crate) ended: Mutex<Vec<Arc<Cell>>>,
    /// When something is due, and the number of what then has something to do. One entry for each number.
    pub(crate) deadlines: Mutex<BTreeSet<(Ms, u64)>>,
    /// What has something to do, by its number.
    pub(crate) timed: Mutex<OwnMap<u64, Timed>>,
    pub(crate) tasks: Mutex<Board>,
    /// The looks at tasks of other processes that were asked for here, by their names.
    pub(crate) followers: Mutex<OwnMap<Arc<str>, Arc<Query>>>,
    /// The tasks that subscribers here follow.
    pub(crate) followed: Mutex<Following>,
    /// The others may have taken this process for gone, at the last tick.
    pub(crate) was_cut_off: AtomicBool,
    pub(crate) next_sweep: AtomicU64,
    /// The shortest idle time of a session, in milliseconds.
    pub(crate) idle_ms: AtomicU64,
    pub(crate) next_number: AtomicU64,
    pub(crate) connections: AtomicU64,
    /// Requests that the host serves without a session.
    pub(crate) guests: AtomicU64,
    /// Bytes of events that the store has not answered for.
    pub(crate) unanswered: AtomicU64,
    /// What cuts the connections of each server, by its name.
    pub(crate) cuts: Mutex<BTreeMap<Arc<str>, Arc<Mutex<Cuts>>>>,
    /// Streams whose client is expected to come back.
    pub(crate) awaited: AtomicU64,
    /// The last appends that the store confirmed lately, in case it loses them.
    pub(crate) confirmed: Mutex<Confirmed>,
    /// Sessions that were left lately, in case the store loses that.
    pub(crate) released: Mutex<Released>,
    /// A drain that has begun, and since when.
    pub(crate) draining: Mutex<Option<(Drain, Ms)>>,
    pub(crate) drained: Drained,
    /// The number of the first connection that came after the drain began.
    pub(crate) drained_from: AtomicU64,
    /// Sessions that another user has asked for, as the log says.
    pub(crate) warned_foreign: Mutex<VecDeque<Box<str>>>,
    pub(crate) warned_unidentified: AtomicBool,
    pub(crate) warned_unreadable: AtomicBool,
    /// What of relayed requests the log says does not travel.
    pub(crate) warned_dropped: Mutex<BTreeSet<Box<str>>>,
    /// The tools that measurements name.
    pub(crate) tools: Tools,
    pub(crate) closed: AtomicBool,
    pub(crate) forked: AtomicBool,
}

impl Shared {
    pub(crate) fn number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn nonce(&self) -> StreamNonce {
        StreamNonce(self.randomness.take())
    }

    pub(crate) fn salt(&self) -> u64 {
        u64::from_le_bytes(self.randomness.take())
    }

    fn jitter(&self) -> u16 {
        u16::from_le_bytes(self.randomness.take())
    }

    /// How a connection that opens now is paced.
    pub(crate) fn spread(&self, cuts: Option<&Mutex<Cuts>>, now: Ms) -> Spread {
        Spread {
            jitter: self.jitter(),
            floor_ms: retry_floor_ms(self.awaited.load(Ordering::Relaxed)),
            expected: cuts.map(|cuts| lock(cuts).expected(now)).unwrap_or_default(),
        }
    }

    /// A drain with these times, in milliseconds; what is not named is as the options say.
    pub(crate) fn drain_of(&self, retry_ms: Option<u32>, spread_ms: Option<u32>) -> Drain {
        self.options.drain(retry_ms, spread_ms, self.store.has_company())
    }

    /// What cuts the connections of a server, if that is to be learned.
    pub(crate) fn cuts_of(&self, server: &Arc<str>) -> Option<Arc<Mutex<Cuts>>> {
        if self.options.pacing.max_connection_ms != AUTO {
            return None;
        }
        let mut all = lock(&self.cuts);
        if let Some(known) = all.get(server) {
            return Some(Arc::clone(known));
        }
        let cuts = Arc::default();
        if all.len() < MAX_LEARNED {
            all.insert(Arc::clone(server), Arc::clone(&cuts));
        }
        Some(cuts)
    }

    /// When the store has taken too long for what it was asked at this time.
    pub(crate) fn due_after(&self, asked: Ms) -> Ms {
        match self.options.store_timeout_ms {
            0 => Ms::NEVER,
            timeout_ms => asked + timeout_ms,
        }
    }

    /// When to look again at what other processes do: after `pause_ms` milliseconds, or up to half of that earlier, so
    /// that not all sessions look at once. Looks that are due in the same eighth of a second are made together, so that
    /// the store is asked once for many.
    pub(crate) fn next_look(&self, now: Ms, pause_ms: u64) -> Ms {
        let early_ms = pause_ms / 2 * u64::from(self.jitter()) / u64::from(u16::MAX);
        Ms((now + (pause_ms - early_ms)).0.next_multiple_of(LOOK_TOGETHER_MS))
    }

    /// Whether somebody wants observations.
    pub(crate) fn is_observed(&self) -> bool {
        self.options.observer.as_ref().is_some_and(|observer| observer.wants())
    }

    /// Gives the observer what was observed, outside of a change.
    pub(crate) fn observe(&self, observed: Vec<Observation>) {
        if let Some(observer) = self.options.observer.as_ref() {
            observed.into_iter().for_each(|observation| observer.take(observation));
        }
    }

    /// In the child of a fork no lock may be touched: a thread of the store may have held it.
    pub(crate) fn is_forked(&self) -> bool {
        self.forked.load(Ordering::Relaxed)
    }

    pub(crate) fn check(&self) -> Result<(), EngineError> {
        if self.is_forked() {
            Err(EngineError::Forked)
        } else if self.closed.load(Ordering::Relaxed) {
            Err(EngineError::Closed)
        } else {
            Ok(())
        }
    }

    /// Makes a session findable. Returns the session that has its name already, if there is one.
    pub(crate) fn register(&self, cell: &Arc<Cell>) -> Result<Option<Arc<Cell>>, EngineError> {
        let replaced = {
            let mut sessions = lock(&self.sessions);
            // A session that another process has is about to end here, and must not be found meanwhile. A view whose
            // session was adopted gives way to that session.
            if let Some(open) = sessions.get(&cell.name).filter(|open| !open.is_replaced()) {
                return Ok(Some(Arc::clone(open)));
            }
            lock(&self.timed).insert(cell.number, Timed::Session(Arc::downgrade(cell)));
            sessions.insert(Arc::clone(&cell.name), Arc::clone(cell))
        };
        drop(replaced);
        // After it can be found, so that a drain or a close that begins now misses no session.
        let draining = *lock(&self.draining);
        if let Some((drain, _)) = draining {
            cell.drain(drain);
        }
        if let Err(error) = self.check() {
            cell.leave();
            return Err(error);
        }
        Ok(None)
    }

    /// Lets retention remove what has expired. Cheap while nothing is due.
    pub(crate) fn sweep(&self, now: Ms) {
        if now.0 >= self.next_sweep.load(Ordering::Relaxed) {
            // What finishes from now on expires one retention time later at the earliest.
            let next = self.store.sweep(now).min(now + self.options.shortest_retention_ms());
            self.next_sweep.store(next.0, Ordering::Relaxed);
        }
    }

    pub(crate) fn note_idle_ms(&self, idle_ms: u64) {
        let shortest = [idle_ms, self.options.max_detached_ms].into_iter().filter(|ms| *ms != 0).min();
        self.idle_ms.fetch_min(shortest.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How many milliseconds the host may go without a tick. What it does meanwhile may set times that it is not told
    /// of.
    pub(crate) fn max_pause_ms(&self) -> u64 {
        let max = if self.store.outlives_process() { SHARED_PAUSE_MS } else { MAX_PAUSE_MS };
        (self.idle_ms.load(Ordering::Relaxed) / 4).clamp(1, max)
    }

    /// How often the owner of a session hears that its client is connected here, in milliseconds.
    pub(crate) fn sign_ms(&self) -> u64 {
        const MAX_SIGN_MS: u64 = 300_000;
        (self.idle_ms.load(Ordering::Relaxed) / 4).clamp(1, MAX_SIGN_MS)
    }

    /// The session with this number, while it has not ended.
    pub(crate) fn cell(&self, number: u64) -> Option<Arc<Cell>> {
        match lock(&self.timed).get(&number)? {
            Timed::Session(cell) => cell.upgrade(),
            _ => None,
        }
    }

    /// Takes the number of the next that has something to do now, and the time at which that was due.
    pub(crate) fn pop_due(&self, now: Ms) -> Option<(u64, Ms)> {
        let mut deadlines = lock(&self.deadlines);
        let (at, number) = *deadlines.first().filter(|(at, _)| *at <= now)?;
        deadlines.pop_first();
        Some((number, at))
    }

    /// Notes that something is due at `at`, and no longer at `before`.
    pub(crate) fn schedule(&self, before: Ms, at: Ms, number: u64) {
        let mut deadlines = lock(&self.deadlines);
        deadlines.remove(&(before, number));
        if at != Ms::NEVER {
            deadlines.insert((at, number));
        }
    }
}

/// Locks, even after a panic elsewhere: what is behind these locks is consistent between calls.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
