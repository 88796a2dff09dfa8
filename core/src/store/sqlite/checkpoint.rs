//! Moves what is in the write-ahead log into the database, and lets the log start over.
//!
//! That waits for the disk, several times, so the writer must not do it: with it on the writer's thread
//! every thousandth append took milliseconds.

use rusqlite::{Connection, Result};

use super::forks::Link;
use super::queue::Shared;

/// Bytes of commits after which it is done, about.
pub(super) const EVERY_BYTES: usize = 4 << 20;
/// A log with so many pages has to start over, even if the writer waits for that.
const MAX_PAGES: i64 = 16_384;

/// The thread: ends when the store is closed.
pub(super) fn run(file: &Link, shared: &Shared) {
    while shared.next_checkpoint() {
        if let Err(error) = file.with(|db, _| checkpoint(db)) {
            tracing::warn!(target: "tailrope", %error, "the log of the event store's file was not shortened");
        }
    }
}

fn checkpoint(db: &Connection) -> Result<()> {
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
