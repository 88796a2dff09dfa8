//! Handlers that panic.

use serde_json::json;
use tailrope_core::engine::{OutgoingKind, OutgoingMessage, Sent, SessionHandle};
use tailrope_core::protocol::{RequestId, jsonrpc};

/// What its client is told.
pub(crate) const MESSAGE: &str = "Internal error: the handler of the request panicked";

/// Answers a request whose handler panicked: otherwise its client would wait for ever (I13).
pub(crate) fn answer_for(session: &SessionHandle, request: &RequestId) {
    let error = json!({ "code": jsonrpc::INTERNAL_ERROR, "message": MESSAGE });
    let payload = format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, request.to_json()).into();
    let message = OutgoingMessage { kind: OutgoingKind::Response, id: Some(request), related: None, payload };
    // The engine answers for a response that is not stored (I9). A request that has its end already needs none.
    if !matches!(session.send(message), Ok(Sent::Dropped) | Err(_)) {
        log(Some(session.name()));
    }
}

/// Says in which session a handler panicked; none if the request has no session.
pub(crate) fn log(session: Option<&str>) {
    tracing::error!(
        target: "tailrope", session,
        "a handler panicked: its request is answered with error -32603. The panic itself is on the standard error output"
    );
}
