//! What is known of a log, besides what its machine knows: what is being written to it, and who reads it elsewhere.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::Ms;
use crate::protocol::StreamNonce;
use crate::store::{Append, Epoch, Hold, RunningLog, Ticket};
use crate::stream::Seq;

/// The logs without an end of a session that was taken over; none for any other write.
pub(crate) type Written = Vec<RunningLog>;

/// What is written.
pub(crate) enum Write {
    /// What the store keeps of the session, or whose it is.
    Hold(Hold),
    /// The same owner again, to hear which of the session's logs have no end. With the streams that have no end here,
    /// and the last position that is stored of each.
    Stock(Hold, BTreeMap<StreamNonce, Option<Seq>>),
    Append(Append),
    /// The last append that was confirmed, which the store has lost, and what has to be written after it.
    Again(Append, Option<Box<Self>>),
    /// The end of a log, with no machine that waits for the outcome.
    End(Append),
}

impl Write {
    /// The end that this write gives a log, if it gives one.
    pub(crate) fn end(&self) -> Option<&Bytes> {
        match self {
            Self::End(append) => append.end.as_ref(),
            Self::Again(_, next) => next.as_ref()?.end(),
            Self::Hold(_) | Self::Stock(..) | Self::Append(_) => None,
        }
    }
}

/// A write that the store has not answered. A stream has one at a time, and so has the session.
pub(crate) struct Writing {
    pub(crate) write: Write,
    pub(crate) epoch: Epoch,
    pub(crate) since: Ms,
    /// The number of the first try.
    pub(crate) first: u64,
    /// None during the pause between two tries.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) pauses: usize,
    /// The write may be done: a try has no answer.
    pub(crate) is_unsure: bool,
    /// Its time is over, and the senders that waited were told so.
    pub(crate) is_overdue: bool,
    /// The store may have been set back since it was asked: its answer may be from before that.
    pub(crate) is_suspect: bool,
}

/// A stream that other processes may read or write.
#[derive(Default)]
pub(crate) struct Watched {
    /// How many readers are known of.
    pub(crate) readers: u64,
    /// When the last reader here was counted: a number in the order of the questions to the store.
    pub(crate) counted: u64,
    /// The last reader that was counted may be one from here that got no answer. Such a reader takes the stream from
    /// nobody.
    pub(crate) is_unsure: bool,
    /// The log is looked at because of a hint.
    pub(crate) asking: bool,
    /// Another hint came meanwhile.
    pub(crate) again: bool,
}
