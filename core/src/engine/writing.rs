//! What is written. Each append is asked for until the store has answered.
//!
//! The same append a second time changes nothing (rule 2 of stores). So what gets no answer in time is called off and asked for again,
//! unchanged, until the log itself says yes or no: nothing is lost in between, and nothing comes twice.
//! Senders that wait are told after `store_timeout_ms` that their events are not stored yet.
//!
//! A store that makes the event ids is not asked twice: with it, what has no answer in time has failed.

use bytes::Bytes;

use super::cell::{Cell, State};
use super::following::FOLLOW_MS;
use super::lines::log_later;
use super::stats::Counters;
use super::waits::Waited;
use crate::Ms;
use crate::protocol::StreamNonce;
use crate::session::{Step, Stream};
use crate::store::{Answer, Append, Operation, Record, StoreError, Ticket};
use crate::stream::{Chain, Input};

/// Pauses before a store that gave up by itself is asked again, in milliseconds.
const PAUSES_MS: [u64; 6] = [20, 50, 100, 200, 500, 1_000];

/// An append that the store has not answered. A stream has one at a time.
pub(super) struct Writing {
    append: Append,
    since: Ms,
    /// The number of the first try.
    first: u64,
    /// What is waited for: a try, by its number, or the end of a pause.
    wait: u64,
    /// None in a pause.
    ticket: Option<Ticket>,
    pauses: usize,
    /// It may be done: a try has no answer.
    is_unsure: bool,
    /// Its time is over, and the senders that waited were told.
    is_overdue: bool,
}

impl State {
    /// Whether the store takes too long with what is written to a stream.
    pub(super) fn is_overdue(&self, nonce: StreamNonce) -> bool {
        self.writing.get(&nonce).is_some_and(|writing| writing.is_overdue)
    }

    /// The end of a stream that the store has not confirmed.
    pub(super) fn unconfirmed_end(&self, nonce: StreamNonce) -> Option<Bytes> {
        let is_followed = self.followed.contains_key(&nonce);
        self.writing.get(&nonce).filter(|_| !is_followed)?.append.end.clone()
    }
}

impl Cell {
    pub(super) fn write_log(
        &self,
        state: &mut State,
        now: Ms,
        nonce: StreamNonce,
        append: Append,
        more: &mut Vec<Step>,
    ) {
        let ticket = self.ticket(nonce, Operation::Append);
        match self.shared.store.append(now, &self.key(nonce), &append, &ticket) {
            Answer::Now(Ok(())) => self.written(state, now, nonce, append, Ok(()), more),
            answer => {
                let (first, pauses, is_unsure, is_overdue) = (ticket.number, 0, false, false);
                let writing = Writing {
                    append,
                    since: now,
                    first,
                    wait: first,
                    ticket: Some(ticket),
                    pauses,
                    is_unsure,
                    is_overdue,
                };
                state.writing.insert(nonce, writing);
                self.wait_for(state, first, self.due_after(now), Waited::Write(nonce));
                if let Answer::Now(result) = answer {
                    self.answered(state, now, nonce, result, more);
                }
            }
        }
    }

    /// A try has its outcome.
    pub(super) fn answered(
        &self,
        state: &mut State,
        now: Ms,
        nonce: StreamNonce,
        result: Result<(), StoreError>,
        more: &mut Vec<Step>,
    ) {
        let Some(writing) = state.writing.get_mut(&nonce) else { return };
        state.waits.remove(writing.wait);
        writing.is_unsure |= matches!(result, Err(StoreError::TimedOut { .. }));
        let is_end = writing.append.end.is_some();
        let asks_again = match &result {
            Err(StoreError::TimedOut { .. }) => true,
            // Only the log itself can tell what became of a try before.
            Err(StoreError::Failed(_)) => writing.is_unsure || is_end,
            _ => false,
        };
        if !asks_again || self.is_asked_once(state, nonce) {
            if let Some(Writing { append, .. }) = state.writing.remove(&nonce) {
                self.written(state, now, nonce, append, result, more);
            }
            return;
        }
        let Some(writing) = state.writing.get_mut(&nonce) else { return };
        let pause_ms = PAUSES_MS[writing.pauses.min(PAUSES_MS.len() - 1)];
        let overdue = if writing.is_overdue { Ms::NEVER } else { self.due_after(writing.since) };
        (writing.ticket, writing.pauses, writing.wait) = (None, writing.pauses + 1, self.shared.number());
        let wait = writing.wait;
        self.wait_for(state, wait, overdue.min(now + pause_ms), Waited::Pause(nonce));
    }

    /// Whether a try without an answer is the last. An heir looks at the log again, which tells more.
    fn is_asked_once(&self, state: &State, nonce: StreamNonce) -> bool {
        self.shared.store.own_ids().is_some() || state.followed.contains_key(&nonce)
    }

    /// A try takes too long.
    pub(super) fn call_off_write(&self, state: &mut State, now: Ms, nonce: StreamNonce, more: &mut Vec<Step>) {
        let Some(writing) = state.writing.get_mut(&nonce) else { return };
        writing.is_unsure = true;
        if let Some(ticket) = writing.ticket.take() {
            self.shared.store.abandon(&self.key(nonce), &ticket);
        }
        if self.is_asked_once(state, nonce) {
            let error = StoreError::TimedOut { after_ms: self.shared.options.store_timeout_ms };
            return self.answered(state, now, nonce, Err(error), more);
        }
        self.write_again(state, now, nonce, more);
    }

    pub(super) fn write_again(&self, state: &mut State, now: Ms, nonce: StreamNonce, more: &mut Vec<Step>) {
        let Some(writing) = state.writing.get_mut(&nonce) else { return };
        let is_newly_overdue = !writing.is_overdue && self.due_after(writing.since) <= now;
        if is_newly_overdue {
            writing.is_overdue = true;
        }
        let ticket = self.ticket(nonce, Operation::Append);
        writing.wait = ticket.number;
        writing.ticket = Some(ticket.clone());
        let due = self.due_after(if writing.is_overdue { now } else { writing.since });
        let answer = self.shared.store.append(now, &self.key(nonce), &writing.append, &ticket);
        if is_newly_overdue {
            log_later!(self, state, WARN, [stream = nonce.hex()], %stream,
                "the event store takes too long; it is asked again");
            self.tell_overdue(state, nonce);
        }
        match answer {
            Answer::Now(result) => self.answered(state, now, nonce, result, more),
            Answer::Later => self.wait_for(state, ticket.number, due, Waited::Write(nonce)),
        }
    }

    /// The store answers a try that was called off. That it is done is as good as if it was answered in time.
    pub(super) fn answered_late(&self, state: &mut State, now: Ms, ticket: &Ticket) -> bool {
        let Ticket { nonce, number, operation, .. } = *ticket;
        let Some(writing) = state.writing.get_mut(&nonce) else { return false };
        if number < writing.first || operation != Operation::Append {
            return false;
        }
        if let Some(ticket) = writing.ticket.take() {
            self.shared.store.abandon(&self.key(nonce), &ticket);
        }
        let mut steps = Vec::new();
        self.answered(state, now, nonce, Ok(()), &mut steps);
        self.perform(state, now, steps);
        true
    }

    /// It is known what became of an append.
    fn written(
        &self,
        state: &mut State,
        now: Ms,
        nonce: StreamNonce,
        append: Append,
        result: Result<(), StoreError>,
        more: &mut Vec<Step>,
    ) {
        if append.end.is_some() {
            if let Some(followed) = state.followed.get_mut(&nonce) {
                let is_known = matches!(result, Ok(()) | Err(StoreError::Gone));
                followed.due = if is_known { now } else { now + FOLLOW_MS };
            }
            if let Err(error) = result {
                log_later!(self, state, WARN, [stream = nonce.hex()], %stream, %error, "the log was not ended");
            }
            return;
        }
        match result {
            Ok(()) => {
                if !state.errors.is_empty() {
                    state.errors.remove(&nonce);
                }
                if let Some(stream) = state.session.stream_mut(nonce) {
                    stream.chain = Chain(append.chain);
                    Counters::add(&self.shared.counters.events_stored, append.events.len() as u64);
                }
                let _ = state.session.handle(now, nonce, Input::Appended, more);
            }
            // Who took this process for gone may have ended the log, or it is lost: its record tells.
            Err(StoreError::Gone) if self.shared.store.outlives_process() => {
                let ticket = self.ticket(nonce, Operation::Record);
                match self.shared.store.record(&self.key(nonce), &ticket) {
                    Answer::Now(result) => self.refused(state, now, nonce, result, more),
                    Answer::Later => {
                        self.wait_for(state, ticket.number, self.due_after(now), Waited::Refusal(ticket));
                    }
                }
            }
            Err(error) => {
                if append.events.is_empty() {
                    log_later!(self, state, ERROR, [stream = nonce.hex(), error = error.clone()], %stream, %error,
                        "log not created");
                }
                self.append_refused(state, now, nonce, error, more);
            }
        }
    }

    /// It is known of a log that takes no more why that is so.
    pub(super) fn refused(
        &self,
        state: &mut State,
        now: Ms,
        nonce: StreamNonce,
        result: Result<Option<Record>, StoreError>,
        more: &mut Vec<Step>,
    ) {
        match result {
            Ok(Some(record)) if is_ended_elsewhere(&record) => self.end_elsewhere(state, now, nonce, &record, more),
            Ok(_) => self.append_refused(state, now, nonce, StoreError::Gone, more),
            Err(error) => self.append_refused(state, now, nonce, error, more),
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
        let is_due = |stream: &Stream| !stream.machine.is_finished() && stream.machine.unconfirmed() == 0;
        if is_ended_elsewhere(record)
            && !state.writing.contains_key(&nonce)
            && state.session.stream(nonce).is_some_and(is_due)
        {
            self.end_elsewhere(state, now, nonce, record, more);
        }
    }

    fn end_elsewhere(&self, state: &mut State, now: Ms, nonce: StreamNonce, record: &Record, more: &mut Vec<Step>) {
        log_later!(self, state, WARN, [stream = nonce.hex()], %stream,
            "another process took this one for gone and ended the stream");
        state.session.ended_elsewhere(now, nonce, record.tail.clone(), more);
    }
}

/// Whether another process has ended a log with an end of its own.
fn is_ended_elsewhere(record: &Record) -> bool {
    record.finished && record.owner_unseen_ms.is_some()
}
