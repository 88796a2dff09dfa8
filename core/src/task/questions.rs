//! What a task asks its client: the keys of its questions, and which answers are missing.
//!
//! SDKs use a key again in a later round, and clients take a key that comes again for the same question. So a question gets a
//! key of its own for the life of the task, `<round>.<n>.<the SDK's key>`, and its answer goes back under the SDK's (T-20).
//! A client is shown so many questions at a time as every client takes; the others are asked when these are answered.

use bytes::Bytes;

use super::ladder::Response;

/// Rounds of questions that a call may have. One that goes on asking has no end.
pub const MAX_ROUNDS: u32 = 64;

/// Questions that are shown at a time. Claude Code takes no more.
const MAX_SHOWN: usize = 16;

/// The SDK's key is repeated in ours up to this many characters: it is for people who read it.
const MAX_REPEATED: usize = 64;

/// A question that has no answer yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Its key, which no other question of the task has or had.
    pub key: Box<str>,
    /// What is asked, as JSON: a method and its parameters.
    pub request: Bytes,
    /// Who asks.
    pub source: Source,
}

/// Who asks a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The SDK, in an answer to the call that wants more input. Its own key of the question.
    Round(Box<str>),
    /// The handler, which waits for the answer. The host's number of the question.
    Handler(u64),
}

/// The questions of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Questions {
    /// Rounds that the SDK has asked for.
    rounds: u32,
    /// Questions that the handler has asked.
    handlers: u32,
    /// Those without an answer, in the order in which they were asked.
    open: Vec<Question>,
    /// The answers of this round, by the SDK's keys.
    answers: Vec<(Box<str>, Bytes)>,
    /// What the SDK wants back with them, as JSON.
    state: Option<Bytes>,
}

impl Questions {
    /// Rounds that the SDK has asked for.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// The questions that the client is asked now.
    pub fn shown(&self) -> &[Question] {
        &self.open[..self.open.len().min(MAX_SHOWN)]
    }

    /// The question with this key, if it is asked now.
    pub fn find(&self, key: &str) -> Option<&Question> {
        self.shown().iter().find(|question| *question.key == *key)
    }

    /// Whether a handler waits for an answer.
    pub fn has_handlers(&self) -> bool {
        self.open.iter().any(|question| matches!(question.source, Source::Handler(_)))
    }

    /// The answers of this round by the SDK's keys, and what the SDK wants back with them.
    pub(super) fn round(&self) -> (&[(Box<str>, Bytes)], Option<&Bytes>) {
        (&self.answers, self.state.as_ref())
    }

    /// The SDK begins a round with these questions, by its own keys. No handler waits any more.
    pub(super) fn begin(&mut self, asked: &[(Box<str>, Bytes)], state: Option<&Bytes>) {
        self.rounds += 1;
        let question = |(n, (own, request)): (usize, &(Box<str>, Bytes))| Question {
            key: key(self.rounds, n, own),
            request: request.clone(),
            source: Source::Round(own.clone()),
        };
        self.open = asked.iter().enumerate().map(question).collect();
        self.answers.clear();
        self.state = state.cloned();
    }

    /// A handler asks.
    pub(super) fn ask(&mut self, ask: u64, request: Bytes) {
        self.handlers += 1;
        let key = format!("handler.{}", self.handlers).into();
        self.open.push(Question { key, request, source: Source::Handler(ask) });
    }

    /// The handler waits no more. Whether it did.
    pub(super) fn withdraw(&mut self, ask: u64) -> bool {
        let before = self.open.len();
        self.open.retain(|question| question.source != Source::Handler(ask));
        self.open.len() < before
    }

    /// Takes an answer to a question that is asked now, and tells whose question it was.
    pub(super) fn answer(&mut self, response: &Response) -> Option<Source> {
        let at = self.shown().iter().position(|question| question.key == response.key)?;
        let Question { source, .. } = self.open.remove(at);
        if let Source::Round(own) = &source {
            self.answers.push((own.clone(), response.value.clone()));
        }
        Some(source)
    }

    /// Nothing is asked any more.
    pub(super) fn clear(&mut self) {
        self.open.clear();
        self.answers.clear();
        self.state = None;
    }
}

fn key(round: u32, n: usize, own: &str) -> Box<str> {
    let is_plain = own.len() <= MAX_REPEATED && own.bytes().all(|byte| byte.is_ascii_graphic());
    if is_plain && !own.is_empty() { format!("{round}.{n}.{own}") } else { format!("{round}.{n}") }.into()
}
