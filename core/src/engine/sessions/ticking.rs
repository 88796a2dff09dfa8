//! What a session does when a time has come. The store is waited for `store_timeout_ms`. Then a question counts as
//! failed, and a write is asked for [again](crate::engine::logs::writing).

use crate::Ms;
use crate::engine::lines::log_later;
use crate::engine::logs::following::FOLLOW_MS;
use crate::engine::sessions::cell::{Cell, State};
use crate::engine::sessions::change::Change;
use crate::engine::sessions::timers::Reason;
use crate::protocol::StreamNonce;
use crate::store::{Complete, Outcome, StoreError, Ticket};

impl Cell {
    /// When the store has taken too long for what it was asked at this time.
    pub(crate) fn due_after(&self, asked: Ms) -> Ms {
        self.shared.due_after(asked)
    }

    /// What counts as the answer of a store that takes too long.
    pub(crate) fn timed_out(&self) -> StoreError {
        StoreError::TimedOut { after_ms: self.shared.options.store_timeout_ms }
    }

    /// The time `at` that was scheduled has come. Returns whether the session is idle now.
    pub(crate) fn tick(&self, at: Ms) -> bool {
        self.change(|change| {
            if at != change.state.scheduled {
                return false;
            }
            change.state.scheduled = Ms::NEVER;
            change.state.session.tick(change.now, &mut change.steps);
            // Timers that are set meanwhile have their turn at the next tick.
            for _ in 0..change.state.timers.len() {
                let Some(reason) = change.state.timers.pop(change.now) else { break };
                change.time_has_come(reason);
                change.perform();
            }
            if change.state.idle_deadline(self) > change.now {
                return false;
            }
            let is_idle = change.is_known_to_be_idle();
            let pause_ms = if is_idle { self.shared.max_pause_ms() } else { FOLLOW_MS };
            change.state.idle_again = change.now + pause_ms;
            is_idle
        })
    }
}

impl Change<'_> {
    fn time_has_come(&mut self, reason: Reason) {
        match reason {
            Reason::Question(number) => {
                let Some(ticket) = self.state.questions.remove(&number) else { return };
                self.cell.shared.store.abandon(&self.cell.key(ticket.nonce), &ticket);
                self.question_answered(&ticket, Outcome::failed(ticket.operation, self.cell.timed_out()));
            }
            Reason::Write(nonce) => self.write_is_due(nonce),
            Reason::Replay(number) => self.take_replay(number, Err(self.cell.timed_out().to_string())),
            Reason::Seek(conn) => self.seek(conn),
            Reason::Comment(conn) => self.comment(conn),
            Reason::Look(nonce) => self.look_or_let_go(nonce),
            Reason::Relay(nonce) => self.relay_is_due(nonce),
            Reason::Inbox => self.look_without_a_hint(),
            Reason::Adoption => self.adoption_is_due(),
            Reason::Drain => self.end_drain(),
        }
    }

    /// Whether no other process knows of a later sign of the client. The hint of such a sign may be lost, so it is
    /// looked for before the session counts as idle (O8).
    fn is_known_to_be_idle(&mut self) -> bool {
        if !self.state.is_watching {
            return true;
        }
        let since = Some(self.state.session.last_contact());
        if std::mem::replace(&mut self.state.looked_since, since) != since {
            self.state.inbox.is_hinted = true;
            let watched: Vec<StreamNonce> = self.state.watched.keys().copied().collect();
            watched.into_iter().for_each(|nonce| self.look_because_of_a_hint(nonce));
            return false;
        }
        !self.state.inbox.is_asking && !self.state.watched.values().any(|watched| watched.asking)
    }

    /// Waits for the store's answer to a question.
    pub(crate) fn wait(&mut self, ticket: Ticket) {
        self.state.timers.set(Reason::Question(ticket.number), self.cell.due_after(self.now));
        self.state.questions.insert(ticket.number, ticket);
    }

    /// Waits for a question no longer. Returns whether it was waited for.
    pub(crate) fn stop_waiting(&mut self, ticket: &Ticket) -> bool {
        self.state.timers.clear(Reason::Question(ticket.number));
        self.state.questions.remove(&ticket.number).is_some()
    }
}

impl State {
    /// When the session has something to do next.
    pub(crate) fn deadline(&self, cell: &Cell) -> Ms {
        self.session.deadline().min(self.timers.next()).min(self.idle_deadline(cell))
    }

    /// When the host is told that the session is idle (I11).
    fn idle_deadline(&self, cell: &Cell) -> Ms {
        // A session that lives elsewhere is not this host's to end.
        if cell.is_elsewhere() || self.session.has_ended() {
            return Ms::NEVER;
        }
        self.session.idle_at(cell.shared.options.max_detached_ms).max(self.idle_again)
    }
}

impl Complete for Cell {
    fn complete(&self, ticket: &Ticket, outcome: Outcome) {
        self.change(|change| match outcome {
            Outcome::Done(result) => change.write_answered(ticket, result.map(|()| Vec::new())),
            Outcome::Held(result) => change.write_answered(ticket, result),
            outcome if change.stop_waiting(ticket) => change.question_answered(ticket, outcome),
            outcome => log_later!(change, DEBUG, [], ?outcome, "the store answered too late"),
        });
    }
}
