//! JSON-RPC envelopes: no body makes the reader panic, it agrees with serde_json about what a message says, and ids keep
//! their digits.

use serde_json::Value;
use tailrope_core::client::{Failure, Posted, failure_payloads};
use tailrope_core::protocol::jsonrpc::{self, Body, Envelope, EnvelopeError, Form, Kind};
use tailrope_core::protocol::{Names, RequestId, Revision};

use crate::reader::Reader;

pub(crate) fn run(bytes: &[u8]) {
    let Some((mode, bytes)) = bytes.split_first() else { return };
    match mode & 3 {
        0 | 1 => body(bytes),
        2 => token(bytes),
        _ => error(Reader::new(bytes)),
    }
}

fn body(bytes: &[u8]) {
    let read = jsonrpc::read(bytes);
    let value = serde_json::from_slice::<Value>(bytes).ok();
    match &read {
        Ok(body) => {
            for envelope in body.envelopes() {
                is_read_again(bytes, envelope);
            }
            if let Some(value) = &value {
                agrees(body, value);
            }
            assert_eq!(jsonrpc::read_leniently(bytes), body.envelopes());
        }
        Err(error) => {
            if let EnvelopeError::NotUtf8 | EnvelopeError::NotJson(_) = error {
                assert_eq!(value, None, "what serde_json reads is JSON: {error}");
            }
            assert!(!error.to_string().is_empty() && error.code() < 0);
            jsonrpc::read_leniently(bytes).iter().for_each(|envelope| {
                assert!(envelope.id.is_some() || envelope.kind != Kind::Response);
            });
        }
    }
    if let Some(value) = &value {
        // Written again there are no names that come twice, and no blanks.
        let text = value.to_string();
        assert_eq!(shape(jsonrpc::read(text.as_bytes())), wanted(value), "{text}");
        leniently(value, &text);
    }
    for (max_batch, is_exact, names) in
        [(100, true, Names::Safe), (2, false, Names::Any), (100, false, Names::Bounded), (100, true, Names::Any)]
    {
        let form = Form { max_batch, is_exact, names };
        match (jsonrpc::read_as(bytes, form), &read) {
            (Ok(strict), Ok(read)) => {
                assert!(strict.envelopes().len() <= max_batch);
                assert_eq!(&strict, read, "a strict reader takes less, and that as it is");
            }
            (Ok(strict), Err(error)) => panic!("a strict reader takes {strict:?}: {error}"),
            (Err(_), _) => {}
        }
    }
    let posted = Posted::read(bytes);
    let requests = read.iter().flat_map(Body::envelopes).filter(|envelope| envelope.kind == Kind::Request);
    assert!(requests.filter_map(|envelope| envelope.id.as_ref()).eq(&posted.requests));
    if let Some(progress) = jsonrpc::read_progress(bytes) {
        let at = progress.number_at;
        let other = [&bytes[..at.start], b"0.5", &bytes[at.end..]].concat();
        let again = jsonrpc::read_progress(&other).expect("only its number is another");
        assert_eq!((again.number, again.token), (0.5, progress.token));
    }
    if let Some(result) = jsonrpc::read_initialize_result(bytes) {
        let _ = Revision::parse(&result.protocol_version);
        let version = value.as_ref().map(|value| &value["result"]["protocolVersion"]);
        assert!(version.is_none_or(|version| version == &result.protocol_version));
    }
}

/// The place in the body holds the message, and nothing else.
fn is_read_again(bytes: &[u8], envelope: &Envelope) {
    let text = &bytes[envelope.range.clone()];
    assert!(text.starts_with(b"{") && text.ends_with(b"}"));
    let again = jsonrpc::read(text).expect("a message that was read is one");
    let start = envelope.range.start;
    let params = if envelope.params.is_empty() {
        0..0
    } else {
        assert!(bytes[envelope.params.clone()].starts_with(b"{") && bytes[envelope.params.clone()].ends_with(b"}"));
        envelope.params.start - start..envelope.params.end - start
    };
    let moved = Envelope { range: 0..text.len(), params, ..envelope.clone() };
    assert_eq!(again, Body::Single(moved));
    if let Some(id) = &envelope.id {
        assert_eq!(RequestId::from_json(&id.to_json()).as_ref(), Some(id), "an id keeps its digits");
    }
    assert_eq!(envelope.method.is_some(), matches!(envelope.kind, Kind::Request | Kind::Notification));
    assert!(envelope.id.is_some() || matches!(envelope.kind, Kind::Notification | Kind::ErrorResponse));
}

fn agrees(body: &Body, value: &Value) {
    let values = match (body, value) {
        (Body::Single(_), value @ Value::Object(_)) => std::slice::from_ref(value),
        (Body::Batch(_), Value::Array(values)) => values,
        _ => panic!("{body:?} is not {value}"),
    };
    assert_eq!(body.envelopes().len(), values.len());
    for (envelope, value) in body.envelopes().iter().zip(values) {
        assert_eq!(envelope.method.as_deref(), value["method"].as_str());
        let params = &value["params"];
        let fields = &envelope.fields;
        // The engine reads these; whether their values fit is the handler's business.
        if let Some(version) = &fields.protocol_version {
            assert_eq!(params["protocolVersion"], **version);
        }
        if let Some(name) = &fields.tool_name {
            assert_eq!(params["name"].as_str(), Some(&**name));
        }
        if let Some(id) = &fields.cancelled_request {
            is_id(id, &params["requestId"]);
        }
        match &envelope.id {
            Some(id) => is_id(id, &value["id"]),
            None => assert!(value["id"].is_null()),
        }
    }
}

fn is_id(id: &RequestId, value: &Value) {
    match (id, value) {
        (RequestId::Text(text), Value::String(value)) => assert_eq!(**text, **value),
        (RequestId::Integer(digits), Value::Number(number)) => match (number.as_i64(), number.as_u64()) {
            (None, None) => {
                // serde_json keeps no digits beyond 64 bits, and may be off by a little in the last that it keeps.
                let (beyond, kept) = (digits.parse::<f64>().unwrap_or(0.0), number.as_f64().unwrap_or(0.0));
                assert!((beyond - kept).abs() <= beyond.abs() * 1e-12, "{digits} is not {number}");
            }
            _ => assert_eq!(**digits, *number.to_string()),
        },
        _ => panic!("{id:?} is not {value}"),
    }
}

type Shape = (Kind, Option<String>, Option<RequestId>);

fn shape(body: Result<Body, EnvelopeError>) -> Option<Vec<Shape>> {
    let one = |envelope: &Envelope| (envelope.kind, envelope.method.clone(), envelope.id.clone());
    body.ok().map(|body| body.envelopes().iter().map(one).collect())
}

/// What a value is, by the rules of JSON-RPC and of MCP (W-012 to W-014, W-095); none where it is not taken.
fn wanted(value: &Value) -> Option<Vec<Shape>> {
    match value {
        Value::Object(_) => Some(vec![wanted_one(value)?]),
        Value::Array(values) if !values.is_empty() => values.iter().map(wanted_one).collect(),
        _ => None,
    }
}

fn wanted_one(value: &Value) -> Option<Shape> {
    let members = value.as_object().filter(|members| members.get("jsonrpc").is_some_and(|version| version == "2.0"))?;
    let member = |name: &str| members.get(name).filter(|member| !member.is_null());
    let kind = match (member("method"), member("result"), member("error")) {
        (Some(method), None, None) if method.is_string() && member("params").is_none_or(Value::is_object) => {
            if members.contains_key("id") { Kind::Request } else { Kind::Notification }
        }
        (None, Some(Value::Object(_)), None) => Kind::Response,
        (None, None, Some(Value::Object(error))) => {
            let code = error.get("code").filter(|code| is_integer(code));
            code.and_then(|_| error.get("message").filter(|message| message.is_string()))?;
            Kind::ErrorResponse
        }
        _ => return None,
    };
    if member("params").is_some_and(|params| !params.is_object()) {
        return None;
    }
    let id = match members.get("id") {
        None if kind == Kind::Notification => None,
        None => return None,
        Some(Value::Null) if kind == Kind::ErrorResponse => None,
        Some(Value::String(text)) => Some(RequestId::text_id(text)),
        Some(id) if is_integer(id) => Some(RequestId::Integer(id.to_string().into())),
        Some(_) => return None,
    };
    Some((kind, member("method").and_then(Value::as_str).map(str::to_owned), id))
}

fn is_integer(value: &Value) -> bool {
    value.is_i64() || value.is_u64()
}

/// Of an array whose elements are not all messages those are read that are.
fn leniently(value: &Value, text: &str) {
    let wanted: Vec<Shape> = match (wanted(value), value) {
        (Some(all), _) => all,
        (None, Value::Array(values)) => values.iter().filter_map(wanted_one).collect(),
        (None, _) => Vec::new(),
    };
    let read = jsonrpc::read_leniently(text.as_bytes());
    let read: Vec<Shape> = read.into_iter().map(|one| (one.kind, one.method, one.id)).collect();
    assert_eq!(read, wanted, "{text}");
}

fn token(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(id) = RequestId::from_json(text) {
        let written = id.to_json();
        assert_eq!(RequestId::from_json(&written), Some(id.clone()));
        if let RequestId::Integer(digits) = &id {
            assert!(**digits == *text || (text, &**digits) == ("-0", "0"), "I7: an integer keeps its digits");
        }
        let value: Value = serde_json::from_str(&written).unwrap_or(Value::Null);
        assert!(value.is_number() || value.is_string() || written.len() > 300, "{written} is a JSON token");
    }
    if let Some(ids) = RequestId::decode_all(bytes) {
        let written = RequestId::encode_all(&ids);
        assert_eq!(RequestId::decode_all(&written), Some(ids));
    }
}

fn error(mut reader: Reader<'_>) {
    let (is_text, code) = (reader.flag(), i32::from_ne_bytes(reader.u32().to_ne_bytes()));
    let (name, message) = (reader.text(), reader.text());
    let id = if is_text { Some(RequestId::text_id(&name)) } else { RequestId::from_json(&name) };
    let mut out = Vec::new();
    jsonrpc::write_error(&mut out, id.as_ref(), code, &message);
    let read = jsonrpc::read(&out).expect("an error of ours is a message");
    let [envelope] = read.envelopes() else { panic!("it is one message") };
    assert_eq!((envelope.kind, &envelope.id), (Kind::ErrorResponse, &id));
    let value: Value = serde_json::from_slice(&out).unwrap_or(Value::Null);
    assert!(value.is_null() || value["error"]["code"] == code && value["error"]["message"] == *message);

    let requests: Vec<RequestId> = id.into_iter().collect();
    let payloads = failure_payloads(&requests, &Failure::Unexpected { status: 500 });
    assert_eq!(payloads.len(), requests.len());
    for (payload, request) in payloads.iter().zip(&requests) {
        let read = jsonrpc::read(payload.as_bytes()).expect("an error of ours is a message");
        assert_eq!(read.envelopes()[0].id.as_ref(), Some(request));
    }
}
