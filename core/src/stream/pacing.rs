//! The times and bounds that a stream machine keeps.

use super::Seq;

/// How a stream's connections are paced. Durations are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacing {
    /// The SSE `retry` of the stream until a close names another.
    pub retry_ms: u32,
    /// Longest silence on an open connection before a comment is written. 0 switches it off.
    pub keep_alive_ms: u64,
    /// How long the first bytes may wait for an event to go out with them.
    pub coalesce_ms: u64,
    /// The same where they are a comment only, which no client waits for: revisions without priming, and streams whose
    /// log the store has not created yet.
    pub first_comment_ms: u64,
    /// A connection is closed by the engine when it is older. 0 switches it off.
    pub max_connection_ms: u64,
    /// A connection is closed by the engine when it carried more. 0 switches it off.
    pub max_connection_bytes: u64,
    /// Events that may wait for a store that has not answered yet.
    pub max_unconfirmed: usize,
    /// Events handed to the store at once.
    pub max_batch: usize,
    /// Resumes of one stream after which `hold_ms` is no longer obeyed: some clients recurse once
    /// per reconnect.
    pub max_polls: u32,
    /// How long a connection waits for a store that cannot be read.
    pub store_wait_ms: u64,
}

/// What the owner of a stream has asked of the connections of its readers. It is kept with the log, so that readers in other
/// processes are paced alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paced {
    /// The SSE `retry` of the stream, in milliseconds, where a close has named one.
    pub retry_ms: Option<u32>,
    /// How long a connection that resumes stays open, in milliseconds, where a close has named a time.
    pub hold_ms: Option<u64>,
    /// How many times readers in other processes were closed. A reader that sees this grow is closed.
    pub closes: u64,
    /// The last position that was published before the last of these closes. What comes later does not go out before it.
    pub closed_at: Seq,
}

impl Paced {
    /// For stores: what [`from_bytes`](Self::from_bytes) reads.
    pub fn to_bytes(self) -> [u8; 29] {
        let (retry_ms, hold_ms) = (self.retry_ms.unwrap_or_default(), self.hold_ms.unwrap_or_default());
        let mut bytes = [0; 29];
        bytes[0] = u8::from(self.retry_ms.is_some()) | u8::from(self.hold_ms.is_some()) << 1;
        bytes[1..5].copy_from_slice(&retry_ms.to_be_bytes());
        bytes[5..13].copy_from_slice(&hold_ms.to_be_bytes());
        bytes[13..21].copy_from_slice(&self.closes.to_be_bytes());
        bytes[21..].copy_from_slice(&self.closed_at.to_be_bytes());
        bytes
    }

    /// What was written by [`to_bytes`](Self::to_bytes); none of other bytes. What a later version has written behind it is
    /// left out.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (flags, bytes) = bytes.split_first()?;
        let (retry_ms, bytes) = bytes.split_first_chunk()?;
        let (hold_ms, bytes) = bytes.split_first_chunk()?;
        let (closes, bytes) = bytes.split_first_chunk()?;
        let (closed_at, _) = bytes.split_first_chunk()?;
        Some(Self {
            retry_ms: (flags & 1 != 0).then_some(u32::from_be_bytes(*retry_ms)),
            hold_ms: (flags & 2 != 0).then_some(u64::from_be_bytes(*hold_ms)),
            closes: u64::from_be_bytes(*closes),
            closed_at: Seq::from_be_bytes(*closed_at),
        })
    }
}

impl Default for Pacing {
    fn default() -> Self {
        Self {
            retry_ms: 3_000,
            keep_alive_ms: 15_000,
            coalesce_ms: 20,
            first_comment_ms: 100,
            max_connection_ms: 0,
            max_connection_bytes: 0,
            max_unconfirmed: 1_024,
            max_batch: 256,
            max_polls: 500,
            store_wait_ms: 10_000,
        }
    }
}
