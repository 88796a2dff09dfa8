//! The sessions that are served here.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use tailrope_core::engine::SessionHandle;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::service::Handlers;

/// With fewer sessions than this, none are thrown out.
const FEW: usize = 64;
/// How long a request waits for the handlers of a session that is being adopted here.
const ADOPTED_WAIT: Duration = Duration::from_secs(5);

/// The handlers of sessions, by session id. Some of the sessions may have ended.
pub(crate) struct Table<S> {
    state: Mutex<State<S>>,
    /// Notified when handlers were inserted or could not be made, or when their session has ended.
    told: Notify,
}

struct State<S> {
    sessions: HashMap<Arc<str>, Arc<S>, RandomState>,
    /// With this many sessions, those that have ended are thrown out.
    full: usize,
}

impl<S: Handlers> Table<S> {
    /// A table that keeps ended sessions until [`remove`](Self::remove) takes them out.
    pub(crate) fn new() -> Self {
        Self::of(usize::MAX)
    }

    /// A table that throws out ended sessions by itself when it has many.
    pub(crate) fn throwing_out() -> Self {
        Self::of(FEW)
    }

    fn of(full: usize) -> Self {
        Self { state: Mutex::new(State { sessions: HashMap::default(), full }), told: Notify::new() }
    }

    /// Adds handlers, unless their session has ended.
    pub(crate) fn insert(&self, handlers: Arc<S>) {
        let mut state = self.state();
        // Checked under the lock: if the session has ended, its `remove` may have come already.
        if !handlers.session().has_ended() {
            if state.sessions.len() >= state.full {
                state.sessions.retain(|_, handlers| !handlers.session().has_ended());
                state.full = FEW.max(2 * state.sessions.len());
            }
            state.sessions.insert(handlers.session().id().into(), handlers);
        }
        drop(state);
        self.tell();
    }

    /// Takes out the handlers of a session that has ended. If the session has been adopted here since, its new handlers
    /// stay.
    pub(crate) fn remove(&self, id: &str) {
        let mut state = self.state();
        if state.sessions.get(id).is_some_and(|handlers| handlers.session().has_ended()) {
            state.sessions.remove(id);
        }
    }

    /// The handlers of a session, if it is served here.
    pub(crate) fn here(&self, id: &str) -> Option<Arc<S>> {
        self.any(id).filter(|handlers| !handlers.session().has_ended())
    }

    /// The same, whether the session has ended or not.
    pub(crate) fn any(&self, id: &str) -> Option<Arc<S>> {
        self.state().sessions.get(id).cloned()
    }

    /// Waits for the handlers of a session that was adopted here a moment ago: they are being made now. None if the
    /// session ends, or after [`ADOPTED_WAIT`], for example because another endpoint of this engine serves the session.
    pub(crate) async fn adopted(&self, session: &SessionHandle) -> Option<Arc<S>> {
        let comes = async {
            loop {
                // Registered before the look, so that no notice is missed.
                let mut told = pin!(self.told.notified());
                told.as_mut().enable();
                let here = self.here(session.id());
                if here.is_some() || session.has_ended() {
                    return here;
                }
                told.await;
            }
        };
        timeout(ADOPTED_WAIT, comes).await.ok().flatten()
    }

    /// Makes the requests that wait for handlers look again.
    pub(crate) fn tell(&self) {
        self.told.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
