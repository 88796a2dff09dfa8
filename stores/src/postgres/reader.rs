//! Answers questions from what is committed, several at a time on the connection that hints use, too.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use tailrope_core::protocol::{ListChanged, Revision, StreamNonce};
use tailrope_core::store::parts::{Ask, Op, Take};
use tailrope_core::store::{
    Attached, AttachedLog, Epoch, EventKind, LogPage, Mail, Message, Outcome, Owner, Paced, Page, RunningLog,
    SessionRecord, StoreError, StoredEvent,
};
use tokio::sync::Semaphore;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row};

use super::Context;
use super::batch::{position, principals};
use super::link::SharedLink;
use crate::next::next;

/// Questions that are under way at a time.
const AT_A_TIME: usize = 64;
/// Of one session: the others need not wait for all of them.
const TAKE: Take = Take { changes: false, questions: true, sessions: 1, operations: 16, bytes: usize::MAX };

/// The task: ends when the store is closed and all questions are answered.
pub(super) async fn run(link: SharedLink, context: Arc<Context>) {
    let places = Arc::new(Semaphore::new(AT_A_TIME));
    while let Some(batch) = next(&context.mailbox, &TAKE).await {
        let Ok(place) = Arc::clone(&places).acquire_many_owned(batch.len() as u32).await else { return };
        let (link, context) = (link.clone(), Arc::clone(&context));
        tokio::spawn(async move {
            let asked = link.ask(context.timeout, |client| answers(client, &context, &batch)).await;
            drop(place);
            match asked {
                Ok(outcomes) => context.mailbox.done(batch, outcomes),
                Err(fault) => context.mailbox.failed(batch, &fault),
            }
        });
    }
}

/// Of all of them, which are asked at the same time.
async fn answers(client: Arc<Client>, context: &Context, batch: &[Op]) -> Result<Vec<Option<Outcome>>, Error> {
    let asked = batch.iter().map(|op| Box::pin(answer(&client, context, op)));
    let mut asked: Vec<_> = asked.map(|asked| (asked, None)).collect();
    poll_fn(|cx| {
        for (asked, outcome) in asked.iter_mut().filter(|(_, outcome)| outcome.is_none()) {
            if let Poll::Ready(answer) = asked.as_mut().poll(cx)? {
                *outcome = Some(answer);
            }
        }
        let are_all = asked.iter().all(|(_, outcome)| outcome.is_some());
        if are_all { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await?;
    Ok(asked.into_iter().map(|(_, outcome)| outcome).collect())
}

async fn answer(client: &Client, context: &Context, op: &Op) -> Result<Outcome, Error> {
    let (attach, after, limit) = match &op.ask {
        Ask::Attach(attach) => (Some(attach), attach.after, attach.limit),
        Ask::Read { after, limit, .. } => (None, *after, *limit),
        _ => unreachable!("it is no question"),
    };
    let nonce = op.ask.nonce();
    let parameters: [(&(dyn ToSql + Sync), Type); 9] = [
        (&0, Type::INT4),
        (&context.owner, Type::INT8),
        (&op.session.as_bytes(), Type::BYTEA),
        (&nonce.as_ref().map(|nonce| nonce.0.as_slice()), Type::BYTEA),
        // A read is of any principal's session.
        (&attach.map(principals), Type::BYTEA_ARRAY),
        (&position(after), Type::INT8),
        (&position(limit.up_to), Type::INT8),
        (&position(limit.events as u64), Type::INT8),
        (&position(limit.bytes as u64), Type::INT8),
    ];
    let rows = client.query_typed(&context.statements.look, &parameters).await?;
    let found = attached(context, rows.first());
    Ok(match attach {
        Some(_) => Outcome::Attached(Ok(found)),
        None => Outcome::Page(found.log.map(|log| log.page).ok_or(StoreError::Gone)),
    })
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
        list_changed: ListChanged::from_bits(lists as u8),
        standalone: nonce(row, "standalone"),
        note: bytes(row, "note").unwrap_or_default(),
    };
    let log = row.get::<_, Option<i64>>("head").map(|head| AttachedLog {
        about: bytes(row, "about").unwrap_or_default(),
        page: LogPage {
            page: Page {
                events: events(row),
                head: head.max(0).cast_unsigned(),
                low: count(row, "low"),
                tag_at: row.get::<_, Option<i32>>("tag_at").map(i32::cast_unsigned),
            },
            chain: unsigned(row, "chain"),
            is_finished: row.get("is_finished"),
            tail: bytes(row, "tail"),
            paced: row.get::<_, Option<&[u8]>>("paced").and_then(Paced::from_bytes).unwrap_or_default(),
            readers: count(row, "readers"),
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
        seq: seq.max(0).cast_unsigned(),
        kind: self::kind(kind),
        tag: tag.cast_unsigned(),
        frame: frame.into(),
    };
    events.map(event).collect()
}

/// A log without an end. None of one whose name is none.
pub(super) fn running(row: &Row) -> Option<RunningLog> {
    let (nonce, about) = (nonce(row, "nonce")?, bytes(row, "about").unwrap_or_default());
    Some(RunningLog { nonce, head: count(row, "head"), chain: unsigned(row, "chain"), about })
}

/// A message that was taken. None of one that has no log.
pub(super) fn mail(row: &Row) -> Option<Mail> {
    let part = |column| bytes(row, column).unwrap_or_default();
    let (nonce, message) = (nonce(row, "nonce")?, Message { about: part("about"), body: part("body") });
    Some(Mail { number: count(row, "number"), nonce, message })
}

/// A count or a position. Somebody else may have written any number.
fn count(row: &Row, column: &str) -> u64 {
    row.get::<_, i64>(column).max(0).cast_unsigned()
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
