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
mod inbox;
mod looking;
mod reader;
mod schema;
mod trim;
mod watching;
mod writer;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tailrope_core::Ms;
use tailrope_core::store::parts::{Backend, Mailbox, Pulse, Queued, Threads};
use tailrope_core::store::{Durability, Limits, StoreOptions, Usage, WallClock, Watcher};

use beat::{Beats, Others};
use checkpoint::{Log, Room};
pub use forks::Forking;
use forks::{Link, lock};
pub(crate) use looking::Looking;
use watching::Watching;
use writer::Writer;

use crate::OpenError;

/// How long a store that goes away may take to write what waits.
const CLOSING: Duration = Duration::from_secs(60);
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
    pulse: Arc<Pulse>,
    clock: Option<WallClock>,
    durability: Durability,
}

impl Context {
    #[cfg(test)]
    fn of(owner: i64, owner_lost_ms: u64) -> Self {
        let pulse = Arc::new(Pulse::new(owner_lost_ms));
        let (limits, others, durability) = Default::default();
        Self { limits, owner_lost_ms, owner, others, pulse, clock: None, durability }
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

/// An event store in a file, with write-ahead log. See [`open`](crate::open).
///
/// Dropping it writes what waits, for a minute at most. Dropped while the process forks ([`Forking`]), it does so after
/// that.
pub type SqliteStore = Queued<SqliteFile>;

/// What a [`SqliteStore`] has besides its operations.
pub struct SqliteFile {
    usage: Arc<Mutex<Usage>>,
    watching: Arc<Watching>,
    pulse: Arc<Pulse>,
}

/// Opens the file, or creates it. This waits for the disk.
///
/// # Errors
/// [`OpenError`] when the path is wrong or cannot be written, when the file is not ours, damaged
/// or of another version.
pub fn open(path: &Path, options: &StoreOptions) -> Result<SqliteStore, OpenError> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let folder = absolute.parent().unwrap_or(&absolute).to_owned();
    open_with(path, options, Box::new(move || disk::free_bytes(&folder).unwrap_or(u64::MAX)))
}

fn open_with(path: &Path, options: &StoreOptions, room: Room) -> Result<SqliteStore, OpenError> {
    let shown = crate::shown_address(&format!("sqlite:{}", path.display()));
    let StoreOptions { limits, owner_lost_ms, durability, .. } = *options;
    let mut owner = [0; 8];
    getrandom::fill(&mut owner).map_err(|error| OpenError::new(&shown, format!("no random numbers: {error}")))?;
    let (owner, others, clock) = (i64::from_le_bytes(owner), Others::default(), options.wall_clock.clone());
    let pulse = Arc::new(Pulse::new(owner_lost_ms));
    let pulse_of_owner = Arc::clone(&pulse);
    let context = Context { limits, owner_lost_ms, owner, others, pulse: pulse_of_owner, clock, durability };
    let context = Arc::new(context);
    // The process may be in another folder when it forks.
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let again = absolute.clone();
    let file = Link::open(
        || schema::open_writer(path, durability, &shown),
        move || schema::open_writer_again(&again, durability),
    )?;
    let refused = |error| schema::refusal(&shown, &error);
    let mut beats = Beats::new(owner_lost_ms);
    beats.beat(&file, &context, Ms(0)).map_err(refused)?;
    let open_reader = move || schema::open_reader(&absolute);
    let reader = || Link::open(&open_reader, open_reader.clone()).map_err(refused);
    let (reading, shortening, looking) = (reader()?, reader()?, reader()?);
    let (usage, watching) = (Arc::default(), Arc::<Watching>::default());
    let mailbox = Arc::new(Mailbox::new(schema::BUSY, CLOSING));
    let (log, is_due) = Log::new(room);
    let shared = || (Arc::clone(&mailbox), Arc::clone(&watching), Arc::clone(&context));
    let ((for_writer, ..), (for_reader, _, reads), (_, watched, looks)) = (shared(), shared(), shared());
    let backend = SqliteFile { usage: Arc::clone(&usage), watching, pulse };
    let writer = Writer { file, context, beats, log, usage, is_more_over: false, has_no_room: None, was_full: false };
    let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        thread.map_err(|error| OpenError::new(&shown, format!("no thread for it: {error}")))
    };
    let threads = vec![
        spawn("tailrope-write", Box::new(move || writer.run(&for_writer)))?,
        spawn("tailrope-read", Box::new(move || reader::run(&reading, &for_reader, &reads)))?,
        spawn("tailrope-wal", Box::new(move || checkpoint::run(&shortening, &is_due)))?,
        spawn("tailrope-watch", Box::new(move || watching::run(&looking, &watched, &looks)))?,
    ];
    Ok(SqliteStore::new(mailbox, limits.max_event_bytes, Threads::new(threads), backend))
}

/// The writer applies retention by itself, with every sign of life.
impl Backend for SqliteFile {
    fn watch(&self, session: &Arc<str>, watcher: &Watcher) {
        self.watching.watch(session, watcher);
    }

    fn unwatch(&self, session: &str, watcher: &Watcher) {
        self.watching.unwatch(session, watcher);
    }

    fn usage(&self) -> Usage {
        *lock(&self.usage)
    }

    fn close(&self) {
        self.watching.close();
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

    /// Where the process is about to fork they go on after that, which may need what the caller holds.
    fn may_wait(&self) -> bool {
        !forks::is_forking()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use tailrope_core::store::contract::{Caller, progress};
    use tailrope_core::store::{EventStore, StoreError};

    /// A store in a folder of its own, on a disk that has as many bytes free as the test says: at first more than it takes.
    fn on_a_disk(name: &str) -> (SqliteStore, Arc<AtomicU64>, std::path::PathBuf) {
        let folder = std::env::temp_dir().join(format!("tailrope-{name}-{}", std::process::id()));
        // A process of the same id may have left it.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let free = Arc::new(AtomicU64::new(u64::MAX));
        let room = Arc::clone(&free);
        let room: Room = Box::new(move || room.load(Ordering::SeqCst));
        let store = open_with(&folder.join("a.db"), &StoreOptions::default(), room).unwrap();
        (store, free, folder)
    }

    #[test]
    fn a_disk_without_room_is_known_whether_or_not_anybody_writes() {
        let (store, free, folder) = on_a_disk("full");
        let known = |is_refused: bool, meanwhile: &dyn Fn()| {
            let until = std::time::Instant::now() + Duration::from_secs(60);
            while store.refused_ms().is_some() != is_refused {
                assert!(std::time::Instant::now() < until, "refused: {:?}", store.refused_ms());
                meanwhile();
            }
        };
        let idle = || std::thread::sleep(Duration::from_millis(10));
        let caller = Caller::new(&store, Ms(0));
        let log = caller.open("s", 1);
        assert_eq!(store.refused_ms(), None);
        for meanwhile in [&idle as &dyn Fn(), &|| drop(caller.append(&log, 1, &[progress("a")]))] {
            free.store(0, Ordering::SeqCst);
            known(true, meanwhile);
            assert_eq!(store.away_ms(), None, "it is there");
            free.store(u64::MAX, Ordering::SeqCst);
            known(false, meanwhile);
        }
        drop(store);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_frees_room_has_some_left_on_a_full_disk() {
        let (store, free, folder) = on_a_disk("reserve");
        let caller = Caller::new(&store, Ms(0));
        let (mut log, other) = (caller.open("s", 1), caller.open("s", 2));
        caller.push(&mut log, &[progress("a")]);
        free.store(300 << 10, Ordering::SeqCst);
        caller.push(&mut log, &[progress("b")]);
        let full = Err(StoreError::Failed("the disk is full".to_owned()));
        assert_eq!(caller.append(&log, 3, &[progress(&"c".repeat(64 << 10))]), full, "it needs more than there is");
        free.store(0, Ordering::SeqCst);
        assert_eq!(caller.append(&log, 3, &[progress("c")]), full);
        assert!(caller.post(&log, b"a message").is_err());
        assert_eq!(caller.finish(&log, b"the end"), Ok(()), "retention frees it");
        store.drop_stream(&other.key, caller.epoch);
        caller.assert_usage("what goes, goes", |usage| usage.streams == 1);
        free.store(u64::MAX, Ordering::SeqCst);
        caller.open("s", 3);
        drop(store);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
