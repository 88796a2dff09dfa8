//! When a handler that sends lets the writers of connections run.
//!
//! A handler that sends without a pause does so after a number of events or bytes, and at the first event after a time.
//! So others have their turn, and a reader that keeps up has its own before the log's bounds are reached. After a
//! pause, the first event is written at once: its reader gets it before the handler's next pause (F-46), and the
//! handler is not held up.

const MAX_EVENTS: usize = 128;
const MAX_BYTES: usize = 64 << 10;
const MAX_MS: u64 = 1;

/// What a host knows of its event loop when a handler sends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turn {
    /// How many milliseconds ago the handler's session was last told anything but [`Pause::None`].
    pub since_ms: u64,
    /// Writers have run since then, so the handler has paused. Hosts that cannot write at once never set it.
    pub has_paused: bool,
}

/// What a host does before a handler that has sent goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Nothing.
    None,
    /// Write what there is, at once.
    Flush,
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

    /// A handler has sent an event of `bytes` bytes. Returns what the host does next.
    pub fn sent(&mut self, bytes: usize, turn: Turn) -> Pause {
        self.events += 1;
        self.bytes += bytes;
        let is_late = turn.since_ms >= MAX_MS;
        if self.events >= self.max_events || self.bytes >= self.max_bytes || (is_late && !turn.has_paused) {
            (self.events, self.bytes) = (0, 0);
            return Pause::Yield;
        }
        if is_late { Pause::Flush } else { Pause::None }
    }
}
