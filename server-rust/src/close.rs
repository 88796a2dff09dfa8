//! What is said when connections are closed: by a handler, and by a server that goes away.

/// How a connection is closed, and when its client comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Close {
    /// The reconnection delay that the client is told, in milliseconds, for this and later connections of the stream; the
    /// option `retry_ms` where there is none.
    pub retry_ms: Option<u32>,
    /// How long a connection that resumes the stream stays open before it is closed again, in milliseconds: 0 makes the client
    /// poll. Without it, it stays open.
    pub hold_ms: Option<u64>,
}

impl Close {
    /// Tells the client to come back after so many milliseconds.
    #[must_use]
    pub fn retry_ms(self, retry_ms: u32) -> Self {
        Self { retry_ms: Some(retry_ms), ..self }
    }

    /// Closes connections that resume the stream after so many milliseconds.
    #[must_use]
    pub fn hold_ms(self, hold_ms: u64) -> Self {
        Self { hold_ms: Some(hold_ms), ..self }
    }
}

/// How a server goes away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drain {
    /// When clients come back at the earliest, in milliseconds: what the restart takes. 5,000 where there is none, or the option
    /// `retry_ms` if that is more.
    pub retry_ms: Option<u32>,
    /// Each client is told up to this much more, in milliseconds, so that not all come back at once. Half of `retry_ms` where there is
    /// none.
    pub spread_ms: Option<u32>,
    /// How long to wait for connections to end, and for calls, in milliseconds from the first drain on; the option `drain_within_ms` where
    /// there is none.
    pub within_ms: Option<u64>,
}

impl Drain {
    /// Clients come back after so many milliseconds at the earliest.
    #[must_use]
    pub fn retry_ms(self, retry_ms: u32) -> Self {
        Self { retry_ms: Some(retry_ms), ..self }
    }

    /// Clients are spread over so many milliseconds.
    #[must_use]
    pub fn spread_ms(self, spread_ms: u32) -> Self {
        Self { spread_ms: Some(spread_ms), ..self }
    }

    /// Waits for so many milliseconds at most.
    #[must_use]
    pub fn within_ms(self, within_ms: u64) -> Self {
        Self { within_ms: Some(within_ms), ..self }
    }
}
