//! The thread of a store: brings what was asked to the servers, and the answers back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ::redis::{Cmd, Value, cmd};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::held::Held;
use super::nodes::{Fault, Nodes, slot_of};
use super::queue::{Ask, Op, Queue};
use super::script::{self, Refusal, Words};
use super::tags::Tags;
use crate::Ms;
use crate::protocol::StreamNonce;
use crate::store::liveness::Sightings;
use crate::store::{Operation, Outcome, Record, SessionRecord, StoreError, Ticket};

/// Pauses before a batch is tried again, in milliseconds.
const BACK_OFF: [u64; 6] = [5, 20, 50, 100, 200, 400];
/// Pause between two signs of life at most: others may wait for less than we do.
const SLOWEST_BEAT_MS: u64 = 2_500;
/// The last sign of life.
const CLOSED: &str = "closed";
/// How long a store that is closed goes on with what waits.
const CLOSING: Duration = Duration::from_secs(5);

/// What the tasks of a store share.
pub(super) struct Core {
    pub(super) nodes: Arc<Nodes>,
    pub(super) queue: Arc<Queue>,
    pub(super) held: Arc<Held>,
    pub(super) tags: Tags,
    /// This store object among all.
    pub(super) me: Arc<str>,
    /// The script's name at the servers.
    pub(super) sha: String,
    pub(super) owner_lost_ms: u64,
    /// How long a sign of life is kept.
    pub(super) sign_ms: u64,
    pub(super) beats: AtomicU64,
    pub(super) sightings: Mutex<Sightings>,
    /// What this store object's times are counted from.
    pub(super) began: Instant,
}

/// Until the store is closed and everything is done.
pub(super) async fn run(core: Arc<Core>) {
    let mut lanes = JoinSet::new();
    let beat = tokio::spawn(beat(Arc::clone(&core)));
    let mut closing = None;
    loop {
        for session in core.queue.take_ready() {
            lanes.spawn(serve(Arc::clone(&core), session));
        }
        while lanes.try_join_next().is_some() {}
        if core.queue.is_closed() {
            let until = *closing.get_or_insert_with(|| Instant::now() + CLOSING.min(core.nodes.address.timeout));
            if core.queue.is_empty() || Instant::now() >= until {
                break;
            }
            let _ = timeout(Duration::from_millis(20), core.queue.came.notified()).await;
        } else {
            core.queue.came.notified().await;
        }
    }
    beat.abort();
    let _ = core.say(CLOSED, Duration::from_secs(1)).await;
}

/// Does what is asked of one session, until nothing is.
async fn serve(core: Arc<Core>, session: Arc<str>) {
    // Nothing may be done before it is known whether such an end counts.
    let ends = |op: &Op| op.ask.ends_alone() && op.ask.nonce().is_some_and(|nonce| !core.held.has(&session, nonce));
    while let Some(batch) = core.queue.next_batch(&session, ends) {
        core.perform(&session, batch).await;
    }
}

impl Core {
    async fn perform(self: &Arc<Self>, session: &Arc<str>, mut batch: Vec<Op>) {
        let tag = Tags::of(session);
        let (prefix, slot) = (self.tags.prefix(tag), slot_of(&Tags::text(tag)));
        let limit = self.nodes.address.timeout;
        let (mut tries, mut was_sent) = (0, false);
        let mut what = "the servers did not get to it in time".to_owned();
        loop {
            // What has no answer is lost for good when it fails: it is tried at least once.
            let is_over = |op: &Op| {
                (op.since.elapsed() >= limit && (tries > 0 || op.ticket.is_some()))
                    || self.queue.is_called_off(session, op)
            };
            let (over, left): (Vec<Op>, Vec<Op>) = batch.into_iter().partition(is_over);
            if !over.is_empty() {
                tracing::warn!(target: "tailrope", operations = over.len(), what, "the event store was not reached in time");
            }
            // It may be done, or can be as soon as a server is there: whoever writes asks again.
            self.fail(over, |op| match &op.ask {
                Ask::Append { .. } => StoreError::TimedOut { after_ms: milliseconds(op.since.elapsed()) },
                _ => StoreError::Failed(what.clone()),
            });
            batch = left;
            if batch.is_empty() {
                return;
            }
            if tries > 0 {
                sleep(Duration::from_millis(BACK_OFF[tries.min(BACK_OFF.len()) - 1])).await;
            }
            tries += 1;
            let mut command = cmd("EVALSHA");
            let keys = self.keys(&prefix, session, &batch);
            command.arg(&self.sha).arg(keys.len()).arg(keys).arg(&prefix).arg(&*self.me);
            batch.iter().for_each(|op| script::add(&mut command, op));
            // Half of the time, so that a server that came back is asked once more.
            match self.nodes.call(slot, &command, limit / 2).await {
                Ok(value) => return self.answer(session, batch, value, was_sent).await,
                Err(Fault::Lasting(what)) => return self.fail(batch, |_| StoreError::Failed(what.clone())),
                Err(Fault::Passing { what: passing, sent }) => {
                    was_sent |= sent;
                    what = passing;
                }
            }
        }
    }

    /// The keys that a server of a cluster has to have, all of them, to do a batch. Otherwise the script
    /// finds its keys itself.
    fn keys(&self, prefix: &str, session: &str, batch: &[Op]) -> Vec<String> {
        let mut keys = vec![format!("{prefix}s:{session}")];
        if self.nodes.is_cluster() {
            keys.push(format!("{prefix}i:{session}"));
            for nonce in batch.iter().filter_map(|op| op.ask.nonce()) {
                let name = nonce.hex();
                keys.extend(["m", "e", "p"].map(|kind| format!("{prefix}{kind}:{name}:{session}")));
            }
        }
        keys
    }

    fn fail(&self, ops: Vec<Op>, why: impl Fn(&Op) -> StoreError) {
        self.queue.done(ops.iter());
        for op in ops {
            let error = why(&op);
            match &op.ticket {
                Some(ticket) => ticket.complete(refused(ticket.operation, error)),
                None => {
                    tracing::error!(target: "tailrope", %error, "event store did not do what it was told");
                }
            }
        }
    }

    async fn answer(self: &Arc<Self>, session: &Arc<str>, batch: Vec<Op>, value: Value, was_sent: bool) {
        let Some(mut reply) = script::reply(value).filter(|reply| reply.results.len() == batch.len()) else {
            self.fail(batch, |_| StoreError::Failed("the server's answer is not understood".to_owned()));
            return;
        };
        if was_sent {
            accept_earlier(&batch, &mut reply.results);
        }
        self.queue.done(batch.iter());
        let script::Reply { trimmed, others, results } = reply;
        self.held.removed(session, &others);
        let mut outcomes = Vec::with_capacity(batch.len());
        let mut unsure = None;
        for (op, result) in batch.into_iter().zip(results) {
            match self.note(session, &op, result) {
                Noted::Outcome(outcome) => outcomes.extend(op.ticket.map(|ticket| (ticket, outcome))),
                Noted::OwnedBy(owner) => unsure = Some((op, owner)),
                Noted::Nothing => {}
            }
        }
        self.held.trimmed(session, trimmed, &others);
        for (ticket, outcome) in outcomes {
            ticket.complete(outcome);
        }
        if let Some((op, owner)) = unsure {
            self.end_of_other(session, op, owner).await;
        }
    }

    /// Takes note of what an operation changed.
    fn note(self: &Arc<Self>, session: &Arc<str>, op: &Op, result: Result<Words, Refusal>) -> Noted {
        let garbled = || StoreError::Failed("the server's answer is not understood".to_owned());
        match &op.ask {
            Ask::Append { nonce, lost_owner, .. } => {
                let stored = match result {
                    Ok(mut words) => {
                        if let Some(written) = words.written() {
                            self.held.wrote(session, *nonce, written);
                        }
                        Ok(())
                    }
                    Err(Refusal::Fenced(owner)) if op.ask.ends_alone() && lost_owner.is_none() => {
                        return Noted::OwnedBy(owner);
                    }
                    Err(refusal) => {
                        if let Refusal::Gone = refusal {
                            self.held.refused(session, *nonce);
                        }
                        Err(refusal.error())
                    }
                };
                Noted::Outcome(Outcome::Done(stored))
            }
            Ask::Claim { .. } => {
                let count = result.map_err(Refusal::error).and_then(|mut words| words.number().ok_or_else(garbled));
                Noted::Outcome(Outcome::Claimed(count))
            }
            Ask::Read { .. } => {
                let page = result.map_err(Refusal::error).and_then(|mut words| words.page().ok_or_else(garbled));
                Noted::Outcome(Outcome::Page(page))
            }
            Ask::Record { .. } => match result {
                Ok(mut words) => match words.record() {
                    Some((record, owner)) if *owner == *self.me => Noted::Outcome(Outcome::Record(Ok(Some(record)))),
                    Some((record, owner)) => {
                        self.tell_later(op.ticket.clone(), owner, move |unseen| {
                            Outcome::Record(unseen.map(|ms| Some(Record { owner_unseen_ms: Some(ms), ..record })))
                        });
                        Noted::Nothing
                    }
                    None => Noted::Outcome(Outcome::Record(Err(garbled()))),
                },
                Err(Refusal::Gone) => Noted::Outcome(Outcome::Record(Ok(None))),
                Err(refusal) => Noted::Outcome(Outcome::Record(Err(refusal.error()))),
            },
            Ask::Session => match result {
                Ok(mut words) => match words.session() {
                    Some((record, owner)) if *owner == *self.me => Noted::Outcome(Outcome::Session(Ok(Some(record)))),
                    Some((record, owner)) => {
                        self.tell_later(op.ticket.clone(), owner, move |unseen| {
                            Outcome::Session(unseen.map(|ms| Some(SessionRecord { unseen_ms: ms, ..record })))
                        });
                        Noted::Nothing
                    }
                    None => Noted::Outcome(Outcome::Session(Err(garbled()))),
                },
                Err(Refusal::Gone) => Noted::Outcome(Outcome::Session(Ok(None))),
                Err(refusal) => Noted::Outcome(Outcome::Session(Err(refusal.error()))),
            },
            Ask::Settle { nonce, .. } => {
                if let Some(written) = result.ok().and_then(|mut words| words.written()) {
                    self.held.wrote(session, *nonce, written);
                }
                Noted::Nothing
            }
            Ask::DropStream { nonce } => {
                self.held.gone(session, *nonce);
                Noted::Nothing
            }
            Ask::DropSession => {
                self.held.dropped(session);
                Noted::Nothing
            }
            Ask::Touch { .. } => {
                let gone = result.map(|mut words| words.nonces()).unwrap_or_default();
                gone.into_iter().for_each(|nonce| self.held.gone(session, nonce));
                Noted::Nothing
            }
            Ask::PutSession { .. } => {
                if let Err(refusal) = result {
                    log_refusal(&refusal.error());
                }
                Noted::Nothing
            }
        }
    }

    /// The end of somebody else's log counts when that owner is gone.
    async fn end_of_other(self: &Arc<Self>, session: &Arc<str>, mut op: Op, owner: Box<str>) {
        let error = match self.unseen_ms(&owner).await {
            Ok(unseen) if unseen >= self.owner_lost_ms => {
                if let Ask::Append { lost_owner, .. } = &mut op.ask {
                    *lost_owner = Some(owner);
                }
                self.queue.again(&op);
                return Box::pin(self.perform(session, vec![op])).await;
            }
            Ok(_) => StoreError::Fenced,
            Err(error) => error,
        };
        if let Some(ticket) = op.ticket {
            ticket.complete(Outcome::Done(Err(error)));
        }
    }

    /// Answers a question when it is known how long an owner was not seen.
    fn tell_later(
        self: &Arc<Self>,
        ticket: Option<Ticket>,
        owner: Box<str>,
        outcome: impl FnOnce(Result<u64, StoreError>) -> Outcome + Send + 'static,
    ) {
        let core = Arc::clone(self);
        tokio::spawn(async move {
            let unseen = core.unseen_ms(&owner).await;
            if let Some(ticket) = ticket {
                ticket.complete(outcome(unseen));
            }
        });
    }

    /// For how many milliseconds an owner is known to give no sign; for ever when it said that it is closed.
    async fn unseen_ms(&self, owner: &str) -> Result<u64, StoreError> {
        let beat = self.ask(owner, cmd("GET").arg(self.tags.owner(owner))).await;
        let count = match beat.map_err(|fault| StoreError::Failed(fault.what().to_owned()))? {
            Value::BulkString(said) if said == CLOSED.as_bytes() => return Ok(u64::MAX),
            Value::BulkString(said) => std::str::from_utf8(&said).ok().and_then(|count| count.parse().ok()),
            _ => None,
        };
        let mut sightings = self.sightings.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(sightings.saw(owner, count, Ms(milliseconds(self.began.elapsed()))))
    }

    /// Asks for something that is not a session's, and again until the time is over.
    async fn ask(&self, tag: &str, command: &Cmd) -> Result<Value, Fault> {
        let (since, limit) = (Instant::now(), self.nodes.address.timeout);
        let mut tries = 0;
        loop {
            match self.nodes.call(slot_of(tag), command, limit / 2).await {
                Err(Fault::Passing { .. }) if since.elapsed() < limit => {
                    sleep(Duration::from_millis(BACK_OFF[tries.min(BACK_OFF.len() - 1)])).await;
                    tries += 1;
                }
                other => return other,
            }
        }
    }

    /// One sign of life. It counts here, so that it goes on where the server lost it.
    pub(super) async fn beat(&self) -> Result<(), Fault> {
        let count = self.beats.fetch_add(1, Ordering::Relaxed);
        self.say(&count.to_string(), self.nodes.address.timeout / 2).await
    }

    /// Tells others what this store object's sign of life is. It is kept for as long as anything of this owner.
    async fn say(&self, sign: &str, limit: Duration) -> Result<(), Fault> {
        let mut set = cmd("SET");
        set.arg(self.tags.owner(&self.me)).arg(sign).arg("PX").arg(self.sign_ms);
        self.nodes.call(slot_of(&self.me), &set, limit).await.map(|_| ())
    }
}

/// What is known of an operation that the server did.
enum Noted {
    Outcome(Outcome),
    /// Nobody waits for it, or it is told later.
    Nothing,
    /// It ends a log of this owner, who may be gone.
    OwnedBy(Box<str>),
}

/// Gives signs of life, and keeps what is in use from expiring.
async fn beat(core: Arc<Core>) {
    let pause = Duration::from_millis((core.owner_lost_ms / 4).clamp(10, SLOWEST_BEAT_MS));
    let mut failed = false;
    loop {
        match core.beat().await {
            Ok(()) => failed = false,
            Err(fault) if !failed => {
                failed = true;
                tracing::warn!(target: "tailrope", what = fault.what(), "event store gave no sign of life");
            }
            Err(_) => {}
        }
        for (session, nonces) in core.held.sweep() {
            // Refused only by a store that is closed.
            let _ = core.queue.push(&session, Ask::Touch { nonces }, None);
        }
        // After a new connection at once: the server may have lost the sign.
        let wait = if failed { pause.min(Duration::from_millis(250)) } else { pause };
        let _ = timeout(wait, core.nodes.connected.notified()).await;
    }
}

/// A batch was done already and its answer was lost: of several appends to one log only the last knows
/// itself again, and those before it must have been stored, too.
fn accept_earlier(batch: &[Op], results: &mut [Result<Words, Refusal>]) {
    let mut stored: Vec<StreamNonce> = Vec::new();
    for (op, result) in batch.iter().zip(results).rev() {
        let Ask::Append { nonce, .. } = &op.ask else { continue };
        match result {
            Ok(_) => stored.push(*nonce),
            Err(Refusal::Gone | Refusal::Other(StoreError::OutOfOrder)) if stored.contains(nonce) => {
                *result = Ok(Words::none());
            }
            Err(_) => {}
        }
    }
}

fn log_refusal(error: &StoreError) {
    tracing::error!(target: "tailrope", %error, "event store did not do what it was told");
}

fn refused(operation: Operation, error: StoreError) -> Outcome {
    match operation {
        Operation::Read(_) => Outcome::Page(Err(error)),
        Operation::Record => Outcome::Record(Err(error)),
        Operation::Session => Outcome::Session(Err(error)),
        Operation::Claim => Outcome::Claimed(Err(error)),
        _ => Outcome::Done(Err(error)),
    }
}

fn milliseconds(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}
