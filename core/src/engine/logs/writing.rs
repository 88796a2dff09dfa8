//! What is written. Each append is asked for until the store has answered.
//!
//! The same append a second time changes nothing (rule 2 of stores). So an append that gets no answer in time is called
//! off and asked for again, unchanged, until the log says yes or no: nothing is lost in between, and nothing comes
//! twice. Senders that wait are told after `store_timeout_ms` that their events are not stored yet. A store that makes
//! the event ids is not asked twice: with it, an append that has no answer in time has failed.

use bytes::Bytes;

use crate::Ms;
use crate::engine::lines::log_later;
use crate::engine::logs::log::{Write, Writing, Written};
use crate::engine::sessions::cell::{Cell, SESSION, State};
use crate::engine::sessions::change::Change;
use crate::engine::sessions::timers::Reason;
use crate::engine::stats::Counters;
use crate::protocol::StreamNonce;
use crate::session::Step;
use crate::store::{Answer, Append, Epoch, Operation, StoreError, Ticket};
use crate::stream::{Chain, Input, Output, Page};

/// Pauses before a store that has given up by itself is asked again, in milliseconds.
const PAUSES_MS: [u64; 6] = [20, 50, 100, 200, 500, 1_000];

impl State {
    /// Whether the store takes too long with what is written to a stream.
    pub(crate) fn is_overdue(&self, nonce: StreamNonce) -> bool {
        self.writing.get(&nonce).is_some_and(|writing| writing.is_overdue)
    }

    /// The store may have been set back. So it is asked what it has of the session: now, and again when it has answered
    /// what it was asked before.
    pub(crate) fn doubt_store(&mut self) {
        self.wants_stock = true;
        self.writing.values_mut().for_each(|writing| writing.is_suspect = true);
    }

    /// The epoch with which the session is being written.
    pub(crate) fn asked_epoch(&self) -> Option<Epoch> {
        self.writing.get(&SESSION).map(|writing| writing.epoch)
    }

    /// The end of a stream that the store has not confirmed.
    pub(crate) fn unconfirmed_end(&self, nonce: StreamNonce) -> Option<Bytes> {
        self.writing.get(&nonce)?.write.end().cloned()
    }
}

impl Cell {
    fn ask_write(&self, now: Ms, nonce: StreamNonce, epoch: Epoch, write: &Write, ticket: &Ticket) -> Answer<Written> {
        match write {
            Write::Hold(hold) | Write::Stock(hold, _) => self.shared.store.hold(&self.name, hold, ticket),
            Write::Append(append) | Write::Again(append, _) | Write::End(append) => {
                match self.shared.store.append(now, &self.key(nonce), epoch, append, ticket) {
                    Answer::Now(result) => Answer::Now(result.map(|()| Vec::new())),
                    Answer::Later => Answer::Later,
                }
            }
        }
    }

    fn write_ticket(&self, nonce: StreamNonce) -> Ticket {
        self.ticket(nonce, if nonce == SESSION { Operation::Hold } else { Operation::Append })
    }

    /// Whether a try without an answer is the last one. An heir does not try again: it looks at the log, which tells
    /// more.
    fn is_asked_once(&self) -> bool {
        self.shared.store.own_ids().is_some() || self.is_elsewhere()
    }
}

impl Change<'_> {
    pub(crate) fn put(&mut self, nonce: StreamNonce, epoch: Epoch, write: Write) {
        if let Some(Writing { write: Write::Again(_, next), .. }) = self.state.writing.get_mut(&nonce) {
            *next = Some(Box::new(write));
            return;
        }
        if nonce != SESSION && !self.cell.is_elsewhere() {
            self.begin_session();
        }
        let ticket = self.cell.write_ticket(nonce);
        match self.cell.ask_write(self.now, nonce, epoch, &write, &ticket) {
            Answer::Now(Ok(written)) => self.written(nonce, (epoch, write), Ok(written)),
            answer => {
                let (since, first) = (self.now, ticket.number);
                let (pauses, is_unsure, is_overdue, is_suspect) = (0, false, false, false);
                let ticket = Some(ticket);
                let writing = Writing { write, epoch, since, first, ticket, pauses, is_unsure, is_overdue, is_suspect };
                self.state.writing.insert(nonce, writing);
                self.tried(nonce, answer, self.cell.due_after(self.now));
            }
        }
    }

    /// The store was asked, and has answered or will answer.
    fn tried(&mut self, nonce: StreamNonce, answer: Answer<Written>, due: Ms) {
        match answer {
            Answer::Now(result) => self.answered(nonce, result),
            Answer::Later => {
                self.state.timers.set(Reason::Write(nonce), due);
                self.effects.tells_host = true;
            }
        }
    }

    /// The store answers late. If a try that was called off is done all the same, that is as good as an answer in time.
    pub(crate) fn write_answered(&mut self, ticket: &Ticket, result: Result<Written, StoreError>) {
        let Ticket { nonce, number, .. } = *ticket;
        let writing = self.state.writing.get_mut(&nonce).filter(|writing| writing.first <= number);
        let is_awaited = |writing: &Writing| writing.ticket.as_ref().is_some_and(|ticket| ticket.number == number);
        match writing {
            Some(writing) if is_awaited(writing) => self.answered(nonce, result),
            Some(writing) if result.is_ok() => {
                if let Some(ticket) = writing.ticket.take() {
                    self.cell.shared.store.abandon(&self.cell.key(nonce), &ticket);
                }
                self.answered(nonce, result);
            }
            _ => log_later!(self, DEBUG, [], ?result, "the store answered too late"),
        }
    }

    /// A try has its outcome.
    fn answered(&mut self, nonce: StreamNonce, result: Result<Written, StoreError>) {
        let is_beginning = self.state.writing.contains_key(&SESSION);
        let may_be_forgotten = self.may_be_forgotten();
        let Some(writing) = self.state.writing.get_mut(&nonce) else { return };
        self.state.timers.clear(Reason::Write(nonce));
        writing.is_unsure |= matches!(result, Err(StoreError::TimedOut { .. }));
        let asks_again = match (&result, &writing.write) {
            (Err(StoreError::TimedOut { .. }), _) => true,
            // Only the log itself can tell what became of an earlier try.
            (Err(StoreError::Failed(_)), Write::Append(_)) => writing.is_unsure,
            (Err(StoreError::Failed(_)), _) => true,
            (Err(StoreError::Fenced), _) if may_be_forgotten && nonce != SESSION => {
                self.state.wants_stock = true;
                true
            }
            // The store has not taken the session yet.
            (Err(StoreError::Gone), _) => is_beginning && nonce != SESSION,
            _ => false,
        };
        if !asks_again || self.cell.is_asked_once() {
            if let Some(Writing { write, epoch, is_suspect, .. }) = self.state.writing.remove(&nonce) {
                self.state.wants_stock |= is_suspect;
                self.written(nonce, (epoch, write), result);
            }
            return;
        }
        let pause_ms = PAUSES_MS[writing.pauses.min(PAUSES_MS.len() - 1)];
        let overdue = if writing.is_overdue { Ms::NEVER } else { self.cell.due_after(writing.since) };
        (writing.ticket, writing.pauses) = (None, writing.pauses + 1);
        self.state.timers.set(Reason::Write(nonce), overdue.min(self.now + pause_ms));
    }

    /// A try takes too long, or the pause after one is over.
    pub(crate) fn write_is_due(&mut self, nonce: StreamNonce) {
        let Some(writing) = self.state.writing.get_mut(&nonce) else { return };
        if let Some(ticket) = writing.ticket.take() {
            writing.is_unsure = true;
            self.cell.shared.store.abandon(&self.cell.key(nonce), &ticket);
            if self.cell.is_asked_once() {
                return self.answered(nonce, Err(self.cell.timed_out()));
            }
        }
        self.write_again(nonce);
    }

    fn write_again(&mut self, nonce: StreamNonce) {
        let Some(writing) = self.state.writing.get_mut(&nonce) else { return };
        let is_newly_overdue = !writing.is_overdue && self.cell.due_after(writing.since) <= self.now;
        if is_newly_overdue {
            writing.is_overdue = true;
        }
        let ticket = self.cell.write_ticket(nonce);
        writing.ticket = Some(ticket.clone());
        let due = self.cell.due_after(if writing.is_overdue { self.now } else { writing.since });
        let answer = self.cell.ask_write(self.now, nonce, writing.epoch, &writing.write, &ticket);
        if is_newly_overdue {
            log_later!(self, WARN, of nonce, [], "the event store takes too long; it is asked again");
            self.tell_overdue(nonce);
        }
        self.tried(nonce, answer, due);
    }

    /// Takes what became of a write.
    fn written(&mut self, nonce: StreamNonce, (epoch, write): (Epoch, Write), result: Result<Written, StoreError>) {
        if matches!(result, Err(StoreError::Fenced)) && !self.cell.is_elsewhere() {
            let is_certain = matches!(write, Write::Stock(..)) || !self.may_be_forgotten();
            self.state.is_fenced |= is_certain;
            self.state.wants_stock |= !is_certain;
            return;
        }
        if nonce != SESSION {
            self.effects.written.push(nonce);
        }
        match write {
            Write::Hold(_) if self.cell.is_elsewhere() => self.inherited(epoch, result),
            Write::Hold(_) => {
                if let Err(error) = result {
                    log_later!(self, ERROR, [], %error, "the event store does not keep the session");
                }
            }
            Write::Stock(_, running) => self.stock_taken(running, result),
            Write::End(append) => match result {
                Ok(_) => self.cell.keep(self.now, nonce, append),
                Err(StoreError::RolledBack | StoreError::Gone)
                    if self.append_again(nonce, Some(Write::End(append.clone()))) => {}
                Err(error) => {
                    log_later!(self, WARN, of nonce, [], %error, "the log was not ended");
                }
            },
            Write::Append(append) => self.appended(nonce, append, result.map(|_| ())),
            Write::Again(append, next) => match (result, next.map(|next| *next)) {
                (Err(error), Some(Write::Append(next))) => self.appended(nonce, next, Err(error)),
                (result, next) => {
                    if let Err(error) = &result {
                        self.log_lost(nonce, error);
                    }
                    match next {
                        // If `next` is refused, it is not asked for once more.
                        Some(next) => self.put(nonce, epoch, next),
                        None if result.is_ok() => self.cell.keep(self.now, nonce, append),
                        None => {}
                    }
                }
            },
        }
    }

    fn appended(&mut self, nonce: StreamNonce, append: Append, result: Result<(), StoreError>) {
        match result {
            Ok(()) => {
                if !self.state.errors.is_empty() {
                    self.state.errors.remove(&nonce);
                }
                if let Some(stream) = self.state.session.stream_mut(nonce) {
                    stream.chain = Chain(append.chain);
                    Counters::add(&self.cell.shared.counters.events_stored, append.events.len() as u64);
                }
                let before = self.steps.len();
                self.input(nonce, Input::Appended);
                self.pass_on(nonce, &append, before);
                self.cell.keep(self.now, nonce, append);
            }
            Err(StoreError::RolledBack | StoreError::Gone)
                if self.append_again(nonce, Some(Write::Append(append.clone()))) => {}
            Err(error) => {
                if append.events.is_empty() {
                    let what = if append.first == 1 { "log not created" } else { "reconnection delay not stored" };
                    log_later!(self, ERROR, of nonce, [error = error.clone()], %error,
                        "{what}");
                }
                self.append_refused(nonce, error);
            }
        }
    }

    /// What was just stored need not be read back for a reader that waited for it, if it fits in a page. The steps from
    /// `before` on show whether a reader waited.
    fn pass_on(&mut self, nonce: StreamNonce, append: &Append, before: usize) {
        let State { session, conns, .. } = &mut *self.state;
        let Some(machine) = session.stream(nonce).map(|stream| &stream.machine) else { return };
        let woken = |step: &Step| match step {
            (of, Output::Wake { conn }) if *of == nonce => Some(*conn),
            _ => None,
        };
        // A store that makes the ids has frames of its own.
        let is_next = machine.reads_after() + 1 == append.first && self.cell.shared.store.own_ids().is_none();
        let reader =
            self.steps[before..].iter().find_map(woken).filter(|conn| is_next && machine.connection() == Some(*conn));
        let Some(conn) = reader.and_then(|conn| conns.get_mut(&conn)) else { return };
        let has_room = append.events.iter().map(|event| event.frame.len()).sum::<usize>() <= conn.page_bytes;
        if let Some(reading) = conn.reading().filter(|_| has_room) {
            let (events, tag_at) = (append.events.clone(), Some(Chain(append.chain_before).tag()));
            reading.page = Some((append.first - 1, Page { events, head: append.last(), low: append.first, tag_at }));
        }
    }
}
