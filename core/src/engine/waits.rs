//! How long the store is waited for.
//!
//! What it does not answer in time counts as failed and is abandoned; an answer that comes later finds
//! no wait and is ignored. An append is another matter: the store may have taken it, or take it still.
//! It is never tried again, and when it turns out to be in the log the log goes on behind it. A response
//! that does is the stream's end again, in place of the error that was made up for it.

use super::cell::{Cell, State};
use super::lines::log_later;
use crate::Ms;
use crate::protocol::StreamNonce;
use crate::session::{Step, Stream};
use crate::store::{Answer, Operation, Outcome, Record, StoreError, Ticket};
use crate::stream::{Chain, Input};

/// Something that the store has still to answer.
pub(super) struct Wait {
    what: Waited,
    due: Ms,
}

enum Waited {
    Operation(Ticket),
    /// A look-up of the log that a lost append may have made longer, or that takes no more.
    Growth(Ticket),
    /// A replay of the host's own store, by its number.
    Replay(u64),
}

impl Wait {
    pub(super) fn is_growth(&self) -> bool {
        matches!(self.what, Waited::Growth(_))
    }
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
                Waited::Operation(ticket) => self.give_up_operation(state, now, &ticket, false, error),
                Waited::Growth(ticket) => self.give_up_operation(state, now, &ticket, true, error),
                Waited::Replay(number) => {
                    let mut steps = Vec::new();
                    self.take_replay(state, now, number, Err(error.to_string()), &mut steps);
                    self.perform(state, now, steps);
                }
            }
        }
    }

    fn give_up_operation(&self, state: &mut State, now: Ms, ticket: &Ticket, is_growth: bool, error: StoreError) {
        let Ticket { nonce, operation, .. } = *ticket;
        self.shared.store.abandon(&self.key(nonce), ticket);
        let outcome = match operation {
            Operation::Append => return self.append_lost(state, now, nonce, &error),
            Operation::Open => Outcome::Done(Err(error)),
            Operation::Read(_) => Outcome::Page(Err(error)),
            Operation::Record => Outcome::Record(Err(error)),
            Operation::Session => Outcome::Session(Err(error)),
            Operation::Claim => Outcome::Claimed(Err(error)),
        };
        self.completed(state, now, ticket, is_growth, outcome);
    }

    /// What was sent to the store and got no answer may be in the log: it counts as failed and is not sent again.
    pub(super) fn append_lost(&self, state: &mut State, now: Ms, nonce: StreamNonce, error: &StoreError) {
        let Some(stream) = state.session.stream_mut(nonce) else { return };
        stream.note_lost();
        for _ in 0..stream.machine.appending() {
            state.errors.insert(nonce, error.clone());
            let mut steps = Vec::new();
            let _ = state.session.handle(now, nonce, Input::AppendLost, &mut steps);
            self.perform(state, now, steps);
        }
    }

    /// An append was refused. One before it that was lost may have made the log longer than it was known to
    /// be, or another process may have ended it: the store is asked where it ends. The events that it
    /// refused wait for that.
    pub(super) fn ask_growth(
        &self,
        state: &mut State,
        now: Ms,
        nonce: StreamNonce,
        refusal: StoreError,
        more: &mut Vec<Step>,
    ) {
        state.errors.insert(nonce, refusal);
        let ticket = self.ticket(nonce, Operation::Record);
        match self.shared.store.record(&self.key(nonce), &ticket) {
            Answer::Now(result) => self.grown(state, now, nonce, result, more),
            Answer::Later => {
                let wait = Wait { what: Waited::Growth(ticket.clone()), due: self.wait_due(now) };
                state.waits.insert(ticket.number, wait);
            }
        }
    }

    pub(super) fn grown(
        &self,
        state: &mut State,
        now: Ms,
        nonce: StreamNonce,
        result: Result<Option<Record>, StoreError>,
        more: &mut Vec<Step>,
    ) {
        let refusal = state.errors.remove(&nonce).unwrap_or(StoreError::OutOfOrder);
        let Some(stream) = state.session.stream_mut(nonce) else { return };
        match result {
            Ok(Some(record)) if record.head > stream.machine.durable() => self.grow(state, now, nonce, &record, more),
            Ok(Some(record)) if is_ended_elsewhere(&record) => {
                for _ in 0..stream.machine.appending() {
                    let _ = state.session.handle(now, nonce, Input::AppendLost, more);
                }
                state.errors.insert(nonce, refusal);
                self.take_end(state, now, nonce, &record, more);
            }
            Ok(_) => self.append_refused(state, now, nonce, refusal, more),
            Err(error) => {
                state.errors.insert(nonce, error);
                let _ = state.session.handle(now, nonce, Input::AppendFailed, more);
            }
        }
    }

    /// A stream that is written here may have been ended by a process that took this one for gone: its
    /// readers get that end, as those elsewhere do (I13).
    ///
    /// What the store has not answered comes first. It is refused, and then this is looked at again.
    pub(super) fn take_end(
        &self,
        state: &mut State,
        now: Ms,
        nonce: StreamNonce,
        record: &Record,
        more: &mut Vec<Step>,
    ) {
        let is_due = |stream: &Stream| !stream.machine.is_ending() && stream.machine.unconfirmed() == 0;
        if is_ended_elsewhere(record) && state.session.stream(nonce).is_some_and(is_due) {
            log_later!(self, state, WARN, [stream = nonce.hex()], %stream,
                "another process took this one for gone and ended the stream");
            state.session.ended_elsewhere(now, nonce, record.tail.clone(), more);
        }
    }

    /// A look at the log may show what an append that was lost has made of it.
    pub(super) fn catch_up_with_lost(
        &self,
        state: &mut State,
        now: Ms,
        nonce: StreamNonce,
        record: &Record,
        more: &mut Vec<Step>,
    ) {
        let is_longer = state.session.stream(nonce).is_some_and(|stream| {
            stream.is_unsure && stream.machine.appending() == 0 && record.head > stream.machine.durable()
        });
        if is_longer {
            self.grow(state, now, nonce, record, more);
        }
    }

    fn grow(&self, state: &mut State, now: Ms, nonce: StreamNonce, record: &Record, more: &mut Vec<Step>) {
        let Some(stream) = state.session.stream_mut(nonce) else { return };
        let known = stream.machine.durable();
        stream.chain = Chain(record.chain);
        log_later!(self, state, WARN, [stream = nonce.hex(), head = record.head], %stream, from = known + 1, to = head,
            "events that counted as not stored are in the log");
        state.session.grown(now, nonce, (known, record.head), more);
    }
}

/// Whether another process has ended a log with an end of its own.
fn is_ended_elsewhere(record: &Record) -> bool {
    record.finished && record.owner_unseen_ms.is_some()
}
