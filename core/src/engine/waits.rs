//! How long the store is waited for.
//!
//! What it does not answer in time counts as failed and is abandoned; an answer that comes later finds
//! no wait and is ignored. An append is another matter: the store may have taken it, or take it still.
//! It is never tried again, and when it turns out to be in the log the log goes on behind it.

use super::cell::{Cell, State};
use crate::Ms;
use crate::protocol::StreamNonce;
use crate::store::{Operation, Outcome, StoreError, Ticket};
use crate::stream::{Chain, Input, Seq};

/// Something that the store has still to answer.
pub(super) struct Wait {
    what: Waited,
    due: Ms,
}

enum Waited {
    Operation(Ticket),
    /// A replay of the host's own store, by its number.
    Replay(u64),
}

impl State {
    /// When the longest wait is over. All waits are equally long.
    pub(super) fn wait_deadline(&self) -> Ms {
        self.waits.first_key_value().map_or(Ms::NEVER, |(_, wait)| wait.due)
    }
}

impl Cell {
    pub(super) fn wait(&self, state: &mut State, now: Ms, ticket: &Ticket) {
        let wait = Wait { what: Waited::Operation(ticket.clone()), due: self.wait_due(now) };
        state.waits.insert(ticket.number, wait);
    }

    /// Returns what tells the wait from others.
    pub(super) fn wait_for_replay(&self, state: &mut State, now: Ms, number: u64) -> u64 {
        let key = self.shared.number();
        state.waits.insert(key, Wait { what: Waited::Replay(number), due: self.wait_due(now) });
        key
    }

    fn wait_due(&self, now: Ms) -> Ms {
        match self.shared.options.store_timeout_ms {
            0 => Ms::NEVER,
            timeout_ms => now + timeout_ms,
        }
    }

    /// Gives up what the store has not answered in time.
    pub(super) fn give_up(&self, state: &mut State, now: Ms) {
        while let Some(first) = state.waits.first_entry().filter(|first| first.get().due <= now) {
            let error = StoreError::TimedOut { after_ms: self.shared.options.store_timeout_ms };
            match first.remove().what {
                Waited::Operation(ticket) => self.give_up_operation(state, now, &ticket, error),
                Waited::Replay(number) => {
                    let mut steps = Vec::new();
                    self.take_replay(state, now, number, Err(error.to_string()), &mut steps);
                    self.perform(state, now, steps);
                }
            }
        }
    }

    fn give_up_operation(&self, state: &mut State, now: Ms, ticket: &Ticket, error: StoreError) {
        let Ticket { nonce, operation, .. } = *ticket;
        self.shared.store.abandon(&self.key(nonce), ticket);
        let outcome = match operation {
            Operation::Append => return self.append_lost(state, now, nonce, &error),
            Operation::Open => Outcome::Done(Err(error)),
            Operation::Read(_) => Outcome::Page(Err(error)),
        };
        self.completed(state, now, nonce, operation, outcome);
    }

    fn append_lost(&self, state: &mut State, now: Ms, nonce: StreamNonce, error: &StoreError) {
        let Some(stream) = state.session.stream_mut(nonce) else { return };
        stream.is_unsure = true;
        for _ in 0..stream.machine.appending() {
            state.errors.insert(nonce, error.clone());
            let mut steps = Vec::new();
            let _ = state.session.handle(now, nonce, Input::AppendLost, &mut steps);
            self.perform(state, now, steps);
        }
    }

    /// Where the log ends, when an append that was lost has made it longer than it was known to be.
    pub(super) fn grown_to(&self, state: &mut State, nonce: StreamNonce) -> Option<Seq> {
        let stream = state.session.stream_mut(nonce).filter(|stream| stream.is_unsure)?;
        let known = stream.machine.durable();
        let record = self.shared.store.record(&self.key(nonce)).filter(|record| record.head > known)?;
        stream.chain = Chain(record.chain);
        tracing::warn!(target: "tailrope", session = %self.id, stream = %nonce.hex(), from = known + 1,
            to = record.head, "events that counted as not stored are in the log");
        state.session.move_questions(nonce, known, record.head - known);
        Some(record.head)
    }
}
