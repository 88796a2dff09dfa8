//! Moves what is in the write-ahead log into the database, and lets the log start over.
//!
//! That waits for the disk, several times, so the writer must not do it: with it on the writer's thread
//! every thousandth append took milliseconds. On a small disk, or one that is nearly full, it is done sooner, and the log's
//! file is cut: a log that fills the disk could not be moved any more, because the database needs room to grow.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rusqlite::{Connection, Result};

use super::forks::Link;

/// By so many pages, of 4 KiB each, the log may grow before it is done again.
const EVERY_PAGES: u32 = 900;
/// A log with so many pages has to start over, even if the writer waits for that.
const MAX_PAGES: i64 = 16_384;
/// By so many pages the log grows between two looks at the room on the disk.
const LOOK_PAGES: u32 = 32;
const PAGE_BYTES: u64 = 4 << 10;
/// So much of the disk is left to what frees room: signs of life, ends, and retention.
const RESERVE_BYTES: u64 = 256 << 10;
/// What a payload takes in the log and in the database, about, as pages are written whole.
const WRITTEN_TIMES: u64 = 4;

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

/// Says how many bytes are free on the disk.
pub(super) type Room = Box<dyn Fn() -> u64 + Send>;

/// What has to be done with the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// It may grow no further.
    Shorten,
    /// Its file is to be cut: the disk has little room.
    Cut,
}

/// What the writer knows of the log.
pub(super) struct Log {
    /// Its pages when it was last asked to be shortened, since it began.
    asked_at: u32,
    /// Its pages when the room on the disk is looked at next.
    looks_at: u32,
    room: Room,
    due: SyncSender<Due>,
}

impl Log {
    /// The other half is for the thread that shortens the log.
    pub(super) fn new(room: Room) -> (Self, Receiver<Due>) {
        let (due, is_due) = sync_channel(1);
        (Self { asked_at: 0, looks_at: LOOK_PAGES, room, due }, is_due)
    }

    /// Whether the disk has too little room for so many more bytes of payloads.
    pub(super) fn is_disk_full_for(&self, bytes: usize) -> bool {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        (self.room)() < RESERVE_BYTES.saturating_add(bytes.saturating_mul(WRITTEN_TIMES))
    }

    /// The writer has committed something.
    pub(super) fn written(&mut self) {
        let pages = PAGES.get();
        if pages < self.asked_at {
            // It has started over.
            self.asked_at = 0;
        }
        if pages < self.looks_at.saturating_sub(LOOK_PAGES) {
            self.looks_at = LOOK_PAGES;
        }
        let looks = pages >= self.looks_at;
        if looks {
            self.looks_at = pages + LOOK_PAGES;
        }
        // All that is in the log may need as much room again in the database.
        let is_tight = looks && (self.room)() < 2 * PAGE_BYTES * u64::from(pages);
        if is_tight || pages >= self.asked_at + EVERY_PAGES {
            let due = if is_tight { Due::Cut } else { Due::Shorten };
            self.asked_at = pages;
            // Where it was asked to be shortened before, that is still to be done.
            let _ = self.due.try_send(due);
        }
    }
}

/// The thread: ends when the writer does.
pub(super) fn run(file: &Link, is_due: &Receiver<Due>) {
    for due in is_due {
        if let Err(error) = file.with(|db, _| checkpoint(db, due)) {
            tracing::warn!(target: "tailrope", %error, "the log of the event store's file was not shortened");
        }
    }
}

pub(super) fn checkpoint(db: &Connection, due: Due) -> Result<()> {
    if due == Due::Cut {
        return run_once(db, "TRUNCATE").map(drop);
    }
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
