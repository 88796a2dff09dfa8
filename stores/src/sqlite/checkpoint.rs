//! Moves what is in the write-ahead log into the database, and lets the log start over.
//!
//! That waits for the disk, several times, so the writer must not do it: with it on the writer's thread
//! every thousandth append took milliseconds.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rusqlite::{Connection, Result};

use super::forks::Link;

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
pub(super) struct Log {
    /// Its pages when it was last asked to be shortened, since it began.
    asked_at: u32,
    due: SyncSender<()>,
}

impl Log {
    /// The other half is for the thread that shortens the log.
    pub(super) fn new() -> (Self, Receiver<()>) {
        let (due, is_due) = sync_channel(1);
        (Self { asked_at: 0, due }, is_due)
    }

    /// The writer has committed something.
    pub(super) fn written(&mut self) {
        let pages = PAGES.get();
        if pages < self.asked_at {
            // It has started over.
            self.asked_at = 0;
        }
        if pages >= self.asked_at + EVERY_PAGES {
            self.asked_at = pages;
            // Where it was asked to be shortened before, that is still to be done.
            let _ = self.due.try_send(());
        }
    }
}

/// The thread: ends when the writer does.
pub(super) fn run(file: &Link, is_due: &Receiver<()>) {
    for () in is_due {
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
