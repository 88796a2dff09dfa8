//! The thread of a store: brings what was asked to the servers, and the answers back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ::redis::{Cmd, cmd};
use tailrope_core::store::parts::{Ask, Fault, Kind, Mailbox, Op, Pulse, Take, beat_ms, log_lost, next_beat};
use tailrope_core::store::{Attached, Outcome, StoreError};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::hints::Hints;
use super::layout;
use super::nodes::{Nodes, lasting};
use super::owners::{self, Owners};
use super::script::{self, Words};
use super::slots::slot_of;
use super::tags::Tags;
use super::usage::Book;
use crate::next::next;

/// One run of the script is of one session. The server does nothing else meanwhile.
const TAKE: Take = Take { changes: true, questions: true, sessions: 1, operations: 128, bytes: 1 << 20 };
/// The last sign of life.
pub(super) const CLOSED: &str = "closed";
pub(super) const GARBLED: &str = "the server's answer is not understood";

/// What the tasks of a store share.
pub(super) struct Core {
    pub(super) nodes: Arc<Nodes>,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) book: Arc<Book>,
    pub(super) hints: Arc<Hints>,
    pub(super) tags: Tags,
    /// This store object among all.
    pub(super) me: Arc<str>,
    /// The script's name at the servers.
    pub(super) sha: String,
    pub(super) owner_lost_ms: u64,
    /// How long a sign of life is kept.
    pub(super) sign_ms: u64,
    pub(super) beats: AtomicU64,
    pub(super) pulse: Arc<Pulse>,
    pub(super) owners: Owners,
    /// The server does not let it tell others what changed.
    pub(super) is_silent: AtomicBool,
}

/// Until the store is closed and everything is done.
pub(super) async fn run(core: Arc<Core>) {
    let tasks = [tokio::spawn(beat(Arc::clone(&core))), tokio::spawn(owners::run(Arc::clone(&core)))];
    while let Some(batch) = next(&core.mailbox, &TAKE).await {
        tokio::spawn(perform(Arc::clone(&core), batch));
    }
    tasks.iter().for_each(JoinHandle::abort);
    let _ = core.say(CLOSED, Duration::from_secs(1)).await;
}

/// Tries a batch once.
async fn perform(core: Arc<Core>, batch: Vec<Op>) {
    let Some(session) = batch.first().map(|op| Arc::clone(&op.session)) else { return };
    let tag = Tags::of(&session);
    let prefix = core.tags.prefix(tag);
    let keys = core.keys(&prefix, &session, &batch);
    let mut command = cmd("EVALSHA");
    command.arg(&core.sha).arg(keys.len()).arg(keys).arg(&prefix).arg(&*core.me);
    batch.iter().for_each(|op| script::add(&mut command, op));
    let answer = core.nodes.call(slot_of(&Tags::text(tag)), &command, core.limit()).await;
    let reply = answer.and_then(|value| {
        let reply = script::reply(value).filter(|reply| reply.results.len() == batch.len());
        reply.ok_or_else(|| Fault { was_sent: true, ..lasting(GARBLED) })
    });
    match reply {
        Ok(reply) => core.answer(&session, batch, reply),
        Err(fault) => core.mailbox.failed(batch, &fault),
    }
}

impl Core {
    /// How long one answer is waited for: half of the time, so that a server that came back is asked once more.
    pub(super) fn limit(&self) -> Duration {
        self.nodes.address.timeout / 2
    }

    /// The keys that a server of a cluster has to have, all of them, to do a batch. Otherwise the script
    /// finds its keys itself.
    fn keys(&self, prefix: &str, session: &str, batch: &[Op]) -> Vec<String> {
        let mut keys = vec![format!("{prefix}s:{session}")];
        if self.nodes.is_cluster() {
            keys.extend(["i", "x"].map(|kind| format!("{prefix}{kind}:{session}")));
            for nonce in batch.iter().filter_map(|op| op.ask.nonce()) {
                let name = nonce.hex();
                keys.extend(["m", "e", "p"].map(|kind| format!("{prefix}{kind}:{name}:{session}")));
            }
        }
        keys
    }

    fn answer(&self, session: &Arc<str>, batch: Vec<Op>, reply: script::Reply) {
        let script::Reply { trimmed, others, results, untold } = reply;
        if let Some(what) = untold.filter(|_| !self.is_silent.swap(true, Ordering::Relaxed)) {
            tracing::warn!(target: "tailrope", what, "event store cannot tell others what changed: they find out later");
        }
        self.book.removed(session, &others);
        let outcomes =
            batch.iter().zip(results).map(|(op, result)| Some(self.note(session, &op.ask, result))).collect();
        self.book.trimmed(session, trimmed, &others);
        self.over(session, batch, outcomes);
    }

    /// A batch has these outcomes. What nobody waits for, and a server refuses that takes nothing for a while, is tried again: nobody
    /// would ask for it again.
    fn over(&self, session: &Arc<str>, batch: Vec<Op>, outcomes: Vec<Option<Outcome>>) {
        let failed = |(op, outcome): (&Op, &Option<Outcome>)| match outcome {
            Some(Outcome::Done(Err(StoreError::Failed(what)))) if op.ticket.is_none() => Some(what.clone()),
            _ => None,
        };
        let refused: Vec<_> = batch.iter().zip(&outcomes).map(failed).collect();
        if let [Some(what)] = &refused[..] {
            return self.mailbox.failed(batch, &Fault { what: what.clone(), kind: Kind::OfOne, was_sent: false });
        }
        for (op, _) in batch.iter().zip(&refused).filter(|(_, refused)| refused.is_some()) {
            // Refused only by a store that is closed.
            let _ = self.mailbox.push(session, op.ask.clone(), None);
        }
        self.mailbox.done(batch, outcomes);
    }

    /// Takes note of what an operation changed. Returns its outcome.
    fn note(&self, session: &Arc<str>, ask: &Ask, result: Result<Words, StoreError>) -> Outcome {
        let garbled = || StoreError::Failed(GARBLED.to_owned());
        if let Err(StoreError::Gone | StoreError::Fenced) = result {
            self.book.doubt(session);
        }
        match (ask, result) {
            (Ask::Hold(_), result) => {
                let running = result.and_then(|mut words| words.running().ok_or_else(garbled)).map(|running| {
                    self.book.took(session, running.iter().map(|(log, written)| (log.nonce, *written)));
                    running.into_iter().map(|(log, _)| log).collect()
                });
                Outcome::Held(running)
            }
            (Ask::Attach(_), Err(StoreError::Gone)) => Outcome::Attached(Ok(Attached::default())),
            (Ask::Attach(_), result) => {
                Outcome::Attached(result.and_then(|mut words| words.attached(&self.unseen()).ok_or_else(garbled)))
            }
            (Ask::Read { .. }, result) => {
                Outcome::Page(result.and_then(|mut words| words.page(&self.unseen()).ok_or_else(garbled)))
            }
            (Ask::Take { .. }, result) => {
                let told = result.and_then(|mut words| words.mail().zip(words.number()).ok_or_else(garbled));
                let mail = told.map(|(mail, lost)| {
                    if lost > 0 {
                        log_lost(session, lost as usize);
                    }
                    mail.iter().for_each(|(mail, written)| self.book.wrote(session, mail.nonce, *written));
                    mail.into_iter().map(|(mail, _)| mail).collect()
                });
                Outcome::Taken(mail)
            }
            (Ask::Withdraw { .. }, result) => Outcome::Withdrawn(
                result.and_then(|mut words| words.number().map(|told| told == 1).ok_or_else(garbled)),
            ),
            (ask, mut result) => {
                match (ask, &mut result) {
                    (Ask::Append { nonce, .. } | Ask::Settle { nonce, .. }, Ok(words)) => {
                        if let Some(written) = words.written() {
                            self.book.wrote(session, *nonce, written);
                        }
                    }
                    (Ask::DropStream { nonce, .. }, Ok(_)) => self.book.gone(session, *nonce),
                    (Ask::Keep { .. }, Ok(words)) => {
                        words.nonces().iter().for_each(|log| self.book.gone(session, *log));
                    }
                    (Ask::Release { .. } | Ask::DropSession { .. }, Ok(_))
                    | (Ask::Keep { .. }, Err(StoreError::Fenced)) => self.book.dropped(session),
                    _ => {}
                }
                Outcome::Done(result.map(drop))
            }
        }
    }

    /// What is known of an owner that an answer names; none where that is this store object.
    fn unseen(&self) -> impl Fn(&str) -> Option<u64> {
        |owner| match owner {
            "" => Some(u64::MAX),
            _ if owner == &*self.me => None,
            _ => Some(self.owners.unseen_ms(owner)),
        }
    }

    /// How long the mark of the keys' layout is kept: longer than what is written until it is set again.
    pub(super) fn mark_ms(&self) -> u64 {
        3 * self.sign_ms
    }

    /// One sign of life. It counts here, so that it goes on where the server lost it.
    pub(super) async fn beat(&self) -> Result<(), Fault> {
        let (count, given) = (self.beats.fetch_add(1, Ordering::Relaxed), Instant::now());
        self.say(&count.to_string(), self.limit()).await?;
        self.pulse.answered(given);
        Ok(())
    }

    /// Tells others what this store object's sign of life is.
    async fn say(&self, sign: &str, limit: Duration) -> Result<(), Fault> {
        self.nodes.call(slot_of(&self.me), &self.sign(&self.me, sign), limit).await.map(|_| ())
    }

    /// Writes an owner's sign of life, which is kept for as long as anything of that owner.
    pub(super) fn sign(&self, owner: &str, sign: &str) -> Cmd {
        cmd("SET").arg(self.tags.owner(owner)).arg(sign).arg("PX").arg(self.sign_ms).to_owned()
    }
}

/// Gives signs of life, and keeps what is in use from expiring.
async fn beat(core: Arc<Core>) {
    let pause = Duration::from_millis(beat_ms(core.owner_lost_ms));
    let between_marks = Duration::from_millis(core.sign_ms);
    let mut marks_at = Instant::now() + between_marks;
    loop {
        let due = next_beat(Instant::now(), pause);
        let mut said = core.beat().await;
        if Instant::now() >= marks_at {
            said = said.and(layout::keep(&core).await);
            marks_at = Instant::now() + between_marks;
        }
        let failed = said.is_err();
        match said {
            Ok(()) => core.mailbox.reach.back(),
            Err(fault) => core.mailbox.reach.lost(&fault.what),
        }
        for (session, nonces) in core.book.sweep() {
            // Refused only by a store that is closed.
            let _ = core.mailbox.push(&session, Ask::Keep { nonces }, None);
        }
        // After a new connection at once: the server may have lost the sign, and the mark.
        let wait = due.saturating_duration_since(Instant::now());
        let wait = if failed { wait.min(Duration::from_millis(250)) } else { wait };
        let is_new = timeout(wait, core.nodes.connected.notified()).await.is_ok();
        if is_new {
            // A server that took the place of another one may have lost what was written last, and its hints (O10).
            core.hints.watchers.all_changed();
        }
        if failed || is_new {
            marks_at = Instant::now();
        }
    }
}
