//! What is known of a log, beside what its machine knows: what is being written to it, and who reads it elsewhere.

use std::collections::HashMap;

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
    /// Whose it is already, to hear which of its logs have no end; with the streams that have none, and what is stored of them.
    Stock(Hold, HashMap<StreamNonce, Option<Seq>>),
    Append(Append),
    /// The last append that was confirmed, which the store has lost; and what is to be written behind it.
    Again(Append, Option<Box<Self>>),
    /// The end of a log, of which no machine waits to hear.
    End(Append),
}

impl Write {
    /// The end that it gives a log.
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
    /// None in a pause.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) pauses: usize,
    /// It may be done: a try has no answer.
    pub(crate) is_unsure: bool,
    /// Its time is over, and the senders that waited were told.
    pub(crate) is_overdue: bool,
    /// The store may have been set back since it was asked: an answer may be older than that.
    pub(crate) is_suspect: bool,
}

/// A stream that other processes may read or write.
#[derive(Default)]
pub(crate) struct Watched {
    /// How many readers are known of.
    pub(crate) readers: u64,
    /// When the last reader that is here was counted, among the numbers of what the store is asked.
    pub(crate) counted: u64,
    /// The last of them may be one from here that got no answer: it takes the stream from nobody.
    pub(crate) is_unsure: bool,
    /// The log is looked at because of a hint.
    pub(crate) asking: bool,
    /// Another hint came meanwhile.
    pub(crate) again: bool,
}
