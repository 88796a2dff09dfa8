//! What is asked of a store, and what became of it.

use std::time::{Duration, Instant};

use crate::protocol::StreamNonce;
use bytes::Bytes;

use crate::store::{Append, Attach, Epoch, Hold, Message, Name, ReadLimit, StoreError, Ticket};
use crate::stream::Seq;
use crate::sync::Arc;

/// What is asked of a session. Each is named after the method of [`EventStore`](crate::store::EventStore) that says what
/// is to be done. The outcome of a `Hold` is [`Held`](crate::store::Outcome::Held), of an `Attach`
/// [`Attached`](crate::store::Outcome::Attached), of a `Take` [`Taken`](crate::store::Outcome::Taken), of a `Withdraw`
/// [`Withdrawn`](crate::store::Outcome::Withdrawn), of a `Read` [`Page`](crate::store::Outcome::Page), of anything else
/// [`Done`](crate::store::Outcome::Done).
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "they are the parameters of these methods")]
pub enum Ask {
    Hold(Hold),
    Append {
        nonce: StreamNonce,
        epoch: Epoch,
        append: Append,
    },
    Attach(Attach),
    Read {
        nonce: StreamNonce,
        after: Seq,
        limit: ReadLimit,
    },
    Take {
        epoch: Epoch,
        after: u64,
    },
    Withdraw {
        nonce: StreamNonce,
        end: Bytes,
    },
    Release {
        epoch: Epoch,
    },
    Settle {
        nonce: StreamNonce,
        epoch: Epoch,
        seq: Seq,
    },
    DropStream {
        nonce: StreamNonce,
        epoch: Epoch,
    },
    DropSession {
        epoch: Epoch,
    },
    /// The session, and these logs of it, are still in use: they do not expire. Only Redis asks itself for this.
    #[doc(hidden)]
    Keep {
        nonces: Vec<StreamNonce>,
    },
}

impl Ask {
    /// Whether it changes nothing.
    pub fn is_question(&self) -> bool {
        match self {
            Self::Attach(attach) => attach.message.is_none() && (!attach.counts || attach.stream.is_none()),
            Self::Read { .. } => true,
            _ => false,
        }
    }

    /// Whether it says whose a session or a message is. A store that loses that together with the owner runs a call twice, or
    /// one whose client was told that it never runs. So it is on the disk before it is answered, however durable events are (O1).
    pub fn is_claim(&self) -> bool {
        matches!(
            self,
            Self::Hold(_) | Self::Take { .. } | Self::Withdraw { .. } | Self::Release { .. } | Self::DropSession { .. }
        )
    }

    /// The one log that it is about.
    pub fn nonce(&self) -> Option<StreamNonce> {
        match self {
            Self::Append { nonce, .. }
            | Self::Read { nonce, .. }
            | Self::Withdraw { nonce, .. }
            | Self::Settle { nonce, .. }
            | Self::DropStream { nonce, .. } => Some(*nonce),
            Self::Attach(attach) => attach.stream,
            _ => None,
        }
    }

    /// Whether it takes room, and frees none: the end of a log counts as what frees it later.
    pub fn grows(&self) -> bool {
        match self {
            Self::Hold(hold) => hold.seen.is_none(),
            Self::Append { append, .. } => append.end.is_none(),
            Self::Attach(attach) => attach.message.is_some(),
            _ => false,
        }
    }

    /// Of payloads.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Append { append, .. } => append.bytes(),
            Self::Attach(attach) => attach.message.as_ref().map_or(0, Message::bytes),
            _ => 0,
        }
    }
}

/// An operation that waits, or is under way.
pub struct Op {
    /// The session. Its name may be any text, and is a part of the names of its logs.
    pub session: Arc<str>,
    /// What it is asked.
    pub ask: Ask,
    /// None where nobody waits for an answer.
    pub ticket: Option<Ticket>,
    /// An earlier try of it got no answer: it may be done.
    pub is_unsure: bool,
    /// When it was asked.
    pub(super) since: Instant,
    /// It failed together with others. It is tried by itself, so that it harms no other (I9).
    pub(super) is_alone: bool,
}

impl Op {
    /// When it was asked.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Whether its time is over. What has no answer is tried until it is done: nobody would ask for it again.
    pub(super) fn is_over(&self, now: Instant, timeout: Duration) -> bool {
        self.ticket.is_some() && now.saturating_duration_since(self.since) >= timeout
    }

    pub(super) fn name(&self) -> Option<Name> {
        self.ticket.as_ref().map(Ticket::name)
    }

    /// What it is told when its time is over. What writes may be done, or can be as soon as the store is there again:
    /// its caller asks again (rule 10).
    pub(super) fn too_late(&self, now: Instant, what: &str) -> StoreError {
        let is_asked_again = match &self.ask {
            Ask::Hold(_) | Ask::Append { .. } | Ask::Take { .. } | Ask::Withdraw { .. } => true,
            Ask::Attach(attach) => attach.message.is_some(),
            _ => false,
        };
        if !is_asked_again {
            return StoreError::Failed(what.to_owned());
        }
        let waited = now.saturating_duration_since(self.since).as_millis();
        StoreError::TimedOut { after_ms: waited.try_into().unwrap_or(u64::MAX) }
    }
}

/// Why a batch was not done. An operation that the store refuses is no fault: it has its error as its outcome.
#[derive(Clone, Debug)]
pub struct Fault {
    /// What happened, for the log and the handlers that wait, in words that name no address, password or data.
    pub what: String,
    /// What is to be done about it.
    pub kind: Kind,
    /// The batch was sent, and may be done. With false nothing of it was done.
    pub was_sent: bool,
}

/// What is to be done about a [`Fault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The store cannot be reached, or is busy. The batch is tried again, until the time of those who wait for an answer is
    /// over.
    Passes,
    /// The store does nothing of that kind for anybody. Those who wait for an answer are told at once.
    Lasts,
    /// One of the operations is at fault. Each is tried by itself. Where it fails so alone, the one that waits for it is told.
    OfOne,
}
