//! A change of a request about a task under its lock: what the store and the task's owner said, and what follows.

use bytes::Bytes;

use super::{Audience, Query, QueryState, Stage, TaskAnswer};
use crate::Ms;
use crate::engine::lines::Later;
use crate::engine::shared::lock;
use crate::engine::tasks::Verdict;
use crate::engine::tasks::call::TaskCall;
use crate::engine::tasks::cell::CallCell;
use crate::engine::tasks::following::FOLLOW_MS;
use crate::protocol::{Refusal, RequestId, StreamNonce};
use crate::store::{Outcome, Ticket};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use crate::task::{Ask, Task, acknowledged, detailed, not_taken, too_large, unknown_task};

/// Pause before what did not succeed is tried again.
const PAUSE_MS: u64 = 250;

/// A change under way.
pub(crate) struct QueryChange<'a> {
    pub(crate) query: &'a Query,
    pub(crate) state: &'a mut QueryState,
    pub(crate) now: Ms,
    /// The owner in this process that is to be asked.
    pub(super) owner: Option<Arc<CallCell>>,
    /// What is to be logged when the lock is released.
    pub(crate) lines: Vec<Later>,
}

impl QueryChange<'_> {
    pub(crate) fn start(&mut self) {
        let shared = &self.query.shared;
        let Some(owner) = shared.owned_task(&self.query.name) else { return self.load() };
        if shared.store.is_cut_off() {
            // Others may have taken it for gone. Before it speaks for its task again, it has to know.
            owner.doubt();
            return self.load();
        }
        if !owner.is_sure() {
            return self.pause();
        }
        if !owner.belongs_to(self.query.principal.as_ref()) {
            self.warn_foreign();
            return self.unknown();
        }
        match (&self.query.request.ask, owner.shown()) {
            (Ask::Get, Some(task)) => self.show(&task),
            (Ask::Get, None) => self.load(),
            _ => {
                self.state.stage = Stage::Owner;
                self.owner = Some(owner);
            }
        }
    }

    pub(crate) fn warn_foreign(&mut self) {
        let Query { shared, name, principal, .. } = self.query;
        let (shared, name, principal) = (Arc::clone(shared), Arc::clone(name), principal.clone());
        self.lines.push(Later::Always(Box::new(move |_| shared.warn_foreign(&name, principal.as_ref()))));
    }

    /// Tries everything again after a pause.
    pub(crate) fn pause(&mut self) {
        if self.query.shared.check().is_err() {
            // No time passes for an engine that was closed.
            return self.refuse(not_taken);
        }
        let pause_ms = if self.query.is_follower() { FOLLOW_MS } else { PAUSE_MS };
        self.state.stage = Stage::Pause(self.now + pause_ms);
    }

    pub(crate) fn is_get(&self) -> bool {
        self.query.request.ask == Ask::Get
    }

    /// The answer to `tasks/get`.
    pub(crate) fn show(&mut self, task: &Task) {
        let unix_ms = self.query.shared.clock.unix_ms();
        if self.query.is_follower() {
            return if task.end().is_some() { self.over() } else { self.pause() };
        }
        if matches!(self.query.audience, Audience::Subscribers(_)) {
            self.state.shown = Some(Some(Box::new(task.clone())));
            return self.answer(TaskAnswer::Body(Bytes::new()));
        }
        let body = detailed(&self.query.request.request, self.query.id(), task, unix_ms);
        self.answer(TaskAnswer::Body(body));
    }

    pub(crate) fn acknowledge(&mut self) {
        self.answer(TaskAnswer::Body(acknowledged(&self.query.request.request)));
    }

    pub(crate) fn unknown(&mut self) {
        self.state.shown = Some(None);
        self.refuse(unknown_task);
    }

    pub(crate) fn refuse(&mut self, refusal: fn(&RequestId) -> Refusal) {
        match self.query.is_follower() {
            true => self.over(),
            false => self.answer(TaskAnswer::Refused(refusal(&self.query.request.request))),
        }
    }

    /// The owner has decided.
    pub(crate) fn decided(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Taken => self.acknowledge(),
            Verdict::NotTaken => self.pause(),
            Verdict::TooLarge => self.refuse(too_large),
        }
    }

    pub(crate) fn answer(&mut self, answer: TaskAnswer) {
        self.state.answers.push_back(answer);
        self.over();
    }

    /// This process serves the task from now on, and its owner there decides.
    pub(crate) fn serve(&mut self, cell: Arc<CallCell>) {
        self.state.answers.push_back(TaskAnswer::Serve(TaskCall(Arc::clone(&cell))));
        self.state.stage = Stage::Owner;
        self.owner = Some(cell);
    }

    fn over(&mut self) {
        self.state.stage = Stage::Over;
        if self.query.is_follower() {
            lock(&self.query.shared.followers).remove(&self.query.name);
        }
    }

    pub(crate) fn watch(&mut self) {
        if !std::mem::replace(&mut self.state.is_watching, true) {
            self.query.shared.store.watch(&self.query.name, &self.query.watcher());
        }
    }

    /// A time has come.
    pub(super) fn is_due(&mut self) {
        if let Audience::Nobody(until) = &self.query.audience {
            self.state.due = Ms(until.load(Ordering::Relaxed));
        }
        if self.state.due <= self.now {
            self.query.call_off(&self.state.stage);
            return self.refuse(not_taken);
        }
        match self.state.stage {
            Stage::Pause(at) if at <= self.now => self.start(),
            Stage::Posted(nonce, at, until) if at <= self.now => self.look_at_post(nonce, until),
            _ => {}
        }
    }

    pub(super) fn answered(&mut self, ticket: &Ticket, outcome: Outcome) {
        let asked = match &self.state.stage {
            Stage::Load(loading) => &loading.ticket,
            Stage::Post(_, asked) | Stage::LookAtPost(_, asked, _) | Stage::Withdraw(_, asked) => asked,
            Stage::Inherit(inheritance) => &inheritance.ticket,
            Stage::Start | Stage::Pause(_) | Stage::Owner | Stage::Posted(..) | Stage::Over => return,
        };
        if asked.number != ticket.number {
            return;
        }
        match std::mem::replace(&mut self.state.stage, Stage::Start) {
            Stage::Load(loading) => match outcome {
                Outcome::Attached(result) => self.attached(loading, result),
                Outcome::Page(result) => self.read(loading, result),
                _ => self.pause(),
            },
            Stage::Post(nonce, _) => match outcome {
                Outcome::Attached(result) => self.posted(nonce, result),
                _ => self.pause(),
            },
            Stage::LookAtPost(nonce, _, until) => match outcome {
                Outcome::Page(result) => self.looked_at_post(nonce, until, result),
                _ => self.pause(),
            },
            Stage::Withdraw(nonce, _) => match outcome {
                Outcome::Withdrawn(result) => self.withdrawn(nonce, result),
                _ => self.pause(),
            },
            Stage::Inherit(inheritance) => self.inherited(*inheritance, outcome),
            _ => self.pause(),
        }
    }

    pub(super) fn look_because_of_a_hint(&mut self, nonce: StreamNonce) {
        if let Stage::Posted(posted, _, until) = self.state.stage
            && posted == nonce
        {
            self.look_at_post(nonce, until);
        }
    }

    pub(super) fn schedule(&mut self) {
        let at = match self.state.stage {
            Stage::Over => Ms::NEVER,
            Stage::Pause(at) => at.min(self.state.due),
            Stage::Posted(_, at, _) => at.min(self.state.due),
            _ => self.state.due,
        };
        if at != self.state.scheduled {
            self.query.shared.schedule(self.state.scheduled, at, self.query.number);
            self.state.scheduled = at;
        }
    }
}
