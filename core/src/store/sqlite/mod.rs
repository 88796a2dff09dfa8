//! The event store in a SQLite file: it survives its process, and processes of one machine share it.
//!
//! Two threads do everything that is asked, so that no caller ever waits for the disk. The writer takes what waits
//! and commits it as one transaction: under load hundreds of appends share one commit. The reader
//! answers from what is committed. A write-ahead log lets them, and other processes, work side by side.
//!
//! A caller's `now` is not used: files outlive the clocks of engines. Times are the system's.

mod batch;
mod beat;
mod checkpoint;
mod disk;
mod forks;
mod queue;
mod reader;
mod schema;
mod trim;
mod watching;
mod writer;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use beat::{Beats, Others};
pub use forks::Forking;
use forks::Link;
use queue::{Look, Shared, Write};
use watching::Watching;
use writer::fault as failed;

use super::threads::{self, Threads};
use super::{
    Answer, Append, Attach, Attached, Epoch, EventStore, Hold, Limits, LogPage, OpenError, ReadLimit, RunningLog,
    StoreError, StoreOptions, StreamKey, Ticket, Usage, WallClock, Watcher,
};
use crate::Ms;
use crate::stream::Seq;

/// What an event takes in the file besides its frame, as measured with events of 300 bytes.
const EVENT_OVERHEAD: i64 = 72;
/// What a log takes in the file without events.
const LOG_OVERHEAD: i64 = 160;

/// What both threads know.
struct Context {
    limits: Limits,
    owner_lost_ms: u64,
    /// This store object among all that ever had the file open: a random number.
    owner: i64,
    others: Others,
    clock: Option<WallClock>,
}

impl Context {
    #[cfg(test)]
    fn of(owner: i64, owner_lost_ms: u64) -> Self {
        Self { limits: Limits::default(), owner_lost_ms, owner, others: Others::default(), clock: None }
    }

    /// Unix time in milliseconds.
    fn now(&self) -> i64 {
        let now = match &self.clock {
            Some(clock) => clock(),
            None => unix_ms(),
        };
        i64::try_from(now).unwrap_or(i64::MAX)
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// An event store in a file, with write-ahead log. See [`open`](super::open).
///
/// Dropping it writes what waits; that may take as long as the disk does. Dropped while the process forks
/// ([`Forking`]), it does so after that.
pub struct SqliteStore {
    shared: Arc<Shared>,
    watching: Arc<Watching>,
    max_event_bytes: usize,
    threads: Threads,
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("usage", &self.shared.usage()).finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Opens the file, or creates it. This waits for the disk.
    ///
    /// # Errors
    /// [`OpenError`] when the path is wrong or cannot be written, when the file is not ours, damaged
    /// or of another version.
    pub fn open(path: &Path, options: &StoreOptions) -> Result<Self, OpenError> {
        let shown = super::open::shown(&format!("sqlite:{}", path.display()));
        let StoreOptions { limits, owner_lost_ms, durability, .. } = *options;
        let mut owner = [0; 8];
        getrandom::fill(&mut owner).map_err(|error| OpenError::new(&shown, format!("no random numbers: {error}")))?;
        let (owner, others, clock) = (i64::from_le_bytes(owner), Others::default(), options.wall_clock.clone());
        let context = Arc::new(Context { limits, owner_lost_ms, owner, others, clock });
        // The process may be in another folder when it forks.
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let again = absolute.clone();
        let db = Link::open(
            || schema::open_writer(path, durability, &shown),
            move || schema::open_writer_again(&again, durability),
        )?;
        let mut beats = Beats::new(owner_lost_ms);
        let first = beats.beat(&db, &context, Ms(0));
        first.map_err(|error| OpenError::new(&shown, failed(&error).to_string()))?;
        let open_reader = move || schema::open_reader(&absolute);
        let reader = || {
            let opened = Link::open(&open_reader, open_reader.clone());
            opened.map_err(|error| schema::refusal(&shown, &error))
        };
        let (reading, shortening, watching) = (reader()?, reader()?, reader()?);
        let shared = Arc::new(Shared::default());
        let watched = Arc::new(Watching::default());
        let (for_writer, for_reader, for_log, for_watch) = (
            (Arc::clone(&shared), Arc::clone(&context)),
            (Arc::clone(&shared), Arc::clone(&context)),
            Arc::clone(&shared),
            (Arc::clone(&watched), Arc::clone(&context)),
        );
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
            thread.map_err(|error| OpenError::new(&shown, format!("no thread for it: {error}")))
        };
        let threads = vec![
            spawn("tailrope-write", Box::new(move || writer::run(&db, &for_writer.0, &for_writer.1, beats)))?,
            spawn("tailrope-read", Box::new(move || reader::run(&reading, &for_reader.0, &for_reader.1)))?,
            spawn("tailrope-wal", Box::new(move || checkpoint::run(&shortening, &for_log)))?,
            spawn("tailrope-watch", Box::new(move || watching::run(&watching, &for_watch.0, &for_watch.1)))?,
        ];
        Ok(Self { shared, watching: watched, max_event_bytes: limits.max_event_bytes, threads: Threads::new(threads) })
    }

    fn later<T>(queued: Result<(), StoreError>) -> Answer<T> {
        match queued {
            Ok(()) => Answer::Later,
            Err(error) => Answer::Now(Err(error)),
        }
    }

    /// Queues what has no answer.
    fn tell(&self, write: Write) {
        if let Err(error) = self.shared.write(write) {
            tracing::error!(target: "tailrope", %error, "event store did not do what it was told");
        }
    }
}

impl EventStore for SqliteStore {
    fn hold(&self, session: &str, hold: &Hold, ticket: &Ticket) -> Answer<Vec<RunningLog>> {
        let (session, hold, ticket) = (session.into(), hold.clone(), ticket.clone());
        Self::later(self.shared.write(Write::Hold { session, hold, ticket }))
    }

    fn append(&self, _now: Ms, key: &StreamKey, epoch: Epoch, append: &Append, ticket: &Ticket) -> Answer<()> {
        if let Err(error) = append.check_size(self.max_event_bytes) {
            return Answer::Now(Err(error));
        }
        let (key, append, ticket) = (key.clone(), append.clone(), ticket.clone());
        Self::later(self.shared.write(Write::Append { key, epoch, append, ticket }))
    }

    fn abandon(&self, _key: &StreamKey, ticket: &Ticket) {
        self.shared.call_off(ticket);
    }

    fn attach(&self, session: &str, attach: &Attach, ticket: &Ticket) -> Answer<Attached> {
        let (session, attach, ticket) = (session.into(), attach.clone(), ticket.clone());
        Self::later(if attach.counts {
            self.shared.write(Write::Attach { session, attach, ticket })
        } else {
            self.shared.look(Look::Attach { session, attach, ticket })
        })
    }

    fn read(&self, key: &StreamKey, after: Seq, limit: ReadLimit, ticket: &Ticket) -> Answer<LogPage> {
        Self::later(self.shared.look(Look::Read { key: key.clone(), after, limit, ticket: ticket.clone() }))
    }

    fn release(&self, session: &str, epoch: Epoch) {
        self.tell(Write::Release { session: session.into(), epoch });
    }

    fn watch(&self, key: &StreamKey, watcher: &Watcher) {
        self.watching.watch(key, watcher);
    }

    fn unwatch(&self, key: &StreamKey, watcher: &Watcher) {
        self.watching.unwatch(key, watcher);
    }

    fn settle(&self, key: &StreamKey, epoch: Epoch, seq: Seq) {
        self.tell(Write::Settle { key: key.clone(), epoch, seq });
    }

    fn drop_stream(&self, key: &StreamKey, epoch: Epoch) {
        self.tell(Write::DropStream { key: key.clone(), epoch });
    }

    fn drop_session(&self, session: &str, epoch: Epoch) {
        self.tell(Write::DropSession { session: session.into(), epoch });
    }

    /// The writer does it by itself, with every sign of life, and on request.
    fn sweep(&self, _now: Ms) -> Ms {
        self.tell(Write::Sweep);
        Ms::NEVER
    }

    fn usage(&self) -> Usage {
        self.shared.usage()
    }

    fn answers_elsewhere(&self) -> bool {
        true
    }

    fn outlives_process(&self) -> bool {
        true
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        let Some(threads) = self.threads.take() else { return };
        self.shared.close();
        self.watching.close();
        // Where the process is about to fork they go on after that, which may need what the caller holds.
        if !forks::is_forking() {
            threads::join(threads);
        }
    }
}
