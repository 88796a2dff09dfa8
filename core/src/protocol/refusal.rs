//! What a request is answered that is not taken: status, code and words.
//!
//! Every refusal, in admission or by the engine after it, is made here, so that a session speaks as
//! the SDK does that is replaced (W-016, W-029, W-083, W-084). Where that SDK has no such answer the
//! words are ours, and the code is the one that it gives to the like.

use std::error::Error;
use std::fmt;

use super::admission::Dialect;
use super::jsonrpc::{
    self, EnvelopeError, INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, UNSUPPORTED_PROTOCOL_VERSION,
};
use super::reason::Reason;
use super::request_id::{Names, RequestId};
use super::revision::Revision;

/// The id of an error that answers no request (W-016).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorId {
    /// `null`.
    Null,
    /// A fixed string.
    Text(&'static str),
}

impl ErrorId {
    fn json(self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Text(text) => serde_json::Value::from(text).to_string(),
        }
    }
}

/// The answer to a request that is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status.
    pub status: u16,
    /// The JSON-RPC error code.
    pub code: i32,
    /// The JSON-RPC error message.
    pub message: String,
    /// The value of the `Allow` header, with 405.
    pub allow: Option<&'static str>,
    /// What stands for the id of the error, where it is not the dialect's choice.
    pub error_id: Option<ErrorId>,
    /// The request that the error answers, where it answers one.
    pub request: Option<RequestId>,
    /// The `data` of the error, as JSON.
    pub data: Option<String>,
    /// Why the request is refused, for the operator.
    pub reason: Reason,
    /// The engine has counted it.
    pub is_counted: bool,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (HTTP {})", self.message, self.status)
    }
}

impl Error for Refusal {}

impl Refusal {
    /// A refusal without an `Allow` header.
    pub fn new(status: u16, code: i32, message: impl Into<String>) -> Self {
        let (message, reason) = (message.into(), Reason::BadRequest);
        Self {
            status,
            code,
            message,
            allow: None,
            error_id: None,
            request: None,
            data: None,
            reason,
            is_counted: false,
        }
    }

    /// The same, for this reason.
    pub fn because(self, reason: Reason) -> Self {
        Self { reason, ..self }
    }

    /// The answer to a request of a revision without resumption that names the ones with it: clients of both eras then
    /// go on with `initialize`. The SDKs have the same words for it.
    pub fn steered(body: &[u8], requested: &str) -> Self {
        let resumable: Vec<&str> = Revision::WITH_SESSIONS.iter().map(|revision| revision.as_str()).collect();
        let data = serde_json::json!({ "supported": resumable, "requested": requested }).to_string();
        let refusal = Self::new(400, UNSUPPORTED_PROTOCOL_VERSION, "Unsupported protocol version");
        Self { error_id: Some(ErrorId::Null), data: Some(data), ..refusal }
            .naming_request(body)
            .because(Reason::Steered)
    }

    /// The same, as the answer to the request that this body is, where it is one.
    pub fn naming_request(self, body: &[u8]) -> Self {
        let request = match jsonrpc::read(body) {
            Ok(jsonrpc::Body::Single(envelope)) if envelope.method.is_some() => envelope.id,
            _ => None,
        };
        // One that is too long to be taken is not repeated either.
        let request = request.filter(|id| id.as_text().len() <= Names::MAX_BYTES);
        Self { request, ..self }
    }

    /// The value of `Retry-After`, in seconds: what is refused with 503 may be taken soon.
    pub fn retry_after_s(&self) -> Option<u32> {
        retry_after_s(self.status)
    }

    /// Whether the answer has the session id header. The Python SDK's refusals have it, except those that say that there is
    /// no such session: of these it says nothing.
    pub fn names_session(&self, dialect: &Dialect) -> bool {
        dialect.wording == Wording::Python && self.status != NOT_FOUND
    }

    /// The body: a JSON-RPC error, as `application/json`. Byte by byte as the SDK writes it, so that nothing tells our
    /// answers from those of the code around us (I7).
    pub fn body(&self, dialect: &Dialect) -> Vec<u8> {
        let id = match &self.request {
            Some(request) => request.to_json(),
            None => self.error_id.unwrap_or(dialect.error_id).json(),
        };
        let mut out = Vec::new();
        let write = match dialect.wording {
            Wording::Python => jsonrpc::write_error_with_data,
            Wording::TypeScript => jsonrpc::write_error_before_id,
        };
        write(&mut out, &id, self.code, &self.message, self.data.as_deref());
        out
    }
}

/// In how many seconds what is answered with this status may be asked again.
pub(crate) fn retry_after_s(status: u16) -> Option<u32> {
    (status == 503).then_some(1)
}

/// Whose texts and codes a refusal has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wording {
    /// Of the `mcp` package on PyPI.
    Python,
    /// Of the `@modelcontextprotocol` packages on npm.
    TypeScript,
}

/// Why a request does not get to the process that has its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRelayed {
    /// The event store cannot be asked.
    NotStored,
    /// As much waits there as may.
    InboxFull,
    /// It did not begin in time.
    NotBegun,
    /// Its host does not take what is relayed.
    NotServed,
    /// It is of an older release, or has another key.
    NotRead,
}

/// The status of a session that is not there.
const NOT_FOUND: u16 = 404;
/// The code of most refusals of the npm packages.
const REFUSED: i32 = -32000;
/// Their code for a session that is unknown or ended.
const SESSION_NOT_FOUND: i32 = -32001;

/// Of admission.
impl Wording {
    pub(crate) fn refused(self, status: u16, message: impl Into<String>) -> Refusal {
        let code = match self {
            Self::Python => INVALID_REQUEST,
            Self::TypeScript => REFUSED,
        };
        Refusal::new(status, code, message)
    }

    /// Both SDKs have the same code and beginning for a message that is in order but not taken.
    pub(super) fn invalid(self, reason: &str) -> Refusal {
        Refusal::new(400, INVALID_REQUEST, format!("Invalid Request: {reason}"))
    }

    /// The endpoint does not serve this HTTP method.
    pub fn method_not_allowed(self) -> Refusal {
        let refusal = self.refused(
            405,
            match self {
                Self::Python => "Method Not Allowed",
                Self::TypeScript => "Method not allowed.",
            },
        );
        Refusal { allow: Some("GET, POST, DELETE"), ..refusal }
    }

    pub(super) fn not_acceptable(self, what: &str) -> Refusal {
        self.refused(406, format!("Not Acceptable: Client must accept {what}"))
    }

    pub(super) fn unsupported_media_type(self) -> Refusal {
        self.refused(415, "Unsupported Media Type: Content-Type must be application/json")
    }

    pub(super) fn no_session(self) -> Refusal {
        self.refused(400, "Bad Request: Server not initialized")
    }

    pub(super) fn session_id_missing(self) -> Refusal {
        self.refused(
            400,
            match self {
                Self::Python => "Bad Request: Missing session ID",
                Self::TypeScript => "Bad Request: Mcp-Session-Id header is required",
            },
        )
    }

    pub(super) fn session_not_found(self) -> Refusal {
        match self {
            Self::Python => Refusal::new(404, INVALID_REQUEST, "Not Found: Invalid or expired session ID"),
            Self::TypeScript => Refusal::new(404, SESSION_NOT_FOUND, "Session not found"),
        }
        .because(Reason::UnknownSession)
    }

    pub(super) fn unsupported_version(self, version: &str, served: &str) -> Refusal {
        let message = match self {
            Self::Python => format!("{version}. Supported versions: {served}"),
            Self::TypeScript => format!("{version} (supported versions: {served})"),
        };
        self.refused(400, format!("Bad Request: Unsupported protocol version: {message}"))
    }

    pub(super) fn invalid_event_id(self) -> Refusal {
        self.refused(
            400,
            match self {
                Self::Python => "Bad Request: Invalid Last-Event-ID",
                Self::TypeScript => "Invalid event ID format",
            },
        )
    }

    pub(super) fn malformed(self, error: &EnvelopeError) -> Refusal {
        if let EnvelopeError::TooMany { max } = error {
            return self.invalid(&format!("Batch must not exceed {max} messages"));
        }
        if self == Self::TypeScript {
            let what = match error {
                EnvelopeError::NotUtf8 | EnvelopeError::NotJson(_) => "Invalid JSON",
                _ => "Invalid JSON-RPC message",
            };
            return Refusal::new(400, jsonrpc::PARSE_ERROR, format!("Parse error: {what}"));
        }
        let label = match error.code() {
            jsonrpc::PARSE_ERROR => "Parse error",
            INVALID_PARAMS => "Validation error",
            _ => return self.invalid(&error.to_string()),
        };
        Refusal::new(400, error.code(), format!("{label}: {error}"))
    }
}

/// Of the engine, after admission.
impl Wording {
    /// There is no such session for this sender: as the SDK's own session manager says it.
    pub fn session_unknown(self) -> Refusal {
        match self {
            Self::Python => Refusal::new(404, INVALID_REQUEST, "Session not found"),
            Self::TypeScript => self.session_not_found(),
        }
        .because(Reason::UnknownSession)
    }

    /// The session has ended (W-084).
    pub fn session_ended(self) -> Refusal {
        match self {
            Self::Python => Refusal::new(404, INVALID_REQUEST, "Not Found: Session has been terminated"),
            Self::TypeScript => self.session_not_found(),
        }
        .because(Reason::EndedSession)
    }

    /// The session ended while the answer in JSON was awaited.
    pub fn session_ended_meanwhile(self) -> Refusal {
        Refusal::new(500, INTERNAL_ERROR, "Session terminated before the request completed")
            .because(Reason::EndedSession)
    }

    /// Nothing is taken any more.
    pub fn closing(self) -> Refusal {
        Refusal::new(503, INTERNAL_ERROR, "Service Unavailable: the server is closing").because(Reason::Stopping)
    }

    /// The event store does not keep up with what is sent.
    pub fn store_behind(self) -> Refusal {
        Refusal::new(503, INTERNAL_ERROR, "Service Unavailable: too much waits for the event store")
            .because(Reason::StoreBehind)
    }

    /// The request cannot be brought to the process that has its session.
    pub fn not_relayed(self, why: NotRelayed) -> Refusal {
        let why = match why {
            NotRelayed::NotStored => "the event store does not take the request now",
            NotRelayed::InboxFull => "too much waits for the process that has the session",
            NotRelayed::NotBegun => "the process that has the session does not answer",
            NotRelayed::NotServed => "the process that has the session takes no requests from other processes",
            NotRelayed::NotRead => "the process that has the session cannot read the request",
        };
        Refusal::new(503, INTERNAL_ERROR, format!("Service Unavailable: {why}")).because(Reason::NotRelayed)
    }

    /// The request may run, and its answer cannot be given: who asks again could make it run twice, so this is no 503.
    pub fn answer_unknown(self) -> Refusal {
        Refusal::new(504, INTERNAL_ERROR, "Gateway Timeout: the request may run, and its answer cannot be given")
            .because(Reason::AnswerUnknown)
    }

    /// Whether there is such a session is known to the event store alone, which cannot tell now.
    pub fn session_unread(self) -> Refusal {
        Refusal::new(503, INTERNAL_ERROR, "Service Unavailable: the session cannot be looked up now")
            .because(Reason::StoreUnread)
    }

    /// The cursor is not one of this session, and names no request that could be answered. The same
    /// for every such cursor (I7).
    pub fn not_resumable(self) -> Refusal {
        match self {
            Self::Python => self.refused(400, "Bad Request: the stream of this Last-Event-ID cannot be resumed"),
            Self::TypeScript => self.invalid_event_id(),
        }
        .because(Reason::UnknownCursor)
    }

    /// A request with this id has no response yet (F-08).
    pub fn in_flight_already(self, id: &RequestId) -> Refusal {
        let refusal = self.invalid(&format!("request id {} is already in flight", id.to_json()));
        // The id in question belongs to the first request, whose answer must not be mistaken for this one.
        Refusal { error_id: Some(ErrorId::Null), ..refusal }.because(Reason::DuplicateId)
    }
}
