//! The two messages that come most often, between rmcp's types and bytes. In rmcp's own way they take several times as long: it tries
//! one kind of message after the other, and makes a tree of each notification.

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientJsonRpcMessage, ClientRequest, JsonRpcMessage, JsonRpcNotification,
    MetaObject, NotificationMetaObject, ProgressNotificationParam, RequestId, ServerJsonRpcMessage, ServerNotification,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Reads the call of a tool. None where it is anything else, or wrong: rmcp says what.
pub(crate) fn call(body: &[u8]) -> Option<ClientJsonRpcMessage> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Wire<'a> {
        jsonrpc: &'a str,
        id: RequestId,
        method: &'a str,
        #[serde(borrow)]
        params: &'a RawValue,
    }
    let Wire { jsonrpc: "2.0", id, method: "tools/call", params } = serde_json::from_slice(body).ok()? else {
        return None;
    };
    let mut params: CallToolRequestParams = serde_json::from_str(params.get()).ok()?;
    let meta = params.meta.take();
    let mut request = CallToolRequest::new(params);
    if let Some(meta) = meta {
        request.extensions.insert(meta);
    }
    Some(JsonRpcMessage::request(ClientRequest::CallToolRequest(request), id))
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
