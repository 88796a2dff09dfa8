//! What is sent, and which senders wait for the store.
//!
//! With a store that answers later, handlers run ahead of it: a notification returns at once while little of its stream
//! is unanswered, and a response always does. The wire waits for the store all the same (I1), and nothing changes in
//! the order (I2). A question waits for its own append: nobody else would be told that it cannot be asked. If the host
//! wrote the store, every sender waits for it.

use crate::engine::lines::log_later;
use crate::engine::sessions::cell::{Cell, State};
use crate::engine::sessions::change::Change;
use crate::engine::sessions::messages::Sender;
use crate::engine::sessions::{OutgoingMessage, Sent};
use crate::engine::shared::Shared;
use crate::engine::stats::Counters;
use crate::engine::{EngineError, OnStoreFailure};
use crate::exchange::AnswerHead;
use crate::protocol::{Incarnation, StreamNonce};
use crate::session::{OutgoingKind, Route, SynthesizedEnd};
use crate::store::StoreError;
use crate::stream::Refused;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Events of a stream that may be unanswered before the sender of a notification waits.
const AHEAD_EVENTS: usize = 128;
/// Bytes of these events.
const AHEAD_BYTES: usize = 256 << 10;
/// Bytes that may be unanswered in one engine. With more, nothing further is taken.
pub(crate) const MAX_UNANSWERED: u64 = 64 << 20;

impl Cell {
    fn drops(&self, is_progress: bool) -> bool {
        is_progress && self.shared.options.on_store_failure == OnStoreFailure::DropProgress
    }

    /// Whether more waits for the store than an engine may hold.
    pub(crate) fn is_store_behind(&self) -> bool {
        self.shared.is_store_behind()
    }

    /// Sets this session's share of what the engine counts.
    pub(crate) fn count(&self, state: &mut State, unanswered: u64, awaited: u64) {
        recount(&self.shared.unanswered, &mut state.unanswered, unanswered);
        recount(&self.shared.awaited, &mut state.awaited, awaited);
    }
}

impl Shared {
    /// See [`Cell::is_store_behind`].
    pub(crate) fn is_store_behind(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed) > MAX_UNANSWERED
    }
}

fn recount(total: &AtomicU64, counted: &mut u64, count: u64) {
    let before = std::mem::replace(counted, count);
    if count > before {
        total.fetch_add(count - before, Ordering::Relaxed);
    } else if count < before {
        total.fetch_sub(before - count, Ordering::Relaxed);
    }
}

impl Change<'_> {
    pub(crate) fn publish(&mut self, message: OutgoingMessage<'_>) -> Result<Sent, EngineError> {
        let OutgoingMessage { kind, id, related, mut payload } = message;
        if self.state.session.has_ended() {
            return Err(EngineError::SessionEnded);
        }
        if kind == OutgoingKind::Response
            && let Some(id) = id.filter(|id| self.state.json.contains_key(id))
        {
            self.answer_json(id, AnswerHead::JSON, payload.to_vec(), None);
            return Ok(Sent::Stored);
        }
        if kind == OutgoingKind::Response
            && let Some(goes_on) = self.state.session.replayed(id, &payload)
        {
            if !goes_on {
                log_later!(
                    self,
                    ERROR,
                    [],
                    "the session ends: adopted here, it was given another revision than its client has"
                );
                self.effects.ends = true;
            }
            return Ok(Sent::Dropped);
        }
        let incarnation = Incarnation(self.state.epoch.number);
        let told = id.filter(|_| kind == OutgoingKind::Request).map(|id| incarnation.rename(id));
        let id = told.as_ref().or(id);
        if kind != OutgoingKind::Response {
            payload = incarnation.outgoing(&payload).unwrap_or(payload);
        }
        let nonce = match self.state.session.route(kind, id, related) {
            Route::Stream(nonce) if self.state.session.stream(nonce).is_some() => nonce,
            Route::Standalone => self.standalone(),
            // A client that gets an answer in JSON gets nothing else.
            Route::Stream(_) | Route::Late => return self.late(kind),
        };
        if let Err(error) = self.check_store(nonce, kind) {
            self.perform();
            return self.not_taken(nonce, kind, error);
        }
        if kind == OutgoingKind::Response
            && self.cell.is_store_behind()
            && let Some(id) = id
            && self.state.session.end_request(self.now, id, SynthesizedEnd::Unstored, &mut self.steps)
        {
            self.perform();
            Counters::add(&self.cell.shared.counters.events_unstored, 1);
            log_later!(self, ERROR, of nonce, [], "a response is not stored: too much waits for the event store");
            return Ok(Sent::Dropped);
        }
        let token = self.state.next_token;
        self.state.next_token += 1;
        let has_room = self.state.session.stream(nonce).is_some_and(|stream| {
            stream.machine.unconfirmed() < AHEAD_EVENTS && stream.machine.unconfirmed_bytes() < AHEAD_BYTES
        });
        // What a host's own store has not stored in time has failed, and the handler has to be there to hear it.
        let is_ahead = self.cell.shared.store.own_ids().is_none() && (has_room || kind == OutgoingKind::Response);
        let published = self.state.session.publish(self.now, nonce, kind, id, payload, token, &mut self.steps);
        self.perform();
        match published {
            Err(Refused::Full) => return self.not_taken(nonce, kind, EngineError::Full),
            Err(Refused::Finished | Refused::NotResumable) => return self.late(kind),
            // A store does its operations in order, so the question is in its log by then.
            Ok(Some((nonce, seq))) => self.cell.shared.store.settle(&self.cell.key(nonce), self.state.epoch, seq),
            Ok(None) => {}
        }
        let is_progress = kind == OutgoingKind::Notification;
        let answer = self.effects.results.iter().position(|(_, done, _)| *done == token);
        let result = answer.map(|at| self.effects.results.swap_remove(at).2);
        let earlier = if is_progress { self.state.failures.remove(&nonce) } else { None };
        match (result, earlier) {
            (Some(Err(_)), _) if self.cell.drops(is_progress) => Ok(Sent::Dropped),
            (Some(Ok(_)), Some(earlier)) => Err(EngineError::Earlier(earlier)),
            (Some(result), _) => result.map_err(EngineError::Store),
            (None, None) if is_ahead && kind != OutgoingKind::Request => Ok(Sent::Ahead),
            (None, earlier) => {
                self.state.senders.insert(token, Sender { earlier, is_progress, is_told: false });
                Ok(Sent::Pending(token))
            }
        }
    }

    pub(crate) fn late(&mut self, kind: OutgoingKind) -> Result<Sent, EngineError> {
        Counters::add(&self.cell.shared.counters.messages_late, 1);
        log_later!(self, DEBUG, [], ?kind, "message dropped: its request has its end, or is answered in JSON");
        if kind == OutgoingKind::Request { Err(EngineError::Finished) } else { Ok(Sent::Dropped) }
    }

    /// Whether a message that is no response can be taken now.
    fn check_store(&mut self, nonce: StreamNonce, kind: OutgoingKind) -> Result<(), EngineError> {
        match kind {
            OutgoingKind::Response => Ok(()),
            _ if self.state.is_overdue(nonce) => Err(EngineError::Store(self.cell.timed_out())),
            _ if self.cell.is_store_behind() => Err(EngineError::Full),
            // The handler would get the error, and would not be there for the client's answer.
            OutgoingKind::Request => {
                self.state.failures.remove(&nonce).map_or(Ok(()), |e| Err(EngineError::Earlier(e)))
            }
            OutgoingKind::Notification => Ok(()),
        }
    }

    fn not_taken(&mut self, nonce: StreamNonce, kind: OutgoingKind, error: EngineError) -> Result<Sent, EngineError> {
        if !self.cell.drops(kind == OutgoingKind::Notification) {
            return Err(error);
        }
        Counters::add(&self.cell.shared.counters.events_unstored, 1);
        log_later!(self, ERROR, of nonce, [], %error,
            "event not stored: no client gets it, and its sender is not told");
        Ok(Sent::Dropped)
    }

    /// Tells senders what became of their messages.
    pub(crate) fn settle_senders(&mut self) {
        for (nonce, token, result) in std::mem::take(&mut self.effects.results) {
            self.settle_sender(nonce, token, result);
        }
        let session = &self.state.session;
        let is_open = !session.has_ended();
        let unanswered = if is_open { session.unconfirmed_bytes() as u64 } else { 0 };
        // For a session that lives elsewhere, its owner counts these.
        let awaited = if is_open && !self.cell.is_elsewhere() { session.awaited() as u64 } else { 0 };
        self.cell.count(self.state, unanswered, awaited);
    }

    fn settle_sender(&mut self, nonce: StreamNonce, token: u64, result: Result<Sent, StoreError>) {
        if token == 0 {
            // No handler has sent it, so none is told.
            return;
        }
        let outcome = match (self.state.senders.remove(&token), result) {
            (Some(Sender { is_told: true, .. }), _) | (None, Ok(_)) => return,
            (None, Err(error)) => {
                if !self.cell.drops(true) && self.state.session.stream(nonce).is_some() {
                    self.state.failures.entry(nonce).or_insert(error);
                }
                return;
            }
            (Some(Sender { is_progress, .. }), Err(_)) if self.cell.drops(is_progress) => Ok(()),
            (Some(Sender { earlier: Some(error), .. }), Ok(_)) => Err(EngineError::Earlier(error)),
            (Some(_), result) => result.map(|_| ()).map_err(EngineError::Store),
        };
        self.state.outcomes.push((token, outcome));
        self.effects.tells_host = true;
    }

    /// Tells the senders of this stream's unstored events that the store takes too long. They wait no longer.
    pub(crate) fn tell_overdue(&mut self, nonce: StreamNonce) {
        let State { session, senders, outcomes, .. } = &mut *self.state;
        let Some(stream) = session.stream(nonce) else { return };
        for event in stream.machine.waiting() {
            let Some(sender) = senders.get_mut(&event.token).filter(|sender| !sender.is_told) else { continue };
            sender.is_told = true;
            let error = EngineError::Store(self.cell.timed_out());
            outcomes.push((event.token, if self.cell.drops(sender.is_progress) { Ok(()) } else { Err(error) }));
        }
        self.effects.tells_host = true;
    }

    /// Tells every sender that waits for the store that the session has ended. What the store answers later is ignored.
    pub(crate) fn release_senders(&mut self) {
        let State { senders, outcomes, .. } = &mut *self.state;
        let waiting = senders.drain().filter(|(_, sender)| !sender.is_told);
        outcomes.extend(waiting.map(|(token, _)| (token, Err(EngineError::SessionEnded))));
        outcomes.sort_unstable_by_key(|(token, _)| *token);
        self.effects.tells_host = true;
    }
}
