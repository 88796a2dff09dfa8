//! How long the store is waited for.
//!
//! What it does not answer in time is called off. A question counts as failed then; what is written is asked for
//! [again](crate::engine::logs::writing).

use std::collections::{BTreeSet, HashMap};

use crate::Ms;
use crate::engine::lines::log_later;
use crate::engine::sessions::cell::{Cell, State};
use crate::engine::sessions::change::Change;
use crate::protocol::StreamNonce;
use crate::store::{Complete, Outcome, StoreError, Ticket};

/// Something that is waited for.
pub(crate) enum Waited {
    /// A question.
    Answer(Ticket),
    /// A try of what is written to a stream.
    Write(StreamNonce),
    /// The pause before the next one.
    Pause(StreamNonce),
    /// A replay of the host's own store, by its number.
    Replay(u64),
}

/// Everything that is waited for, by number and by time.
#[derive(Default)]
pub(crate) struct Waits {
    by_number: HashMap<u64, (Ms, Waited)>,
    due: BTreeSet<(Ms, u64)>,
}

impl Waits {
    fn insert(&mut self, number: u64, due: Ms, what: Waited) {
        self.by_number.insert(number, (due, what));
        if due != Ms::NEVER {
            self.due.insert((due, number));
        }
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<Waited> {
        let (due, what) = self.by_number.remove(&number)?;
        self.due.remove(&(due, number));
        Some(what)
    }

    fn pop_due(&mut self, now: Ms) -> Option<Waited> {
        let (_, number) = *self.due.first().filter(|(due, _)| *due <= now)?;
        self.remove(number)
    }

    pub(crate) fn clear(&mut self) {
        self.by_number.clear();
        self.due.clear();
    }

    /// When the first wait is over.
    pub(crate) fn deadline(&self) -> Ms {
        self.due.first().map_or(Ms::NEVER, |(due, _)| *due)
    }
}

impl Change<'_> {
    pub(crate) fn wait(&mut self, ticket: &Ticket) {
        self.wait_for(ticket.number, self.cell.due_after(self.now), Waited::Answer(ticket.clone()));
    }

    pub(crate) fn wait_for(&mut self, number: u64, due: Ms, what: Waited) {
        self.effects.tells_host |= matches!(what, Waited::Write(_));
        self.state.waits.insert(number, due, what);
    }

    /// Returns what tells the wait from others.
    pub(crate) fn wait_for_replay(&mut self, number: u64) -> u64 {
        let key = self.cell.shared.number();
        self.wait_for(key, self.cell.due_after(self.now), Waited::Replay(number));
        key
    }

    /// Gives up what the store has not answered in time.
    pub(crate) fn give_up(&mut self) {
        while let Some(waited) = self.state.waits.pop_due(self.now) {
            let error = StoreError::TimedOut { after_ms: self.cell.shared.options.store_timeout_ms };
            match waited {
                Waited::Answer(ticket) => {
                    self.cell.shared.store.abandon(&self.cell.key(ticket.nonce), &ticket);
                    let outcome = Outcome::failed(ticket.operation, error);
                    self.completed(&ticket, outcome);
                }
                Waited::Write(nonce) => self.call_off_write(nonce),
                Waited::Pause(nonce) => self.write_again(nonce),
                Waited::Replay(number) => self.take_replay(number, Err(error.to_string())),
            }
            self.perform();
        }
    }
}

impl Cell {
    /// When the store has taken too long for what it was asked at this time.
    pub(crate) fn due_after(&self, asked: Ms) -> Ms {
        match self.shared.options.store_timeout_ms {
            0 => Ms::NEVER,
            timeout_ms => asked + timeout_ms,
        }
    }

    /// The time `at` that was scheduled has come. Returns whether the session is idle now.
    pub(crate) fn tick(&self, at: Ms) -> bool {
        self.change(|change| {
            if at != change.state.scheduled {
                return false;
            }
            change.state.scheduled = Ms::NEVER;
            change.state.session.tick(change.now, &mut change.steps);
            change.give_up();
            change.tick_seeks();
            change.tick_followed();
            let is_idle = change.state.idle_deadline(self) <= change.now;
            if is_idle {
                change.state.idle_again = change.now + self.shared.max_pause_ms();
            }
            is_idle
        })
    }
}

impl State {
    /// When the session has something to do next.
    pub(crate) fn deadline(&self, cell: &Cell) -> Ms {
        let seeks = self.seek_deadline(cell.shared.options.pacing.keep_alive_ms);
        let waits = self.waits.deadline().min(seeks).min(self.follow_deadline());
        self.session.deadline().min(waits).min(self.idle_deadline(cell))
    }

    /// When the host is told that the session is idle (I11).
    fn idle_deadline(&self, cell: &Cell) -> Ms {
        // One that lives elsewhere is not this host's to end.
        if cell.is_adopted() || self.session.has_ended() {
            return Ms::NEVER;
        }
        self.session.idle_at(cell.shared.options.max_detached_ms).max(self.idle_again)
    }
}

impl Complete for Cell {
    fn complete(&self, ticket: &Ticket, outcome: Outcome) {
        let nonce = ticket.nonce;
        self.change(|change| match (change.state.waits.remove(ticket.number), outcome) {
            (Some(Waited::Write(_)), Outcome::Done(result)) => change.answered(nonce, result.map(|()| Vec::new())),
            (Some(Waited::Write(_)), Outcome::Held(result)) => change.answered(nonce, result),
            (Some(_), outcome) => change.completed(ticket, outcome),
            (None, Outcome::Done(Ok(()))) if change.answered_late(ticket, Vec::new()) => {}
            (None, Outcome::Held(Ok(running))) if change.answered_late(ticket, running.clone()) => {}
            (None, outcome) => log_later!(change, DEBUG, [], ?outcome, "the store answered too late"),
        });
    }
}
