//! Who wants to know of changes that other processes make to a session.

use std::collections::HashMap;

use crate::protocol::StreamNonce;
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// What the log says where hints do not come.
pub const NOT_HEARD: &str =
    "the event store is not reached: what other processes do is noticed late. It is tried again";

/// Takes the hint that something may have changed elsewhere. The log is the truth: a hint without a change
/// does no harm.
pub trait Watch: Send + Sync {
    /// The log of this stream may have changed.
    fn changed(&self, nonce: StreamNonce);

    /// A message may wait for the session's owner.
    fn posted(&self);

    /// Hints may be missing, or the store was set back: anything of the session may have changed.
    fn all_changed(&self);
}

/// Somebody who may be gone when the hint comes.
pub type Watcher = Weak<dyn Watch>;

/// The watchers of a store's sessions. A session may have several.
#[derive(Default)]
pub struct Watchers(Mutex<HashMap<Arc<str>, Vec<Watcher>>>);

impl Watchers {
    /// Adds a watcher; true when it is the session's first.
    pub fn watch(&self, session: &Arc<str>, watcher: &Watcher) -> bool {
        let mut watched = self.lock();
        let watchers = watched.entry(Arc::clone(session)).or_default();
        let is_first = watchers.is_empty();
        if !watchers.iter().any(|known| known.ptr_eq(watcher)) {
            watchers.push(watcher.clone());
        }
        is_first
    }

    /// Removes a watcher, and those that are gone; true when the session has none any more.
    pub fn unwatch(&self, session: &str, watcher: &Watcher) -> bool {
        let mut watched = self.lock();
        let Some(watchers) = watched.get_mut(session) else { return false };
        watchers.retain(|known| !known.ptr_eq(watcher) && known.strong_count() > 0);
        let is_over = watchers.is_empty();
        if is_over {
            watched.remove(session);
        }
        is_over
    }

    /// Tells the watchers of a session of one log. No lock of the store may be held.
    pub fn changed(&self, session: &str, nonce: StreamNonce) {
        self.tell(session, |watcher| watcher.changed(nonce));
    }

    /// Tells the watchers of a session that a message waits for its owner. No lock of the store may be held.
    pub fn posted(&self, session: &str) {
        self.tell(session, |watcher| watcher.posted());
    }

    /// Tells the watchers of a session of everything that it has. No lock of the store may be held.
    pub fn session_changed(&self, session: &str) {
        self.tell(session, |watcher| watcher.all_changed());
    }

    /// Tells every watcher: what was missed is not known. No lock of the store may be held.
    pub fn all_changed(&self) {
        self.sessions().iter().for_each(|session| self.session_changed(session));
    }

    fn tell(&self, session: &str, tell: impl Fn(&dyn Watch)) {
        let watchers = self.lock().get(session).cloned().unwrap_or_default();
        watchers.iter().filter_map(Watcher::upgrade).for_each(|watcher| tell(&*watcher));
    }

    /// Whether somebody watches the session.
    pub fn has(&self, session: &str) -> bool {
        self.lock().contains_key(session)
    }

    /// The sessions that are watched.
    pub fn sessions(&self) -> Vec<Arc<str>> {
        self.lock().keys().cloned().collect()
    }

    /// Whether nobody watches anything.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Vec<Watcher>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
