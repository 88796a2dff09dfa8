//! Answers questions from what is committed.

use std::sync::Arc;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Result, params};

use super::batch::position;
use super::beat::unseen_ms;
use super::forks::Link;
use super::queue::{Look, Shared};
use super::{Context, failed};
use crate::protocol::{ListChanged, Revision, StreamNonce};
use crate::store::{Outcome, ReadLimit, Record, SessionRecord, StoreError, StreamKey, Ticket};
use crate::stream::{EventKind, Page, Seq, StoredEvent};

/// The reader's thread: ends when the store is closed.
pub(super) fn run(file: &Link, shared: &Shared, context: &Context) {
    while let Some(looks) = shared.next_looks() {
        let now = context.now();
        let answers: Vec<(Ticket, Outcome)> = looks.into_iter().map(|look| answer(file, context, now, look)).collect();
        for (ticket, outcome) in answers {
            ticket.complete(outcome);
        }
    }
}

fn answer(file: &Link, context: &Context, now: i64, look: Look) -> (Ticket, Outcome) {
    match look {
        Look::Read { key, after, limit, ticket } => {
            let page = in_snapshot(file, |db| page(db, &key, after, limit));
            let page = page.map_err(|error| failed(&error)).and_then(|page| page.ok_or(StoreError::Gone));
            (ticket, Outcome::Page(page))
        }
        Look::Record { key, ticket } => {
            let record = in_snapshot(file, |db| record(db, context, &key));
            (ticket, Outcome::Record(record.map_err(|error| failed(&error))))
        }
        Look::Session { session, ticket } => {
            let record = in_snapshot(file, |db| session_record(db, context, now, &session));
            (ticket, Outcome::Session(record.map_err(|error| failed(&error))))
        }
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

fn page(db: &Connection, key: &StreamKey, after: Seq, limit: ReadLimit) -> Result<Option<Page>> {
    let mut select = db.prepare_cached(
        "SELECT stream.id, head, low, low_tag FROM session JOIN stream ON stream.session = session.id
         WHERE name = ?1 AND nonce = ?2",
    )?;
    let row = select.query_row(params![&*key.session, key.nonce.0], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?, row.get::<_, u32>(3)?))
    });
    let Some((stream, head, low, low_tag)) = row.optional()? else { return Ok(None) };
    let (after, up_to) = (position(after), position(limit.up_to));
    let tag_at = if after + 1 == low {
        Some(low_tag)
    } else if after >= low {
        let mut select = db.prepare_cached("SELECT tag FROM event WHERE stream = ?1 AND seq = ?2")?;
        select.query_row(params![stream, after], |row| row.get(0)).optional()?
    } else {
        None
    };
    let mut page = Page { events: Vec::new(), head: head.cast_unsigned(), low: low.cast_unsigned(), tag_at };
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
        let (seq, tag): (i64, u32) = (row.get(0)?, row.get(2)?);
        page.events.push(StoredEvent { seq: seq.cast_unsigned(), kind: kind(row.get(1)?), tag, frame });
    }
    Ok(Some(page))
}

fn record(db: &Connection, context: &Context, key: &StreamKey) -> Result<Option<Record>> {
    let mut select = db.prepare_cached(
        "SELECT head, low, finished, tail, chain, stream.retry_ms, stream.owner, about, claims
         FROM session JOIN stream ON stream.session = session.id WHERE name = ?1 AND nonce = ?2",
    )?;
    let row = select.query_row(params![&*key.session, key.nonce.0], |row| {
        let record = Record {
            head: row.get::<_, i64>(0)?.cast_unsigned(),
            low: row.get::<_, i64>(1)?.cast_unsigned(),
            finished: row.get::<_, Option<i64>>(2)?.is_some(),
            tail: row.get::<_, Option<Vec<u8>>>(3)?.map(Bytes::from),
            chain: row.get::<_, i64>(4)?.cast_unsigned(),
            about: row.get::<_, Vec<u8>>(7)?.into(),
            claims: row.get::<_, i64>(8)?.cast_unsigned(),
            retry_ms: row.get(5)?,
            owner_unseen_ms: None,
        };
        Ok((record, row.get::<_, i64>(6)?))
    });
    let Some((record, owner)) = row.optional()? else { return Ok(None) };
    let owner_unseen_ms = if owner == context.owner { None } else { Some(unseen_ms(db, context, owner)?) };
    Ok(Some(Record { owner_unseen_ms, ..record }))
}

fn session_record(db: &Connection, context: &Context, now: i64, name: &str) -> Result<Option<SessionRecord>> {
    let mut select = db.prepare_cached(
        "SELECT revision, principal, retry_ms, list_changed, created, owner, standalone FROM session
         WHERE name = ?1 AND created IS NOT NULL",
    )?;
    let row = select.query_row(params![name], |row| {
        let lists: u8 = row.get(3)?;
        let record = SessionRecord {
            revision: row.get::<_, Option<String>>(0)?.as_deref().and_then(Revision::parse),
            principal: row.get(1)?,
            retry_ms: row.get(2)?,
            list_changed: ListChanged { tools: lists & 1 != 0, prompts: lists & 2 != 0, resources: lists & 4 != 0 },
            standalone: row.get::<_, Option<[u8; 12]>>(6)?.map(StreamNonce),
            age_ms: now.saturating_sub(row.get(4)?).max(0).cast_unsigned(),
            unseen_ms: 0,
        };
        Ok((record, row.get::<_, i64>(5)?))
    });
    let Some((record, owner)) = row.optional()? else { return Ok(None) };
    let unseen_ms = if owner == context.owner { 0 } else { unseen_ms(db, context, owner)? };
    Ok(Some(SessionRecord { unseen_ms, ..record }))
}

fn kind(kind: u8) -> EventKind {
    match kind {
        1 => EventKind::Answer,
        2 => EventKind::Question,
        3 => EventKind::Terminal,
        _ => EventKind::Progress,
    }
}
