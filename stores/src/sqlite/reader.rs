//! Answers questions from what is committed.

use std::sync::Arc;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Result, Row, params};
use tailrope_core::protocol::{ListChanged, Revision, StreamNonce};
use tailrope_core::store::parts::{Ask, Mailbox, Op, Take, Turn};
use tailrope_core::store::{
    Attach, Attached, AttachedLog, Epoch, EventKind, LogPage, Outcome, Owner, Paced, Page, ReadLimit, Seq,
    SessionRecord, StoreError, StoredEvent, StreamKey,
};

use super::batch::position;
use super::beat::unseen_ms;
use super::forks::Link;
use super::{Context, schema};

/// Few: what is written to their sessions waits for all of them.
const TAKE: Take = Take { changes: false, questions: true, sessions: 16, operations: 16, bytes: usize::MAX };

/// The reader's thread: ends when the store is closed.
pub(super) fn run(file: &Link, mailbox: &Mailbox, context: &Context) {
    while let Turn::Batch(batch) = mailbox.next_until(&TAKE, None) {
        let outcomes = batch.iter().map(|op| answer(file, context, op)).collect();
        mailbox.done(batch, outcomes);
    }
}

fn answer(file: &Link, context: &Context, op: &Op) -> Option<Outcome> {
    let failed = |error| StoreError::Failed(schema::said(&error));
    match &op.ask {
        Ask::Attach(attach) => {
            let attached = in_snapshot(file, |db| attached(db, context, &op.session, attach));
            Some(Outcome::Attached(attached.map_err(failed)))
        }
        Ask::Read { nonce, after, limit } => {
            let key = StreamKey { session: Arc::clone(&op.session), nonce: *nonce };
            let log = in_snapshot(file, |db| log(db, context, &key, *after, *limit));
            Some(Outcome::Page(log.map_err(failed).and_then(|log| log.ok_or(StoreError::Gone)).map(|log| log.page)))
        }
        _ => None,
    }
}

/// Several statements see the same commit.
fn in_snapshot<T>(file: &Link, read: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
    file.with(|db, _| {
        let snapshot = db.unchecked_transaction()?;
        let value = read(&snapshot);
        snapshot.finish()?;
        value
    })
}

/// What a look for a stream finds. It counts nobody.
pub(super) fn attached(db: &Connection, context: &Context, session: &Arc<str>, attach: &Attach) -> Result<Attached> {
    let mut select = db.prepare_cached(
        "SELECT revision, principal, retry_ms, list_changed, standalone, note FROM session WHERE name = ?1",
    )?;
    let row = select.query_row(params![&**session], |row| {
        Ok(SessionRecord {
            revision: text(row, 0)?.as_deref().and_then(Revision::parse),
            principal: text(row, 1)?,
            retry_ms: row.get::<_, i64>(2)?.try_into().unwrap_or(u32::MAX),
            list_changed: ListChanged::from_bits(low_bits(row, 3)? as u8),
            standalone: nonce(row, 4)?,
            note: row.get::<_, Vec<u8>>(5)?.into(),
        })
    });
    let Some(record) = row.optional()? else { return Ok(Attached::default()) };
    if !attach.finds(record.principal.as_deref()) {
        return Ok(Attached { is_foreign: true, ..Attached::default() });
    }
    let key = attach.stream.map(|nonce| StreamKey { session: Arc::clone(session), nonce });
    let log = key.map(|key| log(db, context, &key, attach.after, attach.limit)).transpose()?.flatten();
    Ok(Attached { session: Some(record), is_foreign: false, log })
}

fn log(
    db: &Connection,
    context: &Context,
    key: &StreamKey,
    after: Seq,
    limit: ReadLimit,
) -> Result<Option<AttachedLog>> {
    let mut select = db.prepare_cached(
        "SELECT stream.id, head, low, low_tag, chain, kept_until IS NOT NULL, tail, readers, about, paced,
         owner, released IS NOT NULL, epoch, salt
         FROM session JOIN stream ON stream.session = session.id WHERE name = ?1 AND nonce = ?2",
    )?;
    let mut rows = select.query(params![&*key.session, key.nonce.0])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let unseen_ms = match (row.get(10)?, row.get(11)?) {
        (_, true) => Some(u64::MAX),
        (owner, false) if owner == context.owner => None,
        (owner, false) => Some(unseen_ms(db, context, owner)?),
    };
    let epoch = epoch(row, 12)?;
    let page = LogPage {
        page: page(db, row, after, limit)?,
        chain: row.get::<_, i64>(4)?.cast_unsigned(),
        is_finished: row.get(5)?,
        tail: row.get::<_, Option<Vec<u8>>>(6)?.map(Bytes::from),
        paced: row.get::<_, Option<Vec<u8>>>(9)?.and_then(|paced| Paced::from_bytes(&paced)).unwrap_or_default(),
        readers: count(row, 7)?,
        owner: unseen_ms.map(|unseen_ms| Owner { epoch, unseen_ms }),
    };
    Ok(Some(AttachedLog { about: row.get::<_, Vec<u8>>(8)?.into(), page }))
}

/// The events of a stream whose row begins with its id, `head`, `low` and `low_tag`.
fn page(db: &Connection, row: &Row<'_>, after: Seq, limit: ReadLimit) -> Result<Page> {
    let (stream, low): (i64, i64) = (row.get(0)?, amount(row, 2)?);
    let (after, up_to) = (position(after), position(limit.up_to));
    let tag_at = if after + 1 == low {
        Some(low_bits(row, 3)?)
    } else if after >= low {
        let mut select = db.prepare_cached("SELECT tag FROM event WHERE stream = ?1 AND seq = ?2")?;
        select.query_row(params![stream, after], |row| low_bits(row, 0)).optional()?
    } else {
        None
    };
    let mut page = Page { events: Vec::new(), head: count(row, 1)?, low: count(row, 2)?, tag_at };
    let mut bytes = 0;
    let mut select = db.prepare_cached(
        "SELECT seq, kind, tag, frame FROM event WHERE stream = ?1 AND seq > ?2 AND seq <= ?3 ORDER BY seq",
    )?;
    let mut rows = select.query(params![stream, after, up_to])?;
    while page.events.len() < limit.events
        && let Some(row) = rows.next()?
    {
        let frame: Arc<[u8]> = row.get_ref(3)?.as_blob()?.into();
        if bytes > 0 && bytes + frame.len() > limit.bytes {
            break;
        }
        bytes += frame.len();
        page.events.push(StoredEvent { seq: count(row, 0)?, kind: kind(row.get(1)?), tag: low_bits(row, 2)?, frame });
    }
    Ok(page)
}

/// The epoch in two columns of a row.
pub(super) fn epoch(row: &Row<'_>, at: usize) -> Result<Epoch> {
    let column = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
    Ok(Epoch { number: column(at)?, salt: column(at + 1)? })
}

// What follows reads values that only somebody else can have written, too: such a row harms nothing but itself.

/// A count, a position, bytes or a time. No release writes one that is larger, so that they can be added up.
pub(super) fn amount(row: &Row<'_>, at: usize) -> Result<i64> {
    row.get::<_, i64>(at).map(|amount| amount.clamp(0, 1 << 50))
}

pub(super) fn count(row: &Row<'_>, at: usize) -> Result<u64> {
    amount(row, at).map(i64::cast_unsigned)
}

/// A tag, or flags.
pub(super) fn low_bits(row: &Row<'_>, at: usize) -> Result<u32> {
    row.get::<_, i64>(at).map(|bits| bits as u32)
}

/// The name of a stream, where it is one.
pub(super) fn nonce(row: &Row<'_>, at: usize) -> Result<Option<StreamNonce>> {
    Ok(row.get_ref(at)?.as_blob_or_null()?.and_then(|nonce| nonce.try_into().ok()).map(StreamNonce))
}

pub(super) fn text(row: &Row<'_>, at: usize) -> Result<Option<Box<str>>> {
    let text = row.get_ref(at)?.as_bytes_or_null()?;
    Ok(text.map(|text| String::from_utf8_lossy(text).into()))
}

fn kind(kind: i64) -> EventKind {
    match kind {
        1 => EventKind::Answer,
        2 => EventKind::Question,
        3 => EventKind::Terminal,
        _ => EventKind::Progress,
    }
}
