//! What clients read of a task: the bytes of every answer and notification about it.
//!
//! Payloads of the SDK are put in as they are. The order of the members is that of the extension's examples.

use bytes::Bytes;

use super::id::TaskId;
use super::json::quoted;
use super::status::{End, Status, Task};
use super::times::{iso8601, poll_interval_ms};
use crate::protocol::RequestId;

/// The largest integer that every reader of JSON reads exactly.
const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// The answer that makes the client follow a task instead of its call (T-09).
pub fn created(request: &RequestId, id: &TaskId, task: &Task, unix_ms: u64) -> Bytes {
    let mut out = begun(request, "task");
    write_common(&mut out, id, task, Status::Working, unix_ms);
    out.extend_from_slice(b"}}");
    out.into()
}

/// The answer to `tasks/get` (T-10 to T-13).
pub fn detailed(request: &RequestId, id: &TaskId, task: &Task, unix_ms: u64) -> Bytes {
    let mut out = begun(request, "complete");
    write_common(&mut out, id, task, task.status(), unix_ms);
    write_details(&mut out, task);
    out.extend_from_slice(b"}}");
    out.into()
}

/// The answer to `tasks/update` and `tasks/cancel` (T-10).
pub fn acknowledged(request: &RequestId) -> Bytes {
    let mut out = begun(request, "complete");
    out.extend_from_slice(b"}}");
    out.into()
}

/// The notification that a subscriber gets of a task: as `tasks/get` shows it (T-24). The subscription is the id of its request.
pub fn notification(subscription: &RequestId, id: &TaskId, task: &Task, unix_ms: u64) -> Bytes {
    let mut out = br#"{"jsonrpc":"2.0","method":"notifications/tasks","params":{"#.to_vec();
    write_common(&mut out, id, task, task.status(), unix_ms);
    write_details(&mut out, task);
    out.extend_from_slice(br#","_meta":{"io.modelcontextprotocol/subscriptionId":"#);
    subscription.write_json(&mut out);
    out.extend_from_slice(b"}}}");
    out.into()
}

fn begun(request: &RequestId, result_type: &str) -> Vec<u8> {
    let mut out = br#"{"jsonrpc":"2.0","id":"#.to_vec();
    request.write_json(&mut out);
    out.extend_from_slice(format!(r#","result":{{"resultType":"{result_type}""#).as_bytes());
    out
}

fn write_common(out: &mut Vec<u8>, id: &TaskId, task: &Task, status: Status, unix_ms: u64) {
    if out.last() != Some(&b'{') {
        out.push(b',');
    }
    let mut text = format!(r#""taskId":"{}","status":"{}""#, id.as_str(), status.as_str());
    // Never null, which clients refuse.
    if let Some(message) = task.message() {
        text += &format!(r#","statusMessage":{}"#, quoted(message));
    }
    let ttl = task.ttl_ms().map_or_else(|| "null".to_owned(), |ttl_ms| ttl_ms.min(MAX_SAFE_INTEGER).to_string());
    let (created, updated) = (iso8601(task.created_at()), iso8601(task.updated_at()));
    let poll = poll_interval_ms(unix_ms.saturating_sub(task.created_at()));
    text += &format!(r#","createdAt":"{created}","lastUpdatedAt":"{updated}","ttlMs":{ttl},"pollIntervalMs":{poll}"#);
    out.extend_from_slice(text.as_bytes());
}

fn write_details(out: &mut Vec<u8>, task: &Task) {
    match task.end() {
        Some(End::Completed(result)) => write_member(out, "result", result),
        Some(End::Failed(error)) => write_member(out, "error", error),
        Some(End::Cancelled) => {}
        None => {
            for (at, question) in task.questions().shown().iter().enumerate() {
                let before = if at == 0 { r#","inputRequests":{"# } else { "," };
                out.extend_from_slice(format!("{before}{}:", quoted(&question.key)).as_bytes());
                out.extend_from_slice(&question.request);
            }
            if !task.questions().shown().is_empty() {
                out.push(b'}');
            }
        }
    }
}

fn write_member(out: &mut Vec<u8>, name: &str, json: &[u8]) {
    out.extend_from_slice(format!(r#","{name}":"#).as_bytes());
    out.extend_from_slice(json);
}
