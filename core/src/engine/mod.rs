//! The engine: drives the machines of all sessions and performs their outputs.
//!
//! Synchronous at heart. With a store that answers at once, everything from
//! [`SessionHandle::send`] to bytes ready for a connection happens on the caller's thread. A
//! connection is pulled: its writer calls [`Connection::poll`] when it can take more, and waits for
//! its [`Wake`] when there is nothing. So a slow reader holds no memory and delays nobody (I10).
//!
//! Time: the host calls [`Engine::tick`] when [`Engine::next_deadline`] has come.
//!
//! ```
//! use std::sync::Arc;
//! use tailrope_core::engine::{Engine, NoWake, Options, OutgoingMessage, Sent};
//! use tailrope_core::protocol::{Dialect, RequestId, Revision};
//!
//! let engine = Engine::new(Options::default());
//! let session = engine.open_session("s1", None, &Dialect::MCP_PYTHON_2, Arc::new(NoWake), 0)?;
//! session.assume_revision(Revision::V2025_11_25);
//!
//! // A request arrives: its stream opens with a connection, which gets a priming event.
//! let request = RequestId::integer(1);
//! let first = session.call(&[request.clone()], None, Arc::new(NoWake), 0).unwrap();
//! let progress = br#"{"jsonrpc":"2.0","method":"notifications/progress"}"#;
//! assert_eq!(session.send(OutgoingMessage::notification(Some(&request), progress))?, Sent::Stored);
//!
//! // The server closes the connection; the stream goes on.
//! session.close_connection(&request, Some(1_000), None);
//! let text = first.poll(65_536).text();
//! assert!(text.starts_with("id: ") && text.contains("retry: 1000\n") && text.contains("progress"));
//! session.send(OutgoingMessage::response(&request, br#"{"jsonrpc":"2.0","id":1,"result":{}}"#))?;
//!
//! // The client comes back with the last id that it got, and gets the rest.
//! let last_id = text.rsplit("id: ").next().unwrap().lines().next().unwrap();
//! let second = session.resume(last_id, None, Arc::new(NoWake), 0).unwrap();
//! let rest = second.poll(65_536);
//! assert!(rest.text().contains(r#""result":{}"#));
//! assert!(rest.end.is_some(), "the response ends the connection");
//! # Ok::<(), tailrope_core::engine::EngineError>(())
//! ```

mod adopting;
mod answers;
mod cell;
mod clock;
mod conn;
mod connection;
mod ends;
mod following;
mod handle;
mod heirs;
mod hook_log;
mod lines;
mod lost_logs;
mod numbers;
mod opening;
mod outbox;
mod perform;
mod places;
mod seeks;
mod stats;
mod steering;
mod waits;
mod watching;
mod writing;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::error::Error;
use std::fmt;

pub use adopting::Adoption;
use cell::Cell;
use clock::Randomness;
pub use clock::{Clock, ManualClock, RandomSource, SystemClock, SystemRandomness};
pub use connection::{Chunk, Connection, NoWake, Poll, Wake};
pub use handle::{OutgoingMessage, SendOutcome, Sent, SessionHandle};
pub use hook_log::{HookLog, HookReplay, OnReplayed, OnStored};
use lost_logs::Kept;
pub use numbers::{NUMBER_OPTIONS, NumberOption};
use places::Places;
use stats::Counters;
pub use stats::Stats;

use crate::protocol::{Dialect, StreamNonce};
use crate::store::{EventStore, Limits, MemoryStore, StoreError};
use crate::stream::{ChainKey, Pacing};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use crate::{ErrorCode, Ms};

/// What becomes of progress that the store does not take: of notifications. Questions and responses are not concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// Its sender is told, or the next one.
    #[default]
    Raise,
    /// It is counted and logged.
    DropProgress,
}

impl OnStoreFailure {
    /// The policy with this name, the same in every language.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Raise, Self::DropProgress].into_iter().find(|policy| policy.as_str() == name)
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Raise => "raise",
            Self::DropProgress => "drop_progress",
        }
    }
}

/// Everything that can be set on an engine.
#[derive(Clone)]
pub struct Options {
    /// How connections are paced.
    pub pacing: Pacing,
    /// The bounds of the memory store, when no other store is given.
    pub limits: Limits,
    /// Sessions that may be open at once.
    pub max_sessions: usize,
    /// Sessions of one principal that may be open at once. Nobody's sessions, of requests without any credential, are
    /// bounded by `max_sessions` alone.
    pub max_sessions_per_principal: usize,
    /// Requests of one session that may run at once.
    pub max_requests_per_session: usize,
    /// How long a session may have running requests and no contact, in milliseconds.
    pub max_detached_ms: u64,
    /// After how long without anything a session is idle, in milliseconds; 0 is never. See [`Engine::tick`].
    pub session_idle_ms: u64,
    /// How long the store may take for an operation, in milliseconds. Then a question counts as failed, and what is
    /// written is asked for again until the store answers. 0 waits for ever.
    pub store_timeout_ms: u64,
    /// What becomes of progress that the store does not take.
    pub on_store_failure: OnStoreFailure,
    /// A stream whose writing process gave no sign for so long gets its end from whoever serves its
    /// reader, in milliseconds (I13).
    pub owner_lost_ms: u64,
    /// A larger event is logged as a warning: clients with small buffers drop it (F-60). Bytes.
    pub warn_event_bytes: usize,
    /// The store; the memory store when there is none.
    pub store: Option<Arc<dyn EventStore>>,
    /// The clock; the system's when there is none.
    pub clock: Option<Arc<dyn Clock>>,
    /// The randomness; the system's when there is none.
    pub randomness: Option<Arc<dyn RandomSource>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pacing: Pacing::default(),
            limits: Limits::default(),
            max_sessions: 10_000,
            max_sessions_per_principal: 1_000,
            max_requests_per_session: 1_000,
            max_detached_ms: 60 * 60 * 1_000,
            session_idle_ms: 30 * 60 * 1_000,
            store_timeout_ms: 30_000,
            on_store_failure: OnStoreFailure::Raise,
            owner_lost_ms: 10_000,
            warn_event_bytes: 1 << 20,
            store: None,
            clock: None,
            randomness: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("pacing", &self.pacing).field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// What the engine could not do. The text is for the server, never for clients (I9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineError {
    /// The engine was closed.
    Closed,
    /// The engine was made before a fork and cannot be used after it.
    Forked,
    /// The session has ended.
    SessionEnded,
    /// A session with this id is open.
    SessionExists,
    /// No further session fits, and none of the same principal is idle.
    TooManySessions {
        /// The option that bounds them: `max_sessions` or `max_sessions_per_principal`.
        option: &'static str,
        /// The bound.
        max: usize,
    },
    /// The message's request has its end already; the first wins (I13).
    Finished,
    /// Too many events wait for the store.
    Full,
    /// The store did not take the event.
    Store(StoreError),
    /// The store did not take an event of the stream that was sent before, and whose sender did not wait. A
    /// notification is stored all the same; a request is not sent.
    Earlier(StoreError),
}

impl EngineError {
    /// The code of the error, the same in every language.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Closed => ErrorCode::Closed,
            Self::Forked => ErrorCode::Forked,
            Self::SessionEnded => ErrorCode::SessionEnded,
            Self::SessionExists => ErrorCode::SessionExists,
            Self::TooManySessions { .. } => ErrorCode::TooManySessions,
            Self::Finished => ErrorCode::Finished,
            Self::Full => ErrorCode::Full,
            Self::Store(error) | Self::Earlier(error) => error.code(),
        }
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the engine is closed"),
            Self::Forked => f.write_str("the engine was made before a fork; make one in each process"),
            Self::SessionEnded => f.write_str("the session has ended"),
            Self::SessionExists => f.write_str("a session with this id is open"),
            Self::TooManySessions { option, max } => {
                write!(f, "{max} sessions are open, the most that {option} allows")
            }
            Self::Finished => f.write_str("the request has its end already"),
            Self::Full => f.write_str("too much waits for the event store"),
            // SDKs put the text of a handler's exception into results, so it says nothing of the store.
            Self::Store(StoreError::Full { .. } | StoreError::Failed(_) | StoreError::TimedOut { .. }) => {
                f.write_str("the event store did not store the event")
            }
            Self::Store(error) => error.fmt(f),
            Self::Earlier(_) => f.write_str("the event store did not store an event that was sent before"),
        }
    }
}

impl Error for EngineError {}

struct Shared {
    options: Options,
    store: Arc<dyn EventStore>,
    clock: Arc<dyn Clock>,
    randomness: Randomness,
    /// What the chains of logs are made with, where the store may not know their payloads.
    chain_key: Option<ChainKey>,
    counters: Counters,
    sessions: Mutex<HashMap<Arc<str>, Arc<Cell>>>,
    places: Mutex<Places>,
    /// Sessions that ended here without their host, until it is told.
    ended: Mutex<Vec<SessionHandle>>,
    /// When which session has something to do: one entry for each.
    deadlines: Mutex<BTreeSet<(Ms, u64)>>,
    /// The sessions behind the numbers.
    timed: Mutex<HashMap<u64, Weak<Cell>>>,
    /// Sessions that are looked up, with when that takes too long.
    look_ups: Mutex<VecDeque<(Ms, Weak<adopting::LookUp>)>>,
    next_sweep: AtomicU64,
    /// The shortest idle time of a session, in milliseconds.
    idle_ms: AtomicU64,
    next_number: AtomicU64,
    connections: AtomicU64,
    /// Bytes of events that the store has not answered for.
    unanswered: AtomicU64,
    /// How streams ended lately, for a store that loses that.
    kept: Mutex<Kept>,
    /// The `retry` of a drain that has begun; 0 while there is none.
    draining_ms: AtomicU32,
    closed: AtomicBool,
    forked: AtomicBool,
}

impl Shared {
    fn number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    fn nonce(&self) -> StreamNonce {
        StreamNonce(self.randomness.take())
    }

    fn salt(&self) -> u64 {
        u64::from_le_bytes(self.randomness.take())
    }

    fn jitter(&self) -> u16 {
        u16::from_le_bytes(self.randomness.take())
    }

    /// In the child of a fork no lock may be touched: a thread of the store may have held it.
    fn is_forked(&self) -> bool {
        self.forked.load(Ordering::Relaxed)
    }

    fn check(&self) -> Result<(), EngineError> {
        if self.is_forked() {
            Err(EngineError::Forked)
        } else if self.closed.load(Ordering::Relaxed) {
            Err(EngineError::Closed)
        } else {
            Ok(())
        }
    }

    /// Makes a session one that can be found. The one that has its id already, if there is one.
    fn register(&self, cell: &Arc<Cell>) -> Result<Option<Arc<Cell>>, EngineError> {
        {
            let mut sessions = lock(&self.sessions);
            if let Some(open) = sessions.get(&cell.id) {
                return Ok(Some(Arc::clone(open)));
            }
            lock(&self.timed).insert(cell.number, Arc::downgrade(cell));
            sessions.insert(Arc::clone(&cell.id), Arc::clone(cell));
        }
        // After it can be found, so that a drain or a close that begins now misses no session.
        let draining_ms = self.draining_ms.load(Ordering::SeqCst);
        if draining_ms != 0 {
            cell.drain(draining_ms);
        }
        if let Err(error) = self.check() {
            cell.leave();
            return Err(error);
        }
        Ok(None)
    }

    /// Lets retention take what it is over. Cheap while nothing is due.
    fn sweep(&self, now: Ms) {
        if now.0 >= self.next_sweep.load(Ordering::Relaxed) {
            // What finishes from now on is due in a retention time.
            let next = self.store.sweep(now).min(now + self.options.limits.retention_ms);
            self.next_sweep.store(next.0, Ordering::Relaxed);
        }
    }

    fn note_idle_ms(&self, idle_ms: u64) {
        let shortest = [idle_ms, self.options.max_detached_ms].into_iter().filter(|ms| *ms != 0).min();
        self.idle_ms.fetch_min(shortest.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How long the host may go without a tick: what it does meanwhile sets times that it is not told of.
    fn max_pause_ms(&self) -> u64 {
        let max = if self.store.outlives_process() { SHARED_PAUSE_MS } else { MAX_PAUSE_MS };
        (self.idle_ms.load(Ordering::Relaxed) / 4).clamp(1, max)
    }

    /// Notes when a session has to be looked at, and no longer when it was to be before.
    fn schedule(&self, before: Ms, at: Ms, number: u64) {
        let mut deadlines = lock(&self.deadlines);
        deadlines.remove(&(before, number));
        if at != Ms::NEVER {
            deadlines.insert((at, number));
        }
    }
}

/// The engine. Cheap to clone; all clones are one engine.
#[derive(Clone)]
pub struct Engine(Arc<Shared>);

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
            // Stored one by one, so that each gets its id and each failure is of one event.
            options.pacing.max_batch = 1;
        }
        let clock = options.clock.clone().unwrap_or_else(|| Arc::new(SystemClock::default()));
        let randomness = Randomness::new(options.randomness.clone().unwrap_or_else(|| Arc::new(SystemRandomness)));
        Self(Arc::new(Shared {
            chain_key: store.chain_key(),
            options,
            store,
            clock,
            randomness,
            counters: Counters::default(),
            sessions: Mutex::default(),
            places: Mutex::default(),
            ended: Mutex::default(),
            deadlines: Mutex::default(),
            timed: Mutex::default(),
            look_ups: Mutex::default(),
            next_sweep: AtomicU64::new(0),
            idle_ms: AtomicU64::new(u64::MAX),
            next_number: AtomicU64::new(1),
            connections: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
            kept: Mutex::default(),
            draining_ms: AtomicU32::new(0),
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
    pub fn open_session(
        &self,
        id: &str,
        principal: Option<&str>,
        dialect: &'static Dialect,
        wake: Arc<dyn Wake>,
        key: u64,
    ) -> Result<SessionHandle, EngineError> {
        let shared = &self.0;
        shared.check()?;
        let now = shared.clock.now();
        let cell = Cell::new(Arc::clone(shared), id.into(), now, principal, dialect, (wake, key));
        if shared.register(&cell)?.is_some() {
            return Err(EngineError::SessionExists);
        }
        cell.set_idle_ms(shared.options.session_idle_ms);
        Counters::add(&shared.counters.sessions_opened, 1);
        tracing::debug!(target: "tailrope", session = %cell.name, "session opened");
        Ok(SessionHandle::new(cell))
    }

    /// The open session with this id, if this principal may see it.
    pub fn session(&self, id: &str, principal: Option<&str>) -> Option<SessionHandle> {
        if self.0.is_forked() {
            return None;
        }
        let cell = lock(&self.0.sessions).get(id).cloned()?;
        let found = cell.belongs_to(principal);
        found.then(|| SessionHandle::new(cell))
    }

    /// When [`tick`](Self::tick) is due.
    pub fn next_deadline(&self) -> Ms {
        if self.0.is_forked() {
            return Ms::NEVER;
        }
        // Streams finish in quick succession; they need no tick each.
        let sweep = Ms(self.0.next_sweep.load(Ordering::Relaxed)) + SWEEP_PAUSE_MS;
        let sweep = sweep.min(self.0.look_up_deadline());
        if !lock(&self.0.ended).is_empty() {
            return Ms(0);
        }
        lock(&self.0.deadlines).first().map_or(sweep, |(at, _)| sweep.min(*at))
    }

    /// Milliseconds until [`tick`](Self::tick) is due while there are sessions.
    pub fn due_in_ms(&self) -> u64 {
        self.next_deadline().since(self.0.clock.now()).min(self.0.max_pause_ms())
    }

    /// Does what time asks for: wakes connections that have something to write, and lets retention
    /// take what it is over.
    ///
    /// Returns the sessions that are idle, or without their client for `max_detached_ms`: the host ends them, unless it
    /// has a request of one that the engine has not seen yet. It is told again of what it keeps. Sessions that gave way to
    /// newer ones, or that another process took over, are among them, once: these
    /// [have ended](SessionHandle::has_ended).
    pub fn tick(&self) -> Vec<SessionHandle> {
        if self.0.is_forked() {
            return Vec::new();
        }
        let ended = std::mem::take(&mut *lock(&self.0.ended));
        let (mut idle, ending): (Vec<_>, Vec<_>) = ended.into_iter().partition(SessionHandle::has_ended);
        lock(&self.0.ended).extend(ending);
        let now = self.0.clock.now();
        // The rest is due at once: the host's other work gets its turn in between.
        for _ in 0..TICK_SESSIONS {
            let due = {
                let mut deadlines = lock(&self.0.deadlines);
                match deadlines.first() {
                    Some((at, _)) if *at <= now => deadlines.pop_first(),
                    _ => None,
                }
            };
            let Some((at, number)) = due else { break };
            let cell = lock(&self.0.timed).get(&number).and_then(Weak::upgrade);
            if let Some(cell) = cell
                && cell.tick(at)
            {
                idle.push(SessionHandle::new(cell));
            }
        }
        self.0.give_up_look_ups(now);
        self.0.trim_kept(now);
        self.0.sweep(now);
        idle
    }

    /// The process is going away: every connection is closed with `retry_ms` and what opens from now
    /// on gets its priming event and ends, too. Calls of clients that cannot resume get an error.
    pub fn drain(&self, retry_ms: u32) {
        if self.0.is_forked() {
            return;
        }
        let retry_ms = retry_ms.max(1);
        if self.0.draining_ms.swap(retry_ms, Ordering::SeqCst) == 0 {
            tracing::info!(target: "tailrope", retry_ms, "draining");
        }
        let cells: Vec<Arc<Cell>> = lock(&self.0.sessions).values().cloned().collect();
        for cell in cells {
            cell.drain(retry_ms);
        }
    }

    /// The `retry` of a drain that names none, in milliseconds: what a restart usually takes.
    pub fn drain_ms(&self) -> u32 {
        self.0.options.pacing.retry_ms.max(DRAIN_MS)
    }

    /// Whether no session is open or looked up, and none has ended that the host is still to be told of. Then nothing is held,
    /// and [`tick`](Self::tick) has nothing to do.
    pub fn is_idle(&self) -> bool {
        self.0.is_forked()
            || lock(&self.0.sessions).is_empty() && lock(&self.0.look_ups).is_empty() && lock(&self.0.ended).is_empty()
    }

    /// Whether connections and sessions are woken on threads that the host does not know.
    pub fn answers_elsewhere(&self) -> bool {
        self.0.store.answers_elsewhere()
    }

    /// Whether what the store holds is there for whoever opens it next.
    pub fn outlives_process(&self) -> bool {
        self.0.store.outlives_process()
    }

    /// Whether a drain has begun.
    pub fn is_draining(&self) -> bool {
        self.0.draining_ms.load(Ordering::Relaxed) != 0
    }

    /// Ends every session. The engine takes nothing afterwards. What a store that outlives the process has
    /// of the sessions stays there for their clients.
    pub fn close(&self) {
        self.0.closed.store(true, Ordering::SeqCst);
        if self.0.is_forked() {
            return;
        }
        let cells: Vec<Arc<Cell>> = lock(&self.0.sessions).values().cloned().collect();
        for cell in cells {
            cell.leave();
        }
        lock(&self.0.ended).clear();
    }

    /// The host goes away without ending its sessions: nothing is taken any more, and nobody is woken for
    /// them. What only this process held is freed with the last handle.
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
        lock(&self.0.timed).clear();
        lock(&self.0.deadlines).clear();
        lock(&self.0.look_ups).clear();
        lock(&self.0.places).clear();
        *lock(&self.0.kept) = Kept::default();
        lock(&self.0.ended).clear();
        // Each refers to the engine: without the lock that the last of them would want.
        drop(sessions);
    }

    /// Called in the child of a fork, where no lock may be touched, as a thread that is not there may hold
    /// it: every later use is refused, or does nothing.
    pub fn mark_forked(&self) {
        if !self.0.forked.swap(true, Ordering::Relaxed) {
            // A store that goes away waits for its threads, which are not there.
            std::mem::forget(Arc::clone(&self.0));
        }
    }

    /// Whether this is the child of a fork, and the engine its parent's.
    pub fn is_forked(&self) -> bool {
        self.0.is_forked()
    }

    /// What the engine did and holds; in the child of a fork, what it did before.
    pub fn stats(&self) -> Stats {
        if self.0.is_forked() {
            return self.0.counters.read();
        }
        let usage = self.0.store.usage();
        Stats {
            sessions: lock(&self.0.sessions).len() as u64,
            connections: self.0.connections.load(Ordering::Relaxed),
            streams: usage.streams,
            events: usage.events,
            bytes: usage.bytes,
            ..self.0.counters.read()
        }
    }

    /// The engine's options.
    pub fn options(&self) -> &Options {
        &self.0.options
    }
}

/// Sessions that one tick looks at.
const TICK_SESSIONS: usize = 4_096;
/// How late retention may be where nobody asks for what is over.
const SWEEP_PAUSE_MS: u64 = 100;
const DRAIN_MS: u32 = 5_000;
/// An engine with sessions is ticked at least so often.
const MAX_PAUSE_MS: u64 = 60_000;
/// The same where the store outlives the process: others do, or stop doing, what counts here, too.
const SHARED_PAUSE_MS: u64 = 1_000;

/// Locks, also after a panic elsewhere: what is behind these locks is consistent between calls.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
