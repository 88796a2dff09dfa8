//! What a store can be asked.

use bytes::Bytes;
use tailrope_core::store::{Append, Attach, Epoch, Hold, Outcome, ReadLimit, StoreError};
use tailrope_core::stream::Seq;

/// What a store can be asked.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Hold(Hold),
    Append(Epoch, Append),
    Attach(Attach),
    Read(Seq, ReadLimit),
    Take(Epoch, u64),
    Withdraw(Bytes),
    Release(Epoch),
    Settle(Epoch, Seq),
    DropStream(Epoch),
    DropSession(Epoch),
}

impl Operation {
    /// Whether it is about the session as a whole.
    pub(crate) fn is_of_session(&self) -> bool {
        matches!(
            self,
            Self::Hold(_)
                | Self::Take(..)
                | Self::Release(_)
                | Self::DropSession(_)
                | Self::Attach(Attach { stream: None, .. })
        )
    }

    /// Whether it leaves a message for the session's owner.
    pub(crate) fn is_post(&self) -> bool {
        matches!(self, Self::Attach(Attach { message: Some(_), .. }))
    }

    /// What a caller is told instead of an answer; none where it waits for none.
    pub(crate) fn failure(&self, error: StoreError) -> Option<Outcome> {
        match self {
            Self::Hold(_) => Some(Outcome::Held(Err(error))),
            Self::Append(..) => Some(Outcome::Done(Err(error))),
            Self::Attach(_) => Some(Outcome::Attached(Err(error))),
            Self::Read(..) => Some(Outcome::Page(Err(error))),
            Self::Take(..) => Some(Outcome::Taken(Err(error))),
            Self::Withdraw(_) => Some(Outcome::Withdrawn(Err(error))),
            Self::Release(_) | Self::Settle(..) | Self::DropStream(_) | Self::DropSession(_) => None,
        }
    }

    /// Whether it holds the response of a request.
    pub(crate) fn has_end(&self) -> bool {
        match self {
            Self::Append(_, append) => append.events.iter().any(|event| event.kind.is_response()),
            _ => false,
        }
    }
}
