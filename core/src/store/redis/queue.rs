//! What waits for the thread of a store: for each session what was asked, in order.
//!
//! A session's operations go to the server together, one batch after the other, so that they are done in
//! the order in which they were asked whatever happens on the way (rule 11). Sessions do not wait for each
//! other.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use crate::protocol::StreamNonce;
use crate::store::line::{Line, Waiting, closed};
use crate::store::{Append, Attach, Epoch, Hold, Name, ReadLimit, StoreError, Ticket};
use crate::stream::Seq;

/// Operations of one batch. The server does nothing else meanwhile.
const BATCH: usize = 128;
/// Bytes of one batch, about.
const BATCH_BYTES: usize = 1 << 20;

/// What is asked.
pub(super) enum Ask {
    Hold(Hold),
    Append { nonce: StreamNonce, epoch: Epoch, append: Append },
    Attach(Attach),
    Read { nonce: StreamNonce, after: Seq, limit: ReadLimit },
    Release { epoch: Epoch },
    Settle { nonce: StreamNonce, epoch: Epoch, seq: Seq },
    DropStream { nonce: StreamNonce, epoch: Epoch },
    DropSession { epoch: Epoch },
    Touch { nonces: Vec<StreamNonce> },
}

impl Ask {
    /// The one log that it is about.
    pub(super) fn nonce(&self) -> Option<StreamNonce> {
        match self {
            Self::Append { nonce, .. }
            | Self::Read { nonce, .. }
            | Self::Settle { nonce, .. }
            | Self::DropStream { nonce, .. } => Some(*nonce),
            Self::Attach(attach) => attach.stream,
            Self::Hold(_) | Self::Release { .. } | Self::DropSession { .. } | Self::Touch { .. } => None,
        }
    }

    /// Of payloads.
    fn bytes(&self) -> usize {
        match self {
            Self::Append { append, .. } => append.bytes(),
            _ => 0,
        }
    }
}

/// Who asked, and since when it waits.
pub(super) struct Op {
    pub(super) ask: Ask,
    /// None where nobody waits for an answer.
    pub(super) ticket: Option<Ticket>,
    pub(super) since: Instant,
}

impl Op {
    fn name(&self) -> Option<Name> {
        self.ticket.as_ref().map(Ticket::name)
    }
}

struct Lane {
    waiting: Line<Op>,
    /// Operations that are on their way and had better not be tried again.
    called_off: HashMap<Name, Ticket>,
}

impl Lane {
    fn new() -> Self {
        Self { waiting: Line::default(), called_off: HashMap::new() }
    }
}

#[derive(Default)]
struct State {
    /// Sessions with something to do.
    lanes: HashMap<Arc<str>, Lane>,
    /// Those of them that nobody has begun with.
    ready: Vec<Arc<str>>,
    /// What is asked behind everything (rule 11).
    behind_all: VecDeque<Op>,
    operations: usize,
    bytes: usize,
    closed: bool,
}

/// What the callers of a store and its thread share.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    pub(super) came: Notify,
}

impl Queue {
    /// Queues an operation.
    ///
    /// # Errors
    /// When too much waits already.
    pub(super) fn push(&self, session: &Arc<str>, ask: Ask, ticket: Option<&Ticket>) -> Result<(), StoreError> {
        let op = Op { ask, ticket: ticket.cloned(), since: Instant::now() };
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.closed {
            return Err(closed());
        }
        // What keeps the sessions that are held from expiring is no more than they are.
        if !matches!(op.ask, Ask::Touch { .. }) {
            let State { operations, bytes, .. } = *state;
            Waiting { operations, bytes }.has_room(op.ask.bytes(), op.ticket.is_some())?;
        }
        state.operations += 1;
        state.bytes += op.ask.bytes();
        if session.is_empty() && !state.lanes.is_empty() {
            state.behind_all.push_back(op);
            return Ok(());
        }
        let is_new = !state.lanes.contains_key(session);
        let name = op.name();
        state.lanes.entry(Arc::clone(session)).or_insert_with(Lane::new).waiting.push(op, name);
        if !is_new {
            return Ok(());
        }
        state.ready.push(Arc::clone(session));
        drop(guard);
        self.came.notify_one();
        Ok(())
    }

    /// Takes an operation back that is not done yet.
    pub(super) fn call_off(&self, session: &str, ticket: &Ticket) {
        let mut guard = self.lock();
        let State { lanes, operations, bytes, .. } = &mut *guard;
        let Some(lane) = lanes.get_mut(session) else { return };
        if let Some(op) = lane.waiting.call_off(ticket.name()) {
            *bytes -= op.ask.bytes();
            *operations -= 1;
        } else {
            lane.called_off.insert(ticket.name(), ticket.clone());
        }
    }

    /// Sessions that have something to do and nobody who does it.
    pub(super) fn take_ready(&self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.lock().ready)
    }

    /// The next batch of a session that was [ready](Self::take_ready). None when there is nothing to do any
    /// more: the session is ready again with the next operation.
    pub(super) fn next_batch(&self, session: &str) -> Option<Vec<Op>> {
        let mut state = self.lock();
        let lane = state.lanes.get_mut(session)?;
        lane.called_off.clear();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < BATCH && bytes < BATCH_BYTES {
            let Some(op) = lane.waiting.pop(Op::name) else { break };
            bytes += op.ask.bytes();
            batch.push(op);
        }
        if batch.is_empty() {
            state.lanes.remove(session);
            if state.lanes.is_empty() && !state.behind_all.is_empty() {
                let (session, mut lane) = (Arc::<str>::from(""), Lane::new());
                for op in std::mem::take(&mut state.behind_all) {
                    let name = op.name();
                    lane.waiting.push(op, name);
                }
                state.lanes.insert(Arc::clone(&session), lane);
                state.ready.push(session);
                drop(state);
                self.came.notify_one();
            }
            return None;
        }
        Some(batch)
    }

    /// Whether an operation of the present batch was called off.
    pub(super) fn is_called_off(&self, session: &str, op: &Op) -> bool {
        let state = self.lock();
        let Some(name) = op.name() else { return false };
        state.lanes.get(session).is_some_and(|lane| lane.called_off.contains_key(&name))
    }

    /// These operations are over.
    pub(super) fn done<'a>(&self, ops: impl Iterator<Item = &'a Op>) {
        let (mut operations, mut bytes) = (0, 0);
        for op in ops {
            operations += 1;
            bytes += op.ask.bytes();
        }
        let mut state = self.lock();
        state.operations -= operations;
        state.bytes -= bytes;
    }

    /// Takes nothing any more.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.came.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Whether everything is done.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().lanes.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::line::assert_is_bounded;

    fn tell(queue: &Queue, session: &str) {
        queue.push(&session.into(), Ask::Attach(Attach::default()), None).unwrap();
    }

    #[test]
    fn what_waits_has_a_bound_with_an_answer_and_without() {
        let (queue, session, nonce) = (Queue::default(), Arc::<str>::from("s"), StreamNonce([1; 12]));
        let epoch = Epoch::default();
        assert_is_bounded(
            |ticket| queue.push(&session, Ask::Attach(Attach::default()), Some(ticket)),
            |append, ticket| queue.push(&session, Ask::Append { nonce, epoch, append }, Some(ticket)),
            || queue.push(&session, Ask::DropStream { nonce, epoch }, None),
        );
        assert_eq!(queue.push(&session, Ask::Touch { nonces: vec![nonce] }, None), Ok(()));
    }

    #[test]
    fn what_is_asked_of_no_session_is_behind_everything() {
        let queue = Queue::default();
        for session in ["a", "b", "", "a", ""] {
            tell(&queue, session);
        }
        assert_eq!(queue.take_ready(), [Arc::<str>::from("a"), "b".into()]);
        let mut done = 0;
        for session in ["a", "b"] {
            assert!(queue.take_ready().is_empty(), "rule 11");
            while let Some(batch) = queue.next_batch(session) {
                done += batch.len();
            }
        }
        assert_eq!((done, queue.is_empty()), (3, false));
        assert_eq!(queue.take_ready(), [Arc::<str>::from("")]);
        assert_eq!(queue.next_batch("").map(|batch| batch.len()), Some(2));
        assert!(queue.next_batch("").is_none() && queue.is_empty());
    }
}
