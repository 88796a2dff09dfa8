//! When a handler that sends lets the writers of connections run.
//!
//! A handler that sends without a pause does so after a number of events or bytes, and at the first event after a time.
//! So others have their turn, and a reader that keeps up has its own before the log's bounds are reached. A handler that
//! pauses lets them run anyway: what it has sent leaves in that turn of its event loop (F-46).

const MAX_EVENTS: usize = 128;
const MAX_BYTES: usize = 64 << 10;
const MAX_MS: u64 = 1;

/// What a host does before a handler that has sent goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Nothing.
    None,
    /// Let the event loop turn.
    Yield,
}

/// Counts what the handlers of a session send.
#[derive(Debug)]
pub struct Turns {
    max_events: usize,
    max_bytes: usize,
    events: usize,
    bytes: usize,
}

impl Turns {
    /// For logs with these bounds: a reader has its turn four times before a bound is reached.
    pub fn new(max_events_per_stream: usize, max_bytes_per_stream: usize) -> Self {
        Self {
            max_events: (max_events_per_stream / 4).clamp(1, MAX_EVENTS),
            max_bytes: (max_bytes_per_stream / 4).min(MAX_BYTES),
            events: 0,
            bytes: 0,
        }
    }

    /// A handler has sent an event of `bytes` bytes. `since_ms` is how long the event loop has not turned, as far as the
    /// handler's session knows. Returns what the host does next.
    pub fn sent(&mut self, bytes: usize, since_ms: u64) -> Pause {
        self.events += 1;
        self.bytes += bytes;
        if self.events < self.max_events && self.bytes < self.max_bytes && since_ms < MAX_MS {
            return Pause::None;
        }
        (self.events, self.bytes) = (0, 0);
        Pause::Yield
    }
}
