//! The times and bounds that a stream machine keeps.

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
