//! What a stream's log holds.

use std::sync::Arc;

use bytes::Bytes;

/// Position in one stream. The first event is 1; 0 is the priming position.
pub type Seq = u64;

/// What an event means for its stream's life and retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// A notification. First to go when a log is over its bounds.
    Progress = 0,
    /// A response while other requests of the same stream are still open (batches).
    Answer = 1,
    /// A request of the server to the client. Kept until it is answered.
    Question = 2,
    /// The last response: it ends the stream. Kept until retention ends.
    Terminal = 3,
}

impl EventKind {
    /// Whether it answers a request.
    pub fn is_response(self) -> bool {
        matches!(self, Self::Answer | Self::Terminal)
    }
}

/// An event on its way to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// What the event means.
    pub kind: EventKind,
    /// The payload, opaque here.
    pub payload: Bytes,
    /// Comes back in [`Stored`](super::Output::Stored) or [`Unstored`](super::Output::Unstored);
    /// 0 when nobody waits for it.
    pub token: u64,
}

/// An event that the store holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    /// Its position.
    pub seq: Seq,
    /// What the event means.
    pub kind: EventKind,
    /// Its chain tag.
    pub tag: u32,
    /// The bytes that every reader gets: encoded once, shared by all.
    pub frame: Arc<[u8]>,
}

/// An answer of the store to a read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Events after the asked position, in order. Positions may be missing where the log was trimmed.
    pub events: Vec<StoredEvent>,
    /// The last position that the store holds.
    pub head: Seq,
    /// The first position that was not trimmed away (head + 1 when all were).
    pub low: Seq,
    /// The tag of the event at the asked position; none when it was trimmed away.
    pub tag_at: Option<u32>,
}
