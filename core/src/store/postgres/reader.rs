//! Answers questions from what is committed, several at a time on the connection that hints use, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::Context;
use super::batch::position;
use super::link::{Fault, Kind, SharedLink};
use super::queue::{Look, Shared, What};
use crate::protocol::{ListChanged, Revision, StreamNonce};
use crate::store::{Outcome, ReadLimit, Record, SessionRecord, StoreError, StreamKey};
use crate::stream::{EventKind, Page, Seq, StoredEvent};

/// Questions that are under way at a time.
const AT_A_TIME: usize = 64;

/// How long answers are waited for when the store is closed.
const LAST: Duration = Duration::from_secs(2);

/// The task: ends when no question can come any more and all are answered.
pub(super) async fn run(link: SharedLink, shared: Arc<Shared>, context: Arc<Context>) {
    let places = Arc::new(Semaphore::new(AT_A_TIME));
    // An answer did not come: the next questions get another connection.
    let is_stuck = Arc::new(AtomicBool::new(false));
    loop {
        let looks = shared.next_looks();
        if looks.is_empty() {
            if shared.is_written() {
                let _ = tokio::time::timeout(LAST, places.acquire_many(AT_A_TIME as u32)).await;
                return;
            }
            shared.looks_came.notified().await;
            continue;
        }
        for look in looks {
            if is_stuck.swap(false, Ordering::Relaxed) {
                link.lock().await.give_up();
            }
            let left = context.timeout.saturating_sub(look.asked.elapsed());
            let client = match link.lock().await.client(left).await {
                Ok(client) => client,
                Err(fault) => {
                    complete(&shared, &look, failed(&look.what, &fault));
                    continue;
                }
            };
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let (shared, context, is_stuck) = (Arc::clone(&shared), Arc::clone(&context), Arc::clone(&is_stuck));
            tokio::spawn(async move {
                let asked = tokio::time::timeout(context.timeout, answer(&client, &context, &look.what));
                let answer = asked.await.unwrap_or_else(|_| {
                    is_stuck.store(true, Ordering::Relaxed);
                    Err(Fault::late())
                });
                drop(place);
                match answer {
                    Ok(outcome) => complete(&shared, &look, outcome),
                    // A question can be asked again.
                    Err(fault) if fault.kind == Kind::Lost && look.asked.elapsed() < context.timeout => {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                        shared.hand_over([look]);
                    }
                    Err(fault) => complete(&shared, &look, failed(&look.what, &fault)),
                }
            });
        }
    }
}

pub(super) fn complete(shared: &Shared, look: &Look, outcome: Outcome) {
    shared.look_done();
    look.ticket.complete(outcome);
}

pub(super) fn failed(what: &What, fault: &Fault) -> Outcome {
    let error = StoreError::from(fault);
    match what {
        What::Read { .. } => Outcome::Page(Err(error)),
        What::Record { .. } => Outcome::Record(Err(error)),
        What::Session { .. } => Outcome::Session(Err(error)),
    }
}

async fn answer(client: &Client, context: &Context, what: &What) -> Result<Outcome, Fault> {
    Ok(match what {
        What::Read { key, after, limit } => {
            Outcome::Page(page(client, context, key, *after, *limit).await?.ok_or(StoreError::Gone))
        }
        What::Record { key } => Outcome::Record(Ok(record(client, context, key).await?)),
        What::Session { session } => Outcome::Session(Ok(session_record(client, context, session).await?)),
    })
}

async fn ask(client: &Client, statement: &str, parameters: &[(&(dyn ToSql + Sync), Type)]) -> Result<Vec<Row>, Fault> {
    client.query_typed(statement, parameters).await.map_err(|error| Fault::of(&error))
}

async fn page(
    client: &Client,
    context: &Context,
    key: &StreamKey,
    after: Seq,
    limit: ReadLimit,
) -> Result<Option<Page>, Fault> {
    let count = |of: usize| i64::try_from(of).unwrap_or(i64::MAX);
    let rows = ask(
        client,
        &context.statements.page,
        &[
            (&key.session.as_bytes(), Type::BYTEA),
            (&key.nonce.0.as_slice(), Type::BYTEA),
            (&position(after), Type::INT8),
            (&position(limit.up_to), Type::INT8),
            (&count(limit.events), Type::INT8),
            (&count(limit.bytes), Type::INT8),
        ],
    )
    .await?;
    let Some((log, events)) = rows.split_first() else { return Ok(None) };
    let events = events.iter().map(|row| StoredEvent {
        seq: row.get::<_, i64>(0).cast_unsigned(),
        kind: kind(row.get(1)),
        tag: row.get::<_, i32>(2).cast_unsigned(),
        frame: row.get::<_, &[u8]>(3).into(),
    });
    Ok(Some(Page {
        events: events.collect(),
        head: log.get::<_, i64>(0).cast_unsigned(),
        low: log.get::<_, i64>(1).cast_unsigned(),
        tag_at: log.get::<_, Option<i32>>(2).map(i32::cast_unsigned),
    }))
}

async fn record(client: &Client, context: &Context, key: &StreamKey) -> Result<Option<Record>, Fault> {
    let rows = ask(
        client,
        &context.statements.record,
        &[(&key.session.as_bytes(), Type::BYTEA), (&key.nonce.0.as_slice(), Type::BYTEA), (&context.owner, Type::INT8)],
    )
    .await?;
    let bytes = |bytes: Option<&[u8]>| bytes.map(Bytes::copy_from_slice);
    Ok(rows.first().map(|row| Record {
        head: row.get::<_, i64>(0).cast_unsigned(),
        low: row.get::<_, i64>(1).cast_unsigned(),
        finished: row.get(2),
        chain: row.get::<_, i64>(3).cast_unsigned(),
        retry_ms: row.get::<_, Option<i64>>(4).and_then(|ms| ms.try_into().ok()),
        claims: row.get::<_, i64>(5).cast_unsigned(),
        about: bytes(row.get(6)).unwrap_or_default(),
        tail: bytes(row.get(7)),
        owner_unseen_ms: unseen_ms(context, row, 8),
    }))
}

async fn session_record(client: &Client, context: &Context, session: &str) -> Result<Option<SessionRecord>, Fault> {
    let rows = ask(
        client,
        &context.statements.session,
        &[(&session.as_bytes(), Type::BYTEA), (&context.owner, Type::INT8), (&context.clock(), Type::INT8)],
    )
    .await?;
    Ok(rows.first().map(|row| {
        let lists: i16 = row.get(3);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned().into_boxed_str();
        SessionRecord {
            revision: row.get::<_, Option<&str>>(0).and_then(Revision::parse),
            principal: row.get::<_, Option<&[u8]>>(1).map(text),
            retry_ms: row.get::<_, i64>(2).try_into().unwrap_or(u32::MAX),
            list_changed: ListChanged { tools: lists & 1 != 0, prompts: lists & 2 != 0, resources: lists & 4 != 0 },
            standalone: row.get::<_, Option<&[u8]>>(4).and_then(|nonce| nonce.try_into().ok()).map(StreamNonce),
            age_ms: row.get::<_, i64>(5).max(0).cast_unsigned(),
            unseen_ms: unseen_ms(context, row, 6).unwrap_or(0),
        }
    }))
}

/// For how long the owner that is told here, and in the next column its beat, gives no sign; none when it is this one.
fn unseen_ms(context: &Context, row: &Row, at: usize) -> Option<u64> {
    let owner: Option<i64> = row.get(at);
    owner.map(|owner| context.owners.saw(owner, row.get(at + 1)))
}

fn kind(kind: i64) -> EventKind {
    match kind {
        1 => EventKind::Answer,
        2 => EventKind::Question,
        3 => EventKind::Terminal,
        _ => EventKind::Progress,
    }
}
