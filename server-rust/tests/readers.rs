//! What the core takes a body for, and what rmcp takes it for: `tests/vectors/readers.json`, and mutations of it. Where the
//! core takes one, rmcp takes it for the same message, or refuses it (I7, I13).

use rmcp::model::{ClientJsonRpcMessage, ClientNotification, GetMeta as _, JsonRpcMessage, NumberOrString};
use serde_json::Value;
use tailrope_core::protocol::{Context, Dialect, Envelope, Head, Kind, Operation, RequestId, admit};

/// A message: what kind it is, its id, the request that it cancels, and its progress token.
type Read = (Kind, Option<RequestId>, Option<RequestId>, Option<String>);

fn ours(body: &[u8]) -> Option<Envelope> {
    let session_id = "s";
    let head = Head {
        method: "POST",
        accept: Some("*/*"),
        content_type: Some("application/json"),
        session_id: Some(session_id),
        ..Head::default()
    };
    let context = Context { session_id, json_response: false };
    match admit(&head, body, &context, &Dialect::NEUTRAL).ok()? {
        Operation::Post(body) => body.envelopes().first().cloned(),
        other => panic!("a POST is not {other:?}"),
    }
}

fn request_id(id: &NumberOrString) -> RequestId {
    match id {
        NumberOrString::Number(number) => RequestId::integer(*number),
        NumberOrString::String(text) => RequestId::text_id(text),
    }
}

fn theirs(body: &[u8]) -> Option<Read> {
    Some(match serde_json::from_slice::<ClientJsonRpcMessage>(body).ok()? {
        JsonRpcMessage::Request(request) => {
            let token = request.request.get_meta().get_progress_token();
            (Kind::Request, Some(request_id(&request.id)), None, token.map(|token| request_id(&token.0).to_json()))
        }
        JsonRpcMessage::Notification(sent) => {
            let cancelled = match &sent.notification {
                ClientNotification::CancelledNotification(cancelled) => cancelled.params.request_id.as_ref(),
                _ => None,
            };
            (Kind::Notification, None, cancelled.map(request_id), None)
        }
        JsonRpcMessage::Response(response) => (Kind::Response, Some(request_id(&response.id)), None, None),
        JsonRpcMessage::Error(error) => (Kind::ErrorResponse, error.id.as_ref().map(request_id), None, None),
    })
}

/// Whether both take the body.
fn check(body: &[u8]) -> bool {
    let (Some(ours), Some((kind, id, cancelled, token))) = (ours(body), theirs(body)) else { return false };
    let text = String::from_utf8_lossy(body);
    let mut kinds = (ours.kind, kind);
    if ours.kind == Kind::Request && kind == Kind::Notification {
        // The server refuses what rmcp would never answer.
        assert!(ours.id.as_ref().is_some_and(|id| id.as_text().len() > 18), "{text}");
        kinds.1 = Kind::Request;
    } else {
        assert_eq!(ours.id, id, "{text}");
    }
    assert_eq!(kinds.0, kinds.1, "{text}");
    // A cancellation that rmcp does not take cancels nothing there, and a token that does not fit asks it for nothing.
    assert!(cancelled.is_none() || cancelled == ours.fields.cancelled_request, "{text}");
    assert!(token.is_none() || token == ours.fields.progress_token, "{text}");
    true
}

fn bodies() -> Vec<Vec<u8>> {
    let unhex = |text: &str| -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    };
    let file: Value = serde_json::from_str(include_str!("../../tests/vectors/readers.json")).unwrap();
    let body = |vector: &Value| match vector["body"].as_str() {
        Some(text) => text.as_bytes().to_vec(),
        None => unhex(vector["body_hex"].as_str().unwrap()),
    };
    file["vectors"].as_array().unwrap().iter().map(body).collect()
}

#[test]
fn i13_a_body_of_the_vectors_is_read_alike() {
    let both = bodies().iter().filter(|body| check(body)).count();
    assert!(both > 30, "{both}");
}

#[test]
fn i13_bodies_of_any_form_are_read_alike() {
    const VALUES: [&str; 14] = [
        "1",
        "\"1\"",
        "1.0",
        "1e0",
        "-0",
        "null",
        "true",
        "[]",
        "{}",
        "\"\"",
        "9007199254740993",
        "18446744073709551615",
        "\"2.0\"",
        "\"ping\"",
    ];
    const NAMES: [&str; 10] =
        ["jsonrpc", "id", "method", "params", "result", "error", "requestId", "_meta", "progressToken", "x"];
    let mut state: u64 = 1;
    let mut random = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    let bodies: Vec<Vec<u8>> = bodies().into_iter().filter(|body| ours(body).is_some()).collect();
    let mut both = 0;
    for _ in 0..20_000 {
        let mut body = bodies[random(bodies.len())].clone();
        for _ in 0..=random(3) {
            let places: Vec<usize> = (0..body.len()).filter(|at| b"{},:".contains(&body[*at])).collect();
            let Some(&at) = places.get(random(places.len().max(1))) else { continue };
            let (name, value) = (NAMES[random(NAMES.len())], VALUES[random(VALUES.len())]);
            let (start, end, piece) = match random(3) {
                0 => (at, at, format!(",\"{name}\":{value}")),
                1 => (at + 1, at + 1, format!("\"{name}\":{value},")),
                _ => {
                    let end = body[at + 1..].iter().position(|byte| b",}".contains(byte));
                    (at + 1, end.map_or(body.len(), |end| at + 1 + end), value.to_owned())
                }
            };
            body.splice(start..end, piece.into_bytes());
        }
        both += usize::from(check(&body));
    }
    assert!(both > 500, "{both}");
}
