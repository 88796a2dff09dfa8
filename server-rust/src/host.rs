//! What an engine needs of the process that it runs in: one task of tokio that tells it the time, and ends what is idle.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tailrope_core::engine::{Engine, EngineError, SessionHandle};
use tailrope_core::protocol::{Dialect, hex};
use tailrope_core::store::{SessionId, flush};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::close::Drain;
use crate::signal::Signal;

/// Between two looks whether a drain is over.
const DRAIN_PAUSE: Duration = Duration::from_millis(10);
/// Each new timer that ends before all others costs a system call, which wakes tokio's thread. rmcp sets one of 15 seconds for each
/// stream: this one ends before it.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);
/// How long a drain waits for what the store was given.
const FLUSH_WAIT: Duration = Duration::from_secs(5);

/// The id of a session, which nobody can guess.
///
/// # Panics
/// When the operating system has no randomness: an id that can be guessed is worse than no server.
pub(crate) fn new_id() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system provides randomness");
    hex(&bytes)
}

/// The host of an engine.
pub(crate) struct Host {
    engine: Engine,
    state: Mutex<State>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct State {
    due: Option<Instant>,
    /// There is a task. It goes with its runtime, and the next runtime gets one of its own.
    has_task: bool,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").finish_non_exhaustive()
    }
}

impl Host {
    pub(crate) fn new(engine: Engine) -> Arc<Self> {
        Arc::new(Self { engine, state: Mutex::default(), changed: Arc::default() })
    }

    /// How long a reader may take nothing before its connection is cut off; for ever where there is none.
    pub(crate) fn patience(&self) -> Option<Duration> {
        let max_connection_ms = self.engine.options().pacing.max_connection_ms;
        (max_connection_ms > 0).then(|| Duration::from_millis(max_connection_ms))
    }

    /// Has the engine ticked within so many milliseconds.
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
            // A runtime that shuts down drops the task at once, which asks for the state.
            drop(state);
            runtime.spawn(run(Task(Arc::downgrade(self)), Arc::clone(&self.changed)));
        }
    }

    /// Has the engine ticked when it asks for it.
    pub(crate) fn arm_for_engine(self: &Arc<Self>) {
        self.arm(self.engine.due_in_ms());
    }

    /// The session of another process, or one that was adopted here a moment ago, if the store has it for this principal, and the stream of the event id that its reader comes
    /// with. A caller that opens no connection of it lets go of it.
    pub(crate) async fn look_up(
        self: &Arc<Self>,
        session: SessionId<'_>,
        principal: Option<&str>,
        last_event_id: Option<&str>,
    ) -> Result<Option<SessionHandle>, EngineError> {
        if !self.engine.outlives_process() {
            return Ok(None);
        }
        let signal = Signal::new();
        let (dialect, wake) = (&Dialect::NEUTRAL, signal.clone());
        let look_up = self.engine.look_up_session(session, principal, last_event_id, dialect, wake, 0)?;
        loop {
            // A store that does not answer in time is given up at a tick, and a session that gave way is ended at one.
            self.arm_for_engine();
            if let Some(told) = look_up.take() {
                return told;
            }
            signal.woken().await;
        }
    }

    /// Closes every connection, and waits for calls whose end another process could show, for so long from the first drain on. Whether
    /// nothing is left.
    pub(crate) async fn drain(self: &Arc<Self>, drain: Drain) -> bool {
        let options = self.engine.options();
        self.engine.drain(options.drain(drain.retry_ms, drain.spread_ms));
        let is_over = loop {
            if let Some(is_over) = self.engine.drained(drain.within_ms) {
                break is_over;
            }
            self.arm_for_engine();
            tokio::time::sleep(DRAIN_PAUSE).await;
        };
        if let Some(store) = options.store.clone() {
            // What it was given is written.
            let _ = tokio::task::spawn_blocking(move || flush(&*store, FLUSH_WAIT)).await;
        }
        is_over
    }

    fn tick(self: &Arc<Self>) {
        self.state().due = None;
        for session in self.engine.tick() {
            // One that has ended is told of once more; one of another process is only looked at here.
            if !session.is_elsewhere() {
                session.end();
            }
        }
        // Retention goes on while there are sessions.
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

/// The host of a task, which does not hold it.
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
