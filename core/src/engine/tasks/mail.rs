//! Updates and cancellations that came to other processes: their owner takes them out of the task's inbox.
//!
//! Each is answered by the end of the log that its sender follows. To take one twice does no harm: an answer to a question that
//! has one, and a cancellation of a task that is cancelled, count for nothing.

use bytes::Bytes;

use crate::Ms;
use crate::engine::lines::log_later;
use crate::engine::tasks::cell::{Place, Requester};
use crate::engine::tasks::change::CallChange;
use crate::engine::tasks::{TASK_LOG, Verdict};
use crate::exchange::Relayed;
use crate::maps::OwnMap;
use crate::protocol::StreamNonce;
use crate::store::{Answer, Append, Mail, Operation, RunningLog, StoreError, Ticket};
use crate::stream::{Chain, Paced};
use crate::task::reread_request;

/// Pause between two looks into an inbox, for hints that were lost.
const LOOK_MS: u64 = 300_000;
/// Pause before a store that could not tell is asked again.
const ASK_AGAIN_MS: u64 = 250;
/// How long the sender of a message has to see what became of it.
const RETENTION_MS: u64 = 60_000;

impl Verdict {
    const ALL: [Self; 3] = [Self::Taken, Self::NotTaken, Self::TooLarge];

    /// What the log of a message ends with.
    pub(super) fn as_end(self) -> Bytes {
        Bytes::from_static(match self {
            Self::Taken => b"taken",
            Self::NotTaken => b"not taken",
            Self::TooLarge => b"too large",
        })
    }

    /// What the end of a message's log says.
    pub(super) fn of_end(end: Option<&Bytes>) -> Self {
        Self::ALL.into_iter().find(|verdict| end == Some(&verdict.as_end())).unwrap_or(Self::NotTaken)
    }
}

/// The end of the log of a message.
pub(super) fn end_of(nonce: StreamNonce, verdict: Verdict) -> Append {
    let chain = Chain::start(&nonce.0).0;
    let paced = Some(Paced { retention_ms: Some(RETENTION_MS), ..Paced::default() });
    Append { first: 1, chain_before: chain, chain, end: Some(verdict.as_end()), paced, ..Append::default() }
}

/// What became of a message, as long as the store does not have that.
struct Noted {
    verdict: Verdict,
    /// What the store is asked; none in a pause.
    asked: Option<Ticket>,
    /// When that takes too long, or the pause is over.
    at: Ms,
}

#[derive(Default)]
pub(super) struct Inbox {
    /// The number of the last message that was taken.
    after: u64,
    is_hinted: bool,
    asking: Option<Ticket>,
    /// When to look without a hint, or when the store takes too long.
    again: Option<Ms>,
    /// Messages whose outcome the store does not have.
    answers: OwnMap<StreamNonce, Noted>,
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
        self.answers.values().map(|noted| noted.at).min().unwrap_or(Ms::NEVER)
    }
}

impl CallChange<'_> {
    pub(super) fn look_into_inbox(&mut self) {
        let is_served = self.state.place == Place::Here
            && self.state.writing.is_owned()
            && self.cell.shared.store.outlives_process();
        if !is_served {
            return;
        }
        if self.state.inbox.again.is_none() {
            // What came before there was a watcher gave no hint.
            self.state.inbox.is_hinted = true;
            self.state.inbox.again = Some(self.cell.shared.next_look(self.now.at, LOOK_MS));
        }
        // Messages that the host has no time for wait in the store, where there is a bound.
        while self.state.inbox.is_hinted && self.state.inbox.asking.is_none() && self.has_time() {
            self.state.inbox.is_hinted = false;
            let ticket = self.cell.ticket(StreamNonce::NONE, Operation::Take);
            self.state.inbox.asking = Some(ticket.clone());
            let epoch = self.state.records.epoch();
            match self.cell.shared.store.take(&self.cell.name, epoch, self.state.inbox.after, &ticket) {
                Answer::Now(result) => self.mail_taken(&ticket, result),
                Answer::Later => self.state.inbox.again = Some(self.cell.shared.due_after(self.now.at)),
            }
        }
    }

    pub(super) fn mail_taken(&mut self, ticket: &Ticket, result: Result<Vec<Mail>, StoreError>) {
        if self.state.inbox.asking.take_if(|asked| asked.number == ticket.number).is_none() {
            return;
        }
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
            log_later!(self, ERROR, [], "a message of another process cannot be read");
            return self.answer_mail(nonce, Verdict::NotTaken);
        };
        let from = self.cell.shared.number();
        self.state.requesters.insert(from, Requester::Mail(nonce, relayed));
        self.ask(from, &request.ask);
    }

    /// A store that was set back may have lost what became of a message, and not that this process has it. Its sender asks again,
    /// which does no harm.
    pub(super) fn answer_unknown_mail(&mut self, running: &[RunningLog]) {
        let mail = running.iter().map(|log| log.nonce).filter(|nonce| *nonce != TASK_LOG);
        for nonce in mail.collect::<Vec<_>>() {
            let is_asked = |requester: &Requester| matches!(requester, Requester::Mail(known, _) if *known == nonce);
            let is_known =
                self.state.inbox.answers.contains_key(&nonce) || self.state.requesters.values().any(is_asked);
            if !is_known {
                self.answer_mail(nonce, Verdict::NotTaken);
            }
        }
    }

    /// Notes what became of a message, for its sender.
    pub(super) fn answer_mail(&mut self, nonce: StreamNonce, verdict: Verdict) {
        let ticket = self.cell.ticket(nonce, Operation::Append);
        let (key, epoch) = (self.cell.key(nonce), self.state.records.epoch());
        let noted = Noted { verdict, asked: Some(ticket.clone()), at: self.cell.shared.due_after(self.now.at) };
        self.state.inbox.answers.insert(nonce, noted);
        let store = &self.cell.shared.store;
        if let Answer::Now(result) = store.append(self.now.at, &key, epoch, &end_of(nonce, verdict), &ticket) {
            self.mail_answered(&ticket, &result);
        }
    }

    pub(super) fn mail_answered(&mut self, ticket: &Ticket, result: &Result<(), StoreError>) {
        let answers = &mut self.state.inbox.answers;
        let is_asked = |noted: &&mut Noted| noted.asked.as_ref().is_some_and(|asked| asked.number == ticket.number);
        let Some(noted) = answers.get_mut(&ticket.nonce).filter(is_asked) else { return };
        if matches!(result, Err(StoreError::Failed(_) | StoreError::TimedOut { .. })) {
            (noted.asked, noted.at) = (None, self.now.at + ASK_AGAIN_MS);
        } else {
            // Where the log is gone, or somebody else's, its sender finds out.
            answers.remove(&ticket.nonce);
        }
    }

    pub(super) fn mail_is_due(&mut self) {
        let (now, store) = (self.now.at, &self.cell.shared.store);
        if self.state.inbox.again.is_some_and(|at| at <= now) {
            if let Some(ticket) = self.state.inbox.asking.take() {
                store.abandon(&self.cell.key(ticket.nonce), &ticket);
            }
            self.state.inbox.is_hinted = true;
            self.state.inbox.again = Some(self.cell.shared.next_look(now, LOOK_MS));
        }
        let mut due = Vec::new();
        for (nonce, noted) in self.state.inbox.answers.iter_mut().filter(|(_, noted)| noted.at <= now) {
            if let Some(ticket) = noted.asked.take() {
                store.abandon(&self.cell.key(*nonce), &ticket);
            }
            due.push((*nonce, noted.verdict));
        }
        due.into_iter().for_each(|(nonce, verdict)| self.answer_mail(nonce, verdict));
    }
}
