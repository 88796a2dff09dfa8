//! How the answer to an HTTP request starts.

use crate::protocol::{Dialect, Refusal, Wording, retry_after_s};

/// How the answer to an HTTP request starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerHead {
    /// The HTTP status.
    pub status: u16,
    /// The value of `Content-Type`; none when there is no body.
    pub content_type: Option<&'static str>,
    /// The answer has the session id header.
    pub names_session: bool,
    /// The body is the JSON-RPC error of a request that was not taken.
    pub is_refusal: bool,
}

impl AnswerHead {
    /// A stream of events.
    pub const EVENT_STREAM: Self = Self { content_type: Some("text/event-stream"), ..Self::EMPTY };
    /// The answers to the requests of a POST.
    pub const JSON: Self = Self { content_type: Some("application/json"), ..Self::EMPTY };
    /// There is nothing to come back for.
    pub const NO_CONTENT: Self = Self { status: 204, ..Self::EMPTY };
    /// An answer without a body. Also used if it was not yet known how the answer starts.
    pub const EMPTY: Self = Self { status: 200, content_type: None, names_session: true, is_refusal: false };

    /// The messages of a POST are taken. The Python SDK names the session there, and the type of a body that it has not.
    pub fn accepted(dialect: &Dialect) -> Self {
        match dialect.wording {
            Wording::Python => Self { status: 202, ..Self::JSON },
            Wording::TypeScript => Self { status: 202, names_session: false, ..Self::EMPTY },
        }
    }

    /// The head of a refusal.
    pub fn refused(refusal: &Refusal, dialect: &Dialect) -> Self {
        Self { status: refusal.status, names_session: refusal.names_session(dialect), is_refusal: true, ..Self::JSON }
    }

    /// The value of `Retry-After`, in seconds, if the answer has it: see [`Refusal::retry_after_s`].
    pub fn retry_after_s(&self) -> Option<u32> {
        retry_after_s(self.status)
    }
}
