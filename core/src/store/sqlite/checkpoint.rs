//! Moves what is in the write-ahead log into the database, and lets the log start over.
//!
//! That waits for the disk, several times, so the writer must not do it: with it on the writer's thread
//! every thousandth append took milliseconds.

use std::cell::Cell;

use rusqlite::{Connection, Result};

use super::forks::Link;
use super::queue::Shared;

/// By so many pages, of 4 KiB each, the log may grow before it is done again.
const EVERY_PAGES: u32 = 900;
/// A log with so many pages has to start over, even if the writer waits for that.
const MAX_PAGES: i64 = 16_384;

thread_local! {
    /// The pages in the log after the last commit of this thread, whichever processes they are of.
    static PAGES: Cell<u32> = const { Cell::new(0) };
}

/// Lets this connection's commits be seen by [`Log`].
pub(super) fn count(db: &Connection) {
    db.wal_hook(Some(|_, pages| {
        PAGES.set(pages.unsigned_abs());
        Ok(())
    }));
}

/// What the writer knows of the log.
#[derive(Clone, Copy, Default)]
pub(super) struct Log {
    /// Its pages when it was last asked to be shortened, since it began.
    asked_at: u32,
}

impl Log {
    /// The writer has committed something.
    pub(super) fn written(&mut self, shared: &Shared) {
        let pages = PAGES.get();
        if pages < self.asked_at {
            // It has started over.
            self.asked_at = 0;
        }
        if pages >= self.asked_at + EVERY_PAGES {
            self.asked_at = pages;
            shared.ask_checkpoint();
        }
    }
}

/// The thread: ends when the store is closed.
pub(super) fn run(file: &Link, shared: &Shared) {
    while shared.next_checkpoint() {
        if let Err(error) = file.with(|db, _| checkpoint(db)) {
            tracing::warn!(target: "tailrope", %error, "the log of the event store's file was not shortened");
        }
    }
}

pub(super) fn checkpoint(db: &Connection) -> Result<()> {
    let pages = run_once(db, "PASSIVE")?;
    if pages > MAX_PAGES {
        // What has come since the first pass is little, and only that holds the writer up.
        run_once(db, "RESTART")?;
    }
    Ok(())
}

/// Returns the pages in the log.
fn run_once(db: &Connection, mode: &str) -> Result<i64> {
    db.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| row.get(1))
}
