//! What this store object wrote and still holds: for [`usage`](tailrope_core::store::EventStore::usage), and to keep
//! what is in use from expiring.
//!
//! The server forgets by itself what nobody keeps, and does not say so. Here the same times run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::{StoreOptions, Usage};

use super::script::{Lives, Other, Written};

#[derive(Default)]
struct BookedLog {
    events: u64,
    bytes: u64,
    /// It has ended, and is forgotten then.
    until: Option<Instant>,
}

struct BookedSession {
    logs: HashMap<StreamNonce, BookedLog>,
    /// When the expiry of what it has was set. None where that is to be done now: it may not be this store object's.
    kept: Option<Instant>,
}

#[derive(Default)]
struct State {
    sessions: HashMap<Arc<str>, BookedSession>,
    usage: Usage,
}

pub(super) struct Book {
    state: Mutex<State>,
    refresh: Duration,
}

impl Book {
    pub(super) fn new(options: &StoreOptions) -> Self {
        let limits = &options.limits;
        Self {
            state: Mutex::default(),
            refresh: Duration::from_millis(Lives::new(limits, options.owner_lost_ms).refresh_ms),
        }
    }

    pub(super) fn usage(&self) -> Usage {
        let state = self.lock();
        Usage { sessions: state.sessions.len() as u64, ..state.usage }
    }

    /// A session is this store object's, with these logs that run.
    pub(super) fn took(&self, session: &Arc<str>, running: impl Iterator<Item = (StreamNonce, Written)>) {
        session_of(&mut self.lock().sessions, session);
        running.for_each(|(nonce, written)| self.wrote(session, nonce, written));
    }

    /// What a log holds now.
    pub(super) fn wrote(&self, session: &Arc<str>, nonce: StreamNonce, written: Written) {
        let now = Instant::now();
        let mut guard = self.lock();
        let State { sessions, usage } = &mut *guard;
        let booked = session_of(sessions, session);
        usage.streams += u64::from(!booked.logs.contains_key(&nonce));
        let log = booked.logs.entry(nonce).or_default();
        usage.events = (usage.events + written.events).saturating_sub(log.events);
        usage.bytes = (usage.bytes + written.bytes).saturating_sub(log.bytes);
        // One whose time is over is another log of that name.
        let until = log.until.filter(|until| *until > now);
        let until = until.or_else(|| written.left_ms.map(|left_ms| now + Duration::from_millis(left_ms)));
        *log = BookedLog { events: written.events, bytes: written.bytes, until };
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
            let is_booked = self.lock().sessions.get(session).is_some_and(|booked| booked.logs.contains_key(nonce));
            if let Some((events, bytes)) = left.filter(|_| is_booked) {
                self.wrote(session, *nonce, Written { events, bytes, left_ms: None });
            }
        }
    }

    /// A log is not there any more.
    pub(super) fn gone(&self, session: &str, nonce: StreamNonce) {
        let mut guard = self.lock();
        let State { sessions, usage } = &mut *guard;
        if let Some(log) = sessions.get_mut(session).and_then(|booked| booked.logs.remove(&nonce)) {
            forget(usage, &log);
        }
    }

    /// The session, or a log of it, was not found or is another owner's: what is held of it is looked after soon.
    pub(super) fn doubt(&self, session: &str) {
        if let Some(booked) = self.lock().sessions.get_mut(session) {
            booked.kept = None;
        }
    }

    /// A session is not this store object's any more.
    pub(super) fn dropped(&self, session: &str) {
        let mut guard = self.lock();
        let State { sessions, usage } = &mut *guard;
        if let Some(booked) = sessions.remove(session) {
            booked.logs.values().for_each(|log| forget(usage, log));
        }
    }

    /// Forgets the logs that the server forgot, and says what is to be kept from that: sessions with their logs that
    /// run.
    pub(super) fn sweep(&self) -> Vec<(Arc<str>, Vec<StreamNonce>)> {
        let now = Instant::now();
        let mut guard = self.lock();
        let State { sessions, usage } = &mut *guard;
        let mut due = Vec::new();
        for (session, booked) in sessions {
            let over = |log: &BookedLog| log.until.is_some_and(|until| until <= now);
            let gone: Vec<StreamNonce> =
                booked.logs.iter().filter(|(_, log)| over(log)).map(|(nonce, _)| *nonce).collect();
            for nonce in gone {
                if let Some(log) = booked.logs.remove(&nonce) {
                    forget(usage, &log);
                }
            }
            let running: Vec<StreamNonce> =
                booked.logs.iter().filter(|(_, log)| log.until.is_none()).map(|(nonce, _)| *nonce).collect();
            if booked.kept.is_none_or(|kept| now.saturating_duration_since(kept) >= self.refresh) {
                booked.kept = Some(now);
                due.push((Arc::clone(session), running));
            }
        }
        due
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn session_of<'a>(sessions: &'a mut HashMap<Arc<str>, BookedSession>, session: &Arc<str>) -> &'a mut BookedSession {
    let new = || BookedSession { logs: HashMap::new(), kept: Some(Instant::now()) };
    sessions.entry(Arc::clone(session)).or_insert_with(new)
}

fn forget(usage: &mut Usage, log: &BookedLog) {
    usage.streams -= 1;
    usage.events -= log.events;
    usage.bytes -= log.bytes;
}
