//! Ends that the engine makes up (I13). They are not in the log.

use bytes::Bytes;

use crate::protocol::RequestId;
use crate::protocol::jsonrpc::{INTERNAL_ERROR, REQUEST_CANCELLED, write_error};

/// Why a request ends without a response of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynthesizedEnd {
    /// The client cancelled it (W-028).
    Cancelled,
    /// The session ended.
    SessionEnded,
    /// The process is going away, and the client cannot resume.
    Draining,
    /// The store did not take the response.
    Unstored,
    /// The stream cannot be resumed: expired, purged or never there.
    Lost,
}

impl SynthesizedEnd {
    /// The JSON-RPC error code.
    pub fn code(self) -> i32 {
        match self {
            Self::Cancelled => REQUEST_CANCELLED,
            Self::SessionEnded | Self::Draining | Self::Unstored | Self::Lost => INTERNAL_ERROR,
        }
    }

    /// The JSON-RPC error message.
    pub fn message(self) -> &'static str {
        match self {
            Self::Cancelled => "Request cancelled",
            Self::SessionEnded => "The session ended before the request completed",
            Self::Draining => "The server is shutting down; send the request again",
            Self::Unstored => "The response could not be stored",
            Self::Lost => "The stream of this request is no longer available",
        }
    }
}

/// The error response for one request, or an array of them for the requests of a batch.
pub fn end_payload(requests: &[RequestId], end: SynthesizedEnd) -> Bytes {
    let mut out = Vec::with_capacity(128);
    match requests {
        [only] => write_error(&mut out, Some(only), end.code(), end.message()),
        several => {
            for (at, id) in several.iter().enumerate() {
                out.push(if at == 0 { b'[' } else { b',' });
                write_error(&mut out, Some(id), end.code(), end.message());
            }
            if several.is_empty() {
                write_error(&mut out, None, end.code(), end.message());
            } else {
                out.push(b']');
            }
        }
    }
    out.into()
}
