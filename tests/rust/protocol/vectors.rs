//! Runs the vectors of `tailrope_core::protocol`. A field that the runner does not know fails it.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tailrope_core::protocol::jsonrpc::{self, Form, read_as, read_initialize_result};
use tailrope_core::protocol::{
    Context, Cursor, Decoder, Dialect, Envelope, EventId, Fields, Head, IdEncoder, Item, Kind, Names, Operation,
    Origin, Refusal, RequestId, StreamNonce, admit, admit_with_versions, sse,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File<Given, Want> {
    about: String,
    vectors: Vec<Vector<Given, Want>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector<Given, Want> {
    name: String,
    about: Option<String>,
    #[serde(default)]
    requirements: Vec<String>,
    given: Given,
    want: Want,
    /// What the SDK answers where we answer something else.
    differs_from_stock: Option<String>,
}

/// Runs every vector, so that one failure does not hide the next.
fn run<Given: DeserializeOwned, Want: DeserializeOwned>(file: &str, check: impl Fn(Given, Want)) {
    let file: File<Given, Want> = serde_json::from_str(file).unwrap();
    assert!(!file.about.is_empty() && !file.vectors.is_empty());
    let mut names = HashSet::new();
    let mut failed = Vec::new();
    for Vector { name, about, requirements, given, want, differs_from_stock } in file.vectors {
        assert!(name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-')), "{name}");
        assert!(requirements.iter().all(|id| id.starts_with("W-") || id.starts_with("F-")), "{name}");
        for text in [about, differs_from_stock].into_iter().flatten() {
            assert!(!text.is_empty(), "{name}");
        }
        assert!(names.insert(name.clone()), "{name} comes twice");
        if catch_unwind(AssertUnwindSafe(|| check(given, want))).is_err() {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "failed: {failed:#?}");
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn request_id(json: &str) -> RequestId {
    RequestId::from_json(json).unwrap()
}

fn utf8(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

// Event ids

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum OriginText {
    Standalone,
    Unnamed,
    Request(String),
}

impl OriginText {
    fn origin(self) -> Origin {
        match self {
            Self::Standalone => Origin::Standalone,
            Self::Unnamed => Origin::Unnamed,
            Self::Request(json) => Origin::Request(request_id(&json)),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum EventIdGiven {
    Position { nonce: String, seq: u64, visit: u32, tag: u32, origin: OriginText },
    Tombstone { nonce: String, origin: OriginText },
    Text(String),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum EventIdWant {
    Written(Written),
    Refused(Refused),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    text: String,
    /// The origin that is read back, where it is not the one given.
    reads_as: Option<OriginText>,
}

#[derive(Deserialize)]
enum Refused {
    #[serde(rename = "no-event-id")]
    NoEventId,
}

#[test]
fn event_ids() {
    run(include_str!("../../vectors/event_id.json"), |given: EventIdGiven, want: EventIdWant| {
        let nonce = |hex: &str| StreamNonce(unhex(hex).try_into().unwrap());
        let (written, id) = match given {
            EventIdGiven::Text(text) => {
                assert!(matches!(want, EventIdWant::Refused(Refused::NoEventId)));
                assert_eq!(EventId::parse(&text), None);
                return;
            }
            EventIdGiven::Position { nonce: hex, seq, visit, tag, origin } => {
                let (nonce, origin) = (nonce(&hex), origin.origin());
                assert_eq!(nonce.hex(), hex);
                let mut out = Vec::new();
                IdEncoder::new(nonce, &origin).encode(seq, visit, tag, &mut out);
                (utf8(out), EventId::Position(Cursor { nonce, seq, visit, tag, origin }))
            }
            EventIdGiven::Tombstone { nonce: hex, origin } => {
                let (nonce, origin) = (nonce(&hex), origin.origin());
                let mut out = Vec::new();
                IdEncoder::new(nonce, &origin).tombstone(&mut out);
                (utf8(out), EventId::Tombstone(nonce, origin))
            }
        };
        let EventIdWant::Written(want) = want else { panic!("a position is written") };
        assert_eq!(written, want.text);
        let id = match (id, want.reads_as.map(OriginText::origin)) {
            (EventId::Position(cursor), Some(origin)) => EventId::Position(Cursor { origin, ..cursor }),
            (EventId::Tombstone(nonce, _), Some(origin)) => EventId::Tombstone(nonce, origin),
            (id, None) => id,
        };
        assert_eq!(EventId::parse(&written), Some(id));
    });
}

// Server-sent events

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum SseGiven {
    Write(SseWrite),
    Read { chunks: Vec<Chunk>, limit_bytes: Option<usize>, resumed_from: Option<String> },
    ForeignId(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum SseWrite {
    Message { id: String, payload: String },
    Anonymous { payload: String },
    Priming { id: String, retry_ms: Option<u32> },
    Retry(u32),
    KeepAlive,
    Gap { first: u64, count: u64 },
}

#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Chunk {
    Text(String),
    Hex { hex: String },
}

impl Chunk {
    fn bytes(self) -> Vec<u8> {
        match self {
            Self::Text(text) => text.into_bytes(),
            Self::Hex { hex } => unhex(&hex),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SseWant {
    text: Option<String>,
    valid: Option<bool>,
    items: Option<Vec<ItemWant>>,
    last_id: Option<String>,
    #[serde(default, deserialize_with = "present")]
    retry_ms: Option<Option<u64>>,
    error: Option<String>,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum ItemWant {
    Event { event: String, data: String, id: Option<String>, last_id: String },
    Comment(String),
    Retry(u64),
    Cursor(String),
}

impl From<Item> for ItemWant {
    fn from(item: Item) -> Self {
        match item {
            Item::Event(event) => {
                Self::Event { event: event.event, data: event.data, id: event.id, last_id: event.last_id }
            }
            Item::Comment(text) => Self::Comment(text),
            Item::Retry(retry_ms) => Self::Retry(retry_ms),
            Item::Cursor(id) => Self::Cursor(id),
        }
    }
}

/// Tells null from an absent field.
fn present<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

#[test]
fn server_sent_events() {
    run(include_str!("../../vectors/sse.json"), |given: SseGiven, want: SseWant| match given {
        SseGiven::Write(write) => {
            let mut out = Vec::new();
            match write {
                SseWrite::Message { id, payload } => {
                    sse::write_message(&mut out, |out| out.extend_from_slice(id.as_bytes()), payload.as_bytes());
                }
                SseWrite::Anonymous { payload } => sse::write_anonymous(&mut out, payload.as_bytes()),
                SseWrite::Priming { id, retry_ms } => {
                    sse::write_priming(&mut out, |out| out.extend_from_slice(id.as_bytes()), retry_ms);
                }
                SseWrite::Retry(retry_ms) => sse::write_retry(&mut out, retry_ms),
                SseWrite::KeepAlive => sse::write_keep_alive(&mut out),
                SseWrite::Gap { first, count } => sse::write_gap(&mut out, first, count),
            }
            assert_eq!(utf8(out), want.text.unwrap());
        }
        SseGiven::ForeignId(id) => assert_eq!(sse::is_valid_event_id(&id), want.valid.unwrap()),
        SseGiven::Read { chunks, limit_bytes, resumed_from } => {
            let mut decoder = Decoder::new(limit_bytes.unwrap_or(1 << 20));
            if let Some(id) = resumed_from {
                decoder = decoder.resumed_from(&id);
            }
            let mut items: Vec<ItemWant> = Vec::new();
            let mut error = None;
            'chunks: for chunk in chunks {
                decoder.push(&chunk.bytes());
                loop {
                    match decoder.next() {
                        Ok(Some(item)) => items.push(item.into()),
                        Ok(None) => break,
                        Err(too_large) => {
                            error = Some(too_large.to_string());
                            break 'chunks;
                        }
                    }
                }
            }
            assert_eq!(items, want.items.unwrap());
            assert_eq!(error, want.error);
            if let Some(last_id) = want.last_id {
                assert_eq!(decoder.last_id(), last_id);
            }
            if let Some(retry_ms) = want.retry_ms {
                assert_eq!(decoder.retry_ms(), retry_ms);
            }
        }
    });
}

// JSON-RPC

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum JsonRpcGiven {
    Body(String),
    BodyHex(String),
    InitializeResult(String),
    WriteError { id: Option<String>, code: i32, message: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRpcWant {
    batch: Option<bool>,
    messages: Option<Vec<MessageWant>>,
    code: Option<i32>,
    error: Option<String>,
    #[serde(default, deserialize_with = "present")]
    initialize_result: Option<Option<InitializeWant>>,
    text: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MessageWant {
    kind: KindWant,
    method: Option<String>,
    id: Option<String>,
    text: Option<String>,
    #[serde(default)]
    fields: FieldsWant,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum KindWant {
    Request,
    Notification,
    Response,
    ErrorResponse,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldsWant {
    protocol_version: Option<String>,
    cancelled_request: Option<String>,
    progress_token: Option<String>,
    tool_name: Option<String>,
    resource_uri: Option<String>,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct InitializeWant {
    protocol_version: String,
    list_changed: Vec<String>,
}

fn check_message(body: &[u8], envelope: &Envelope, want: MessageWant) {
    let kind = match want.kind {
        KindWant::Request => Kind::Request,
        KindWant::Notification => Kind::Notification,
        KindWant::Response => Kind::Response,
        KindWant::ErrorResponse => Kind::ErrorResponse,
    };
    assert_eq!(envelope.kind, kind);
    assert_eq!(envelope.method, want.method);
    assert_eq!(envelope.id.as_ref().map(RequestId::to_json), want.id);
    let slice = std::str::from_utf8(&body[envelope.range.clone()]).unwrap();
    assert!(slice.starts_with('{') && slice.ends_with('}'));
    assert_eq!(slice, want.text.as_deref().unwrap_or(slice));
    let fields = Fields {
        protocol_version: want.fields.protocol_version,
        cancelled_request: want.fields.cancelled_request.as_deref().map(request_id),
        progress_token: want.fields.progress_token,
        tool_name: want.fields.tool_name.as_deref().map(Into::into),
        resource_uri: want.fields.resource_uri,
    };
    assert_eq!(envelope.fields, fields);
}

#[test]
fn json_rpc_envelopes() {
    run(include_str!("../../vectors/jsonrpc.json"), |given: JsonRpcGiven, want: JsonRpcWant| {
        let body = match given {
            JsonRpcGiven::Body(text) => text.into_bytes(),
            JsonRpcGiven::BodyHex(hex) => unhex(&hex),
            JsonRpcGiven::InitializeResult(payload) => {
                let result = read_initialize_result(payload.as_bytes()).map(|result| {
                    let lists = result.list_changed;
                    let named = [("tools", lists.tools), ("prompts", lists.prompts), ("resources", lists.resources)];
                    let list_changed = named.into_iter().filter(|(_, set)| *set).map(|(name, _)| name.into());
                    InitializeWant { protocol_version: result.protocol_version, list_changed: list_changed.collect() }
                });
                assert_eq!(result, want.initialize_result.unwrap());
                return;
            }
            JsonRpcGiven::WriteError { id, code, message } => {
                let mut out = Vec::new();
                jsonrpc::write_error(&mut out, id.as_deref().map(request_id).as_ref(), code, &message);
                assert_eq!(utf8(out), want.text.unwrap());
                return;
            }
        };
        let form = Form { max_batch: usize::MAX, is_exact: false, names: Names::Bounded };
        match (read_as(&body, form), want.messages) {
            (Ok(read), Some(messages)) => {
                assert_eq!(matches!(read, jsonrpc::Body::Batch(_)), want.batch.unwrap());
                assert_eq!(read.envelopes().len(), messages.len());
                for (envelope, message) in read.envelopes().iter().zip(messages) {
                    check_message(&body, envelope, message);
                }
            }
            (Err(error), None) => {
                assert_eq!(error.code(), want.code.unwrap());
                if let Some(text) = want.error {
                    assert_eq!(error.to_string(), text);
                }
            }
            (read, _) => panic!("{read:?}"),
        }
    });
}

// Admission

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AdmissionGiven {
    dialects: Vec<DialectName>,
    method: String,
    accept: Option<String>,
    content_type: Option<String>,
    protocol_version: Option<String>,
    session_id: Option<String>,
    last_event_id: Option<String>,
    #[serde(default)]
    json_response: bool,
    /// Whether the transport has its session already.
    #[serde(default = "yes")]
    opened: bool,
    body: Option<String>,
    body_hex: Option<String>,
}

fn yes() -> bool {
    true
}

#[derive(Clone, Copy, Debug, Deserialize)]
enum DialectName {
    #[serde(rename = "mcp-python-1")]
    McpPython1,
    #[serde(rename = "mcp-python-2")]
    McpPython2,
    #[serde(rename = "mcp-typescript-1")]
    McpTypeScript1,
    #[serde(rename = "mcp-typescript-2")]
    McpTypeScript2,
    #[serde(rename = "neutral")]
    Neutral,
}

impl DialectName {
    fn dialect(self) -> Dialect {
        match self {
            Self::McpPython1 => Dialect::MCP_PYTHON_1,
            Self::McpPython2 => Dialect::MCP_PYTHON_2,
            Self::McpTypeScript1 => Dialect::MCP_TYPESCRIPT_1,
            Self::McpTypeScript2 => Dialect::MCP_TYPESCRIPT_2,
            Self::Neutral => Dialect::NEUTRAL,
        }
    }

    /// What a host of this line names as the versions that it serves.
    fn versions(self) -> Option<&'static [&'static str]> {
        match self {
            Self::McpPython1 | Self::McpPython2 | Self::Neutral => None,
            Self::McpTypeScript1 | Self::McpTypeScript2 => Some(&["2025-11-25", "2024-10-07"]),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AdmissionWant {
    operation: Option<OperationWant>,
    status: Option<u16>,
    code: Option<i32>,
    message: Option<String>,
    allow: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum OperationWant {
    Post,
    Listen,
    Delete,
    Resume(String),
}

fn check_refusal(refusal: &Refusal, dialect: DialectName, want: &AdmissionWant) {
    assert_eq!(Some(refusal.status), want.status);
    assert_eq!(Some(refusal.code), want.code);
    assert_eq!(refusal.allow, want.allow.as_deref());
    let message = want.message.as_deref().unwrap();
    match message.strip_suffix('*') {
        Some(beginning) => assert!(refusal.message.starts_with(beginning), "{}", refusal.message),
        None => assert_eq!(refusal.message, message),
    }
    let id = match dialect {
        DialectName::McpPython1 => "\"server-error\"",
        _ => "null",
    };
    let error = format!(r#"{{"code":{},"message":{}}}"#, refusal.code, Value::from(refusal.message.as_str()));
    let body = match dialect {
        DialectName::McpPython1 | DialectName::McpPython2 => {
            format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
        }
        DialectName::McpTypeScript1 | DialectName::McpTypeScript2 | DialectName::Neutral => {
            format!(r#"{{"jsonrpc":"2.0","error":{error},"id":{id}}}"#)
        }
    };
    assert_eq!(String::from_utf8(refusal.body(&dialect.dialect())).unwrap(), body);
}

#[test]
fn admission() {
    run(include_str!("../../vectors/admission.json"), |given: AdmissionGiven, want: AdmissionWant| {
        let head = Head {
            method: &given.method,
            accept: given.accept.as_deref(),
            content_type: given.content_type.as_deref(),
            protocol_version: given.protocol_version.as_deref(),
            session_id: given.session_id.as_deref(),
            last_event_id: given.last_event_id.as_deref(),
        };
        let session_id = if given.opened { "current" } else { "" };
        let context = Context { session_id, json_response: given.json_response };
        let body = given.body.map_or_else(|| unhex(&given.body_hex.unwrap_or_default()), String::into_bytes);
        for name in given.dialects {
            let dialect = name.dialect();
            let answer = match name.versions() {
                None => admit(&head, &body, &context, &dialect),
                Some(versions) => admit_with_versions(&head, &body, &context, &dialect, versions),
            };
            match (answer, &want.operation) {
                (Ok(Operation::Post(_)), Some(OperationWant::Post))
                | (Ok(Operation::Listen), Some(OperationWant::Listen))
                | (Ok(Operation::Delete), Some(OperationWant::Delete)) => {}
                (Ok(Operation::Resume(id)), Some(OperationWant::Resume(wanted))) => assert_eq!(&id, wanted),
                (Err(refusal), None) => check_refusal(&refusal, name, &want),
                (answer, _) => panic!("{name:?}: {answer:?}"),
            }
        }
    });
}

/// No SDK that is replaced today takes batches, so the rules for them have no vectors of stock.
#[test]
fn a_dialect_with_batches_refuses_initialize_and_equal_ids_in_them() {
    let dialect = Dialect { batches: true, ..Dialect::MCP_PYTHON_2 };
    let head = Head {
        method: "POST",
        accept: Some("*/*"),
        content_type: Some("application/json"),
        session_id: Some("current"),
        ..Head::default()
    };
    let context = Context { session_id: "current", json_response: false };
    let ping = |id: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
    let post = |body: String| admit(&head, body.as_bytes(), &context, &dialect);

    let Ok(Operation::Post(body)) = post(format!("[{},{}]", ping("1"), ping("\"1\""))) else {
        panic!("1 is not \"1\"")
    };
    assert_eq!(body.envelopes().len(), 2);
    assert!(body.has_request());
    for body in [
        format!("[{},{}]", ping("1"), ping("1")),
        r#"[{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}]"#.to_owned(),
    ] {
        let refusal = post(body).unwrap_err();
        assert_eq!((refusal.status, refusal.code), (400, jsonrpc::INVALID_REQUEST));
    }
}
