//! The machine of one `tools/call` that may become a task.
//!
//! ```text
//!              its answer, which goes to the client
//!   ┌──────────┐──────────────────────────────────────────▶┌──────┐
//!   │ Deciding │  the client goes: the run is cancelled    │      │
//!   └────┬─────┘──────────────────────────────────────────▶│      │
//!        │ the window is over, or the handler asks         │      │
//!   ┌────▼─────┐  not stored  ┌───────┐  as in Deciding    │ Over │
//!   │ Storing  │─────────────▶│ Plain │───────────────────▶│      │
//!   └────┬─────┘              └───────┘                    │      │
//!        │ stored: the client gets the task                │      │
//!   ┌────▼─────┐  it has its end, and the store has that   │      │
//!   │   Task   │──────────────────────────────────────────▶│      │
//!   └──────────┘  (its states: see status.rs)              └──────┘
//! ```
//!
//! Who moves the machine first wins: an answer that comes while the task is stored becomes the task's, and one that comes after
//! a cancellation is dropped. Nobody has the handle of a task before the store has the task (T-16), and until then a client that
//! goes cancels its call, as the core protocol wants it.

mod io;
mod running;
mod runs;

pub use io::{Input, Now, Output, Settings};

use bytes::Bytes;

use self::running::Running;
use self::runs::Runs;
use super::change::{Change, Kept, What};
use super::ending::Ending;
use super::id::TaskId;
use super::progress::Call;
use super::reply::Answer;
use super::status::Task;
use super::view;
use crate::Ms;
use crate::protocol::jsonrpc::{self, Body, INTERNAL_ERROR, write_error};
use crate::protocol::{Kind, RequestId};

/// Where every call becomes a task: how long it is awaited that the SDK refuses the request instead.
const GRACE_MS: u64 = 50;

/// How a run ended.
#[derive(Debug)]
enum Last {
    /// A response.
    Response { message: Bytes, is_error: bool, is_body: bool },
    /// Something else, with this HTTP status.
    NotJsonRpc { status: u16, is_body: bool },
    /// Without an answer.
    Nothing,
}

impl Last {
    fn ending(&self) -> Ending {
        match self {
            Self::Response { message, .. } => Ending::Answered(message.clone()),
            Self::NotJsonRpc { .. } | Self::Nothing => Ending::Unanswered,
        }
    }
}

/// What came while the store was asked to hold the task.
#[derive(Debug)]
struct Storing {
    created: Change,
    is_client_gone: bool,
    questions: Vec<(u64, Bytes)>,
    last: Option<Last>,
}

/// See the module's diagram.
#[derive(Debug)]
enum Phase {
    Deciding,
    Storing(Storing),
    Plain,
    Task(Box<Running>),
    Over,
}

/// One call. See the module's diagram.
#[derive(Debug)]
pub struct Machine {
    settings: Settings,
    id: TaskId,
    call: Call,
    decide_at: Ms,
    answer: Answer,
    runs: Runs,
    /// What the call said of its progress before it was a task.
    message: Option<Box<str>>,
    phase: Phase,
    /// How the call ended that is no task.
    ending: Option<Ending>,
}

impl Machine {
    /// For a call that the SDK is given now. It gets this id if it becomes a task.
    pub fn new(now: Now, settings: Settings, id: TaskId, call: Call) -> Self {
        Self {
            decide_at: now.at + if settings.after_ms == 0 { GRACE_MS } else { settings.after_ms },
            answer: Answer::new(now.at, settings.takes_streams),
            runs: Runs::new(Some(0)),
            message: None,
            phase: Phase::Deciding,
            ending: None,
            settings,
            id,
            call,
        }
    }

    /// For a task that another process left and that [goes on](Task::owner_lost) here. `stored` is the number of its records. None
    /// for a task whose call cannot be read.
    pub fn adopt(now: Now, settings: Settings, id: TaskId, task: Task, stored: u64) -> Option<Self> {
        let call = Call::read(task.call())?.with_headers(task.headers().clone());
        let mut machine = Self::new(now, settings, id, call);
        machine.answer.close();
        machine.runs = Runs::new(None);
        machine.phase = Phase::Task(Box::new(Running::new(now, &machine.settings, task, stored)));
        Some(machine)
    }

    /// The id that the task has or would have.
    pub fn id(&self) -> &TaskId {
        &self.id
    }

    /// The task with all its changes; none where the call is none.
    pub fn task(&self) -> Option<&Task> {
        match &self.phase {
            Phase::Task(running) => Some(running.task()),
            _ => None,
        }
    }

    /// The task as the store has it: what clients are shown.
    pub fn stored(&self) -> Option<&Task> {
        match &self.phase {
            Phase::Task(running) => Some(running.stored()),
            _ => None,
        }
    }

    /// Whether the store may have more of the task than [`stored`](Self::stored), but for its progress: other processes may show
    /// that already.
    pub fn has_unconfirmed(&self) -> bool {
        matches!(&self.phase, Phase::Task(running) if running.has_unconfirmed())
    }

    /// For how long a task is there after its end.
    pub fn retention_ms(&self) -> u64 {
        self.task().map_or(self.settings.retention_ms, Task::retention_ms)
    }

    /// Whether nothing happens until a client answers questions of the SDK: any process can go on with the task.
    pub fn is_waiting(&self) -> bool {
        let Phase::Task(running) = &self.phase else { return false };
        running.is_waiting() && self.runs.are_over()
    }

    /// Whether a handler runs, or is being ended.
    pub fn has_runs(&self) -> bool {
        !self.runs.are_over()
    }

    /// Whether the task is not this process's any more, or the store took neither the call's task nor its end.
    pub fn has_given_up(&self) -> bool {
        matches!(self.phase, Phase::Plain | Phase::Over)
    }

    /// How the call ended: once, when its client has the answer or the store has the end of its task. None where the task goes on in
    /// another process.
    pub fn take_ending(&mut self) -> Option<Ending> {
        match &mut self.phase {
            Phase::Task(running) => running.take_ending(),
            _ => self.ending.take(),
        }
    }

    /// Whether nothing is left to do: what is asked about the task is answered from its log.
    pub fn is_over(&self) -> bool {
        let is_done = match &self.phase {
            Phase::Over => true,
            Phase::Task(running) => running.is_done(),
            _ => false,
        };
        is_done && self.runs.are_over()
    }

    /// When [`Input::Tick`] is due, if ever.
    pub fn deadline(&self) -> Ms {
        let phase = match &self.phase {
            Phase::Deciding => self.decide_at.min(self.answer.deadline()),
            Phase::Storing(_) | Phase::Plain => self.answer.deadline(),
            Phase::Task(running) => running.deadline(),
            Phase::Over => Ms::NEVER,
        };
        phase.min(self.runs.deadline())
    }

    /// Takes one input and appends what has to be done to `out`.
    pub fn handle(&mut self, now: Now, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Message { run, message, is_body } if self.runs.is_current(run) => {
                self.hear(now, message, is_body, out);
            }
            Input::NotJsonRpc { run, status } if self.runs.is_current(run) => {
                self.last(now, Last::NotJsonRpc { status, is_body: true }, out);
            }
            Input::Message { .. } | Input::NotJsonRpc { .. } => {}
            Input::RunEnded { run } => {
                if self.runs.ended(run) {
                    self.last(now, Last::Nothing, out);
                }
            }
            Input::Question { ask, request } => self.question(now, ask, request, out),
            Input::Withdrawn { ask } => match &mut self.phase {
                Phase::Storing(storing) => storing.questions.retain(|(other, _)| *other != ask),
                Phase::Task(running) => running.withdraw(now, ask, out),
                Phase::Deciding | Phase::Plain | Phase::Over => {}
            },
            Input::ClientGone => self.client_gone(now, out),
            Input::Update { from, responses } => match &mut self.phase {
                Phase::Task(running) => running.update(now, from, &responses, &mut self.runs, out),
                _ => out.push(Output::NotTaken { from }),
            },
            Input::Cancel { from } => match &mut self.phase {
                Phase::Task(running) => running.cancel(now, from, &mut self.runs, out),
                _ => out.push(Output::NotTaken { from }),
            },
            Input::Stored { number } => self.stored_up_to(now, number, out),
            Input::Unstored { number } => match &mut self.phase {
                Phase::Task(running) => {
                    if running.unstored(now, number, &mut self.runs, out) {
                        self.ending = Some(Ending::Unstored);
                        self.phase = Phase::Over;
                    }
                }
                _ => self.stay_plain(now, out),
            },
            Input::Unasked => {
                if let Phase::Task(running) = &mut self.phase {
                    running.unasked(now, &mut self.runs, out);
                }
            }
            Input::Fenced => {
                if let Phase::Task(running) = &mut self.phase {
                    running.fenced(out);
                    self.runs.cancel(now.at, out);
                    self.phase = Phase::Over;
                } else {
                    self.stay_plain(now, out);
                }
            }
            Input::Tick => self.tick(now, out),
        }
    }

    /// A message of the current run.
    fn hear(&mut self, now: Now, message: Bytes, is_body: bool, out: &mut Vec<Output>) {
        if let Some(progress) = self.call.progress(&message) {
            if let Phase::Task(running) = &mut self.phase {
                running.note(now, progress.message, out);
            } else {
                self.message = progress.message.or_else(|| self.message.take());
                if !progress.is_own {
                    self.answer.notify(now.at, message, &mut |reply| out.push(Output::Reply(reply)));
                }
            }
            return;
        }
        match jsonrpc::read(&message) {
            Ok(Body::Single(envelope)) => match envelope.kind {
                Kind::Response => self.last(now, Last::Response { message, is_error: false, is_body }, out),
                Kind::ErrorResponse => self.last(now, Last::Response { message, is_error: true, is_body }, out),
                Kind::Request | Kind::Notification => {
                    self.answer.notify(now.at, message, &mut |reply| out.push(Output::Reply(reply)));
                }
            },
            _ => self.last(now, Last::NotJsonRpc { status: 200, is_body }, out),
        }
    }

    /// The current run has ended.
    fn last(&mut self, now: Now, last: Last, out: &mut Vec<Output>) {
        self.runs.answered();
        match &mut self.phase {
            Phase::Deciding => {
                if self.settings.after_ms == 0 && matches!(last, Last::Response { is_error: false, .. }) {
                    self.decide(now, Vec::new(), Some(last), out);
                } else {
                    self.give(now, last, out);
                }
            }
            Phase::Storing(storing) => storing.last = Some(last),
            Phase::Plain => self.give(now, last, out),
            Phase::Task(running) => running.last(now, last, out),
            Phase::Over => {}
        }
    }

    /// The call becomes a task as soon as the store has it.
    fn decide(&mut self, now: Now, questions: Vec<(u64, Bytes)>, last: Option<Last>, out: &mut Vec<Output>) {
        let Settings { limit_ms, retention_ms, .. } = self.settings;
        let (call, headers) = (self.call.body.clone(), self.call.headers.clone());
        let what = What::Created { limit_ms, retention_ms, call, headers };
        let created = Change { at: now.unix_ms, what };
        let has_room = self.settings.has_room(Kept::default(), &created.what);
        let is_large = !has_room || created.encode().len() > self.settings.max_record_bytes;
        self.phase = Phase::Storing(Storing { created: created.clone(), is_client_gone: false, questions, last });
        if is_large {
            self.stay_plain(now, out);
        } else {
            out.push(Output::Store { number: 0, change: created });
        }
    }

    /// The store does not take the task, so the call never becomes one.
    fn stay_plain(&mut self, now: Now, out: &mut Vec<Output>) {
        let Phase::Storing(storing) = &mut self.phase else { return };
        let questions = std::mem::take(&mut storing.questions);
        let (is_client_gone, last) = (storing.is_client_gone, storing.last.take());
        self.phase = Phase::Plain;
        out.extend(questions.into_iter().map(|(ask, _)| Output::Refuse { ask }));
        if is_client_gone {
            self.client_gone(now, out);
        } else if let Some(last) = last {
            self.give(now, last, out);
        }
    }

    /// Gives the client the answer of its call.
    fn give(&mut self, now: Now, last: Last, out: &mut Vec<Output>) {
        self.phase = Phase::Over;
        self.ending = Some(last.ending());
        let is_whole = matches!(last, Last::NotJsonRpc { is_body: true, .. } | Last::Response { is_body: true, .. });
        if is_whole && !self.answer.is_begun() {
            self.answer.close();
            out.push(Output::PassOn);
            return;
        }
        let response = match last {
            Last::Response { message, .. } => message,
            Last::NotJsonRpc { .. } | Last::Nothing => unanswered(&self.call.request),
        };
        self.answer.finish(now.at, response, &mut |reply| out.push(Output::Reply(reply)));
    }

    fn question(&mut self, now: Now, ask: u64, request: Bytes, out: &mut Vec<Output>) {
        if !self.call.takes_question(&request) {
            return out.push(Output::Refuse { ask });
        }
        match &mut self.phase {
            Phase::Deciding => self.decide(now, vec![(ask, request)], None, out),
            Phase::Storing(storing) => storing.questions.push((ask, request)),
            Phase::Task(running) if self.runs.is_running() => running.ask(now, ask, &request, out),
            Phase::Task(_) | Phase::Plain | Phase::Over => out.push(Output::Refuse { ask }),
        }
    }

    fn client_gone(&mut self, now: Now, out: &mut Vec<Output>) {
        match &mut self.phase {
            Phase::Deciding | Phase::Plain => {
                self.answer.close();
                self.phase = Phase::Over;
                self.ending = Some(Ending::ClientGone);
                self.runs.cancel(now.at, out);
            }
            Phase::Storing(storing) => storing.is_client_gone = true,
            Phase::Task(_) | Phase::Over => {}
        }
    }

    fn stored_up_to(&mut self, now: Now, number: u64, out: &mut Vec<Output>) {
        let storing = match &mut self.phase {
            Phase::Storing(storing) => storing,
            Phase::Task(running) => return running.stored_up_to(now, number, &mut self.runs, out),
            Phase::Deciding | Phase::Plain | Phase::Over => return,
        };
        let Ok(task) = Task::new(&storing.created) else { return };
        let (questions, last) = (std::mem::take(&mut storing.questions), storing.last.take());
        out.push(Output::Unlink);
        let created = view::created(&self.call.request, &self.id, &task, now.unix_ms);
        self.answer.finish(now.at, created, &mut |reply| out.push(Output::Reply(reply)));
        out.push(Output::Changed);
        let mut running = Running::new(now, &self.settings, task, 1);
        running.note(now, self.message.take(), out);
        for (ask, request) in questions {
            running.ask(now, ask, &request, out);
        }
        if let Some(last) = last {
            running.last(now, last, out);
        }
        self.phase = Phase::Task(Box::new(running));
    }

    fn tick(&mut self, now: Now, out: &mut Vec<Output>) {
        self.runs.tick(now.at, out);
        if let Phase::Task(running) = &mut self.phase {
            return running.tick(now, &mut self.runs, out);
        }
        self.answer.tick(now.at, &mut |reply| out.push(Output::Reply(reply)));
        if matches!(self.phase, Phase::Deciding) && self.decide_at <= now.at {
            self.decide(now, Vec::new(), None, out);
        }
    }
}

/// The answer to a call that the SDK left without one.
fn unanswered(request: &RequestId) -> Bytes {
    let mut out = Vec::new();
    write_error(&mut out, Some(request), INTERNAL_ERROR, UNANSWERED);
    out.into()
}

const UNANSWERED: &str = "The server ended the request without an answer";
