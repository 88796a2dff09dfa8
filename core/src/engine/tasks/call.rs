//! A call that may become a task, as its host sees it.
//!
//! The host gives the SDK the call, tells what comes of it, and does the [steps](TaskCall::take_steps) that follow.

use std::fmt;

use bytes::Bytes;

use crate::engine::Engine;
use crate::engine::connections::Wake;
use crate::engine::sessions::cell::{Names, User};
use crate::engine::shared::{Shared, lock};
use crate::engine::stats::Counters;
use crate::engine::tasks::cell::{CallCell, Queued};
use crate::engine::tasks::ended::Calling;
use crate::engine::tasks::records::Records;
use crate::engine::tasks::writing::Writing;
use crate::exchange::{Relayed, Requester, Unidentified};
use crate::session::{Asked, Pace};
use crate::store::Epoch;
use crate::store::SessionId;
use crate::sync::Arc;
use crate::task::{
    Call, CallHeaders, Declared, Header, Input, Machine, Now, Policy, Posted, Reply, Route, Settings, TaskId, route,
};

/// What a host says of a call that may become a task.
#[derive(Clone, Debug)]
pub struct CallOptions<'a> {
    /// The server, as for [`SessionId::new`].
    pub server: &'a str,
    /// The tool that is called.
    pub tool: Option<&'a str>,
    /// The client takes a stream of events as an answer, and the SDK gives one.
    pub takes_streams: bool,
    /// The headers of its request that repeat its arguments.
    pub headers: CallHeaders,
    /// Who sends it.
    pub requester: Requester<'a>,
    /// The line of the SDK, as records name it: [`Dialect::sdk`](crate::protocol::Dialect::sdk).
    pub sdk: &'static str,
}

/// The context in which a call is given to the SDK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Context {
    /// That of the call itself.
    Call,
    /// That of this request about the task, by the key that its host gave it.
    Request(u64),
    /// That of a request which came to another process.
    Relayed(Relayed),
}

/// What a host has to do for a call, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallStep {
    /// Give this to the client of the call.
    Reply(Reply),
    /// Give the client of the call the SDK's answer as it is, with its status and headers.
    PassOn,
    /// The end of the client's connection is not the end of the run any more.
    Unlink,
    /// End the connection of the run, so that the SDK cancels its handler.
    Disconnect {
        /// The run.
        run: u32,
    },
    /// Cancel what is left of the run.
    Kill {
        /// The run.
        run: u32,
    },
    /// Give the SDK the call again.
    Start {
        /// The number of the run.
        run: u32,
        /// In which context.
        context: Context,
        /// The message.
        call: Bytes,
        /// All headers that [belong to the message](crate::task::is_of_message): they take the place of the context's.
        headers: Vec<Header>,
    },
    /// The handler's question has an answer.
    Answer {
        /// The host's number of the question.
        ask: u64,
        /// The result, as JSON.
        result: Bytes,
    },
    /// The handler's question cannot be asked: it ends as the SDK ends it.
    Refuse {
        /// The host's number of the question.
        ask: u64,
    },
}

/// A call that may become a task.
///
/// Dropping it ends nothing: a task goes on.
#[derive(Clone)]
pub struct TaskCall(pub(crate) Arc<CallCell>);

impl fmt::Debug for TaskCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskCall").finish_non_exhaustive()
    }
}

impl Engine {
    /// Whether calls can become tasks. They cannot where the store makes the event ids, as a host's own does.
    pub fn offers_tasks(&self) -> bool {
        self.0.store.own_ids().is_none()
    }

    /// What becomes of a POST. `steers` says whether clients are steered to a revision that can resume, and `stands_aside`
    /// whether the host makes tasks itself.
    pub fn route_post(&self, posted: &Posted, steers: bool, stands_aside: bool) -> Route {
        if !self.offers_tasks() {
            // A declaration changes nothing here, and nothing is about a task of ours.
            let posted = Posted { declared: Declared::No, method: String::new(), ..posted.clone() };
            return route(&posted, Policy { offers: false, requires: false, steers, stands_aside });
        }
        let pace = posted.tool.as_deref().and_then(|tool| self.0.options.paces.of(tool));
        let requires = pace.is_some_and(|pace| pace.requires_task);
        route(posted, Policy { offers: true, requires, steers, stands_aside })
    }

    /// Takes a call that the host gives the SDK now, with [this body](TaskCall::body). `wake` is told, with `key`, when there are
    /// [steps](TaskCall::take_steps) to do. None for what is no request.
    ///
    /// # Errors
    /// [`Unidentified`]: nobody can tell whose call it is.
    pub fn open_call(
        &self,
        body: &[u8],
        options: &CallOptions<'_>,
        wake: Arc<dyn Wake>,
        key: u64,
    ) -> Result<Option<TaskCall>, Unidentified> {
        let shared = &self.0;
        let principal = self.principal_of(&options.requester)?;
        if shared.is_forked() {
            return Ok(None);
        }
        let Some(call) = Call::read(body) else { return Ok(None) };
        let call = call.with_headers(options.headers.clone());
        let body = call.body().clone();
        let calling = Calling {
            request: call.request().clone(),
            asked: Asked::tool_call(options.tool),
            begun: shared.clock.now(),
            user: User::of(&options.requester),
            sdk: Some(options.sdk),
        };
        Counters::add(&shared.counters.calls_begun, 1);
        let pace = options.tool.and_then(|tool| shared.options.paces.of(tool)).copied().unwrap_or_default();
        let settings = Settings { takes_streams: options.takes_streams, ..shared.task_settings(&pace) };
        let id = TaskId::new(&shared.randomness.take());
        let names = Names::from(SessionId::new(options.server, &id.session_id()));
        let machine = Machine::new(shared.task_now(), settings, id, call);
        let records = Records::new(Epoch { number: 1, salt: shared.salt() });
        let log = (records, Writing::default());
        let cell = CallCell::new(shared, names.name, principal.as_ref(), (wake, key), body, (machine, calling), log);
        cell.change(|_| {});
        Ok(Some(TaskCall(cell)))
    }
}

impl Shared {
    pub(super) fn task_now(&self) -> Now {
        Now { at: self.clock.now(), unix_ms: self.clock.unix_ms() }
    }

    pub(super) fn task_settings(&self, pace: &Pace) -> Settings {
        let limits = &self.options.limits;
        Settings {
            after_ms: pace.task_after_ms.unwrap_or(self.options.task_after_ms),
            limit_ms: None,
            // A store forgets a session that nobody owns after that time.
            retention_ms: pace.retention_ms.unwrap_or(limits.retention_ms).min(limits.max_age_ms),
            max_record_bytes: limits.max_event_bytes,
            max_records: limits.max_events_per_stream,
            // Messages that wait for the task are its session's, too.
            max_log_bytes: limits.max_bytes_per_stream.min(limits.max_bytes_per_session / 2),
            takes_streams: false,
        }
    }
}

impl TaskCall {
    /// What the SDK is given.
    pub fn body(&self) -> &Bytes {
        &self.0.body
    }

    /// Something happened to the call. What comes of its task's store and of requests about the task the engine adds itself.
    pub fn input(&self, input: Input) {
        self.0.change(|change| change.input(input));
    }

    /// Whether nothing is left to do for the host. It is woken when that comes.
    pub fn is_over(&self) -> bool {
        self.0.shared.is_forked() || self.0.is_over()
    }

    /// Whether a drain waits for the call: a handler runs, or the store does not have yet what became of it.
    pub fn is_handing_over(&self) -> bool {
        !self.0.shared.is_forked() && self.0.is_handing_over()
    }

    /// The host stops: once the task waits for its client alone, it is left to other processes.
    pub fn drain(&self) {
        let (cell, shared) = (&self.0, &self.0.shared);
        let is_counted = shared.is_forked() || lock(&shared.draining).is_some() || lock(&cell.state).is_draining;
        if !is_counted {
            shared.drained.begin(shared.clock.now(), usize::from(cell.runs_since().is_some()));
        }
        cell.drain();
    }

    /// The host serves the call no more: it has no result. If the store outlives the process, others read that, or go on with the
    /// task.
    pub fn leave(&self) {
        self.0.leave();
    }

    /// What the host has to do now. It does that, and asks again until there is nothing: only then are requests answered that
    /// led to it.
    pub fn take_steps(&self) -> Vec<CallStep> {
        let mut steps = Vec::new();
        self.0.change(|change| {
            // The host has done what it was given before.
            while let Some(Queued::Outcome(..)) = change.state.queue.front() {
                if let Some(Queued::Outcome(from, verdict)) = change.state.queue.pop_front() {
                    change.tell(from, verdict);
                }
            }
            while let Some(Queued::Step(_)) = change.state.queue.front() {
                if let Some(Queued::Step(step)) = change.state.queue.pop_front() {
                    steps.push(step);
                }
            }
        });
        steps
    }
}
