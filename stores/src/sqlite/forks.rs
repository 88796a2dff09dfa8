//! Connections that are closed while their process forks.
//!
//! A child of a fork has a copy of all that SQLite knows of the files that were open: its mutexes, which a thread
//! that is not in the child may have locked, and file locks that only the parent has. With these it hangs, or
//! writes a log that its parent, being the last to have the file open as far as locks tell, throws away. So
//! nothing is open when the child begins.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, Result};

/// Who uses SQLite reads it; who forks writes to it.
static FORK: RwLock<()> = RwLock::new(());
/// Every connection of this process. Locked only with `FORK` held, so that no child finds it locked.
static OPEN: Mutex<Vec<Arc<Slot>>> = Mutex::new(Vec::new());

type Reopen = Box<dyn Fn() -> Result<Connection> + Send + Sync>;

/// A place for a connection, which is empty from a fork to the next use.
struct Slot {
    db: Mutex<Opened>,
    reopen: Reopen,
}

struct Opened {
    db: Option<Connection>,
    /// How often it was opened.
    times: u64,
}

/// Keeps forks away while SQLite is used. Not to be asked for twice by a thread.
fn keep_forks_away() -> RwLockReadGuard<'static, ()> {
    FORK.read().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a thread is about to fork: it may hold what others wait for (an interpreter's lock), so that who holds
/// that must not wait for it.
pub(super) fn is_forking() -> bool {
    matches!(FORK.try_read(), Err(TryLockError::WouldBlock))
}

/// A connection of one thread, opened again after a fork.
pub(super) struct Link(Arc<Slot>);

impl Link {
    /// `reopen` makes another like the one that `open` made.
    ///
    /// # Errors
    /// Those of `open`.
    pub(super) fn open<E>(
        open: impl FnOnce() -> Result<Connection, E>,
        reopen: impl Fn() -> Result<Connection> + Send + Sync + 'static,
    ) -> Result<Self, E> {
        let _no_fork = keep_forks_away();
        let opened = Opened { db: Some(open()?), times: 1 };
        let slot = Arc::new(Slot { db: Mutex::new(opened), reopen: Box::new(reopen) });
        lock(&OPEN).push(Arc::clone(&slot));
        Ok(Self(slot))
    }

    /// Uses the connection. The number changes when it is another one than before.
    ///
    /// # Errors
    /// Those of `work`, and that the file could not be opened again.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Connection, u64) -> Result<T>) -> Result<T> {
        let _no_fork = keep_forks_away();
        let mut opened = lock(&self.0.db);
        let Opened { db, times } = &mut *opened;
        let db = match db {
            Some(db) => db,
            None => {
                *times += 1;
                db.insert((self.0.reopen)()?)
            }
        };
        work(db, *times)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _no_fork = keep_forks_away();
        lock(&OPEN).retain(|slot| !Arc::ptr_eq(slot, &self.0));
        lock(&self.0.db).db = None;
    }
}

/// Until it is dropped nobody uses SQLite, and no file is open. Opening a store waits for that.
///
/// The thread that forks begins it before the fork and drops it after that, in both processes. The child cannot use
/// its parent's stores, whose threads it has not: it opens its own. It may drop those: that waits for nobody, and
/// writes nothing. Where a process forks without this, its child may hang when it opens a file
/// that was open, and lose what it writes to it.
pub struct Forking(#[expect(dead_code, reason = "held")] RwLockWriteGuard<'static, ()>);

impl Forking {
    /// Waits for the operations that are under way, up to seconds where another process has a file locked, and
    /// closes all files of this process. They are opened again when they are used.
    pub fn begin() -> Self {
        let forking = FORK.write().unwrap_or_else(PoisonError::into_inner);
        for slot in lock(&OPEN).iter() {
            if let Some(db) = lock(&slot.db).db.take() {
                // The last to close a file would write all of its log into it, and the fork would wait for that.
                let _ = db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
            }
        }
        Self(forking)
    }
}

impl fmt::Debug for Forking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Forking")
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
