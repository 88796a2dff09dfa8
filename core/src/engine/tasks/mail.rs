//! Updates and cancellations that came to other processes: their owner takes them out of the task's inbox.
//!
//! Each is answered by the end of the log that its sender follows. To take one twice does no harm: an answer to a question that
//! has one, and a cancellation of a task that is cancelled, count for nothing.

use bytes::Bytes;

use crate::Ms;
use crate::engine::tasks::cell::{CallChange, Place, Requester};
use crate::exchange::Relayed;
use crate::maps::OwnMap;
use crate::protocol::StreamNonce;
use crate::store::{Answer, Append, Mail, Operation, StoreError, Ticket};
use crate::stream::{Chain, Paced};
use crate::task::reread_request;

/// Pause between two looks into an inbox, for hints that were lost.
const LOOK_MS: u64 = 300_000;
/// Pause before a store that could not tell is asked again.
const ASK_AGAIN_MS: u64 = 250;
/// How long the sender of a message has to see what became of it.
const RETENTION_MS: u64 = 60_000;

/// What the log of a message ends with.
const TAKEN: &[u8] = b"taken";
const NOT_TAKEN: &[u8] = b"not taken";

/// Whether the end of a message's log says that the message was taken.
pub(super) fn is_taken(end: &[u8]) -> bool {
    end == TAKEN
}

/// The end of the log of a message that was not taken.
pub(super) fn not_taken() -> Bytes {
    Bytes::from_static(NOT_TAKEN)
}

/// The end of the log of a message.
pub(super) fn end_of(nonce: StreamNonce, end: Bytes) -> Append {
    let chain = Chain::start(&nonce.0).0;
    let paced = Some(Paced { retention_ms: Some(RETENTION_MS), ..Paced::default() });
    Append { first: 1, chain_before: chain, chain, end: Some(end), paced, ..Append::default() }
}

#[derive(Default)]
pub(super) struct Inbox {
    /// The number of the last message that was taken.
    after: u64,
    is_hinted: bool,
    asking: Option<u64>,
    /// When to look without a hint.
    again: Option<Ms>,
    /// Messages whose outcome the store does not have, and when it is asked again.
    answers: OwnMap<StreamNonce, (bool, Ms)>,
}

impl Inbox {
    pub(super) fn hint(&mut self) {
        self.is_hinted = true;
    }

    pub(super) fn due(&self) -> Ms {
        self.again.unwrap_or(Ms::NEVER).min(self.answers_due())
    }

    /// Whether the senders of all messages can read what became of them.
    pub(super) fn is_answered(&self) -> bool {
        self.answers.is_empty()
    }

    pub(super) fn answers_due(&self) -> Ms {
        self.answers.values().map(|(_, at)| *at).min().unwrap_or(Ms::NEVER)
    }
}

impl CallChange<'_> {
    pub(super) fn look_into_inbox(&mut self) {
        let is_served = self.state.place == Place::Here
            && self.state.writing.is_held()
            && self.cell.shared.store.outlives_process();
        if !is_served {
            return;
        }
        if self.state.inbox.again.is_none() {
            // What came before there was a watcher gave no hint.
            self.state.inbox.is_hinted = true;
            self.state.inbox.again = Some(self.cell.shared.next_look(self.now.at, LOOK_MS));
        }
        while self.state.inbox.is_hinted && self.state.inbox.asking.is_none() {
            self.state.inbox.is_hinted = false;
            let ticket = self.cell.ticket(StreamNonce::NONE, Operation::Take);
            self.state.inbox.asking = Some(ticket.number);
            let epoch = self.state.records.epoch();
            match self.cell.shared.store.take(&self.cell.name, epoch, self.state.inbox.after, &ticket) {
                Answer::Now(result) => self.mail_taken(&ticket, result),
                Answer::Later => {
                    let timeout_ms = self.cell.shared.options.store_timeout_ms;
                    let wait_ms = if timeout_ms == 0 { LOOK_MS } else { timeout_ms.min(LOOK_MS) };
                    self.state.inbox.again = Some(self.now.at + wait_ms);
                }
            }
        }
    }

    pub(super) fn mail_taken(&mut self, ticket: &Ticket, result: Result<Vec<Mail>, StoreError>) {
        if self.state.inbox.asking != Some(ticket.number) {
            return;
        }
        self.state.inbox.asking = None;
        self.state.inbox.again = Some(self.cell.shared.next_look(self.now.at, LOOK_MS));
        match result {
            Ok(mail) => {
                // There may be more messages than one answer holds.
                self.state.inbox.is_hinted |= !mail.is_empty();
                mail.into_iter().for_each(|mail| self.take_mail(mail));
            }
            Err(StoreError::Fenced | StoreError::Gone) => self.state.writing.doubt(),
            Err(_) => {
                // A store that was set back gives numbers again.
                self.state.inbox.after = 0;
                self.state.inbox.again = Some(self.now.at + ASK_AGAIN_MS);
            }
        }
    }

    fn take_mail(&mut self, mail: Mail) {
        let Mail { number, nonce, message } = mail;
        self.state.inbox.after = self.state.inbox.after.max(number);
        let relayed = Relayed::decode(&message.body).ok();
        let relayed = relayed.filter(|relayed| relayed.principal() == self.cell.identity());
        let Some((relayed, request)) = relayed.and_then(|relayed| {
            let request = reread_request(relayed.body())?;
            Some((relayed, request))
        }) else {
            tracing::error!(target: "tailrope", session = %self.cell.name, "a message of another process cannot be read");
            return self.answer_mail(nonce, false);
        };
        let from = self.cell.shared.number();
        self.state.requesters.insert(from, Requester::Mail(nonce, relayed));
        self.ask(from, &request.ask);
    }

    /// Notes what became of a message, for its sender.
    pub(super) fn answer_mail(&mut self, nonce: StreamNonce, is_taken: bool) {
        let end = if is_taken { Bytes::from_static(TAKEN) } else { not_taken() };
        let ticket = self.cell.ticket(nonce, Operation::Append);
        let (key, epoch) = (self.cell.key(nonce), self.state.records.epoch());
        self.state.inbox.answers.insert(nonce, (is_taken, self.now.at + ASK_AGAIN_MS));
        if let Answer::Now(result) =
            self.cell.shared.store.append(self.now.at, &key, epoch, &end_of(nonce, end), &ticket)
        {
            self.mail_answered(&ticket, &result);
        }
    }

    pub(super) fn mail_answered(&mut self, ticket: &Ticket, result: &Result<(), StoreError>) {
        let is_unknown = matches!(result, Err(StoreError::Failed(_) | StoreError::TimedOut { .. }));
        if !is_unknown {
            // Where the log is gone, or somebody else's, its sender finds out.
            self.state.inbox.answers.remove(&ticket.nonce);
        }
    }

    pub(super) fn mail_is_due(&mut self) {
        if self.state.inbox.again.is_some_and(|at| at <= self.now.at) {
            self.state.inbox.is_hinted = true;
            self.state.inbox.asking = None;
            self.state.inbox.again = Some(self.cell.shared.next_look(self.now.at, LOOK_MS));
        }
        let due = self.state.inbox.answers.iter().filter(|(_, (_, at))| *at <= self.now.at);
        let due: Vec<(StreamNonce, bool)> = due.map(|(nonce, (is_taken, _))| (*nonce, *is_taken)).collect();
        due.into_iter().for_each(|(nonce, is_taken)| self.answer_mail(nonce, is_taken));
    }
}
