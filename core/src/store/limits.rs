//! The bounds of a store (I11).

/// What a store may hold. Bytes count what an event costs in memory, not its payload alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Events of one stream.
    pub max_events_per_stream: usize,
    /// Bytes of one stream.
    pub max_bytes_per_stream: usize,
    /// Bytes of all streams of one session.
    pub max_bytes_per_session: usize,
    /// Bytes of everything.
    pub max_bytes: usize,
    /// A larger event is refused. A response is sent all the same, once, to the connection that reads its stream.
    pub max_event_bytes: usize,
    /// How long a finished stream stays readable, in milliseconds, where its own pace does not say.
    pub retention_ms: u64,
    /// Events older than this are trimmed when the stream is written again, in milliseconds.
    pub max_age_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        const MIB: usize = 1 << 20;
        Self {
            max_events_per_stream: 10_000,
            max_bytes_per_stream: 8 * MIB,
            max_bytes_per_session: 64 * MIB,
            max_bytes: 512 * MIB,
            max_event_bytes: 64 * MIB,
            retention_ms: 10 * 60 * 1_000,
            max_age_ms: 60 * 60 * 1_000,
        }
    }
}
