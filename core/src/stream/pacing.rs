//! The times and bounds that a stream machine keeps.

use super::Seq;

/// Polls that an engine asks for in a second, as far as it can. One costs its process 0.6 ms of a processor in Python and
/// 0.4 ms in Node (benches/results): so polls take a tenth of one at most, and leave the rest to the calls that are polled
/// for.
const POLLS_PER_SECOND: u64 = 150;
/// Streams whose clients come back as their servers say, however often that is.
const FREE_STREAMS: u64 = 300;
/// The longest delay that clients are told because there are many of them, in milliseconds, before it is spread.
pub const MAX_FLOOR_MS: u32 = 60_000;

/// The least `retry`, in milliseconds, where the clients of so many streams are expected to come back: 0 up to `FREE_STREAMS`. Also
/// when all came at once, and come again spread over this time behind it, about `POLLS_PER_SECOND` do. It is a function of what
/// there is, not of how often they came, so it settles: as many streams wait, however long their clients are told to.
pub fn retry_floor_ms(awaited: u64) -> u32 {
    let floor_ms = awaited.saturating_sub(FREE_STREAMS).saturating_mul(1_000) / POLLS_PER_SECOND;
    u32::try_from(floor_ms).unwrap_or(u32::MAX).min(MAX_FLOOR_MS)
}

/// As [`max_connection_ms`](Pacing::max_connection_ms): as the connection's cut is [expected](super::Spread::expected).
pub const AUTO: u64 = u64::MAX;

/// How a stream's connections are paced. Durations are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacing {
    /// The SSE `retry` of the stream until a close names another.
    pub retry_ms: u32,
    /// Longest silence on an open connection before a comment is written. 0 switches it off.
    pub keep_alive_ms: u64,
    /// How long the first bytes may wait for an event to go out with them. Those of the standalone stream wait for nothing.
    pub coalesce_ms: u64,
    /// The same where they are a comment only, which no client waits for: revisions without priming, and streams whose
    /// log the store has not created yet.
    pub first_comment_ms: u64,
    /// A connection is closed by the engine when it is older. 0 switches it off. [`AUTO`]: shortly before something else cuts
    /// it; comments then go out before a silence for which it is cut, too.
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
/// processes are paced alike. What is none is as the [`Pacing`] of the process that serves the reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paced {
    /// The SSE `retry` of the stream, in milliseconds, where its opening or a close has named one.
    pub retry_ms: Option<u32>,
    /// How long a connection that resumes stays open, in milliseconds, where its opening or a close has named a time.
    pub hold_ms: Option<u64>,
    /// A connection is closed when it is older, in milliseconds. 0 switches that off.
    pub max_connection_ms: Option<u64>,
    /// A connection is closed when it carried more. 0 switches that off.
    pub max_connection_bytes: Option<u64>,
    /// How long the log is kept behind its end, in milliseconds. None is as the store says.
    pub retention_ms: Option<u64>,
    /// How many times the owner closed the stream's connections while none was to its own process. A reader in another
    /// process that sees this grow is closed.
    pub closes: u64,
    /// The last position that was published before the last of these closes. What comes later does not go out before it.
    pub closed_at: Seq,
}

impl Paced {
    /// For stores: what [`from_bytes`](Self::from_bytes) reads.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = vec![0];
        let named = [self.retry_ms.map(u64::from), self.hold_ms, self.max_connection_ms, self.max_connection_bytes];
        let told = [self.retention_ms, Some(self.closes), Some(self.closed_at)];
        for (at, value) in named.into_iter().chain(told).enumerate() {
            bytes[0] |= u8::from(value.is_some()) << at;
            bytes.extend_from_slice(&value.unwrap_or_default().to_be_bytes());
        }
        bytes
    }

    /// What was written by [`to_bytes`](Self::to_bytes); none of other bytes. What a later version has written behind it is
    /// left out.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (flags, bytes) = bytes.split_first()?;
        let (values, _) = bytes.as_chunks::<8>();
        let value = |at: usize| values.get(at).map(|value| u64::from_be_bytes(*value));
        let named = |at: usize| value(at).filter(|_| flags >> at & 1 != 0);
        Some(Self {
            closes: value(5)?,
            closed_at: value(6)?,
            retry_ms: named(0).map(|retry_ms| u32::try_from(retry_ms).unwrap_or(u32::MAX)),
            hold_ms: named(1),
            max_connection_ms: named(2),
            max_connection_bytes: named(3),
            retention_ms: named(4),
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
            max_connection_ms: AUTO,
            max_connection_bytes: 0,
            max_unconfirmed: 1_024,
            max_batch: 256,
            max_polls: 500,
            store_wait_ms: 10_000,
        }
    }
}
