//! Sessions whose owner is gone: the process that serves one of their readers ends what ran there (I13).
//!
//! It takes the session over, so that the owner, should it only have stood still, is refused from then on; it ends the
//! logs that have no end; and it lets the session go.

use crate::Ms;
use crate::engine::lines::log_later;
use crate::engine::logs::writing::Write;
use crate::engine::sessions::cell::{Cell, SESSION, State};
use crate::protocol::RequestId;
use crate::session::{Step, SynthesizedEnd, ends_payload};
use crate::store::{Append, Epoch, Hold, LogPage, RunningLog, StoreError};

impl Cell {
    /// Whether a log shows that somebody took this process for gone and has the session. It ends here with the change.
    pub(crate) fn is_taken_over(&self, state: &mut State, page: &LogPage) -> bool {
        state.is_fenced |= !self.is_adopted() && page.owner.is_some_and(|owner| owner.epoch != state.epoch);
        state.is_fenced
    }

    /// Takes over a session whose owner is gone.
    pub(crate) fn inherit(&self, state: &mut State, now: Ms, steps: &mut Vec<Step>) {
        let Some(owner) = state.owner.filter(|_| !state.writing.contains_key(&SESSION)) else { return };
        log_later!(self, state, WARN, [], "the process that ran the session's requests seems to be gone");
        let epoch = Epoch { number: owner.epoch.number.saturating_add(1), salt: self.shared.salt() };
        let hold = Hold { epoch, seen: Some(owner.epoch), record: None };
        self.put(state, now, SESSION, epoch, Write::Hold(hold), steps);
    }

    /// Nobody waits any more for a session that is being taken over.
    pub(crate) fn renounce(&self, state: &State) {
        if let Some(epoch) = state.asked_epoch().filter(|_| self.is_adopted()) {
            self.shared.store.release(&self.name, epoch);
        }
    }

    /// It is known whether the session is this process's.
    pub(crate) fn inherited(
        &self,
        state: &mut State,
        now: Ms,
        epoch: Epoch,
        result: Result<Vec<RunningLog>, StoreError>,
        steps: &mut Vec<Step>,
    ) {
        let running = match result {
            Ok(running) => running,
            Err(error) => {
                // Somebody else was faster, or the store does not work: the next look tells. Should it be done all the same,
                // the session is not to be left with a process that does not know it.
                log_later!(self, state, DEBUG, [], %error, "session not taken over");
                return self.shared.store.release(&self.name, epoch);
            }
        };
        for log in running {
            self.end_running(state, now, epoch, (&log, SynthesizedEnd::OwnerLost), steps);
        }
        self.shared.store.release(&self.name, epoch);
        for followed in state.followed.values_mut().filter(|followed| !followed.asking) {
            followed.due = now;
        }
    }

    /// Ends a log that nobody goes on writing.
    pub(crate) fn end_running(
        &self,
        state: &mut State,
        now: Ms,
        epoch: Epoch,
        (log, end): (&RunningLog, SynthesizedEnd),
        steps: &mut Vec<Step>,
    ) {
        let RunningLog { nonce, head, chain, ref about } = *log;
        let requests = RequestId::decode_all(about).unwrap_or_default();
        // The standalone stream has no end.
        if requests.is_empty() {
            return;
        }
        let ends: Vec<_> = requests.into_iter().map(|id| (id, end)).collect();
        let end = Some(ends_payload(&ends));
        let append = Append { first: head + 1, chain_before: chain, chain, end, ..Append::default() };
        self.put(state, now, nonce, epoch, Write::End(append), steps);
    }
}
