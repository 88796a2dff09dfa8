//! One transaction: what callers asked for, on rows that are loaded once and written back once.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Result, params};

use super::beat::unseen_ms;
use super::queue::Write;
use super::{Context, EVENT_OVERHEAD, LOG_OVERHEAD};
use crate::protocol::StreamNonce;
use crate::store::append::{LogState, Verdict};
use crate::store::{Append, SessionRecord, StoreError, StreamKey};
use crate::stream::{Chain, EventKind, Seq};

/// What a write came to: refused for its own sake, or done; a claim with its number. An error of SQLite
/// fails the transaction.
pub(super) type Reply = std::result::Result<u64, StoreError>;

/// What the `total` row and the counter of trimmed positions change by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) sessions: i64,
    pub(super) streams: i64,
    pub(super) events: i64,
    pub(super) bytes: i64,
    pub(super) trimmed: u64,
}

/// A stream's row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) id: i64,
    pub(super) session: i64,
    pub(super) owner: i64,
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
    pub(super) finished: Option<i64>,
    changed: bool,
    grown: bool,
}

impl Row {
    pub(super) const COLUMNS: &'static str =
        "id, session, owner, head, low, low_tag, low_at, chain, events, bytes, finished";

    /// Reads a row of [`COLUMNS`](Self::COLUMNS).
    pub(super) fn read(row: &rusqlite::Row<'_>) -> Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            session: row.get(1)?,
            owner: row.get(2)?,
            head: row.get(3)?,
            low: row.get(4)?,
            low_tag: row.get(5)?,
            low_at: row.get(6)?,
            chain: row.get(7)?,
            events: row.get(8)?,
            bytes: row.get(9)?,
            finished: row.get(10)?,
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
    rows: HashMap<StreamKey, Option<Row>>,
    sessions: HashMap<Arc<str>, Option<i64>>,
    /// Changes of the sessions' `streams` and `bytes`.
    growth: HashMap<i64, (i64, i64)>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(db: &'a Connection, context: &'a Context, now: i64) -> Self {
        let (totals, written, rows, sessions, growth) = Default::default();
        Self { db, context, now, totals, written, is_more_over: false, rows, sessions, growth }
    }

    pub(super) fn write(&mut self, write: &Write) -> Result<Reply> {
        match write {
            Write::Append { key, append, .. } => return self.append(key, append),
            Write::Claim { key, .. } => return self.claim(key),
            Write::Settle { key, seq } => self.settle(key, *seq)?,
            Write::DropStream { key } => self.drop_stream(key)?,
            Write::DropSession { session } => self.drop_session(session)?,
            Write::PutSession { session, record } => self.put_session(session, record)?,
            Write::Sweep => self.sweep()?,
        }
        Ok(Ok(0))
    }

    fn append(&mut self, key: &StreamKey, append: &Append) -> Result<Reply> {
        let (db, now, context) = (self.db, self.now, self.context);
        let (me, lost_ms) = (context.owner, context.owner_lost_ms);
        let known = self.row(key)?.copied();
        // Whoever serves the reader of a stream whose owner is gone ends it. An owner that was only slow
        // finds the log ended (I13).
        let may_end = append.events.is_empty() && append.end.is_some();
        let state = match known {
            Some(row) => LogState {
                head: row.head.cast_unsigned(),
                chain: row.chain.cast_unsigned(),
                is_finished: row.finished.is_some(),
                is_mine: row.owner == me || (may_end && unseen_ms(db, context, row.owner)? >= lost_ms),
            },
            None if append.first == 1 => {
                LogState { head: 0, chain: Chain::start(&key.nonce.0).0, is_finished: false, is_mine: true }
            }
            None => return Ok(Err(StoreError::Gone)),
        };
        let verdict = match append.judge(state) {
            Ok(verdict) => verdict,
            Err(error) => return Ok(Err(error)),
        };
        let before = match known {
            Some(row) => row,
            None => self.create(key, &append.about)?,
        };
        let mut row = Row { owner: me, changed: true, grown: true, ..before };
        match verdict {
            Verdict::Nothing => return Ok(Ok(0)),
            Verdict::Rest => {}
            Verdict::All => self.insert(&mut row, append)?,
        }
        let is_answered = append.events.last().is_some_and(|last| last.kind == EventKind::Terminal);
        if is_answered || append.end.is_some() {
            row.finished = Some(now);
        }
        if append.end.is_some() || append.retry_ms.is_some() {
            db.prepare_cached(
                "UPDATE stream SET tail = coalesce(?2, tail), retry_ms = coalesce(?3, retry_ms) WHERE id = ?1",
            )?
            .execute(params![row.id, append.end.as_deref(), append.retry_ms])?;
            row.bytes += signed(append.end.as_ref().map_or(0, Bytes::len));
        }
        self.rows.insert(key.clone(), Some(row));
        self.count(row.session, 0, row.events - before.events, row.bytes - before.bytes);
        if before.owner != me {
            self.tell_owners()?;
        }
        Ok(Ok(0))
    }

    /// Creates a log that is not there.
    fn create(&mut self, key: &StreamKey, about: &Bytes) -> Result<Row> {
        let session = self.session_or_new(&key.session)?;
        let chain = Chain::start(&key.nonce.0);
        let mut insert = self.db.prepare_cached(
            "INSERT INTO stream (session, nonce, owner, head, low, low_tag, low_at, chain, events, bytes, about)
             VALUES (?1, ?2, ?3, 0, 1, ?4, ?5, ?6, 0, ?7, ?8)",
        )?;
        let (owner, bytes) = (self.context.owner, LOG_OVERHEAD + signed(about.len()));
        let values =
            params![session, key.nonce.0, owner, chain.tag(), self.now, chain.0.cast_signed(), bytes, &**about];
        let row = Row {
            id: insert.insert(values)?,
            session,
            owner,
            head: 0,
            low: 1,
            low_tag: chain.tag(),
            low_at: self.now,
            chain: chain.0.cast_signed(),
            events: 0,
            bytes,
            finished: None,
            changed: false,
            grown: true,
        };
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

    fn claim(&mut self, key: &StreamKey) -> Result<Reply> {
        let db = self.db;
        let Some(row) = self.row(key)? else { return Ok(Err(StoreError::Gone)) };
        let claims: i64 = db
            .prepare_cached("UPDATE stream SET claims = claims + 1 WHERE id = ?1 RETURNING claims")?
            .query_row(params![row.id], |row| row.get(0))?;
        self.tell_owners()?;
        Ok(Ok(claims.cast_unsigned()))
    }

    fn settle(&mut self, key: &StreamKey, seq: Seq) -> Result<()> {
        let db = self.db;
        let Some(row) = self.row(key)? else { return Ok(()) };
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

    fn drop_stream(&mut self, key: &StreamKey) -> Result<()> {
        if let Some(row) = self.row(key)?.copied() {
            self.rows.insert(key.clone(), None);
            self.remove_stream(row.id, row.session, row.events, row.bytes)?;
            if row.owner != self.context.owner {
                self.tell_owners()?;
            }
        }
        Ok(())
    }

    fn drop_session(&mut self, name: &Arc<str>) -> Result<()> {
        let Some(session) = self.session(name)? else { return Ok(()) };
        self.trim_streams()?;
        let is_of_others: bool = self
            .db
            .prepare_cached("SELECT EXISTS (SELECT 1 FROM stream WHERE session = ?1 AND owner <> ?2)")?
            .query_row(params![session, self.context.owner], |row| row.get(0))?;
        self.remove_session(session)?;
        if is_of_others {
            self.tell_owners()?;
        }
        Ok(())
    }

    /// A log was changed by somebody who need not be its owner: all of them look (rule 13).
    fn tell_owners(&self) -> Result<()> {
        self.db.prepare_cached("UPDATE total SET by_others = by_others + 1")?.execute([]).map(drop)
    }

    fn put_session(&mut self, name: &Arc<str>, record: &SessionRecord) -> Result<()> {
        let session = self.session_or_new(name)?;
        let lists = record.list_changed;
        let lists = u8::from(lists.tools) | u8::from(lists.prompts) << 1 | u8::from(lists.resources) << 2;
        let mut update = self.db.prepare_cached(
            "UPDATE session SET owner = ?2, created = coalesce(created, ?3), revision = ?4, principal = ?5,
             retry_ms = ?6, list_changed = ?7, standalone = ?8 WHERE id = ?1",
        )?;
        let revision = record.revision.map(|revision| revision.as_str());
        let (owner, standalone) = (self.context.owner, record.standalone.map(|nonce| nonce.0));
        let SessionRecord { principal, retry_ms, .. } = record;
        update.execute(params![session, owner, self.now, revision, principal, retry_ms, lists, standalone])?;
        Ok(())
    }

    /// The row of a stream, loaded once in the transaction.
    fn row(&mut self, key: &StreamKey) -> Result<Option<&mut Row>> {
        if !self.rows.contains_key(key) {
            let row = match self.session(&key.session)? {
                Some(session) => self.load(session, key.nonce)?,
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

    fn session(&mut self, name: &Arc<str>) -> Result<Option<i64>> {
        if let Some(known) = self.sessions.get(name) {
            return Ok(*known);
        }
        let mut select = self.db.prepare_cached("SELECT id FROM session WHERE name = ?1")?;
        let id = select.query_row(params![&**name], |row| row.get(0)).optional()?;
        self.sessions.insert(Arc::clone(name), id);
        Ok(id)
    }

    fn session_or_new(&mut self, name: &Arc<str>) -> Result<i64> {
        if let Some(id) = self.session(name)? {
            return Ok(id);
        }
        let mut insert = self.db.prepare_cached("INSERT INTO session (name, owner) VALUES (?1, ?2)")?;
        let id = insert.insert(params![&**name, self.context.owner])?;
        self.sessions.insert(Arc::clone(name), Some(id));
        Ok(id)
    }

    /// Counts a change of what is held; `total` and the session learn it when the rows are written back.
    pub(super) fn count(&mut self, session: i64, streams: i64, events: i64, bytes: i64) {
        let (of_streams, of_bytes) = self.growth.entry(session).or_default();
        *of_streams += streams;
        *of_bytes += bytes;
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
            "UPDATE stream SET owner = ?2, head = ?3, low = ?4, low_tag = ?5, low_at = ?6, chain = ?7, events = ?8,
             bytes = ?9, finished = ?10 WHERE id = ?1",
        )?;
        for (_, row) in self.rows.drain() {
            let Some(row) = row.filter(|row| row.changed) else { continue };
            let Row { id, owner, head, low, low_tag, low_at, chain, events, bytes, finished, .. } = row;
            update.execute(params![id, owner, head, low, low_tag, low_at, chain, events, bytes, finished])?;
        }
        let mut update = self.db.prepare_cached(
            "UPDATE session SET streams = streams + ?2, bytes = bytes + ?3 WHERE id = ?1 RETURNING streams",
        )?;
        for (session, (streams, bytes)) in self.growth.drain() {
            let now: i64 = update.query_row(params![session, streams, bytes], |row| row.get(0))?;
            // Only sessions that have logs are counted.
            self.totals.sessions += i64::from(now > 0) - i64::from(now - streams > 0);
            if now == 0 {
                // One that nobody knows either leaves nothing behind.
                self.db
                    .prepare_cached("DELETE FROM session WHERE id = ?1 AND created IS NULL")?
                    .execute(params![session])?;
                self.sessions.clear();
            }
        }
        Ok(())
    }

    pub(super) fn remove_stream(&mut self, id: i64, session: i64, events: i64, bytes: i64) -> Result<()> {
        self.db.prepare_cached("DELETE FROM event WHERE stream = ?1")?.execute(params![id])?;
        self.db.prepare_cached("DELETE FROM stream WHERE id = ?1")?.execute(params![id])?;
        self.count(session, -1, -events, -bytes);
        Ok(())
    }

    /// Removes a session with its logs. Everything else of the transaction is written back already.
    pub(super) fn remove_session(&mut self, session: i64) -> Result<()> {
        let mut select = self.db.prepare_cached("SELECT id, events, bytes FROM stream WHERE session = ?1")?;
        let streams = select.query_map(params![session], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        for (id, events, bytes) in streams.collect::<Result<Vec<(i64, i64, i64)>>>()? {
            self.remove_stream(id, session, events, bytes)?;
        }
        self.write_back()?;
        self.db.prepare_cached("DELETE FROM session WHERE id = ?1")?.execute(params![session])?;
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
