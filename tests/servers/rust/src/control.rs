//! Gates and marks: a tool waits at a gate and a test opens it, a tool sets a mark and a test waits for it. So tests order
//! events exactly, where a pause would only make the wanted order likely.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// What one process has of both.
#[derive(Default)]
pub(crate) struct Control {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    open: HashSet<String>,
    marks: BTreeMap<String, u64>,
    requests: BTreeMap<String, u64>,
}

/// The request was cancelled.
pub(crate) struct Cancelled;

impl Control {
    pub(crate) fn open(&self, gate: &str) {
        self.state().open.insert(gate.to_owned());
        self.changed.notify_waiters();
    }

    pub(crate) fn is_open(&self, gate: &str) -> bool {
        self.state().open.contains(gate)
    }

    /// Waits at a gate.
    pub(crate) async fn gate(&self, gate: &str, cancelled: &CancellationToken) -> Result<(), Cancelled> {
        self.mark(&format!("at {gate}"));
        tokio::select! {
            () = self.until(|state| state.open.contains(gate)) => Ok(()),
            () = cancelled.cancelled() => Err(Cancelled),
        }
    }

    pub(crate) fn mark(&self, name: &str) {
        *self.state().marks.entry(name.to_owned()).or_default() += 1;
        self.changed.notify_waiters();
    }

    /// Whether a mark was set so often, after some seconds.
    pub(crate) async fn marked(&self, name: &str, count: u64) -> bool {
        let reached = self.until(|state| state.marks.get(name).is_some_and(|set| *set >= count));
        tokio::time::timeout(Duration::from_secs(5), reached).await.is_ok()
    }

    pub(crate) fn marks(&self) -> BTreeMap<String, u64> {
        self.state().marks.clone()
    }

    /// Counts a request by its method, and by its method and session.
    pub(crate) fn count(&self, method: &str, session: Option<&str>) {
        let mut state = self.state();
        *state.requests.entry(method.to_owned()).or_default() += 1;
        if let Some(session) = session {
            *state.requests.entry(format!("{method} {session}")).or_default() += 1;
        }
    }

    pub(crate) fn requests(&self) -> BTreeMap<String, u64> {
        let mut requests = self.state().requests.clone();
        requests.entry("GET".to_owned()).or_default();
        requests
    }

    /// Throws away what only tests want to know.
    pub(crate) fn forget(&self) {
        let mut state = self.state();
        state.marks.clear();
        state.requests.clear();
    }

    async fn until(&self, is_reached: impl Fn(&State) -> bool) {
        loop {
            let changed = self.changed.notified();
            if is_reached(&self.state()) {
                return;
            }
            changed.await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
