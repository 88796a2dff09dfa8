//! The store object of one node: what it was asked and has not answered.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tailrope_checker::Why;
use tailrope_core::Ms;
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::{
    Answer, Append, Attach, Attached, Epoch, EventStore, Hold, LogPage, Mail, Outcome, ReadLimit, RunningLog,
    StoreError, StreamKey, Ticket, Usage, Watcher, Watchers,
};
use tailrope_core::stream::Seq;

use crate::operation::Operation;
use crate::sea::{Hint, News, Sea};

/// How a node's store answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// When a decision says so.
    Later,
    Now,
    Failing,
}

/// Something that waits.
struct Pending {
    key: StreamKey,
    operation: Operation,
    /// None where nobody waits for it.
    ticket: Option<Ticket>,
    /// It is done; this is still to be told.
    held: Option<Outcome>,
}

pub(crate) struct State {
    pub(crate) mode: Mode,
    pub(crate) is_cut_off: bool,
    /// The process is gone.
    is_dead: bool,
    waiting: Vec<Pending>,
}

pub(crate) struct NodeStore {
    pub(crate) owner: usize,
    watchers: Watchers,
    calls_off: bool,
    sea: Arc<Mutex<Sea>>,
    state: Mutex<State>,
}

/// What happens to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Done,
    Failed,
    Unheard,
    Overdue,
    Held,
}

impl NodeStore {
    pub(crate) fn new(sea: &Arc<Mutex<Sea>>, node: usize, mode: Mode, calls_off: bool) -> Self {
        let owner = lock(sea).join(node);
        let state = State { mode, is_cut_off: false, is_dead: false, waiting: Vec::new() };
        Self { owner, watchers: Watchers::default(), calls_off, sea: Arc::clone(sea), state: Mutex::new(state) }
    }

    fn sea(&self) -> MutexGuard<'_, Sea> {
        lock(&self.sea)
    }

    /// Whether the store answers this node, and does not only fail.
    pub(crate) fn is_answered(&self) -> bool {
        let state = self.state();
        !state.is_cut_off && state.mode != Mode::Failing
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Nobody is answered any more.
    pub(crate) fn stop(&self) {
        let mut state = self.state();
        (state.is_dead, state.mode) = (true, Mode::Now);
        state.waiting.clear();
    }

    /// The outcome, if it is known at once.
    fn ask(&self, key: &StreamKey, operation: Operation, ticket: Option<&Ticket>) -> Option<Outcome> {
        let mut state = self.state();
        if state.is_dead {
            return None;
        }
        if state.mode == Mode::Failing
            && let Some(failure) = operation.failure(failed())
        {
            note_failure(&mut self.sea(), key, &operation);
            return Some(failure);
        }
        let pending = Pending { key: key.clone(), operation, ticket: ticket.cloned(), held: None };
        let waits =
            state.mode == Mode::Later || state.is_cut_off || state.waiting.iter().any(|b| is_behind(&pending, b));
        if !waits {
            let outcome = self.sea().perform(self.owner, key, &pending.operation);
            self.note_outcome(&pending, outcome.as_ref());
            return outcome;
        }
        state.waiting.push(pending);
        None
    }

    fn note_outcome(&self, pending: &Pending, outcome: Option<&Outcome>) {
        if matches!(outcome, Some(Outcome::Done(Err(_)))) {
            note_failure(&mut self.sea(), &pending.key, &pending.operation);
        }
    }

    /// The operations that could be done now.
    fn ready(state: &State) -> impl Iterator<Item = usize> {
        let is_ready = |at: &usize| {
            let this = &state.waiting[*at];
            this.held.is_none() && !state.waiting[..*at].iter().any(|before| is_behind(this, before))
        };
        let count = if state.is_cut_off { 0 } else { state.waiting.len() };
        (0..count).filter(is_ready)
    }

    /// Decides the fate of one operation. False when there is none that can have it.
    pub(crate) fn decide(&self, pick: u64, fate: Fate) -> bool {
        let told = {
            let mut state = self.state();
            // There may be thousands, and the first is all that most ask for.
            let ready: Vec<usize> = Self::ready(&state).take(if pick == 0 { 1 } else { usize::MAX }).collect();
            if ready.is_empty() {
                return false;
            }
            let at = ready[(pick % ready.len() as u64) as usize];
            let is_asked = state.waiting[at].operation.failure(failed()).is_some();
            let is_waited_for = state.waiting[at].ticket.is_some();
            let fate = if is_asked && is_waited_for { fate } else { Fate::Done };
            match fate {
                Fate::Overdue => {
                    let pending = &mut state.waiting[at];
                    self.sea().count("operations that are overdue");
                    pending.ticket.take().zip(pending.operation.failure(timed_out()))
                }
                Fate::Failed => {
                    let pending = state.waiting.remove(at);
                    note_failure(&mut self.sea(), &pending.key, &pending.operation);
                    self.sea().count("operations that failed");
                    pending.ticket.zip(pending.operation.failure(failed()))
                }
                Fate::Unheard => {
                    let pending = state.waiting.remove(at);
                    let mut sea = self.sea();
                    sea.perform(self.owner, &pending.key, &pending.operation);
                    sea.count("operations that were done unheard");
                    pending.ticket.zip(pending.operation.failure(timed_out()))
                }
                Fate::Done | Fate::Held => {
                    let mut pending = state.waiting.remove(at);
                    let outcome = self.sea().perform(self.owner, &pending.key, &pending.operation);
                    self.note_outcome(&pending, outcome.as_ref());
                    if fate == Fate::Held && outcome.is_some() && pending.ticket.is_some() {
                        self.sea().count("answers that were held back");
                        pending.held = outcome;
                        state.waiting.insert(at, pending);
                        None
                    } else {
                        pending.ticket.zip(outcome)
                    }
                }
            }
        };
        if let Some((ticket, outcome)) = told {
            ticket.complete(outcome);
        }
        true
    }

    pub(crate) fn tell(&self, hint: &Hint) {
        match &hint.news {
            News::Log(key) => self.watchers.changed(&key.session, key.nonce),
            News::Posted(session) => self.watchers.posted(session),
            News::Session(session) => self.watchers.session_changed(session),
            News::Anything => self.watchers.all_changed(),
        }
    }

    /// Tells what was held back.
    pub(crate) fn tell_held(&self) {
        loop {
            let told = {
                let mut state = self.state();
                let Some(at) = state.waiting.iter().position(|pending| pending.held.is_some()) else { return };
                let pending = state.waiting.remove(at);
                pending.ticket.zip(pending.held)
            };
            if let Some((ticket, outcome)) = told {
                ticket.complete(outcome);
            }
        }
    }

    /// Does everything that can be done.
    pub(crate) fn do_all(&self) {
        self.tell_held();
        while self.decide(0, Fate::Done) {
            self.tell_held();
        }
    }

    /// The process is gone. So many of its operations are done all the same.
    pub(crate) fn die(&self, done: u64) {
        let mut state = self.state();
        let waiting = std::mem::take(&mut state.waiting);
        (state.is_dead, state.mode) = (true, Mode::Now);
        let left: Vec<Pending> = waiting.into_iter().filter(|pending| pending.held.is_none()).collect();
        let count = if state.is_cut_off { 0 } else { (done % (left.len() as u64 + 1)) as usize };
        let mut sea = self.sea();
        if left.iter().any(|pending| matches!(pending.operation, Operation::Append(..))) {
            sea.count("crashes with appends under way");
        }
        for pending in &left[..count] {
            sea.perform(self.owner, &pending.key, &pending.operation);
        }
        sea.owners.died(self.owner);
    }
}

/// After a panic the rest of the schedule does not count, but what it holds is to be freed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether an operation has to wait for one that was asked before it.
fn is_behind(this: &Pending, before: &Pending) -> bool {
    let are_posts = this.operation.is_post() && before.operation.is_post();
    this.key.session == before.key.session
        && (this.key.nonce == before.key.nonce
            || are_posts
            || this.operation.is_of_session()
            || before.operation.is_of_session())
}

/// A response that fails permits an error in its place.
fn note_failure(sea: &mut Sea, key: &StreamKey, operation: &Operation) {
    if operation.has_end() {
        sea.gone(&key.session, end_name(operation), Why::Unstored);
    }
}

fn end_name(operation: &Operation) -> Option<String> {
    let Operation::Append(_, append) = operation else { return None };
    let last = append.events.iter().find(|event| event.kind.is_response())?;
    let text = String::from_utf8_lossy(&last.frame);
    tailrope_checker::marks(&text).next().map(|mark| mark.stream.to_owned())
}

fn failed() -> StoreError {
    StoreError::Failed("the simulation says so".to_owned())
}

fn timed_out() -> StoreError {
    StoreError::TimedOut { after_ms: 1 }
}

fn of_session(session: &str) -> StreamKey {
    StreamKey { session: session.into(), nonce: StreamNonce([0; 12]) }
}

impl EventStore for NodeStore {
    fn hold(&self, session: &str, hold: &Hold, ticket: &Ticket) -> Answer<Vec<RunningLog>> {
        match self.ask(&of_session(session), Operation::Hold(hold.clone()), Some(ticket)) {
            Some(Outcome::Held(result)) => Answer::Now(result),
            _ => Answer::Later,
        }
    }

    fn append(&self, _: Ms, key: &StreamKey, epoch: Epoch, append: &Append, ticket: &Ticket) -> Answer<()> {
        match self.ask(key, Operation::Append(epoch, append.clone()), Some(ticket)) {
            Some(Outcome::Done(result)) => Answer::Now(result),
            _ => Answer::Later,
        }
    }

    fn abandon(&self, _: &StreamKey, ticket: &Ticket) {
        let mut state = self.state();
        let is_it = |pending: &Pending| pending.ticket.as_ref().is_some_and(|waits| waits.number == ticket.number);
        let Some(at) = state.waiting.iter().position(is_it) else { return };
        self.sea().count("operations abandoned");
        if state.waiting[at].held.is_some() || self.calls_off {
            state.waiting.remove(at);
        } else {
            state.waiting[at].ticket = None;
        }
    }

    fn attach(&self, session: &str, attach: &Attach, ticket: &Ticket) -> Answer<Attached> {
        let of = of_session(session);
        let key = StreamKey { nonce: attach.stream.unwrap_or(of.nonce), ..of };
        match self.ask(&key, Operation::Attach(attach.clone()), Some(ticket)) {
            Some(Outcome::Attached(result)) => Answer::Now(result),
            _ => Answer::Later,
        }
    }

    fn read(&self, key: &StreamKey, after: Seq, limit: ReadLimit, ticket: &Ticket) -> Answer<LogPage> {
        match self.ask(key, Operation::Read(after, limit), Some(ticket)) {
            Some(Outcome::Page(result)) => Answer::Now(result),
            _ => Answer::Later,
        }
    }

    fn take(&self, session: &str, epoch: Epoch, after: u64, ticket: &Ticket) -> Answer<Vec<Mail>> {
        match self.ask(&of_session(session), Operation::Take(epoch, after), Some(ticket)) {
            Some(Outcome::Taken(result)) => Answer::Now(result),
            _ => Answer::Later,
        }
    }

    fn withdraw(&self, _: Ms, key: &StreamKey, end: &Bytes, ticket: &Ticket) -> Answer<bool> {
        match self.ask(key, Operation::Withdraw(end.clone()), Some(ticket)) {
            Some(Outcome::Withdrawn(result)) => Answer::Now(result),
            _ => Answer::Later,
        }
    }

    fn release(&self, session: &str, epoch: Epoch) {
        self.ask(&of_session(session), Operation::Release(epoch), None);
    }

    fn watch(&self, session: &Arc<str>, watcher: &Watcher) {
        self.watchers.watch(session, watcher);
    }

    fn unwatch(&self, session: &str, watcher: &Watcher) {
        self.watchers.unwatch(session, watcher);
    }

    fn settle(&self, key: &StreamKey, epoch: Epoch, seq: Seq) {
        self.ask(key, Operation::Settle(epoch, seq), None);
    }

    fn drop_stream(&self, key: &StreamKey, epoch: Epoch) {
        self.ask(key, Operation::DropStream(epoch), None);
    }

    fn drop_session(&self, session: &str, epoch: Epoch) {
        self.ask(&of_session(session), Operation::DropSession(epoch), None);
    }

    fn sweep(&self, now: Ms) -> Ms {
        let state = self.state();
        if state.is_dead || state.is_cut_off { now + 1_000 } else { self.sea().sweep(self.owner) }
    }

    fn usage(&self) -> Usage {
        self.sea().usage()
    }

    fn is_cut_off(&self) -> bool {
        let sea = self.sea();
        sea.owners.is_cut_off(self.owner, sea.now)
    }

    fn outlives_process(&self) -> bool {
        true
    }
}
