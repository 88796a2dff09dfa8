//! Looks at tasks that nobody asks for now.
//!
//! A task that subscribers follow is looked at when its owner has stored something, if that is here, and once a second if it is another
//! process. One look serves all subscribers of a process. A task that was polled is looked at for a while. A look is a request for
//! the task like any other, so it also sees the end of an owner.

use std::collections::BTreeMap;

use crate::Ms;
use crate::engine::NoWake;
use crate::engine::connections::Wake;
use crate::engine::shared::{Shared, Timed, lock};
use crate::engine::tasks::loading::View;
use crate::engine::tasks::query::{Audience, Query, QueryChange, Stage};
use crate::engine::tasks::subscription::SubscriptionCell;
use crate::exchange::Principal;
use crate::protocol::RequestId;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, Weak};
use crate::task::{Ask, TaskId, TaskRequest};

/// How long the log of a task that was asked for here is looked at, so that the end of its owner is seen. Clients ask sooner
/// again.
const FOLLOW_FOR_MS: u64 = 30_000;
/// Pause between two looks.
pub(super) const FOLLOW_MS: u64 = 1_000;

/// How often an owner is told that its task is asked for, in milliseconds: some times before it would end the task.
pub(super) fn sign_ms(shared: &Shared) -> u64 {
    const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
    match shared.options.max_detached_ms {
        // It never ends one.
        0 => DAY_MS,
        max_ms => max_ms / 4,
    }
}

/// The tasks that are followed here.
#[derive(Default)]
pub(crate) struct Following(BTreeMap<Key, Weak<Followed>>);

/// A task's name, and the identity of the user who follows it.
type Key = (Arc<str>, Option<Box<str>>);

pub(crate) struct Followed {
    shared: Arc<Shared>,
    name: Arc<str>,
    id: TaskId,
    number: u64,
    principal: Option<Principal>,
    me: Weak<Self>,
    state: Mutex<FollowedState>,
}

#[derive(Default)]
struct FollowedState {
    /// Who follows, and by which number each knows the task.
    subscribers: Vec<(Weak<SubscriptionCell>, usize)>,
    /// The look under way.
    look: Option<Arc<Query>>,
    /// There may be more than the look under way sees.
    looks_again: bool,
    /// The next look without a hint.
    scheduled: Option<Ms>,
    /// When a look tells the owner again that somebody follows its task here.
    sign_at: Ms,
}

impl Shared {
    /// Has a subscriber hear of a task, which it knows by this number. It is told at once how the task stands.
    pub(super) fn follow_task(
        &self,
        name: Arc<str>,
        id: TaskId,
        principal: Option<&Principal>,
        subscriber: (Weak<SubscriptionCell>, usize),
    ) -> Option<Arc<Followed>> {
        let shared = self.me.upgrade()?;
        let key = (Arc::clone(&name), principal.map(|principal| principal.identity().into()));
        let followed = {
            let mut following = lock(&self.followed);
            let known = following.0.get(&key).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let number = self.number();
                let followed = Arc::new_cyclic(|me: &Weak<Followed>| Followed {
                    shared,
                    name,
                    id,
                    number,
                    principal: principal.cloned(),
                    me: me.clone(),
                    state: Mutex::default(),
                });
                lock(&self.timed).insert(number, Timed::Followed(Arc::downgrade(&followed)));
                following.0.insert(key, Arc::downgrade(&followed));
                followed
            })
        };
        lock(&followed.state).subscribers.push(subscriber);
        followed.look();
        Some(followed)
    }

    /// The owner of a task has stored something.
    pub(super) fn tell_followed(&self, name: &Arc<str>, identity: Option<&str>) {
        let key = (Arc::clone(name), identity.map(Into::into));
        let followed = {
            let following = lock(&self.followed);
            if following.0.is_empty() { None } else { following.0.get(&key).and_then(Weak::upgrade) }
        };
        if let Some(followed) = followed {
            followed.look();
        }
    }
}

impl Followed {
    fn look(&self) {
        let request = TaskRequest { request: RequestId::integer(0), task: self.id.clone(), ask: Ask::Get };
        let Some(me) = self.me.upgrade() else { return };
        let query = {
            let mut state = lock(&self.state);
            if state.look.is_some() {
                state.looks_again = true;
                return;
            }
            let (name, principal) = (Arc::clone(&self.name), self.principal.clone());
            let audience = Audience::Subscribers(state.sign_at);
            let query = Query::new(&self.shared, name, principal, request, None, audience, (me, self.number));
            state.look = Some(Arc::clone(&query));
            query
        };
        query.change(|change| change.start());
    }

    pub(crate) fn tick(&self, at: Ms) {
        let is_due = lock(&self.state).scheduled.take_if(|scheduled| *scheduled == at).is_some();
        if is_due {
            self.look();
        }
    }

    fn schedule(&self, state: &mut FollowedState, at: Option<Ms>) {
        let before = std::mem::replace(&mut state.scheduled, at);
        self.shared.schedule(before.unwrap_or(Ms::NEVER), at.unwrap_or(Ms::NEVER), self.number);
    }
}

/// The look under way has an answer.
impl Wake for Followed {
    fn wake(&self, _key: u64) {
        if self.shared.is_forked() {
            return;
        }
        let (look, subscribers, looks_again) = {
            let mut state = lock(&self.state);
            let Some(look) = state.look.take() else { return };
            state.sign_at = look.sign_at();
            state.subscribers.retain(|(subscriber, _)| subscriber.strong_count() > 0);
            (look, state.subscribers.clone(), std::mem::take(&mut state.looks_again))
        };
        let shown = look.take_shown();
        let looks_later = shown.as_ref().is_none_or(|task| task.as_ref().is_some_and(|task| task.end().is_none()));
        let is_elsewhere = shown.is_none() || self.shared.store.outlives_process();
        // Where the owner is here, a look only shows it that somebody waits for its task.
        let pause_ms = if is_elsewhere { FOLLOW_MS } else { sign_ms(&self.shared).max(FOLLOW_MS) };
        let next = (looks_later && self.shared.check().is_ok())
            .then(|| self.shared.next_look(self.shared.clock.now(), pause_ms));
        self.schedule(&mut lock(&self.state), next);
        for (subscriber, number) in subscribers {
            if let Some(subscriber) = subscriber.upgrade() {
                match &shown {
                    Some(task) => subscriber.update(number, task.as_deref()),
                    None => subscriber.unread(number),
                }
            }
        }
        if looks_again {
            self.look();
        }
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            return;
        }
        let identity = self.principal.as_ref().map(|principal| principal.identity().into());
        let key = (Arc::clone(&self.name), identity);
        {
            let mut following = lock(&self.shared.followed);
            // Another one may have taken its place.
            if following.0.get(&key).is_some_and(|known| known.strong_count() == 0) {
                following.0.remove(&key);
            }
        }
        lock(&self.shared.timed).remove(&self.number);
        let scheduled = lock(&self.state).scheduled;
        self.shared.schedule(scheduled.unwrap_or(Ms::NEVER), Ms::NEVER, self.number);
    }
}

impl QueryChange<'_> {
    /// Goes on looking at a task whose owner is another process, because only looks show that the owner is gone.
    pub(super) fn follow(&mut self, view: &View) {
        // Subscribers look again themselves.
        if !matches!(self.query.audience, Audience::Client) || view.owner.is_none() {
            return;
        }
        let Query { shared, name, principal, request, .. } = self.query;
        let mut followers = lock(&shared.followers);
        if shared.check().is_err() {
            // Nobody would end it.
            return;
        }
        let until = self.now + FOLLOW_FOR_MS;
        // Not through its lock: who has that may wait for the lock of the followers.
        if let Some(Audience::Nobody(known)) = followers.get(name).map(|follower| &follower.audience) {
            return known.store(until.0, Ordering::Relaxed);
        }
        let nobody = Audience::Nobody(AtomicU64::new(until.0));
        let wake: (Arc<dyn Wake>, u64) = (Arc::new(NoWake), 0);
        let follower = Query::new(shared, Arc::clone(name), principal.clone(), request.clone(), None, nobody, wake);
        let at = self.now + FOLLOW_MS;
        {
            let mut state = lock(&follower.state);
            state.stage = Stage::Pause(at);
            state.scheduled = at;
        }
        shared.schedule(Ms::NEVER, at, follower.number);
        followers.insert(Arc::clone(name), follower);
    }
}
