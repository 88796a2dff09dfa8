//! A request about a task: answered by its owner if that is here, and otherwise from the log.
//!
//! ```text
//!            the owner is here
//!   start ────────────────────────▶ owner ──▶ over
//!     │ ▲                                       ▲
//!     │ └── pause ◀── no answer, or not taken   │
//!     ▼                                         │
//!   load ──how it stands──────────────────────▶─┤
//!     │ └─an update or a cancellation──▶ relay ─┤   relaying.rs
//!     └───the owner is gone──▶ inherit ────────▶┘   inheriting.rs
//! ```
//!
//! No client asks again where a request failed. So a request waits while the owner changes or the store is away, for as long as a
//! store may take.

mod change;

use std::collections::VecDeque;
use std::fmt;

use bytes::Bytes;
pub(super) use change::QueryChange;

use crate::Ms;
use crate::engine::connections::Wake;
use crate::engine::sessions::cell::Names;
use crate::engine::shared::{Shared, Timed, lock};
use crate::engine::tasks::Verdict;
use crate::engine::tasks::call::TaskCall;
use crate::engine::tasks::inheriting::Inheritance;
use crate::engine::tasks::loading::Loading;
use crate::engine::{Engine, Guest};
use crate::exchange::{Principal, Relayed};
use crate::protocol::{Refusal, StreamNonce};
use crate::store::{Complete, Operation, Outcome, SessionId, StreamKey, Ticket, Watch, Watcher};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, Weak};
use crate::task::{Task, TaskId, TaskRequest, not_taken};

/// What a request about a task is answered.
#[derive(Clone, Debug)]
pub enum TaskAnswer {
    /// With this body and status 200. Nothing follows.
    Body(Bytes),
    /// With a refusal. Nothing follows.
    Refused(Refusal),
    /// Not yet: the task goes on in this process, whose host serves its call from now on. The answer follows.
    Serve(TaskCall),
}

/// A request about a task.
///
/// Dropping it calls off what can be called off: an update that was relayed already is done all the same.
pub struct TaskQuery(Arc<Query>);

impl fmt::Debug for TaskQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskQuery").finish_non_exhaustive()
    }
}

impl TaskQuery {
    /// The next answer, if there is one now.
    pub fn take(&self) -> Option<TaskAnswer> {
        if self.0.shared.is_forked() {
            return Some(TaskAnswer::Refused(not_taken(&self.0.request.request)));
        }
        lock(&self.0.state).answers.pop_front()
    }
}

pub(crate) struct Query {
    pub(super) shared: Arc<Shared>,
    pub(super) name: Arc<str>,
    pub(super) number: u64,
    pub(super) principal: Option<Principal>,
    pub(super) request: TaskRequest,
    pub(super) relayed: Option<Relayed>,
    pub(super) audience: Audience,
    pub(super) wake: (Arc<dyn Wake>, u64),
    me: Weak<Self>,
    pub(super) state: Mutex<QueryState>,
}

/// Who the task is looked at for.
pub(super) enum Audience {
    Client,
    /// Subscribers: they [take the task](Query::take_shown) in the place of an answer. The owner is told of them from this time on.
    Subscribers(Ms),
    /// Nobody: the log is looked at until this time.
    Nobody(AtomicU64),
}

/// A task, or that there is none for these subscribers.
pub(super) type Shown = Option<Box<Task>>;

pub(super) struct QueryState {
    pub(super) stage: Stage,
    /// For subscribers.
    shown: Option<Shown>,
    answers: VecDeque<TaskAnswer>,
    /// When the request is given up.
    due: Ms,
    /// When the owner is told next that the task is asked for here. A client that asks once is no such sign.
    pub(super) sign_at: Ms,
    pub(super) scheduled: Ms,
    is_watching: bool,
    /// A drain waits for the answer: its client does not ask again.
    guest: Option<Guest>,
}

/// See the module's diagram.
pub(super) enum Stage {
    Start,
    Pause(Ms),
    Owner,
    Load(Loading),
    /// A message is on its way to the store, which then has it until the owner takes it.
    Post(StreamNonce, Ticket),
    /// The store has it: look at its log at this time. After the other time it is taken back; never, where the owner has it.
    Posted(StreamNonce, Ms, Ms),
    LookAtPost(StreamNonce, Ticket, Ms),
    Withdraw(StreamNonce, Ticket),
    Inherit(Box<Inheritance>),
    Over,
}

impl Engine {
    /// Asks about a task of this server. `relayed` is what may travel of the request to another process, for an update or a
    /// cancellation. `wake` is told, with `key`, when [`TaskQuery::take`] has an answer; that may be at once. The key also names
    /// the request in [`Context::Request`](super::Context).
    pub fn ask_task(
        &self,
        server: &str,
        request: TaskRequest,
        principal: Option<&Principal>,
        relayed: Option<Relayed>,
        wake: Arc<dyn Wake>,
        key: u64,
    ) -> TaskQuery {
        let names = Names::from(SessionId::new(server, &request.task.session_id()));
        let query =
            Query::new(&self.0, names.name, principal.cloned(), request, relayed, Audience::Client, (wake, key));
        if !self.0.is_forked() {
            query.change(|change| change.start());
        }
        TaskQuery(query)
    }
}

impl Query {
    pub(super) fn new(
        shared: &Arc<Shared>,
        name: Arc<str>,
        principal: Option<Principal>,
        request: TaskRequest,
        relayed: Option<Relayed>,
        audience: Audience,
        wake: (Arc<dyn Wake>, u64),
    ) -> Arc<Self> {
        let number = if shared.is_forked() { 0 } else { shared.number() };
        let due = match &audience {
            Audience::Nobody(until) => Ms(until.load(Ordering::Relaxed)),
            Audience::Client | Audience::Subscribers(_) => shared.due_after(shared.clock.now()),
        };
        let sign_at = match &audience {
            Audience::Subscribers(at) => *at,
            Audience::Client | Audience::Nobody(_) => Ms(0),
        };
        let guest = (matches!(audience, Audience::Client) && !shared.is_forked()).then(|| Guest::of(shared));
        let query = Arc::new_cyclic(|me: &Weak<Self>| Self {
            shared: Arc::clone(shared),
            name,
            number,
            principal,
            request,
            relayed,
            audience,
            wake,
            me: me.clone(),
            state: Mutex::new(QueryState {
                stage: Stage::Start,
                shown: None,
                answers: VecDeque::new(),
                due,
                sign_at,
                scheduled: Ms::NEVER,
                is_watching: false,
                guest,
            }),
        });
        if !shared.is_forked() {
            lock(&shared.timed).insert(number, Timed::Query(Arc::downgrade(&query)));
        }
        query
    }

    pub(super) fn is_follower(&self) -> bool {
        matches!(self.audience, Audience::Nobody(_))
    }

    /// What subscribers are told once there is an answer. None where the store could not tell.
    pub(super) fn take_shown(&self) -> Option<Shown> {
        lock(&self.state).shown.take()
    }

    pub(super) fn sign_at(&self) -> Ms {
        lock(&self.state).sign_at
    }

    pub(super) fn id(&self) -> &TaskId {
        &self.request.task
    }

    pub(super) fn key(&self, nonce: StreamNonce) -> StreamKey {
        StreamKey { session: Arc::clone(&self.name), nonce }
    }

    pub(super) fn identity(&self) -> Option<Box<str>> {
        self.principal.as_ref().map(|principal| principal.identity().into())
    }

    pub(super) fn ticket(&self, nonce: StreamNonce, operation: Operation) -> Ticket {
        let to: Weak<dyn Complete> = self.me.clone();
        Ticket { to, nonce, operation, number: self.shared.number() }
    }

    fn watcher(&self) -> Watcher {
        let me: Weak<dyn Watch> = self.me.clone();
        me
    }

    pub(super) fn change(&self, make: impl FnOnce(&mut QueryChange<'_>)) {
        if self.shared.is_forked() {
            return;
        }
        let mut state = lock(&self.state);
        let count = state.answers.len();
        let (now, lines) = (self.shared.clock.now(), Vec::new());
        let mut change = QueryChange { query: self, now, state: &mut state, owner: None, lines };
        if !matches!(change.state.stage, Stage::Over) {
            make(&mut change);
        }
        change.schedule();
        let (owner, lines) = (change.owner.take(), std::mem::take(&mut change.lines));
        let wakes = state.answers.len() > count;
        if matches!(state.stage, Stage::Over) {
            state.guest = None;
        }
        drop(state);
        if wakes {
            self.wake.0.wake(self.wake.1);
        }
        if let (Some(owner), Some(me)) = (owner, self.me.upgrade()) {
            owner.ask(&me, self.wake.1, &self.request.ask);
        }
        self.shared.write_lines(lines);
    }

    /// Nobody waits for what the store was asked.
    fn call_off(&self, stage: &Stage) {
        let (nonce, ticket) = match stage {
            Stage::Load(loading) => (super::TASK_LOG, &loading.ticket),
            Stage::Post(nonce, ticket) | Stage::LookAtPost(nonce, ticket, _) | Stage::Withdraw(nonce, ticket) => {
                (*nonce, ticket)
            }
            Stage::Inherit(inheritance) => {
                // The store may have done it, or do it after all: nobody must take this process for the owner.
                self.shared.release(&self.name, inheritance.epoch());
                (super::TASK_LOG, &inheritance.ticket)
            }
            Stage::Start | Stage::Pause(_) | Stage::Owner | Stage::Posted(..) | Stage::Over => return,
        };
        self.shared.store.abandon(&self.key(nonce), ticket);
    }

    /// The owner in this process has decided.
    pub(super) fn decided(&self, verdict: Verdict) {
        self.change(|change| change.decided(verdict));
    }

    pub(crate) fn tick(&self, at: Ms) {
        self.change(|change| {
            if change.state.scheduled == at {
                change.state.scheduled = Ms::NEVER;
            }
            change.is_due();
        });
    }
}

impl Complete for Query {
    fn complete(&self, ticket: &Ticket, outcome: Outcome) {
        self.change(|change| change.answered(ticket, outcome));
    }
}

impl Watch for Query {
    fn changed(&self, nonce: StreamNonce) {
        self.change(|change| change.look_because_of_a_hint(nonce));
    }

    fn posted(&self) {}
    fn all_changed(&self) {}
}

impl Drop for Query {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            return;
        }
        lock(&self.shared.timed).remove(&self.number);
        let (scheduled, is_watching, stage, answers) = {
            let state = &mut *lock(&self.state);
            let (stage, answers) =
                (std::mem::replace(&mut state.stage, Stage::Over), std::mem::take(&mut state.answers));
            (state.scheduled, state.is_watching, stage, answers)
        };
        self.shared.schedule(scheduled, Ms::NEVER, self.number);
        self.call_off(&stage);
        for answer in answers {
            // Its host was never told of it.
            if let TaskAnswer::Serve(call) = answer {
                call.leave();
            }
        }
        if is_watching {
            self.shared.store.unwatch(&self.name, &self.watcher());
        }
    }
}
