//! How the engine says that something has happened in a session.

use std::sync::{Arc, OnceLock, Weak};

use tailrope_core::engine::Wake;

/// A listener that is told when a session has outcomes or posted requests to take, or has ended.
pub(crate) trait Hear: Send + Sync {
    /// Called on any thread, even on one of a store.
    fn hear(self: Arc<Self>);
}

/// The wake of a session. The session is opened before its listener exists.
#[derive(Default)]
pub(crate) struct Ears(OnceLock<Weak<dyn Hear>>);

impl Ears {
    /// Sets the listener. What happened before is not told again: the listener has to look for it.
    pub(crate) fn listen(&self, listener: Weak<dyn Hear>) {
        let _ = self.0.set(listener);
    }
}

impl Wake for Ears {
    fn wake(&self, _key: u64) {
        if let Some(listener) = self.0.get().and_then(Weak::upgrade) {
            listener.hear();
        }
    }
}
