//! How the engine tells of a session.

use std::sync::{Arc, OnceLock, Weak};

use tailrope_core::engine::Wake;

/// Somebody who is told that a session has outcomes, posted requests, or its end.
pub(crate) trait Hear: Send + Sync {
    /// Called on any thread, that of a store among them.
    fn hear(self: Arc<Self>);
}

/// The wake of a session, which is opened before there is anybody to hear.
#[derive(Default)]
pub(crate) struct Ears(OnceLock<Weak<dyn Hear>>);

impl Ears {
    /// New ears are nobody's. What was told before is for the listener to ask for.
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
