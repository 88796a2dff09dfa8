//! What this store object wrote and still holds: for [`usage`](crate::store::EventStore::usage), and to keep
//! what is in use from expiring.
//!
//! The server forgets by itself what nobody keeps, and does not say so. Here the same times run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::script::{Lives, Other, Written};
use crate::protocol::StreamNonce;
use crate::store::{StoreOptions, Usage};

#[derive(Default)]
struct HeldLog {
    events: u64,
    bytes: u64,
    /// It has ended, and is forgotten then.
    until: Option<Instant>,
}

struct HeldSession {
    logs: HashMap<StreamNonce, HeldLog>,
    /// Its record was put here.
    is_put: bool,
    /// When it was written to.
    active: Instant,
    /// When the expiry of what it has was set.
    kept: Instant,
}

#[derive(Default)]
struct State {
    sessions: HashMap<Arc<str>, HeldSession>,
    usage: Usage,
}

pub(super) struct Held {
    state: Mutex<State>,
    retention: Duration,
    max_age: Duration,
    refresh: Duration,
}

impl Held {
    pub(super) fn new(options: &StoreOptions) -> Self {
        let limits = &options.limits;
        Self {
            state: Mutex::default(),
            retention: Duration::from_millis(limits.retention_ms),
            max_age: Duration::from_millis(limits.max_age_ms),
            refresh: Duration::from_millis(Lives::new(limits, options.owner_lost_ms).refresh_ms),
        }
    }

    pub(super) fn usage(&self) -> Usage {
        self.lock().usage
    }

    /// Whether this store object created the log.
    pub(super) fn has(&self, session: &str, nonce: StreamNonce) -> bool {
        self.lock().sessions.get(session).is_some_and(|held| held.logs.contains_key(&nonce))
    }

    /// What a log holds now. Those of others are not counted.
    pub(super) fn wrote(&self, session: &Arc<str>, nonce: StreamNonce, written: Written) {
        let mut guard = self.lock();
        let State { sessions, usage } = &mut *guard;
        let is_known = sessions.get(session).is_some_and(|held| held.logs.contains_key(&nonce));
        if !is_known && !written.is_mine {
            return;
        }
        let held = session_of(sessions, session);
        if !is_known {
            usage.sessions += u64::from(held.logs.is_empty());
            usage.streams += 1;
        }
        let now = Instant::now();
        held.active = now;
        let log = held.logs.entry(nonce).or_default();
        usage.events = (usage.events + written.events).saturating_sub(log.events);
        usage.bytes = (usage.bytes + written.bytes).saturating_sub(log.bytes);
        // One whose time is over is another log of that name.
        let until = log.until.filter(|until| *until > now);
        let until = until.or_else(|| written.is_finished.then(|| now + self.retention));
        *log = HeldLog { events: written.events, bytes: written.bytes, until };
    }

    /// Logs that a run of the script removed, before what it was asked for.
    pub(super) fn removed(&self, session: &str, others: &[Other]) {
        for (nonce, left) in others {
            if left.is_none() {
                self.gone(session, *nonce);
            }
        }
    }

    /// Logs that a run of the script trimmed, after what it was asked for.
    pub(super) fn trimmed(&self, session: &Arc<str>, positions: u64, others: &[Other]) {
        self.lock().usage.trimmed += positions;
        for (nonce, left) in others {
            if let Some((events, bytes)) = *left {
                self.wrote(session, *nonce, Written { events, bytes, is_finished: false, is_mine: false });
            }
        }
    }

    /// A log is not there any more.
    pub(super) fn gone(&self, session: &str, nonce: StreamNonce) {
        let mut guard = self.lock();
        let State { sessions, usage } = &mut *guard;
        let Some(held) = sessions.get_mut(session) else { return };
        let Some(log) = held.logs.remove(&nonce) else { return };
        forget(usage, held, &log);
        if held.logs.is_empty() && !held.is_put {
            sessions.remove(session);
        }
    }

    /// A log that ran takes nothing any more: it expired, or others ended or dropped it.
    pub(super) fn refused(&self, session: &str, nonce: StreamNonce) {
        let runs = |held: &HeldSession| held.logs.get(&nonce).is_some_and(|log| log.until.is_none());
        if self.lock().sessions.get(session).is_some_and(runs) {
            self.gone(session, nonce);
        }
    }

    pub(super) fn put(&self, session: &Arc<str>) {
        let mut guard = self.lock();
        let held = session_of(&mut guard.sessions, session);
        held.is_put = true;
        held.active = Instant::now();
    }

    pub(super) fn dropped(&self, session: &str) {
        let mut guard = self.lock();
        let State { sessions, usage } = &mut *guard;
        if let Some(held) = sessions.remove(session)
            && !held.logs.is_empty()
        {
            usage.sessions -= 1;
            usage.streams -= held.logs.len() as u64;
            for log in held.logs.values() {
                usage.events -= log.events;
                usage.bytes -= log.bytes;
            }
        }
    }

    /// Forgets what the server forgot, and says what is to be kept from that: sessions with their logs that
    /// run.
    pub(super) fn sweep(&self) -> Vec<(Arc<str>, Vec<StreamNonce>)> {
        let now = Instant::now();
        let mut guard = self.lock();
        let State { sessions, usage } = &mut *guard;
        let mut due = Vec::new();
        sessions.retain(|session, held| {
            let over = |log: &HeldLog| log.until.is_some_and(|until| until <= now);
            let gone: Vec<StreamNonce> =
                held.logs.iter().filter(|(_, log)| over(log)).map(|(nonce, _)| *nonce).collect();
            for nonce in gone {
                if let Some(log) = held.logs.remove(&nonce) {
                    forget(usage, held, &log);
                }
            }
            let running: Vec<StreamNonce> =
                held.logs.iter().filter(|(_, log)| log.until.is_none()).map(|(nonce, _)| *nonce).collect();
            // A session that only its record is left of is kept for as long as old events are.
            let is_active = held.is_put && now.saturating_duration_since(held.active) < self.max_age;
            let is_in_use = is_active || !running.is_empty();
            if is_in_use && now.saturating_duration_since(held.kept) >= self.refresh {
                held.kept = now;
                due.push((Arc::clone(session), running));
            }
            is_in_use || !held.logs.is_empty()
        });
        due
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn session_of<'a>(sessions: &'a mut HashMap<Arc<str>, HeldSession>, session: &Arc<str>) -> &'a mut HeldSession {
    let now = Instant::now();
    let new = || HeldSession { logs: HashMap::new(), is_put: false, active: now, kept: now };
    sessions.entry(Arc::clone(session)).or_insert_with(new)
}

fn forget(usage: &mut Usage, held: &HeldSession, log: &HeldLog) {
    usage.streams -= 1;
    usage.events -= log.events;
    usage.bytes -= log.bytes;
    usage.sessions -= u64::from(held.logs.is_empty());
}
