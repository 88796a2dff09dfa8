//! What the core reads a body as, as JSON, for tests that compare this with what an SDK reads.

use serde_json::{Value, json};

use super::admission::{Context, Dialect, Head, Operation, admit};
use super::jsonrpc::{Envelope, Kind};
use super::request_id::RequestId;

/// The messages of a body, each with its kind and its names as JSON text; or, as a text, why it is not taken.
pub fn inspect(body: &[u8], dialect: &Dialect) -> Value {
    const MEDIA_TYPES: &str = "application/json, text/event-stream";
    const SESSION: &str = "s";
    let head = Head {
        method: "POST",
        accept: Some(MEDIA_TYPES),
        content_type: Some("application/json"),
        session_id: Some(SESSION),
        ..Head::default()
    };
    let taken = |session_id| {
        let context = Context { session_id, json_response: false };
        admit(&head, body, &context, dialect)
    };
    // Some dialects take `initialize` only where there is no session yet, and nothing else there.
    match taken(SESSION).or_else(|refusal| taken("").map_err(|_| refusal)) {
        Ok(Operation::Post(body)) => body.envelopes().iter().map(message).collect(),
        Ok(operation) => unreachable!("a POST is not {operation:?}"),
        Err(refusal) => Value::from(refusal.message),
    }
}

fn message(envelope: &Envelope) -> Value {
    let kind = match envelope.kind {
        Kind::Request => "request",
        Kind::Notification => "notification",
        Kind::Response | Kind::ErrorResponse => "answer",
    };
    let id = envelope.id.as_ref().map(RequestId::to_json);
    let cancelled = envelope.fields.cancelled_request.as_ref().map(RequestId::to_json);
    let token = &envelope.fields.progress_token;
    json!({ "kind": kind, "method": envelope.method, "id": id, "cancelled": cancelled, "token": token })
}
