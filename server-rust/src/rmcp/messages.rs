//! Messages between rmcp's types and the engine's bytes.

use bytes::Bytes;
use http::request::Parts;
use rmcp::RoleServer;
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ClientRequest, CustomNotification, CustomRequest, CustomResult,
    ErrorData, GetExtensions as _, JsonRpcMessage, RequestId as RmcpId, ServerJsonRpcMessage, ServerNotification,
    ServerRequest, ServerResult,
};
use serde::Deserialize;
use serde_json::Value;
use tailrope_core::exchange::Admission;
use tailrope_core::protocol::{Body, Envelope, EnvelopeError, Head, Kind, Operation, jsonrpc};

use crate::rmcp::lean;

pub(crate) type Context = rmcp::service::RequestContext<RoleServer>;

/// Reads a message into rmcp's type, and attaches the head of the HTTP request that brought it.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn read(parts: Parts, envelope: &Envelope, body: &[u8]) -> Result<ClientJsonRpcMessage, String> {
    let mut message = match lean::call(envelope, body) {
        Some(message) => message,
        None => serde_json::from_slice(&body[envelope.range.clone()]).map_err(|error| error.to_string())?,
    };
    if (envelope.kind == Kind::Request) != matches!(&message, ClientJsonRpcMessage::Request(_)) {
        // rmcp has read it as a notification, and would never answer it.
        return Err("the id of the request is an integer that does not fit in 64 bits".to_owned());
    }
    match &mut message {
        JsonRpcMessage::Request(request) => drop(ClientRequest::extensions_mut(&mut request.request).insert(parts)),
        JsonRpcMessage::Notification(sent) => {
            drop(ClientNotification::extensions_mut(&mut sent.notification).insert(parts))
        }
        JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => {}
    }
    Ok(message)
}

/// The head of the HTTP request that brought a message. rmcp keeps it for requests and notifications, not for answers.
pub(crate) fn parts_of(message: &ClientJsonRpcMessage) -> Option<&Parts> {
    match message {
        JsonRpcMessage::Request(request) => request.request.extensions().get(),
        JsonRpcMessage::Notification(notification) => notification.notification.extensions().get(),
        JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => None,
    }
}

/// What the engine knows of a message that rmcp has read.
pub(crate) fn admitted(message: &ClientJsonRpcMessage) -> Result<Admission, EnvelopeError> {
    let header = |name: &str| parts_of(message)?.headers.get(name)?.to_str().ok();
    let head = Head { method: "POST", protocol_version: header("mcp-protocol-version"), ..Head::default() };
    if let Some(envelope) = lean::envelope(message) {
        return Ok(Admission::new(Operation::Post(Body::Single(envelope)), &head, &[]));
    }
    let body = json(message);
    Ok(Admission::new(Operation::Post(jsonrpc::read(&body)?), &head, &body))
}

/// The JSON of a message.
///
/// # Panics
/// Never: rmcp's messages are made of strings, numbers, and maps with text for keys.
pub(crate) fn json(message: &impl serde::Serialize) -> Bytes {
    let mut json = Vec::with_capacity(lean::JSON_ROOM);
    serde_json::to_writer(&mut json, message).expect("a message of rmcp is JSON");
    json.into()
}

/// A message of the log, passed on as it is. Its contents are not read into the type of its kind: only the client looks
/// at them. None if it is not a message of a server.
pub(crate) fn opaque(json: &str) -> Option<ServerJsonRpcMessage> {
    #[derive(Deserialize)]
    struct Wire {
        id: Option<RmcpId>,
        method: Option<String>,
        params: Option<Value>,
        result: Option<Value>,
        error: Option<ErrorData>,
    }
    let Wire { id, method, params, result, error } = serde_json::from_str(json).ok()?;
    Some(match (method, id) {
        (Some(method), Some(id)) => {
            JsonRpcMessage::request(ServerRequest::CustomRequest(CustomRequest::new(method, params)), id)
        }
        (Some(method), None) => JsonRpcMessage::notification(ServerNotification::CustomNotification(
            CustomNotification::new(method, params),
        )),
        (None, id) => match error {
            Some(error) => JsonRpcMessage::error(error, id),
            None => JsonRpcMessage::response(ServerResult::CustomResult(CustomResult(result.unwrap_or_default())), id?),
        },
    })
}
