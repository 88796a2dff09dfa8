//! What can go wrong in a store.

use std::error::Error;
use std::fmt;

use crate::ErrorCode;

/// Why a store did not do what it was asked.
///
/// The text is for the server's own log and handlers. It never reaches a client (I9).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The event is larger than the store takes.
    TooLarge {
        /// Its size in bytes.
        bytes: usize,
        /// The bound in bytes.
        max: usize,
    },
    /// The store holds as much as it may, and nothing of it can be freed now.
    Full {
        /// The bound in bytes.
        max: usize,
    },
    /// As many messages wait for the session's owner as may.
    InboxFull {
        /// The bound, in messages or in bytes.
        max: usize,
    },
    /// There is no such log, or it has ended.
    Gone,
    /// The position is not the next one of the log.
    OutOfOrder,
    /// The log is not what was stored before: the store lost events, or was set back.
    RolledBack,
    /// Another process writes the log.
    Fenced,
    /// The store could not be reached, or failed.
    Failed(String),
    /// The store did not answer in time. Whether it did what it was asked is not known.
    TimedOut {
        /// How long it was waited for, in milliseconds.
        after_ms: u64,
    },
}

impl StoreError {
    /// Whether the store as a whole does not take what is to be stored, and not this event or session alone.
    pub(crate) fn is_of_all(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::Failed(_))
    }

    /// The code of the error, the same in every language.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::TooLarge { .. } => ErrorCode::TooLarge,
            Self::Full { .. } => ErrorCode::StoreFull,
            Self::InboxFull { .. } => ErrorCode::InboxFull,
            Self::Gone => ErrorCode::Gone,
            Self::OutOfOrder => ErrorCode::OutOfOrder,
            Self::RolledBack => ErrorCode::RolledBack,
            Self::Fenced => ErrorCode::Fenced,
            Self::Failed(_) => ErrorCode::StoreFailed,
            Self::TimedOut { .. } => ErrorCode::StoreTimedOut,
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { bytes, max } => {
                write!(f, "the event has {bytes} bytes, more than max_event_bytes = {max}")
            }
            Self::Full { max } => write!(
                f,
                "the event store is full: it holds max_bytes = {max}, all of it of running streams. The event is not stored"
            ),
            Self::InboxFull { max } => write!(
                f,
                "messages wait for the process that owns the session, as many as may (the bound is {max}). The message is not sent"
            ),
            Self::Gone => f.write_str("the stream's log is gone or has ended"),
            Self::OutOfOrder => f.write_str("the position is not the next one of the log"),
            Self::RolledBack => f.write_str("the event store lost events that it had stored"),
            Self::Fenced => f.write_str("another process writes the stream's log"),
            Self::Failed(what) => write!(f, "the event store failed: {what}"),
            Self::TimedOut { after_ms } => write!(f, "the event store did not answer in {after_ms} ms"),
        }
    }
}

impl Error for StoreError {}
