//! What is known of the requests of a session that are relayed to another process.

use std::collections::BTreeMap;

use crate::Ms;
use crate::engine::sessions::timers::{Reason, Timers};
use crate::protocol::{Refusal, RequestId, StreamNonce};
use crate::store::{Message, Ticket};
use crate::stream::{ConnectionId, Paced};

/// What is relayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Its answer is a stream.
    Call,
    /// It has no answer.
    Message,
    /// The session is to end.
    Delete,
}

/// How far it is.
pub(crate) enum Stage {
    /// The store is asked to take the message.
    Posting(Ticket),
    /// It could not tell, and is asked again.
    PostAgain,
    /// The owner has the message, or will.
    Posted,
    /// The store has the message, and this process adopts its session: the client is told nothing until there is an owner.
    Orphaned,
    /// The store is asked to take the message back, or is asked again.
    Withdrawing,
    /// The store is asked for the session that is to end.
    Sought,
}

/// A message that is on its way.
pub(crate) struct Relay {
    pub(crate) conn: ConnectionId,
    pub(crate) what: What,
    pub(crate) requests: Vec<RequestId>,
    /// How calls of its tool are paced here, until its owner has begun and says it.
    pub(crate) paced: Paced,
    /// Until the store has it.
    pub(crate) message: Option<Message>,
    /// A try of that got no answer in time: the store may have it.
    pub(crate) is_unsure: bool,
    /// When the owner is to have begun.
    pub(crate) due: Ms,
    /// It was given more time, as the owner gave no sign.
    pub(crate) is_late: bool,
    pub(crate) stage: Stage,
    /// What is said to a client that was sent nothing, where the message does not begin.
    pub(crate) refusal: Refusal,
}

/// The messages of a session that are on their way.
#[derive(Default)]
pub(crate) struct Relays {
    pub(crate) by_stream: BTreeMap<StreamNonce, Relay>,
    /// The last of them has come to its end.
    is_over: bool,
}

impl Relays {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_stream.is_empty()
    }

    /// Whether the last one has come to its end since this was asked before.
    pub(crate) fn take_over(&mut self) -> bool {
        std::mem::take(&mut self.is_over)
    }

    pub(crate) fn is_posting(&self, nonce: StreamNonce) -> bool {
        self.by_stream.get(&nonce).is_some_and(|relay| matches!(relay.stage, Stage::Posting(_)))
    }

    pub(crate) fn is_sought(&self, nonce: StreamNonce) -> bool {
        self.by_stream.get(&nonce).is_some_and(|relay| matches!(relay.stage, Stage::Sought))
    }

    pub(crate) fn is_delete(&self, nonce: StreamNonce) -> bool {
        self.by_stream.get(&nonce).is_some_and(|relay| relay.what == What::Delete)
    }

    /// Whether its log is looked at for what becomes of the message alone.
    pub(crate) fn is_looked_at(&self, nonce: StreamNonce) -> bool {
        self.is_delete(nonce) || self.is_orphaned(nonce)
    }

    pub(crate) fn is_orphaned(&self, nonce: StreamNonce) -> bool {
        self.by_stream.get(&nonce).is_some_and(|relay| matches!(relay.stage, Stage::Orphaned))
    }

    /// The messages that the store has and that no owner is known to have begun.
    pub(crate) fn waiting(&self) -> Vec<StreamNonce> {
        let is_waiting = |relay: &Relay| matches!(relay.stage, Stage::Posted | Stage::Orphaned);
        self.by_stream.iter().filter(|(_, relay)| is_waiting(relay)).map(|(nonce, _)| *nonce).collect()
    }

    /// How the answer is paced, where its owner has not begun.
    pub(crate) fn paced(&self, nonce: StreamNonce) -> Option<Paced> {
        self.by_stream.get(&nonce).map(|relay| relay.paced)
    }

    /// The log shows that the owner has begun, or will not.
    pub(crate) fn begun(&mut self, nonce: StreamNonce, timers: &mut Timers) {
        let is_posted = |relay: &Relay| relay.what == What::Call && matches!(relay.stage, Stage::Posted);
        if self.by_stream.get(&nonce).is_some_and(is_posted) {
            self.remove(nonce);
            timers.clear(Reason::Relay(nonce));
        }
    }

    pub(crate) fn remove(&mut self, nonce: StreamNonce) -> Option<Relay> {
        let removed = self.by_stream.remove(&nonce);
        self.is_over |= removed.is_some() && self.by_stream.is_empty();
        removed
    }
}
