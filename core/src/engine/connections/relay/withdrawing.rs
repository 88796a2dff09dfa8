//! Messages that are taken back, because nobody has begun them: the session has no owner, or has its end.

use bytes::Bytes;

use crate::Ms;
use crate::engine::connections::conn::Position;
use crate::engine::connections::relays::{Relay, Stage, What};
use crate::engine::lines::log_later;
use crate::engine::logs::following::FOLLOW_MS;
use crate::engine::sessions::change::Change;
use crate::engine::sessions::timers::Reason;
use crate::exchange::AnswerHead;
use crate::protocol::{Refusal, RequestId, StreamNonce};
use crate::session::{SynthesizedEnd, same_end};
use crate::store::{Answer, Operation, RunningLog, StoreError};

impl Change<'_> {
    /// Takes a message back that the owner has not begun, if it is not too late.
    pub(super) fn withdraw_relay(&mut self, nonce: StreamNonce) {
        let Some(relay) = self.state.relays.by_stream.get_mut(&nonce) else { return };
        relay.stage = Stage::Withdrawing;
        self.state.timers.clear(Reason::Relay(nonce));
        let end = relay.end();
        self.withdraw(nonce, &end);
    }

    fn withdraw(&mut self, nonce: StreamNonce, end: &Bytes) {
        let ticket = self.cell.ticket(nonce, Operation::Withdraw);
        match self.cell.shared.store.withdraw(self.now, &self.cell.key(nonce), end, &ticket) {
            Answer::Now(result) => self.withdrawn(nonce, result),
            Answer::Later => self.wait(ticket),
        }
    }

    /// The store has said whether a message is withdrawn, or could not tell.
    pub(crate) fn withdrawn(&mut self, nonce: StreamNonce, result: Result<bool, StoreError>) {
        // The log of the message has an end now, or goes on: look at it soon.
        self.state.timers.change(Reason::Look(nonce), self.now);
        let is_withdrawn = match result {
            Ok(is_withdrawn) => Some(is_withdrawn),
            // The session is gone, or the store never got the message.
            Err(StoreError::Gone) => None,
            Err(error) => return self.not_withdrawn(nonce, &error),
        };
        let is_asked = |relay: &Relay| relay.what == What::Delete && relay.message.is_none();
        if is_withdrawn.is_none() && self.state.relays.by_stream.get(&nonce).is_some_and(is_asked) {
            return self.look_for_session(nonce);
        }
        let Some(Relay { conn, what, calls, refusal, message, is_unsure, .. }) = self.is_relayed(nonce) else { return };
        let was_lost = is_withdrawn.is_none() && message.is_none();
        let refusal = match (what, is_withdrawn) {
            (What::Call, Some(false)) => {
                // The call runs. If the answer has not begun, the connection has yet to read its log.
                if self.is_unanswered(conn) {
                    self.resume_log(conn, Position { fresh: true, ..Position::start(nonce) });
                }
                return;
            }
            (What::Message, Some(false)) => {
                return self.answer_relayed(conn, AnswerHead::accepted(self.cell.dialect));
            }
            // The store had the message, or may have had it, and nothing of it is left: it may have run. The same holds
            // if one of two posts of a message without an answer is withdrawn.
            (What::Call | What::Message, None) | (What::Message, Some(true)) if is_unsure || was_lost => {
                self.cell.dialect.wording.answer_unknown()
            }
            _ => refusal,
        };
        self.refuse_relayed(conn, &refusal);
        self.note_refused(calls, &refusal);
    }

    pub(super) fn not_withdrawn(&mut self, nonce: StreamNonce, error: &StoreError) {
        log_later!(self, WARN, of nonce, [error = error.clone()], %error,
            "a relayed request is not withdrawn yet");
        let Some(relay) = self.state.relays.by_stream.get_mut(&nonce) else { return };
        self.state.timers.set(Reason::Relay(nonce), self.now + FOLLOW_MS);
        // A client that was told nothing for so long is told that nobody knows whether its request runs.
        if relay.due + self.cell.shared.options.owner_lost_ms <= self.now {
            let conn = relay.conn;
            self.refuse_relayed(conn, &self.cell.dialect.wording.answer_unknown());
        }
    }

    /// The streams that are followed and have not begun. `running` are the logs that have begun.
    fn unbegun(&self, running: &[RunningLog]) -> Vec<(StreamNonce, Vec<RequestId>)> {
        let unbegun = self.state.followed.iter().filter(|(nonce, requests)| {
            let stream = self.state.session.stream(**nonce);
            let is_finished = stream.is_none_or(|stream| stream.machine.is_finished());
            !is_finished && !requests.is_empty() && !running.iter().any(|log| log.nonce == **nonce)
        });
        unbegun.map(|(nonce, requests)| (*nonce, requests.clone())).collect()
    }

    /// Withdraws the streams that are followed and have not begun, so that nobody begins them: the session has no
    /// owner.
    pub(crate) fn withdraw_unbegun(&mut self, running: &[RunningLog]) {
        for (nonce, requests) in self.unbegun(running) {
            self.withdraw(nonce, &same_end(&requests, SynthesizedEnd::OwnerLost));
        }
    }

    /// Whether a message waits for an owner of the session.
    pub(crate) fn awaits_owner(&self, running: &[RunningLog]) -> bool {
        let is_running = |nonce| running.iter().any(|log| log.nonce == nonce);
        let has_nothing = |nonce| self.state.session.stream(nonce).is_some_and(|stream| stream.machine.durable() == 0);
        self.state.relays.waiting().into_iter().any(|nonce| !is_running(nonce))
            || self.unbegun(running).into_iter().any(|(nonce, _)| has_nothing(nonce))
    }

    /// Lets messages wait for an owner of the session until `due`.
    pub(crate) fn wait_for_owner(&mut self, due: Ms) {
        for nonce in self.state.relays.waiting() {
            let Some(relay) = self.state.relays.by_stream.get_mut(&nonce) else { continue };
            relay.due = due;
            if !self.state.relays.is_looked_at(nonce) {
                self.state.timers.set(Reason::Relay(nonce), due);
            }
        }
    }

    /// The session has an owner now: no message waits for one any more.
    pub(crate) fn relays_have_owner(&mut self) {
        for nonce in self.state.relays.waiting() {
            if self.state.relays.is_orphaned(nonce) {
                self.has_owner(nonce, false, None);
            }
        }
    }

    /// Withdraws the messages that wait for an owner of the session, unless somebody has begun them. Their clients get
    /// this refusal.
    pub(crate) fn withdraw_waiting(&mut self, refusal: &Refusal) {
        self.withdraw_all(self.state.relays.waiting(), refusal);
    }

    /// The same if the session has ended. A DELETE is left out, because it waits for that end.
    pub(crate) fn withdraw_ended(&mut self, refusal: &Refusal) {
        let relays = &self.state.relays;
        let ended = relays.waiting().into_iter().filter(|nonce| !relays.is_delete(*nonce)).collect();
        self.withdraw_all(ended, refusal);
    }

    fn withdraw_all(&mut self, waiting: Vec<StreamNonce>, refusal: &Refusal) {
        for nonce in waiting {
            if let Some(relay) = self.state.relays.by_stream.get_mut(&nonce) {
                relay.refusal = refusal.clone();
                self.withdraw_relay(nonce);
            }
        }
    }
}
