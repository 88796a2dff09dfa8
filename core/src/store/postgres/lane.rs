//! A connection that writes: takes what waits, does it in one transaction, answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::Context;
use super::batch::Encoded;
use super::link::{Fault, Kind, Link};
use super::queue::{Batch, Change, Shared, Write, lock};
use super::reader::{attached, complete, failed, running};
use super::usage::Tally;
use crate::store::{Outcome, StoreError};

/// What a write came to, and found.
type Verdict = Result<Vec<Row>, StoreError>;

/// How long what waits is written on when the store is closed.
const LAST: Duration = Duration::from_secs(2);
/// Tries of a transaction that others were in the way of.
const TRIES: usize = 5;

/// The task: ends when the store is closed and everything is written.
pub(super) async fn run(lane: usize, mut link: Link, shared: Arc<Shared>, context: Arc<Context>) {
    loop {
        let batch = shared.next_batch(lane);
        if batch.is_empty() {
            if shared.is_closed() {
                return;
            }
            shared.lanes[lane].came.notified().await;
            continue;
        }
        let patience = if shared.is_closed() { LAST } else { context.timeout };
        let Batch { writes, looks } = batch;
        let (verdicts, fault) = perform(lane, &mut link, &shared, &context, &writes, patience).await;
        let kept = answer(lane, &shared, &context, writes, verdicts, fault.is_some());
        let Some(fault) = fault.filter(|_| !kept.is_empty()) else {
            shared.passed(lane, looks);
            continue;
        };
        for look in looks {
            complete(&shared, &look, failed(&look, &fault));
        }
        if shared.is_closed() {
            tracing::error!(target: "tailrope", lost = kept.len(), "event store closed without its server");
            return;
        }
        shared.put_back(lane, kept);
        // New operations make an attempt of their own, or fail while the link pauses.
        let pause = link.wait().unwrap_or(Duration::from_millis(50));
        let _ = tokio::time::timeout(pause, shared.lanes[lane].came.notified()).await;
    }
}

/// Tells everybody what became of their writes. Returns what has no answer and can still be done: the
/// server is gone, or refuses everybody.
fn answer(
    lane: usize,
    shared: &Shared,
    context: &Context,
    writes: Vec<Write>,
    verdicts: Vec<Verdict>,
    keep: bool,
) -> Vec<Write> {
    let (mut kept, mut done) = (Vec::new(), Vec::new());
    for (write, verdict) in writes.into_iter().zip(verdicts) {
        if keep && write.ticket.is_none() && verdict.is_err() {
            kept.push(write);
        } else {
            done.push((write, verdict));
        }
    }
    // Before the answers: what is asked because of them need not wait.
    shared.done(lane, done.iter().map(|(write, _)| write));
    for (Write { change, ticket, .. }, verdict) in done {
        match (ticket, verdict) {
            (Some(ticket), verdict) => ticket.complete(match change {
                Change::Hold(_) => Outcome::Held(verdict.map(|rows| rows.iter().map(running).collect())),
                Change::Attach(_) => Outcome::Attached(verdict.map(|rows| attached(context, rows.first()))),
                _ => Outcome::Done(verdict.map(drop)),
            }),
            // Rule 12.
            (None, Ok(_) | Err(StoreError::Gone | StoreError::Fenced)) => {}
            (None, Err(error)) => {
                tracing::error!(target: "tailrope", %error, "event store did not do what it was told");
            }
        }
    }
    kept
}

/// Commits the writes together; when one of them is at fault one by one, so that it harms no other (I9).
/// A fault that is everybody's is returned, too.
async fn perform(
    lane: usize,
    link: &mut Link,
    shared: &Shared,
    context: &Context,
    writes: &[Write],
    patience: Duration,
) -> (Vec<Verdict>, Option<Fault>) {
    if writes.is_empty() {
        return (Vec::new(), None);
    }
    let together = match transact(lane, link, shared, context, writes, patience, None).await {
        Ok(verdicts) => return (verdicts, None),
        Err(fault) => fault,
    };
    if together.is_of_all(writes.len()) {
        return (writes.iter().map(|write| Err(not_done(write, &together))).collect(), Some(together));
    }
    if let [write] = writes {
        return (vec![Err(not_done(write, &together))], None);
    }
    let mut verdicts = Vec::with_capacity(writes.len());
    for (at, write) in writes.iter().enumerate() {
        let alone = std::slice::from_ref(write);
        match transact(lane, link, shared, context, alone, patience, together.unheard).await {
            Ok(one) => verdicts.extend(one),
            Err(fault) => {
                verdicts.push(Err(not_done(write, &fault)));
                if fault.is_of_all(1) {
                    let of_rest = Fault { unheard: together.unheard, ..fault.clone() };
                    verdicts.extend(writes[at + 1..].iter().map(|write| Err(not_done(write, &of_rest))));
                    return (verdicts, Some(fault));
                }
            }
        }
    }
    (verdicts, None)
}

/// What a fault means for a write. It may be done, or can be as soon as the server is there: whoever writes asks again.
fn not_done(write: &Write, fault: &Fault) -> StoreError {
    match fault.unheard {
        Some(time) if write.ticket.is_some() => {
            tracing::warn!(target: "tailrope", error = fault.text, "the event store was not reached in time");
            StoreError::TimedOut { after_ms: time.as_millis().try_into().unwrap_or(u64::MAX) }
        }
        _ => StoreError::from(fault),
    }
}

/// One transaction. What may have been committed when the connection was lost is tried again: the log
/// tells whether it was. `unheard` is for how long an earlier one with these writes was not heard of.
async fn transact(
    lane: usize,
    link: &mut Link,
    shared: &Shared,
    context: &Context,
    writes: &[Write],
    patience: Duration,
    unheard: Option<Duration>,
) -> Result<Vec<Verdict>, Fault> {
    let encoded = Encoded::new(writes);
    let (started, mut again, mut tries) = (Instant::now(), unheard.is_some(), 0);
    // A try that was not heard of may have been the one that was done.
    let waited = || unheard.unwrap_or_default() + started.elapsed();
    let told = |fault: Fault, again: bool| match fault.kind {
        Kind::Lost => fault.unheard_for(waited()),
        _ if again => fault.unheard_for(waited()),
        _ => fault,
    };
    loop {
        tries += 1;
        let left = patience.saturating_sub(started.elapsed());
        let client = link.client(left).await.map_err(|fault| told(fault, again))?;
        let asked = apply(&client, context, lane, again, &encoded);
        match tokio::time::timeout(patience, asked).await {
            Ok(Ok(rows)) => return Ok(conclude(lane, shared, context, &encoded, writes, rows)),
            Ok(Err(fault)) => match fault.kind {
                Kind::Lost if started.elapsed() < patience => {
                    link.lost();
                    again = true;
                }
                Kind::Lost => {
                    link.lost();
                    return Err(told(fault, true));
                }
                Kind::Refuses => {
                    link.refuses(fault.clone(), context.timeout);
                    return Err(told(fault, again));
                }
                Kind::Conflict if tries < TRIES => {}
                Kind::Conflict | Kind::Late | Kind::Other => return Err(told(fault, again)),
            },
            Err(_) => {
                link.give_up();
                return Err(told(Fault::late(), true));
            }
        }
    }
}

async fn apply(
    client: &Client,
    context: &Context,
    lane: usize,
    again: bool,
    encoded: &Encoded<'_>,
) -> Result<Vec<Row>, Fault> {
    let lane = i32::try_from(lane).unwrap_or(i32::MAX);
    let clock = context.clock();
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
    client.query_typed(&context.statements.apply, &parameters).await.map_err(|error| Fault::of(&error))
}

fn conclude(
    lane: usize,
    shared: &Shared,
    context: &Context,
    encoded: &Encoded<'_>,
    writes: &[Write],
    mut rows: Vec<Row>,
) -> Vec<Verdict> {
    let last = rows.pop();
    let (verdicts, counted): (Vec<i16>, Vec<i64>) =
        last.map(|last| (last.get("kinds"), last.get("seqs"))).unwrap_or_default();
    let bytes = {
        let mut book = lock(&shared.book);
        if let [sessions, streams, events, bytes, trimmed] = counted[..] {
            book.set(lane, Tally { sessions, streams, events, bytes }, trimmed);
        }
        book.bytes()
    };
    if bytes > context.max_bytes {
        shared.house.notify_one();
    }
    let mut found: Vec<Verdict> = writes.iter().map(|_| Ok(Vec::new())).collect();
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
    shared.wake.wrote(writes.iter().zip(&found).filter(|(_, verdict)| verdict.is_ok()).map(|(write, _)| write));
    found
}
