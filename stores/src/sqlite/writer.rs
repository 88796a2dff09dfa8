//! The only thread that writes: takes what waits, does it in one transaction, answers.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, Result, TransactionBehavior, params};
use tailrope_core::Ms;
use tailrope_core::store::parts::{Fault, Kind, Mailbox, Take, Turn, beat_ms, next_beat};
use tailrope_core::store::{Durability, Usage};

use super::batch::{Batch, Totals};
use super::beat::{Beats, say_goodbye};
use super::checkpoint::{self, Due, Log};
use super::forks::{Link, lock};
use super::{Context, schema};

/// One transaction.
const TAKE: Take = Take { changes: true, questions: false, sessions: 256, operations: 256, bytes: 4 << 20 };
/// Pause before the log's file is cut again, where that has failed.
const BEFORE_CUT: Duration = Duration::from_millis(500);
/// Free pages that are given back to the file system at a time.
const VACUUM_PAGES: u32 = 256;

pub(super) struct Writer {
    pub(super) file: Link,
    pub(super) context: Arc<Context>,
    pub(super) beats: Beats,
    pub(super) log: Log,
    /// As of the last transaction.
    pub(super) usage: Arc<Mutex<Usage>>,
    /// Retention has more to remove than one transaction may.
    pub(super) is_more_over: bool,
    /// When the disk was full, and the log could not be cut.
    pub(super) has_no_room: Option<Instant>,
    /// The disk was full when it was looked at last.
    pub(super) was_full: bool,
}

impl Writer {
    /// The thread: ends when the store is closed and everything is written.
    pub(super) fn run(mut self, mailbox: &Mailbox) {
        let pause = Duration::from_millis(beat_ms(self.context.owner_lost_ms));
        let began = Instant::now();
        let mut beat_due = next_beat(began, pause);
        loop {
            let until = if self.is_more_over { Instant::now() } else { beat_due };
            match mailbox.next_until(&TAKE, Some(until)) {
                Turn::Batch(batch) => {
                    let is_claim = batch.iter().any(|op| op.ask.is_claim());
                    // What frees room still has some.
                    let is_full = self.log.is_disk_full_for(batch.iter().map(|op| op.ask.bytes()).sum());
                    let done = self.with_room(|writer| {
                        writer.transact(is_claim, |changes| {
                            changes.is_disk_full = is_full;
                            batch.iter().map(|op| changes.perform(op)).collect()
                        })
                    });
                    match done {
                        Ok(outcomes) => mailbox.done(batch, outcomes),
                        Err(error) => mailbox.failed(batch, &fault(&error)),
                    }
                }
                Turn::Wait(_) => {}
                Turn::Over => break,
            }
            // Under load, too: a writer that is busy is alive.
            let given = Instant::now();
            let done = if given >= beat_due {
                let now = Ms(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX));
                let done = self.with_room(|writer| writer.live(now));
                if done.is_ok() {
                    mailbox.reach.back();
                    self.look_for_room(mailbox);
                }
                beat_due = next_beat(if done.is_ok() { given } else { Instant::now() }, pause);
                done
            } else if self.is_more_over {
                // A portion between two batches of the callers, for as long as there is more.
                self.with_room(Self::sweep)
            } else {
                Ok(())
            };
            if let Err(error) = done {
                mailbox.reach.lost(&schema::said(&error));
            }
        }
        if let Err(error) = self.file.with(|db, _| say_goodbye(db, &self.context)) {
            tracing::warn!(target: "tailrope", %error, "event store not closed properly");
        }
    }

    /// Whether there is room is known before anybody writes.
    fn look_for_room(&mut self, mailbox: &Mailbox) {
        let was_full = std::mem::replace(&mut self.was_full, self.log.is_disk_full_for(0));
        if self.was_full {
            mailbox.reach.refused(&schema::DISK_FULL);
        } else if was_full {
            mailbox.reach.stored();
        }
    }

    /// Does something, and if the disk is full for it once more, with the room that the log has given back.
    fn with_room<T>(&mut self, work: impl Fn(&mut Self) -> Result<T>) -> Result<T> {
        match work(self) {
            Err(error) if schema::may_lack_room(&error) && self.make_room() => work(self),
            done => done,
        }
    }

    /// Moves what is in the log into the database, and cuts the log's file. Where that failed, it is not tried again for a while.
    fn make_room(&mut self) -> bool {
        if self.has_no_room.is_some_and(|since| since.elapsed() < BEFORE_CUT) {
            return false;
        }
        let is_done = self.file.with(|db, _| checkpoint::checkpoint(db, Due::Cut)).is_ok();
        self.has_no_room = (!is_done).then(Instant::now);
        is_done
    }

    /// Does this work in one transaction, or nothing of it. What is a claim is on the disk then.
    fn transact<T>(&mut self, is_claim: bool, work: impl FnOnce(&mut Batch<'_>) -> Result<T>) -> Result<T> {
        let trimmed = lock(&self.usage).trimmed;
        let waits = is_claim || self.context.durability == Durability::Power;
        let (value, usage) = self.file.with(|db, _| {
            schema::wait_for_disk(db, waits)?;
            // Dropped without a commit, it is rolled back.
            let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let mut batch = Batch::new(&transaction, &self.context, self.context.now());
            let value = work(&mut batch)?;
            batch.close()?;
            let usage = count(&transaction, batch.totals, trimmed)?;
            transaction.commit()?;
            Ok((value, usage))
        })?;
        self.log.written();
        *lock(&self.usage) = usage;
        Ok(value)
    }

    /// What time asks for, or a portion of it.
    fn sweep(&mut self) -> Result<()> {
        self.is_more_over = false;
        self.is_more_over = self.transact(false, |batch| batch.sweep())?;
        Ok(())
    }

    /// A sign of life, and what time asks for.
    fn live(&mut self, now: Ms) -> Result<()> {
        self.beats.beat(&self.file, &self.context, now)?;
        self.sweep()?;
        self.file.with(|db, _| db.execute_batch(&format!("PRAGMA incremental_vacuum({VACUUM_PAGES})")))
    }
}

/// Why a transaction was not done. Where the file is not at fault, one of the operations may be.
fn fault(error: &rusqlite::Error) -> Fault {
    use ErrorCode::{CannotOpen, DatabaseBusy, DatabaseCorrupt, DatabaseLocked, NotADatabase, ReadOnly};
    let kind = match error.sqlite_error_code() {
        Some(DatabaseBusy | DatabaseLocked) => Kind::Passes,
        Some(CannotOpen | DatabaseCorrupt | NotADatabase | ReadOnly) => Kind::Lasts,
        _ => Kind::OfOne,
    };
    Fault { what: schema::said(error), kind, was_sent: false }
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

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::Receiver;

    use super::*;
    use crate::sqlite::checkpoint::Room;
    use tailrope_core::store::contract::Caller;
    use tailrope_core::store::parts::Ask;
    use tailrope_core::store::{Epoch, Hold, Limits, StoreOptions, WallClock};

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tailrope-{name}-{}", std::process::id()));
            // A process of the same id that was killed has left it.
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn writer(path: &Path, context: Context) -> (Writer, Receiver<Due>) {
        writer_on(path, context, Box::new(|| u64::MAX))
    }

    fn writer_on(path: &Path, context: Context, room: Room) -> (Writer, Receiver<Due>) {
        let again = path.to_owned();
        let open = || schema::open_writer(path, Durability::Process, "");
        let file = Link::open(open, move || schema::open_reader(&again)).unwrap();
        let (beats, (log, is_due)) = (Beats::new(context.owner_lost_ms), Log::new(room));
        let (context, usage) = (Arc::new(context), Arc::default());
        (Writer { file, context, beats, log, usage, is_more_over: false, has_no_room: None, was_full: false }, is_due)
    }

    #[test]
    fn a_day_of_beats_leaves_a_short_log() {
        let folder = Folder::new("beats");
        let (mut writer, is_due) = writer(&folder.0.join("a.db"), Context::of(1, 10_000));
        let mut longest = 0;
        for now in (0..86_400_000).step_by(2_500) {
            writer.live(Ms(now)).unwrap();
            if let Ok(due) = is_due.try_recv() {
                writer.file.with(|db, _| checkpoint::checkpoint(db, due)).unwrap();
            }
            longest = longest.max(std::fs::metadata(folder.0.join("a.db-wal")).unwrap().len());
            assert!(longest < 4 << 20, "{longest} bytes after {now} ms");
        }
        assert!(longest > 0, "beats are written");
    }

    #[test]
    fn a_small_disk_is_not_filled_by_the_log() {
        let folder = Folder::new("small-disk");
        let taken = |folder: &Path| {
            let bytes = |name| std::fs::metadata(folder.join(name)).map_or(0, |file| file.len());
            bytes("a.db") + bytes("a.db-wal")
        };
        let (path, disk) = (folder.0.clone(), 1 << 20);
        let room: Room = Box::new(move || disk - taken(&path).min(disk));
        let (mut writer, is_due) = writer_on(&folder.0.join("a.db"), Context::of(1, 10_000), room);
        for now in (0..2_500_000).step_by(2_500) {
            writer.live(Ms(now)).unwrap();
            if let Ok(due) = is_due.try_recv() {
                writer.file.with(|db, _| checkpoint::checkpoint(db, due)).unwrap();
            }
            assert!(taken(&folder.0) < disk, "{} bytes after {now} ms", taken(&folder.0));
        }
    }

    #[test]
    fn o1_who_has_a_session_is_on_the_disk_whatever_its_events_are() {
        let folder = Folder::new("claims");
        let (mut writer, _is_due) = writer(&folder.0.join("a.db"), Context::of(1, 10_000));
        let waits = |writer: &mut Writer, ask: Option<Ask>| {
            let is_claim = ask.as_ref().is_some_and(Ask::is_claim);
            writer.transact(is_claim, |_| Ok(())).unwrap();
            let read = |db: &Connection| db.pragma_query_value(None, "synchronous", |row| row.get::<_, i64>(0));
            writer.file.with(|db, _| read(db)).unwrap() == 2
        };
        let epoch = Epoch::default();
        for claim in [
            Ask::Hold(Hold { epoch, seen: None, record: None }),
            Ask::Take { epoch, after: 0 },
            Ask::Withdraw { nonce: tailrope_core::protocol::StreamNonce::NONE, end: bytes::Bytes::new() },
            Ask::Release { epoch },
            Ask::DropSession { epoch },
        ] {
            assert!(waits(&mut writer, Some(claim)));
            assert!(!waits(&mut writer, None), "what comes then waits no more");
        }
        let settled = Ask::Settle { nonce: tailrope_core::protocol::StreamNonce::NONE, epoch, seq: 1 };
        assert!(!waits(&mut writer, Some(settled)));
    }

    /// Computers are suspended, clocks are set, and an age may be shorter than the pause between two signs.
    #[test]
    fn time_takes_nothing_from_an_owner_that_lives() {
        let folder = Folder::new("ages");
        let path = folder.0.join("a.db");
        let time = Arc::new(AtomicU64::new(1_000_000));
        let clock = Arc::clone(&time);
        let clock: WallClock = Arc::new(move || clock.load(Ordering::SeqCst));
        let options = StoreOptions { wall_clock: Some(Arc::clone(&clock)), ..StoreOptions::default() };
        let owner = crate::sqlite::open(&path, &options).unwrap();
        Caller::new(&owner, Ms(0)).open("s", 1);
        let limits = Limits { max_age_ms: 1, ..Limits::default() };
        let (mut other, _is_due) = writer(&path, Context { limits, clock: Some(clock), ..Context::of(1, 10_000) });
        for now in [0, 2_500, 5_000, 7_499] {
            time.fetch_add(86_400_000, Ordering::SeqCst);
            other.live(Ms(now)).unwrap();
            assert_eq!(lock(&other.usage).sessions, 1, "after {now} ms");
        }
        drop(owner);
        time.fetch_add(2, Ordering::SeqCst);
        other.live(Ms(7_500)).unwrap();
        assert_eq!(lock(&other.usage).sessions, 0, "it has closed its store");
    }
}
