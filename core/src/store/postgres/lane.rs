//! A connection that writes: takes what waits, does it in one transaction, answers.

use std::sync::Arc;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row};

use super::batch::Encoded;
use super::link::SharedLink;
use super::reader::{attached, running};
use super::usage::Tally;
use super::{Context, lock};
use crate::store::mailbox::{Ask, Op, Take};
use crate::store::{Outcome, StoreError};

/// Of one transaction.
const TAKE: Take = Take { changes: true, questions: false, sessions: 256, operations: 256, bytes: 4 << 20 };

/// The task: ends when the store is closed and everything is written.
pub(super) async fn run(lane: usize, link: SharedLink, context: Arc<Context>) {
    while let Some(batch) = context.mailbox.next(&TAKE).await {
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
    let lane = i32::try_from(lane).unwrap_or(i32::MAX);
    let (clock, again) = (context.clock(), batch.iter().any(|op| op.is_unsure));
    let before: [(&(dyn ToSql + Sync), Type); 7] = [
        (&context.owner, Type::INT8),
        (&lane, Type::INT4),
        (&clock, Type::INT8),
        (&context.waits_for_disk, Type::BOOL),
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
    let (verdicts, counted): (Vec<i16>, Vec<i64>) =
        last.map(|last| (last.get("kinds"), last.get("seqs"))).unwrap_or_default();
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
    let mut found: Vec<Result<Vec<Row>, StoreError>> = batch.iter().map(|_| Ok(Vec::new())).collect();
    for (at, verdict) in encoded.order.iter().zip(verdicts) {
        match verdict {
            0 => {}
            1 => found[*at] = Err(StoreError::Gone),
            2 => found[*at] = Err(StoreError::Fenced),
            3 => found[*at] = Err(StoreError::RolledBack),
            _ => found[*at] = Err(StoreError::OutOfOrder),
        }
    }
    for row in rows {
        let write = usize::try_from(row.get::<_, i32>("write") - 1).ok().and_then(|at| encoded.order.get(at));
        if let Some(Ok(rows)) = write.and_then(|at| found.get_mut(*at)) {
            rows.push(row);
        }
    }
    context.wake.wrote(batch.iter().zip(&found).filter(|(_, verdict)| verdict.is_ok()).map(|(op, _)| op));
    let outcome = |(op, found): (&Op, Result<Vec<Row>, _>)| match &op.ask {
        Ask::Hold(_) => Outcome::Held(found.map(|rows| rows.iter().map(running).collect())),
        Ask::Attach(_) => Outcome::Attached(found.map(|rows| attached(context, rows.first()))),
        _ => Outcome::Done(found.map(drop)),
    };
    batch.iter().zip(found).map(|of| Some(outcome(of))).collect()
}
