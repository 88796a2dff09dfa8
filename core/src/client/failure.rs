//! What ends a stream before its requests are answered.

use std::fmt;

use crate::ErrorCode;
use crate::protocol::RequestId;
use crate::protocol::jsonrpc::{CONNECTION_CLOSED, write_error_with_data};

/// Why a stream does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The server does not know the session: 404 (W-084, W-085). A new one has to be initialized.
    SessionLost,
    /// The server cannot continue the stream: it refused the cursor, or has nothing for it, with this status.
    StreamLost {
        /// The HTTP status, 204 or 4xx.
        status: u16,
    },
    /// The server has no such stream: 405 (W-052).
    NoStream,
    /// The server wants other credentials.
    Unauthorized {
        /// The HTTP status, 401 or 403.
        status: u16,
    },
    /// The answer is nothing that a stream can start with.
    Unexpected {
        /// The HTTP status.
        status: u16,
    },
    /// The connection ended, or fell silent, before it carried an event id (W-047).
    NotResumable,
    /// Nothing came of any try, within the bounds of the [`Options`](super::Options).
    GaveUp {
        /// How many there were.
        attempts: u32,
        /// For how long, in milliseconds.
        for_ms: u64,
    },
    /// An event is larger than the bound. It would be again after a resume.
    TooLarge {
        /// Bytes that had arrived.
        bytes: usize,
        /// The bound in bytes.
        max: usize,
    },
}

impl Failure {
    /// The code of the failure, the same in every language.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::SessionLost => ErrorCode::SessionLost,
            Self::StreamLost { .. } => ErrorCode::StreamLost,
            Self::NoStream => ErrorCode::NoStream,
            Self::Unauthorized { .. } => ErrorCode::Unauthorized,
            Self::Unexpected { .. } => ErrorCode::UnexpectedAnswer,
            Self::NotResumable => ErrorCode::NotResumable,
            Self::GaveUp { .. } => ErrorCode::GaveUp,
            Self::TooLarge { .. } => ErrorCode::EventTooLarge,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SessionLost => f.write_str("the server does not know the session any more (HTTP 404)"),
            Self::StreamLost { status } => write!(f, "the server cannot continue the stream (HTTP {status})"),
            Self::NoStream => f.write_str("the server has no such stream (HTTP 405)"),
            Self::Unauthorized { status } => write!(f, "the server refused the credentials (HTTP {status})"),
            Self::Unexpected { status } => write!(f, "the server did not answer with a stream (HTTP {status})"),
            Self::NotResumable => f.write_str("the connection was lost before the response, and carried no event id"),
            Self::GaveUp { attempts, for_ms } => {
                write!(f, "nothing came of {attempts} tries to resume the stream in {for_ms} ms")
            }
            Self::TooLarge { bytes, max } => write!(f, "an event of {bytes} bytes is larger than {max} bytes"),
        }
    }
}

impl std::error::Error for Failure {}

/// The error response of each request that gets no other (F-80): code -32000, and the failure's own code in
/// `error.data.tailrope`.
pub fn failure_payloads(requests: &[RequestId], failure: &Failure) -> Vec<String> {
    let data = format!(r#"{{"tailrope":"{}"}}"#, failure.code());
    let payload = |request: &RequestId| {
        let mut out = Vec::with_capacity(192);
        write_error_with_data(&mut out, &request.to_json(), CONNECTION_CLOSED, &failure.to_string(), Some(&data));
        // Made of strings.
        String::from_utf8(out).unwrap_or_default()
    };
    requests.iter().map(payload).collect()
}
