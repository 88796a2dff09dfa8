//! The tasks of an engine: those that run here by their names, how many each account has, and when they expire.

use std::collections::HashMap;

use crate::Ms;
use crate::engine::Options;
use crate::engine::lines::Later;
use crate::engine::sessions::places::account;
use crate::engine::shared::{Shared, Timed, lock};
use crate::engine::tasks::cell::CallCell;
use crate::exchange::Principal;
use crate::maps::OwnMap;
use crate::store::Epoch;
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

#[derive(Default)]
pub(crate) struct Board {
    /// The tasks whose call runs here, or waits here for its client.
    owned: OwnMap<Arc<str>, Arc<CallCell>>,
    /// How many tasks this process has made and not forgotten, by account.
    by_account: HashMap<Box<str>, usize>,
    count: usize,
    is_warned: bool,
}

/// A task that has its end, until it expires.
#[derive(Clone)]
pub(crate) struct Expiry {
    pub(crate) name: Arc<str>,
    pub(crate) epoch: Epoch,
    /// The account that it counts for.
    pub(crate) account: Box<str>,
}

impl Board {
    /// Whether one more task of this principal fits in.
    fn has_room(&self, principal: Option<&Principal>, options: &Options) -> bool {
        let share = self.by_account.get(account(principal)).copied().unwrap_or_default();
        let is_within_share = principal.is_none() || share < options.max_sessions_per_principal;
        is_within_share && self.count < options.max_sessions
    }

    pub(crate) fn leave(&mut self, account: &str) {
        self.count = self.count.saturating_sub(1);
        if let Some(share) = self.by_account.get_mut(account) {
            *share -= 1;
            if *share == 0 {
                self.by_account.remove(account);
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.owned.len()
    }
}

impl Shared {
    /// A task takes its place. False where there is none: its call stays a call.
    pub(crate) fn take_task(&self, cell: &Arc<CallCell>, lines: &mut Vec<Later>) -> bool {
        let is_first = {
            let board = &mut *lock(&self.tasks);
            // Under the lock, so that an engine that is being closed misses no task.
            if self.check().is_err() {
                return false;
            }
            let principal = cell.principal.as_ref();
            if board.has_room(principal, &self.options) {
                board.count += 1;
                *board.by_account.entry(account(principal).into()).or_default() += 1;
                board.owned.insert(Arc::clone(&cell.name), Arc::clone(cell));
                return true;
            }
            !std::mem::replace(&mut board.is_warned, true)
        };
        if is_first {
            lines.push(Later::Always(Box::new(|_| {
                tracing::warn!(
                    target: "tailrope",
                    "a call does not become a task, because there are as many as may be (max_sessions, \
                     max_sessions_per_principal): it lasts as long as its connection. Logged once"
                );
            })));
        }
        false
    }

    pub(crate) fn owned_tasks(&self) -> Vec<Arc<CallCell>> {
        lock(&self.tasks).owned.values().cloned().collect()
    }

    /// Others may have taken this process for gone meanwhile: its tasks may be theirs.
    pub(crate) fn note_cut_off(&self) {
        let is_cut_off = self.store.is_cut_off();
        if is_cut_off && !self.was_cut_off.swap(is_cut_off, Ordering::Relaxed) {
            self.owned_tasks().iter().for_each(|cell| cell.doubt());
        }
        self.was_cut_off.store(is_cut_off, Ordering::Relaxed);
    }

    /// Whether nothing is under way besides sessions.
    pub(crate) fn are_tasks_over(&self) -> bool {
        let mut calls = Vec::new();
        for timed in lock(&self.timed).values() {
            match timed {
                Timed::Session(_) => {}
                Timed::Call(call) => calls.push(crate::sync::Weak::clone(call)),
                // What has its end only waits to be forgotten, as streams do.
                Timed::Expiry(_) => {}
                Timed::Question(_) | Timed::Query(_) | Timed::Followed(_) | Timed::Subscription(_) => return false,
            }
        }
        // Not under that lock, which a call takes when it goes.
        calls.into_iter().filter_map(|call| call.upgrade()).all(|call| call.is_over())
    }

    /// Each call of 2026-07-28 that runs here, and since when.
    pub(crate) fn calls_running(&self) -> Vec<(usize, Ms)> {
        // What a call needs when it goes is not held meanwhile.
        let calls: Vec<_> = lock(&self.timed)
            .values()
            .filter_map(|timed| match timed {
                Timed::Call(call) => call.upgrade(),
                _ => None,
            })
            .collect();
        calls.iter().filter_map(|call| call.runs_since()).map(|began| (1, began)).collect()
    }

    /// The process goes away.
    pub(crate) fn leave_tasks(&self) {
        let failed = self.owned_tasks().iter().filter(|cell| cell.leave()).count();
        if failed > 0 {
            tracing::warn!(target: "tailrope", failed, "the process goes away, and the tasks that it ran fail");
        }
        let followers = std::mem::take(&mut *lock(&self.followers));
        drop(followers);
        self.end_subscriptions();
    }

    pub(crate) fn owned_task(&self, name: &str) -> Option<Arc<CallCell>> {
        lock(&self.tasks).owned.get(name).cloned()
    }

    /// The task is not this process's any more.
    pub(crate) fn drop_task(&self, cell: &CallCell) {
        let dropped = {
            let board = &mut *lock(&self.tasks);
            let dropped = board.owned.remove(&cell.name);
            if dropped.is_some() {
                board.leave(account(cell.principal.as_ref()));
            }
            dropped
        };
        drop(dropped);
    }

    /// The task has its end, and is there for so many milliseconds more. It goes on counting for its account.
    pub(crate) fn expire_task(&self, cell: &CallCell, epoch: Epoch, retention_ms: u64) {
        let dropped = lock(&self.tasks).owned.remove(&cell.name);
        if dropped.is_none() {
            return;
        }
        let account = account(cell.principal.as_ref()).into();
        let expiry = Expiry { name: Arc::clone(&cell.name), epoch, account };
        let number = self.number();
        lock(&self.timed).insert(number, Timed::Expiry(expiry));
        self.schedule(Ms::NEVER, self.clock.now() + retention_ms, number);
    }

    pub(crate) fn task_expired(&self, number: u64, expiry: &Expiry) {
        lock(&self.timed).remove(&number);
        lock(&self.tasks).leave(&expiry.account);
        self.drop_session(&expiry.name, expiry.epoch);
    }
}
