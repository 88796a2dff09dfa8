//! JSON-RPC envelopes (W-002, W-012 to W-014, W-095): what kind of message it is, its id, its method
//! and a few named fields. Payloads are checked to be JSON and otherwise left unread.

use std::borrow::Cow;
use std::ops::Range;

use serde::Deserialize;
use serde_json::value::RawValue;

pub use super::envelope_error::EnvelopeError;
use super::fields::{Members, Params, members, params_of, place};
use super::request_id::{Names, RequestId, is_canonical_integer, write_json_string};
use super::tool_name::ToolName;

/// The body is not JSON.
pub const PARSE_ERROR: i32 = -32700;
/// The JSON is not a message, or the request cannot be taken.
pub const INVALID_REQUEST: i32 = -32600;
/// Parameters are missing or wrong; the Python SDKs also answer it to a malformed message.
pub const INVALID_PARAMS: i32 = -32602;
/// There is no such method.
pub const METHOD_NOT_FOUND: i32 = -32601;
/// The server failed.
pub const INTERNAL_ERROR: i32 = -32603;
/// The request was cancelled (W-028).
pub const REQUEST_CANCELLED: i32 = -32800;
/// The session or its stream ended before the response.
pub const CONNECTION_CLOSED: i32 = -32000;
/// A header says something else than the body, or is missing (T-25, T-26).
pub const HEADER_MISMATCH: i32 = -32020;
/// The client did not declare what the request needs (T-04, T-05).
pub const MISSING_CLIENT_CAPABILITY: i32 = -32021;
/// The protocol version is not served (W-124); makes a client of both eras fall back.
pub const UNSUPPORTED_PROTOCOL_VERSION: i32 = -32022;

/// What a body holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "it lives as long as its request, which an allocation would make slower")]
pub enum Body {
    /// One message.
    Single(Envelope),
    /// An array of at least one message, in order (W-013).
    Batch(Vec<Envelope>),
}

impl Body {
    /// The messages, in order.
    pub fn envelopes(&self) -> &[Envelope] {
        match self {
            Self::Single(envelope) => std::slice::from_ref(envelope),
            Self::Batch(envelopes) => envelopes,
        }
    }

    /// Whether an answer is owed (W-015, W-017).
    pub fn has_request(&self) -> bool {
        self.envelopes().iter().any(|envelope| envelope.kind == Kind::Request)
    }
}

/// The four kinds of message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A method and an id.
    Request,
    /// A method without an id.
    Notification,
    /// An id and a result.
    Response,
    /// An id, possibly null, and an error.
    ErrorResponse,
}

/// One message, without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// What kind of message it is.
    pub kind: Kind,
    /// On requests and notifications.
    pub method: Option<String>,
    /// On requests and responses; `None` on an error response whose id is null.
    pub id: Option<RequestId>,
    /// Where the message stands in the body.
    pub range: Range<usize>,
    /// Where its parameters stand in the body; empty where it has none.
    pub params: Range<usize>,
    /// The parameters that the engine reads.
    pub fields: Fields,
}

impl Envelope {
    /// Whether this is the request that opens a session (W-090).
    pub fn is_initialize(&self) -> bool {
        self.kind == Kind::Request && self.method.as_deref() == Some("initialize")
    }

    /// What the message tells the server for the rest of the session; none where it is over with its answer.
    pub fn lasting(&self) -> Option<Lasting<'_>> {
        let uri = self.fields.resource_uri.as_deref();
        Some(match (self.kind, self.method.as_deref()?) {
            (Kind::Request, "initialize") => Lasting::Initialize,
            (Kind::Notification, "notifications/initialized") => Lasting::Initialized,
            (Kind::Request, "logging/setLevel") => Lasting::Level,
            (Kind::Request, SUBSCRIBE) => Lasting::Subscribe(uri?),
            (Kind::Request, UNSUBSCRIBE) => Lasting::Unsubscribe(uri?),
            _ => return None,
        })
    }
}

/// What a client tells a server for the rest of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting<'a> {
    /// Who it is, and what it can do.
    Initialize,
    /// It has heard the same of the server.
    Initialized,
    /// Which log messages it wants.
    Level,
    /// It wants to hear of changes of this resource.
    Subscribe(&'a str),
    /// It does not any more.
    Unsubscribe(&'a str),
}

/// The few parameters that the engine reads. One that is absent or of another type is `None`: to
/// refuse it is the handler's business, except where it [names a request](Names).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// `params.protocolVersion` of `initialize`.
    pub protocol_version: Option<String>,
    /// `params.requestId` of `notifications/cancelled` (W-025).
    pub cancelled_request: Option<RequestId>,
    /// `params._meta.progressToken` as compact JSON text, of requests.
    pub progress_token: Option<String>,
    /// `params.name` of `tools/call`.
    pub tool_name: Option<ToolName>,
    /// `params.uri` of `resources/subscribe` and `resources/unsubscribe`.
    pub resource_uri: Option<String>,
}

/// How readers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// An array of more messages is not taken.
    pub max_batch: usize,
    /// A message has the members of its kind and no other, absent where they do not apply, and
    /// `_meta` is an object. Otherwise what is unknown is skipped, and null is as good as absent.
    pub is_exact: bool,
    /// Which names of requests are taken. Unless any are, a parameter that is read must not come twice either.
    pub names: Names,
}

impl Form {
    /// The most lenient one, for what was admitted before, and for what peers send of their own.
    const LENIENT: Self = Self { max_batch: usize::MAX, is_exact: false, names: Names::Any };
}

/// Reads the envelopes of a body.
pub fn read(body: &[u8]) -> Result<Body, EnvelopeError> {
    read_as(body, Form::LENIENT)
}

/// Reads the envelopes of a body as a reader of this form does.
pub fn read_as(body: &[u8], form: Form) -> Result<Body, EnvelopeError> {
    let text = std::str::from_utf8(body).map_err(|_| EnvelopeError::NotUtf8)?;
    let trimmed = text.trim_matches(JSON_BLANK);
    let start = text.len() - text.trim_start_matches(JSON_BLANK).len();
    match trimmed.as_bytes().first() {
        Some(b'{') => read_one(trimmed, start, form).map(Body::Single),
        Some(b'[') => read_batch(trimmed, start, form).map(Body::Batch),
        _ => Err(match serde_json::from_str::<&RawValue>(trimmed) {
            Ok(_) => EnvelopeError::NotAnObject,
            Err(error) => EnvelopeError::NotJson(error.to_string()),
        }),
    }
}

/// The messages of a body of which some may be none: a reader is to make the best of what its peer sent.
pub fn read_leniently(body: &[u8]) -> Vec<Envelope> {
    match read(body) {
        Ok(Body::Single(envelope)) => vec![envelope],
        Ok(Body::Batch(envelopes)) => envelopes,
        Err(_) => {
            let elements: Vec<&RawValue> = serde_json::from_slice(body).unwrap_or_default();
            let one = |element: &RawValue| match read(element.get().as_bytes()) {
                Ok(Body::Single(envelope)) => Some(envelope),
                _ => None,
            };
            elements.into_iter().filter_map(one).collect()
        }
    }
}

pub(crate) const CANCELLED: &str = "notifications/cancelled";
const CALL: &str = "tools/call";
const SUBSCRIBE: &str = "resources/subscribe";
const UNSUBSCRIBE: &str = "resources/unsubscribe";
const JSON_BLANK: [char; 4] = [' ', '\t', '\r', '\n'];

fn read_batch(text: &str, start: usize, form: Form) -> Result<Vec<Envelope>, EnvelopeError> {
    let elements: Vec<&RawValue> = serde_json::from_str(text).map_err(not_json)?;
    if elements.is_empty() {
        return Err(EnvelopeError::EmptyBatch);
    }
    if elements.len() > form.max_batch {
        return Err(EnvelopeError::TooMany { max: form.max_batch });
    }
    let read_element = |element: &&RawValue| {
        if !element.get().starts_with('{') {
            return Err(EnvelopeError::NotAnObject);
        }
        read_one(element.get(), start + place(text, element).start, form)
    };
    elements.iter().map(read_element).collect()
}

/// `text` starts with a brace and has no blanks around it.
fn read_one(text: &str, start: usize, form: Form) -> Result<Envelope, EnvelopeError> {
    let Members { jsonrpc, id, method, params, result, error, duplicate, has_others } =
        members(text).map_err(not_json)?;
    if let Some(name) = duplicate {
        return Err(EnvelopeError::Duplicate(name));
    }
    if jsonrpc.and_then(string).as_deref() != Some("2.0") {
        return Err(EnvelopeError::Version);
    }
    // Some senders write every member and null for those that do not apply.
    let applies = |raw| if form.is_exact { raw } else { not_null(raw) };
    let (method, params, result, error) = (applies(method), applies(params), applies(result), applies(error));
    if form.is_exact && (has_others || (params.is_some() && method.is_none())) {
        return Err(EnvelopeError::Foreign);
    }
    let kind = match (method, result, error) {
        (Some(_), None, None) if id.is_some() => Kind::Request,
        (Some(_), None, None) => Kind::Notification,
        (None, Some(_), None) => Kind::Response,
        (None, None, Some(_)) => Kind::ErrorResponse,
        (None, None, None) => return Err(EnvelopeError::Empty),
        _ => return Err(EnvelopeError::Ambiguous),
    };
    let id = match id.map(RawValue::get) {
        None if matches!(kind, Kind::Response | Kind::ErrorResponse) => return Err(EnvelopeError::MissingId),
        None => None,
        Some("null") if kind == Kind::ErrorResponse => None,
        Some(raw) => Some(form.names.take(RequestId::from_json(raw), EnvelopeError::Id)?),
    };
    let method = match method {
        Some(raw) => Some(string(raw).ok_or(EnvelopeError::Method)?.into_owned()),
        None => None,
    };
    if params.is_some_and(|raw| !raw.get().starts_with('{')) {
        return Err(EnvelopeError::Params);
    }
    let is_read = kind == Kind::Request || method.as_deref() == Some(CANCELLED);
    // They were read as JSON before, so they read again.
    let known = params.or(result).filter(|_| is_read || form.is_exact).and_then(|raw| params_of(raw).ok());
    if form.is_exact && known.as_ref().is_some_and(|known| !has_good_meta(kind, known)) {
        return Err(EnvelopeError::Meta);
    }
    if result.is_some_and(|raw| !raw.get().starts_with('{')) {
        return Err(EnvelopeError::Result);
    }
    if error.is_some_and(|raw| !is_error_object(raw)) {
        return Err(EnvelopeError::Error);
    }
    let fields = match (method.as_deref(), known) {
        (Some(method), Some(params)) => read_fields(kind, method, &params, form.names)?,
        _ => Fields::default(),
    };
    let params = params.map_or(0..0, |raw| {
        let place = place(text, raw);
        start + place.start..start + place.end
    });
    Ok(Envelope { kind, method, id, range: start..start + text.len(), params, fields })
}

fn read_fields(kind: Kind, method: &str, params: &Params<'_>, names: Names) -> Result<Fields, EnvelopeError> {
    let mut fields = Fields::default();
    if let Some(name) = params.duplicate.filter(|_| names != Names::Any) {
        return Err(EnvelopeError::Duplicate(name));
    }
    let text = |raw: Option<&RawValue>| raw.and_then(string).map(Cow::into_owned);
    if kind == Kind::Request {
        fields.progress_token = match names {
            Names::Any => params.progress_token.and_then(token),
            names => names.take_parameter(params.progress_token, EnvelopeError::Token)?.map(|token| token.to_json()),
        };
        match method {
            "initialize" => fields.protocol_version = text(params.protocol_version),
            CALL => fields.tool_name = params.name.and_then(string).map(|name| ToolName::from(&*name)),
            SUBSCRIBE | UNSUBSCRIBE => fields.resource_uri = text(params.uri),
            _ => {}
        }
    } else if method == CANCELLED {
        fields.cancelled_request = names.take_parameter(params.request_id, EnvelopeError::Cancelled)?;
    }
    Ok(fields)
}

/// A progress token in one spelling, so that equal tokens are equal texts. Fractions are allowed.
fn token(raw: &RawValue) -> Option<String> {
    match raw.get() {
        "-0" => Some("0".to_owned()),
        text if text.starts_with('"') => RequestId::from_json(text).map(|text| text.to_json()),
        number => number.starts_with(|first: char| first == '-' || first.is_ascii_digit()).then(|| number.to_owned()),
    }
}

fn not_json(error: serde_json::Error) -> EnvelopeError {
    EnvelopeError::NotJson(error.to_string())
}

fn not_null(raw: Option<&RawValue>) -> Option<&RawValue> {
    raw.filter(|raw| raw.get() != "null")
}

/// The text of a JSON string; copied only when it has escapes.
fn string(raw: &RawValue) -> Option<Cow<'_, str>> {
    let raw = raw.get();
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str(raw).ok().map(Cow::Owned)
}

/// Whether `_meta` is an object, and asks for progress under a string or a number. Whether that is a
/// fraction depends on who reads the number.
fn has_good_meta(kind: Kind, params: &Params<'_>) -> bool {
    let is_token = |raw: &RawValue| raw.get().starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9'));
    params.meta.is_none_or(|meta| meta.get().starts_with('{'))
        && (kind == Kind::Response || params.progress_token.is_none_or(is_token))
}

fn is_error_object(raw: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct ErrorObject<'a> {
        #[serde(borrow)]
        code: &'a RawValue,
        #[serde(borrow)]
        message: &'a RawValue,
    }
    serde_json::from_str::<ErrorObject<'_>>(raw.get())
        .is_ok_and(|error| is_canonical_integer(error.code.get()) && error.message.get().starts_with('"'))
}

/// What a notification of progress says.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// The token that it is for, as compact JSON text.
    pub token: String,
    /// How far it is.
    pub number: f64,
    /// Where that number stands in the message.
    pub number_at: Range<usize>,
}

/// Reads a notification of progress that the server sends; none where the message is another one.
pub fn read_progress(message: &[u8]) -> Option<Progress> {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(borrow)]
        method: Cow<'a, str>,
        #[serde(borrow)]
        params: Params<'a>,
    }
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(borrow, rename = "progressToken")]
        token: &'a RawValue,
        #[serde(borrow)]
        progress: &'a RawValue,
    }
    memchr::memmem::find(message, b"progressToken")?;
    let text = std::str::from_utf8(message).ok()?;
    let Message { method, params: Params { token: raw, progress } } = serde_json::from_str(text).ok()?;
    let number = progress.get().parse().ok().filter(|_| method == "notifications/progress")?;
    Some(Progress { token: token(raw)?, number, number_at: place(text, progress) })
}

/// What the server promised when it answered `initialize`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitializeResult {
    /// The negotiated version, as the server wrote it (W-090).
    pub protocol_version: String,
    /// Which lists the server announces changes of.
    pub list_changed: ListChanged,
}

/// The `listChanged` capabilities of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "named like the capabilities")]
pub struct ListChanged {
    pub tools: bool,
    pub prompts: bool,
    pub resources: bool,
}

impl ListChanged {
    /// As stores keep them.
    pub fn bits(self) -> u8 {
        u8::from(self.tools) | u8::from(self.prompts) << 1 | u8::from(self.resources) << 2
    }

    /// Those of these [`bits`](Self::bits). Others say nothing.
    pub fn from_bits(bits: u8) -> Self {
        Self { tools: bits & 1 != 0, prompts: bits & 2 != 0, resources: bits & 4 != 0 }
    }
}

/// Reads the server's own response to `initialize`; `None` when it is no such response.
pub fn read_initialize_result(payload: &[u8]) -> Option<InitializeResult> {
    #[derive(Deserialize)]
    struct Response {
        result: Answer,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Answer {
        protocol_version: String,
        capabilities: Option<Capabilities>,
    }
    #[derive(Default, Deserialize)]
    struct Capabilities {
        tools: Option<Capability>,
        prompts: Option<Capability>,
        resources: Option<Capability>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Capability {
        list_changed: Option<bool>,
    }

    let Response { result } = serde_json::from_slice(payload).ok()?;
    let Capabilities { tools, prompts, resources } = result.capabilities.unwrap_or_default();
    let announced = |capability: Option<Capability>| capability.and_then(|one| one.list_changed).unwrap_or(false);
    let list_changed =
        ListChanged { tools: announced(tools), prompts: announced(prompts), resources: announced(resources) };
    Some(InitializeResult { protocol_version: result.protocol_version, list_changed })
}

/// Appends an error response; the id is null when there is none.
pub fn write_error(out: &mut Vec<u8>, id: Option<&RequestId>, code: i32, message: &str) {
    match id {
        Some(id) => write_error_with_id_text(out, &id.to_json(), code, message),
        None => write_error_with_id_text(out, "null", code, message),
    }
}

/// Appends an error response whose id is given as JSON text.
pub fn write_error_with_id_text(out: &mut Vec<u8>, id_json: &str, code: i32, message: &str) {
    write_error_with_data(out, id_json, code, message, None);
}

/// As [`write_error_with_id_text`], with `error.data`, which is JSON text too.
pub fn write_error_with_data(out: &mut Vec<u8>, id_json: &str, code: i32, message: &str, data: Option<&str>) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.extend_from_slice(id_json.as_bytes());
    out.extend_from_slice(br#","error":"#);
    write_error_object(out, code, message, data);
    out.push(b'}');
}

/// As [`write_error_with_data`], with the id behind the error.
pub(super) fn write_error_before_id(out: &mut Vec<u8>, id_json: &str, code: i32, message: &str, data: Option<&str>) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0","error":"#);
    write_error_object(out, code, message, data);
    out.extend_from_slice(br#","id":"#);
    out.extend_from_slice(id_json.as_bytes());
    out.push(b'}');
}

fn write_error_object(out: &mut Vec<u8>, code: i32, message: &str, data: Option<&str>) {
    out.extend_from_slice(br#"{"code":"#);
    out.extend_from_slice(code.to_string().as_bytes());
    out.extend_from_slice(br#","message":"#);
    write_json_string(out, message);
    if let Some(data) = data {
        out.extend_from_slice(br#","data":"#);
        out.extend_from_slice(data.as_bytes());
    }
    out.push(b'}');
}
