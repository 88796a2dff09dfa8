//! Requests whose session another process has: they are relayed to it through the session's inbox.
//!
//! ```text
//!   posting ──stored, the owner lives──▶ posted ──the log shows that it has begun──▶ gone
//!      │                                    │
//!      │ the owner is gone, or              │ `owner_lost_ms` are over
//!      │ `owner_lost_ms` are over           ▼
//!      └──────────────────────────────▶ withdrawing ──▶ withdrawn: an error; begun: go on
//! ```
//!
//! The request is posted together with the log of its answer. That log is followed like the log of any stream of
//! another process. The store lets either the taking or the withdrawing of a message win, so an error is never sent for
//! a call that runs. A relay goes on when its client is gone: a lost connection cancels nothing (I12).

mod withdrawing;

use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::engine::connections::conn::{Conn, PAGE_BYTES, Position};
use crate::engine::connections::relays::{Relay, Stage, What};
use crate::engine::connections::{Connection, Wake};
use crate::engine::lines::log_later;
use crate::engine::logs::reading::PAGE_EVENTS;
use crate::engine::records::calls;
use crate::engine::sessions::SessionHandle;
use crate::engine::sessions::change::Change;
use crate::engine::sessions::timers::Reason;
use crate::exchange::{Action, Admission, AnswerHead, Join, Relayed};
use crate::protocol::{NotRelayed, Origin, Refusal, RequestId, StreamNonce};
use crate::session::{About, TraceParent};
use crate::store::{Answer, Attach, Attached, LogPage, Message, Operation, ReadLimit, StoreError, Ticket};
use crate::stream::{Chain, ConnectionId, Seq};
use crate::sync::Arc;

/// Pause before a store that could not take a message is asked again.
const POST_AGAIN_MS: u64 = 250;
/// Pause between two looks at whether a session that is to end is gone.
const LOOK_MS: u64 = 250;

impl SessionHandle {
    /// Whether another process has the session. Then this handle serves readers, and [relays](Self::relay) everything
    /// else that comes for the session.
    pub fn is_elsewhere(&self) -> bool {
        self.cell.is_elsewhere()
    }

    /// Relays an admitted request that is not a GET to the process that has the session. The connection carries the
    /// answer, whatever was asked: a call is answered with its stream, messages with 202 once the owner's inbox has
    /// them, a DELETE with 200 once the session is gone. If the request does not get there, the
    /// [head](crate::engine::Poll::head) of the answer refuses it, with 404 if the session has no owner, and with 503
    /// otherwise.
    ///
    /// # Errors
    /// 404 when the session has ended; 503 when it is not another process's.
    pub fn relay(
        &self,
        admission: &Admission,
        relayed: Relayed,
        wake: Arc<dyn Wake>,
        key: u64,
    ) -> Result<Connection, Refusal> {
        self.relay_any(admission, relayed, |_| None, (wake, key))
    }

    /// As [`relay`](Self::relay), but a call is answered with one JSON body when all its requests have their answers.
    /// Nobody can come back for it.
    ///
    /// # Errors
    /// As [`relay`](Self::relay).
    pub fn relay_json(
        &self,
        admission: &Admission,
        relayed: Relayed,
        wake: Arc<dyn Wake>,
        key: u64,
    ) -> Result<Connection, Refusal> {
        let joins = |requests: &[RequestId]| (!requests.is_empty()).then(|| Join::new(requests));
        self.relay_any(admission, relayed, joins, (wake, key))
    }

    fn relay_any(
        &self,
        admission: &Admission,
        relayed: Relayed,
        joins: impl FnOnce(&[RequestId]) -> Option<Join>,
        (wake, key): (Arc<dyn Wake>, u64),
    ) -> Result<Connection, Refusal> {
        let cell = &self.cell;
        cell.shared.warn_dropped(&relayed);
        let connection = cell.open(|change| {
            let refusal = cell.dialect.wording.not_relayed(NotRelayed::NotStored);
            if !cell.is_elsewhere() {
                // The session is here by now.
                return Err(refusal);
            }
            let requests = admission.requests().into_owned();
            let what = match admission.action() {
                Action::Call => What::Call,
                Action::Delete => What::Delete,
                Action::Message | Action::Listen | Action::Resume => What::Message,
            };
            let nonce = cell.shared.nonce();
            let (gathers, origin) = (joins(&requests), Origin::of_requests(&requests));
            let conn = change.connect(Conn { gathers, ..Conn::new(nonce, origin, wake, key) }, None);
            let relayed = relayed.from_principal(change.state.identity().as_deref());
            let traced = relayed.headers().find(|(name, _)| *name == "traceparent");
            let about = About { requests, trace: traced.and_then(|(_, text)| TraceParent::parse(text)) };
            let message = Message { about: about.encode(), body: relayed.encode() };
            let calls = calls(admission.envelopes(), &about.requests);
            let (message, due) = (Some(message), change.now + cell.shared.options.owner_lost_ms);
            let (stage, is_late, is_unsure) = (Stage::PostAgain, false, false);
            let pace = cell.shared.options.paces.of_call(admission.envelopes());
            let paced = pace.map(|call| call.pace.paced()).unwrap_or_default();
            let relay = Relay { conn, what, calls, paced, message, is_unsure, due, is_late, stage, refusal };
            change.state.relays.by_stream.insert(nonce, relay);
            change.post(nonce);
            Ok(conn)
        })?;
        cell.come_back();
        Ok(connection)
    }
}

impl Change<'_> {
    /// Asks the store to take a message, and what has become of its log.
    fn post(&mut self, nonce: StreamNonce) {
        let principal = self.state.identity();
        let Some(relay) = self.state.relays.by_stream.get_mut(&nonce) else { return };
        let events = if relay.what == What::Call { PAGE_EVENTS } else { 0 };
        let attach = Attach {
            stream: Some(nonce),
            principal,
            tag: Some(Chain::start(&nonce.0).tag()),
            // A reader that counts gets hints of what becomes of the log.
            counts: relay.what != What::Message,
            limit: ReadLimit { up_to: Seq::MAX, events, bytes: PAGE_BYTES },
            message: relay.message.clone(),
            ..Attach::default()
        };
        let ticket = self.cell.ticket(nonce, Operation::Attach(relay.conn));
        relay.stage = Stage::Posting(ticket.clone());
        self.state.timers.set(Reason::Relay(nonce), relay.due);
        match self.cell.shared.store.attach(&self.cell.name, &attach, &ticket) {
            Answer::Now(result) => self.posted(nonce, result),
            Answer::Later => self.wait(ticket),
        }
    }

    /// Tells the owner now and then that its client is connected here, because nothing else tells it. The sign is a
    /// message of no bytes (O8).
    pub(crate) fn sign_for_client(&mut self) {
        let again = self.now + self.cell.shared.sign_ms();
        if self.now < *self.state.sign_at.get_or_insert(again) {
            return;
        }
        self.state.sign_at = Some(again);
        let nonce = self.cell.shared.nonce();
        let attach = Attach {
            stream: Some(nonce),
            principal: self.state.identity(),
            message: Some(Message { about: RequestId::encode_all(&[]).into(), body: Bytes::new() }),
            ..Attach::default()
        };
        let ticket = self.cell.ticket_of_nobody(nonce, Operation::Attach(0));
        let _ = self.cell.shared.store.attach(&self.cell.name, &attach, &ticket);
    }

    /// The store has taken a message, or could not.
    pub(crate) fn posted(&mut self, nonce: StreamNonce, result: Result<Attached, StoreError>) {
        let wording = self.cell.dialect.wording;
        let is_unsure = self.state.relays.by_stream.get(&nonce).is_some_and(|relay| relay.is_unsure);
        let attached = match result {
            Ok(attached) => attached,
            // What was asked before may still come to the store, and then the message has come.
            Err(error @ (StoreError::InboxFull { .. } | StoreError::Full { .. })) if !is_unsure => {
                log_later!(self, WARN, [], %error, "a request is not relayed");
                return self.not_relayed(nonce, &wording.not_relayed(NotRelayed::InboxFull));
            }
            Err(StoreError::Gone) => return self.not_relayed(nonce, &wording.session_ended()),
            Err(error) => {
                // The store may have the message all the same, so the client is told nothing yet.
                let has_no_answer = matches!(error, StoreError::TimedOut { .. });
                log_later!(self, WARN, [], %error, "a request is not relayed yet");
                let Some(relay) = self.state.relays.by_stream.get_mut(&nonce) else { return };
                relay.is_unsure |= has_no_answer;
                relay.stage = Stage::PostAgain;
                let again = relay.due.min(self.now + POST_AGAIN_MS);
                return self.state.timers.set(Reason::Relay(nonce), again);
            }
        };
        let Some(log) = attached.log.as_ref().filter(|_| attached.session.is_some()) else {
            if attached.is_foreign {
                log_later!(self, WARN, [], "the session of a request that is relayed is another user's");
            }
            return self.not_relayed(nonce, &wording.session_unknown());
        };
        let LogPage { page, is_finished, owner, .. } = &log.page;
        let has_begun = page.head > 0 || *is_finished;
        let is_orphaned = !has_begun && self.cell.is_gone(*owner);
        let (may_adopt, is_pending) = (self.may_adopt(), self.state.adoption.is_pending());
        // A client whose session may yet be adopted is not sent away for good.
        let is_over = is_orphaned && !self.state.adoption.is_offered();
        // No owner means that the owner is in this engine. The store gives hints only of messages that came to another
        // process.
        self.effects.tells_owner |= owner.is_none();
        self.saw_owner(*owner);
        let Some(relay) = self.state.relays.by_stream.get_mut(&nonce) else { return };
        (relay.message, relay.stage) = (None, Stage::Posted);
        relay.refusal = if is_over { wording.session_ended() } else { wording.not_relayed(NotRelayed::NotBegun) };
        if is_orphaned && !may_adopt {
            return self.withdraw_relay(nonce);
        }
        if is_orphaned || is_pending {
            relay.stage = Stage::Orphaned;
            self.look_for_end_again(nonce);
            return self.inherit();
        }
        self.has_owner(nonce, has_begun, Some(attached));
    }

    /// The store has a message whose session has an owner. `attached` is what the store told of the message's log.
    fn has_owner(&mut self, nonce: StreamNonce, has_begun: bool, attached: Option<Attached>) {
        let Some(relay) = self.state.relays.by_stream.get_mut(&nonce) else { return };
        relay.stage = Stage::Posted;
        let conn = relay.conn;
        match relay.what {
            What::Message => {
                self.is_relayed(nonce);
                self.answer_relayed(conn, AnswerHead::accepted(self.cell.dialect));
            }
            What::Delete => {
                self.state.timers.set(Reason::Relay(nonce), relay.due.min(self.now + LOOK_MS));
                self.watch(nonce);
            }
            What::Call => {
                self.state.timers.set(Reason::Relay(nonce), relay.due);
                if has_begun {
                    self.is_relayed(nonce);
                }
                let position = Position { fresh: true, ..Position::start(nonce) };
                match attached.filter(|_| self.state.conns.contains_key(&conn)) {
                    Some(attached) => self.begin_found(conn, position, attached),
                    None => self.resume_log(conn, position),
                }
            }
        }
    }

    /// Forgets a message for which nothing is left to do.
    fn is_relayed(&mut self, nonce: StreamNonce) -> Option<Relay> {
        self.state.timers.clear(Reason::Relay(nonce));
        if self.state.relays.is_delete(nonce) {
            self.state.watched.remove(&nonce);
        }
        self.state.relays.remove(nonce)
    }

    /// Ends a relay whose message does not begin, with this refusal.
    fn not_relayed(&mut self, nonce: StreamNonce, refusal: &Refusal) {
        if let Some(relay) = self.is_relayed(nonce) {
            self.refuse_relayed(relay.conn, refusal);
            self.note_refused(relay.calls, refusal);
        }
    }

    /// Refuses the request of a client that was sent nothing.
    fn refuse_relayed(&mut self, conn: ConnectionId, refusal: &Refusal) {
        let gathers = self.state.conns.get(&conn).is_some_and(|out| out.gathers.is_some() && out.end().is_none());
        if gathers || self.is_unanswered(conn) {
            self.refuse_gathering(conn, refusal);
        }
    }

    fn answer_relayed(&mut self, conn: ConnectionId, head: AnswerHead) {
        if self.is_unanswered(conn) {
            self.finish(conn, head, Vec::new());
        }
    }

    /// Whether a connection is there, and was sent nothing.
    fn is_unanswered(&self, conn: ConnectionId) -> bool {
        self.state.conns.get(&conn).is_some_and(|out| out.head.is_none())
    }

    /// Takes the result of a look at the log of a message that waits for an owner, or of a DELETE.
    pub(crate) fn looked_at_relay(&mut self, ticket: &Ticket, result: Result<LogPage, StoreError>) {
        let Ticket { nonce, number, .. } = *ticket;
        self.note_readers(nonce, number, None);
        if !self.state.relays.waiting().contains(&nonce) {
            return;
        }
        let (is_orphaned, may_adopt) = (self.state.relays.is_orphaned(nonce), self.may_adopt());
        if let Ok(page) = &result {
            self.saw_owner(page.owner);
        }
        let Some(relay) = self.state.relays.by_stream.get_mut(&nonce) else { return };
        match result {
            Ok(LogPage { is_finished: false, owner, .. }) if may_adopt && self.cell.is_gone(owner) => {
                self.look_for_end_again(nonce);
                self.inherit();
            }
            // This process has the session, but its host has yet to go on with it.
            Ok(LogPage { is_finished: false, owner: None, .. }) if is_orphaned => self.look_for_end_again(nonce),
            Ok(LogPage { page, is_finished, .. }) if is_orphaned => {
                self.has_owner(nonce, page.head > 0 || is_finished, None);
            }
            Err(StoreError::Gone) if is_orphaned && relay.what != What::Delete => self.has_owner(nonce, true, None),
            // The log goes together with its session, but the store may also have lost it.
            Err(StoreError::Gone) => self.look_for_session(nonce),
            // The owner does not take the message.
            Ok(LogPage { is_finished: true, .. }) => {
                let refusal = relay.refusal.clone();
                self.not_relayed(nonce, &refusal);
            }
            _ => self.look_for_end_again(nonce),
        }
    }

    fn look_for_end_again(&mut self, nonce: StreamNonce) {
        let Some(relay) = self.state.relays.by_stream.get_mut(&nonce) else { return };
        if matches!(relay.stage, Stage::Sought) {
            relay.stage = Stage::Posted;
        }
        self.state.timers.set(Reason::Relay(nonce), relay.due.min(self.now + LOOK_MS));
    }

    /// Asks the store whether a session that is to end is still there.
    fn look_for_session(&mut self, nonce: StreamNonce) {
        let principal = self.state.identity();
        let Some(relay) = self.state.relays.by_stream.get_mut(&nonce) else { return };
        relay.stage = Stage::Sought;
        let attach = Attach { principal, ..Attach::default() };
        let ticket = self.cell.ticket(nonce, Operation::Attach(relay.conn));
        self.state.timers.clear(Reason::Relay(nonce));
        match self.cell.shared.store.attach(&self.cell.name, &attach, &ticket) {
            Answer::Now(result) => self.looked_for_session(nonce, result),
            Answer::Later => self.wait(ticket),
        }
    }

    /// The store has said whether a session that is to end is still there, or could not tell.
    pub(crate) fn looked_for_session(&mut self, nonce: StreamNonce, result: Result<Attached, StoreError>) {
        let Some(relay) = self.state.relays.by_stream.get_mut(&nonce) else { return };
        match result {
            Err(error) => {
                // The message will be withdrawn once more, and then the session is looked for again.
                relay.stage = Stage::Withdrawing;
                self.not_withdrawn(nonce, &error);
            }
            Ok(Attached { session: None, .. }) => {
                if let Some(relay) = self.is_relayed(nonce) {
                    self.answer_relayed(relay.conn, AnswerHead::EMPTY);
                }
            }
            Ok(_) if self.now < relay.due => self.look_for_end_again(nonce),
            Ok(_) => {
                let refusal = relay.refusal.clone();
                self.not_relayed(nonce, &refusal);
            }
        }
    }

    /// By now something should have become of a relayed message.
    pub(crate) fn relay_is_due(&mut self, nonce: StreamNonce) {
        // If the session may be adopted, there is more time: it is known soon whether the owner is gone, and then the
        // session is adopted. What the last look told of the owner's signs of life may be old, and a busy machine
        // counts less time than has passed.
        let more_ms = if self.may_adopt() { self.cell.shared.options.owner_lost_ms } else { 0 };
        let Some(relay) = self.state.relays.by_stream.get_mut(&nonce) else { return };
        if relay.due <= self.now && matches!(relay.stage, Stage::Posted) && !relay.is_late {
            (relay.due, relay.is_late) = (self.now + more_ms, true);
        }
        let is_over = relay.due <= self.now;
        match &relay.stage {
            Stage::Posting(ticket) => {
                let ticket = ticket.clone();
                // The store may have taken the message.
                relay.is_unsure = true;
                self.stop_waiting(&ticket);
                self.cell.shared.store.abandon(&self.cell.key(nonce), &ticket);
                self.withdraw_relay(nonce);
            }
            Stage::PostAgain if !is_over => self.post(nonce),
            Stage::Posted | Stage::Orphaned if !is_over => {
                self.state.timers.set(Reason::Relay(nonce), relay.due);
                self.look_at_log(nonce);
            }
            Stage::PostAgain | Stage::Posted | Stage::Orphaned | Stage::Withdrawing => self.withdraw_relay(nonce),
            Stage::Sought => {}
        }
    }

    /// Ends the relays of a session that is let go of here. Requests that nobody has begun are withdrawn, if there is
    /// still time for that. Their clients get an answer before that is known.
    pub(crate) fn end_relays(&mut self) {
        let is_kept = self.cell.keeps_logs.load(Ordering::SeqCst);
        for (nonce, relay) in std::mem::take(&mut self.state.relays.by_stream) {
            if self.is_unanswered(relay.conn) {
                let ticket = self.cell.ticket_of_nobody(nonce, Operation::Withdraw);
                let end = relay.end();
                let _ = self.cell.shared.store.withdraw(self.now, &self.cell.key(nonce), &end, &ticket);
                if is_kept {
                    let refusal = self.cell.dialect.wording.answer_unknown();
                    self.refuse_relayed(relay.conn, &refusal);
                    self.note_refused(relay.calls, &refusal);
                }
            }
        }
    }
}
