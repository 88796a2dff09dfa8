//! A call that has become a task: what happens to it, one change of its log each.

use std::collections::VecDeque;

use bytes::Bytes;

use super::io::{Now, Output, Settings};
use super::runs::Runs;
use super::{Last, UNANSWERED};
use crate::Ms;
use crate::protocol::fields::{entries, pick};
use crate::task::change::{Change, What};
use crate::task::ending::Ending;
use crate::task::json::object;
use crate::task::ladder::Response;
use crate::task::questions::{MAX_ROUNDS, Source};
use crate::task::status::{End, Status, Task, failure};

/// The shortest time between two changes of what a task says of itself.
const MESSAGE_EVERY_MS: u64 = 250;
/// Records of this size are stored whatever the bound is: a task has to be able to end.
const MIN_RECORD_BYTES: usize = 1 << 10;
/// How long the SDK is left alone that wants to be asked again and asks for nothing.
const ROUND_PAUSE_MS: u64 = 250;

/// What is done when the store has a change.
#[derive(Debug)]
enum Then {
    Do(Output),
    /// Start the round that was asked for last, in the context of this update.
    Start(Option<u64>),
}

/// A change that the store has not confirmed.
#[derive(Debug)]
struct Pending {
    change: Change,
    then: Vec<Then>,
}

#[derive(Debug)]
pub(super) struct Running {
    /// With all its changes.
    task: Task,
    /// As the store has it.
    stored: Task,
    /// The changes between these two, in order.
    pending: VecDeque<Pending>,
    /// The number of the first of them.
    first: u64,
    settings: Settings,
    limit_at: Ms,
    /// What the task has still to say of itself, and from when on it may.
    message: Option<Box<str>>,
    message_at: Ms,
    /// When the SDK is asked again that asked for nothing.
    round_at: Ms,
    /// Why it has its end.
    ending: Option<Ending>,
}

impl Running {
    /// `stored` is the number of the records that the store has.
    pub(super) fn new(now: Now, settings: &Settings, task: Task, stored: u64) -> Self {
        let age_ms = now.unix_ms.saturating_sub(task.created_at());
        let limit = |limit_ms: u64| now.at + limit_ms.saturating_sub(age_ms);
        Self {
            stored: task.clone(),
            pending: VecDeque::new(),
            first: stored,
            settings: Settings { max_record_bytes: settings.max_record_bytes.max(MIN_RECORD_BYTES), ..*settings },
            limit_at: task.limit_ms().map_or(Ms::NEVER, limit),
            message: None,
            message_at: now.at,
            round_at: Ms::NEVER,
            ending: None,
            task,
        }
    }

    pub(super) fn task(&self) -> &Task {
        &self.task
    }

    pub(super) fn stored(&self) -> &Task {
        &self.stored
    }

    /// More than progress waits for the store's word.
    pub(super) fn has_unconfirmed(&self) -> bool {
        self.pending.iter().any(|pending| !matches!(pending.change.what, What::Message(_)))
    }

    /// It has its end, and the store has that.
    pub(super) fn is_done(&self) -> bool {
        self.stored.end().is_some()
    }

    /// Why it has its end, once the store has that.
    pub(super) fn take_ending(&mut self) -> Option<Ending> {
        self.ending.take_if(|_| self.stored.end().is_some())
    }

    /// It waits for answers to questions of the SDK, and for nothing else.
    pub(super) fn is_waiting(&self) -> bool {
        self.stored.status() == Status::InputRequired
            && !self.stored.questions().has_handlers()
            && self.pending.is_empty()
    }

    pub(super) fn deadline(&self) -> Ms {
        if self.task.end().is_some() {
            return Ms::NEVER;
        }
        let is_next = self.message.is_some() && self.pending.is_empty();
        let message_at = if is_next { self.message_at } else { Ms::NEVER };
        message_at.min(self.round_at).min(self.limit_at)
    }

    pub(super) fn tick(&mut self, now: Now, runs: &mut Runs, out: &mut Vec<Output>) {
        if self.limit_at <= now.at && self.task.end().is_none() {
            self.end(now, failure("The task ran longer than it may", None), Ending::TooLong, out);
            runs.cancel(now.at, out);
        }
        if self.round_at <= now.at {
            self.round_at = Ms::NEVER;
            self.then(Then::Start(None), now, runs, out);
        }
        self.say(now, out);
    }

    /// What the task has still to say of itself.
    fn say(&mut self, now: Now, out: &mut Vec<Output>) {
        let message = self.message.take();
        self.note(now, message, out);
    }

    /// The call reports its progress. Only the last report is kept until the store has taken the one before.
    pub(super) fn note(&mut self, now: Now, message: Option<Box<str>>, out: &mut Vec<Output>) {
        let Some(message) = message.filter(|_| self.task.end().is_none()) else { return };
        self.message = None;
        if self.task.message() == Some(&*message) {
            return;
        }
        if now.at < self.message_at || !self.pending.is_empty() {
            self.message = Some(message);
        } else if self.change(now, What::Message(message), out) {
            self.message_at = now.at + MESSAGE_EVERY_MS;
        }
    }

    /// A run has ended.
    pub(super) fn last(&mut self, now: Now, last: Last, out: &mut Vec<Output>) {
        let mut ending = last.ending();
        let end = match &last {
            Last::Nothing => failure(UNANSWERED, None),
            Last::NotJsonRpc { status, .. } => {
                failure("The server's answer is no JSON-RPC", Some(&format!(r#"{{"http_status":{status}}}"#)))
            }
            Last::Response { message, .. } => match answered(message) {
                Some(Answered::Result(result)) => End::Completed(message.slice_ref(result)),
                Some(Answered::Error(error)) => End::Failed(message.slice_ref(error)),
                Some(Answered::Round(what)) => return self.round(now, what, out),
                None => {
                    ending = Ending::Unending;
                    failure("The server wants more input, and does not tell which", None)
                }
            },
        };
        self.end(now, end, ending, out);
    }

    /// The SDK wants the call again.
    fn round(&mut self, now: Now, what: What, out: &mut Vec<Output>) {
        if self.task.questions().rounds() >= MAX_ROUNDS {
            let end = failure(&format!("The server wants more input after {MAX_ROUNDS} rounds of it"), None);
            return self.end(now, end, Ending::Unending, out);
        }
        if self.change(now, what, out) && self.task.status() == Status::Working {
            self.round_at = now.at + ROUND_PAUSE_MS;
        }
    }

    /// The handler asks.
    pub(super) fn ask(&mut self, now: Now, ask: u64, request: &Bytes, out: &mut Vec<Output>) {
        let is_asked = question(request).is_some_and(|request| self.change(now, What::Asked { ask, request }, out));
        if !is_asked {
            out.push(Output::Refuse { ask });
        }
    }

    pub(super) fn withdraw(&mut self, now: Now, ask: u64, out: &mut Vec<Output>) {
        self.change(now, What::Withdrawn { ask }, out);
    }

    /// A client answers. What it does not know, or answered before, counts for nothing (T-21).
    pub(super) fn update(
        &mut self,
        now: Now,
        from: u64,
        responses: &[Response],
        runs: &mut Runs,
        out: &mut Vec<Output>,
    ) {
        let (mut taken, mut then) = (Vec::new(), Vec::new());
        let mut is_of_round = false;
        for Response { key, value } in responses {
            let is_twice = taken.iter().any(|taken: &Response| taken.key == *key);
            let value = match self.task.source(key).filter(|_| !is_twice) {
                None => continue,
                Some(Source::Round(_)) => {
                    is_of_round = true;
                    value.clone()
                }
                Some(Source::Handler(ask)) => {
                    then.push(Then::Do(Output::Answer { ask: *ask, result: value.clone() }));
                    Bytes::new()
                }
            };
            taken.push(Response { key: key.clone(), value });
        }
        if !taken.is_empty() {
            if !self.change(now, What::Answered(taken), out) {
                return out.push(Output::TooLarge { from });
            }
            if is_of_round && self.task.status() == Status::Working {
                then.push(Then::Start(Some(from)));
            }
            then.into_iter().for_each(|then| self.then(then, now, runs, out));
        }
        self.then(Then::Do(Output::Acknowledge { from }), now, runs, out);
    }

    /// A client ends the task. One that has its end keeps it (T-22).
    pub(super) fn cancel(&mut self, now: Now, from: u64, runs: &mut Runs, out: &mut Vec<Output>) {
        self.end(now, End::Cancelled, Ending::Cancelled, out);
        runs.cancel(now.at, out);
        self.then(Then::Do(Output::Acknowledge { from }), now, runs, out);
    }

    /// Nobody is there who would read a result.
    pub(super) fn unasked(&mut self, now: Now, runs: &mut Runs, out: &mut Vec<Output>) {
        let end = failure("The task was ended, because no client asked for it any more", None);
        self.end(now, end, Ending::Unasked, out);
        runs.cancel(now.at, out);
    }

    /// The store has the changes up to this one.
    pub(super) fn stored_up_to(&mut self, now: Now, number: u64, runs: &mut Runs, out: &mut Vec<Output>) {
        let mut is_changed = false;
        while self.first <= number {
            let Some(Pending { change, then }) = self.pending.pop_front() else { break };
            self.first += 1;
            is_changed |= self.stored.apply(&change).is_ok();
            then.into_iter().for_each(|then| self.perform(then, now, runs, out));
        }
        if is_changed {
            out.push(Output::Changed);
        }
        self.say(now, out);
    }

    /// The store takes neither this change nor one after it: the task goes back to what is stored, and fails. If the store does not
    /// take that either, the task is as one whose process is gone: true.
    pub(super) fn unstored(&mut self, now: Now, number: u64, runs: &mut Runs, out: &mut Vec<Output>) -> bool {
        self.stored_up_to(now, number.saturating_sub(1), runs, out);
        let Some(Pending { change, .. }) = self.pending.front().filter(|_| self.first == number) else { return false };
        let is_last_word = matches!(&change.what, What::Ended(end, _) if *end == unstored_end());
        self.fenced(out);
        runs.cancel(now.at, out);
        if !is_last_word {
            self.end(now, unstored_end(), Ending::Unstored, out);
        }
        is_last_word
    }

    /// What waits for the store waits in vain.
    pub(super) fn fenced(&mut self, out: &mut Vec<Output>) {
        for then in self.pending.drain(..).flat_map(|pending| pending.then) {
            match then {
                Then::Do(Output::Acknowledge { from }) => out.push(Output::NotTaken { from }),
                Then::Do(Output::Answer { ask, .. }) => out.push(Output::Refuse { ask }),
                Then::Do(_) | Then::Start(_) => {}
            }
        }
        self.task = self.stored.clone();
        (self.message, self.round_at, self.ending) = (None, Ms::NEVER, None);
    }

    fn end(&mut self, now: Now, end: End, ending: Ending, out: &mut Vec<Output>) {
        if self.change(now, What::Ended(end, self.task.born()), out) {
            (self.message, self.round_at, self.ending) = (None, Ms::NEVER, Some(ending));
        }
    }

    /// Changes the task and has that stored. Whether that changes anything.
    fn change(&mut self, now: Now, what: What, out: &mut Vec<Output>) -> bool {
        let change = self.task.next(now.unix_ms, what);
        let has_room = self.settings.has_room(self.task.kept(), &change.what);
        if !has_room || change.encode().len() > self.settings.max_record_bytes {
            // A handler that asks what is too large goes on without an answer, unless the log has no room for anything more.
            let is_full = !has_room && matches!(change.what, What::Asked { .. });
            if is_full || matches!(change.what, What::Ended(..) | What::Round { .. }) {
                let end = failure("The server's answer is larger than what is kept of a task", None);
                self.end(now, end, Ending::TooLarge, out);
            }
            return false;
        }
        if self.task.apply(&change).is_err() {
            return false;
        }
        let number = self.first + self.pending.len() as u64;
        self.pending.push_back(Pending { change: change.clone(), then: Vec::new() });
        out.push(Output::Store { number, change });
        true
    }

    /// Does this as soon as the store has all changes.
    fn then(&mut self, then: Then, now: Now, runs: &mut Runs, out: &mut Vec<Output>) {
        match self.pending.back_mut() {
            Some(pending) => pending.then.push(then),
            None => self.perform(then, now, runs, out),
        }
    }

    fn perform(&mut self, then: Then, now: Now, runs: &mut Runs, out: &mut Vec<Output>) {
        match then {
            Then::Do(output) => out.push(output),
            // It may have been cancelled meanwhile.
            Then::Start(_) if self.task.end().is_some() => {}
            Then::Start(from) => match self.task.round_call() {
                Some(call) => {
                    let run = self.task.questions().rounds();
                    runs.start(run);
                    let headers = self.task.headers().of_round(&call);
                    out.push(Output::Start { run, from, call, headers });
                }
                None => {
                    let end = failure("The call cannot be posted again", None);
                    self.end(now, end, Ending::Unending, out);
                }
            },
        }
    }
}

fn unstored_end() -> End {
    failure("The server could not store how the task went on", None)
}

/// What a response is to a task.
enum Answered<'a> {
    Result(&'a [u8]),
    Error(&'a [u8]),
    Round(What),
}

/// None for one that wants more input, and does not tell which.
fn answered(message: &[u8]) -> Option<Answered<'_>> {
    let [result, error] = pick(std::str::from_utf8(message).ok()?, &["result", "error"]).ok()?.values;
    let Some(result) = result.filter(|result| result.get() != "null") else {
        return error.map(|error| Answered::Error(error.get().as_bytes()));
    };
    let [kind, asked, state] = pick(result.get(), &["resultType", "inputRequests", "requestState"]).ok()?.values;
    if kind.is_none_or(|kind| kind.get() != r#""input_required""#) {
        return Some(Answered::Result(result.get().as_bytes()));
    }
    let is_given = |value: &&serde_json::value::RawValue| value.get() != "null";
    let asked = match asked.filter(is_given) {
        Some(asked) => entries(asked.get())?,
        None => Vec::new(),
    };
    let bytes = |value: &serde_json::value::RawValue| Bytes::copy_from_slice(value.get().as_bytes());
    let asked = asked.into_iter().map(|(key, request)| Some((key.into(), bytes(object(request)?))));
    let asked: Vec<_> = asked.collect::<Option<_>>()?;
    let state = state.filter(is_given).map(bytes);
    (!asked.is_empty() || state.is_some()).then_some(Answered::Round(What::Round { asked, state }))
}

/// What a request of the handler asks: its method and parameters.
fn question(request: &[u8]) -> Option<Bytes> {
    let [method, params] = pick(std::str::from_utf8(request).ok()?, &["method", "params"]).ok()?.values;
    let method = method?.get();
    let params = params.map_or("{}", |params| params.get());
    method.starts_with('"').then(|| format!(r#"{{"method":{method},"params":{params}}}"#).into())
}
