//! Converts the messages that come most often, tool calls and progress, between rmcp's types and ours. rmcp's own way
//! takes several times as long: it tries one kind of message after the other, and makes a tree of each notification.

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientJsonRpcMessage, ClientRequest, GetMeta as _, JsonRpcMessage,
    JsonRpcNotification, MetaObject, NotificationMetaObject, NumberOrString, ProgressNotification,
    ProgressNotificationParam, ProgressToken, ServerJsonRpcMessage, ServerNotification,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use tailrope_core::protocol::{Envelope, Fields, Kind};

use super::ids::{request_id, rmcp_id};

/// Bytes to reserve before a message is written. Most messages take less.
pub(crate) const JSON_ROOM: usize = 256;

/// Reads a tool call. None if the message is anything else or is wrong: rmcp's own reader then says what is wrong.
pub(crate) fn call(envelope: &Envelope, body: &[u8]) -> Option<ClientJsonRpcMessage> {
    if (envelope.kind, envelope.method.as_deref()) != (Kind::Request, Some("tools/call")) {
        return None;
    }
    let id = rmcp_id(envelope.id.as_ref()?)?;
    // Read from text: if it were read from bytes, each string would be checked once more.
    let params = str::from_utf8(&body[envelope.params.clone()]).ok()?;
    let mut params: CallToolRequestParams = serde_json::from_str(params).ok()?;
    let meta = params.meta.take();
    let mut request = CallToolRequest::new(params);
    if let Some(meta) = meta {
        request.extensions.insert(meta);
    }
    Some(JsonRpcMessage::request(ClientRequest::CallToolRequest(request), id))
}

/// The envelope of a tool call that rmcp has read. There is no body, so its ranges are empty. None if the message is
/// anything else, or has a progress token that does not fit in rmcp's type.
pub(crate) fn envelope(message: &ClientJsonRpcMessage) -> Option<Envelope> {
    let JsonRpcMessage::Request(request) = message else { return None };
    let ClientRequest::CallToolRequest(call) = &request.request else { return None };
    let meta = request.request.get_meta();
    let token = meta.get_progress_token();
    if token.is_none() && meta.contains_key("progressToken") {
        return None;
    }
    let fields = Fields {
        tool_name: Some(call.params.name.as_ref().into()),
        progress_token: token.map(|token| request_id(&token.0).to_json()),
        ..Fields::default()
    };
    let (method, id) = (Some("tools/call".to_owned()), Some(request_id(&request.id)));
    Some(Envelope { kind: Kind::Request, method, id, range: 0..0, params: 0..0, fields })
}

/// What progress begins with, before its parameters.
const PROGRESS: &str = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":"#;

/// The JSON of a progress notification. None if the message is anything else, or has metadata. The message is
/// afterwards as it was before.
pub(crate) fn write_progress(message: &mut ServerJsonRpcMessage) -> Option<Vec<u8>> {
    let JsonRpcMessage::Notification(JsonRpcNotification { notification, .. }) = message else { return None };
    let ServerNotification::ProgressNotification(progress) = notification else { return None };
    let extensions = &progress.extensions;
    if extensions.get::<NotificationMetaObject>().is_some() || extensions.get::<MetaObject>().is_some() {
        return None;
    }
    let mut json = Vec::with_capacity(JSON_ROOM);
    json.extend_from_slice(PROGRESS.as_bytes());
    let text = progress.params.message.take();
    let written = serde_json::to_writer(&mut json, &progress.params);
    progress.params.message = text;
    written.ok()?;
    if let Some(text) = &progress.params.message {
        // After the other parameters, before the closing brace.
        json.pop();
        json.extend_from_slice(br#","message":"#);
        write_text(&mut json, text)?;
        json.push(b'}');
    }
    json.push(b'}');
    Some(json)
}

/// Writes a text as JSON. Most texts have nothing to escape: it is faster to check that first than to write byte by
/// byte.
fn write_text(json: &mut Vec<u8>, text: &str) -> Option<()> {
    let is_plain = |byte: &u8| (*byte >= b' ') & (*byte != b'"') & (*byte != b'\\');
    if !text.as_bytes().iter().fold(true, |plain, byte| plain & is_plain(byte)) {
        return serde_json::to_writer(json, text).ok();
    }
    json.reserve(text.len() + 2);
    json.push(b'"');
    json.extend_from_slice(text.as_bytes());
    json.push(b'"');
    Some(())
}

/// Reads progress that [`write_progress`] wrote. None if it is anything else, if it has members that rmcp does not
/// know, or if it has a number that rmcp would write differently.
pub(crate) fn read_progress(json: &str) -> Option<ServerJsonRpcMessage> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "camelCase")]
    struct Params<'a> {
        #[serde(borrow)]
        progress_token: &'a RawValue,
        #[serde(borrow)]
        progress: &'a RawValue,
        #[serde(borrow)]
        total: Option<&'a RawValue>,
        message: Option<String>,
    }
    let params: Params<'_> = serde_json::from_str(json.strip_prefix(PROGRESS)?.strip_suffix('}')?).ok()?;
    let token = params.progress_token.get();
    let token = match token.parse() {
        Ok(number) => NumberOrString::Number(number),
        Err(_) => NumberOrString::String(serde_json::from_str::<String>(token).ok()?.into()),
    };
    let mut progress = ProgressNotificationParam::new(ProgressToken(token), number(params.progress)?);
    if let Some(total) = params.total {
        progress = progress.with_total(number(total)?);
    }
    progress.message = params.message;
    Some(JsonRpcMessage::notification(ServerNotification::ProgressNotification(ProgressNotification::new(progress))))
}

/// Reads a number with a fraction. None if it has no fraction, or so many digits that another number could be read as
/// the same one.
fn number(raw: &RawValue) -> Option<f64> {
    let text = raw.get().as_bytes();
    let has_few_digits = text.len() <= 16 && text.iter().all(|byte| byte.is_ascii_digit() || b"-.".contains(byte));
    raw.get().parse().ok().filter(|_| has_few_digits && text.contains(&b'.'))
}
