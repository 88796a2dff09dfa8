//! An event store of a mailbox and of what reaches the logs.

use std::fmt;

use bytes::Bytes;

use super::{Ask, Mailbox};
use crate::Ms;
use crate::store::threads::{self, Threads};
use crate::store::{
    Answer, Append, Attach, Attached, Epoch, EventStore, Hold, LogPage, Mail, ReadLimit, RunningLog, StreamKey, Ticket,
    Usage, Watcher,
};
use crate::stream::Seq;
use crate::sync::Arc;

/// What a store does besides the operations that its workers take from the mailbox. Its methods do not wait for the store:
/// threads call them that have others to serve. One that panics has done nothing, and says what it says by default; of
/// [`usage`](Self::usage) that is nothing.
pub trait Backend: Send + Sync {
    /// See [`EventStore::watch`]. [`Watchers`](crate::store::Watchers) keeps who watches what. A change that comes after
    /// this call is told, also when the store begins to look for changes only now.
    fn watch(&self, session: &Arc<str>, watcher: &Watcher);

    /// See [`EventStore::unwatch`].
    fn unwatch(&self, session: &str, watcher: &Watcher);

    /// Applies retention soon, where the store does not do so by itself. Do not rely on it: it may be called rarely, or once.
    fn sweep(&self) {}

    /// See [`EventStore::usage`].
    fn usage(&self) -> Usage;

    /// Ends what is not a worker of the mailbox. The workers go on until what waits is done or given up, so operations
    /// come after this call, and the owner has to give signs of life meanwhile.
    fn close(&self) {}

    /// See [`EventStore::outlives_process`].
    fn outlives_process(&self) -> bool {
        true
    }

    /// See [`EventStore::is_cut_off`].
    fn is_cut_off(&self) -> bool {
        false
    }

    /// See [`EventStore::has_company`].
    fn has_company(&self) -> bool {
        false
    }

    /// For how many milliseconds the store has answered no sign of life, where that is longer than it takes.
    fn silent_ms(&self) -> Option<u64> {
        None
    }

    /// See [`EventStore::namespace`].
    fn namespace(&self) -> &str {
        ""
    }

    /// Whether the threads of a store that goes away can be waited for now.
    fn may_wait(&self) -> bool {
        true
    }
}

impl<B: Backend + ?Sized> Backend for Arc<B> {
    fn watch(&self, session: &Arc<str>, watcher: &Watcher) {
        (**self).watch(session, watcher);
    }

    fn unwatch(&self, session: &str, watcher: &Watcher) {
        (**self).unwatch(session, watcher);
    }

    fn sweep(&self) {
        (**self).sweep();
    }

    fn usage(&self) -> Usage {
        (**self).usage()
    }

    fn close(&self) {
        (**self).close();
    }

    fn outlives_process(&self) -> bool {
        (**self).outlives_process()
    }

    fn is_cut_off(&self) -> bool {
        (**self).is_cut_off()
    }

    fn has_company(&self) -> bool {
        (**self).has_company()
    }

    fn silent_ms(&self) -> Option<u64> {
        (**self).silent_ms()
    }

    fn namespace(&self) -> &str {
        (**self).namespace()
    }

    fn may_wait(&self) -> bool {
        (**self).may_wait()
    }
}

/// An event store whose operations wait in a mailbox for its workers. Dropping it waits until these have done what was asked.
pub struct Queued<B: Backend> {
    mailbox: Arc<Mailbox>,
    max_event_bytes: usize,
    threads: Threads,
    backend: B,
}

impl<B: Backend> Queued<B> {
    /// `threads` end when the mailbox and the backend are closed.
    pub fn new(mailbox: Arc<Mailbox>, max_event_bytes: usize, threads: Threads, backend: B) -> Self {
        Self { mailbox, max_event_bytes, threads, backend }
    }

    fn ask<T>(&self, session: &Arc<str>, ask: Ask, ticket: &Ticket) -> Answer<T> {
        match self.mailbox.push(session, ask, Some(ticket)) {
            Ok(()) => Answer::Later,
            Err(error) => Answer::Now(Err(error)),
        }
    }

    /// Calls the backend. Where its code panics, the outcome is `otherwise`.
    fn call<'a, T>(&'a self, otherwise: T, call: impl FnOnce(&'a B) -> T) -> T {
        self.mailbox.guard(|| call(&self.backend)).unwrap_or(otherwise)
    }

    /// Asks for what has no answer.
    fn tell(&self, session: &Arc<str>, ask: Ask) {
        if let Err(error) = self.mailbox.push(session, ask, None) {
            self.mailbox.refused(error);
        }
    }
}

impl<B: Backend> fmt::Debug for Queued<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStore").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

impl<B: Backend> EventStore for Queued<B> {
    fn hold(&self, session: &str, hold: &Hold, ticket: &Ticket) -> Answer<Vec<RunningLog>> {
        self.ask(&session.into(), Ask::Hold(hold.clone()), ticket)
    }

    fn append(&self, _now: Ms, key: &StreamKey, epoch: Epoch, append: &Append, ticket: &Ticket) -> Answer<()> {
        if let Err(error) = append.check_size(self.max_event_bytes) {
            return Answer::Now(Err(error));
        }
        self.ask(&key.session, Ask::Append { nonce: key.nonce, epoch, append: append.clone() }, ticket)
    }

    fn abandon(&self, key: &StreamKey, ticket: &Ticket) {
        self.mailbox.call_off(&key.session, ticket);
    }

    fn attach(&self, session: &str, attach: &Attach, ticket: &Ticket) -> Answer<Attached> {
        self.ask(&session.into(), Ask::Attach(attach.clone()), ticket)
    }

    fn read(&self, key: &StreamKey, after: Seq, limit: ReadLimit, ticket: &Ticket) -> Answer<LogPage> {
        self.ask(&key.session, Ask::Read { nonce: key.nonce, after, limit }, ticket)
    }

    fn take(&self, session: &str, epoch: Epoch, after: u64, ticket: &Ticket) -> Answer<Vec<Mail>> {
        self.ask(&session.into(), Ask::Take { epoch, after }, ticket)
    }

    fn withdraw(&self, _now: Ms, key: &StreamKey, end: &Bytes, ticket: &Ticket) -> Answer<bool> {
        self.ask(&key.session, Ask::Withdraw { nonce: key.nonce, end: end.clone() }, ticket)
    }

    fn release(&self, session: &str, epoch: Epoch) {
        self.tell(&session.into(), Ask::Release { epoch });
    }

    fn watch(&self, session: &Arc<str>, watcher: &Watcher) {
        self.call((), |backend| backend.watch(session, watcher));
    }

    fn unwatch(&self, session: &str, watcher: &Watcher) {
        self.call((), |backend| backend.unwatch(session, watcher));
    }

    fn settle(&self, key: &StreamKey, epoch: Epoch, seq: Seq) {
        self.tell(&key.session, Ask::Settle { nonce: key.nonce, epoch, seq });
    }

    fn drop_stream(&self, key: &StreamKey, epoch: Epoch) {
        self.tell(&key.session, Ask::DropStream { nonce: key.nonce, epoch });
    }

    fn drop_session(&self, session: &str, epoch: Epoch) {
        self.tell(&session.into(), Ask::DropSession { epoch });
    }

    fn sweep(&self, _now: Ms) -> Ms {
        self.call((), B::sweep);
        Ms::NEVER
    }

    fn usage(&self) -> Usage {
        self.call(Usage::default(), B::usage)
    }

    fn answers_elsewhere(&self) -> bool {
        true
    }

    fn outlives_process(&self) -> bool {
        self.call(true, B::outlives_process)
    }

    fn is_cut_off(&self) -> bool {
        self.call(false, B::is_cut_off)
    }

    fn has_company(&self) -> bool {
        self.call(false, B::has_company)
    }

    fn away_ms(&self) -> Option<u64> {
        self.mailbox.reach.silent(self.call(None, B::silent_ms));
        self.mailbox.reach.away_ms()
    }

    fn tell_away(&self) {
        self.mailbox.reach.silent(self.call(None, B::silent_ms));
        self.mailbox.reach.tell_away();
    }

    fn refused_ms(&self) -> Option<u64> {
        self.mailbox.reach.refused_ms()
    }

    fn namespace(&self) -> &str {
        self.call("", B::namespace)
    }
}

impl<B: Backend> Drop for Queued<B> {
    fn drop(&mut self) {
        // The child of a fork has not the threads, and must not touch what they lock.
        let Some(threads) = self.threads.take() else { return };
        self.mailbox.close();
        self.call((), B::close);
        if self.call(true, B::may_wait) {
            threads::join(threads);
        }
    }
}
