//! The event store in Redis or Valkey: it survives its process, and processes of any machine share it.
//!
//! One thread with one connection for each server does everything that is asked. What callers ask of one
//! session goes to the server as one run of a script, so that it is done completely or not at all, in order
//! and checked against what others did; what waits meanwhile is the next run. Everything that is written has
//! an expiry, which is set again while its owner is there.
//!
//! A caller's `now` is not used: ages and retention are by the server's clock. Whether an owner is gone is by no
//! clock but this process's own, and by what was seen of that owner's beats.

mod address;
mod held;
mod hints;
mod live;
mod nodes;
mod opening;
mod queue;
mod script;
#[cfg(feature = "testing")]
pub(super) mod seams;
mod tags;
mod worker;

use std::fmt;
use std::sync::Arc;

use held::Held;
use hints::Hints;
use queue::{Ask, Queue};

use super::threads::{self, Threads};
use super::{
    Answer, Append, Attach, Attached, Epoch, EventStore, Hold, LogPage, OpenError, ReadLimit, RunningLog, StoreOptions,
    StreamKey, Ticket, Usage, Watcher,
};
use crate::Ms;
use crate::stream::Seq;

/// An event store in Redis or Valkey. See [`open`](super::open).
///
/// [`usage`](EventStore::usage) tells what this store object wrote, not what others did. Bytes of everything
/// (`max_bytes`) are for the server to bound (`maxmemory`). Dropping the store waits until what was asked is
/// done, up to five seconds.
pub struct RedisStore {
    queue: Arc<Queue>,
    held: Arc<Held>,
    hints: Arc<Hints>,
    max_event_bytes: usize,
    thread: Threads,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("usage", &self.held.usage()).finish_non_exhaustive()
    }
}

impl RedisStore {
    /// Connects to the servers of this address. This waits for the network.
    ///
    /// # Errors
    /// [`OpenError`] when the address is wrong, or the servers cannot be reached or used.
    pub fn open(address: &str, options: &StoreOptions) -> Result<Self, OpenError> {
        opening::open(address, options).map_err(|what| OpenError::new(&address::shown(address), what))
    }

    fn ask<T>(&self, session: &Arc<str>, ask: Ask, ticket: &Ticket) -> Answer<T> {
        match self.queue.push(session, ask, Some(ticket)) {
            Ok(()) => Answer::Later,
            Err(error) => Answer::Now(Err(error)),
        }
    }

    /// Asks for what has no answer.
    fn tell(&self, session: &Arc<str>, ask: Ask) {
        if let Err(error) = self.queue.push(session, ask, None) {
            tracing::error!(target: "tailrope", %error, "event store did not do what it was told");
        }
    }
}

impl EventStore for RedisStore {
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
        self.queue.call_off(&key.session, ticket);
    }

    fn attach(&self, session: &str, attach: &Attach, ticket: &Ticket) -> Answer<Attached> {
        self.ask(&session.into(), Ask::Attach(attach.clone()), ticket)
    }

    fn read(&self, key: &StreamKey, after: Seq, limit: ReadLimit, ticket: &Ticket) -> Answer<LogPage> {
        self.ask(&key.session, Ask::Read { nonce: key.nonce, after, limit }, ticket)
    }

    fn release(&self, session: &str, epoch: Epoch) {
        self.tell(&session.into(), Ask::Release { epoch });
    }

    fn watch(&self, key: &StreamKey, watcher: &Watcher) {
        self.hints.watch(key, watcher);
    }

    fn unwatch(&self, key: &StreamKey, watcher: &Watcher) {
        self.hints.unwatch(key, watcher);
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

    /// The server applies retention; the thread of the store follows it.
    fn sweep(&self, _now: Ms) -> Ms {
        Ms::NEVER
    }

    fn usage(&self) -> Usage {
        self.held.usage()
    }

    fn answers_elsewhere(&self) -> bool {
        true
    }

    fn outlives_process(&self) -> bool {
        true
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.queue.close();
        threads::join(thread);
    }
}
