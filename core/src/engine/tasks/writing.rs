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
use crate::engine::lines::log_later;
use crate::engine::stats::Counters;
use crate::engine::tasks::cell::{CallState, Place};
use crate::engine::tasks::change::CallChange;
use crate::engine::tasks::{TASK_LOG, record};
use crate::store::{Answer, Hold, Operation, Outcome, ReadLimit, RunningLog, StoreError, Ticket};
use crate::stream::{Chain, Seq};
use crate::task::Input;

/// Pauses before a store that has no answer is asked again, in milliseconds.
const PAUSES_MS: [u64; 6] = [20, 50, 100, 200, 500, 1_000];

/// What the store is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// To create the session.
    Hold,
    /// To append the records that it does not have.
    Append,
    /// Whether the session is still this process's, after something was lost.
    HoldAgain,
    /// Where the log stands then.
    Look,
    /// Whether clients asked other processes for the task.
    Readers,
}

#[derive(Default)]
enum Work {
    #[default]
    Idle,
    Asking(Step, Ticket, Ms),
    Pausing(Step, Ms),
}

/// What the store is asked about a task's log.
#[derive(Default)]
pub(super) struct Writing {
    is_owned: bool,
    /// The store may have been set back.
    is_doubted: bool,
    work: Work,
    /// When the store was first asked for what it is asked now.
    since: Ms,
    pauses: usize,
}

impl Writing {
    /// Of a task that this process takes over.
    pub(super) fn of_owner() -> Self {
        Self { is_owned: true, ..Self::default() }
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.work, Work::Idle) && !self.is_doubted
    }

    pub(super) fn is_owned(&self) -> bool {
        self.is_owned
    }

    /// Whether the store has not to say first whether the task is still this process's, and how it stands.
    pub(super) fn is_sure(&self) -> bool {
        let (Work::Asking(step, ..) | Work::Pausing(step, _)) = self.work else { return !self.is_doubted };
        !self.is_doubted && !matches!(step, Step::HoldAgain | Step::Look)
    }

    pub(super) fn doubt(&mut self) {
        self.is_doubted |= self.is_owned;
    }

    pub(super) fn due(&self) -> Ms {
        match self.work {
            Work::Idle => Ms::NEVER,
            Work::Asking(_, _, at) | Work::Pausing(_, at) => at,
        }
    }
}

impl CallChange<'_> {
    /// Asks the store for what is to be written next, if it is asked for nothing.
    pub(super) fn write(&mut self) {
        while self.state.place.writes() && matches!(self.state.writing.work, Work::Idle) {
            let CallState { writing, records, .. } = &mut *self.state;
            let step = if !writing.is_owned {
                Step::Hold
            } else if std::mem::take(&mut writing.is_doubted) && self.cell.shared.store.outlives_process() {
                Step::HoldAgain
            } else if !records.are_stored() {
                Step::Append
            } else if self.unasked_at() <= self.now.at {
                Step::Readers
            } else {
                return;
            };
            let writing = &mut self.state.writing;
            (writing.since, writing.pauses) = (self.now.at, 0);
            self.try_step(step);
        }
    }

    fn try_step(&mut self, step: Step) {
        let cell = self.cell;
        let operation = match step {
            Step::Hold | Step::HoldAgain => Operation::Hold,
            Step::Append => Operation::Append,
            Step::Look | Step::Readers => Operation::Look(0),
        };
        let ticket = cell.ticket(TASK_LOG, operation);
        let due = cell.shared.due_after(self.now.at);
        let epoch = self.state.records.epoch();
        let record = Some(record(cell.identity()));
        let store = &cell.shared.store;
        self.state.writing.work = Work::Asking(step, ticket.clone(), due);
        let outcome = match step {
            Step::Hold => hold_outcome(store.hold(&cell.name, &Hold { epoch, seen: None, record }, &ticket)),
            Step::HoldAgain => {
                hold_outcome(store.hold(&cell.name, &Hold { epoch, seen: Some(epoch), record }, &ticket))
            }
            Step::Look | Step::Readers => match store.read(&cell.key(TASK_LOG), 0, ReadLimit::default(), &ticket) {
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
        match &self.state.writing.work {
            Work::Asking(step, asked, _) if asked.number == ticket.number => {
                let step = *step;
                self.answered(step, outcome);
            }
            // What was called off may be done all the same: it is asked for again, which then changes nothing.
            _ => {}
        }
    }

    pub(super) fn write_is_due(&mut self) {
        if self.state.writing.due() > self.now.at {
            return;
        }
        match std::mem::take(&mut self.state.writing.work) {
            Work::Asking(step, ticket, _) => {
                self.cell.shared.store.abandon(&self.cell.key(TASK_LOG), &ticket);
                self.pause(step);
            }
            Work::Pausing(step, _) => self.try_step(step),
            Work::Idle => {}
        }
    }

    /// The task is not written any more.
    pub(super) fn stop_writing(&mut self) {
        if let Work::Asking(_, ticket, _) = std::mem::take(&mut self.state.writing.work) {
            self.cell.shared.store.abandon(&self.cell.key(TASK_LOG), &ticket);
        }
    }

    /// The store has no answer: it is asked again. A call whose task it does not take in time stays a call.
    fn pause(&mut self, step: Step) {
        let wait_ms = self.cell.shared.options.pacing.store_wait_ms;
        if self.state.records.is_new() && self.now.at.since(self.state.writing.since) >= wait_ms {
            return self.not_created();
        }
        let writing = &mut self.state.writing;
        let pause_ms = PAUSES_MS[writing.pauses.min(PAUSES_MS.len() - 1)];
        if writing.pauses == PAUSES_MS.len() {
            log_later!(self, WARN, [], "the event store does not take how a task goes on; it is asked again");
        }
        let writing = &mut self.state.writing;
        writing.pauses += 1;
        writing.work = Work::Pausing(step, self.now.at + pause_ms);
    }

    fn answered(&mut self, step: Step, outcome: Outcome) {
        self.state.writing.work = Work::Idle;
        let error = match (step, outcome) {
            (Step::Hold, Outcome::Held(Ok(_))) => return self.took_ownership(),
            (Step::HoldAgain, Outcome::Held(Ok(running))) => {
                self.answer_unknown_mail(&running);
                return self.try_step(Step::Look);
            }
            (Step::Append, Outcome::Done(Ok(()))) => return self.appended(),
            (Step::Readers, Outcome::Page(Ok(page))) => return self.has_readers(page.readers),
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
            (Step::HoldAgain, StoreError::Gone) => {
                self.state.writing.is_owned = false;
                self.state.records.lost();
            }
            (Step::Readers, _) => self.state.writing.is_doubted = lasts,
            (Step::Append, StoreError::Fenced | StoreError::Gone | StoreError::RolledBack | StoreError::OutOfOrder)
                if lasts && !self.state.records.is_new() =>
            {
                self.state.writing.is_doubted = true;
            }
            (Step::Hold | Step::HoldAgain, StoreError::Fenced) => self.lose(),
            // A session that had several owners does not come back.
            (Step::Hold, StoreError::Gone) if !self.state.records.is_new() => self.lose(),
            (step, error) => self.refused(step, error),
        }
    }

    fn took_ownership(&mut self) {
        self.state.writing.is_owned = true;
        if self.cell.shared.store.outlives_process() && self.state.place == Place::Here {
            self.cell.shared.store.watch(&self.cell.name, &self.cell.watcher());
        }
    }

    fn appended(&mut self) {
        let counters = &self.cell.shared.counters;
        let records = &mut self.state.records;
        if records.is_new() {
            Counters::add(&counters.tasks_created, 1);
        }
        Counters::add(&counters.events_stored, records.appended());
        self.tell_stored();
    }

    /// When a task that no client asks for has its end (I11).
    pub(super) fn unasked_at(&self) -> Ms {
        let max_ms = self.cell.shared.options.max_detached_ms;
        let goes_on = self.state.machine.task().is_some_and(|task| task.end().is_none());
        if self.state.place == Place::Here && goes_on && max_ms > 0 { self.state.asked_at + max_ms } else { Ms::NEVER }
    }

    /// So many followers of other processes have counted themselves in the log.
    fn has_readers(&mut self, readers: u64) {
        if std::mem::replace(&mut self.state.readers, readers) < readers {
            self.state.asked_at = self.now.at;
            return;
        }
        Counters::add(&self.cell.shared.counters.tasks_unasked, 1);
        log_later!(self, WARN, [], "no client asked for a task for max_detached_ms: it is ended");
        self.input(Input::Unasked);
    }

    fn tell_stored(&mut self) {
        if let Some(number) = self.state.records.newly_stored() {
            self.input(Input::Stored { number });
        }
    }

    /// The store has this much of the log, after it may have been set back.
    fn restore(&mut self, head: Seq, chain: u64) {
        if self.state.records.restore(head, chain, self.cell.shared.chain_key.as_ref()) {
            return self.tell_stored();
        }
        log_later!(self, ERROR, [], "the event store has another history of a task than its owner: the task is lost");
        // Others do with it what the store has of it.
        self.cell.shared.release(&self.cell.name, self.state.records.epoch());
        self.lose();
    }

    /// The store does not take what comes next, and never will.
    fn refused(&mut self, step: Step, error: StoreError) {
        log_later!(self, ERROR, [], %error, ?step, "a change of a task is not stored");
        let records = &mut self.state.records;
        if records.is_new() {
            return self.not_created();
        }
        if records.is_behind() {
            // The store was set back, and does not take again what it had.
            self.cell.shared.release(&self.cell.name, records.epoch());
            return self.lose();
        }
        records.retract();
        let number = records.next_number();
        self.input(Input::Unstored { number });
    }

    /// The call does not become a task.
    fn not_created(&mut self) {
        let epoch = self.state.records.epoch();
        self.drop_task();
        // In case the store does what it was asked after all: nobody knows of the task.
        self.cell.shared.store.drop_session(&self.cell.name, epoch);
        self.input(Input::Unstored { number: 0 });
    }

    /// Another process has the task.
    fn lose(&mut self) {
        if self.state.place == Place::Restored {
            // This process let it go before.
            self.state.place = Place::Released;
            return;
        }
        Counters::add(&self.cell.shared.counters.sessions_taken_over, 1);
        self.input(Input::Fenced);
        self.drop_task();
    }

    /// What others read of a task whose process leaves it: what became of it and is not written yet, or that it is lost.
    pub(super) fn write_last_word(&mut self) {
        let Some(task) = self.state.machine.task() else { return };
        let lost = task.owner_lost(self.now.unix_ms);
        if !self.state.writing.is_owned {
            return;
        }
        if let Some(lost) = lost {
            let number = self.state.records.next_number();
            self.state.records.push(number, &lost, self.cell.shared.chain_key.as_ref());
        }
        if self.state.records.are_stored() {
            return;
        }
        let append = self.state.records.append(self.state.machine.retention_ms());
        let ticket = self.cell.ticket(TASK_LOG, Operation::Append);
        let (key, epoch) = (self.cell.key(TASK_LOG), self.state.records.epoch());
        // Nobody waits: a process that finds no end writes the same.
        let _ = self.cell.shared.store.append(self.now.at, &key, epoch, &append, &ticket);
    }
}

fn hold_outcome(answer: Answer<Vec<RunningLog>>) -> Option<Outcome> {
    match answer {
        Answer::Now(result) => Some(Outcome::Held(result)),
        Answer::Later => None,
    }
}
