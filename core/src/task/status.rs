//! How a task stands, as its log tells it.
//!
//! ```text
//!                  a question     ┌────────────────┐
//!              ┌─────────────────▶│ input_required │──────┐
//!  Created ┌───┴─────┐            └───────┬────────┘      │
//! ────────▶│ working │◀───────────────────┘               │ the call ends, or is cancelled:
//!          └───┬─────┘  the last answer                   ▼ the first end counts
//!              │                          ┌───────────────────────────────┐
//!              └─────────────────────────▶│ completed │ failed │ cancelled│
//!                                         └───────────────────────────────┘
//! ```
//!
//! Every process makes the same of the same log, and nothing else changes a task. What is asked decides between the first two
//! states, so neither is noted anywhere.

use std::error::Error;
use std::fmt;

use bytes::Bytes;

use super::call_headers::CallHeaders;
use super::change::{Born, Change, Kept, What};
use super::json::{quoted, text};
use super::questions::{Questions, Source};
use crate::protocol::fields::{entries, pick};
use crate::protocol::jsonrpc::INTERNAL_ERROR;

/// The states of the extension (T-15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The call runs.
    Working,
    /// It waits for its client.
    InputRequired,
    /// It has a result.
    Completed,
    /// It has an error.
    Failed,
    /// Its client ended it.
    Cancelled,
}

impl Status {
    /// Its name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether it never changes again.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

/// The end of a task. Payloads are JSON, as the SDK wrote them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The `result` of the call, also one that says `isError` (T-13).
    Completed(Bytes),
    /// The `error` of the call (T-14).
    Failed(Bytes),
    /// The client ended it.
    Cancelled,
}

/// A record that does not continue the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inapplicable;

impl fmt::Display for Inapplicable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a record of the task does not continue the ones before it")
    }
}

impl Error for Inapplicable {}

/// A task. See the module's diagram.
#[derive(Clone, PartialEq, Eq)]
pub struct Task {
    created_at: u64,
    updated_at: u64,
    limit_ms: Option<u64>,
    retention_ms: u64,
    call: Bytes,
    headers: CallHeaders,
    message: Option<Box<str>>,
    questions: Questions,
    end: Option<End>,
    kept: Kept,
}

/// No payload is for a log.
impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("status", &self.status()).finish_non_exhaustive()
    }
}

impl Task {
    /// The task that a log begins with.
    ///
    /// # Errors
    /// [`Inapplicable`] for a change that begins none.
    pub fn new(first: &Change) -> Result<Self, Inapplicable> {
        let Change { at, what: What::Created { limit_ms, retention_ms, call, headers } } = first else {
            return Err(Inapplicable);
        };
        Ok(Self {
            created_at: *at,
            updated_at: *at,
            limit_ms: *limit_ms,
            retention_ms: *retention_ms,
            call: call.clone(),
            headers: headers.clone(),
            message: None,
            questions: Questions::default(),
            end: None,
            kept: Kept::default().with(&first.what),
        })
    }

    /// The task that these changes make, in order; none where there are none. The first ones may be missing where the last one is
    /// the end.
    ///
    /// # Errors
    /// [`Inapplicable`], for the first that does not continue the ones before it.
    pub fn fold<'a>(changes: impl IntoIterator<Item = &'a Change>) -> Result<Option<Self>, Inapplicable> {
        let mut task: Option<Self> = None;
        let mut lacks_first = false;
        for change in changes {
            match (&mut task, &change.what) {
                (Some(task), _) => task.apply(change)?,
                (None, What::Ended(end, born)) => task = Some(Self::over(change.at, end, *born)),
                (None, _) if lacks_first => {}
                (None, _) => match Self::new(change) {
                    Ok(new) => task = Some(new),
                    Err(Inapplicable) => lacks_first = true,
                },
            }
        }
        if task.is_none() && lacks_first { Err(Inapplicable) } else { Ok(task) }
    }

    /// A task of which only the end is known.
    fn over(at: u64, end: &End, Born { created_at, retention_ms }: Born) -> Self {
        let message = match end {
            End::Failed(error) => error_message(error),
            End::Completed(_) | End::Cancelled => None,
        };
        Self {
            created_at,
            updated_at: at,
            limit_ms: None,
            retention_ms,
            call: Bytes::new(),
            headers: CallHeaders::default(),
            message,
            questions: Questions::default(),
            end: Some(end.clone()),
            kept: Kept::default(),
        }
    }

    /// Takes the next change of the log.
    ///
    /// # Errors
    /// [`Inapplicable`] where it does not continue the ones before it; nothing has changed then.
    pub fn apply(&mut self, change: &Change) -> Result<(), Inapplicable> {
        if self.end.is_some() {
            return Err(Inapplicable);
        }
        match &change.what {
            What::Created { .. } => return Err(Inapplicable),
            What::Message(message) => self.message = Some(message.clone()),
            What::Round { asked, state } => self.questions.begin(asked, state.as_ref()),
            What::Asked { ask, request } => self.questions.ask(*ask, request.clone()),
            What::Withdrawn { ask } => {
                if !self.questions.withdraw(*ask) {
                    return Err(Inapplicable);
                }
            }
            What::Answered(responses) => {
                let mut questions = self.questions.clone();
                if !responses.iter().all(|response| questions.answer(response).is_some()) {
                    return Err(Inapplicable);
                }
                self.questions = questions;
            }
            What::Ended(end, _) => {
                if let End::Failed(error) = end
                    && let Some(message) = error_message(error)
                {
                    self.message = Some(message);
                }
                self.questions.clear();
                self.end = Some(end.clone());
            }
        }
        self.updated_at = change.at;
        self.kept = self.kept.with(&change.what);
        Ok(())
    }

    /// What its log has that a store must not trim.
    pub(super) fn kept(&self) -> Kept {
        self.kept
    }

    /// How it stands.
    pub fn status(&self) -> Status {
        match &self.end {
            Some(End::Completed(_)) => Status::Completed,
            Some(End::Failed(_)) => Status::Failed,
            Some(End::Cancelled) => Status::Cancelled,
            None if self.questions.shown().is_empty() => Status::Working,
            None => Status::InputRequired,
        }
    }

    /// Its end, if it has one.
    pub fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// What it asks its client.
    pub fn questions(&self) -> &Questions {
        &self.questions
    }

    /// What it says of itself; none where it has nothing to say.
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref().filter(|message| !message.is_empty())
    }

    /// For how long it may run.
    pub fn limit_ms(&self) -> Option<u64> {
        self.limit_ms
    }

    /// For how long it is there after its end.
    pub fn retention_ms(&self) -> u64 {
        self.retention_ms
    }

    /// The call, as the SDK was given it.
    pub fn call(&self) -> &Bytes {
        &self.call
    }

    /// The headers of its request that belong to it.
    pub fn headers(&self) -> &CallHeaders {
        &self.headers
    }

    /// When it was made, in milliseconds since 1970.
    pub fn created_at(&self) -> u64 {
        self.created_at
    }

    /// When it changed last. Later with every change.
    pub fn updated_at(&self) -> u64 {
        self.updated_at
    }

    /// For how long after its creation it is there: its limit while it runs, if it has one, and what is left of it after its
    /// end (T-18).
    pub fn ttl_ms(&self) -> Option<u64> {
        match self.end {
            None => self.limit_ms,
            Some(_) => Some((self.updated_at - self.created_at.min(self.updated_at)).saturating_add(self.retention_ms)),
        }
    }

    /// What becomes of it when the process that ran it is gone. None where that changes nothing: it has its end, or it waits for
    /// answers to questions of the SDK, with which another process may go on.
    pub fn owner_lost(&self, unix_ms: u64) -> Option<Change> {
        let waits = self.status() == Status::InputRequired && !self.questions.has_handlers();
        let end = failure("The server process that ran this task is gone", None);
        (self.end.is_none() && !waits).then(|| self.ended(unix_ms, end))
    }

    /// The change that ends it now.
    pub fn ended(&self, unix_ms: u64, end: End) -> Change {
        self.next(unix_ms, What::Ended(end, self.born()))
    }

    pub(super) fn born(&self) -> Born {
        Born { created_at: self.created_at, retention_ms: self.retention_ms }
    }

    /// The change that comes next, at this time. Clocks are set back, and times of a task are not.
    pub(super) fn next(&self, unix_ms: u64, what: What) -> Change {
        Change { at: unix_ms.max(self.updated_at.saturating_add(1)), what }
    }

    /// The message that starts the round that was asked for last: the call itself, with the answers by the SDK's own keys. Its id
    /// is another one, because the SDK may remember the first.
    pub fn round_call(&self) -> Option<Bytes> {
        const ADDED: [&str; 2] = ["inputResponses", "requestState"];
        let call = std::str::from_utf8(&self.call).ok()?;
        let [method, params] = pick(call, &["method", "params"]).ok()?.values;
        let (answers, state) = self.questions.round();
        let kept = entries(params.map_or("{}", |params| params.get()))?.into_iter();
        let mut members: Vec<String> = kept
            .filter(|(name, _)| !ADDED.contains(&&**name))
            .map(|(name, value)| format!("{}:{}", quoted(&name), value.get()))
            .collect();
        let json = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        if !answers.is_empty() {
            let answers: Vec<String> =
                answers.iter().map(|(key, value)| format!("{}:{}", quoted(key), json(value))).collect();
            members.push(format!(r#""inputResponses":{{{}}}"#, answers.join(",")));
        }
        members.extend(state.map(|state| format!(r#""requestState":{}"#, json(state))));
        let (id, method, params) = (self.questions.rounds(), method?.get(), members.join(","));
        Some(format!(r#"{{"jsonrpc":"2.0","id":{id},"method":{method},"params":{{{params}}}}}"#).into())
    }

    /// Whose question this key names, if it is asked now.
    pub(super) fn source(&self, key: &str) -> Option<&Source> {
        self.questions.find(key).map(|question| &question.source)
    }
}

/// The end of a task that has no answer of the SDK.
pub(super) fn failure(message: &str, data: Option<&str>) -> End {
    let data = data.map(|data| format!(r#","data":{data}"#)).unwrap_or_default();
    End::Failed(format!(r#"{{"code":{INTERNAL_ERROR},"message":{}{data}}}"#, quoted(message)).into())
}

fn error_message(error: &[u8]) -> Option<Box<str>> {
    let [message] = pick(std::str::from_utf8(error).ok()?, &["message"]).ok()?.values;
    message.and_then(text).map(Into::into)
}
