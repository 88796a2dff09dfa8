//! Tells watchers what other processes did to the file.
//!
//! SQLite has a number that changes with every commit of anybody; looking at it takes microseconds. Only
//! then the watched logs are looked at, and only what other processes write can have changed for a
//! watcher. What they do to sessions of this process, as readers and heirs that come, is counted: their logs are looked at
//! only when there was more of that.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Result, params};

use super::Context;
use super::forks::Link;
use crate::store::{StreamKey, Watcher, Watchers};

/// Pause between two looks at the number.
const PAUSE: Duration = Duration::from_millis(5);

/// The watchers, and whether the thread is needed.
#[derive(Default)]
pub(super) struct Watching {
    watchers: Watchers,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Logs that are watched, or not watched any more, since the last look; in this order.
    changes: Vec<(StreamKey, bool)>,
    closed: bool,
}

impl Watching {
    pub(super) fn watch(&self, key: &StreamKey, watcher: &Watcher) {
        // Locked first, so that the changes stand in the order in which the watchers saw them.
        let mut state = self.lock();
        if self.watchers.watch(key, watcher) {
            state.changes.push((key.clone(), true));
            self.changed.notify_one();
        }
    }

    pub(super) fn unwatch(&self, key: &StreamKey, watcher: &Watcher) {
        let mut state = self.lock();
        if self.watchers.unwatch(key, watcher) {
            state.changes.push((key.clone(), false));
        }
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    /// Waits while nothing is watched, and a pause. Returns what changed; none when the store is closed.
    fn next(&self) -> Option<Vec<(StreamKey, bool)>> {
        let mut state = self.lock();
        while self.watchers.is_empty() && !state.closed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if !state.closed && state.changes.is_empty() {
            state = self.changed.wait_timeout(state, PAUSE).unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.closed { None } else { Some(std::mem::take(&mut state.changes)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a watcher wants to know of a log: head, whether it is finished, readers; and whether only this store object
/// writes it. None when it is gone.
type Seen = Option<(i64, bool, i64, bool)>;

/// What the thread knows from one look to the next.
#[derive(Default)]
struct Known {
    logs: HashMap<StreamKey, Seen>,
    /// What callers changed and nobody looked at yet.
    changes: VecDeque<(StreamKey, bool)>,
    /// The connection, and its number of the last commit.
    version: (u64, i64),
    by_others: i64,
}

/// The thread: ends when the store is closed.
pub(super) fn run(file: &Link, watching: &Watching, context: &Context) {
    let mut known = Known::default();
    while let Some(changes) = watching.next() {
        known.changes.extend(changes);
        let mut changed = Vec::new();
        if let Err(error) = file.with(|db, times| known.look(db, times, context, &mut changed)) {
            // Looked at again soon, and followers look for themselves from time to time.
            tracing::warn!(target: "tailrope", %error, "the logs of other processes were not looked at");
            known.version = (0, 0);
        }
        for key in changed {
            watching.watchers.changed(&key);
        }
    }
}

impl Known {
    /// The logs that changed since the last look.
    fn look(&mut self, db: &Connection, times: u64, context: &Context, changed: &mut Vec<StreamKey>) -> Result<()> {
        while let Some((key, is_watched)) = self.changes.front() {
            if *is_watched {
                // Who watches has looked before; what came between is told.
                self.logs.insert(key.clone(), see(db, context, key)?);
                changed.push(key.clone());
            } else {
                self.logs.remove(key);
            }
            self.changes.pop_front();
        }
        // Each connection has numbers of its own.
        let version = (times, db.pragma_query_value(None, "data_version", |row| row.get(0))?);
        if version == self.version {
            return Ok(());
        }
        let by_others: i64 = db.prepare_cached("SELECT by_others FROM total")?.query_row([], |row| row.get(0))?;
        let all = by_others != self.by_others;
        let is_mine = |seen: &Seen| seen.is_some_and(|(.., is_mine)| is_mine);
        for (key, seen) in self.logs.iter_mut().filter(|(_, seen)| all || !is_mine(seen)) {
            let found = see(db, context, key)?;
            if found != *seen {
                *seen = found;
                changed.push(key.clone());
            }
        }
        (self.version, self.by_others) = (version, by_others);
        Ok(())
    }
}

fn see(db: &Connection, context: &Context, key: &StreamKey) -> Result<Seen> {
    let mut select = db.prepare_cached(
        "SELECT head, finished IS NOT NULL, readers, owner = ?3 FROM session JOIN stream ON stream.session = session.id
         WHERE name = ?1 AND nonce = ?2",
    )?;
    let row = select.query_row(params![&*key.session, key.nonce.0, context.owner], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
    });
    row.optional()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Weak};
    use std::thread;

    use super::*;
    use crate::protocol::StreamNonce;
    use crate::store::Watch;

    struct Ear;

    impl Watch for Ear {
        fn changed(&self, _nonce: StreamNonce) {}
    }

    /// One who comes as another goes: a session that is adopted anew while its last view is dropped.
    #[test]
    fn the_last_change_of_a_log_says_whether_it_is_watched() {
        let watching = Watching::default();
        let key = StreamKey { session: "s".into(), nonce: StreamNonce([1; 12]) };
        let ears = [Arc::new(Ear), Arc::new(Ear)];
        for _ in 0..5_000 {
            thread::scope(|scope| {
                for ear in &ears {
                    let watcher: Weak<dyn Watch> = Arc::downgrade(&(Arc::clone(ear) as Arc<dyn Watch>));
                    let (watching, key) = (&watching, &key);
                    scope.spawn(move || {
                        watching.watch(key, &watcher);
                        watching.unwatch(key, &watcher);
                        watching.watch(key, &watcher);
                    });
                }
            });
            let last = watching.lock().changes.last().map(|(_, is_watched)| *is_watched);
            assert_eq!(last, Some(true));
            for ear in &ears {
                watching.unwatch(&key, &(Arc::downgrade(ear) as Watcher));
            }
        }
    }
}
