//! How long the store is waited for.
//!
//! What it does not answer in time is called off. A question counts as failed then; what is written is asked for
//! [again](crate::engine::logs::writing).

use std::collections::{BTreeSet, HashMap};

use crate::Ms;
use crate::engine::sessions::cell::{Cell, State};
use crate::protocol::StreamNonce;
use crate::store::{Outcome, StoreError, Ticket};

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

impl Cell {
    pub(crate) fn wait(&self, state: &mut State, now: Ms, ticket: &Ticket) {
        self.wait_for(state, ticket.number, self.due_after(now), Waited::Answer(ticket.clone()));
    }

    pub(crate) fn wait_for(&self, state: &mut State, number: u64, due: Ms, what: Waited) {
        state.asked_later |= matches!(what, Waited::Write(_));
        state.waits.insert(number, due, what);
    }

    /// Returns what tells the wait from others.
    pub(crate) fn wait_for_replay(&self, state: &mut State, now: Ms, number: u64) -> u64 {
        let key = self.shared.number();
        self.wait_for(state, key, self.due_after(now), Waited::Replay(number));
        key
    }

    /// When the store has taken too long for what it was asked at this time.
    pub(crate) fn due_after(&self, asked: Ms) -> Ms {
        match self.shared.options.store_timeout_ms {
            0 => Ms::NEVER,
            timeout_ms => asked + timeout_ms,
        }
    }

    /// Gives up what the store has not answered in time.
    pub(crate) fn give_up(&self, state: &mut State, now: Ms) {
        while let Some(waited) = state.waits.pop_due(now) {
            let error = StoreError::TimedOut { after_ms: self.shared.options.store_timeout_ms };
            let mut steps = Vec::new();
            match waited {
                Waited::Answer(ticket) => {
                    self.shared.store.abandon(&self.key(ticket.nonce), &ticket);
                    let outcome = Outcome::failed(ticket.operation, error);
                    self.completed(state, now, &ticket, outcome);
                }
                Waited::Write(nonce) => self.call_off_write(state, now, nonce, &mut steps),
                Waited::Pause(nonce) => self.write_again(state, now, nonce, &mut steps),
                Waited::Replay(number) => self.take_replay(state, now, number, Err(error.to_string()), &mut steps),
            }
            self.perform(state, now, steps);
        }
    }
}
