//! The two messages that come most often, between rmcp's types and ours. In rmcp's own way they take several times as long: it tries
//! one kind of message after the other, and makes a tree of each notification.

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientJsonRpcMessage, ClientRequest, GetMeta as _, JsonRpcMessage,
    JsonRpcNotification, MetaObject, NotificationMetaObject, ProgressNotificationParam, ServerJsonRpcMessage,
    ServerNotification,
};
use serde::Serialize;
use tailrope_core::protocol::{Envelope, Fields, Kind};

use super::ids::{request_id, rmcp_id};

/// Reads the call of a tool. None where it is anything else, or wrong: rmcp says what.
pub(crate) fn call(envelope: &Envelope, body: &[u8]) -> Option<ClientJsonRpcMessage> {
    if (envelope.kind, envelope.method.as_deref()) != (Kind::Request, Some("tools/call")) {
        return None;
    }
    let id = rmcp_id(envelope.id.as_ref()?)?;
    let mut params: CallToolRequestParams = serde_json::from_slice(&body[envelope.params.clone()]).ok()?;
    let meta = params.meta.take();
    let mut request = CallToolRequest::new(params);
    if let Some(meta) = meta {
        request.extensions.insert(meta);
    }
    Some(JsonRpcMessage::request(ClientRequest::CallToolRequest(request), id))
}

/// The envelope of the call of a tool that rmcp has read, without a body: its places are empty. None where it is anything else, or has a
/// token that rmcp has no room for.
pub(crate) fn envelope(message: &ClientJsonRpcMessage) -> Option<Envelope> {
    let JsonRpcMessage::Request(request) = message else { return None };
    let ClientRequest::CallToolRequest(call) = &request.request else { return None };
    let meta = request.request.get_meta();
    let token = meta.get_progress_token();
    if token.is_none() && meta.contains_key("progressToken") {
        return None;
    }
    let fields = Fields {
        tool_name: Some(call.params.name.as_ref().to_owned()),
        progress_token: token.map(|token| request_id(&token.0).to_json()),
        ..Fields::default()
    };
    let (method, id) = (Some("tools/call".to_owned()), Some(request_id(&request.id)));
    Some(Envelope { kind: Kind::Request, method, id, range: 0..0, params: 0..0, fields })
}

/// The JSON of progress. None where it is anything else.
pub(crate) fn progress(message: &ServerJsonRpcMessage) -> Option<Vec<u8>> {
    #[derive(Serialize)]
    struct Wire<'a> {
        jsonrpc: &'static str,
        method: &'static str,
        params: &'a ProgressNotificationParam,
    }
    let JsonRpcMessage::Notification(JsonRpcNotification { notification, .. }) = message else { return None };
    let ServerNotification::ProgressNotification(progress) = notification else { return None };
    let extensions = &progress.extensions;
    if extensions.get::<NotificationMetaObject>().is_some() || extensions.get::<MetaObject>().is_some() {
        return None;
    }
    let wire = Wire { jsonrpc: "2.0", method: "notifications/progress", params: &progress.params };
    serde_json::to_vec(&wire).ok()
}
