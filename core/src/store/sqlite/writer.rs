//! The only thread that writes: takes what waits, does it in one transaction, answers.

use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, Result, TransactionBehavior, params};

use super::batch::{Batch, Totals};
use super::beat::{Beats, say_goodbye};
use super::checkpoint::Log;
use super::forks::Link;
use super::queue::{Look, Shared, Turn, Write};
use super::schema::{BUSY, is_busy};
use super::{Context, failed};
use crate::Ms;
use crate::store::{Outcome, StoreError, Usage};

/// Free pages that are given back to the file system at a time.
const VACUUM_PAGES: u32 = 256;

struct Writer<'a> {
    file: &'a Link,
    shared: &'a Shared,
    context: &'a Context,
    beats: Beats,
    /// Positions that were trimmed, over all transactions.
    trimmed: u64,
    /// Retention has more to remove than one transaction may.
    is_more_over: bool,
    log: Log,
}

/// The writer's thread: ends when the store is closed and everything is written.
pub(super) fn run(file: &Link, shared: &Shared, context: &Context, beats: Beats) {
    let pause = Duration::from_millis(context.owner_lost_ms.div_ceil(3).max(10));
    let mut writer = Writer::new(file, shared, context, beats);
    let began = Instant::now();
    let mut beat_due = began + pause;
    loop {
        match shared.next_turn(if writer.is_more_over { Instant::now() } else { beat_due }) {
            Turn::Batch(writes, looks) => {
                let outcomes = writer.commit(&writes);
                answer(shared, writes, looks, outcomes);
            }
            Turn::Idle => {}
            Turn::Closed => break,
        }
        // Under load, too: a writer that is busy is alive.
        if Instant::now() >= beat_due {
            writer.live(Ms(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)));
            beat_due = Instant::now() + pause;
        } else if writer.is_more_over {
            // A portion between two batches of the callers, for as long as there is more.
            writer.sweep();
        }
    }
    if let Err(error) = file.with(|db, _| say_goodbye(db, context)) {
        tracing::warn!(target: "tailrope", %error, "event store not closed properly");
    }
    shared.close_looks();
}

impl<'a> Writer<'a> {
    fn new(file: &'a Link, shared: &'a Shared, context: &'a Context, beats: Beats) -> Self {
        Self { file, shared, context, beats, trimmed: 0, is_more_over: false, log: Log::default() }
    }

    /// Commits the writes together; when that fails, one by one, so that a bad one harms no other (I9).
    fn commit(&mut self, writes: &[Write]) -> Vec<Outcome> {
        match self.transact(writes) {
            Ok(outcomes) => outcomes,
            Err(error) if writes.len() > 1 && !is_for_all(&error) => {
                writes.iter().filter_map(|write| self.commit(std::slice::from_ref(write)).pop()).collect()
            }
            Err(error) => writes.iter().map(|write| not_done(write, &error)).collect(),
        }
    }

    fn transact(&mut self, writes: &[Write]) -> Result<Vec<Outcome>> {
        if writes.is_empty() {
            return Ok(Vec::new());
        }
        let (outcomes, usage, is_more_over) = self.file.with(|db, _| {
            // Dropped without a commit, it is rolled back.
            let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let mut batch = Batch::new(&transaction, self.context, self.context.now());
            let outcomes = writes.iter().map(|write| batch.write(write)).collect::<Result<Vec<_>>>()?;
            batch.close()?;
            let (totals, is_more_over) = (batch.totals, batch.is_more_over);
            let usage = count(&transaction, totals, self.trimmed)?;
            transaction.commit()?;
            Ok((outcomes, usage, is_more_over))
        })?;
        self.trimmed = usage.trimmed;
        self.log.written(self.shared);
        if writes.iter().any(|write| matches!(write, Write::Sweep)) {
            self.is_more_over = is_more_over;
        }
        self.shared.publish(usage);
        Ok(outcomes)
    }

    /// More of what time asks for. What fails is tried again with the next sign of life.
    fn sweep(&mut self) {
        self.is_more_over = false;
        if let Err(error) = self.transact(&[Write::Sweep]) {
            tracing::warn!(target: "tailrope", %error, "event store did not apply its retention");
        }
    }

    /// A sign of life, and what time asks for.
    fn live(&mut self, now: Ms) {
        let vacuum = |db: &Connection| db.execute_batch(&format!("PRAGMA incremental_vacuum({VACUUM_PAGES})"));
        let beat = self.beats.beat(self.file, self.context, now);
        let done = beat.and_then(|()| self.transact(&[Write::Sweep])).and_then(|_| self.file.with(|db, _| vacuum(db)));
        if let Err(error) = done {
            tracing::warn!(target: "tailrope", %error, "event store gave no sign of life");
        }
    }
}

/// Hands the questions that waited to the reader, and tells everybody what became of their writes.
fn answer(shared: &Shared, writes: Vec<Write>, looks: Vec<Look>, outcomes: Vec<Outcome>) {
    if !looks.is_empty() {
        shared.hand_over(looks.into_iter());
    }
    for (write, outcome) in writes.into_iter().zip(outcomes) {
        if let Some(ticket) = write.ticket() {
            ticket.complete(outcome);
        } else if let Outcome::Done(Err(error)) = outcome {
            tracing::error!(target: "tailrope", %error, "event store did not do what it was told");
        }
    }
}

/// A file that is locked for long is free some time: whoever writes asks again.
fn not_done(write: &Write, error: &rusqlite::Error) -> Outcome {
    let mut why = failed(error);
    if is_busy(error) {
        tracing::warn!(target: "tailrope", error = %why, "the event store was not written in time");
        why = StoreError::TimedOut { after_ms: BUSY.as_millis().try_into().unwrap_or(u64::MAX) };
    }
    match write {
        Write::Hold { .. } => Outcome::Held(Err(why)),
        Write::Attach { .. } => Outcome::Attached(Err(why)),
        _ => Outcome::Done(Err(why)),
    }
}

/// Whether trying one by one would only take long.
fn is_for_all(error: &rusqlite::Error) -> bool {
    use ErrorCode::{CannotOpen, DatabaseBusy, DatabaseCorrupt, DatabaseLocked, NotADatabase, ReadOnly};
    let code = error.sqlite_error_code();
    code.is_some_and(|code| {
        [CannotOpen, DatabaseBusy, DatabaseCorrupt, DatabaseLocked, NotADatabase, ReadOnly].contains(&code)
    })
}

/// Brings `total` up to date.
fn count(db: &Connection, totals: Totals, trimmed: u64) -> Result<Usage> {
    let read = |row: &rusqlite::Row<'_>| {
        let column = |at| row.get::<_, i64>(at).map(|count| count.max(0).cast_unsigned());
        Ok(Usage {
            sessions: column(0)?,
            streams: column(1)?,
            events: column(2)?,
            bytes: column(3)?,
            trimmed: trimmed + totals.trimmed,
        })
    };
    if (Totals { trimmed: 0, ..totals }) == Totals::default() {
        return db.prepare_cached("SELECT sessions, streams, events, bytes FROM total")?.query_row([], read);
    }
    let Totals { sessions, streams, events, bytes, .. } = totals;
    db.prepare_cached(
        "UPDATE total SET sessions = sessions + ?1, streams = streams + ?2, events = events + ?3, bytes = bytes + ?4
         RETURNING sessions, streams, events, bytes",
    )?
    .query_row(params![sessions, streams, events, bytes], read)
}

/// What a store fault is called where it must say nothing of the file.
pub(super) fn fault(error: &rusqlite::Error) -> StoreError {
    StoreError::Failed(match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => "another process kept the file locked".to_owned(),
        Some(ErrorCode::DiskFull) => "the disk is full".to_owned(),
        // SQLite would name the file.
        Some(ErrorCode::CannotOpen) => "the file cannot be opened".to_owned(),
        Some(code) => format!("SQLite said {code:?}: {error}"),
        None => error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Durability;
    use crate::store::sqlite::{checkpoint, schema};

    #[test]
    fn a_day_of_beats_leaves_a_short_log() {
        let folder = std::env::temp_dir().join(format!("tailrope-beats-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("events.db");
        let open = || schema::open_writer(&path, Durability::Process, "");
        let again = path.clone();
        let file = Link::open(open, move || schema::open_reader(&again)).unwrap();
        let (shared, context) = (Shared::default(), Context::of(1, 10_000));
        let mut writer = Writer::new(&file, &shared, &context, Beats::new(context.owner_lost_ms));
        let mut longest = 0;
        for now in (0..86_400_000).step_by(3_334) {
            writer.live(Ms(now));
            if shared.is_checkpoint_due() {
                assert!(shared.next_checkpoint());
                file.with(|db, _| checkpoint::checkpoint(db)).unwrap();
            }
            longest = longest.max(std::fs::metadata(folder.join("events.db-wal")).unwrap().len());
            assert!(longest < 4 << 20, "{longest} bytes after {now} ms");
        }
        assert!(longest > 0, "beats are written");
        drop(file);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
