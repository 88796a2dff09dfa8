//! Sessions that this process has released lately, in case the store loses that in a failover. Then the store would take
//! them for this process's again. This process gives signs of life, so no other process would take them over. It may
//! have nothing of such a session that would hear of the failover, so the engine itself does.

use std::collections::{BTreeMap, VecDeque};

use crate::Ms;
use crate::engine::logs::confirmed::{FAILOVER_BYTES, FAILOVER_MS};
use crate::engine::shared::{Shared, lock};
use crate::engine::tasks::cell::CallCell;
use crate::protocol::StreamNonce;
use crate::store::{Epoch, Watch, Watcher};
use crate::sync::{Arc, Weak};

/// How many sessions are remembered at most. The oldest go first.
const MAX_RELEASED: usize = 10_000;

/// The engine watches the store under this name. No session has it.
const NO_SESSION: &str = "";

/// How a session was released, by its name.
#[derive(Default)]
pub(crate) struct Released {
    sessions: BTreeMap<Arc<str>, (Ms, Release)>,
    by_time: VecDeque<(Ms, Arc<str>)>,
    /// Bytes of the tasks among them.
    bytes: usize,
    /// The engine watches the store.
    is_watching: bool,
}

#[derive(Clone)]
struct Release {
    epoch: Epoch,
    /// The session went together with its logs. Otherwise other processes may take it over.
    is_dropped: bool,
    /// A task, in case the store loses the last of its log, too.
    task: Option<ReleasedTask>,
}

/// A task that was released, and can be written again until this time.
#[derive(Clone)]
pub(crate) struct ReleasedTask {
    pub(crate) cell: Arc<CallCell>,
    pub(crate) until: Ms,
    pub(crate) bytes: usize,
}

/// What is forgotten. To be dropped without a lock: it may be the last that refers to a host.
type Forgotten = Vec<(Ms, Release)>;

impl Released {
    fn remember(&mut self, now: Ms, name: Arc<str>, release: Release) -> Forgotten {
        self.by_time.push_back((now, Arc::clone(&name)));
        let mut forgotten: Forgotten = self.forget(&name).into_iter().collect();
        self.bytes += release.bytes();
        self.sessions.insert(name, (now, release));
        forgotten.append(&mut self.trim(now));
        forgotten
    }

    fn forget(&mut self, name: &str) -> Option<(Ms, Release)> {
        let known = self.sessions.remove(name)?;
        self.bytes -= known.1.bytes();
        Some(known)
    }

    fn trim(&mut self, now: Ms) -> Forgotten {
        let mut forgotten = Vec::new();
        while let Some((at, oldest)) = self.by_time.front().cloned() {
            let is_too_much = self.by_time.len() > MAX_RELEASED || self.bytes > FAILOVER_BYTES;
            if at + FAILOVER_MS > now && !is_too_much {
                break;
            }
            self.by_time.pop_front();
            // The session may have been released once more since then.
            if self.sessions.get(&oldest).is_some_and(|(last, _)| *last == at) {
                forgotten.extend(self.forget(&oldest));
            }
        }
        forgotten
    }
}

impl Release {
    fn bytes(&self) -> usize {
        self.task.as_ref().map_or(0, |task| task.bytes)
    }
}

impl Watch for Shared {
    fn changed(&self, _nonce: StreamNonce) {}

    fn posted(&self) {}

    fn all_changed(&self) {
        if self.is_forked() {
            return;
        }
        let released = lock(&self.released).sessions.clone();
        released.iter().for_each(|(name, (_, release))| self.tell_again(name, release));
    }
}

impl Shared {
    fn watcher(&self) -> Watcher {
        let me: Weak<dyn Watch> = self.me.clone();
        me
    }

    /// Forgets the sessions that were released long enough ago.
    pub(crate) fn forget_released(&self, now: Ms) {
        let forgotten = {
            let released = &mut *lock(&self.released);
            let forgotten = released.trim(now);
            if released.sessions.is_empty() && std::mem::take(&mut released.is_watching) {
                self.store.unwatch(NO_SESSION, &self.watcher());
            }
            forgotten
        };
        drop(forgotten);
    }

    /// Forgets the tasks that were released: the engine and they refer to each other.
    pub(crate) fn forget_released_tasks(&self) {
        let forgotten: Vec<Option<ReleasedTask>> = {
            let released = &mut *lock(&self.released);
            released.bytes = 0;
            released.sessions.values_mut().map(|(_, release)| release.task.take()).collect()
        };
        drop(forgotten);
    }

    /// This process owns the session no longer: others may take it over.
    pub(crate) fn release(&self, name: &Arc<str>, epoch: Epoch) {
        self.note_release(name, Release { epoch, is_dropped: false, task: None });
    }

    /// The session has ended, and goes with its logs.
    pub(crate) fn drop_session(&self, name: &Arc<str>, epoch: Epoch) {
        self.note_release(name, Release { epoch, is_dropped: true, task: None });
    }

    /// As [`release`](Self::release), for a task.
    pub(crate) fn release_task(&self, name: &Arc<str>, epoch: Epoch, task: ReleasedTask) {
        self.note_release(name, Release { epoch, is_dropped: false, task: Some(task) });
    }

    /// The store says that this process owns a session, but the process does not have it. If the session was released
    /// lately, the store is told again what it was told then.
    pub(crate) fn release_again(&self, name: &Arc<str>) {
        let released = lock(&self.released).sessions.get(name).cloned();
        if let Some((_, release)) = released {
            self.tell_again(name, &release);
        }
    }

    /// This process has the session again.
    pub(crate) fn is_back(&self, name: &str) {
        let forgotten = lock(&self.released).forget(name);
        drop(forgotten);
    }

    fn note_release(&self, name: &Arc<str>, release: Release) {
        self.tell_release(name, &release);
        if self.store.outlives_process() {
            let forgotten = {
                let released = &mut *lock(&self.released);
                if !std::mem::replace(&mut released.is_watching, true) {
                    self.store.watch(&NO_SESSION.into(), &self.watcher());
                }
                released.remember(self.clock.now(), Arc::clone(name), release)
            };
            drop(forgotten);
        }
    }

    /// The store may have lost that the session was released. A task is written again first.
    fn tell_again(&self, name: &str, release: &Release) {
        match &release.task {
            Some(task) if self.clock.now() < task.until => task.cell.restore(),
            _ => self.tell_release(name, release),
        }
    }

    fn tell_release(&self, name: &str, release: &Release) {
        if release.is_dropped {
            self.store.drop_session(name, release.epoch);
        } else {
            self.store.release(name, release.epoch);
        }
    }
}
