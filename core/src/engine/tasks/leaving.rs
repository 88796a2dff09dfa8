//! When a task is not this process's any more: it has its end, another process goes on with it, or the process goes away.

use crate::engine::Guest;
use crate::engine::sessions::released::ReleasedTask;
use crate::engine::shared::lock;
use crate::engine::tasks::Verdict;
use crate::engine::tasks::cell::{CallState, Place};
use crate::engine::tasks::change::CallChange;
use crate::session::Outcome;
use crate::task::Task;

impl CallChange<'_> {
    /// Lets the task go once it has its end, or nothing of it runs in a process that is going away.
    pub(super) fn end(&mut self) {
        let shared = &self.cell.shared;
        let is_draining = self.state.is_draining || lock(&shared.draining).is_some();
        let (place, is_idle) = (self.state.place, self.state.machine.is_waiting());
        let is_written = self.state.writing.is_idle() && self.state.records.are_stored();
        if self.state.machine.is_over() || is_idle || shared.check().is_err() {
            self.state.guest = None;
        } else if self.state.guest.is_none() {
            self.state.guest = Some(Guest::of(shared));
        }
        if place == Place::Restored && is_written {
            self.state.place = Place::Released;
            shared.store.release(&self.cell.name, self.state.records.epoch());
        }
        if place != Place::Here {
            return;
        }
        let is_for_others = is_draining && is_idle && is_written;
        let stored = self.state.machine.stored();
        let epoch = self.state.records.epoch();
        if let Some(task) = stored.filter(|task| task.end().is_some()) {
            let retention_ms = task.retention_ms();
            self.state.place = Place::Released;
            self.cell.unwatch();
            self.stop_writing();
            self.release();
            shared.expire_task(self.cell, epoch, retention_ms);
        } else if self.state.machine.has_given_up() {
            self.let_go();
        } else if is_for_others && shared.store.outlives_process() {
            shared.drained.add(|tally| tally.tasks_handed_over += 1);
            self.let_go();
        }
    }

    /// Nothing of the task happens here any more. Others end it or go on with it, where there are others.
    pub(super) fn let_go(&mut self) {
        let (shared, epoch) = (&self.cell.shared, self.state.records.epoch());
        if shared.store.outlives_process() {
            self.release();
        } else {
            shared.drop_session(&self.cell.name, epoch);
        }
        self.drop_task();
    }

    /// Other processes may have the task. As long as the store may lose what it has of it, this one can write that again.
    pub(super) fn release(&self) {
        let CallState { records, machine, .. } = &*self.state;
        let shared = &self.cell.shared;
        let retention_ms = machine.stored().filter(|task| task.end().is_some()).map_or(u64::MAX, Task::retention_ms);
        let (until, bytes) = (self.now.at + retention_ms, records.bytes());
        match self.cell.me.upgrade() {
            Some(cell) => shared.release_task(&self.cell.name, records.epoch(), ReleasedTask { cell, until, bytes }),
            None => shared.release(&self.cell.name, records.epoch()),
        }
    }

    /// The task is another process's, or nobody's.
    pub(super) fn drop_task(&mut self) {
        self.state.place = Place::Released;
        self.observe_release();
        self.cell.unwatch();
        self.stop_writing();
        self.cell.shared.drop_task(self.cell);
        let waiting: Vec<u64> = self.state.requesters.keys().copied().collect();
        for from in waiting {
            self.tell(from, Verdict::NotTaken);
        }
    }

    /// The process goes away before the call has ended.
    fn note_cut(&mut self) {
        self.cell.shared.drained.add(|tally| tally.ended += 1);
        self.note_end(Outcome::Drained, None);
    }

    pub(super) fn leave(&mut self) -> bool {
        self.state.guest = None;
        if self.state.place == Place::Nowhere && !self.state.machine.is_over() {
            self.note_cut();
        }
        if self.state.place != Place::Here {
            return false;
        }
        let fails = self.state.machine.task().is_some_and(|task| task.owner_lost(self.now.unix_ms).is_some());
        if fails {
            self.note_cut();
        }
        if self.cell.shared.store.outlives_process() {
            self.write_last_word();
        }
        self.let_go();
        fails
    }
}
