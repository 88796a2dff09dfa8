//! The engine: drives the machines of all sessions and performs their outputs.
//!
//! Synchronous at heart. With a store that answers at once, everything from
//! [`SessionHandle::send`] to bytes ready for a connection happens on the caller's thread. A
//! connection is pulled: its writer calls [`Connection::poll`] when it can take more, and waits for
//! its [`Wake`] when there is nothing. So a slow reader holds no memory and delays nobody (I10).
//!
//! Time: the host calls [`Engine::tick`] when [`Engine::next_deadline`] has come.
//!
//! The [crate] shows it at work.

mod clock;
mod connections;
mod drained;
mod durations;
mod errors;
mod exposition;
mod health;
mod lines;
mod live;
mod logs;
mod options;
mod perform;
mod records;
mod refusals;
mod requesters;
mod sessions;
mod shared;
mod stats;
mod tasks;
mod telemetry;

use std::fmt;

pub use clock::{Clock, ManualClock, RandomSource, SystemClock, SystemRandomness};
pub use connections::{Chunk, Connection, NoWake, Poll, Wake};
pub use durations::{DURATION_BOUNDS_MS, Durations, Histogram};
pub use errors::EngineError;
pub use exposition::EXPOSITION_TYPE;
pub use health::{Condition, Health};
pub use live::{LiveAnswer, live_answer};
pub use logs::hook_log::{HookLog, HookReplay, OnReplayed, OnStored};
pub use options::{
    AUTO_WORD, NUMBER_OPTIONS, NumberOption, OnStoreFailure, Options, PACE_FLAGS, PACE_OPTIONS, PaceFlag,
};
pub use sessions::{
    Adopted, LookUp, OfferWake, OutgoingMessage, Posted, SendOutcome, Sent, SessionHandle, WeakSession,
};
pub use stats::{Across, COUNTERS, Counter, Family as CounterFamily, Kind as CounterKind, Stats};
pub use tasks::{CallOptions, CallStep, Context, TaskAnswer, TaskCall, TaskQuery, TaskSubscription};
pub use telemetry::{Attribute, CallSpan, Observation, Observer, Spanned, Value, boundaries};

pub use crate::session::{
    Outcome as CallOutcome, OutgoingKind, Pace, Paces, SynthesizedEnd, end_payload, nameless_end,
};
pub use crate::stream::{AUTO, CloseReason, Drain, Pacing};

use crate::Ms;
use crate::exchange::Principal;
use crate::protocol::{Dialect, Refusal};
use crate::store::{MemoryStore, Outcome, SessionId, StoreError, session_name};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Arc, Mutex};
use clock::Randomness;
use drained::Drained;
use live::Live;
use logs::confirmed::Confirmed;
use sessions::cell::{Cell, Names, State};
use sessions::places::Places;
use sessions::sending::MAX_UNANSWERED;
use shared::{Shared, Timed, lock};
use stats::Counters;
use telemetry::Tools;

/// The engine. Cheap to clone; all clones are one engine.
#[derive(Clone)]
pub struct Engine(Arc<Shared>);

/// See [`Engine::guest`].
pub struct Guest(Arc<Shared>);

impl Guest {
    fn of(shared: &Arc<Shared>) -> Self {
        shared.guests.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shared))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.guests.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guest")
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine with these options.
    pub fn new(options: Options) -> Self {
        let mut options = options;
        let store = options.store.clone().unwrap_or_else(|| Arc::new(MemoryStore::new(options.limits)));
        if store.own_ids().is_some() {
            // Events are stored one by one, so that each gets its id and each failure concerns one event.
            options.pacing.max_batch = 1;
        }
        let clock = options.clock.clone().unwrap_or_else(|| Arc::new(SystemClock::default()));
        let randomness = Randomness::new(options.randomness.clone().unwrap_or_else(|| Arc::new(SystemRandomness)));
        Self(Arc::new_cyclic(|me| Shared {
            me: me.clone(),
            chain_key: store.chain_key(),
            options,
            store,
            clock,
            randomness,
            counters: Counters::default(),
            repeats: Mutex::default(),
            live: Live::default(),
            sessions: Mutex::default(),
            places: Mutex::default(),
            building: Mutex::default(),
            ended: Mutex::default(),
            deadlines: Mutex::default(),
            tasks: Mutex::default(),
            followers: Mutex::default(),
            followed: Mutex::default(),
            timed: Mutex::default(),
            was_cut_off: AtomicBool::new(false),
            next_sweep: AtomicU64::new(0),
            idle_ms: AtomicU64::new(u64::MAX),
            next_number: AtomicU64::new(1),
            connections: AtomicU64::new(0),
            guests: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
            cuts: Mutex::default(),
            awaited: AtomicU64::new(0),
            confirmed: Mutex::default(),
            released: Mutex::default(),
            draining: Mutex::default(),
            drained: Drained::default(),
            drained_from: AtomicU64::new(0),
            warned_foreign: Mutex::default(),
            warned_unidentified: AtomicBool::new(false),
            warned_unreadable: AtomicBool::new(false),
            warned_dropped: Mutex::default(),
            tools: Tools::default(),
            closed: AtomicBool::new(false),
            forked: AtomicBool::new(false),
        }))
    }

    /// Opens a session. `wake` is told, with `key`, when a [`Sent::Pending`] message has its outcome
    /// or when operations wait for the host's own store.
    ///
    /// The session counts for the bounds once it [has its place](SessionHandle::take_place).
    ///
    /// # Errors
    /// [`EngineError::SessionExists`], [`EngineError::Closed`], [`EngineError::Forked`].
    pub fn open_session<'a>(
        &self,
        id: impl Into<SessionId<'a>>,
        principal: Option<&Principal>,
        dialect: &'static Dialect,
        wake: Arc<dyn Wake>,
        key: u64,
    ) -> Result<SessionHandle, EngineError> {
        let shared = &self.0;
        shared.check()?;
        let now = shared.clock.now();
        let cell = Cell::new(Arc::clone(shared), Names::from(id.into()), now, principal, dialect, (wake, key));
        if shared.register(&cell)?.is_some() {
            return Err(EngineError::SessionExists);
        }
        cell.set_idle_ms(shared.options.session_idle_ms);
        Counters::add(&shared.counters.sessions_opened, 1);
        tracing::debug!(target: "tailrope", session = %cell.name, "session opened");
        Ok(SessionHandle::new(cell))
    }

    /// The open session with this id, if this principal may see it.
    pub fn session<'a>(&self, id: impl Into<SessionId<'a>>, principal: Option<&Principal>) -> Option<SessionHandle> {
        if self.0.is_forked() {
            return None;
        }
        let cell = lock(&self.0.sessions).get(&session_name(id)).cloned()?;
        let found = cell.belongs_to(principal) && !cell.is_replaced();
        found.then(|| SessionHandle::new(cell))
    }

    /// When [`tick`](Self::tick) is due.
    pub fn next_deadline(&self) -> Ms {
        if self.0.is_forked() {
            return Ms::NEVER;
        }
        // Streams finish in quick succession: they do not need a tick each.
        let sweep = Ms(self.0.next_sweep.load(Ordering::Relaxed)) + SWEEP_PAUSE_MS;
        if !lock(&self.0.ended).is_empty() {
            return Ms(0);
        }
        lock(&self.0.deadlines).first().map_or(sweep, |(at, _)| sweep.min(*at))
    }

    /// Milliseconds until [`tick`](Self::tick) is due while there are sessions.
    pub fn due_in_ms(&self) -> u64 {
        self.next_deadline().since(self.0.clock.now()).min(self.0.max_pause_ms())
    }

    /// Does what is due: wakes connections that have something to write, and lets retention remove what has expired.
    ///
    /// Returns the sessions that are idle, or that have been without their client for `max_detached_ms`. The host ends
    /// them, unless it has a request for one that the engine has not seen yet. A session that the host keeps is
    /// returned again later. Sessions that gave way to newer ones, that another process took over, or that a drain left
    /// to other processes are returned once: these [have ended](SessionHandle::has_ended).
    pub fn tick(&self) -> Vec<SessionHandle> {
        if self.0.is_forked() {
            return Vec::new();
        }
        let ended = std::mem::take(&mut *lock(&self.0.ended));
        let (ended, ending): (Vec<_>, Vec<_>) = ended.into_iter().partition(|cell| cell.has_ended());
        lock(&self.0.ended).extend(ending);
        let mut idle: Vec<_> = ended.into_iter().map(SessionHandle::new).collect();
        let now = self.0.clock.now();
        // The rest stays due at once, so that the host's other work gets its turn in between.
        for _ in 0..TICK_SESSIONS {
            let Some((number, at)) = self.0.pop_due(now) else { break };
            let timed = lock(&self.0.timed).get(&number).cloned();
            match timed {
                Some(Timed::Session(cell)) => {
                    idle.extend(cell.upgrade().filter(|cell| cell.tick(at)).map(SessionHandle::new));
                }
                Some(Timed::Question(ticket)) => {
                    let error = StoreError::TimedOut { after_ms: self.0.options.store_timeout_ms };
                    if let Some(to) = ticket.to.upgrade() {
                        to.complete(&ticket, Outcome::failed(ticket.operation, error));
                    }
                }
                Some(Timed::Call(cell)) => {
                    if let Some(cell) = cell.upgrade() {
                        cell.tick(at);
                    }
                }
                Some(Timed::Query(query)) => {
                    if let Some(query) = query.upgrade() {
                        query.tick(at);
                    }
                }
                Some(Timed::Followed(followed)) => {
                    if let Some(followed) = followed.upgrade() {
                        followed.tick(at);
                    }
                }
                Some(Timed::Subscription(subscription)) => {
                    if let Some(subscription) = subscription.upgrade() {
                        subscription.tick(at);
                    }
                }
                Some(Timed::Expiry(expiry)) => self.0.task_expired(number, &expiry),
                None => {}
            }
        }
        lock(&self.0.confirmed).trim(now, self.0.options.shortest_retention_ms());
        self.0.note_cut_off();
        self.0.store.tell_away();
        self.0.write_repeats();
        self.0.live.rest(now);
        self.0.forget_released(now);
        self.0.sweep(now);
        idle
    }

    /// Call this when the process is going away. Every connection is closed with a `retry`. Connections that open from
    /// now on get their priming event, and end, too. Calls of clients that cannot resume get an error, and their later
    /// calls are refused. So is every `initialize`.
    ///
    /// A session that other processes can go on with is left to them once nothing runs in it: it [ends
    /// here](SessionHandle::has_ended).
    pub fn drain(&self, drain: Drain) {
        if self.0.is_forked() {
            return;
        }
        let is_first = {
            let mut draining = lock(&self.0.draining);
            let since = draining.map_or_else(|| self.0.clock.now(), |(_, since)| since);
            draining.replace((drain, since)).is_none()
        };
        if is_first {
            self.0.drained_from.store(self.0.number(), Ordering::SeqCst);
            let Drain { retry_ms, spread_ms } = drain;
            tracing::info!(target: "tailrope", retry_ms, spread_ms, "draining");
            self.0.write_all_repeats();
            self.0.drained.begin(self.0.clock.now(), self.0.calls_running().len());
        }
        let cells: Vec<Arc<Cell>> = lock(&self.0.sessions).values().cloned().collect();
        for cell in cells {
            cell.drain(drain);
        }
        for call in self.0.owned_tasks() {
            call.drain();
        }
        self.0.end_subscriptions();
    }

    /// A drain with these times, in milliseconds. Unnamed, they are as the options `drain_retry_ms` and `drain_spread_ms` say.
    pub fn drain_of(&self, retry_ms: Option<u32>, spread_ms: Option<u32>) -> Drain {
        self.0.drain_of(retry_ms, spread_ms)
    }

    /// A request that the host serves without a session is under way, until this is dropped: a drain waits for it.
    pub fn guest(&self) -> Guest {
        Guest::of(&self.0)
    }

    /// How a drain ended. True if no connection and no [guest](Self::guest) is left, and no session that has yet to be
    /// left to other processes because something runs in it. False if `within_ms` milliseconds have passed since the first drain; without
    /// `within_ms`, the option `drain_within_ms` counts. None while the drain goes on, and if there is no drain.
    pub fn drained(&self, within_ms: Option<u64>) -> Option<bool> {
        if self.0.is_forked() {
            return Some(true);
        }
        let since = lock(&self.0.draining).map(|(_, since)| since)?;
        let is_handing_over = || {
            let cells: Vec<Arc<Cell>> = lock(&self.0.sessions).values().cloned().collect();
            cells.iter().any(|cell| cell.is_handing_over())
        };
        let are_none = |counted: &AtomicU64| counted.load(Ordering::Relaxed) == 0;
        if are_none(&self.0.connections) && are_none(&self.0.guests) && !is_handing_over() {
            self.tell_drained();
            return Some(true);
        }
        let end = since + within_ms.unwrap_or(self.0.options.drain_within_ms);
        let is_over = end <= self.0.clock.now();
        if is_over {
            self.tell_drained();
        }
        is_over.then_some(false)
    }

    /// Logs what a drain has come to, once for each. Hosts that do not ask whether it is [over](Self::drained) call this when
    /// they have ended their sessions.
    pub fn tell_drained(&self) {
        if self.0.is_forked() {
            return;
        }
        let cells: Vec<Arc<Cell>> = lock(&self.0.sessions).values().cloned().collect();
        // What is not drained runs on: it is another server's in this process.
        let running = |state: &State| if state.session.is_draining() { state.session.in_flight() } else { 0 };
        let of_sessions: usize = cells.iter().map(|cell| cell.look_or(0, running)).sum();
        let of_tasks = if self.is_draining() { self.0.calls_running().len() } else { 0 };
        self.0.write_all_repeats();
        self.0.drained.tell(self.0.clock.now(), of_sessions + of_tasks);
    }

    /// Whether no session is open or being looked up, no connection is open, and the host was told of every session
    /// that has ended. Then the engine holds nothing, and [`tick`](Self::tick) has nothing to do.
    pub fn is_idle(&self) -> bool {
        self.0.is_forked()
            // A connection that relayed a request to a session that was adopted here may still wait for its end.
            || self.0.connections.load(Ordering::Relaxed) == 0
                && lock(&self.0.sessions).is_empty()
                && lock(&self.0.ended).is_empty()
                && self.0.are_tasks_over()
    }

    /// Whether connections and sessions are woken on threads that the host does not know.
    pub fn answers_elsewhere(&self) -> bool {
        self.0.store.answers_elsewhere()
    }

    /// Whether what the store holds is still there when it is opened again.
    pub fn outlives_process(&self) -> bool {
        self.0.store.outlives_process()
    }

    /// Whether a drain has begun.
    pub fn is_draining(&self) -> bool {
        !self.0.is_forked() && lock(&self.0.draining).is_some()
    }

    /// Ends every session. The engine takes nothing afterwards. If the store outlives the process, what it has of the
    /// sessions stays there for their clients.
    pub fn close(&self) {
        self.0.closed.store(true, Ordering::SeqCst);
        if self.0.is_forked() {
            return;
        }
        let cells: Vec<Arc<Cell>> = lock(&self.0.sessions).values().cloned().collect();
        for cell in cells {
            cell.leave();
        }
        self.0.leave_tasks();
        self.0.forget_released_tasks();
        lock(&self.0.ended).clear();
        self.0.write_all_repeats();
    }

    /// Call this when the host goes away without ending its sessions. The engine takes nothing afterwards, and wakes
    /// nobody for its sessions. What only this process held is freed with the last handle.
    pub fn release(&self) {
        self.0.closed.store(true, Ordering::SeqCst);
        if self.0.is_forked() {
            return;
        }
        let sessions = std::mem::take(&mut *lock(&self.0.sessions));
        for cell in sessions.values() {
            cell.keep_logs();
            cell.leave_store();
        }
        self.0.leave_tasks();
        self.0.forget_released_tasks();
        lock(&self.0.timed).clear();
        lock(&self.0.deadlines).clear();
        *lock(&self.0.places) = Places::default();
        *lock(&self.0.confirmed) = Confirmed::default();
        lock(&self.0.ended).clear();
        self.0.write_all_repeats();
        // Dropped without any lock: each session refers to the engine, and takes its locks when it is dropped.
        drop(sessions);
    }

    /// Call this in the child of a fork. No lock may be touched there, because a thread that does not exist in the
    /// child may hold it. Every later use of the engine is refused, or does nothing.
    pub fn mark_forked(&self) {
        if !self.0.forked.swap(true, Ordering::Relaxed) {
            // Never dropped: a store that is dropped waits for its threads, which do not exist in the child.
            std::mem::forget(Arc::clone(&self.0));
        }
    }

    /// Whether this is the child of a fork, and the engine is its parent's.
    pub fn is_forked(&self) -> bool {
        self.0.is_forked()
    }

    /// What the engine did and holds; in the child of a fork, what it did before.
    pub fn stats(&self) -> Stats {
        if self.0.is_forked() {
            return self.0.counters.read();
        }
        let (usage, away_ms) = (self.0.store.usage(), self.0.store.away_ms());
        let cells: Vec<Arc<Cell>> = lock(&self.0.sessions).values().cloned().collect();
        let (read, own): (Vec<_>, Vec<_>) = cells.iter().partition(|cell| cell.is_elsewhere());
        let running = own.iter().map(|cell| lock(&cell.state).session.running());
        let (calls, oldest) = running
            .chain(self.0.calls_running())
            .fold((0, Ms::NEVER), |(calls, oldest), (more, began)| (calls + more as u64, oldest.min(began)));
        Stats {
            sessions: own.len() as u64,
            sessions_max: self.0.options.max_sessions as u64,
            sessions_read: read.len() as u64,
            calls_running: calls,
            oldest_call_ms: self.0.clock.now().since(oldest),
            bytes_waiting: self.0.unanswered.load(Ordering::Relaxed),
            bytes_waiting_max: MAX_UNANSWERED,
            store_up: u64::from(away_ms.is_none()),
            store_away_ms: away_ms.unwrap_or_default(),
            tasks: lock(&self.0.tasks).len() as u64,
            connections: self.0.connections.load(Ordering::Relaxed),
            streams: usage.streams,
            events: usage.events,
            bytes: usage.bytes,
            ..self.0.counters.read()
        }
    }

    /// A host answers a request with this refusal: it is counted, and has a line in the log, once.
    pub fn refused(&self, refusal: &Refusal) {
        if !refusal.is_counted {
            self.0.refused_outside(refusal);
        }
    }

    /// The engine's options.
    pub fn options(&self) -> &Options {
        &self.0.options
    }
}

/// Sessions that one tick looks at, at most.
const TICK_SESSIONS: usize = 4_096;
/// How many milliseconds late retention may be if nobody asks for what has expired.
const SWEEP_PAUSE_MS: u64 = 100;
