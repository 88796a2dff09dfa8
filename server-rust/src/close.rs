//! How connections are closed: one of them by a handler, or all of them by a server that goes away.

/// How a connection is closed, and when its client comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Close {
    /// The reconnection delay that the client is told, in milliseconds. It holds for this and for later connections of
    /// the stream. Without it, the delay stays as it is: by default the option `retry_ms`.
    pub retry_ms: Option<u64>,
    /// How long a connection that resumes the stream stays open before it is closed again, in milliseconds: 0 makes the
    /// client poll. Without it, the time stays as it is: by default there is none, and the connection stays open.
    pub hold_ms: Option<u64>,
}

impl Close {
    /// Tells the client to come back after `retry_ms` milliseconds.
    #[must_use]
    pub fn retry_ms(self, retry_ms: u64) -> Self {
        Self { retry_ms: Some(retry_ms), ..self }
    }

    /// Closes a connection that resumes the stream when it has been open for `hold_ms` milliseconds.
    #[must_use]
    pub fn hold_ms(self, hold_ms: u64) -> Self {
        Self { hold_ms: Some(hold_ms), ..self }
    }
}

/// How a server goes away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drain {
    /// After how many milliseconds clients come back at the earliest: as long as the restart takes. Without it the option
    /// `drain_retry_ms`.
    pub retry_ms: Option<u64>,
    /// Each client is told a delay that is longer by up to this much, in milliseconds, so that not all come back at
    /// once. Without it, the option `drain_spread_ms`.
    pub spread_ms: Option<u64>,
    /// How long to wait for connections to end and for calls to finish, in milliseconds since the first drain. Without
    /// it, the option `drain_within_ms`.
    pub within_ms: Option<u64>,
}

impl Drain {
    /// Clients come back after `retry_ms` milliseconds at the earliest.
    #[must_use]
    pub fn retry_ms(self, retry_ms: u64) -> Self {
        Self { retry_ms: Some(retry_ms), ..self }
    }

    /// Clients come back spread over `spread_ms` milliseconds.
    #[must_use]
    pub fn spread_ms(self, spread_ms: u64) -> Self {
        Self { spread_ms: Some(spread_ms), ..self }
    }

    /// Waits for `within_ms` milliseconds at most.
    #[must_use]
    pub fn within_ms(self, within_ms: u64) -> Self {
        Self { within_ms: Some(within_ms), ..self }
    }
}

/// A delay as a `retry` field has it: at most 49 days.
pub(crate) fn delay(ms: Option<u64>) -> Option<u32> {
    ms.map(|ms| u32::try_from(ms).unwrap_or(u32::MAX))
}
