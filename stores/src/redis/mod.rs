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
mod hints;
mod layout;
mod live;
mod looking;
mod nodes;
mod opening;
mod owners;
mod script;
#[cfg(feature = "testing")]
pub(crate) mod seams;
mod slots;
mod tags;
mod usage;
mod worker;

use std::sync::Arc;

use tailrope_core::store::parts::{Backend, Pulse, Queued};
use tailrope_core::store::{StoreOptions, Usage, Watcher};

use hints::Hints;
pub(crate) use looking::Looking;
use usage::Book;

use crate::OpenError;

/// An event store in Redis or Valkey. See [`open`](crate::open).
///
/// [`usage`](tailrope_core::store::EventStore::usage) tells what this store object wrote, not what others did. Bytes of everything
/// (`max_bytes`) are for the server to bound (`maxmemory`). Dropping the store waits until what was asked is
/// done, up to five seconds.
pub type RedisStore = Queued<Redis>;

/// Connects to the servers of this address. This waits for the network.
///
/// # Errors
/// [`OpenError`] when the address is wrong, or the servers cannot be reached or used.
pub fn open(address: &str, options: &StoreOptions) -> Result<RedisStore, OpenError> {
    opening::open(address, options).map_err(|what| OpenError::new(&address::shown(address), what))
}

/// What the callers of a store and its thread share, besides the mailbox.
#[derive(Clone)]
pub struct Redis {
    book: Arc<Book>,
    hints: Arc<Hints>,
    pulse: Arc<Pulse>,
    namespace: Arc<str>,
}

impl Backend for Redis {
    fn watch(&self, session: &Arc<str>, watcher: &Watcher) {
        self.hints.watch(session, watcher);
    }

    fn unwatch(&self, session: &str, watcher: &Watcher) {
        self.hints.unwatch(session, watcher);
    }

    fn usage(&self) -> Usage {
        self.book.usage()
    }

    fn is_cut_off(&self) -> bool {
        self.pulse.is_cut_off()
    }

    fn has_company(&self) -> bool {
        self.pulse.has_company()
    }

    fn silent_ms(&self) -> Option<u64> {
        self.pulse.silent_ms()
    }

    fn namespace(&self) -> &str {
        &self.namespace
    }
}
