//! What an engine needs from its process: one tokio task that ticks the engine and deals with idle sessions.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tailrope_core::engine::{Engine, EngineError, SessionHandle};
use tailrope_core::exchange::Principal;
use tailrope_core::protocol::{Dialect, hex};
use tailrope_core::store::{SessionId, flush};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::close::{Drain, delay};
use crate::signal::Signal;

/// Pause between two looks at whether a drain is over.
const DRAIN_PAUSE: Duration = Duration::from_millis(10);
/// A new timer that ends before all others costs a system call that wakes tokio's thread. rmcp sets a timer of 15
/// seconds for each stream. The host's own timer ends before those, so they cost no such call.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);
/// How long a drain waits until the store has written what it was given.
const FLUSH_WAIT: Duration = Duration::from_secs(5);

/// A new session id, which nobody can guess.
///
/// # Panics
/// When the operating system has no randomness: an id that can be guessed is worse than no server.
pub(crate) fn new_id() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system provides randomness");
    hex(&bytes)
}

/// Takes a session that [`Engine::tick`] returns.
type OnIdle = Box<dyn Fn(SessionHandle) + Send + Sync>;

/// Ends a session that is idle.
fn end_idle(session: SessionHandle) {
    // For a session that has ended this does nothing. A session of another process is not ours to end.
    if !session.is_elsewhere() {
        session.end();
    }
}

/// The host of an engine.
pub(crate) struct Host {
    pub(crate) engine: Engine,
    /// What is done with the sessions that a tick returns.
    on_idle: OnIdle,
    state: Mutex<State>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct State {
    due: Option<Instant>,
    /// There is a task. It ends with its runtime, and the next runtime gets a task of its own.
    has_task: bool,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").finish_non_exhaustive()
    }
}

impl Host {
    /// A host that ends idle sessions.
    pub(crate) fn new(engine: Engine) -> Arc<Self> {
        Self::with_idle(engine, Box::new(end_idle))
    }

    /// A host that gives idle sessions away.
    pub(crate) fn with_idle(engine: Engine, on_idle: OnIdle) -> Arc<Self> {
        Arc::new(Self { engine, on_idle, state: Mutex::default(), changed: Arc::default() })
    }

    /// How long a reader may take nothing before its connection is cut off. None: for ever.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.engine.options().patience_ms().map(Duration::from_millis)
    }

    /// Makes sure that the engine is ticked within `wait_ms` milliseconds.
    pub(crate) fn arm(self: &Arc<Self>, wait_ms: u64) {
        let due = Instant::now() + Duration::from_millis(wait_ms);
        let mut state = self.state();
        if state.has_task && state.due.is_some_and(|armed| armed <= due) {
            return;
        }
        state.due = Some(state.due.map_or(due, |armed| armed.min(due)));
        if state.has_task {
            self.changed.notify_one();
        } else if let Ok(runtime) = Handle::try_current() {
            state.has_task = true;
            // A runtime that shuts down drops the task at once, and its `drop` locks the state.
            drop(state);
            runtime.spawn(run(Task(Arc::downgrade(self)), Arc::clone(&self.changed)));
        }
    }

    /// Makes sure that the engine is ticked when its next tick is due.
    pub(crate) fn arm_for_engine(self: &Arc<Self>) {
        self.arm(self.engine.due_in_ms());
    }

    /// Looks up a session in the store, and the stream of `last_event_id` with it. It is a session of another process,
    /// or one that was adopted here a moment ago. None if the store has no such session for this principal. A caller
    /// that opens no connection of the session has to let go of it.
    pub(crate) async fn look_up(
        self: &Arc<Self>,
        session: SessionId<'_>,
        principal: Option<&Principal>,
        last_event_id: Option<&str>,
    ) -> Result<Option<SessionHandle>, EngineError> {
        if !self.engine.outlives_process() {
            return Ok(None);
        }
        let signal = Signal::new();
        let (dialect, wake) = (&Dialect::NEUTRAL, signal.clone());
        let look_up = self.engine.look_up_session(session, principal, last_event_id, dialect, wake, 0)?;
        loop {
            // A tick gives up on a store that does not answer in time, and ends a session that gave way.
            self.arm_for_engine();
            if let Some(told) = look_up.take() {
                return told;
            }
            signal.woken().await;
        }
    }

    /// Closes every connection, and waits for the calls whose result another process could deliver, for at most
    /// `within_ms` since the first drain. Returns whether nothing is left.
    pub(crate) async fn drain(self: &Arc<Self>, drain: Drain) -> bool {
        let options = self.engine.options();
        self.engine.drain(self.engine.drain_of(delay(drain.retry_ms), delay(drain.spread_ms)));
        let is_over = loop {
            if let Some(is_over) = self.engine.drained(drain.within_ms) {
                break is_over;
            }
            self.arm_for_engine();
            tokio::time::sleep(DRAIN_PAUSE).await;
        };
        if let Some(store) = options.store.clone() {
            // So that the store has written what it was given.
            let _ = tokio::task::spawn_blocking(move || flush(&*store, FLUSH_WAIT)).await;
        }
        is_over
    }

    fn tick(self: &Arc<Self>) {
        self.state().due = None;
        self.engine.tick().into_iter().for_each(&self.on_idle);
        // While there are sessions, ticks go on, and retention with them.
        if !self.engine.is_idle() {
            self.arm(self.engine.due_in_ms().max(1));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.changed.notify_one();
    }
}

/// The task's reference to its host. It does not keep the host alive.
struct Task(Weak<Host>);

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(host) = self.0.upgrade() {
            host.state().has_task = false;
        }
    }
}

async fn run(task: Task, changed: Arc<Notify>) {
    loop {
        let Some(due) = task.0.upgrade().map(|host| host.state().due) else { return };
        let Some(due) = due else {
            changed.notified().await;
            continue;
        };
        tokio::select! {
            () = tokio::time::sleep_until(due.min(Instant::now() + LONGEST_SLEEP)) => {}
            () = changed.notified() => continue,
        }
        let Some(host) = task.0.upgrade() else { return };
        host.tick();
    }
}
