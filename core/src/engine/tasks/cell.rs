//! A call that runs here, and its task: behind its lock its machine, its log, and what waits for the host.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::Ms;
use crate::engine::Guest;
use crate::engine::connections::Wake;
use crate::engine::lines::Later;
use crate::engine::shared::{Shared, Timed, lock};
use crate::engine::stats::Counters;
use crate::engine::tasks::call::CallStep;
use crate::engine::tasks::change::{CallChange, Effects};
use crate::engine::tasks::ended::Calling;
use crate::engine::tasks::mail::Inbox;
use crate::engine::tasks::query::Query;
use crate::engine::tasks::records::Records;
use crate::engine::tasks::writing::Writing;
use crate::engine::tasks::{TASK_LOG, Verdict};
use crate::exchange::{Principal, Relayed};
use crate::maps::OwnMap;
use crate::protocol::StreamNonce;
use crate::session::Outcome as CallOutcome;
use crate::store::{Complete, Operation, Outcome, StreamKey, Ticket, Watch, Watcher};
use crate::sync::{Arc, Mutex, Weak};
use crate::task::{Ask, Input, Machine, Task};

/// Who waits for the outcome of an update or a cancellation.
pub(super) enum Requester {
    /// A request that came here, and the host's key of it.
    Query(Weak<Query>, u64),
    /// A request that came to another process, and the log in which its outcome is noted.
    Mail(StreamNonce, Relayed),
}

/// What waits for the host, in order.
pub(super) enum Queued {
    Step(CallStep),
    /// The requester has to be told what became of its request.
    Outcome(u64, Verdict),
}

/// What the live page shows of a task.
pub(crate) struct LiveTask {
    pub(crate) name: Arc<str>,
    /// The call: only its tool is shown.
    pub(crate) body: Bytes,
    pub(crate) status: &'static str,
    /// In milliseconds since 1970.
    pub(crate) created_at: u64,
    /// When a client asked for it last.
    pub(crate) asked_at: Ms,
}

/// Where the call's task is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// There is none, or not yet.
    Nowhere,
    /// This process owns it.
    Here,
    /// It has its end, another process has it, or it was never stored.
    Released,
    /// This process left it, and the store has lost that: what it lacks is written again.
    Restored,
}

impl Place {
    pub(super) fn writes(self) -> bool {
        matches!(self, Self::Here | Self::Restored)
    }
}

pub(crate) struct CallCell {
    pub(super) shared: Arc<Shared>,
    /// What the store calls the task.
    pub(crate) name: Arc<str>,
    pub(super) number: u64,
    pub(crate) principal: Option<Principal>,
    pub(super) me: Weak<Self>,
    wake: (Arc<dyn Wake>, u64),
    pub(super) body: Bytes,
    pub(super) state: Mutex<CallState>,
}

pub(super) struct CallState {
    pub(super) machine: Machine,
    pub(super) records: Records,
    pub(super) writing: Writing,
    pub(super) inbox: Inbox,
    pub(super) place: Place,
    pub(super) queue: VecDeque<Queued>,
    /// What is to be told when the call has its end; none once it was.
    pub(super) calling: Option<Calling>,
    pub(super) requesters: OwnMap<u64, Requester>,
    /// When a client asked for the task last, as far as this process knows, and how many readers elsewhere were counted then.
    pub(super) asked_at: Ms,
    pub(super) readers: u64,
    /// A drain waits for the call.
    pub(super) guest: Option<Guest>,
    /// The host of the call stops, and may be one of several.
    pub(super) is_draining: bool,
    pub(super) scheduled: Ms,
}

impl CallState {
    pub(super) fn is_over(&self) -> bool {
        let is_left = self.place == Place::Released && !self.machine.has_runs();
        self.place != Place::Restored
            && self.queue.is_empty()
            && self.inbox.is_answered()
            && (is_left || self.machine.is_over())
    }
}

impl CallCell {
    pub(super) fn new(
        shared: &Arc<Shared>,
        name: Arc<str>,
        principal: Option<&Principal>,
        wake: (Arc<dyn Wake>, u64),
        body: Bytes,
        (machine, calling): (Machine, Calling),
        (records, writing): (Records, Writing),
    ) -> Arc<Self> {
        let number = shared.number();
        let guest = Some(Guest::of(shared));
        let state = CallState {
            machine,
            records,
            writing,
            inbox: Inbox::default(),
            place: Place::Nowhere,
            queue: VecDeque::new(),
            calling: Some(calling),
            requesters: OwnMap::default(),
            asked_at: shared.clock.now(),
            readers: 0,
            guest,
            is_draining: false,
            scheduled: Ms::NEVER,
        };
        let cell = Arc::new_cyclic(|me: &Weak<Self>| Self {
            shared: Arc::clone(shared),
            name,
            number,
            principal: principal.cloned(),
            me: me.clone(),
            wake,
            body,
            state: Mutex::new(state),
        });
        lock(&shared.timed).insert(number, Timed::Call(Arc::downgrade(&cell)));
        cell
    }

    pub(super) fn key(&self, nonce: StreamNonce) -> StreamKey {
        StreamKey { session: Arc::clone(&self.name), nonce }
    }

    pub(super) fn identity(&self) -> Option<&str> {
        self.principal.as_ref().map(Principal::identity)
    }

    pub(super) fn watcher(&self) -> Watcher {
        let me: Weak<dyn Watch> = self.me.clone();
        me
    }

    pub(super) fn ticket(&self, nonce: StreamNonce, operation: Operation) -> Ticket {
        let to: Weak<dyn Complete> = self.me.clone();
        Ticket { to, nonce, operation, number: self.shared.number() }
    }

    /// Makes a change. When the lock is released, wakes those that have something to do.
    pub(super) fn change<T>(&self, make: impl FnOnce(&mut CallChange<'_>) -> T) -> Option<T> {
        if self.shared.is_forked() {
            return None;
        }
        let mut state = lock(&self.state);
        let (had_steps, was_over) = (!state.queue.is_empty(), state.is_over());
        let was_restored = state.place == Place::Restored;
        let mut change = CallChange {
            cell: self,
            now: self.shared.task_now(),
            state: &mut state,
            outputs: Vec::new(),
            effects: Effects::default(),
        };
        let value = make(&mut change);
        change.complete();
        let Effects { outcomes, lines, observed, is_stored } = std::mem::take(&mut change.effects);
        let is_served = !was_restored && state.place != Place::Restored;
        let wakes_host = is_served && ((!had_steps && !state.queue.is_empty()) || (!was_over && state.is_over()));
        drop(state);
        for (requester, verdict) in outcomes {
            if let Requester::Query(query, _) = requester
                && let Some(query) = query.upgrade()
            {
                query.decided(verdict);
            }
        }
        if wakes_host {
            self.wake.0.wake(self.wake.1);
        }
        if is_stored {
            self.shared.tell_followed(&self.name, self.identity());
        }
        self.shared.write_lines(lines);
        self.shared.observe(observed);
        Some(value)
    }

    pub(crate) fn tick(&self, at: Ms) {
        self.change(|change| {
            if change.state.scheduled == at {
                change.state.scheduled = Ms::NEVER;
            }
            change.write_is_due();
            change.mail_is_due();
            if change.state.machine.deadline() <= change.now.at {
                change.input(Input::Tick);
            }
        });
    }

    /// Whether nothing is left to do.
    pub(crate) fn is_over(&self) -> bool {
        lock(&self.state).is_over()
    }

    pub(super) fn is_handing_over(&self) -> bool {
        lock(&self.state).guest.is_some()
    }

    /// The task as the store has it. None where that has to be asked: other processes may show what it has not confirmed here, and
    /// what one of them showed is not taken back (T-15). While the store is away, nobody else is told more.
    pub(super) fn shown(&self) -> Option<Task> {
        let state = &mut *lock(&self.state);
        state.asked_at = self.shared.clock.now();
        let is_behind = state.machine.has_unconfirmed() && self.shared.store.away_ms().is_none();
        state.machine.stored().filter(|_| !is_behind).cloned()
    }

    /// A request for the task came here.
    pub(super) fn ask(&self, query: &Arc<Query>, key: u64, ask: &Ask) {
        let from = self.shared.number();
        self.change(|change| {
            let has_time = change.has_time();
            change.state.requesters.insert(from, Requester::Query(Arc::downgrade(query), key));
            if has_time {
                change.ask(from, ask);
            } else {
                change.tell(from, Verdict::NotTaken);
            }
        });
    }

    /// A drain has begun: what waits for its client alone is left to other processes.
    pub(crate) fn drain(&self) {
        self.change(|change| change.state.is_draining = true);
    }

    /// Another process may have the task by now, or the store lost something of it.
    pub(crate) fn doubt(&self) {
        self.change(|change| change.state.writing.doubt());
    }

    /// Since when the call runs here, if it does.
    pub(crate) fn runs_since(&self) -> Option<Ms> {
        lock(&self.state).runs_since()
    }

    /// Whether what it knows of the task is so.
    pub(super) fn is_sure(&self) -> bool {
        lock(&self.state).writing.is_sure()
    }

    /// The store may have lost that this process left the task, and the last of its log.
    pub(crate) fn restore(&self) {
        self.change(|change| {
            if change.state.place == Place::Released && change.state.writing.is_owned() {
                change.state.place = Place::Restored;
                change.state.writing.doubt();
            }
        });
    }

    /// The process goes away: what runs will not have a result. If the store outlives the process, others may read that.
    /// Whether it fails.
    pub(crate) fn leave(&self) -> bool {
        self.change(|change| change.leave()).unwrap_or_default()
    }
}

impl Complete for CallCell {
    fn complete(&self, ticket: &Ticket, outcome: Outcome) {
        self.change(|change| match outcome {
            Outcome::Taken(result) => change.mail_taken(ticket, result),
            Outcome::Done(result) if ticket.nonce != TASK_LOG => change.mail_answered(ticket, &result),
            outcome => change.write_answered(ticket, outcome),
        });
    }
}

impl Watch for CallCell {
    fn changed(&self, _nonce: StreamNonce) {}

    fn posted(&self) {
        self.change(|change| change.state.inbox.hint());
    }

    fn all_changed(&self) {
        self.change(|change| {
            change.state.inbox.hint();
            change.state.writing.doubt();
        });
    }
}

impl Drop for CallCell {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            return;
        }
        lock(&self.shared.timed).remove(&self.number);
        let (scheduled, place, epoch) = {
            let state = lock(&self.state);
            (state.scheduled, state.place, state.records.epoch())
        };
        self.shared.schedule(scheduled, Ms::NEVER, self.number);
        if place == Place::Restored {
            // It was held again, and the store did not answer in time for what was to follow.
            self.shared.store.release(&self.name, epoch);
        }
    }
}

impl CallCell {
    pub(super) fn unwatch(&self) {
        if self.shared.store.outlives_process() {
            self.shared.store.unwatch(&self.name, &self.watcher());
        }
    }

    /// Whether requests of this principal find the task.
    pub(super) fn belongs_to(&self, principal: Option<&Principal>) -> bool {
        self.principal.as_ref() == principal
    }

    /// What the live page shows of the task; none while the call is no task.
    pub(crate) fn live(&self) -> Option<LiveTask> {
        let state = lock(&self.state);
        let task = state.machine.task()?;
        let (status, created_at) = (task.status().as_str(), task.created_at());
        let (name, body) = (Arc::clone(&self.name), self.body.clone());
        Some(LiveTask { name, body, status, created_at, asked_at: state.asked_at })
    }

    /// The task of another process, which this one gave its end.
    pub(super) fn conclude(&self, outcome: CallOutcome) {
        self.change(|change| {
            change.note_end(outcome, None);
            change.state.place = Place::Released;
            change.release();
        });
    }

    /// This process goes on with the task of another one. False where it cannot.
    pub(super) fn take_over(&self, lines: &mut Vec<Later>) -> bool {
        if !self.me.upgrade().is_some_and(|me| self.shared.take_task(&me, lines)) {
            return false;
        }
        Counters::add(&self.shared.counters.tasks_adopted, 1);
        self.shared.is_back(&self.name);
        self.shared.store.watch(&self.name, &self.watcher());
        // The request that led here is asked next, and everything else that is to be done follows.
        lock(&self.state).place = Place::Here;
        true
    }
}
