//! What waits for the two threads of a store.
//!
//! Writes go to the writer. A read may go to the reader at once when no write is under way; otherwise
//! it queues behind the writes that came before it, so that it sees them (rule 11).

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::store::line::{Line, Waiting, closed};
use crate::store::{Append, Attach, Epoch, Hold, Name, ReadLimit, StoreError, StreamKey, Ticket, Usage};
use crate::stream::Seq;

/// Operations of one transaction.
const BATCH: usize = 256;
/// Bytes of one transaction, about.
const BATCH_BYTES: usize = 4 << 20;

/// A change. Those with a ticket are answered. To attach is one where that counts.
pub(super) enum Write {
    Hold { session: Arc<str>, hold: Hold, ticket: Ticket },
    Append { key: StreamKey, epoch: Epoch, append: Append, ticket: Ticket },
    Attach { session: Arc<str>, attach: Attach, ticket: Ticket },
    Settle { key: StreamKey, epoch: Epoch, seq: Seq },
    DropStream { key: StreamKey, epoch: Epoch },
    DropSession { session: Arc<str>, epoch: Epoch },
    Release { session: Arc<str>, epoch: Epoch },
    Sweep,
}

impl Write {
    pub(super) fn ticket(&self) -> Option<&Ticket> {
        match self {
            Self::Hold { ticket, .. } | Self::Append { ticket, .. } | Self::Attach { ticket, .. } => Some(ticket),
            _ => None,
        }
    }

    /// Of payloads.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Append { append, .. } => append.bytes(),
            _ => 0,
        }
    }
}

/// A question.
pub(super) enum Look {
    Read { key: StreamKey, after: Seq, limit: ReadLimit, ticket: Ticket },
    Attach { session: Arc<str>, attach: Attach, ticket: Ticket },
}

pub(super) enum Job {
    Write(Write),
    Look(Look),
}

impl Job {
    /// By which it is called off. Nobody calls a question off.
    fn name(&self) -> Option<Name> {
        match self {
            Self::Write(write) => write.ticket().map(Ticket::name),
            Self::Look(_) => None,
        }
    }
}

/// What the writer does next.
pub(super) enum Turn {
    Batch(Vec<Write>, Vec<Look>),
    /// Nothing came until then.
    Idle,
    Closed,
}

#[derive(Default)]
struct Jobs {
    waiting: Line<Job>,
    bytes: usize,
    /// The writer is at a batch that is not committed.
    writing: bool,
    closed: bool,
}

impl Jobs {
    fn push(&mut self, job: Job) {
        let name = job.name();
        self.waiting.push(job, name);
    }
}

#[derive(Default)]
struct Looks {
    waiting: VecDeque<Look>,
    closed: bool,
}

#[derive(Default)]
struct Checkpoint {
    due: bool,
    closed: bool,
}

/// What the callers of a store and its threads share.
#[derive(Default)]
pub(super) struct Shared {
    checkpoint: Mutex<Checkpoint>,
    checkpoint_due: Condvar,
    jobs: Mutex<Jobs>,
    jobs_came: Condvar,
    looks: Mutex<Looks>,
    looks_came: Condvar,
    usage: Mutex<Usage>,
}

impl Shared {
    /// Queues a change.
    ///
    /// # Errors
    /// When too much waits already.
    pub(super) fn write(&self, write: Write) -> Result<(), StoreError> {
        let mut jobs = lock(&self.jobs);
        self.has_room(&jobs, write.bytes(), write.ticket().is_some())?;
        jobs.bytes += write.bytes();
        jobs.push(Job::Write(write));
        drop(jobs);
        self.jobs_came.notify_one();
        Ok(())
    }

    /// Queues a question.
    ///
    /// # Errors
    /// When too much waits already.
    pub(super) fn look(&self, look: Look) -> Result<(), StoreError> {
        let mut jobs = lock(&self.jobs);
        self.has_room(&jobs, 0, true)?;
        if jobs.waiting.is_empty() && !jobs.writing {
            drop(jobs);
            self.hand_over(std::iter::once(look));
            return Ok(());
        }
        jobs.push(Job::Look(look));
        Ok(())
    }

    fn has_room(&self, jobs: &Jobs, bytes: usize, is_answered: bool) -> Result<(), StoreError> {
        if jobs.closed {
            return Err(closed());
        }
        let operations = jobs.waiting.len() + lock(&self.looks).waiting.len();
        Waiting { operations, bytes: jobs.bytes }.has_room(bytes, is_answered)
    }

    /// Takes a change back that the writer has not begun.
    pub(super) fn call_off(&self, ticket: &Ticket) {
        let mut jobs = lock(&self.jobs);
        if let Some(Job::Write(write)) = jobs.waiting.call_off(ticket.name()) {
            jobs.bytes -= write.bytes();
        }
    }

    /// For the writer: waits for something to do. The batch before is committed.
    pub(super) fn next_turn(&self, until: Instant) -> Turn {
        let mut jobs = lock(&self.jobs);
        jobs.writing = false;
        while jobs.waiting.is_empty() {
            if jobs.closed {
                return Turn::Closed;
            }
            let now = Instant::now();
            if now >= until {
                return Turn::Idle;
            }
            jobs = self.jobs_came.wait_timeout(jobs, until - now).unwrap_or_else(PoisonError::into_inner).0;
        }
        jobs.writing = true;
        let (mut writes, mut looks, mut bytes) = (Vec::new(), Vec::new(), 0);
        while writes.len() < BATCH && bytes < BATCH_BYTES {
            match jobs.waiting.pop(Job::name) {
                Some(Job::Write(write)) => {
                    bytes += write.bytes();
                    writes.push(write);
                }
                Some(Job::Look(look)) => looks.push(look),
                None => break,
            }
        }
        jobs.bytes -= bytes;
        Turn::Batch(writes, looks)
    }

    /// Gives questions to the reader.
    pub(super) fn hand_over(&self, questions: impl Iterator<Item = Look>) {
        lock(&self.looks).waiting.extend(questions);
        self.looks_came.notify_one();
    }

    /// For the reader: waits for questions; none when the store is closed.
    pub(super) fn next_looks(&self) -> Option<Vec<Look>> {
        let mut looks = lock(&self.looks);
        while looks.waiting.is_empty() {
            if looks.closed {
                return None;
            }
            looks = self.looks_came.wait(looks).unwrap_or_else(PoisonError::into_inner);
        }
        let count = looks.waiting.len().min(64);
        Some(looks.waiting.drain(..count).collect())
    }

    /// The writer does what waits, and ends.
    pub(super) fn close(&self) {
        lock(&self.jobs).closed = true;
        self.jobs_came.notify_all();
    }

    /// The reader does what waits, and ends; so does whoever shortens the log.
    pub(super) fn close_looks(&self) {
        lock(&self.looks).closed = true;
        self.looks_came.notify_all();
        lock(&self.checkpoint).closed = true;
        self.checkpoint_due.notify_all();
    }

    #[cfg(test)]
    pub(super) fn is_checkpoint_due(&self) -> bool {
        lock(&self.checkpoint).due
    }

    /// Enough was written.
    pub(super) fn ask_checkpoint(&self) {
        lock(&self.checkpoint).due = true;
        self.checkpoint_due.notify_one();
    }

    /// Waits until enough was written; false when the store is closed.
    pub(super) fn next_checkpoint(&self) -> bool {
        let mut checkpoint = lock(&self.checkpoint);
        while !checkpoint.due && !checkpoint.closed {
            checkpoint = self.checkpoint_due.wait(checkpoint).unwrap_or_else(PoisonError::into_inner);
        }
        checkpoint.due = false;
        !checkpoint.closed
    }

    pub(super) fn usage(&self) -> Usage {
        *lock(&self.usage)
    }

    pub(super) fn publish(&self, usage: Usage) {
        *lock(&self.usage) = usage;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::StreamNonce;
    use crate::store::line::assert_is_bounded;

    #[test]
    fn what_waits_has_a_bound_with_an_answer_and_without() {
        let shared = Shared::default();
        let key = || StreamKey { session: "s".into(), nonce: StreamNonce([1; 12]) };
        let (limit, epoch) = (ReadLimit::default(), Epoch::default());
        assert_is_bounded(
            |ticket| shared.look(Look::Read { key: key(), after: 0, limit, ticket: ticket.clone() }),
            |append, ticket| shared.write(Write::Append { key: key(), epoch, append, ticket: ticket.clone() }),
            || shared.write(Write::DropStream { key: key(), epoch }),
        );
    }
}
