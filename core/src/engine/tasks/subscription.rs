//! A `subscriptions/listen` that names tasks, as its host sees it.
//!
//! The host leaves the request to the SDK, and gives it the SDK's stream. Its client gets what [`next`](TaskSubscription::next) has,
//! as fast as it takes that.

use std::fmt;

use bytes::Bytes;

use crate::Ms;
use crate::engine::Engine;
use crate::engine::connections::Wake;
use crate::engine::sessions::cell::Names;
use crate::engine::shared::{Shared, Timed, lock};
use crate::engine::tasks::following::Followed;
use crate::exchange::Principal;
use crate::maps::OwnMap;
use crate::protocol::Refusal;
use crate::store::SessionId;
use crate::sync::{Arc, Mutex};
use crate::task::{Subscription, Task};

/// A subscription to tasks. It is over when this is dropped.
pub struct TaskSubscription(Arc<SubscriptionCell>);

impl fmt::Debug for TaskSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskSubscription").finish_non_exhaustive()
    }
}

pub(crate) struct SubscriptionCell {
    shared: Arc<Shared>,
    number: u64,
    wake: (Arc<dyn Wake>, u64),
    state: Mutex<State>,
}

struct State {
    machine: Subscription,
    /// The tasks, by their numbers, as long as they can change.
    followed: OwnMap<usize, Arc<Followed>>,
    scheduled: Ms,
}

impl Engine {
    /// Takes a `subscriptions/listen` that names tasks of this server, and that the host gives the SDK now. `wake` is told, with
    /// `key`, when there may be [more](TaskSubscription::next). None for what is no such request.
    ///
    /// # Errors
    /// The refusal of a request that names too many tasks.
    pub fn subscribe_to_tasks(
        &self,
        server: &str,
        body: &[u8],
        principal: Option<&Principal>,
        wake: Arc<dyn Wake>,
        key: u64,
    ) -> Result<Option<TaskSubscription>, Refusal> {
        let shared = &self.0;
        if shared.is_forked() {
            return Ok(None);
        }
        let max_event_bytes = shared.options.limits.max_event_bytes;
        let mut machine = match Subscription::read(body, shared.clock.now(), max_event_bytes) {
            None => return Ok(None),
            Some(read) => read?,
        };
        if shared.check().is_err() || lock(&shared.draining).is_some() {
            machine.drain();
        }
        let sought: Vec<_> = machine.sought().collect();
        let number = shared.number();
        let state = State { machine, followed: OwnMap::default(), scheduled: Ms::NEVER };
        let cell = Arc::new(SubscriptionCell {
            shared: Arc::clone(shared),
            number,
            wake: (wake, key),
            state: Mutex::new(state),
        });
        lock(&shared.timed).insert(number, Timed::Subscription(Arc::downgrade(&cell)));
        for (at, id) in sought {
            let names = Names::from(SessionId::new(server, &id.session_id()));
            match shared.follow_task(names.name, id, principal, (Arc::downgrade(&cell), at)) {
                Some(followed) => cell.follow(at, followed),
                None => cell.update(at, None),
            }
        }
        Ok(Some(TaskSubscription(cell)))
    }
}

impl Shared {
    /// Nobody is told of tasks here any more.
    pub(crate) fn end_subscriptions(&self) {
        let timed: Vec<Timed> = lock(&self.timed).values().cloned().collect();
        for timed in timed {
            if let Timed::Subscription(subscription) = timed
                && let Some(subscription) = subscription.upgrade()
            {
                subscription.drain();
            }
        }
    }
}

impl TaskSubscription {
    /// The SDK's answer begins. False where it is no stream of events, as an error is none: the host passes it on as it is, and
    /// this is over.
    pub fn begin(&self, content_type: Option<&str>) -> bool {
        if self.0.shared.is_forked() {
            return false;
        }
        let is_stream = lock(&self.0.state).machine.begin(content_type);
        if !is_stream {
            self.leave();
        }
        is_stream
    }

    /// Whether the next bytes of the SDK's answer are wanted now. If not, `wake` says when to look again.
    pub fn takes(&self) -> bool {
        self.0.shared.is_forked() || lock(&self.0.state).machine.takes()
    }

    /// The next bytes of the SDK's stream of events.
    pub fn push(&self, chunk: &[u8]) {
        if !self.0.shared.is_forked() {
            lock(&self.0.state).machine.push(chunk);
        }
    }

    /// The SDK's stream is over.
    pub fn end(&self) {
        if !self.0.shared.is_forked() {
            lock(&self.0.state).machine.end();
        }
    }

    /// The next bytes for the client; none until something happens. To be asked again until there are none.
    pub fn next(&self) -> Option<Bytes> {
        if self.0.shared.is_forked() {
            return None;
        }
        let now = self.0.shared.task_now();
        let mut state = lock(&self.0.state);
        let bytes = state.machine.next(now.at, now.unix_ms);
        let forgotten = state.forget();
        self.0.schedule(&mut state);
        drop(state);
        drop(forgotten);
        bytes
    }

    /// Whether nothing follows what [`next`](Self::next) gave. Then the SDK's stream has no reader any more.
    pub fn is_over(&self) -> bool {
        self.0.shared.is_forked() || lock(&self.0.state).machine.is_over()
    }

    /// The client has left: nothing is followed for it any more. As when this is dropped, which may come late.
    pub fn leave(&self) {
        self.0.leave();
    }

    /// The host stops: the subscription ends, and its client subscribes again elsewhere.
    pub fn drain(&self) {
        self.0.drain();
    }
}

impl State {
    /// What need not be followed any more, to be dropped without the lock.
    fn forget(&mut self) -> Vec<Arc<Followed>> {
        let done: Vec<usize> = self.followed.keys().copied().filter(|at| self.machine.is_done(*at)).collect();
        done.iter().filter_map(|at| self.followed.remove(at)).collect()
    }
}

impl SubscriptionCell {
    fn follow(&self, at: usize, followed: Arc<Followed>) {
        let mut state = lock(&self.state);
        state.followed.insert(at, followed);
        let forgotten = state.forget();
        drop(state);
        drop(forgotten);
    }

    /// How a task stands; none where there is none for this client.
    pub(super) fn update(&self, at: usize, task: Option<&Task>) {
        let is_new = lock(&self.state).machine.update(at, task);
        if is_new {
            self.wake.0.wake(self.wake.1);
        }
    }

    /// The store could not tell of a task. Nothing is agreed to that nobody can see.
    pub(super) fn unread(&self, at: usize) {
        let is_new = {
            let machine = &mut lock(&self.state).machine;
            let is_sought = machine.sought().any(|(sought, _)| sought == at);
            is_sought && machine.update(at, None)
        };
        if is_new {
            self.wake.0.wake(self.wake.1);
        }
    }

    fn drain(&self) {
        if self.shared.is_forked() {
            return;
        }
        {
            let machine = &mut lock(&self.state).machine;
            machine.drain();
            if self.shared.check().is_err() {
                // Nobody looks for them any more.
                let sought: Vec<usize> = machine.sought().map(|(at, _)| at).collect();
                for at in sought {
                    machine.update(at, None);
                }
            }
        }
        self.wake.0.wake(self.wake.1);
    }

    fn leave(&self) {
        if self.shared.is_forked() {
            return;
        }
        lock(&self.shared.timed).remove(&self.number);
        let followed = {
            let mut state = lock(&self.state);
            state.machine.leave();
            self.schedule(&mut state);
            std::mem::take(&mut state.followed)
        };
        drop(followed);
    }

    pub(crate) fn tick(&self, at: Ms) {
        {
            let mut state = lock(&self.state);
            if state.scheduled == at {
                state.scheduled = Ms::NEVER;
            }
        }
        self.wake.0.wake(self.wake.1);
    }

    fn schedule(&self, state: &mut State) {
        let at = state.machine.deadline();
        if at != state.scheduled {
            self.shared.schedule(state.scheduled, at, self.number);
            state.scheduled = at;
        }
    }
}

impl Drop for SubscriptionCell {
    fn drop(&mut self) {
        self.leave();
    }
}
