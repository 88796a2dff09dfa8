//! Sessions that this process has left lately, in case the store loses that in a failover. Then the store would take
//! them for this process's again. This process gives signs of life, so no other process would take them over. It may
//! have nothing of such a session that would hear of the failover, so the engine itself does.

use std::collections::{BTreeMap, VecDeque};

use crate::Ms;
use crate::engine::logs::kept::KEPT_MS;
use crate::engine::shared::{Shared, lock};
use crate::protocol::StreamNonce;
use crate::store::{Epoch, Watch, Watcher};
use crate::sync::{Arc, Weak};

/// How many sessions are remembered at most. The oldest go first.
const MAX_LEFT: usize = 10_000;

/// The engine watches the store under this name. No session has it.
const NO_SESSION: &str = "";

/// How a session was left, by its name.
#[derive(Default)]
pub(crate) struct Left {
    sessions: BTreeMap<Arc<str>, (Ms, Way)>,
    by_time: VecDeque<(Ms, Arc<str>)>,
    /// The engine watches the store.
    is_watching: bool,
}

#[derive(Clone, Copy)]
struct Way {
    epoch: Epoch,
    /// The session went together with its logs. Otherwise other processes may take it over.
    is_dropped: bool,
}

impl Left {
    fn keep(&mut self, now: Ms, name: Arc<str>, way: Way) {
        self.by_time.push_back((now, Arc::clone(&name)));
        self.sessions.insert(name, (now, way));
        self.trim(now);
    }

    fn trim(&mut self, now: Ms) {
        while self.by_time.len() > MAX_LEFT || self.by_time.front().is_some_and(|(at, _)| *at + KEPT_MS <= now) {
            let Some((at, oldest)) = self.by_time.pop_front() else { return };
            // The session may have been left once more since then.
            if self.sessions.get(&oldest).is_some_and(|(last, _)| *last == at) {
                self.sessions.remove(&oldest);
            }
        }
    }
}

impl Watch for Shared {
    fn changed(&self, _nonce: StreamNonce) {}

    fn posted(&self) {}

    fn all_changed(&self) {
        if self.is_forked() {
            return;
        }
        let left = lock(&self.left).sessions.clone();
        left.iter().for_each(|(name, (_, way))| self.tell_left(name, *way));
    }
}

impl Shared {
    fn watcher(&self) -> Watcher {
        let me: Weak<dyn Watch> = self.me.clone();
        me
    }

    /// Forgets the sessions that were left long enough ago.
    pub(crate) fn forget_left(&self, now: Ms) {
        let mut left = lock(&self.left);
        left.trim(now);
        if left.sessions.is_empty() && std::mem::take(&mut left.is_watching) {
            self.store.unwatch(NO_SESSION, &self.watcher());
        }
    }

    /// This process owns the session no longer: others may take it over.
    pub(crate) fn release(&self, name: &Arc<str>, epoch: Epoch) {
        self.leave(name, Way { epoch, is_dropped: false });
    }

    /// The session has ended, and goes with its logs.
    pub(crate) fn drop_session(&self, name: &Arc<str>, epoch: Epoch) {
        self.leave(name, Way { epoch, is_dropped: true });
    }

    /// The store says that this process owns a session, but the process does not have it. If the session was left
    /// lately, the store is told again what it was told then.
    pub(crate) fn leave_again(&self, name: &Arc<str>) {
        let left = lock(&self.left).sessions.get(name).copied();
        if let Some((_, way)) = left {
            self.leave(name, way);
        }
    }

    /// This process has the session again.
    pub(crate) fn is_back(&self, name: &str) {
        lock(&self.left).sessions.remove(name);
    }

    fn leave(&self, name: &Arc<str>, way: Way) {
        if self.store.outlives_process() {
            let mut left = lock(&self.left);
            left.keep(self.clock.now(), Arc::clone(name), way);
            if !std::mem::replace(&mut left.is_watching, true) {
                self.store.watch(&NO_SESSION.into(), &self.watcher());
            }
        }
        self.tell_left(name, way);
    }

    fn tell_left(&self, name: &str, way: Way) {
        if way.is_dropped {
            self.store.drop_session(name, way.epoch);
        } else {
            self.store.release(name, way.epoch);
        }
    }
}
