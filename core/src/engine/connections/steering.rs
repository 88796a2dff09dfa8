//! Requests of revisions that have no resumption: refused, so that their clients fall back, or left to the SDK.

use crate::engine::Engine;
use crate::protocol::{Refusal, Revision};
use crate::sync::atomic::Ordering;

impl Engine {
    /// The answer that makes a client of both eras fall back to a revision that can resume. `body` is the request's, or
    /// what was read of it.
    pub fn steer(&self, body: &[u8], requested: &str) -> Refusal {
        self.0.counters.counted(Refusal::steered(body, requested))
    }

    /// Notes that a request of such a revision is left to the SDK. The first one is logged as a warning, because its
    /// users believe that their calls can be resumed.
    pub fn note_unresumable(&self, requested: &str) {
        if Revision::parse(requested).is_none_or(|revision| revision.rules().resumable) {
            // Not such a revision. The SDK refuses one that is not known.
            return;
        }
        if self.0.counters.requests_unresumable.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(target: "tailrope", revision = requested,
                "a client uses a protocol revision without resumption: its calls are lost with their connections. With \
                the option prefer_resumable the server has such clients fall back to 2025-11-25. Further requests of \
                this kind are only counted, as requests_unresumable");
        }
    }
}
