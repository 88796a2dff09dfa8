//! What waits for a store: for each session what was asked, in order. No clock, no lock: times are told.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use super::ask::Ask;
use super::ask::{Fault, Kind, Op};
use super::line::Line;
use super::{Take, closed};
use crate::store::{Name, StoreError, Ticket};
use crate::sync::Arc;

/// Operations that may wait for a store. Streams hold their own senders back long before; this bounds very many.
const MAX_WAITING: usize = 65_536;
/// Those without an answer take room up to here: nobody asks for them again.
const MAX_UNANSWERED: usize = 2 * MAX_WAITING;
/// Bytes of payloads that may wait for a store.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// Pauses before a session's operations are tried again, in milliseconds.
const PAUSES_MS: [u64; 7] = [5, 20, 50, 100, 200, 400, 1_000];

/// An operation that is over, and what its caller is told.
pub(super) type Over = (Op, StoreError);

/// What is asked of one session.
#[derive(Default)]
struct Lane {
    waiting: Line<Op>,
    /// When the first of its operations that are under way was asked.
    under_way: Option<Instant>,
    /// How often in a row it failed for a reason that passes.
    failures: usize,
    /// Why it failed the last time.
    why: String,
    /// Operations that are under way, and are not to be tried again.
    called_off: HashMap<Name, Ticket>,
}

impl Lane {
    /// Whether anything is to be done that was asked by then.
    fn has_asked(&mut self, by: Instant) -> bool {
        let waiting = self.waiting.front().map(|op| op.since);
        self.under_way.into_iter().chain(waiting).any(|since| since <= by)
    }
}

/// See the module.
pub(super) struct Mail {
    /// Sessions with something to do.
    lanes: HashMap<Arc<str>, Lane>,
    /// Those that nobody is busy with, by what comes first: changes, or questions.
    ready: [VecDeque<Arc<str>>; 2],
    /// Those that are tried again later.
    paused: BTreeSet<(Instant, Arc<str>)>,
    /// What is asked of no session is behind everything (rule 11).
    behind_all: VecDeque<Op>,
    operations: usize,
    bytes: usize,
    timeout: Duration,
    pub(super) is_closed: bool,
}

impl Mail {
    /// `timeout` is how long operations are tried.
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            lanes: HashMap::new(),
            ready: Default::default(),
            paused: BTreeSet::new(),
            behind_all: VecDeque::new(),
            operations: 0,
            bytes: 0,
            timeout,
            is_closed: false,
        }
    }

    /// Adds an operation.
    ///
    /// # Errors
    /// When too much waits already, or the store is closed.
    pub(super) fn push(&mut self, op: Op) -> Result<(), StoreError> {
        if self.is_closed {
            return Err(closed());
        }
        self.has_room(&op)?;
        self.operations += 1;
        self.bytes += op.ask.bytes();
        if op.session.is_empty() && !self.lanes.is_empty() {
            self.behind_all.push_back(op);
            self.call_last();
        } else {
            self.add(op);
        }
        Ok(())
    }

    fn add(&mut self, op: Op) {
        let is_new = !self.lanes.contains_key(&op.session);
        let (session, name) = (Arc::clone(&op.session), op.name());
        self.lanes.entry(Arc::clone(&session)).or_default().waiting.push(op, name);
        if is_new {
            self.make_ready(&session);
        }
    }

    fn has_room(&self, op: &Op) -> Result<(), StoreError> {
        // What keeps sessions from expiring is no more than they are.
        if matches!(op.ask, Ask::Keep { .. }) {
            return Ok(());
        }
        let most = if op.ticket.is_some() { MAX_WAITING } else { MAX_UNANSWERED };
        let Self { operations, bytes, .. } = *self;
        if operations < most && (op.ask.bytes() == 0 || bytes < MAX_WAITING_BYTES) {
            return Ok(());
        }
        Err(StoreError::Failed(format!("{operations} operations with {bytes} bytes wait already, as many as may")))
    }

    /// Puts a session that nobody is busy with where it can be taken. It goes when nothing is to be done.
    fn make_ready(&mut self, session: &Arc<str>) {
        let Some(lane) = self.lanes.get_mut(session) else { return };
        if let Some(first) = lane.waiting.front() {
            self.ready[usize::from(first.ask.is_question())].push_back(Arc::clone(session));
        } else {
            self.lanes.remove(session);
        }
    }

    /// Sessions that can be taken of one of the two queues.
    pub(super) fn ready(&self, queue: usize) -> usize {
        self.ready[queue].len()
    }

    /// What is behind everything has its turn when nothing waits that was asked before it. To be called whenever something does
    /// not wait any more: workers are woken for what is ready.
    fn call_last(&mut self) {
        while let Some(asked) = self.behind_all.front().map(|op| op.since)
            && !self.lanes.iter_mut().any(|(session, lane)| !session.is_empty() && lane.has_asked(asked))
            && let Some(op) = self.behind_all.pop_front()
        {
            self.add(op);
        }
    }

    /// Takes an operation back that is not under way; one that is, is not tried again.
    pub(super) fn call_off(&mut self, session: &str, ticket: &Ticket) {
        let Some(lane) = self.lanes.get_mut(session) else { return };
        if let Some(op) = lane.waiting.call_off(ticket.name()) {
            self.leave(&op);
        } else if lane.under_way.is_some() {
            lane.called_off.insert(ticket.name(), ticket.clone());
        }
        self.call_last();
    }

    fn leave(&mut self, op: &Op) {
        self.operations -= 1;
        self.bytes -= op.ask.bytes();
    }

    /// Sessions whose pause is over can be taken again.
    pub(super) fn resume(&mut self, now: Instant) {
        while let Some((due, session)) = self.paused.first().filter(|(due, _)| *due <= now).cloned() {
            self.paused.remove(&(due, Arc::clone(&session)));
            self.make_ready(&session);
        }
    }

    /// The next batch, in which a session's operations are in order and behind each other; and what waited for too
    /// long.
    pub(super) fn take(&mut self, now: Instant, take: &Take, over: &mut Vec<Over>) -> Vec<Op> {
        let wants = [take.changes, take.questions];
        let (mut batch, mut sessions, mut bytes) = (Vec::<Op>::new(), 0, 0);
        while sessions < take.sessions && batch.len() < take.operations && bytes < take.bytes {
            let Some(queue) = (0..2).find(|queue| wants[*queue] && !self.ready[*queue].is_empty()) else { break };
            let Some(session) = self.ready[queue].pop_front() else { break };
            let Some(lane) = self.lanes.get_mut(&session) else { continue };
            lane.under_way = None;
            while batch.len() < take.operations && bytes < take.bytes {
                let Some(op) = lane.waiting.front() else { break };
                let (is_wanted, is_alone) = (wants[usize::from(op.ask.is_question())], op.is_alone);
                let goes_with = batch.last().is_none_or(|last| !is_alone && !last.is_alone);
                let next = if is_wanted && goes_with { lane.waiting.pop(Op::name) } else { None };
                let Some(op) = next else { break };
                if op.is_over(now, self.timeout) {
                    let what = if lane.why.is_empty() { "it was not reached in time" } else { &lane.why };
                    let error = op.too_late(now, what);
                    over.push((op, error));
                    continue;
                }
                bytes += op.ask.bytes();
                lane.under_way.get_or_insert(op.since);
                batch.push(op);
            }
            if lane.under_way.is_some() {
                sessions += 1;
                continue;
            }
            // What came first has a batch of its own, is another worker's, or is over.
            self.make_ready(&session);
            if !batch.is_empty() {
                break;
            }
        }
        over.iter().for_each(|(op, _)| self.leave(op));
        self.call_last();
        batch
    }

    /// When a session that is paused is to be tried again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.paused.first().map(|(due, _)| *due)
    }

    /// These operations are over.
    pub(super) fn done(&mut self, batch: &[Op]) {
        batch.iter().for_each(|op| self.leave(op));
        for session in sessions(batch) {
            let Some(lane) = self.lanes.get_mut(&session) else { continue };
            lane.called_off.clear();
            (lane.under_way, lane.failures) = (None, 0);
            self.make_ready(&session);
        }
        self.call_last();
    }

    /// These operations were not done. They are tried again, except those that are over.
    pub(super) fn failed(&mut self, now: Instant, batch: Vec<Op>, fault: &Fault, over: &mut Vec<Over>) {
        let concerned = sessions(&batch);
        let is_one = batch.len() == 1;
        // What may be done is not at fault, and what nobody waits for is tried until it is done: nobody would ask for it again.
        let passes = is_one && (fault.was_sent || batch[0].is_unsure || batch[0].ticket.is_none());
        let kind = if passes { Kind::Passes } else { fault.kind };
        for mut op in batch.into_iter().rev() {
            op.is_unsure |= fault.was_sent;
            let Some(lane) = self.lanes.get_mut(&op.session) else {
                self.leave(&op);
                over.push((op, closed()));
                continue;
            };
            if op.name().is_some_and(|name| lane.called_off.remove(&name).is_some()) {
                self.leave(&op);
                continue;
            }
            let error = match kind {
                Kind::OfOne if is_one => Some(StoreError::Failed(fault.what.clone())),
                Kind::Lasts if op.ticket.is_some() && !op.is_unsure => Some(StoreError::Failed(fault.what.clone())),
                _ if op.is_over(now, self.timeout) => Some(op.too_late(now, &fault.what)),
                _ => None,
            };
            if let Some(error) = error {
                self.leave(&op);
                over.push((op, error));
                continue;
            }
            op.is_alone |= kind == Kind::OfOne;
            let name = op.name();
            lane.waiting.push_front(op, name);
        }
        over.reverse();
        for session in concerned {
            let Some(lane) = self.lanes.get_mut(&session) else { continue };
            lane.called_off.clear();
            lane.under_way = None;
            lane.why.clone_from(&fault.what);
            if kind == Kind::OfOne || lane.waiting.is_empty() {
                self.make_ready(&session);
                continue;
            }
            let due = now + Duration::from_millis(PAUSES_MS[lane.failures.min(PAUSES_MS.len() - 1)]);
            lane.failures += 1;
            self.paused.insert((due, session));
        }
        self.call_last();
    }

    /// Whether everything is done.
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty() && self.behind_all.is_empty()
    }

    /// Gives up what waits, and is not under way.
    pub(super) fn give_up(&mut self) -> Vec<Op> {
        let lanes = self.lanes.values_mut().flat_map(|lane| std::iter::from_fn(|| lane.waiting.pop(Op::name)));
        let left: Vec<Op> = lanes.chain(self.behind_all.drain(..)).collect();
        left.iter().for_each(|op| self.leave(op));
        self.lanes.retain(|_, lane| lane.under_way.is_some());
        self.ready.iter_mut().for_each(VecDeque::clear);
        self.paused.clear();
        left
    }
}

/// The sessions of a batch.
fn sessions(batch: &[Op]) -> Vec<Arc<str>> {
    let mut seen = HashSet::new();
    batch.iter().filter(|op| seen.insert(&*op.session)).map(|op| Arc::clone(&op.session)).collect()
}
