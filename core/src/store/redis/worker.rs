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
use super::script::{self, Words};
use super::tags::Tags;
use crate::Ms;
use crate::protocol::StreamNonce;
use crate::store::liveness::{Sightings, beat_ms};
use crate::store::{Attached, Outcome, StoreError, Ticket};

/// Pauses before a batch is tried again, in milliseconds.
const BACK_OFF: [u64; 6] = [5, 20, 50, 100, 200, 400];
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
    while let Some(batch) = core.queue.next_batch(&session) {
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
                Ask::Append { .. } | Ask::Hold(_) => {
                    StoreError::TimedOut { after_ms: milliseconds(op.since.elapsed()) }
                }
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
                Ok(value) => return self.answer(session, batch, value, was_sent),
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
                Some(ticket) => ticket.complete(Outcome::failed(ticket.operation, error)),
                None => log_refusal(&error),
            }
        }
    }

    fn answer(self: &Arc<Self>, session: &Arc<str>, batch: Vec<Op>, value: Value, was_sent: bool) {
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
        for (op, result) in batch.into_iter().zip(results) {
            let outcome = self.note(session, &op.ask, result);
            outcomes.extend(op.ticket.zip(outcome));
        }
        self.held.trimmed(session, trimmed, &others);
        for (ticket, (outcome, owner)) in outcomes {
            self.tell(ticket, outcome, owner);
        }
    }

    /// Takes note of what an operation changed. Returns its outcome where it has one, and the owner that this names.
    fn note(&self, session: &Arc<str>, ask: &Ask, result: Result<Words, StoreError>) -> Option<(Outcome, Box<str>)> {
        let garbled = || StoreError::Failed("the server's answer is not understood".to_owned());
        if let Err(StoreError::Gone | StoreError::Fenced) = result {
            self.held.doubt(session);
        }
        let wrote = |nonce, mut words: Words| {
            if let Some(written) = words.written() {
                self.held.wrote(session, nonce, written);
            }
        };
        let (mut outcome, mut owner) = (None, Box::default());
        match (ask, result) {
            (Ask::Hold(_), result) => {
                let running = result.and_then(|mut words| words.running().ok_or_else(garbled)).map(|running| {
                    self.held.took(session, running.iter().map(|(log, written)| (log.nonce, *written)));
                    running.into_iter().map(|(log, _)| log).collect()
                });
                outcome = Some(Outcome::Held(running));
            }
            (Ask::Append { nonce, .. }, result) => {
                outcome = Some(Outcome::Done(result.map(|words| wrote(*nonce, words))));
            }
            (Ask::Attach(_), Err(StoreError::Gone)) => outcome = Some(Outcome::Attached(Ok(Attached::default()))),
            (Ask::Attach(_), result) => {
                let found = result.and_then(|mut words| words.attached(&self.me).ok_or_else(garbled));
                outcome = Some(Outcome::Attached(found.map(|found| {
                    owner = found.1;
                    found.0
                })));
            }
            (Ask::Read { .. }, result) => {
                let page = result.and_then(|mut words| words.page(&self.me).ok_or_else(garbled));
                outcome = Some(Outcome::Page(page.map(|page| {
                    owner = page.1;
                    page.0
                })));
            }
            (Ask::Settle { nonce, .. }, Ok(words)) => wrote(*nonce, words),
            (Ask::DropStream { nonce, .. }, Ok(_)) => self.held.gone(session, *nonce),
            (Ask::Touch { .. }, Ok(mut words)) => words.nonces().iter().for_each(|log| self.held.gone(session, *log)),
            (Ask::Release { .. } | Ask::DropSession { .. }, Ok(_)) | (Ask::Touch { .. }, Err(StoreError::Fenced)) => {
                self.held.dropped(session);
            }
            (_, Err(StoreError::Gone | StoreError::Fenced)) => {}
            (_, Err(error)) => log_refusal(&error),
        }
        Some((outcome?, owner))
    }

    /// Tells an outcome; one that names an owner when it is known for how long that gives no sign.
    fn tell(self: &Arc<Self>, ticket: Ticket, mut outcome: Outcome, owner: Box<str>) {
        if owner.is_empty() {
            return ticket.complete(outcome);
        }
        let core = Arc::clone(self);
        tokio::spawn(async move {
            let unseen = core.unseen_ms(&owner).await;
            let named = match &mut outcome {
                Outcome::Page(Ok(page)) => page.owner.as_mut(),
                Outcome::Attached(Ok(Attached { log: Some(log), .. })) => log.page.owner.as_mut(),
                _ => None,
            };
            match (unseen, named) {
                (Ok(unseen_ms), Some(owner)) => owner.unseen_ms = unseen_ms,
                (Ok(_), None) => {}
                (Err(fault), _) => {
                    outcome = Outcome::failed(ticket.operation, StoreError::Failed(fault.what().to_owned()));
                }
            }
            ticket.complete(outcome);
        });
    }

    /// For how many milliseconds an owner is known to give no sign; for ever when it said that it is closed.
    async fn unseen_ms(&self, owner: &str) -> Result<u64, Fault> {
        let beat = self.ask(owner, cmd("GET").arg(self.tags.owner(owner))).await?;
        let count = match beat {
            Value::BulkString(said) if said == CLOSED.as_bytes() => return Ok(u64::MAX),
            Value::BulkString(said) => std::str::from_utf8(&said).ok().and_then(|count| count.parse().ok()),
            // The server lost it. Of an owner that is gone the next looks find this one, which stands still.
            _ => {
                self.ask(owner, self.sign(owner, "0").arg("NX")).await?;
                None
            }
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

    /// Tells others what this store object's sign of life is.
    async fn say(&self, sign: &str, limit: Duration) -> Result<(), Fault> {
        self.nodes.call(slot_of(&self.me), &self.sign(&self.me, sign), limit).await.map(|_| ())
    }

    /// Writes an owner's sign of life, which is kept for as long as anything of that owner.
    fn sign(&self, owner: &str, sign: &str) -> Cmd {
        cmd("SET").arg(self.tags.owner(owner)).arg(sign).arg("PX").arg(self.sign_ms).to_owned()
    }
}

/// Gives signs of life, and keeps what is in use from expiring.
async fn beat(core: Arc<Core>) {
    let pause = Duration::from_millis(beat_ms(core.owner_lost_ms));
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
fn accept_earlier(batch: &[Op], results: &mut [Result<Words, StoreError>]) {
    let mut stored: Vec<StreamNonce> = Vec::new();
    for (op, result) in batch.iter().zip(results).rev() {
        let Ask::Append { nonce, .. } = &op.ask else { continue };
        match result {
            Ok(_) => stored.push(*nonce),
            Err(StoreError::Gone | StoreError::OutOfOrder) if stored.contains(nonce) => {
                *result = Ok(Words::none());
            }
            Err(_) => {}
        }
    }
}

fn log_refusal(error: &StoreError) {
    tracing::error!(target: "tailrope", %error, "event store did not do what it was told");
}

fn milliseconds(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}
