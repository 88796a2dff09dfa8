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

/// Up to here nothing is thrown out.
const FEW: usize = 64;
/// How long a request waits for the handlers of a session that is being adopted here.
const ADOPTED_WAIT: Duration = Duration::from_secs(5);

/// The handlers of sessions, by the ids of these. Some sessions have ended.
pub(crate) struct Table<S> {
    state: Mutex<State<S>>,
    /// Handlers were inserted, or could not be made, or their session has ended.
    told: Notify,
}

struct State<S> {
    sessions: HashMap<Arc<str>, Arc<S>, RandomState>,
    /// With so many, those that have ended are thrown out.
    full: usize,
}

impl<S: Handlers> Table<S> {
    /// One from which those that have ended are taken by [`remove`](Self::remove).
    pub(crate) fn new() -> Self {
        Self::of(usize::MAX)
    }

    /// One that throws them out itself, when they are many.
    pub(crate) fn throwing_out() -> Self {
        Self::of(FEW)
    }

    fn of(full: usize) -> Self {
        Self { state: Mutex::new(State { sessions: HashMap::default(), full }), told: Notify::new() }
    }

    /// Takes handlers whose session has not ended.
    pub(crate) fn insert(&self, handlers: Arc<S>) {
        let mut state = self.state();
        // Under the lock: who takes out what has ended may have been here already.
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

    /// Takes out the handlers of a session that has ended. It may be here a second time by now, and stays then.
    pub(crate) fn remove(&self, id: &str) {
        let mut state = self.state();
        if state.sessions.get(id).is_some_and(|handlers| handlers.session().has_ended()) {
            state.sessions.remove(id);
        }
    }

    /// The handlers of a session, where it is served here.
    pub(crate) fn here(&self, id: &str) -> Option<Arc<S>> {
        self.any(id).filter(|handlers| !handlers.session().has_ended())
    }

    /// The same, whether the session has ended or not.
    pub(crate) fn any(&self, id: &str) -> Option<Arc<S>> {
        self.state().sessions.get(id).cloned()
    }

    /// The handlers of a session that was adopted here a moment ago: they are made now. A session that another endpoint of the engine has
    /// is waited for in vain, for [`ADOPTED_WAIT`].
    pub(crate) async fn adopted(&self, session: &SessionHandle) -> Option<Arc<S>> {
        let comes = async {
            loop {
                // Before the look, so that nothing is missed.
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

    /// Has those look who wait for handlers.
    pub(crate) fn tell(&self) {
        self.told.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
