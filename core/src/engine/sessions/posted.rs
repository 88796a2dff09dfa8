//! A relayed request, as the host of its session sees it.

use crate::engine::sessions::cell::Cell;
use crate::exchange::{Admission, Fault, Relayed, Terms};
use crate::protocol::{Refusal, StreamNonce};
use crate::sync::Arc;

/// A request that another process relayed to a session of this one. The host settles it: it [begins](Self::begin) a
/// call, says of a message without an answer that it is [done](Self::done), ends the session for a DELETE, or
/// [refuses](Self::refuse) it. If it is dropped without that, it is refused, so that nobody waits for it.
#[derive(Debug)]
pub struct Posted {
    cell: Arc<Cell>,
    nonce: StreamNonce,
    relayed: Relayed,
}

impl Posted {
    pub(crate) fn new(cell: Arc<Cell>, nonce: StreamNonce, relayed: Relayed) -> Self {
        Self { cell, nonce, relayed }
    }

    /// The relayed request.
    pub fn relayed(&self) -> &Relayed {
        &self.relayed
    }

    /// Examines the request as [`SessionHandle::admit`](crate::engine::SessionHandle::admit) examines one that comes
    /// here. Its principal has been checked already. None if the request is refused.
    pub fn admit(&self, terms: &Terms<'_>) -> Option<Admission> {
        let session_id = terms.session_id.unwrap_or(&self.cell.id);
        let admitted = self.cell.admit(&self.relayed.head(session_id), self.relayed.body(), terms);
        admitted.map_err(|refusal| self.refuse(&refusal)).ok()
    }

    /// Puts the requests of a call in flight, on the stream that the other process reads. False if the call is refused:
    /// then it must not be dispatched.
    pub fn begin(&self, admission: &Admission) -> bool {
        self.cell.begin_posted(self.nonce, admission)
    }

    /// The handlers have been given a message that gets no answer.
    pub fn done(&self) {
        self.cell.done_posted(self.nonce, &self.relayed);
    }

    /// Refuses the request: this is its end.
    pub fn refuse(&self, refusal: &Refusal) {
        self.cell.refuse_posted(self.nonce, &self.relayed, refusal);
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        self.refuse(&Fault::Internal.refusal(self.cell.dialect));
    }
}
