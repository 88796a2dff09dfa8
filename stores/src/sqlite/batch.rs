//! One transaction: what callers asked for, on rows that are loaded once and written back once.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Result, params};
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::parts::{Ask, Op};
use tailrope_core::store::{
    Append, Attach, Attached, Chain, Epoch, EventKind, Hold, LogState, Outcome, Paced, RunningLog, Seq, SessionRecord,
    StoreError, StreamKey, Verdict,
};

use super::{Context, EVENT_OVERHEAD, LOG_OVERHEAD, reader, schema};

/// Refused for its own sake, or done. An error of SQLite fails the transaction.
pub(super) type Reply<T> = std::result::Result<T, StoreError>;

/// What the `total` row and the counter of trimmed positions change by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) sessions: i64,
    pub(super) streams: i64,
    pub(super) events: i64,
    pub(super) bytes: i64,
    pub(super) trimmed: u64,
}

/// A session's row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) id: i64,
    owner: i64,
    epoch: Epoch,
    is_released: bool,
}

/// A stream's row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) id: i64,
    pub(super) session: i64,
    pub(super) head: i64,
    pub(super) low: i64,
    /// The tag at `low - 1`.
    pub(super) low_tag: u32,
    /// When the event at `low` was stored.
    pub(super) low_at: i64,
    pub(super) chain: i64,
    /// Events in the table, those that outlived the trimmed prefix included.
    pub(super) events: i64,
    pub(super) bytes: i64,
    /// Until when it is kept, where it has its end.
    pub(super) kept_until: Option<i64>,
    changed: bool,
    grown: bool,
}

impl Row {
    pub(super) const COLUMNS: &'static str =
        "id, session, head, low, low_tag, low_at, chain, events, bytes, kept_until";

    /// Reads a row of [`COLUMNS`](Self::COLUMNS).
    pub(super) fn read(row: &rusqlite::Row<'_>) -> Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            session: row.get(1)?,
            head: reader::amount(row, 2)?,
            low: reader::amount(row, 3)?,
            low_tag: reader::low_bits(row, 4)?,
            low_at: reader::amount(row, 5)?,
            chain: row.get(6)?,
            events: reader::amount(row, 7)?,
            bytes: reader::amount(row, 8)?,
            kept_until: row.get(9)?,
            changed: false,
            grown: false,
        })
    }
}

pub(super) struct Batch<'a> {
    pub(super) db: &'a Connection,
    pub(super) context: &'a Context,
    /// Unix time in milliseconds.
    pub(super) now: i64,
    pub(super) totals: Totals,
    /// Streams that were written to, with their sessions.
    pub(super) written: Vec<(i64, i64)>,
    /// Retention removed as much as one transaction may: there may be more.
    pub(super) is_more_over: bool,
    /// What would fill the disk is refused.
    pub(super) is_disk_full: bool,
    rows: HashMap<StreamKey, Option<Row>>,
    sessions: HashMap<Arc<str>, Option<Session>>,
    /// Sessions whose logs changed, and by what their `bytes` did.
    growth: HashMap<i64, i64>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(db: &'a Connection, context: &'a Context, now: i64) -> Self {
        let (totals, written, rows, sessions, growth) = Default::default();
        Self { db, context, now, totals, written, is_more_over: false, is_disk_full: false, rows, sessions, growth }
    }

    /// Does an operation that changes something. What has no answer has no outcome.
    pub(super) fn perform(&mut self, op: &Op) -> Result<Option<Outcome>> {
        let session = &op.session;
        let key = |nonce| StreamKey { session: Arc::clone(session), nonce };
        if self.is_disk_full && op.ask.grows() && !op.is_unsure {
            return Ok(op
                .ticket
                .as_ref()
                .map(|ticket| Outcome::failed(ticket.operation, StoreError::Failed(schema::DISK_FULL.to_owned()))));
        }
        match &op.ask {
            Ask::Hold(hold) => return Ok(Some(Outcome::Held(self.hold(session, hold)?))),
            Ask::Append { nonce, epoch, append } => {
                return Ok(Some(Outcome::Done(self.append(&key(*nonce), *epoch, append)?)));
            }
            Ask::Attach(attach) => return Ok(Some(Outcome::Attached(self.attach(session, attach)?))),
            Ask::Take { epoch, after } => return Ok(Some(Outcome::Taken(self.take(session, *epoch, *after)?))),
            Ask::Withdraw { nonce, end } => return Ok(Some(Outcome::Withdrawn(self.withdraw(&key(*nonce), end)?))),
            Ask::Settle { nonce, epoch, seq } => self.settle(&key(*nonce), *epoch, *seq)?,
            Ask::DropStream { nonce, epoch } => self.drop_stream(&key(*nonce), *epoch)?,
            Ask::DropSession { epoch } => self.drop_session(session, *epoch)?,
            Ask::Release { epoch } => self.release(session, *epoch)?,
            _ => {}
        }
        Ok(None)
    }

    fn hold(&mut self, name: &Arc<str>, hold: &Hold) -> Result<Reply<Vec<RunningLog>>> {
        let (db, owner, epoch) = (self.db, self.context.owner, hold.epoch);
        let known = self.session(name)?;
        match known {
            Some(known) if known.epoch != epoch && !hold.replaces(known.epoch) => {
                return Ok(Err(StoreError::Fenced));
            }
            None if hold.seen.is_some() || hold.record.is_none() || self.has_ended(name)? => {
                return Ok(Err(StoreError::Gone));
            }
            _ => {}
        }
        let id = match known {
            Some(known) if known == (Session { id: known.id, owner, epoch, is_released: false }) => known.id,
            _ => self.own(name, epoch)?,
        };
        self.totals.sessions += i64::from(known.is_none());
        if known.is_some_and(|known| known.owner != owner) {
            self.tell_owners()?;
        }
        if known.is_some_and(|known| known.epoch != epoch) {
            self.forget_taken(id, i64::MAX)?;
        }
        if let Some(record) = &hold.record {
            self.put_record(id, record)?;
        }
        if hold.seen.is_none() {
            return Ok(Ok(Vec::new()));
        }
        self.trim_streams()?;
        let mut select = db.prepare_cached(
            "SELECT nonce, head, chain, about FROM stream WHERE session = ?1 AND kept_until IS NULL
             AND NOT EXISTS (SELECT 1 FROM message WHERE number = stream.message AND taken = 0)",
        )?;
        let running = select.query_map(params![id], |row| {
            let Some(nonce) = reader::nonce(row, 0)? else { return Ok(None) };
            let (head, chain) = (reader::count(row, 1)?, row.get::<_, i64>(2)?.cast_unsigned());
            Ok(Some(RunningLog { nonce, head, chain, about: row.get::<_, Vec<u8>>(3)?.into() }))
        })?;
        running.filter_map(Result::transpose).collect::<Result<_>>().map(Ok)
    }

    /// From now on the session is there, and this store object's.
    fn own(&mut self, name: &Arc<str>, epoch: Epoch) -> Result<i64> {
        let mut upsert = self.db.prepare_cached(
            "INSERT INTO session (name, owner, epoch, salt) VALUES (?1, ?2, ?3, ?4) ON CONFLICT (name) DO UPDATE
             SET owner = excluded.owner, epoch = excluded.epoch, salt = excluded.salt, released = NULL RETURNING id",
        )?;
        let owner = self.context.owner;
        let values = params![&**name, owner, epoch.number.cast_signed(), epoch.salt.cast_signed()];
        let id = upsert.query_row(values, |row| row.get(0))?;
        self.sessions.insert(Arc::clone(name), Some(Session { id, owner, epoch, is_released: false }));
        Ok(id)
    }

    /// Whether a session of this name has ended lately that had several owners (rule 8).
    fn has_ended(&self, name: &str) -> Result<bool> {
        let since = self.now.saturating_sub(self.context.limits.max_age_ms.try_into().unwrap_or(i64::MAX));
        let mut select = self.db.prepare_cached("SELECT EXISTS (SELECT 1 FROM ended WHERE name = ?1 AND at >= ?2)")?;
        select.query_row(params![name, since], |row| row.get(0))
    }

    /// All owners look at what became of their sessions (rule 13).
    fn tell_owners(&self) -> Result<()> {
        self.db.prepare_cached("UPDATE total SET by_others = by_others + 1")?.execute([]).map(drop)
    }

    /// The session that a write names, if it has this epoch.
    pub(super) fn owned_session(&mut self, name: &Arc<str>, epoch: Epoch) -> Result<Reply<i64>> {
        Ok(match self.session(name)? {
            None => Err(StoreError::Gone),
            Some(session) if session.epoch != epoch => Err(StoreError::Fenced),
            Some(session) => Ok(session.id),
        })
    }

    fn append(&mut self, key: &StreamKey, epoch: Epoch, append: &Append) -> Result<Reply<()>> {
        let db = self.db;
        let session = match self.owned_session(&key.session, epoch)? {
            Ok(session) => session,
            Err(error) => return Ok(Err(error)),
        };
        let (before, is_there) = match self.row(key)?.copied() {
            Some(row) => (row, true),
            None if append.first == 1 => (self.create(session, key, &append.about, None)?, false),
            None => return Ok(Err(StoreError::Gone)),
        };
        let (head, chain) = (before.head.cast_unsigned(), before.chain.cast_unsigned());
        let mut row = before;
        match append.judge(LogState { head, chain, is_finished: before.kept_until.is_some() }) {
            Err(error) => return Ok(Err(error)),
            Ok(Verdict::Nothing) => return Ok(Ok(())),
            Ok(Verdict::Rest) => {}
            Ok(Verdict::All) => self.insert(&mut row, append)?,
        }
        if is_there && head == 0 {
            self.forget_waiting(&row)?;
        }
        let is_answered = append.events.last().is_some_and(|last| last.kind == EventKind::Terminal);
        if is_answered || append.end.is_some() {
            row.kept_until = Some(self.retained_until(&row, append.paced)?);
        }
        if append.end.is_some() || append.paced.is_some() {
            let mut update = db.prepare_cached(
                "UPDATE stream SET tail = coalesce(?2, tail), paced = coalesce(?3, paced) WHERE id = ?1",
            )?;
            update.execute(params![row.id, append.end.as_deref(), append.paced.map(Paced::to_bytes)])?;
            row.bytes += signed(append.end.as_ref().map_or(0, Bytes::len));
        }
        self.change(key, &before, row);
        Ok(Ok(()))
    }

    /// Until when a log is kept that ends now, and of whose pace this is said.
    pub(super) fn retained_until(&self, log: &Row, paced: Option<Paced>) -> Result<i64> {
        let mut select = self.db.prepare_cached("SELECT paced FROM stream WHERE id = ?1")?;
        let paced = match paced {
            Some(paced) => Some(paced),
            None => select
                .query_row(params![log.id], |row| row.get::<_, Option<Vec<u8>>>(0))?
                .and_then(|paced| Paced::from_bytes(&paced)),
        };
        let kept_ms = paced.and_then(|paced| paced.retention_ms).unwrap_or(self.context.limits.retention_ms);
        Ok(self.now.saturating_add(i64::try_from(kept_ms).unwrap_or(i64::MAX)))
    }

    /// Something was written to a log.
    pub(super) fn change(&mut self, key: &StreamKey, before: &Row, row: Row) {
        self.rows.insert(key.clone(), Some(Row { changed: true, grown: true, ..row }));
        self.count(row.session, 0, row.events - before.events, row.bytes - before.bytes);
    }

    /// Creates a log that is not there, of the answer to this message if there is one.
    pub(super) fn create(&mut self, session: i64, key: &StreamKey, about: &Bytes, message: Option<i64>) -> Result<Row> {
        let (chain, bytes) = (Chain::start(&key.nonce.0), LOG_OVERHEAD + signed(about.len()));
        let mut insert = self.db.prepare_cached(&format!(
            "INSERT INTO stream (session, nonce, head, low, low_tag, low_at, chain, events, bytes, about, message)
             VALUES (?1, ?2, 0, 1, ?3, ?4, ?5, 0, ?6, ?7, ?8) RETURNING {}",
            Row::COLUMNS
        ))?;
        let (tag, chain) = (chain.tag(), chain.0.cast_signed());
        let values = params![session, key.nonce.0, tag, self.now, chain, bytes, &**about, message];
        let row = Row { grown: true, ..insert.query_row(values, Row::read)? };
        self.rows.insert(key.clone(), Some(row));
        self.count(session, 1, 0, bytes);
        Ok(row)
    }

    /// Adds the events of an append that was judged.
    fn insert(&self, row: &mut Row, append: &Append) -> Result<()> {
        let mut insert = self.db.prepare_cached(
            "INSERT INTO event (stream, seq, kind, pinned, tag, at, frame) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?;
        for event in &append.events {
            let pinned = matches!(event.kind, EventKind::Question | EventKind::Terminal);
            let seq = position(event.seq);
            insert.execute(params![row.id, seq, event.kind as u8, pinned, event.tag, self.now, &*event.frame])?;
            row.bytes += cost(signed(event.frame.len()));
        }
        if row.low > row.head {
            row.low_at = self.now;
        }
        row.head = position(append.last());
        row.events += signed(append.events.len());
        row.chain = append.chain.cast_signed();
        Ok(())
    }

    fn attach(&mut self, name: &Arc<str>, attach: &Attach) -> Result<Reply<Attached>> {
        self.trim_streams()?;
        let mut attached = reader::attached(self.db, self.context, name, attach)?;
        let message = attach.message.as_ref().filter(|_| attached.session.is_some() && attached.log.is_none());
        if let (Some(nonce), Some(message)) = (attach.stream, message) {
            if let Err(error) = self.post(&StreamKey { session: Arc::clone(name), nonce }, message)? {
                return Ok(Err(error));
            }
            attached = reader::attached(self.db, self.context, name, attach)?;
        }
        if let (Some(nonce), Some(log)) = (attach.stream, &mut attached.log)
            && attach.counts
            && attach.fits(log.page.page.head, log.page.page.tag_at)
            && let Some(session) = self.session(name)?
        {
            let mut update = self.db.prepare_cached(
                "UPDATE stream SET readers = readers + 1 WHERE session = ?1 AND nonce = ?2 RETURNING readers",
            )?;
            let readers: i64 = update.query_row(params![session.id, nonce.0], |row| row.get(0))?;
            log.page.readers = readers.cast_unsigned();
            self.count(session.id, 0, 0, 0);
            // Who posted a message reads its answer: its owner need not be told.
            if session.owner != self.context.owner && message.is_none() {
                self.tell_owners()?;
            }
        }
        Ok(Ok(attached))
    }

    fn settle(&mut self, key: &StreamKey, epoch: Epoch, seq: Seq) -> Result<()> {
        let db = self.db;
        let (Ok(_), Some(row)) = (self.owned_session(&key.session, epoch)?, self.row(key)?) else { return Ok(()) };
        let (id, session, low, seq) = (row.id, row.session, row.low, position(seq));
        let question = params![id, seq, EventKind::Question as u8];
        if seq >= low {
            db.prepare_cached("UPDATE event SET pinned = 0 WHERE stream = ?1 AND seq = ?2 AND kind = ?3")?
                .execute(question)?;
            return Ok(());
        }
        let mut delete = db
            .prepare_cached("DELETE FROM event WHERE stream = ?1 AND seq = ?2 AND kind = ?3 RETURNING length(frame)")?;
        let freed = delete.query_row(question, |row| row.get(0)).optional()?;
        if let (Some(length), Some(row)) = (freed, self.row(key)?) {
            let bytes = cost(length);
            (row.events, row.bytes, row.changed) = (row.events - 1, row.bytes - bytes, true);
            self.count(session, 0, -1, -bytes);
        }
        Ok(())
    }

    fn drop_stream(&mut self, key: &StreamKey, epoch: Epoch) -> Result<()> {
        if let (Ok(_), Some(row)) = (self.owned_session(&key.session, epoch)?, self.row(key)?.copied()) {
            self.rows.insert(key.clone(), None);
            self.remove_stream(row.id, row.session, row.events, row.bytes)?;
        }
        Ok(())
    }

    fn drop_session(&mut self, name: &Arc<str>, epoch: Epoch) -> Result<()> {
        let Ok(session) = self.owned_session(name, epoch)? else { return Ok(()) };
        self.trim_streams()?;
        self.remove_session(session)
    }

    fn release(&mut self, name: &Arc<str>, epoch: Epoch) -> Result<()> {
        let Ok(session) = self.owned_session(name, epoch)? else { return Ok(()) };
        let mut update = self.db.prepare_cached("UPDATE session SET released = ?2 WHERE id = ?1")?;
        update.execute(params![session, self.now])?;
        self.sessions.remove(name);
        Ok(())
    }

    fn put_record(&self, session: i64, record: &SessionRecord) -> Result<()> {
        let mut update = self.db.prepare_cached(
            "UPDATE session SET revision = ?2, principal = ?3, retry_ms = ?4, list_changed = ?5, standalone = ?6,
             note = ?7 WHERE id = ?1",
        )?;
        let revision = record.revision.map(|revision| revision.as_str());
        let SessionRecord { principal, retry_ms, list_changed, standalone, note, .. } = record;
        let standalone = standalone.map(|nonce| nonce.0);
        update
            .execute(params![session, revision, principal, retry_ms, list_changed.bits(), standalone, &note[..]])
            .map(drop)
    }

    /// The row of a stream, loaded once in the transaction.
    pub(super) fn row(&mut self, key: &StreamKey) -> Result<Option<&mut Row>> {
        if !self.rows.contains_key(key) {
            let row = match self.session(&key.session)? {
                Some(session) => self.load(session.id, key.nonce)?,
                None => None,
            };
            self.rows.insert(key.clone(), row);
        }
        Ok(self.rows.get_mut(key).and_then(Option::as_mut))
    }

    fn load(&self, session: i64, nonce: StreamNonce) -> Result<Option<Row>> {
        let columns = Row::COLUMNS;
        let mut select =
            self.db.prepare_cached(&format!("SELECT {columns} FROM stream WHERE session = ?1 AND nonce = ?2"))?;
        select.query_row(params![session, nonce.0], Row::read).optional()
    }

    /// The row of a session, loaded once in the transaction.
    pub(super) fn session(&mut self, name: &Arc<str>) -> Result<Option<Session>> {
        if let Some(known) = self.sessions.get(name) {
            return Ok(*known);
        }
        let mut select = self
            .db
            .prepare_cached("SELECT id, owner, released IS NOT NULL, epoch, salt FROM session WHERE name = ?1")?;
        let row = select.query_row(params![&**name], |row| {
            Ok(Session { id: row.get(0)?, owner: row.get(1)?, epoch: reader::epoch(row, 3)?, is_released: row.get(2)? })
        });
        let row = row.optional()?;
        self.sessions.insert(Arc::clone(name), row);
        Ok(row)
    }

    /// Counts a change of a session's logs; `total` and the session learn it when the rows are written back.
    pub(super) fn count(&mut self, session: i64, streams: i64, events: i64, bytes: i64) {
        *self.growth.entry(session).or_default() += bytes;
        self.totals.streams += streams;
        self.totals.events += events;
        self.totals.bytes += bytes;
    }

    /// Loaded rows that were written to and are not trimmed yet.
    pub(super) fn grown_rows(&self) -> Vec<Row> {
        self.rows.values().flatten().filter(|row| row.grown).cloned().collect()
    }

    /// Puts a row in the place of the one with its id.
    pub(super) fn replace_row(&mut self, new: Row) {
        if let Some(row) = self.rows.values_mut().flatten().find(|row| row.id == new.id) {
            *row = Row { changed: true, ..new };
        }
    }

    /// Brings the tables up to date. What is loaded counts as unknown afterwards.
    pub(super) fn write_back(&mut self) -> Result<()> {
        let mut update = self.db.prepare_cached(
            "UPDATE stream SET head = ?2, low = ?3, low_tag = ?4, low_at = ?5, chain = ?6, events = ?7, bytes = ?8,
             kept_until = ?9 WHERE id = ?1",
        )?;
        for (_, row) in self.rows.drain() {
            let Some(row) = row.filter(|row| row.changed) else { continue };
            let Row { id, head, low, low_tag, low_at, chain, events, bytes, kept_until, .. } = row;
            update.execute(params![id, head, low, low_tag, low_at, chain, events, bytes, kept_until])?;
        }
        let mut update =
            self.db.prepare_cached("UPDATE session SET bytes = bytes + ?2, changes = changes + 1 WHERE id = ?1")?;
        for (session, bytes) in self.growth.drain() {
            update.execute(params![session, bytes])?;
        }
        Ok(())
    }

    pub(super) fn remove_stream(&mut self, id: i64, session: i64, events: i64, bytes: i64) -> Result<()> {
        self.db.prepare_cached("DELETE FROM event WHERE stream = ?1")?.execute(params![id])?;
        let mut delete = self.db.prepare_cached("DELETE FROM stream WHERE id = ?1 RETURNING message")?;
        let message: Option<i64> = delete.query_row(params![id], |row| row.get(0)).optional()?.flatten();
        let freed = message.map_or(Ok(0), |number| self.forget(number))?;
        self.count(session, -1, -events, -bytes - freed);
        Ok(())
    }

    /// Removes a session with its logs. Everything else of the transaction is written back already.
    pub(super) fn remove_session(&mut self, session: i64) -> Result<()> {
        let mut select = self.db.prepare_cached("SELECT id, events, bytes FROM stream WHERE session = ?1")?;
        let streams = select
            .query_map(params![session], |row| Ok((row.get(0)?, reader::amount(row, 1)?, reader::amount(row, 2)?)))?;
        for (id, events, bytes) in streams.collect::<Result<Vec<(i64, i64, i64)>>>()? {
            self.remove_stream(id, session, events, bytes)?;
        }
        self.write_back()?;
        // A first owner that stood still must not bring it back.
        let mut insert = self.db.prepare_cached(
            "INSERT OR REPLACE INTO ended (name, at) SELECT name, ?2 FROM session WHERE id = ?1 AND epoch > 1",
        )?;
        insert.execute(params![session, self.now])?;
        self.db.prepare_cached("DELETE FROM session WHERE id = ?1")?.execute(params![session])?;
        self.totals.sessions -= 1;
        self.sessions.clear();
        Ok(())
    }
}

/// What an event counts for.
pub(super) fn cost(frame: i64) -> i64 {
    frame.saturating_add(EVENT_OVERHEAD)
}

/// A length as SQLite has it.
pub(super) fn signed(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

/// A position as SQLite has it. Event ids hold 40 bits of it.
pub(super) fn position(seq: Seq) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}
