//! A task whose owner is gone: this process takes the session over, so that the owner is refused from then on, in case it only
//! stood still. Then it writes the end of the task and lets the session go; or the host serves the task from now on.

use crate::engine::NoWake;
use crate::engine::connections::Wake;
use crate::engine::shared::lock;
use crate::engine::stats::Counters;
use crate::engine::tasks::cell::CallCell;
use crate::engine::tasks::ended::Calling;
use crate::engine::tasks::loading::View;
use crate::engine::tasks::mail::end_of;
use crate::engine::tasks::query::{Query, QueryChange, Stage};
use crate::engine::tasks::records::Records;
use crate::engine::tasks::writing::Writing;
use crate::engine::tasks::{TASK_LOG, Verdict};
use crate::session::Outcome as CallOutcome;
use crate::store::{Answer, Hold, Operation, Outcome, Owner, RunningLog, StoreError, Ticket};
use crate::sync::Arc;
use crate::task::{Change, End, Machine, Task, What};

/// A task that is being taken over.
pub(super) struct Inheritance {
    pub(super) ticket: Ticket,
    task: Task,
    owner: Owner,
    records: Records,
    /// What becomes of the task. None where the host goes on with it.
    change: Option<Change>,
}

impl Inheritance {
    pub(super) fn epoch(&self) -> crate::store::Epoch {
        self.records.epoch()
    }
}

impl QueryChange<'_> {
    pub(super) fn inherit(&mut self, view: View, change: Option<Change>) {
        let Some(owner) = view.owner else { return self.pause() };
        let shared = &self.query.shared;
        if change.is_none() && (shared.check().is_err() || lock(&shared.draining).is_some()) {
            // Another process may go on with it.
            return self.pause();
        }
        let View { task, events, head, chain, .. } = view;
        let epoch = owner.epoch.next(shared.salt());
        let records = Records::loaded(epoch, events, head, chain);
        let ticket = self.query.ticket(TASK_LOG, Operation::Hold);
        let inheritance = Inheritance { ticket: ticket.clone(), task, owner, records, change };
        let hold = Hold { epoch, seen: Some(owner.epoch), record: None };
        match shared.store.hold(&self.query.name, &hold, &ticket) {
            Answer::Now(result) => self.inherited(inheritance, Outcome::Held(result)),
            Answer::Later => self.state.stage = Stage::Inherit(Box::new(inheritance)),
        }
    }

    pub(super) fn inherited(&mut self, inheritance: Inheritance, outcome: Outcome) {
        match outcome {
            Outcome::Held(Ok(running)) => self.has_session(inheritance, &running),
            Outcome::Done(Ok(())) => self.has_end(inheritance),
            Outcome::Held(Err(StoreError::Fenced)) => self.pause(),
            _ => {
                // In case the store has done it all the same: nobody must take this process for the owner.
                self.query.shared.release(&self.query.name, inheritance.epoch());
                self.pause();
            }
        }
    }

    fn has_session(&mut self, mut inheritance: Inheritance, running: &[RunningLog]) {
        let Query { shared, name, .. } = self.query;
        let epoch = inheritance.epoch();
        // What the owner took and did not answer is asked again by its senders.
        for RunningLog { nonce, .. } in running.iter().filter(|log| log.nonce != TASK_LOG) {
            let ticket = self.query.ticket(*nonce, Operation::Append);
            let _ = shared.store.append(
                self.now,
                &self.query.key(*nonce),
                epoch,
                &end_of(*nonce, Verdict::NotTaken),
                &ticket,
            );
        }
        let is_as_seen = |log: &RunningLog| log.nonce == TASK_LOG && inheritance.records.end_at(log.head, log.chain);
        if !running.iter().any(is_as_seen) {
            // The owner wrote more before it was gone.
            shared.release(name, epoch);
            return self.pause();
        }
        let Inheritance { records, change, task, .. } = &mut inheritance;
        let Some(change) = change else { return self.adopt(inheritance) };
        records.push(records.next_number(), change, shared.chain_key.as_ref());
        let append = records.append(task.retention_ms());
        let ticket = self.query.ticket(TASK_LOG, Operation::Append);
        inheritance.ticket = ticket.clone();
        match shared.store.append(self.now, &self.query.key(TASK_LOG), epoch, &append, &ticket) {
            Answer::Now(result) => self.inherited(inheritance, Outcome::Done(result)),
            Answer::Later => self.state.stage = Stage::Inherit(Box::new(inheritance)),
        }
    }

    /// The store has the end of the task.
    fn has_end(&mut self, inheritance: Inheritance) {
        let Inheritance { mut task, owner, mut records, change, .. } = inheritance;
        let Query { shared, name, principal, request, .. } = self.query;
        records.appended();
        let epoch = records.epoch();
        let is_failed = change.as_ref().is_some_and(|change| matches!(change.what, What::Ended(End::Failed(_), _)));
        // A process that left in order has said so itself.
        let is_lost = is_failed && owner.unseen_ms != u64::MAX;
        if is_lost {
            Counters::add(&shared.counters.tasks_lost, 1);
        }
        let outcome = if is_failed { CallOutcome::OwnerGone } else { CallOutcome::Cancelled };
        if change.is_none_or(|change| task.apply(&change).is_err()) {
            shared.release(name, epoch);
            return self.pause();
        }
        let (settings, now) = (shared.task_settings(&crate::session::Pace::default()), shared.task_now());
        let (id, number) = (request.task.clone(), records.next_number());
        match Machine::adopt(now, settings, id, task.clone(), number) {
            Some(machine) => {
                let (body, wake): (_, (Arc<dyn Wake>, u64)) = (task.call().clone(), (Arc::new(NoWake), 0));
                let (log, of) = ((records, Writing::of_owner()), (machine, Calling::of_task(shared, &task)));
                let cell = CallCell::new(shared, Arc::clone(name), principal.as_ref(), wake, body, of, log);
                cell.conclude(outcome);
            }
            None => shared.release(name, epoch),
        }
        if self.is_get() { self.show(&task) } else { self.acknowledge() }
    }

    /// The host serves the task from now on.
    fn adopt(&mut self, inheritance: Inheritance) {
        let Inheritance { task, records, .. } = inheritance;
        let Query { shared, name, principal, request, wake, .. } = self.query;
        let (settings, now) = (shared.task_settings(&crate::session::Pace::default()), shared.task_now());
        let (body, epoch) = (task.call().clone(), records.epoch());
        let calling = Calling::of_task(shared, &task);
        let machine = Machine::adopt(now, settings, request.task.clone(), task, records.next_number());
        let Some(machine) = machine else {
            shared.release(name, epoch);
            return self.pause();
        };
        let log = (records, Writing::of_owner());
        let of = (machine, calling);
        let cell = CallCell::new(shared, Arc::clone(name), principal.as_ref(), wake.clone(), body, of, log);
        if !cell.take_over(&mut self.lines) {
            shared.release(name, epoch);
            return self.pause();
        }
        self.serve(cell);
    }
}
