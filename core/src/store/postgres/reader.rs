//! Answers questions from what is committed, several at a time on the connection that hints use, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::Context;
use super::batch::{position, principals};
use super::link::{Fault, Kind, SharedLink};
use super::queue::{Look, Shared};
use crate::protocol::{ListChanged, Revision, StreamNonce};
use crate::store::{Attached, AttachedLog, Epoch, LogPage, Outcome, Owner, RunningLog, SessionRecord, StoreError};
use crate::stream::{EventKind, Page, StoredEvent};

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
                    complete(&shared, &look, failed(&look, &fault));
                    continue;
                }
            };
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let (shared, context, is_stuck) = (Arc::clone(&shared), Arc::clone(&context), Arc::clone(&is_stuck));
            tokio::spawn(async move {
                let asked = tokio::time::timeout(context.timeout, answer(&client, &context, &look));
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
                    Err(fault) => complete(&shared, &look, failed(&look, &fault)),
                }
            });
        }
    }
}

pub(super) fn complete(shared: &Shared, look: &Look, outcome: Outcome) {
    shared.look_done();
    look.ticket.complete(outcome);
}

pub(super) fn failed(look: &Look, fault: &Fault) -> Outcome {
    outcome(look, Err(StoreError::from(fault)))
}

fn outcome(look: &Look, found: Result<Attached, StoreError>) -> Outcome {
    if look.is_read {
        Outcome::Page(found.and_then(|found| found.log.map(|log| log.page).ok_or(StoreError::Gone)))
    } else {
        Outcome::Attached(found)
    }
}

async fn answer(client: &Client, context: &Context, look: &Look) -> Result<Outcome, Fault> {
    let Look { session, attach, .. } = look;
    let parameters: [(&(dyn ToSql + Sync), Type); 9] = [
        (&0, Type::INT4),
        (&context.owner, Type::INT8),
        (&session.as_bytes(), Type::BYTEA),
        (&attach.stream.as_ref().map(|nonce| nonce.0.as_slice()), Type::BYTEA),
        (&(!look.is_read).then(|| principals(attach)), Type::BYTEA_ARRAY),
        (&position(attach.after), Type::INT8),
        (&position(attach.limit.up_to), Type::INT8),
        (&position(attach.limit.events as u64), Type::INT8),
        (&position(attach.limit.bytes as u64), Type::INT8),
    ];
    let rows = client.query_typed(&context.statements.look, &parameters).await.map_err(|error| Fault::of(&error))?;
    Ok(outcome(look, Ok(attached(context, rows.first()))))
}

/// What a look found.
pub(super) fn attached(context: &Context, row: Option<&Row>) -> Attached {
    let Some(row) = row else { return Attached::default() };
    if row.get("is_foreign") {
        return Attached { is_foreign: true, ..Attached::default() };
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned().into_boxed_str();
    let lists: i16 = row.get("lists");
    let session = SessionRecord {
        revision: row.get::<_, Option<&str>>("revision").and_then(Revision::parse),
        principal: row.get::<_, Option<&[u8]>>("principal").map(text),
        retry_ms: row.get::<_, i64>("retry_ms").try_into().unwrap_or(u32::MAX),
        list_changed: ListChanged { tools: lists & 1 != 0, prompts: lists & 2 != 0, resources: lists & 4 != 0 },
        standalone: nonce(row, "standalone"),
    };
    let log = row.get::<_, Option<i64>>("head").map(|head| AttachedLog {
        about: bytes(row, "about").unwrap_or_default(),
        retry_ms: row.get::<_, Option<i64>>("log_retry_ms").and_then(|ms| ms.try_into().ok()),
        page: LogPage {
            page: Page {
                events: events(row),
                head: head.cast_unsigned(),
                low: unsigned(row, "low"),
                tag_at: row.get::<_, Option<i32>>("tag_at").map(i32::cast_unsigned),
            },
            chain: unsigned(row, "chain"),
            is_finished: row.get("is_finished"),
            tail: bytes(row, "tail"),
            readers: unsigned(row, "readers"),
            owner: row.get::<_, Option<i64>>("owner").map(|owner| Owner {
                epoch: Epoch { number: unsigned(row, "epoch"), salt: unsigned(row, "salt") },
                unseen_ms: context.unseen_ms(owner, row.get("beat")),
            }),
        },
    });
    Attached { session: Some(session), is_foreign: false, log }
}

fn events(row: &Row) -> Vec<StoredEvent> {
    let Some(seqs) = row.get::<_, Option<Vec<i64>>>("seqs") else { return Vec::new() };
    let (kinds, tags, frames): (Vec<i16>, Vec<i32>, Vec<&[u8]>) =
        (row.get("kinds"), row.get("tags"), row.get("frames"));
    let events = seqs.into_iter().zip(kinds).zip(tags).zip(frames);
    let event = |(((seq, kind), tag), frame): (((i64, _), i32), &[u8])| StoredEvent {
        seq: seq.cast_unsigned(),
        kind: self::kind(kind),
        tag: tag.cast_unsigned(),
        frame: frame.into(),
    };
    events.map(event).collect()
}

/// A log without an end.
pub(super) fn running(row: &Row) -> RunningLog {
    RunningLog {
        nonce: nonce(row, "nonce").unwrap_or(StreamNonce([0; 12])),
        head: unsigned(row, "head"),
        chain: unsigned(row, "chain"),
        about: bytes(row, "about").unwrap_or_default(),
    }
}

fn unsigned(row: &Row, column: &str) -> u64 {
    row.get::<_, i64>(column).cast_unsigned()
}

fn bytes(row: &Row, column: &str) -> Option<Bytes> {
    row.get::<_, Option<&[u8]>>(column).map(Bytes::copy_from_slice)
}

fn nonce(row: &Row, column: &str) -> Option<StreamNonce> {
    row.get::<_, Option<&[u8]>>(column).and_then(|nonce| nonce.try_into().ok()).map(StreamNonce)
}

fn kind(kind: i16) -> EventKind {
    match kind {
        1 => EventKind::Answer,
        2 => EventKind::Question,
        3 => EventKind::Terminal,
        _ => EventKind::Progress,
    }
}
