//! Who wants to know of changes that other processes make to a log.

use std::collections::HashMap;

use super::StreamKey;
use crate::protocol::StreamNonce;
use crate::sync::{Mutex, MutexGuard, PoisonError, Weak};

/// Takes the hint that a log may have changed elsewhere. The log is the truth: a hint without a change
/// does no harm.
pub trait Watch: Send + Sync {
    /// The log of this stream may have changed.
    fn changed(&self, nonce: StreamNonce);
}

/// Somebody who may be gone when the hint comes.
pub type Watcher = Weak<dyn Watch>;

/// The watchers of a store's logs. A log may have several.
#[derive(Default)]
pub struct Watchers(Mutex<HashMap<StreamKey, Vec<Watcher>>>);

impl Watchers {
    /// Adds a watcher; true when it is the log's first.
    pub fn watch(&self, key: &StreamKey, watcher: &Watcher) -> bool {
        let mut watched = self.lock();
        let watchers = watched.entry(key.clone()).or_default();
        let is_first = watchers.is_empty();
        if !watchers.iter().any(|known| known.ptr_eq(watcher)) {
            watchers.push(watcher.clone());
        }
        is_first
    }

    /// Removes a watcher, and those that are gone; true when the log has none any more.
    pub fn unwatch(&self, key: &StreamKey, watcher: &Watcher) -> bool {
        let mut watched = self.lock();
        let Some(watchers) = watched.get_mut(key) else { return false };
        watchers.retain(|known| !known.ptr_eq(watcher) && known.strong_count() > 0);
        let is_over = watchers.is_empty();
        if is_over {
            watched.remove(key);
        }
        is_over
    }

    /// Tells the watchers of one log. No lock of the store may be held.
    pub fn changed(&self, key: &StreamKey) {
        let watchers = self.lock().get(key).cloned().unwrap_or_default();
        for watcher in watchers.iter().filter_map(Watcher::upgrade) {
            watcher.changed(key.nonce);
        }
    }

    /// Tells every watcher: what was missed is not known. No lock of the store may be held.
    pub fn all_changed(&self) {
        self.keys().iter().for_each(|key| self.changed(key));
    }

    /// The logs that are watched.
    pub fn keys(&self) -> Vec<StreamKey> {
        self.lock().keys().cloned().collect()
    }

    /// Whether nobody watches anything.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<StreamKey, Vec<Watcher>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
