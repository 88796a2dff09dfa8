//! The sessions that are served here.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use tailrope_core::engine::SessionHandle;
use tailrope_core::store::SessionId;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::sender::Identity;
use crate::service::Handlers;

/// How long a request waits for the handlers of a session that is being adopted here.
const ADOPTED_WAIT: Duration = Duration::from_secs(5);

/// The handlers of sessions, by session id. Handlers take themselves out when they hear that their session has ended.
pub(crate) struct Table<S> {
    sessions: Mutex<Sessions<S>>,
    /// Notified when handlers were inserted or could not be made, or when their session has ended.
    told: Notify,
}

type Sessions<S> = HashMap<Arc<str>, Arc<S>, RandomState>;

impl<S: Handlers> Table<S> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { sessions: Mutex::default(), told: Notify::new() })
    }

    /// Adds handlers, unless their session has ended.
    pub(crate) fn insert(&self, handlers: Arc<S>) {
        let mut sessions = self.sessions();
        // Checked under the lock: if the session has ended, its `remove` may have come already.
        if !handlers.session().has_ended() {
            sessions.insert(handlers.session().id().into(), handlers);
        }
        drop(sessions);
        self.tell();
    }

    /// Takes out the handlers of a session that has ended. If the session has been adopted here since, its new handlers
    /// stay.
    pub(crate) fn remove(&self, id: &str) {
        let mut sessions = self.sessions();
        let has_ended = sessions.get(id).is_some_and(|handlers| handlers.session().has_ended());
        let removed = if has_ended { sessions.remove(id) } else { None };
        // Without the lock: the last reference to handlers may end more than them.
        drop(sessions);
        drop(removed);
        self.tell();
    }

    /// The handlers of a session, if it is served here.
    pub(crate) fn here(&self, id: &str) -> Option<Arc<S>> {
        let handlers = self.sessions().get(id).cloned();
        handlers.filter(|handlers| !handlers.session().has_ended())
    }

    /// The handlers of a session, if it is served here and is one of this server (I7).
    pub(crate) fn of_server(&self, session: SessionId<'_>, identity: &Identity) -> Option<Arc<S>> {
        let handlers = self.here(session.id())?;
        // Every session here has the name that was configured, if there is one.
        (identity.server_name.is_some() || handlers.session().is(session)).then_some(handlers)
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

    fn sessions(&self) -> MutexGuard<'_, Sessions<S>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
