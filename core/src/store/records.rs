//! What a store knows besides events.

use bytes::Bytes;

use crate::protocol::{ListChanged, Revision, StreamNonce};
use crate::stream::Seq;

/// What a store knows of a stream besides its events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The last stored position.
    pub head: Seq,
    /// The first position that was not trimmed away.
    pub low: Seq,
    /// The stream has its end.
    pub finished: bool,
    /// An end that is not in the log.
    pub tail: Option<Bytes>,
    /// The running hash at `head`.
    pub chain: u64,
    /// What it was opened with.
    pub about: Bytes,
    /// How often a reader was [claimed](super::EventStore::claim).
    pub claims: u64,
    /// The reconnection delay that was set for this stream.
    pub retry_ms: Option<u32>,
    /// The log is written by somebody else, who gave the last sign so many milliseconds ago. None for
    /// logs that this store object opened.
    pub owner_unseen_ms: Option<u64>,
}

/// What a store knows of a session besides its logs: enough to serve its readers elsewhere, or after
/// a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionRecord {
    /// The negotiated revision.
    pub revision: Option<Revision>,
    /// Who created the session: nobody else finds it (I7).
    pub principal: Option<Box<str>>,
    /// The reconnection delay of the session's streams in milliseconds.
    pub retry_ms: u32,
    /// The lists that the server said it announces changes of.
    pub list_changed: ListChanged,
    /// The stream of the session that belongs to no request.
    pub standalone: Option<StreamNonce>,
    /// Milliseconds since the session was created. Times are told as ages: processes have no common
    /// clock that an engine could compare with its own.
    pub age_ms: u64,
    /// Milliseconds since its owner gave the last sign.
    pub unseen_ms: u64,
}
