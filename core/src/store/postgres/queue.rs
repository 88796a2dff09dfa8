//! What waits for the thread of a store, and what its callers and its tasks share.
//!
//! Sessions are spread over lanes; a lane is a connection that writes. What waits in a lane is written as
//! one transaction. A question goes to the reader at once, unless a change of the same session that came
//! before it is still under way: then it waits behind that (rule 11).

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use super::usage::Book;
use super::wake::Wake;
use crate::protocol::StreamNonce;
use crate::store::line::{Line, Waiting, closed};
use crate::store::{Append, Attach, Epoch, Hold, Name, StoreError, Ticket};
use crate::stream::Seq;

/// Operations of one transaction.
const BATCH: usize = 256;
/// Bytes of one transaction, about.
const BATCH_BYTES: usize = 4 << 20;

/// A change of a session, or of a stream of it. Those with a ticket are answered.
pub(super) struct Write {
    pub(super) session: Arc<str>,
    pub(super) nonce: Option<StreamNonce>,
    pub(super) epoch: Epoch,
    pub(super) change: Change,
    pub(super) ticket: Option<Ticket>,
}

pub(super) enum Change {
    Hold(Hold),
    Append(Append),
    /// It counts.
    Attach(Attach),
    Settle(Seq),
    Release,
    DropStream,
    DropSession,
}

impl Write {
    /// Of payloads.
    fn bytes(&self) -> usize {
        if let Change::Append(append) = &self.change { append.bytes() } else { 0 }
    }
}

/// A question.
pub(super) struct Look {
    pub(super) session: Arc<str>,
    pub(super) attach: Attach,
    /// Whoever the session's principal is.
    pub(super) is_read: bool,
    pub(super) ticket: Ticket,
    pub(super) asked: Instant,
}

impl Look {
    /// Rule 11.
    fn is_behind_all(&self) -> bool {
        self.session.is_empty()
    }
}

enum Job {
    Write(Write),
    Look(Look),
}

impl Job {
    /// By which it is called off. Nobody calls a question off.
    fn name(&self) -> Option<Name> {
        match self {
            Self::Write(write) => write.ticket.as_ref().map(Ticket::name),
            Self::Look(_) => None,
        }
    }
}

#[derive(Default)]
struct Jobs {
    waiting: Line<Job>,
    /// Changes by session that are not done, those under way included.
    undone: HashMap<Arc<str>, usize>,
}

#[derive(Default)]
pub(super) struct Lane {
    jobs: Mutex<Jobs>,
    pub(super) came: Notify,
}

/// What one transaction does, and what is asked behind it.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) writes: Vec<Write>,
    pub(super) looks: Vec<Look>,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.looks.is_empty()
    }
}

#[derive(Default)]
struct Sweeps {
    asked: u64,
    done: u64,
    /// What was asked after a sweep was, with the number of that sweep.
    behind: Vec<(u64, Look)>,
}

/// What the callers of a store and its tasks share.
pub(super) struct Shared {
    pub(super) lanes: Vec<Lane>,
    /// Over all lanes.
    waiting: AtomicUsize,
    bytes: AtomicUsize,
    closed: AtomicBool,
    /// Closed, and no lane is at work any more.
    written: AtomicBool,
    looks: Mutex<VecDeque<Look>>,
    pub(super) looks_came: Notify,
    sweeps: Mutex<Sweeps>,
    /// For the housekeeper: a sweep was asked for, too much is held, or it is over.
    pub(super) house: Notify,
    pub(super) book: Mutex<Book>,
    pub(super) wake: Wake,
    hasher: std::hash::RandomState,
}

impl Shared {
    pub(super) fn new(lanes: usize) -> Self {
        Self {
            lanes: (0..lanes).map(|_| Lane::default()).collect(),
            waiting: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            written: AtomicBool::new(false),
            looks: Mutex::default(),
            looks_came: Notify::new(),
            sweeps: Mutex::default(),
            house: Notify::new(),
            book: Mutex::new(Book::new(lanes + 1)),
            wake: Wake::default(),
            hasher: std::hash::RandomState::new(),
        }
    }

    fn lane(&self, session: &str) -> &Lane {
        &self.lanes[self.hasher.hash_one(session) as usize % self.lanes.len()]
    }

    /// Queues a change.
    ///
    /// # Errors
    /// When too much waits already.
    pub(super) fn write(&self, write: Write) -> Result<(), StoreError> {
        self.has_room(write.bytes(), write.ticket.is_some())?;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(write.bytes(), Ordering::Relaxed);
        let lane = self.lane(&write.session);
        let mut jobs = lock(&lane.jobs);
        *jobs.undone.entry(Arc::clone(&write.session)).or_default() += 1;
        jobs.push(Job::Write(write));
        drop(jobs);
        lane.came.notify_one();
        Ok(())
    }

    /// Queues a question.
    ///
    /// # Errors
    /// When too much waits already.
    pub(super) fn look(&self, look: Look) -> Result<(), StoreError> {
        self.has_room(0, true)?;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if look.is_behind_all() {
            self.hand_on(look, 0);
            return Ok(());
        }
        let lane = self.lane(&look.session);
        let mut jobs = lock(&lane.jobs);
        if jobs.undone.contains_key(&look.session) {
            jobs.push(Job::Look(look));
            return Ok(());
        }
        drop(jobs);
        self.ask(look);
        Ok(())
    }

    /// A question that no change is before. A sweep may be.
    fn ask(&self, look: Look) {
        let mut sweeps = lock(&self.sweeps);
        if sweeps.asked > sweeps.done {
            let number = sweeps.asked;
            return sweeps.behind.push((number, look));
        }
        drop(sweeps);
        self.hand_over([look]);
    }

    /// Takes a change back that is not under way.
    pub(super) fn call_off(&self, session: &str, ticket: &Ticket) {
        let mut jobs = lock(&self.lane(session).jobs);
        if let Some(Job::Write(write)) = jobs.waiting.call_off(ticket.name()) {
            jobs.done(&write);
            self.leave(&write);
        }
    }

    /// For a lane: what waits, up to the size of a transaction.
    pub(super) fn next_batch(&self, lane: usize) -> Batch {
        let mut jobs = lock(&self.lanes[lane].jobs);
        let (mut batch, mut bytes) = (Batch::default(), 0);
        while batch.writes.len() < BATCH && bytes < BATCH_BYTES {
            match jobs.waiting.pop(Job::name) {
                Some(Job::Write(write)) => {
                    bytes += write.bytes();
                    batch.writes.push(write);
                }
                Some(Job::Look(look)) => batch.looks.push(look),
                None => break,
            }
        }
        batch
    }

    /// For a lane: these changes are done, or will never be.
    pub(super) fn done<'a>(&self, lane: usize, writes: impl Iterator<Item = &'a Write>) {
        let mut jobs = lock(&self.lanes[lane].jobs);
        for write in writes {
            jobs.done(write);
            self.leave(write);
        }
    }

    /// For a lane: these come first when the server is back.
    pub(super) fn put_back(&self, lane: usize, writes: Vec<Write>) {
        let mut jobs = lock(&self.lanes[lane].jobs);
        for write in writes.into_iter().rev() {
            jobs.waiting.push_front(Job::Write(write));
        }
    }

    /// For a lane: what was asked behind its changes goes on, now that they are done.
    pub(super) fn passed(&self, lane: usize, looks: Vec<Look>) {
        let (behind_all, others): (Vec<_>, Vec<_>) = looks.into_iter().partition(Look::is_behind_all);
        self.hand_over(others);
        for look in behind_all {
            self.hand_on(look, lane + 1);
        }
    }

    /// A question that is behind everything waits in one lane after the other.
    fn hand_on(&self, look: Look, from: usize) {
        for lane in &self.lanes[from..] {
            let mut jobs = lock(&lane.jobs);
            if !jobs.undone.is_empty() {
                return jobs.push(Job::Look(look));
            }
        }
        self.ask(look);
    }

    /// Gives questions to the reader.
    pub(super) fn hand_over(&self, questions: impl IntoIterator<Item = Look>) {
        lock(&self.looks).extend(questions);
        self.looks_came.notify_one();
    }

    pub(super) fn next_looks(&self) -> Vec<Look> {
        lock(&self.looks).drain(..).collect()
    }

    pub(super) fn look_done(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn ask_sweep(&self) {
        lock(&self.sweeps).asked += 1;
        self.house.notify_one();
    }

    /// For the housekeeper: the sweeps that one which begins now answers.
    pub(super) fn sweeps_asked(&self) -> u64 {
        lock(&self.sweeps).asked
    }

    /// For the housekeeper: the sweeps up to this one are done, or failed.
    pub(super) fn swept(&self, up_to: u64) {
        let mut sweeps = lock(&self.sweeps);
        sweeps.done = up_to;
        let behind: Vec<Look> =
            sweeps.behind.extract_if(.., |(number, _)| *number <= up_to).map(|(_, look)| look).collect();
        drop(sweeps);
        self.hand_over(behind);
    }

    /// The lanes do what waits, and end.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.lanes.iter().for_each(|lane| lane.came.notify_one());
        self.house.notify_one();
        self.wake.close();
    }

    /// The lanes have ended: the reader does what waits, and ends, too.
    pub(super) fn close_looks(&self) {
        self.written.store(true, Ordering::SeqCst);
        self.looks_came.notify_one();
    }

    pub(super) fn is_written(&self) -> bool {
        self.written.load(Ordering::SeqCst)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    fn leave(&self, write: &Write) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(write.bytes(), Ordering::Relaxed);
    }

    fn has_room(&self, bytes: usize, is_answered: bool) -> Result<(), StoreError> {
        if self.is_closed() {
            return Err(closed());
        }
        let (operations, waiting) = (self.waiting.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        Waiting { operations, bytes: waiting }.has_room(bytes, is_answered)
    }
}

impl Jobs {
    fn push(&mut self, job: Job) {
        let name = job.name();
        self.waiting.push(job, name);
    }

    fn done(&mut self, write: &Write) {
        if let Some(count) = self.undone.get_mut(&write.session) {
            *count -= 1;
            if *count == 0 {
                self.undone.remove(&write.session);
            }
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::line::assert_is_bounded;

    #[test]
    fn what_waits_has_a_bound_with_an_answer_and_without() {
        let shared = Shared::new(1);
        let write = |change, ticket: Option<&Ticket>| {
            let (session, nonce, epoch) = ("s".into(), Some(StreamNonce([1; 12])), Epoch::default());
            shared.write(Write { session, nonce, epoch, change, ticket: ticket.cloned() })
        };
        assert_is_bounded(
            |ticket| {
                let (session, attach, asked) = ("s".into(), Attach::default(), Instant::now());
                shared.look(Look { session, attach, is_read: true, ticket: ticket.clone(), asked })
            },
            |append, ticket| write(Change::Append(append), Some(ticket)),
            || write(Change::DropStream, None),
        );
    }
}
