//! What is known of the requests of a session that are relayed to another process.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::Ms;
use crate::engine::sessions::timers::{Reason, Timers};
use crate::protocol::{Refusal, RequestId, StreamNonce};
use crate::session::{Asked, refusal_payload};
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

/// How far a relay is.
pub(crate) enum Stage {
    /// The store is asked to take the message.
    Posting(Ticket),
    /// The store could not tell, and is asked again.
    PostAgain,
    /// The owner has the message, or will have it.
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
    /// The requests of a call, and what they ask for.
    pub(crate) calls: Vec<(RequestId, Asked)>,
    /// How calls of its tool are paced here, until the owner has begun the call and says how.
    pub(crate) paced: Paced,
    /// The message, until the store has it.
    pub(crate) message: Option<Message>,
    /// A try to post the message got no answer in time: the store may have it.
    pub(crate) is_unsure: bool,
    /// By when the owner should have begun the message.
    pub(crate) due: Ms,
    /// The time was over once, and the message was given more.
    pub(crate) is_late: bool,
    pub(crate) stage: Stage,
    /// What a client that was sent nothing is told if the message does not begin.
    pub(crate) refusal: Refusal,
}

impl Relay {
    /// What its log is ended with if the message does not begin.
    pub(crate) fn end(&self) -> Bytes {
        let requests: Vec<_> = self.calls.iter().map(|(id, _)| id.clone()).collect();
        refusal_payload(&requests, &self.refusal)
    }
}

/// The messages of a session that are on their way.
#[derive(Default)]
pub(crate) struct Relays {
    pub(crate) by_stream: BTreeMap<StreamNonce, Relay>,
    /// The last of them has ended.
    is_over: bool,
}

impl Relays {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_stream.is_empty()
    }

    /// Whether the last relay has ended since this was last asked.
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

    /// Whether its log is looked at only to see what becomes of the message.
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

    /// How the answer is paced, if the owner has not begun the call.
    pub(crate) fn paced(&self, nonce: StreamNonce) -> Option<Paced> {
        self.by_stream.get(&nonce).map(|relay| relay.paced)
    }

    /// The log shows that the owner has begun the call, or will not begin it.
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
