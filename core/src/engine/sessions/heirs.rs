//! Sessions whose owner is gone: the process that serves one of their readers ends what ran there (I13).
//!
//! That process takes the session over. So the owner is refused from then on, in case it only stood still. Then the
//! process ends the logs that have no end, and lets the session go.

use crate::engine::lines::log_later;
use crate::engine::logs::following::FOLLOW_MS;
use crate::engine::logs::log::Write;
use crate::engine::sessions::cell::{Cell, SESSION, State};
use crate::engine::sessions::change::Change;
use crate::engine::sessions::timers::Reason;
use crate::session::{About, SynthesizedEnd, ends_payload};
use crate::store::{Append, Epoch, Hold, LogPage, Owner, RunningLog, StoreError};

impl Cell {
    /// Whether a session's owner gave no sign for so long that it counts as gone.
    pub(crate) fn is_gone(&self, owner: Option<Owner>) -> bool {
        owner.is_some_and(|owner| owner.unseen_ms >= self.shared.options.owner_lost_ms)
    }

    /// Releases a session that is being taken over, or that the host has yet to take: nobody waits for it any more.
    pub(crate) fn renounce(&self, state: &State) {
        let epoch = state.asked_epoch().or_else(|| state.adoption.epoch());
        if let Some(epoch) = epoch.filter(|_| self.is_elsewhere()) {
            self.shared.release(&self.name, epoch);
        }
    }
}

impl Change<'_> {
    /// Whether a log shows that another process took this one for gone and has the session. If so, the session ends
    /// here with this change.
    pub(crate) fn is_taken_over(&mut self, page: &LogPage) -> bool {
        let is_forgotten = self.is_forgotten(page);
        let has_other = !self.cell.is_elsewhere() && page.owner.is_some_and(|owner| owner.epoch != self.state.epoch);
        self.state.wants_stock |= is_forgotten;
        self.state.is_fenced |= has_other && !is_forgotten;
        self.state.is_fenced
    }

    /// Whether a log shows an owner from before this one: the store was set back, and has lost that this process has the session.
    pub(crate) fn is_forgotten(&self, page: &LogPage) -> bool {
        !self.cell.is_elsewhere() && page.owner.is_some_and(|owner| owner.epoch.number < self.state.epoch.number)
    }

    /// Whether a store that answers `fenced` to the session's owner may have forgotten this owner. Taking stock shows
    /// it: that asks for the session again, and takes it from no later owner (O1).
    pub(crate) fn may_be_forgotten(&self) -> bool {
        let is_owner = !self.cell.is_elsewhere() && !self.state.session.has_ended();
        is_owner && self.cell.shared.store.outlives_process()
    }

    /// Whether the session is being taken over, or its host has yet to take it.
    fn is_inheriting(&self) -> bool {
        self.state.writing.contains_key(&SESSION) || self.state.adoption.is_pending()
    }

    /// The store has said who the session's owner is. None means this process.
    pub(crate) fn saw_owner(&mut self, owner: Option<Owner>) {
        self.state.owner = owner;
        if owner.is_none() && self.cell.is_elsewhere() && !self.is_inheriting() {
            self.cell.shared.release_again(&self.cell.name);
        }
    }

    /// Takes over a session whose owner is gone. If that fails, it is tried again after a pause.
    pub(crate) fn inherit(&mut self) {
        let is_under_way = self.is_inheriting();
        let Some(owner) = self.state.owner.filter(|_| !is_under_way && self.state.inherit_again <= self.now) else {
            return;
        };
        self.state.inherit_again = self.now + FOLLOW_MS;
        // If the owner left the session in good order, there is nothing to warn of.
        let unseen_ms = owner.unseen_ms;
        if unseen_ms < u64::MAX {
            log_later!(
                self,
                WARN,
                [],
                unseen_ms,
                "the process that ran the session's requests seems to be gone: what ran there ends with an error, and the \
                session goes on where it is asked for"
            );
        }
        let epoch = owner.epoch.next(self.cell.shared.salt());
        let hold = Hold { epoch, seen: Some(owner.epoch), record: None };
        self.put(SESSION, epoch, Write::Hold(hold));
    }

    /// The store has said whether this process has the session now, or could not tell.
    pub(crate) fn inherited(&mut self, epoch: Epoch, result: Result<Vec<RunningLog>, StoreError>) {
        let running = match result {
            Ok(running) => running,
            Err(error) => {
                // Another process was faster, or the store does not work: the next look tells. In case the store has
                // done it all the same, the session is released: it must not stay with a process that does not know
                // that it owns it.
                log_later!(self, DEBUG, [], %error, "session not taken over");
                return self.cell.shared.release(&self.cell.name, epoch);
            }
        };
        if self.may_adopt() && self.awaits_owner(&running) {
            return self.took_over(epoch, running);
        }
        self.leave_to_others(epoch, &running);
    }

    /// Ends what ran in a session that was taken over, and lets it go.
    pub(crate) fn leave_to_others(&mut self, epoch: Epoch, running: &[RunningLog]) {
        for log in running {
            self.end_running(epoch, (log, SynthesizedEnd::OwnerLost));
        }
        self.withdraw_unbegun(running);
        self.cell.shared.release(&self.cell.name, epoch);
        let State { followed, timers, .. } = &mut *self.state;
        // Logs without a time are being looked at already.
        followed.keys().for_each(|nonce| timers.change(Reason::Look(*nonce), self.now));
    }

    /// Ends a log that nobody goes on writing.
    pub(crate) fn end_running(&mut self, epoch: Epoch, (log, end): (&RunningLog, SynthesizedEnd)) {
        let RunningLog { nonce, head, chain, ref about } = *log;
        let Some(About { requests, .. }) = About::decode(about) else {
            return log_later!(self, ERROR, of nonce, [], "what a log was created with cannot be read, so it gets no end");
        };
        // The standalone stream has no end.
        if requests.is_empty() {
            return;
        }
        for id in &requests {
            self.note_lost(nonce, id, end);
        }
        let ends: Vec<_> = requests.into_iter().map(|id| (id, end)).collect();
        let end = Some(ends_payload(&ends));
        let append = Append { first: head + 1, chain_before: chain, chain, end, ..Append::default() };
        self.put(nonce, epoch, Write::End(append));
    }
}
