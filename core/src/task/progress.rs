//! What a call says of its progress becomes what its task says of itself (T-11).
//!
//! A handler reports progress only where the call has a token. So a call without one is given ours, and the client gets nothing of
//! what is reported under that.

use bytes::Bytes;
use serde_json::value::RawValue;

use super::call_headers::CallHeaders;
use super::json::{member, object, text, with_member};
use crate::protocol::fields::pick;
use crate::protocol::jsonrpc::{self, read_progress};
use crate::protocol::{Body, CLIENT_CAPABILITIES, Kind, RequestId};

/// The token that we give, as JSON. It is alone in its exchange, so it needs to tell nothing.
const OWN_TOKEN: &str = "\"tailrope-progress\"";

const CAPABILITIES: [&str; 1] = [CLIENT_CAPABILITIES];

/// Characters of a message that a task repeats.
const MAX_MESSAGE_CHARS: usize = 500;

/// A longer text is no number that anybody reads.
const MAX_NUMBER_BYTES: usize = 24;

/// A `tools/call` that may become a task.
#[derive(Clone, PartialEq, Eq)]
pub struct Call {
    /// Its id, which its answer repeats.
    pub(super) request: RequestId,
    /// What the SDK is given.
    pub(super) body: Bytes,
    pub(super) headers: CallHeaders,
    token: Option<String>,
}

/// No payload is for a log.
impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("request", &self.request).finish_non_exhaustive()
    }
}

impl Call {
    /// Reads the request, and gives it a token unless it says something about one. None for what is no request.
    pub fn read(body: &[u8]) -> Option<Self> {
        let Ok(Body::Single(envelope)) = jsonrpc::read(body) else { return None };
        let request = envelope.id.filter(|_| envelope.kind == Kind::Request)?;
        let message = std::str::from_utf8(body.get(envelope.range)?).ok()?;
        let params = member(message, &["params"]);
        let meta = params.and_then(|params| member(params.get(), &["_meta"])).and_then(object);
        let has_token = |meta: &&RawValue| member(meta.get(), &["progressToken"]).is_some();
        let (body, token) = match meta.filter(|meta| !has_token(meta)) {
            Some(meta) => (with_member(message, meta, "progressToken", OWN_TOKEN), Some(OWN_TOKEN.to_owned())),
            None => (message.to_owned(), envelope.fields.progress_token),
        };
        Some(Self { request, body: body.into(), headers: CallHeaders::default(), token })
    }

    /// The call, whose request had these headers.
    #[must_use]
    pub fn with_headers(self, headers: CallHeaders) -> Self {
        Self { headers, ..self }
    }

    /// Its id, which its answer repeats.
    pub fn request(&self) -> &RequestId {
        &self.request
    }

    /// What the SDK is given.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Whether its client can be asked this by a handler that runs: it has declared so with the call.
    pub(super) fn takes_question(&self, request: &[u8]) -> bool {
        let method = std::str::from_utf8(request).ok().and_then(|request| text(member(request, &["method"])?));
        let capability: &'static [&'static str; 1] = match method.as_deref() {
            Some("elicitation/create") => &["elicitation"],
            Some("sampling/createMessage") => &["sampling"],
            Some("roots/list") => &["roots"],
            _ => return true,
        };
        let body = std::str::from_utf8(&self.body).unwrap_or_default();
        let meta = member(body, &["params"]).and_then(|params| member(params.get(), &["_meta"]));
        let declared = meta.and_then(|meta| member(meta.get(), &CAPABILITIES));
        declared.and_then(|declared| member(declared.get(), capability)).and_then(object).is_some()
    }

    /// Reads a notification of the call's own progress; none for any other message.
    pub(super) fn progress(&self, message: &[u8]) -> Option<Progressed> {
        let progress = read_progress(message)?;
        let is_own = progress.token == OWN_TOKEN;
        (Some(&progress.token) == self.token.as_ref()).then(|| Progressed { is_own, message: said(message) })
    }
}

/// A notification of a call's progress.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Progressed {
    /// It came under the token that we gave: it is not for the client.
    pub(super) is_own: bool,
    /// What it says, for people.
    pub(super) message: Option<Box<str>>,
}

/// The message, or else how much of how much, or else how much.
fn said(message: &[u8]) -> Option<Box<str>> {
    let params = member(std::str::from_utf8(message).ok()?, &["params"])?;
    let [message, progress, total] = pick(params.get(), &["message", "progress", "total"]).ok()?.values;
    if let Some(message) = message.and_then(text).filter(|message| !message.is_empty()) {
        let end = message.char_indices().nth(MAX_MESSAGE_CHARS).map_or(message.len(), |(at, _)| at);
        return Some(message[..end].into());
    }
    let progress = number(progress?)?;
    let total = total.and_then(number).filter(|total| total.parse().is_ok_and(|total: f64| total > 0.0));
    Some(total.map_or_else(|| progress.to_owned(), |total| format!("{progress}/{total}")).into())
}

fn number(value: &RawValue) -> Option<&str> {
    let text = value.get();
    let is_number = text.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    (is_number && text.len() <= MAX_NUMBER_BYTES).then_some(text)
}
