//! Writes the changes of a task that this process owns.
//!
//! ```text
//!  new ──▶ hold ──▶ idle ◀──stored── append        each asks again, unchanged, while
//!                    ▲ └──records to write──▶┘      the store has no answer
//!                    │                 │ fenced, gone, set back; a hint that the store may be
//!                    └── look ◀── hold again
//! ```
//!
//! The store has what it confirmed, unless it was set back. Then the task is held again, which succeeds only if no other
//! process has it, and what the log misses is appended once more.

use crate::Ms;
use crate::engine::shared::Shared;
use crate::engine::stats::Counters;
use crate::engine::tasks::cell::{CallChange, Place};
use crate::engine::tasks::{Record, TASK_LOG, record};
use crate::store::{Answer, Append, Epoch, Hold, Operation, Outcome, ReadLimit, RunningLog, StoreError, Ticket};
use crate::stream::{Chain, ChainKey, Paced, Seq};
use crate::sync::Arc;
use crate::task::{Change, Input};

/// Pauses before a store that has no answer is asked again, in milliseconds.
const PAUSES_MS: [u64; 6] = [20, 50, 100, 200, 500, 1_000];

/// What the store is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// To create the session.
    Hold,
    /// To append the records up to [`Records::asked`].
    Append,
    /// Whether the session is still this process's, after something was lost.
    HoldAgain,
    /// Where the log stands then.
    Look,
}

#[derive(Default)]
enum Work {
    #[default]
    Idle,
    Asking(Step, Ticket, Ms),
    Pausing(Step, Ms),
}

/// The log of a task, as its owner knows it.
pub(crate) struct Records {
    epoch: Epoch,
    /// Where the log stood when this process took the task over; at its start for a new task.
    base: (Seq, u64),
    /// The records behind that, in order.
    list: Vec<Record>,
    /// How many the store has.
    stored: usize,
    /// How many it has when it does what it is asked.
    asked: usize,
    /// Of how many the machine knows that the store has them.
    told: usize,
    is_held: bool,
    /// The store may have been set back.
    is_doubted: bool,
    work: Work,
    /// When the store was first asked for what it is asked now.
    since: Ms,
    pauses: usize,
}

impl Records {
    /// Of a task that is new.
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        let epoch = Epoch { number: 1, salt: shared.salt() };
        Self { is_held: false, ..Self::adopted(epoch, 0, Chain::start(&TASK_LOG.0).0) }
    }

    /// Of a task that this process has taken over, where its log stood.
    pub(super) fn adopted(epoch: Epoch, head: Seq, chain: u64) -> Self {
        Self {
            epoch,
            base: (head, chain),
            list: Vec::new(),
            stored: 0,
            asked: 0,
            told: 0,
            is_held: true,
            is_doubted: false,
            work: Work::Idle,
            since: Ms(0),
            pauses: 0,
        }
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether the store has everything.
    pub(super) fn is_written(&self) -> bool {
        self.stored == self.list.len() && matches!(self.work, Work::Idle)
    }

    pub(super) fn is_held(&self) -> bool {
        self.is_held
    }

    pub(super) fn doubt(&mut self) {
        self.is_doubted |= self.is_held;
    }

    pub(super) fn due(&self) -> Ms {
        match self.work {
            Work::Idle => Ms::NEVER,
            Work::Asking(_, _, at) | Work::Pausing(_, at) => at,
        }
    }

    fn chain_at(&self, count: usize) -> u64 {
        count.checked_sub(1).map_or(self.base.1, |last| self.list[last].chain)
    }

    /// The position behind so many records.
    fn seq_at(&self, count: usize) -> Seq {
        self.base.0 + count as Seq
    }

    /// Whether the store has nothing of the task.
    fn is_new(&self) -> bool {
        self.base.0 == 0 && self.told == 0
    }

    pub(super) fn push(&mut self, change: &Change, key: Option<&ChainKey>) {
        let before = Chain(self.chain_at(self.list.len()));
        let seq = self.seq_at(self.list.len()) + 1;
        self.list.push(Record::of(seq, change, before, key));
    }

    /// What is written next; the retention counts if it has the task's end.
    fn append(&self, retention_ms: u64) -> Append {
        let records = &self.list[self.stored..self.asked];
        let has_end = records.iter().any(|record| record.event.kind == crate::stream::EventKind::Terminal);
        Append {
            first: self.seq_at(self.stored) + 1,
            events: records.iter().map(|record| record.event.clone()).collect(),
            chain_before: self.chain_at(self.stored),
            chain: self.chain_at(self.asked),
            paced: has_end.then(|| Paced { retention_ms: Some(retention_ms), ..Paced::default() }),
            ..Append::default()
        }
    }
}

impl CallChange<'_> {
    /// Asks the store for what is to be written next, if it is asked for nothing.
    pub(super) fn write(&mut self) {
        while self.state.place == Place::Here && matches!(self.state.records.work, Work::Idle) {
            let records = &mut self.state.records;
            let step = if !records.is_held {
                Step::Hold
            } else if std::mem::take(&mut records.is_doubted) && self.cell.shared.store.outlives_process() {
                Step::HoldAgain
            } else if records.stored < records.list.len() {
                records.asked = records.list.len();
                Step::Append
            } else {
                return;
            };
            (records.since, records.pauses) = (self.now.at, 0);
            self.try_step(step);
        }
    }

    fn try_step(&mut self, step: Step) {
        let cell = self.cell;
        let operation = match step {
            Step::Hold | Step::HoldAgain => Operation::Hold,
            Step::Append => Operation::Append,
            Step::Look => Operation::Look(0),
        };
        let ticket = cell.ticket(TASK_LOG, operation);
        let due = cell.shared.due_after(self.now.at);
        let records = &mut self.state.records;
        let epoch = records.epoch;
        let record = Some(record(cell.identity()));
        let store = &cell.shared.store;
        records.work = Work::Asking(step, ticket.clone(), due);
        let outcome = match step {
            Step::Hold => held(store.hold(&cell.name, &Hold { epoch, seen: None, record }, &ticket)),
            Step::HoldAgain => held(store.hold(&cell.name, &Hold { epoch, seen: Some(epoch), record }, &ticket)),
            Step::Look => match store.read(&cell.key(TASK_LOG), 0, ReadLimit::default(), &ticket) {
                Answer::Now(page) => Some(Outcome::Page(page)),
                Answer::Later => None,
            },
            Step::Append => {
                let retention_ms = self.state.machine.retention_ms();
                let append = self.state.records.append(retention_ms);
                match store.append(self.now.at, &cell.key(TASK_LOG), epoch, &append, &ticket) {
                    Answer::Now(result) => Some(Outcome::Done(result)),
                    Answer::Later => None,
                }
            }
        };
        if let Some(outcome) = outcome {
            self.answered(step, outcome);
        }
    }

    pub(super) fn write_answered(&mut self, ticket: &Ticket, outcome: Outcome) {
        match &self.state.records.work {
            Work::Asking(step, asked, _) if asked.number == ticket.number => {
                let step = *step;
                self.answered(step, outcome);
            }
            // What was called off may be done all the same: it is asked for again, which then changes nothing.
            _ => {}
        }
    }

    pub(super) fn write_is_due(&mut self) {
        if self.state.records.due() > self.now.at {
            return;
        }
        match std::mem::take(&mut self.state.records.work) {
            Work::Asking(step, ticket, _) => {
                self.cell.shared.store.abandon(&self.cell.key(TASK_LOG), &ticket);
                self.pause(step);
            }
            Work::Pausing(step, _) => self.try_step(step),
            Work::Idle => {}
        }
    }

    /// The store has no answer: it is asked again. A call whose task it does not take in time stays a call.
    fn pause(&mut self, step: Step) {
        let wait_ms = self.cell.shared.options.pacing.store_wait_ms;
        let records = &mut self.state.records;
        if records.is_new() && self.now.at.since(records.since) >= wait_ms {
            return self.not_created();
        }
        let pause_ms = PAUSES_MS[records.pauses.min(PAUSES_MS.len() - 1)];
        if records.pauses == PAUSES_MS.len() {
            tracing::warn!(
                target: "tailrope", session = %self.cell.name,
                "the event store does not take how a task goes on; it is asked again"
            );
        }
        records.pauses += 1;
        records.work = Work::Pausing(step, self.now.at + pause_ms);
    }

    fn answered(&mut self, step: Step, outcome: Outcome) {
        self.state.records.work = Work::Idle;
        let error = match (step, outcome) {
            (Step::Hold, Outcome::Held(Ok(_))) => return self.is_held(),
            (Step::HoldAgain, Outcome::Held(Ok(_))) => return self.try_step(Step::Look),
            (Step::Append, Outcome::Done(Ok(()))) => return self.appended(),
            (Step::Look, Outcome::Page(Ok(page))) => return self.restore(page.page.head, page.chain),
            (Step::Look, Outcome::Page(Err(StoreError::Gone))) => {
                return self.restore(0, Chain::start(&TASK_LOG.0).0);
            }
            (_, Outcome::Held(Err(error)) | Outcome::Done(Err(error)) | Outcome::Page(Err(error))) => error,
            _ => StoreError::Failed("the outcome of another operation".to_owned()),
        };
        let lasts = self.cell.shared.store.outlives_process();
        match (step, error) {
            (step, StoreError::Failed(_) | StoreError::TimedOut { .. }) => self.pause(step),
            // There will be room again, and a task has to be able to end.
            (Step::Append, StoreError::Full { .. }) if !self.state.records.is_new() => self.pause(step),
            // The store does not even have the session.
            (Step::HoldAgain, StoreError::Gone) if self.state.records.base.0 == 0 => {
                self.state.records.is_held = false;
                self.state.records.stored = 0;
            }
            (Step::Append, StoreError::Fenced | StoreError::Gone | StoreError::RolledBack | StoreError::OutOfOrder)
                if lasts && !self.state.records.is_new() =>
            {
                self.state.records.is_doubted = true;
            }
            (Step::Hold | Step::HoldAgain, StoreError::Fenced) | (Step::HoldAgain, StoreError::Gone) => self.lose(),
            (step, error) => self.refused(step, &error),
        }
    }

    fn is_held(&mut self) {
        self.state.records.is_held = true;
        if self.cell.shared.store.outlives_process() {
            self.cell.shared.store.watch(&self.cell.name, &self.cell.watcher());
        }
    }

    fn appended(&mut self) {
        let records = &mut self.state.records;
        Counters::add(&self.cell.shared.counters.events_stored, (records.asked - records.stored) as u64);
        if records.is_new() {
            Counters::add(&self.cell.shared.counters.tasks_created, 1);
        }
        records.stored = records.asked;
        self.tell_stored();
    }

    fn tell_stored(&mut self) {
        let records = &mut self.state.records;
        if records.told < records.stored {
            records.told = records.stored;
            let number = records.seq_at(records.told) - 1;
            self.input(Input::Stored { number });
        }
    }

    /// The store has this much of the log, after it may have been set back.
    fn restore(&mut self, head: Seq, chain: u64) {
        let records = &mut self.state.records;
        let count = head.checked_sub(records.base.0).and_then(|count| usize::try_from(count).ok());
        if let Some(count) = count.filter(|count| *count <= records.list.len() && records.chain_at(*count) == chain) {
            records.stored = count;
            return self.tell_stored();
        }
        tracing::error!(
            target: "tailrope", session = %self.cell.name,
            "the event store has another history of a task than its owner: the task is lost"
        );
        // Others do with it what the store has of it.
        self.cell.shared.release(&self.cell.name, self.state.records.epoch());
        self.lose();
    }

    /// The store does not take what comes next, and never will.
    fn refused(&mut self, step: Step, error: &StoreError) {
        tracing::error!(target: "tailrope", session = %self.cell.name, %error, ?step, "a change of a task is not stored");
        let records = &mut self.state.records;
        if records.is_new() {
            return self.not_created();
        }
        if records.stored < records.told {
            // The store was set back, and does not take again what it had.
            self.cell.shared.release(&self.cell.name, records.epoch);
            return self.lose();
        }
        records.list.truncate(records.stored);
        records.asked = records.list.len();
        let number = records.seq_at(records.asked);
        self.input(Input::Unstored { number });
    }

    /// The call does not become a task.
    fn not_created(&mut self) {
        let epoch = self.state.records.epoch;
        self.drop_task();
        // In case the store does what it was asked after all: nobody knows of the task.
        self.cell.shared.store.drop_session(&self.cell.name, epoch);
        self.input(Input::Unstored { number: 0 });
    }

    /// Another process has the task.
    fn lose(&mut self) {
        Counters::add(&self.cell.shared.counters.sessions_taken_over, 1);
        self.input(Input::Fenced);
        self.drop_task();
    }

    /// What others read of a task whose process leaves it: what became of it and is not written yet, or that it is lost.
    pub(super) fn write_last_word(&mut self) {
        let Some(task) = self.state.machine.task() else { return };
        let lost = task.owner_lost(self.now.unix_ms);
        let records = &mut self.state.records;
        if !records.is_held {
            return;
        }
        if let Some(lost) = lost {
            records.push(&lost, self.cell.shared.chain_key.as_ref());
        }
        if records.stored == records.list.len() {
            return;
        }
        records.asked = records.list.len();
        let append = records.append(self.state.machine.retention_ms());
        let ticket = self.cell.ticket(TASK_LOG, Operation::Append);
        // Nobody waits: a process that finds no end writes the same.
        let _ = self.cell.shared.store.append(
            self.now.at,
            &self.cell.key(TASK_LOG),
            self.state.records.epoch,
            &append,
            &ticket,
        );
    }
}

fn held(answer: Answer<Vec<RunningLog>>) -> Option<Outcome> {
    match answer {
        Answer::Now(result) => Some(Outcome::Held(result)),
        Answer::Later => None,
    }
}
