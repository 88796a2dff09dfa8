//! A change of a call under its lock: what its machine says is put into its log, its queue and its requesters.

use crate::engine::lines::Later;
use crate::engine::shared::lock;
use crate::engine::tasks::Verdict;
use crate::engine::tasks::call::{CallStep, Context};
use crate::engine::tasks::cell::{CallCell, CallState, Place, Queued, Requester};
use crate::engine::telemetry::Observation;
use crate::task::{Ask, Change, Input, Now, Output};

/// Requests that wait for the host of a task, and for the store. The next ones are asked again, or wait in the inbox.
const MAX_REQUESTERS: usize = 256;

/// A change under way.
pub(super) struct CallChange<'a> {
    pub(super) cell: &'a CallCell,
    pub(super) state: &'a mut CallState,
    pub(super) now: Now,
    pub(super) outputs: Vec<Output>,
    pub(super) effects: Effects,
}

/// What a change leaves to do when the lock is released.
#[derive(Default)]
pub(super) struct Effects {
    pub(super) outcomes: Vec<(Requester, Verdict)>,
    pub(super) lines: Vec<Later>,
    pub(super) observed: Vec<Observation>,
    /// The store has more of the task than before.
    pub(super) is_stored: bool,
}

impl CallChange<'_> {
    pub(super) fn input(&mut self, input: Input) {
        self.state.machine.handle(self.now, input, &mut self.outputs);
        self.perform();
    }

    /// Whether the host does what requests lead to.
    pub(super) fn has_time(&self) -> bool {
        self.state.requesters.len() < MAX_REQUESTERS
    }

    pub(super) fn ask(&mut self, from: u64, ask: &Ask) {
        self.state.asked_at = self.now.at;
        let has_end = self.state.machine.stored().is_some_and(|task| task.end().is_some());
        if self.state.place != Place::Here && !has_end {
            // It was let go since the request found it here.
            return self.tell(from, Verdict::NotTaken);
        }
        match ask {
            Ask::Get => {}
            Ask::Update(responses) => self.input(Input::Update { from, responses: responses.clone() }),
            Ask::Cancel => self.input(Input::Cancel { from }),
        }
    }

    fn perform(&mut self) {
        while !self.outputs.is_empty() {
            for output in std::mem::take(&mut self.outputs) {
                self.step(output);
            }
        }
    }

    fn step(&mut self, output: Output) {
        let step = match output {
            Output::Store { number, change } => return self.store(number, &change),
            Output::Changed => {
                self.effects.is_stored = true;
                return;
            }
            Output::Acknowledge { from } => return self.settle(from, Verdict::Taken),
            Output::NotTaken { from } => return self.settle(from, Verdict::NotTaken),
            Output::TooLarge { from } => return self.settle(from, Verdict::TooLarge),
            Output::Reply(reply) => CallStep::Reply(reply),
            Output::PassOn => CallStep::PassOn,
            Output::Unlink => CallStep::Unlink,
            Output::Disconnect { run } => CallStep::Disconnect { run },
            Output::Kill { run } => CallStep::Kill { run },
            Output::Start { run, from, call, headers } => {
                let context = match from.and_then(|from| self.state.requesters.get(&from)) {
                    None => Context::Call,
                    Some(Requester::Query(_, key)) => Context::Request(*key),
                    Some(Requester::Mail(_, relayed)) => Context::Relayed(relayed.clone()),
                };
                CallStep::Start { run, context, call, headers }
            }
            Output::Answer { ask, result } => CallStep::Answer { ask, result },
            Output::Refuse { ask } => CallStep::Refuse { ask },
        };
        self.state.queue.push_back(Queued::Step(step));
    }

    fn store(&mut self, number: u64, change: &Change) {
        if number == 0 {
            let shared = &self.cell.shared;
            let is_stopping = lock(&shared.draining).is_some();
            let me = self.cell.me.upgrade();
            if is_stopping || !me.is_some_and(|me| shared.take_task(&me, &mut self.effects.lines)) {
                return self.input(Input::Unstored { number });
            }
            self.state.place = Place::Here;
            // Until now the client waited for its answer.
            self.state.asked_at = self.now.at;
        }
        if self.state.place != Place::Here {
            // Nobody writes it any more.
            return;
        }
        self.state.records.push(number, change, self.cell.shared.chain_key.as_ref());
    }

    /// A request has its outcome. Where the host has steps to do that led to it, they come first.
    fn settle(&mut self, from: u64, verdict: Verdict) {
        if self.state.queue.is_empty() {
            self.tell(from, verdict);
        } else {
            self.state.queue.push_back(Queued::Outcome(from, verdict));
        }
    }

    pub(super) fn tell(&mut self, from: u64, verdict: Verdict) {
        match self.state.requesters.remove(&from) {
            Some(Requester::Mail(nonce, _)) => self.answer_mail(nonce, verdict),
            Some(requester) => self.effects.outcomes.push((requester, verdict)),
            None => {}
        }
    }

    /// Does what every change ends with.
    pub(super) fn complete(&mut self) {
        // What is taken leads to changes that are to be written.
        self.write();
        self.look_into_inbox();
        self.write();
        self.note_ending();
        self.end();
        let unasked_at = self.unasked_at();
        let CallState { machine, writing, inbox, place, .. } = &*self.state;
        let own = machine.deadline().min(writing.due());
        // What is asked already is due by itself.
        let own = if writing.is_idle() { own.min(unasked_at) } else { own };
        let deadline = if *place == Place::Here { own.min(inbox.due()) } else { own.min(inbox.answers_due()) };
        if deadline != self.state.scheduled {
            self.cell.shared.schedule(self.state.scheduled, deadline, self.cell.number);
            self.state.scheduled = deadline;
        }
    }
}
