//! Requests about tasks: which are taken, and what each asks.
//!
//! The order of the checks is that of the SDKs for their own methods: what the request is, whether it agrees with its headers,
//! and only then what it asks. The words are ours. A task is for its principal alone. Another client is answered as if there were
//! no such task (T-19, T-27).

use std::borrow::Cow;

use bytes::Bytes;

use super::declaration::{CANCEL, Declared, GET, RequestMeta, UPDATE, missing_capability};
use super::id::TaskId;
use super::json::{member, text};
use crate::protocol::admission::read_post;
use crate::protocol::base64url;
use crate::protocol::fields::entries;
use crate::protocol::jsonrpc::{self, HEADER_MISMATCH, INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST};
use crate::protocol::{Body, Context, Dialect, Envelope, Head, Kind, Names, Reason, Refusal, RequestId};

/// Bytes of the name of a task, and of a question, that are read.
const MAX_NAME_BYTES: usize = 1 << 10;

/// The head of a request of 2026-07-28.
#[derive(Clone, Copy, Debug, Default)]
pub struct TaskHead<'a> {
    /// What other requests have, too.
    pub head: Head<'a>,
    /// Every value of `Mcp-Method`, in order.
    pub methods: &'a [&'a str],
    /// Every value of `Mcp-Name`, in order.
    pub names: &'a [&'a str],
    /// `MCP-Protocol-Version` came more than once.
    pub has_two_versions: bool,
}

/// A request about a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRequest {
    /// Its id, which its answer repeats.
    pub request: RequestId,
    /// The task.
    pub task: TaskId,
    /// What it asks.
    pub ask: Ask,
}

/// What is asked about a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// How it stands.
    Get,
    /// To take these answers to its questions.
    Update(Vec<Response>),
    /// To end it.
    Cancel,
}

/// The client's answer to a question of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The key of the question.
    pub key: Box<str>,
    /// The answer, as JSON.
    pub value: Bytes,
}

/// Reads a request about a task, and refuses it where it is not in order. The refusal names the request.
///
/// # Errors
/// The refusal: the first fault in the order of the checks.
pub fn read_request(head: &TaskHead<'_>, body: &[u8], json: bool, dialect: &Dialect) -> Result<TaskRequest, Refusal> {
    read(head, body, json, dialect).map_err(|refusal| refusal.naming_request(body))
}

/// Reads a request about a task again that another process has taken: without its headers. None for what is no such request.
pub fn reread_request(body: &[u8]) -> Option<TaskRequest> {
    let Ok(Body::Single(envelope)) = jsonrpc::read(body) else { return None };
    let params = std::str::from_utf8(body.get(envelope.params.clone())?).ok()?;
    asked(envelope, params).ok()
}

/// There is no such task for this sender: the same for one that is unknown, expired or of somebody else (T-19, T-27).
pub fn unknown_task(request: &RequestId) -> Refusal {
    Refusal { request: Some(request.clone()), ..Refusal::new(400, INVALID_PARAMS, "Task not found") }
}

/// The request is in order, and its task cannot take it any more: its process lost it.
pub fn not_taken(request: &RequestId) -> Refusal {
    let refusal = Refusal::new(503, INTERNAL_ERROR, "Service Unavailable: the task cannot be changed now")
        .because(Reason::StoreUnread);
    Refusal { request: Some(request.clone()), ..refusal }
}

/// The answers are more than is kept of a task: they never can be taken.
pub fn too_large(request: &RequestId) -> Refusal {
    let refusal = invalid("`inputResponses` is larger than what the server keeps of a task");
    Refusal { request: Some(request.clone()), ..refusal }
}

/// A record of the task cannot be read by this process: another release wrote it, or it is damaged.
pub fn unreadable(request: &RequestId) -> Refusal {
    let refusal =
        Refusal::new(503, INTERNAL_ERROR, "Service Unavailable: the task cannot be read").because(Reason::StoreUnread);
    Refusal { request: Some(request.clone()), ..refusal }
}

fn read(head: &TaskHead<'_>, body: &[u8], json: bool, dialect: &Dialect) -> Result<TaskRequest, Refusal> {
    if head.head.method != "POST" {
        return Err(dialect.wording.method_not_allowed());
    }
    // No SDK reads it after us, so it has no need of what only some SDKs refuse.
    let dialect = Dialect { batches: false, exact_members: false, names: Names::Bounded, ..*dialect };
    let context = Context { session_id: "", json_response: json };
    let envelope = match read_post(&head.head, body, &context, &dialect)? {
        Body::Single(envelope) if envelope.kind == Kind::Request => envelope,
        _ => return Err(Refusal::new(400, INVALID_REQUEST, "Invalid Request: a request about a task is expected")),
    };
    let params = std::str::from_utf8(&body[envelope.params.clone()]).unwrap_or_default();
    let Some(meta) = RequestMeta::of(params) else { return Err(invalid("`params._meta` must be an object")) };
    let has_version = meta.version.is_some();
    if !has_version || !meta.has_capabilities {
        let missing = if has_version { "clientCapabilities" } else { "protocolVersion" };
        return Err(invalid(&format!("`params._meta` has no `io.modelcontextprotocol/{missing}`")));
    }
    check_headers(head, &meta, &envelope, params)?;
    match meta.declared {
        Declared::Yes => {}
        Declared::No => return Err(missing_capability()),
        Declared::Malformed => return Err(invalid("the client's capabilities are not objects")),
    }
    asked(envelope, params)
}

fn check_headers(head: &TaskHead<'_>, meta: &RequestMeta, envelope: &Envelope, params: &str) -> Result<(), Refusal> {
    if head.has_two_versions || head.head.protocol_version != meta.version.as_deref() {
        return Err(mismatch("MCP-Protocol-Version"));
    }
    if !matches!(head.methods, [only] if Some(*only) == envelope.method.as_deref()) {
        return Err(mismatch("Mcp-Method"));
    }
    // Shipped clients leave it out, so it is not missed. An id that is no text is refused below.
    let id = member(params, &["taskId"]).and_then(text);
    match (head.names, id) {
        ([], _) | ([_], None) => Ok(()),
        ([name], Some(id)) if decoded(name).is_some_and(|name| name == id) => Ok(()),
        _ => Err(mismatch("Mcp-Name")),
    }
}

/// `envelope` is of a request whose headers agree with it.
fn asked(envelope: Envelope, params: &str) -> Result<TaskRequest, Refusal> {
    let Some(request) = envelope.id else { return Err(invalid("a request must have an id")) };
    let Some(id) = member(params, &["taskId"]).and_then(text) else {
        return Err(invalid("`taskId` must be a string"));
    };
    let ask = match envelope.method.as_deref() {
        Some(GET) => Ask::Get,
        Some(CANCEL) => Ask::Cancel,
        Some(UPDATE) => Ask::Update(responses(params)?),
        _ => return Err(Refusal::new(400, INVALID_REQUEST, "Invalid Request: the method is not about a task")),
    };
    match TaskId::parse(&id) {
        Some(task) => Ok(TaskRequest { request, task, ask }),
        None => Err(unknown_task(&request)),
    }
}

fn responses(params: &str) -> Result<Vec<Response>, Refusal> {
    let responses = member(params, &["inputResponses"]).and_then(|responses| entries(responses.get()));
    let Some(responses) = responses else { return Err(invalid("`inputResponses` must be an object")) };
    if responses.iter().any(|(_, value)| !value.get().starts_with('{')) {
        return Err(invalid("each of `inputResponses` must be an object"));
    }
    // No question has a longer key.
    let known = responses.into_iter().filter(|(key, _)| key.len() <= MAX_NAME_BYTES);
    let read = |(key, value): (String, &serde_json::value::RawValue)| Response {
        key: key.into(),
        value: Bytes::copy_from_slice(value.get().as_bytes()),
    };
    Ok(known.map(read).collect())
}

/// The value of a header that may be written in base64 (T-25). None for one that is not written well.
fn decoded(value: &str) -> Option<Cow<'_, str>> {
    let Some(encoded) = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
        return Some(value.into());
    };
    let encoded = encoded.trim_end_matches('=').replace('+', "-").replace('/', "_");
    let mut bytes = [0; MAX_NAME_BYTES];
    let length = base64url::decode(encoded.as_bytes(), &mut bytes)?;
    Some(std::str::from_utf8(&bytes[..length]).ok()?.to_owned().into())
}

/// The value of `Mcp-Name` for a name: in base64 unless it is plain text of a header (T-25).
pub(super) fn header_value(name: &str) -> String {
    let is_plain = !name.is_empty()
        && name.bytes().all(|byte| matches!(byte, b' '..=b'~'))
        && name.trim_matches(' ') == name
        && !name.starts_with("=?base64?");
    if is_plain {
        return name.to_owned();
    }
    let mut encoded = String::new();
    base64url::encode(name.as_bytes(), |letters| {
        encoded.extend(letters.iter().map(|letter| match letter {
            b'-' => '+',
            b'_' => '/',
            letter => char::from(*letter),
        }));
    });
    let padding = "=".repeat(encoded.len().wrapping_neg() % 4);
    format!("=?base64?{encoded}{padding}?=")
}

fn invalid(why: &str) -> Refusal {
    Refusal::new(400, INVALID_PARAMS, format!("Invalid params: {why}"))
}

fn mismatch(header: &str) -> Refusal {
    Refusal::new(400, HEADER_MISMATCH, format!("The header {header} does not say what the body says"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t_25_a_name_that_is_no_plain_text_is_written_in_base64() {
        for plain in ["slow_compute", "a b", "x=1"] {
            assert_eq!(header_value(plain), plain);
        }
        assert_eq!(header_value("é"), "=?base64?w6k=?=");
        for name in ["", "größe", " a", "a\n", "=?base64?w6k=?=", "\u{3ff}\u{3ff}?>"] {
            assert!(header_value(name).starts_with("=?base64?"), "{name}");
            assert_eq!(decoded(&header_value(name)).as_deref(), Some(name));
        }
    }
}
