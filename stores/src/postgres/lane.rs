//! A connection that writes: takes what waits, does it in one transaction, answers.

use std::sync::Arc;

use tailrope_core::store::parts::{Ask, Op, Take, log_lost};
use tailrope_core::store::{MAX_INBOX_BYTES, MAX_INBOX_MESSAGES, Outcome, StoreError};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row};

use super::batch::Encoded;
use super::link::SharedLink;
use super::reader::{attached, mail, running};
use super::usage::Tally;
use super::{Context, lock};
use crate::next::next;

/// The verdict on a withdrawal that comes too late.
const HAS_BEGUN: i16 = 7;

/// Of one transaction.
const TAKE: Take = Take { changes: true, questions: false, sessions: 256, operations: 256, bytes: 4 << 20 };

/// The task: ends when the store is closed and everything is written.
pub(super) async fn run(lane: usize, link: SharedLink, context: Arc<Context>) {
    // The first that is asked need not wait for a connection.
    let _ = link.client().await;
    while let Some(batch) = next(&context.mailbox, &TAKE).await {
        let encoded = Encoded::new(&batch);
        match link.ask(context.timeout, async |client| apply(&client, &context, lane, &batch, &encoded).await).await {
            Ok(rows) => {
                let outcomes = conclude(lane, &context, &encoded, &batch, rows);
                context.mailbox.done(batch, outcomes);
            }
            Err(fault) => context.mailbox.failed(batch, &fault),
        }
    }
}

async fn apply(
    client: &Client,
    context: &Context,
    lane: usize,
    batch: &[Op],
    encoded: &Encoded<'_>,
) -> Result<Vec<Row>, Error> {
    if context.pulse.is_cut_off() {
        // The server is back. Calls are refused until it has a sign of life: that goes first.
        let _ = context.beat(client).await;
    }
    let lane = i32::try_from(lane).unwrap_or(i32::MAX);
    let (clock, again) = (context.clock(), batch.iter().any(|op| op.is_unsure));
    let waits_for_disk = context.waits_for_disk || batch.iter().any(|op| op.ask.is_claim());
    let before: [(&(dyn ToSql + Sync), Type); 7] = [
        (&context.owner, Type::INT8),
        (&lane, Type::INT4),
        (&clock, Type::INT8),
        (&waits_for_disk, Type::BOOL),
        (&again, Type::BOOL),
        (&context.lock_ms, Type::TEXT),
        (&context.bounds, Type::INT8_ARRAY),
    ];
    let parameters: Vec<_> = before.into_iter().chain(encoded.parameters()).collect();
    client.query_typed(&context.statements.apply, &parameters).await
}

fn conclude(
    lane: usize,
    context: &Context,
    encoded: &Encoded<'_>,
    batch: &[Op],
    mut rows: Vec<Row>,
) -> Vec<Option<Outcome>> {
    let last = rows.pop();
    let last = last.map(|last| (last.get("kinds"), last.get("seqs"), last.get("tags"), last.get("hearers")));
    let (verdicts, counted, writes, hearers): (Vec<i16>, Vec<i64>, Vec<i32>, Vec<i64>) = last.unwrap_or_default();
    let place = |write: i32| encoded.order.get((write.unsigned_abs() as usize).checked_sub(1)?).copied();
    let bytes = {
        let mut book = lock(&context.book);
        if let [sessions, streams, events, bytes, trimmed] = counted[..] {
            book.set(lane, Tally { sessions, streams, events, bytes }, trimmed);
        }
        book.bytes()
    };
    if bytes > context.max_bytes {
        context.house.notify_one();
    }
    let mut found: Vec<(i16, Vec<Row>)> = batch.iter().map(|_| (0, Vec::new())).collect();
    for (at, verdict) in encoded.order.iter().zip(verdicts) {
        found[*at].0 = verdict;
    }
    for row in rows {
        if let Some((_, rows)) = place(row.get("write")).and_then(|at| found.get_mut(at)) {
            rows.push(row);
        }
    }
    let told = writes.into_iter().zip(hearers);
    context.wake.wrote(told.filter_map(|(write, hearer)| Some((hearer, &batch[place(write)?], write < 0))));
    let outcome = |op: &Op, verdict, found: Result<Vec<Row>, _>| match &op.ask {
        Ask::Hold(_) => Outcome::Held(found.map(|rows| rows.iter().filter_map(running).collect())),
        Ask::Take { .. } => Outcome::Taken(found.map(|rows| {
            let mail: Vec<_> = rows.iter().filter_map(mail).collect();
            if mail.len() < rows.len() {
                log_lost(&op.session, rows.len() - mail.len());
            }
            mail
        })),
        Ask::Withdraw { .. } => Outcome::Withdrawn(found.map(|_| verdict != HAS_BEGUN)),
        Ask::Attach(attach) => Outcome::Attached(found.map(|rows| {
            let found = attached(context, rows.first());
            if let (Some(nonce), Some(log)) = (attach.stream, &found.log)
                && log.page.owner.is_some()
            {
                context.wake.follow(&op.session, nonce);
            }
            found
        })),
        _ => Outcome::Done(found.map(drop)),
    };
    let found = found.into_iter().map(|(verdict, rows)| (verdict, refusal(verdict).map_or(Ok(rows), Err)));
    batch.iter().zip(found).map(|(op, (verdict, found))| Some(outcome(op, verdict, found))).collect()
}

/// The error that a verdict of `apply` stands for.
fn refusal(verdict: i16) -> Option<StoreError> {
    match verdict {
        0 | HAS_BEGUN => None,
        1 => Some(StoreError::Gone),
        2 => Some(StoreError::Fenced),
        3 => Some(StoreError::RolledBack),
        5 => Some(StoreError::InboxFull { max: MAX_INBOX_MESSAGES }),
        6 => Some(StoreError::InboxFull { max: MAX_INBOX_BYTES }),
        _ => Some(StoreError::OutOfOrder),
    }
}
