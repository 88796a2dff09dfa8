//! Whether an HTTP request may enter a session: a function of its head, its body and the session's
//! name (W-011, W-015 to W-017, W-029, W-051, W-080 to W-094).
//!
//! Statuses, codes, texts and the order of the checks are those of the SDK that is replaced; a
//! [`Dialect`] holds where SDKs differ. What stock lets pass although the peers would read it in two
//! ways is refused in our own words.
//!
//! The version header is checked for being a known version only, never for being the negotiated one:
//! shipped clients send others. Whether a cursor can be resumed is for the engine to say.

use std::collections::HashSet;

use super::jsonrpc::{self, Body, EnvelopeError, INVALID_PARAMS, INVALID_REQUEST, Kind};
use super::revision::Revision;
use super::sse::is_valid_event_id;

/// The parts of a request's head that count. Of a header that came twice the first one is given.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "named like the headers")]
pub struct Head<'a> {
    pub method: &'a str,
    pub accept: Option<&'a str>,
    pub content_type: Option<&'a str>,
    pub protocol_version: Option<&'a str>,
    pub session_id: Option<&'a str>,
    pub last_event_id: Option<&'a str>,
}

/// The session that the request reached.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Its id, also while the request that opens it is examined.
    pub session_id: &'a str,
    /// Requests are answered with a JSON body, so nobody needs to accept an event stream for them.
    pub json_response: bool,
}

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

/// Where the SDKs that we replace differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// `*/*`, `application/*` and `text/*` count in `Accept`, and case does not. Otherwise an entry
    /// counts that starts with the media type.
    pub accept_wildcards: bool,
    /// What stands for the id of an error that answers no request.
    pub error_id: ErrorId,
    /// The transport itself refuses other values of the version header (W-094); `None` when the SDK
    /// has done so before.
    pub supported_versions: Option<&'static [Revision]>,
    /// Arrays of messages are taken (W-013, W-014).
    pub batches: bool,
    /// Clients may post an error response whose id is null.
    pub null_id_errors: bool,
}

impl Dialect {
    /// The `mcp` package on PyPI, 1.x.
    pub const MCP_PYTHON_1: Self = Self {
        accept_wildcards: false,
        error_id: ErrorId::Text("server-error"),
        supported_versions: Some(&[
            Revision::V2024_11_05,
            Revision::V2025_03_26,
            Revision::V2025_06_18,
            Revision::V2025_11_25,
        ]),
        batches: false,
        null_id_errors: false,
    };

    /// The `mcp` package on PyPI, 2.x. Its manager routes by version before a transport sees it.
    pub const MCP_PYTHON_2: Self = Self {
        accept_wildcards: true,
        error_id: ErrorId::Null,
        supported_versions: None,
        batches: false,
        null_id_errors: true,
    };
}

/// What an admitted request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Take these messages.
    Post(Body),
    /// Open the standalone stream (W-050).
    Listen,
    /// Continue the stream that this event id belongs to (W-063, W-066).
    Resume(String),
    /// End the session (W-086).
    Delete,
}

/// The answer to a request that is not admitted.
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
}

impl Refusal {
    /// A refusal without an `Allow` header.
    pub fn new(status: u16, code: i32, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), allow: None, error_id: None }
    }

    /// The body: a JSON-RPC error, as `application/json`.
    pub fn body(&self, dialect: &Dialect) -> Vec<u8> {
        let mut out = Vec::new();
        jsonrpc::write_error_with_id_text(
            &mut out,
            &self.error_id.unwrap_or(dialect.error_id).json(),
            self.code,
            &self.message,
        );
        out
    }
}

/// Examines a request. The body counts on POST only.
pub fn admit(head: &Head<'_>, body: &[u8], context: &Context<'_>, dialect: &Dialect) -> Result<Operation, Refusal> {
    match head.method {
        "POST" => admit_post(head, body, context, dialect),
        "GET" => admit_get(head, context, dialect),
        "DELETE" => check_session_and_version(head, context, dialect).map(|()| Operation::Delete),
        _ => Err(Refusal {
            allow: Some("GET, POST, DELETE"),
            ..Refusal::new(405, INVALID_REQUEST, "Method Not Allowed")
        }),
    }
}

fn admit_post(head: &Head<'_>, body: &[u8], context: &Context<'_>, dialect: &Dialect) -> Result<Operation, Refusal> {
    let accepts = |media_type| accepts(head.accept, media_type, dialect);
    if context.json_response {
        if !accepts(JSON) {
            return Err(not_acceptable("application/json"));
        }
    } else if !accepts(JSON) || !accepts(EVENT_STREAM) {
        return Err(not_acceptable("both application/json and text/event-stream"));
    }
    if !is_json(head.content_type) {
        let message = "Unsupported Media Type: Content-Type must be application/json";
        return Err(Refusal::new(415, INVALID_REQUEST, message));
    }

    let body = jsonrpc::read(body).map_err(|error| malformed(&error))?;
    check_messages(&body, dialect)?;

    if matches!(&body, Body::Single(envelope) if envelope.is_initialize()) {
        // A client that lost its session starts a new one without the id (W-085); one that still
        // sends the id of another session has to hear that it is gone.
        if head.session_id.is_some_and(|id| !id.is_empty() && id != context.session_id) {
            return Err(session_not_found());
        }
    } else {
        check_session_and_version(head, context, dialect)?;
    }
    Ok(Operation::Post(body))
}

fn admit_get(head: &Head<'_>, context: &Context<'_>, dialect: &Dialect) -> Result<Operation, Refusal> {
    if !accepts(head.accept, EVENT_STREAM, dialect) {
        return Err(not_acceptable("text/event-stream"));
    }
    check_session_and_version(head, context, dialect)?;
    match head.last_event_id {
        None | Some("") => Ok(Operation::Listen),
        Some(id) if is_valid_event_id(id) => Ok(Operation::Resume(id.to_owned())),
        Some(_) => Err(Refusal::new(400, INVALID_REQUEST, "Bad Request: Invalid Last-Event-ID")),
    }
}

fn check_messages(body: &Body, dialect: &Dialect) -> Result<(), Refusal> {
    if let Body::Batch(envelopes) = body {
        if !dialect.batches {
            return Err(malformed(&EnvelopeError::NotAnObject));
        }
        if envelopes.iter().any(jsonrpc::Envelope::is_initialize) {
            return Err(invalid("initialize must not be part of a batch"));
        }
        let mut seen = HashSet::new();
        let mut requests = envelopes.iter().filter(|envelope| envelope.kind == Kind::Request);
        if !requests.all(|envelope| seen.insert(&envelope.id)) {
            return Err(invalid("two requests of the batch have the same id"));
        }
    }
    let mut envelopes = body.envelopes().iter();
    if !dialect.null_id_errors
        && envelopes.any(|envelope| envelope.kind == Kind::ErrorResponse && envelope.id.is_none())
    {
        return Err(malformed(&EnvelopeError::MissingId));
    }
    Ok(())
}

fn check_session_and_version(head: &Head<'_>, context: &Context<'_>, dialect: &Dialect) -> Result<(), Refusal> {
    match head.session_id {
        None | Some("") => return Err(Refusal::new(400, INVALID_REQUEST, "Bad Request: Missing session ID")),
        Some(id) if id != context.session_id => return Err(session_not_found()),
        Some(_) => {}
    }
    let (Some(supported), Some(version)) = (dialect.supported_versions, head.protocol_version) else {
        return Ok(());
    };
    if Revision::parse(version).is_some_and(|revision| supported.contains(&revision)) {
        return Ok(());
    }
    let names: Vec<&str> = supported.iter().map(|revision| revision.as_str()).collect();
    let names = names.join(", ");
    let message = format!("Bad Request: Unsupported protocol version: {version}. Supported versions: {names}");
    Err(Refusal::new(400, INVALID_REQUEST, message))
}

const JSON: &str = "application/json";
const EVENT_STREAM: &str = "text/event-stream";

fn accepts(accept: Option<&str>, media_type: &str, dialect: &Dialect) -> bool {
    let mut entries = accept.unwrap_or("").split(',').map(str::trim);
    if !dialect.accept_wildcards {
        return entries.any(|entry| entry.starts_with(media_type));
    }
    let family = media_type.split_once('/').map_or(media_type, |(family, _)| family);
    entries.any(|entry| {
        let entry = entry.split_once(';').map_or(entry, |(entry, _)| entry.trim());
        let any_of_family = |entry: &str| {
            entry.split_once('/').is_some_and(|(name, kind)| kind == "*" && name.eq_ignore_ascii_case(family))
        };
        entry == "*/*" || entry.eq_ignore_ascii_case(media_type) || any_of_family(entry)
    })
}

fn is_json(content_type: Option<&str>) -> bool {
    let content_type = content_type.unwrap_or("");
    let essence = content_type.split_once(';').map_or(content_type, |(essence, _)| essence);
    essence.split(',').any(|part| part.trim() == JSON)
}

fn not_acceptable(what: &str) -> Refusal {
    Refusal::new(406, INVALID_REQUEST, format!("Not Acceptable: Client must accept {what}"))
}

fn session_not_found() -> Refusal {
    Refusal::new(404, INVALID_REQUEST, "Not Found: Invalid or expired session ID")
}

fn malformed(error: &EnvelopeError) -> Refusal {
    let label = match error.code() {
        jsonrpc::PARSE_ERROR => "Parse error",
        INVALID_PARAMS => "Validation error",
        _ => return invalid(&error.to_string()),
    };
    Refusal::new(400, error.code(), format!("{label}: {error}"))
}

fn invalid(reason: &str) -> Refusal {
    Refusal::new(400, INVALID_REQUEST, format!("Invalid Request: {reason}"))
}
