//! An update or a cancellation of a task that another process owns goes there through the inbox of the task.
//!
//! The message is posted together with a log, whose end says whether the owner took the message. A message that the owner does not
//! take is withdrawn, and then everything is tried again: the owner may be gone by then.

use crate::Ms;
use crate::engine::lines::Later;
use crate::engine::tasks::Verdict;
use crate::engine::tasks::query::QueryChange;
use crate::engine::tasks::query::Stage;
use crate::protocol::{RequestId, StreamNonce};
use crate::store::{Answer, Attach, Attached, LogPage, Message, Operation, ReadLimit, StoreError};
use crate::stream::Chain;
use crate::sync::Arc;

/// Pause between two looks at the log of a message, for hints that were lost.
const LOOK_MS: u64 = 250;

impl QueryChange<'_> {
    pub(super) fn post(&mut self) {
        let Some(relayed) = self.query.relayed.clone() else { return self.pause() };
        let (shared, dropped) = (Arc::clone(&self.query.shared), relayed.clone());
        self.lines.push(Later::Always(Box::new(move |_| shared.warn_dropped(&dropped))));
        let identity = self.query.identity();
        let nonce = self.query.shared.nonce();
        let body = relayed.from_principal(identity.as_deref()).encode();
        let attach = Attach {
            stream: Some(nonce),
            principal: identity,
            tag: Some(Chain::start(&nonce.0).tag()),
            // A reader that counts gets hints of what becomes of the log.
            counts: true,
            message: Some(Message { about: RequestId::encode_all(&[]).into(), body }),
            ..Attach::default()
        };
        self.watch();
        let ticket = self.query.ticket(nonce, Operation::Attach(self.query.number));
        self.state.stage = Stage::Post(nonce, ticket.clone());
        if let Answer::Now(result) = self.query.shared.store.attach(&self.query.name, &attach, &ticket) {
            self.posted(nonce, result);
        }
    }

    pub(super) fn posted(&mut self, nonce: StreamNonce, result: Result<Attached, StoreError>) {
        let until = self.now + self.query.shared.options.owner_lost_ms;
        let is_larger = |max| self.query.relayed.as_ref().is_some_and(|relayed| relayed.body().len() > max);
        match result {
            Ok(Attached { log: Some(log), .. }) => self.look(nonce, until, &log.page),
            Err(StoreError::TooLarge { .. }) => self.decided(Verdict::TooLarge),
            Err(StoreError::Full { max }) if is_larger(max) => self.decided(Verdict::TooLarge),
            // The store may have the message all the same: what it does, it does once.
            Ok(_) | Err(_) => self.pause(),
        }
    }

    pub(super) fn look_at_post(&mut self, nonce: StreamNonce, until: Ms) {
        let ticket = self.query.ticket(nonce, Operation::Look(0));
        self.state.stage = Stage::LookAtPost(nonce, ticket.clone(), until);
        let key = self.query.key(nonce);
        if let Answer::Now(result) = self.query.shared.store.read(&key, 0, ReadLimit::default(), &ticket) {
            self.looked_at_post(nonce, until, result);
        }
    }

    pub(super) fn looked_at_post(&mut self, nonce: StreamNonce, until: Ms, result: Result<LogPage, StoreError>) {
        match result {
            Ok(page) => self.look(nonce, until, &page),
            // The session has another owner, which dropped the log, or the store was set back.
            Err(StoreError::Gone) => self.pause(),
            Err(_) => self.state.stage = Stage::Posted(nonce, self.now + LOOK_MS, until),
        }
    }

    fn look(&mut self, nonce: StreamNonce, until: Ms, page: &LogPage) {
        if page.is_finished {
            return self.decided(Verdict::of_end(page.tail.as_ref()));
        }
        let lost_ms = self.query.shared.options.owner_lost_ms;
        let is_orphaned = page.owner.is_none_or(|owner| owner.unseen_ms >= lost_ms);
        let is_begun = until == Ms::NEVER;
        if is_orphaned && is_begun {
            // The owner has not told what became of it, and the task may have another one by now.
            return self.pause();
        }
        if is_orphaned || until <= self.now {
            return self.withdraw(nonce);
        }
        self.state.stage = Stage::Posted(nonce, self.now + LOOK_MS, until);
    }

    /// Takes the message back that the owner has not taken.
    pub(super) fn withdraw(&mut self, nonce: StreamNonce) {
        let ticket = self.query.ticket(nonce, Operation::Withdraw);
        self.state.stage = Stage::Withdraw(nonce, ticket.clone());
        let (key, end) = (self.query.key(nonce), Verdict::NotTaken.as_end());
        if let Answer::Now(result) = self.query.shared.store.withdraw(self.now, &key, &end, &ticket) {
            self.withdrawn(nonce, result);
        }
    }

    pub(super) fn withdrawn(&mut self, nonce: StreamNonce, result: Result<bool, StoreError>) {
        match result {
            // The owner has it.
            Ok(false) => self.look_at_post(nonce, Ms::NEVER),
            Ok(true) | Err(_) => self.pause(),
        }
    }
}
