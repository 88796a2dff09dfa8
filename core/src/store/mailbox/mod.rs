//! What lies between those who ask a store and those who reach its logs, the same for every store that takes time.
//!
//! Operations of one session are done in the order in which they were asked, in batches: one batch of a session is
//! under way at a time (rule 11). Sessions do not wait for each other. What waits has bounds; what nobody waits for any
//! more is taken back. A batch that fails for a reason that passes is tried again, with growing pauses, until the time of
//! those who wait for it is over. A batch of which one operation is at fault is tried one by one (I9).
//!
//! A store has workers that [take](Mailbox::next) batches, do each completely or not at all, and say what
//! [became of it](Mailbox::done).

mod ask;
mod blocking;
mod line;
mod mail;
mod queued;
#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
// A waker is no part of what Shuttle schedules.
use std::sync::Arc as WakerArc;
use std::task::Waker;
use std::time::{Duration, Instant};

pub use ask::{Ask, Fault, Kind, Op};
pub use blocking::BlockingBackend;
use mail::{Mail, Over};
pub use queued::{Backend, Queued};

use crate::Ms;
use crate::repeats::{BURST, Bounded, Repeats};
use crate::store::liveness::Reach;
use crate::store::{Outcome, StoreError, Ticket};
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError, thread};

/// What a worker takes at a time.
#[derive(Clone, Copy, Debug)]
pub struct Take {
    /// What changes something.
    pub changes: bool,
    /// What changes nothing.
    pub questions: bool,
    /// Sessions at most.
    pub sessions: usize,
    /// Operations at most.
    pub operations: usize,
    /// Bytes of payloads, about.
    pub bytes: usize,
}

/// What a worker does next.
pub enum Turn {
    /// Operations of several sessions, those of each in order.
    Batch(Vec<Op>),
    /// Nothing, until it is woken or this time.
    Wait(Option<Instant>),
    /// The store is closed, and nothing is left.
    Over,
}

struct State {
    mail: Mail,
    /// Workers that wait, by which queue.
    waiting: [Vec<Waker>; 2],
    /// When what is left is given up.
    closes: Option<Instant>,
    /// How much of what nobody waits for was refused and is not in the log yet, and why it was the last time.
    refused: Option<(u64, StoreError)>,
    /// Whether the code of the store has panicked. Only the first panic is logged: each operation fails with it.
    panic: Panicked,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Panicked {
    Never,
    /// It is not in the log yet.
    First,
    Logged,
}

impl State {
    /// The share of one worker: others that wait get theirs.
    fn take(&mut self, now: Instant, take: &Take, over: &mut Vec<Over>) -> Vec<Op> {
        self.mail.resume(now);
        let (ready, workers) = match (take.changes, take.questions) {
            (true, false) => (self.mail.ready(0), self.waiting[0].len()),
            (false, true) => (self.mail.ready(1), self.waiting[1].len()),
            _ => (usize::MAX, 0),
        };
        let sessions = take.sessions.min(ready.div_ceil(1 + workers).max(1));
        self.mail.take(now, &Take { sessions, ..*take }, over)
    }

    /// A worker does not wait any more: others are to be woken in its place.
    fn forget(&mut self, worker: &Waker) {
        self.waiting.iter_mut().for_each(|waiting| waiting.retain(|known| !known.will_wake(worker)));
    }
}

/// What waits for a store, and for its workers.
pub struct Mailbox {
    state: Mutex<State>,
    /// How long what is left may take when the store is closed.
    closing: Duration,
    /// Whether the store is reached. What workers do beside the mailbox tells it, too.
    pub reach: Reach,
    /// What nobody waits for is refused: the log says it a few times.
    refusals: Mutex<Repeats>,
    opened: Instant,
}

impl Mailbox {
    /// `timeout` is how long an operation is tried, `closing` how long what is left is tried when the store is closed.
    pub fn new(timeout: Duration, closing: Duration) -> Self {
        let state = State {
            mail: Mail::new(timeout),
            waiting: Default::default(),
            closes: None,
            refused: None,
            panic: Panicked::Never,
        };
        Self {
            state: Mutex::new(state),
            closing,
            reach: Reach::default(),
            refusals: Mutex::default(),
            opened: Instant::now(),
        }
    }

    /// Adds an operation.
    ///
    /// # Errors
    /// When too much waits already, or the store is closed.
    pub fn push(&self, session: &Arc<str>, ask: Ask, ticket: Option<&Ticket>) -> Result<(), StoreError> {
        let op = Op {
            session: Arc::clone(session),
            ask,
            ticket: ticket.cloned(),
            is_unsure: false,
            since: Instant::now(),
            is_alone: false,
        };
        let mut state = self.lock();
        state.mail.push(op)?;
        Self::wake(state);
        Ok(())
    }

    /// What nobody waits for was refused. A worker logs it: callers have locks, and a subscriber may call them.
    pub(super) fn refused(&self, error: StoreError) {
        let mut state = self.lock();
        let before = state.refused.take().map_or(0, |(count, _)| count);
        state.refused = Some((before + 1, error));
        Self::wake_all(state);
    }

    /// Calls the code of the store, which somebody else may have written. None where it panics: that harms only what it was
    /// called for (I9). A worker logs it, as above.
    pub(super) fn guard<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        let called = catch_unwind(AssertUnwindSafe(call)).ok();
        if called.is_none() {
            let mut state = self.lock();
            if state.panic == Panicked::Never {
                state.panic = Panicked::First;
                Self::wake_all(state);
            }
        }
        called
    }

    /// Takes an operation back that is not under way; one that is, is not tried again.
    pub(super) fn call_off(&self, session: &str, ticket: &Ticket) {
        let mut state = self.lock();
        state.mail.call_off(session, ticket);
        Self::wake(state);
    }

    /// What a worker does next. Where it is to wait, `waker` is woken when there may be more.
    pub fn turn(&self, take: &Take, waker: &Waker) -> Turn {
        let now = Instant::now();
        let mut over = Vec::new();
        let mut state = self.lock();
        state.forget(waker);
        let is_over = state.closes.is_some_and(|at| now >= at);
        let batch = if is_over { Vec::new() } else { state.take(now, take, &mut over) };
        let refused = state.refused.take();
        let is_first_panic = state.panic == Panicked::First;
        if is_first_panic {
            state.panic = Panicked::Logged;
        }
        let left = if is_over { state.mail.give_up() } else { Vec::new() };
        let lost = left.len();
        over.extend(left.into_iter().map(|op| (op, closed())));
        let turn = if !batch.is_empty() {
            Turn::Batch(batch)
        } else if is_over || (state.closes.is_some() && state.mail.is_empty()) {
            Turn::Over
        } else {
            for (queue, is_wanted) in [take.changes, take.questions].into_iter().enumerate() {
                if is_wanted {
                    state.waiting[queue].push(waker.clone());
                }
            }
            let due = state.mail.due().into_iter().chain(state.closes).min();
            Turn::Wait(due)
        };
        Self::wake(state);
        if lost > 0 {
            tracing::error!(target: "tailrope", lost, "the event store closed before everything was done");
        }
        if let Some((operations, error)) = refused {
            tracing::error!(target: "tailrope", operations, %error, "event store did not do what it was told");
        }
        if is_first_panic {
            tracing::error!(target: "tailrope",
                "the code of the event store panicked; what it was doing fails, and further panics are not logged");
        }
        self.tell_over(over);
        turn
    }

    /// What a worker with a thread of its own does next: it waits here. `until` bounds the wait.
    pub fn next_until(&self, take: &Take, until: Option<Instant>) -> Turn {
        struct Parked(thread::Thread);

        impl std::task::Wake for Parked {
            fn wake(self: WakerArc<Self>) {
                self.0.unpark();
            }
        }

        let waker = Waker::from(WakerArc::new(Parked(thread::current())));
        loop {
            let due = match self.turn(take, &waker) {
                Turn::Wait(due) => due.into_iter().chain(until).min(),
                turn => return turn,
            };
            let now = Instant::now();
            if until.is_some_and(|until| until <= now) {
                self.lock().forget(&waker);
                return Turn::Wait(until);
            }
            match due {
                Some(due) => thread::park_timeout(due.saturating_duration_since(now)),
                None => thread::park(),
            }
        }
    }

    /// A batch was done, and this became of its operations, each in its place. Where it is none, the worker tells the caller
    /// itself.
    pub fn done(&self, mut batch: Vec<Op>, mut outcomes: Vec<Option<Outcome>>) {
        self.reach.back();
        believe_later(&batch, &mut outcomes);
        let grown = batch.iter().zip(&outcomes).filter(|(op, _)| op.ask.grows());
        self.note_stored(grown.filter_map(|(_, outcome)| outcome.as_ref().map(Outcome::error)));
        let mut state = self.lock();
        // Before the answers: what is asked because of them need not wait.
        state.mail.done(&batch);
        Self::wake(state);
        for (op, outcome) in batch.drain(..).zip(outcomes) {
            match (op.ticket, outcome) {
                (Some(ticket), Some(outcome)) => ticket.complete(outcome),
                // Rule 12.
                (None, Some(Outcome::Done(Err(error)))) if !matches!(error, StoreError::Gone | StoreError::Fenced) => {
                    self.log_refusal(error);
                }
                _ => {}
            }
        }
    }

    /// Nothing of a batch was done, as far as is known.
    pub fn failed(&self, batch: Vec<Op>, fault: &Fault) {
        let mut over = Vec::new();
        let mut state = self.lock();
        state.mail.failed(Instant::now(), batch, fault, &mut over);
        Self::wake_all(state);
        match fault.kind {
            Kind::Passes | Kind::Lasts => self.reach.lost(&fault.what),
            Kind::OfOne => {}
        }
        self.note_stored(over.iter().filter(|(op, _)| op.ask.grows()).map(|(_, error)| Some(error)));
        self.tell_over(over);
    }

    /// What became of what was to be stored. A store that took some of it stores.
    fn note_stored<'a>(&self, errors: impl Iterator<Item = Option<&'a StoreError>>) {
        let mut refused = None;
        for error in errors {
            match error {
                None => return self.reach.stored(),
                Some(error) if error.is_of_all() => refused = Some(error),
                Some(_) => {}
            }
        }
        if let Some(error) = refused {
            match error {
                StoreError::Failed(what) => self.reach.refused(what),
                error => self.reach.refused(error),
            }
        }
    }

    fn tell_over(&self, over: Vec<Over>) {
        for (op, error) in over {
            match &op.ticket {
                Some(ticket) => ticket.complete(Outcome::failed(ticket.operation, error)),
                None => self.log_refusal(error),
            }
        }
    }

    fn log_refusal(&self, error: StoreError) {
        let line = Box::new(move |repeated: Option<u64>| {
            tracing::error!(target: "tailrope", %error, repeated, "event store did not do what it was told");
        });
        let now = Ms(u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX));
        let bounded = Bounded { kind: "a refusal", whose: None, burst: BURST, line };
        let due = self.refusals.lock().unwrap_or_else(PoisonError::into_inner).take(now, bounded);
        if let Some((line, before)) = due {
            line(before);
        }
    }

    /// Takes nothing any more. Workers do what waits, and end.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.mail.is_closed = true;
        state.closes = Some(Instant::now() + self.closing);
        Self::wake_all(state);
    }

    /// Whether nothing is taken any more.
    pub fn is_closed(&self) -> bool {
        self.lock().mail.is_closed
    }

    /// Wakes as many workers as have something to do.
    fn wake(mut guard: MutexGuard<'_, State>) {
        let State { mail, waiting, closes, .. } = &mut *guard;
        let is_over = closes.is_some() && mail.is_empty();
        let mut woken = Vec::new();
        for (queue, waiting) in waiting.iter_mut().enumerate() {
            let count = if is_over { waiting.len() } else { mail.ready(queue).min(waiting.len()) };
            // Those that were busy last: what they need is still at hand.
            woken.extend(waiting.drain(waiting.len() - count..));
        }
        drop(guard);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Until when workers wait has changed.
    fn wake_all(mut guard: MutexGuard<'_, State>) {
        let waiting = std::mem::take(&mut guard.waiting);
        drop(guard);
        waiting.into_iter().flatten().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An append that another one of the same batch and log follows was stored, though it was not the last any more when it
/// was tried again.
fn believe_later(batch: &[Op], outcomes: &mut [Option<Outcome>]) {
    let mut stored = std::collections::HashSet::new();
    for (op, outcome) in batch.iter().zip(outcomes).rev() {
        let Ask::Append { nonce, .. } = &op.ask else { continue };
        match outcome {
            Some(Outcome::Done(Ok(()))) => drop(stored.insert((&op.session, *nonce))),
            Some(Outcome::Done(Err(StoreError::Gone | StoreError::OutOfOrder)))
                if op.is_unsure && stored.contains(&(&op.session, *nonce)) =>
            {
                *outcome = Some(Outcome::Done(Ok(())));
            }
            _ => {}
        }
    }
}

/// What is asked of a store that is closed.
fn closed() -> StoreError {
    StoreError::Failed("the store is closed".to_owned())
}
