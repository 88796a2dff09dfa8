//! Tells watchers what other processes did to the file.
//!
//! SQLite has a number that changes with every commit of anybody; looking at it takes microseconds. Only
//! then the watched sessions are looked at, and the logs of those whose own number has changed. What other processes do to
//! sessions of this one, as readers and heirs that come, is counted: these sessions are looked at only when there was more
//! of that. A message for a session of this one is found by its number: those that come later have larger ones.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Result, params};
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::{Watcher, Watchers};

use super::forks::Link;
use super::{Context, reader};

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
    /// Sessions that are watched, or not watched any more, since the last look; in this order.
    changes: Vec<(Arc<str>, bool)>,
    closed: bool,
}

impl Watching {
    pub(super) fn watch(&self, session: &Arc<str>, watcher: &Watcher) {
        // Locked first, so that the changes stand in the order in which the watchers saw them.
        let mut state = self.lock();
        if self.watchers.watch(session, watcher) {
            state.changes.push((Arc::clone(session), true));
            self.changed.notify_one();
        }
    }

    pub(super) fn unwatch(&self, session: &str, watcher: &Watcher) {
        let mut state = self.lock();
        if self.watchers.unwatch(session, watcher) {
            state.changes.push((session.into(), false));
        }
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    /// Waits while nothing is watched, and a pause. Returns what changed; none when the store is closed.
    fn next(&self) -> Option<Vec<(Arc<str>, bool)>> {
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

/// What a watcher wants to know of a log: its readers and, where another store object writes it, its head and whether it is
/// finished.
type Seen = (i64, Option<(i64, bool)>);

/// A session as it was seen last. By itself it is not there.
#[derive(Default)]
struct Session {
    /// Its row's id, its number of changes, and whether it is this store object's.
    row: Option<(i64, i64, bool)>,
    logs: HashMap<StreamNonce, Seen>,
}

/// What the thread knows from one look to the next.
#[derive(Default)]
struct Known {
    sessions: HashMap<Arc<str>, Session>,
    /// What callers changed and nobody looked at yet.
    changes: VecDeque<(Arc<str>, bool)>,
    /// The connection, and its number of the last commit.
    version: (u64, i64),
    by_others: i64,
    /// The last message that was looked at.
    mail: i64,
}

/// What is told of a session.
enum Hint {
    Changed(StreamNonce),
    Posted,
    /// It has another owner.
    AllChanged,
}

type Hints = Vec<(Arc<str>, Hint)>;

/// The thread: ends when the store is closed.
pub(super) fn run(file: &Link, watching: &Watching, context: &Context) {
    let mut known = Known::default();
    while let Some(changes) = watching.next() {
        known.changes.extend(changes);
        let mut hints = Vec::new();
        if let Err(error) = file.with(|db, times| known.look(db, times, context, &mut hints)) {
            // Looked at again soon, and followers look for themselves from time to time.
            tracing::warn!(target: "tailrope", %error, "the logs of other processes were not looked at");
            known.version = (0, 0);
        }
        for (session, hint) in hints {
            match hint {
                Hint::Changed(nonce) => watching.watchers.changed(&session, nonce),
                Hint::Posted => watching.watchers.posted(&session),
                Hint::AllChanged => watching.watchers.session_changed(&session),
            }
        }
    }
}

impl Known {
    /// What changed since the last look.
    fn look(&mut self, db: &Connection, times: u64, context: &Context, hints: &mut Hints) -> Result<()> {
        while let Some((name, is_watched)) = self.changes.front() {
            if *is_watched {
                // Who watches has looked before. It may have been the owner then: another one is told.
                let mut session = Session { row: Some((0, 0, true)), ..Session::default() };
                session.look(db, context, name, hints)?;
                if session.is_mine() && session.has_mail(db)? {
                    hints.push((Arc::clone(name), Hint::Posted));
                }
                self.sessions.insert(Arc::clone(name), session);
            } else {
                self.sessions.remove(name);
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
        for (name, session) in self.sessions.iter_mut().filter(|(_, session)| all || !session.is_mine()) {
            session.look(db, context, name, hints)?;
        }
        self.look_for_mail(db, context, hints)?;
        (self.version, self.by_others) = (version, by_others);
        Ok(())
    }

    fn look_for_mail(&mut self, db: &Connection, context: &Context, hints: &mut Hints) -> Result<()> {
        let mut select = db.prepare_cached(
            "SELECT number, name, owner FROM message JOIN session ON session.id = message.session
             WHERE number > ?1 AND taken = 0 ORDER BY number",
        )?;
        let mut messages = select.query(params![self.mail])?;
        let mut told = HashSet::new();
        while let Some(message) = messages.next()? {
            self.mail = message.get(0)?;
            let session: Arc<str> = reader::text(message, 1)?.unwrap_or_default().into();
            if message.get::<_, i64>(2)? == context.owner && told.insert(Arc::clone(&session)) {
                hints.push((session, Hint::Posted));
            }
        }
        Ok(())
    }
}

impl Session {
    fn is_mine(&self) -> bool {
        self.row.is_some_and(|(.., is_mine)| is_mine)
    }

    /// Whether a message waits for its owner.
    fn has_mail(&self, db: &Connection) -> Result<bool> {
        let mut select = db.prepare_cached("SELECT EXISTS (SELECT 1 FROM message WHERE session = ?1 AND taken = 0)")?;
        self.row.map_or(Ok(false), |(id, ..)| select.query_row(params![id], |row| row.get(0)))
    }

    /// The logs that changed since the last look.
    fn look(&mut self, db: &Connection, context: &Context, name: &Arc<str>, hints: &mut Hints) -> Result<()> {
        let mut select = db.prepare_cached("SELECT id, changes, owner = ?2 FROM session WHERE name = ?1")?;
        let row = select.query_row(params![&**name, context.owner], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
        let row = row.optional()?;
        if row == self.row {
            return Ok(());
        }
        let logs = row.map_or_else(|| Ok(HashMap::new()), |(id, _, is_mine)| logs(db, id, is_mine))?;
        let new = logs.iter().filter(|(nonce, seen)| self.logs.get(nonce) != Some(seen)).map(|(nonce, _)| nonce);
        let gone = self.logs.keys().filter(|nonce| !logs.contains_key(nonce));
        hints.extend(new.chain(gone).map(|nonce| (Arc::clone(name), Hint::Changed(*nonce))));
        if self.is_mine() && matches!(row, Some((.., false))) {
            hints.push((Arc::clone(name), Hint::AllChanged));
        }
        *self = Self { row, logs };
        Ok(())
    }
}

/// Logs of its own that nobody has read are nothing to an owner.
fn logs(db: &Connection, session: i64, is_mine: bool) -> Result<HashMap<StreamNonce, Seen>> {
    let mut select = db.prepare_cached(
        "SELECT nonce, readers, head, kept_until IS NOT NULL FROM stream WHERE session = ?1 AND (readers > 0 OR NOT ?2)",
    )?;
    let mut rows = select.query(params![session, is_mine])?;
    let mut logs = HashMap::new();
    while let Some(row) = rows.next()? {
        let written = if is_mine { None } else { Some((row.get(2)?, row.get(3)?)) };
        if let Some(nonce) = reader::nonce(row, 0)? {
            logs.insert(nonce, (row.get(1)?, written));
        }
    }
    Ok(logs)
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use std::thread;

    use super::*;
    use tailrope_core::store::Watch;

    struct Ear;

    impl Watch for Ear {
        fn changed(&self, _nonce: StreamNonce) {}

        fn posted(&self) {}

        fn all_changed(&self) {}
    }

    /// One who comes as another goes: a session that is found anew while its last view is dropped.
    #[test]
    fn the_last_change_of_a_session_says_whether_it_is_watched() {
        let watching = Watching::default();
        let session: Arc<str> = "s".into();
        let ears = [Arc::new(Ear), Arc::new(Ear)];
        for _ in 0..5_000 {
            thread::scope(|scope| {
                for ear in &ears {
                    let watcher: Weak<dyn Watch> = Arc::downgrade(&(Arc::clone(ear) as Arc<dyn Watch>));
                    let (watching, session) = (&watching, &session);
                    scope.spawn(move || {
                        watching.watch(session, &watcher);
                        watching.unwatch(session, &watcher);
                        watching.watch(session, &watcher);
                    });
                }
            });
            let last = watching.lock().changes.last().map(|(_, is_watched)| *is_watched);
            assert_eq!(last, Some(true));
            for ear in &ears {
                watching.unwatch(&session, &(Arc::downgrade(ear) as Watcher));
            }
        }
    }
}
