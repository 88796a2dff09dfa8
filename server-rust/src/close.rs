//! What a handler says when it closes a connection.

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
