//! Ends that the engine makes up (I13). They are not in the log.

use std::borrow::Cow;

use bytes::Bytes;

use crate::protocol::jsonrpc::{INTERNAL_ERROR, REQUEST_CANCELLED, write_error};
use crate::protocol::{Origin, Refusal, RequestId};

/// Why a request ends without a response of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynthesizedEnd {
    /// The client cancelled it (W-028).
    Cancelled,
    /// The session ended.
    SessionEnded,
    /// The process is going away, and the client cannot resume.
    Draining,
    /// The process goes away before the call has ended.
    Stopped,
    /// The response is no JSON.
    Unwritable,
    /// The store did not take the response.
    Unstored,
    /// The response is larger than the store takes (F-60).
    TooLarge {
        /// Its size in bytes.
        bytes: usize,
        /// The bound in bytes.
        max: usize,
    },
    /// The process that ran it is gone.
    OwnerLost,
    /// The store lost what it had of the stream.
    StoreLost,
    /// The stream cannot be resumed: expired, purged or never there.
    Lost,
}

impl SynthesizedEnd {
    /// The JSON-RPC error code.
    pub fn code(self) -> i32 {
        match self {
            Self::Cancelled => REQUEST_CANCELLED,
            Self::SessionEnded
            | Self::Draining
            | Self::Stopped
            | Self::Unwritable
            | Self::Unstored
            | Self::TooLarge { .. }
            | Self::OwnerLost
            | Self::StoreLost
            | Self::Lost => INTERNAL_ERROR,
        }
    }

    /// The JSON-RPC error message.
    pub fn message(self) -> Cow<'static, str> {
        let text = match self {
            Self::Cancelled => "Request cancelled",
            Self::SessionEnded => "The session ended before the request completed",
            Self::Draining => "The server is shutting down; send the request again",
            Self::Stopped => "The server stopped before the call had ended",
            Self::Unwritable => "The response cannot be written as JSON",
            Self::Unstored => "The response could not be stored",
            Self::TooLarge { bytes, max } => {
                return format!("The response of {bytes} bytes is larger than the {max} bytes that the server keeps")
                    .into();
            }
            Self::OwnerLost => "The server process that ran this request is gone",
            Self::StoreLost => "The server lost stored events of this request",
            Self::Lost => "The stream of this request is no longer available",
        };
        text.into()
    }

    /// What the record of a call says whose response the store had not answered for by then.
    pub(super) fn unstored_cause(self) -> &'static str {
        match self {
            Self::Stopped => "the server stopped before the event store had the response",
            _ => "the session ended before the event store had the response",
        }
    }
}

/// The error response for one request.
pub fn end_payload(request: &RequestId, end: SynthesizedEnd) -> Bytes {
    let mut out = Vec::with_capacity(128);
    write_error(&mut out, Some(request), end.code(), &end.message());
    out.into()
}

/// The error for requests that cannot be named.
pub fn nameless_end(end: SynthesizedEnd) -> Bytes {
    let mut out = Vec::with_capacity(128);
    write_error(&mut out, None, end.code(), &end.message());
    out.into()
}

/// The error response for one request, or an array of them for several requests of a batch.
pub fn ends_payload(ends: &[(RequestId, SynthesizedEnd)]) -> Bytes {
    let [(only, end)] = ends else {
        let mut out = Vec::with_capacity(128 * ends.len());
        for (at, (id, end)) in ends.iter().enumerate() {
            out.push(if at == 0 { b'[' } else { b',' });
            write_error(&mut out, Some(id), end.code(), &end.message());
        }
        out.push(b']');
        return out.into();
    };
    end_payload(only, *end)
}

/// The same end for all requests of a stream.
pub fn same_end(requests: &[RequestId], end: SynthesizedEnd) -> Bytes {
    ends_payload(&requests.iter().map(|id| (id.clone(), end)).collect::<Vec<_>>())
}

/// What these requests get that were refused after their answer had begun. A refusal that answers none of them names none.
pub fn refusal_payload(requests: &[RequestId], refusal: &Refusal) -> Bytes {
    let mut out = Vec::with_capacity(128);
    let mut write = |id: Option<&RequestId>| write_error(&mut out, id, refusal.code, &refusal.message);
    match requests {
        // The id belongs to another request, whose answer must not be mistaken for this one.
        _ if refusal.error_id.is_some() => write(None),
        [] => write(None),
        [only] => write(Some(only)),
        several => {
            let parts: Vec<Bytes> =
                several.iter().map(|id| refusal_payload(std::slice::from_ref(id), refusal)).collect();
            return [&b"["[..], &parts.join(&b','), b"]"].concat().into();
        }
    }
    out.into()
}

/// The error for a stream that was opened for these requests, as far as they are known. The standalone stream has no end.
pub fn stream_end(origin: &Origin, requests: &[RequestId], end: SynthesizedEnd) -> Option<Bytes> {
    match origin {
        Origin::Standalone => None,
        Origin::Request(request) => Some(end_payload(request, end)),
        Origin::Unnamed if requests.is_empty() => Some(nameless_end(end)),
        Origin::Unnamed => Some(same_end(requests, end)),
    }
}
