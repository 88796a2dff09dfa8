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

use super::jsonrpc::{self, Body, EnvelopeError, Form, Kind};
use super::refusal::{ErrorId, Refusal, Wording};
use super::request_id::Names;
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
    /// Its id, also while the request that opens it is examined, where the host has chosen it by then.
    /// Empty where a host has none yet: then only `initialize` is admitted.
    pub session_id: &'a str,
    /// Requests are answered with a JSON body, so nobody needs to accept an event stream for them.
    pub json_response: bool,
}

/// How `Accept` is read (W-011).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptRule {
    /// An entry counts that starts with the media type.
    Prefix,
    /// `*/*`, `application/*` and `text/*` count, and case does not.
    Wildcards,
    /// The header contains the media type somewhere.
    Contained,
}

/// Where hosts differ: those that replace an SDK answer as it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// What records call the SDK.
    pub sdk: &'static str,
    /// How `Accept` is read.
    pub accept: AcceptRule,
    /// A client has to accept event streams also where answers are JSON bodies.
    pub json_needs_event_stream: bool,
    /// Texts and codes.
    pub wording: Wording,
    /// A session takes one `initialize` only. Otherwise it may come again under the session's id.
    pub initialize_once: bool,
    /// What stands for the id of an error that answers no request.
    pub error_id: ErrorId,
    /// The transport itself refuses other values of the version header (W-094); `None` when the SDK
    /// has done so before.
    pub supported_versions: Option<&'static [Revision]>,
    /// Arrays of messages are taken (W-013, W-014).
    pub batches: bool,
    /// Messages are taken that have the members of their kind and no other.
    pub exact_members: bool,
    /// Clients may post an error response whose id is null.
    pub null_id_errors: bool,
    /// Which names of requests the handlers can tell from each other.
    pub names: Names,
    /// The SDK tells nobody that a cancelled request will have no response: it gets its end when the cancellation has
    /// been given to the handlers.
    pub settles_cancelled: bool,
}

impl Dialect {
    /// The specification, for hosts that replace no SDK. Its words are those that most clients were written against. A host tells its
    /// handlers of a cancellation, and the engine gives the request its end.
    pub const NEUTRAL: Self = Self {
        sdk: "rust",
        accept: AcceptRule::Wildcards,
        json_needs_event_stream: false,
        wording: Wording::TypeScript,
        initialize_once: false,
        error_id: ErrorId::Null,
        supported_versions: Some(Revision::WITH_SESSIONS),
        batches: false,
        exact_members: false,
        null_id_errors: true,
        names: Names::Bounded,
        settles_cancelled: true,
    };

    /// The `mcp` package on PyPI, 1.x.
    pub const MCP_PYTHON_1: Self = Self {
        sdk: "mcp 1.x",
        accept: AcceptRule::Prefix,
        json_needs_event_stream: false,
        wording: Wording::Python,
        initialize_once: false,
        error_id: ErrorId::Text("server-error"),
        supported_versions: Some(Revision::WITH_SESSIONS),
        batches: false,
        exact_members: false,
        null_id_errors: false,
        names: Names::Bounded,
        settles_cancelled: true,
    };

    /// The `mcp` package on PyPI, 2.x. Its manager routes by version before a transport sees it.
    pub const MCP_PYTHON_2: Self = Self {
        sdk: "mcp 2.x",
        accept: AcceptRule::Wildcards,
        json_needs_event_stream: false,
        wording: Wording::Python,
        initialize_once: false,
        error_id: ErrorId::Null,
        supported_versions: None,
        batches: false,
        exact_members: false,
        null_id_errors: true,
        names: Names::Bounded,
        settles_cancelled: false,
    };

    /// The `@modelcontextprotocol/sdk` package on npm, 1.x. Its versions are the host's to name: see
    /// [`admit_with_versions`].
    pub const MCP_TYPESCRIPT_1: Self = Self {
        sdk: "@modelcontextprotocol/sdk 1.x",
        accept: AcceptRule::Contained,
        json_needs_event_stream: true,
        wording: Wording::TypeScript,
        initialize_once: true,
        error_id: ErrorId::Null,
        supported_versions: None,
        batches: true,
        exact_members: true,
        null_id_errors: false,
        names: Names::Safe,
        settles_cancelled: true,
    };

    /// The `@modelcontextprotocol/server` package on npm, 2.x. Its transport answers as 1.x does.
    pub const MCP_TYPESCRIPT_2: Self = Self { sdk: "@modelcontextprotocol/server 2.x", ..Self::MCP_TYPESCRIPT_1 };
}

/// What an admitted request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "it lives as long as its request, which an allocation would make slower")]
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

/// Examines a request. The body counts on POST only.
pub fn admit(head: &Head<'_>, body: &[u8], context: &Context<'_>, dialect: &Dialect) -> Result<Operation, Refusal> {
    admit_any(head, body, context, dialect, || match dialect.supported_versions {
        Some(supported) => check_version(head, dialect, supported.iter().map(|revision| revision.as_str())),
        None => Ok(()),
    })
}

/// As [`admit`], for a host that names the values of the version header that it serves (W-094).
pub fn admit_with_versions(
    head: &Head<'_>,
    body: &[u8],
    context: &Context<'_>,
    dialect: &Dialect,
    versions: &[&str],
) -> Result<Operation, Refusal> {
    admit_any(head, body, context, dialect, || check_version(head, dialect, versions.iter().copied()))
}

fn admit_any(
    head: &Head<'_>,
    body: &[u8],
    context: &Context<'_>,
    dialect: &Dialect,
    check_version: impl FnOnce() -> Result<(), Refusal>,
) -> Result<Operation, Refusal> {
    let check_session = || {
        check_session(head, context, dialect)?;
        check_version()
    };
    match head.method {
        "POST" => admit_post(head, body, context, dialect, check_session),
        "GET" => admit_get(head, dialect, check_session),
        "DELETE" => check_session().map(|()| Operation::Delete),
        _ => Err(dialect.wording.method_not_allowed()),
    }
}

fn admit_post(
    head: &Head<'_>,
    body: &[u8],
    context: &Context<'_>,
    dialect: &Dialect,
    check_session: impl FnOnce() -> Result<(), Refusal>,
) -> Result<Operation, Refusal> {
    let wording = dialect.wording;
    let body = read_post(head, body, context, dialect)?;
    if !matches!(&body, Body::Single(envelope) if envelope.is_initialize()) {
        check_session()?;
    } else if dialect.initialize_once {
        if !context.session_id.is_empty() {
            return Err(wording.invalid("Server already initialized"));
        }
    } else if head.session_id.is_some_and(|id| !id.is_empty() && id != context.session_id) {
        // A client that lost its session starts a new one without the id (W-085); one that still
        // sends the id of another session has to hear that it is gone.
        return Err(wording.session_not_found());
    }
    Ok(Operation::Post(body))
}

/// The messages of a POST, whatever session it is for: what it accepts, what it is, and what its body holds.
pub(crate) fn read_post(
    head: &Head<'_>,
    body: &[u8],
    context: &Context<'_>,
    dialect: &Dialect,
) -> Result<Body, Refusal> {
    let wording = dialect.wording;
    let accepts = |media_type| accepts(head.accept, media_type, dialect.accept);
    if context.json_response && !dialect.json_needs_event_stream {
        if !accepts(JSON) {
            return Err(wording.not_acceptable("application/json"));
        }
    } else if !accepts(JSON) || !accepts(EVENT_STREAM) {
        return Err(wording.not_acceptable("both application/json and text/event-stream"));
    }
    if !is_json(head.content_type, wording) {
        return Err(wording.unsupported_media_type());
    }

    let max_batch = if dialect.batches { MAX_BATCH } else { usize::MAX };
    let form = Form { max_batch, is_exact: dialect.exact_members, names: dialect.names };
    let body = jsonrpc::read_as(body, form).map_err(|error| wording.malformed(&error))?;
    check_messages(&body, context, dialect)?;
    Ok(body)
}

fn admit_get(
    head: &Head<'_>,
    dialect: &Dialect,
    check_session: impl FnOnce() -> Result<(), Refusal>,
) -> Result<Operation, Refusal> {
    if !accepts(head.accept, EVENT_STREAM, dialect.accept) {
        return Err(dialect.wording.not_acceptable("text/event-stream"));
    }
    check_session()?;
    match head.last_event_id {
        None | Some("") => Ok(Operation::Listen),
        Some(id) if is_valid_event_id(id) => Ok(Operation::Resume(id.to_owned())),
        Some(_) => Err(dialect.wording.invalid_event_id()),
    }
}

fn check_messages(body: &Body, context: &Context<'_>, dialect: &Dialect) -> Result<(), Refusal> {
    let wording = dialect.wording;
    if let Body::Batch(envelopes) = body {
        if !dialect.batches {
            return Err(wording.malformed(&EnvelopeError::NotAnObject));
        }
        if envelopes.iter().any(jsonrpc::Envelope::is_initialize) {
            return Err(match wording {
                Wording::Python => wording.invalid("initialize must not be part of a batch"),
                Wording::TypeScript if !context.session_id.is_empty() => wording.invalid("Server already initialized"),
                Wording::TypeScript => wording.invalid("Only one initialization request is allowed"),
            });
        }
        let mut seen = HashSet::new();
        let mut requests = envelopes.iter().filter(|envelope| envelope.kind == Kind::Request);
        if !requests.all(|envelope| seen.insert(&envelope.id)) {
            return Err(wording.invalid("two requests of the batch have the same id"));
        }
    }
    let mut envelopes = body.envelopes().iter();
    if !dialect.null_id_errors
        && envelopes.any(|envelope| envelope.kind == Kind::ErrorResponse && envelope.id.is_none())
    {
        return Err(wording.malformed(&EnvelopeError::MissingId));
    }
    Ok(())
}

fn check_session(head: &Head<'_>, context: &Context<'_>, dialect: &Dialect) -> Result<(), Refusal> {
    if context.session_id.is_empty() {
        return Err(dialect.wording.no_session());
    }
    match head.session_id {
        None | Some("") => Err(dialect.wording.session_id_missing()),
        Some(id) if id != context.session_id => Err(dialect.wording.session_not_found()),
        Some(_) => Ok(()),
    }
}

fn check_version<'a>(
    head: &Head<'_>,
    dialect: &Dialect,
    versions: impl Iterator<Item = &'a str> + Clone,
) -> Result<(), Refusal> {
    let Some(version) = head.protocol_version else { return Ok(()) };
    if versions.clone().any(|served| served == version) {
        return Ok(());
    }
    let versions: Vec<&str> = versions.collect();
    Err(dialect.wording.unsupported_version(version, &versions.join(", ")))
}

const JSON: &str = "application/json";
const EVENT_STREAM: &str = "text/event-stream";

/// Messages in one body, where batches are taken.
const MAX_BATCH: usize = 100;

fn accepts(accept: Option<&str>, media_type: &str, rule: AcceptRule) -> bool {
    let accept = accept.unwrap_or("");
    match rule {
        AcceptRule::Contained => accept.contains(media_type),
        AcceptRule::Prefix => accept.split(',').any(|entry| entry.trim().starts_with(media_type)),
        // As bytes: a search for characters is made for texts that are longer.
        AcceptRule::Wildcards => {
            let media_type = media_type.as_bytes();
            accept.as_bytes().split(|byte| *byte == b',').any(|entry| covers(entry, media_type))
        }
    }
}

/// Whether an entry of `Accept` stands for a media type.
fn covers(entry: &[u8], media_type: &[u8]) -> bool {
    let before = |text: &[u8], end: u8| text.iter().position(|byte| *byte == end).unwrap_or(text.len());
    let name = entry[..before(entry, b';')].trim_ascii();
    match name.strip_suffix(b"/*") {
        Some(family) => family == b"*" || family.eq_ignore_ascii_case(&media_type[..before(media_type, b'/')]),
        None => name.eq_ignore_ascii_case(media_type),
    }
}

fn is_json(content_type: Option<&str>, wording: Wording) -> bool {
    let content_type = content_type.unwrap_or("");
    let (essence, parameters) = content_type.split_once(';').unwrap_or((content_type, ""));
    match wording {
        Wording::Python => essence.split(',').any(|part| part.trim() == JSON),
        // A comma joins two headers, and then nobody knows which one counts.
        Wording::TypeScript => {
            essence.trim().eq_ignore_ascii_case(JSON) && (!parameters.contains(',') || parameters.contains('"'))
        }
    }
}
