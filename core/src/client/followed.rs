//! A call whose client knows no tasks, and that may become one all the same: the extension is declared for it, the task is
//! followed here, and the client gets one answer to its call.
//!
//! What a task asks the client gets as an `InputRequiredResult`, which every SDK of 2026-07-28 answers by calling again. The
//! state in it names the task, so nothing has to be kept between the two calls.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::failure::{Failure, failure_payloads};
use super::repeats::has_tasks;
use crate::protocol::json::{known_member, member, object, quoted, text, with_member};
use crate::protocol::jsonrpc::{self, Body, INTERNAL_ERROR, Kind, write_error_with_data};
use crate::protocol::{CLIENT_CAPABILITIES, Decoder, EventTooLarge, Item, RequestId, TASKS_EXTENSION, sse};

/// What the state of a question begins with; the id of the task follows.
const STATE: &str = "tailrope-task:";
/// How often is polled where the server does not say, and what it can say.
const INTERVAL_MS: u64 = 1_000;
const INTERVALS_MS: (u64, u64) = (50, 30_000);

/// A request that the host sends in the place of its client's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowPost {
    /// Its method, also for the header `Mcp-Method`.
    pub method: &'static str,
    /// For the header `Mcp-Name`; none where it keeps what it has.
    pub name: Option<String>,
    /// The message.
    pub body: String,
}

/// How a task is followed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is polled after so many milliseconds.
    Poll {
        /// The wait.
        after_ms: u64,
    },
    /// The call has its answer.
    Over,
}

/// A call of a client that knows no tasks.
#[derive(Debug)]
pub struct FollowedCall {
    id: RequestId,
    /// What every request about the task says of the client.
    meta: String,
    progress_token: Option<String>,
    first: FollowPost,
    decoder: Decoder,
    task: Option<String>,
    interval_ms: u64,
    said: Option<String>,
    progress: f64,
    requests: u64,
    is_over: bool,
}

impl FollowedCall {
    /// Of a POST; none where it is left to its client: it calls no tool, follows tasks itself, or is of another revision. A larger
    /// event than `max_event_bytes` ends the call.
    pub fn of(protocol_version: Option<&str>, body: &[u8], max_event_bytes: usize) -> Option<Self> {
        let Ok(Body::Single(envelope)) = jsonrpc::read(body) else { return None };
        let is_call = envelope.kind == Kind::Request && envelope.method.as_deref() == Some("tools/call");
        if !is_call || !has_tasks(protocol_version) {
            return None;
        }
        let message = std::str::from_utf8(body).ok()?;
        let params = message.get(envelope.params)?;
        let meta = object(member(params, &["_meta"])?)?;
        let capabilities = object(member(meta.get(), &[CLIENT_CAPABILITIES])?)?;
        let declaration = format!("{{{}:{{}}}}", quoted(TASKS_EXTENSION));
        let (place, name, value) = match known_member(capabilities.get(), &["extensions"]) {
            None if member(capabilities.get(), &["extensions"]).is_some() => return None,
            None => (capabilities, "extensions", declaration.as_str()),
            Some(extensions) if member(extensions.get(), &[TASKS_EXTENSION]).is_none() => {
                (object(extensions)?, TASKS_EXTENSION, "{}")
            }
            Some(_) => return None,
        };
        let declared = with_member(message, place, name, value);
        let meta = member(member(&declared, &["params"])?.get(), &["_meta"])?;
        let mut of_meta: BTreeMap<String, &RawValue> = serde_json::from_str(meta.get()).ok()?;
        let progress_token = of_meta.remove("progressToken").map(|token| token.get().to_owned());
        let meta = serde_json::to_string(&of_meta).ok()?;
        let state = member(params, &["requestState"]).and_then(text);
        let mut call = Self {
            id: envelope.id?,
            meta,
            progress_token,
            first: FollowPost { method: "tools/call", name: None, body: declared },
            decoder: Decoder::new(max_event_bytes),
            task: state.as_deref().and_then(|state| state.strip_prefix(STATE)).map(str::to_owned),
            interval_ms: INTERVAL_MS,
            said: None,
            progress: 0.0,
            requests: 0,
            is_over: false,
        };
        if call.task.is_some() {
            let responses = member(params, &["inputResponses"]).map_or("{}", RawValue::get);
            call.first = call.about("tasks/update", &format!(r#","inputResponses":{responses}"#));
        }
        Some(call)
    }

    /// What is sent first: the call, or the answers to the questions of a task.
    pub fn first(&self) -> &FollowPost {
        &self.first
    }

    /// Whether there is a task, so that what is sent may be sent again.
    pub fn has_task(&self) -> bool {
        self.task.is_some()
    }

    /// Whether the call has its answer.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// What the call was answered with, as a whole. True where it is a task, which is to be followed; otherwise it is for
    /// the client.
    pub fn created(&mut self, message: &[u8]) -> bool {
        let Ok(message) = std::str::from_utf8(message) else { return false };
        let Some(result) = member(message, &["result"]) else { return false };
        let result = result.get();
        if member(result, &["resultType"]).and_then(text).as_deref() != Some("task") {
            return false;
        }
        self.task = member(result, &["taskId"]).and_then(text);
        self.paced(result);
        self.task.is_some()
    }

    /// Bytes of a stream that answers the call. Gives what the client reads of them.
    ///
    /// # Errors
    /// An event is too large.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<Vec<u8>, EventTooLarge> {
        let mut frames = Vec::new();
        self.decoder.push(bytes);
        while let Some(item) = self.decoder.next()? {
            let Item::Event(event) = item else { continue };
            if self.created(event.data.as_bytes()) {
                break;
            }
            self.progressed(&event.data);
            if event.event == "message" {
                sse::write_anonymous(&mut frames, event.data.as_bytes());
            } else {
                sse::write_typed(&mut frames, &event.event, &event.data);
            }
        }
        Ok(frames)
    }

    /// The request that asks how the task stands.
    pub fn poll(&mut self) -> FollowPost {
        self.about("tasks/get", "")
    }

    /// The request that ends the task of a client that waits no more; none where there is none.
    pub fn cancel(&mut self) -> Option<FollowPost> {
        (self.has_task() && !self.is_over).then(|| self.about("tasks/cancel", ""))
    }

    /// The pause before the next poll.
    pub fn pause(&self) -> Next {
        Next::Poll { after_ms: self.interval_ms }
    }

    /// What a request about the task was answered with. Gives what the client reads, and how it goes on.
    pub fn answered(&mut self, status: u16, body: &[u8]) -> (Vec<u8>, Next) {
        let last = last_event(body);
        let message = last.as_deref().unwrap_or_else(|| std::str::from_utf8(body).unwrap_or_default());
        if let Some(error) = member(message, &["error"]).and_then(object) {
            return self.answer("error", error.get());
        }
        let Some(result) = member(message, &["result"]).and_then(object).filter(|_| status == 200) else {
            let failure = match status {
                401 | 403 => Failure::Unauthorized { status },
                _ => Failure::Unexpected { status },
            };
            return self.failed(&failure);
        };
        self.stands(result.get())
    }

    /// Nothing came of any try.
    pub fn failed(&mut self, failure: &Failure) -> (Vec<u8>, Next) {
        self.is_over = true;
        let mut frames = Vec::new();
        for payload in failure_payloads(std::slice::from_ref(&self.id), failure) {
            sse::write_anonymous(&mut frames, payload.as_bytes());
        }
        (frames, Next::Over)
    }

    fn stands(&mut self, result: &str) -> (Vec<u8>, Next) {
        self.paced(result);
        let status = member(result, &["status"]).and_then(text);
        let part = |name| member(result, name).and_then(object).map(RawValue::get);
        match status.as_deref() {
            // The answer to an update.
            None => (Vec::new(), Next::Poll { after_ms: 0 }),
            Some("completed") => self.answer("result", part(&["result"]).unwrap_or("{}")),
            Some("failed") => match part(&["error"]) {
                Some(error) => self.answer("error", error),
                None => self.refused("The task has failed"),
            },
            Some("cancelled") => self.refused("The task was cancelled"),
            Some("input_required") if part(&["inputRequests"]).is_some_and(has_members) => {
                let asked = part(&["inputRequests"]).unwrap_or("{}");
                let state = quoted(&format!("{STATE}{}", self.task.as_deref().unwrap_or_default()));
                let result =
                    format!(r#"{{"resultType":"input_required","inputRequests":{asked},"requestState":{state}}}"#);
                self.answer("result", &result)
            }
            Some(_) => (self.said(result), self.pause()),
        }
    }

    /// What the task says of itself, where the client wants to know and does not yet.
    fn said(&mut self, result: &str) -> Vec<u8> {
        let mut frames = Vec::new();
        let said = member(result, &["statusMessage"]).and_then(text);
        if let (Some(token), Some(said)) = (&self.progress_token, &said)
            && self.said.as_ref() != Some(said)
        {
            self.progress += 1.0;
            let (progress, message) = (self.progress, quoted(said));
            let params = format!(r#"{{"progressToken":{token},"progress":{progress},"message":{message}}}"#);
            let payload = format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#);
            sse::write_anonymous(&mut frames, payload.as_bytes());
        }
        self.said = said.or_else(|| self.said.take());
        frames
    }

    /// Progress only rises, also behind what the call has told before it was a task.
    fn progressed(&mut self, message: &str) {
        let told = member(message, &["params"]).and_then(|params| member(params.get(), &["progress"]));
        if let Some(told) = told.and_then(|told| told.get().parse::<f64>().ok()) {
            self.progress = self.progress.max(told);
        }
    }

    fn paced(&mut self, result: &str) {
        let told = member(result, &["pollIntervalMs"]).and_then(|told| told.get().parse::<f64>().ok());
        if let Some(told) = told {
            let (least, most) = INTERVALS_MS;
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float is cut to the bounds")]
            let told = told as u64;
            self.interval_ms = told.clamp(least, most);
        }
    }

    fn answer(&mut self, name: &str, value: &str) -> (Vec<u8>, Next) {
        self.is_over = true;
        let payload = format!(r#"{{"jsonrpc":"2.0","id":{},"{name}":{value}}}"#, self.id.to_json());
        let mut frames = Vec::new();
        sse::write_anonymous(&mut frames, payload.as_bytes());
        (frames, Next::Over)
    }

    fn refused(&mut self, message: &str) -> (Vec<u8>, Next) {
        self.is_over = true;
        let (mut payload, mut frames) = (Vec::new(), Vec::new());
        write_error_with_data(&mut payload, &self.id.to_json(), INTERNAL_ERROR, message, None);
        sse::write_anonymous(&mut frames, &payload);
        (frames, Next::Over)
    }

    fn about(&mut self, method: &'static str, more: &str) -> FollowPost {
        self.requests += 1;
        let task = self.task.clone().unwrap_or_default();
        let params = format!(r#"{{"taskId":{}{more},"_meta":{}}}"#, quoted(&task), self.meta);
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":"tailrope-{}","method":"{method}","params":{params}}}"#, self.requests);
        FollowPost { method, name: Some(task), body }
    }
}

/// The last message of a body that is a stream.
fn last_event(body: &[u8]) -> Option<String> {
    if body.trim_ascii_start().starts_with(b"{") {
        return None;
    }
    let mut decoder = Decoder::new(usize::MAX);
    decoder.push(body);
    let mut last = None;
    while let Ok(Some(item)) = decoder.next() {
        if let Item::Event(event) = item {
            last = Some(event.data);
        }
    }
    last
}

fn has_members(object: &str) -> bool {
    !object[1..].trim_ascii_start().starts_with('}')
}
