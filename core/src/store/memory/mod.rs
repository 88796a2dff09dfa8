//! The memory store: every operation is done before the call returns.
//!
//! Logs are sharded by session, so that the bounds of a session are kept under one lock. The bound
//! over everything is a counter. Where it would be passed, the streams whose retention ends first go first,
//! whichever shard they are in, then the oldest events of the others. What finds no room even then is
//! refused.

mod inbox;
mod log;
mod room;

use std::collections::BTreeMap;

use bytes::Bytes;

use self::inbox::{Inbox, Posted};
use self::log::{Log, Logged};
use self::room::cost;
use super::append::{LogState, Verdict};
use super::{
    Answer, Append, Attach, Attached, AttachedLog, Epoch, EventStore, Hold, Limits, LogPage, Mail, ReadLimit,
    RunningLog, SessionRecord, StoreError, StreamKey, Ticket, Usage,
};
use crate::Ms;
use crate::maps::{OwnMap, shard_of};
use crate::protocol::StreamNonce;
use crate::stream::{EventKind, Seq};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 16;

/// An event store in this process's memory, bounded by [`Limits`].
pub struct MemoryStore {
    limits: Limits,
    shards: Vec<Mutex<Shard>>,
    tally: Tally,
    /// Until then nothing can be freed, in milliseconds on the engine's clock.
    full_until: AtomicU64,
    /// The latest time that it was told.
    latest: AtomicU64,
    next_serial: AtomicU64,
    /// Logs that went one by one, where somebody keeps something of them.
    gone: Option<Mutex<Vec<StreamKey>>>,
}

/// What there is now, so that nobody has to count it.
#[derive(Default)]
struct Tally {
    sessions: AtomicU64,
    streams: AtomicU64,
    events: AtomicU64,
    bytes: AtomicU64,
    trimmed: AtomicU64,
}

fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

fn subtract(counter: &AtomicU64, count: usize) {
    counter.fetch_sub(count as u64, Ordering::Relaxed);
}

/// Until when a finished stream is kept, and a number that orders those of one millisecond.
type Place = (Ms, u64);
/// Finished streams, in the order in which they go.
type Finished = BTreeMap<Place, StreamKey>;

#[derive(Default)]
struct Shard {
    sessions: OwnMap<Arc<str>, SessionLogs>,
    finished: Finished,
    /// Until when the names of sessions that had several owners stay taken.
    taken: OwnMap<Arc<str>, Ms>,
}

struct SessionLogs {
    record: SessionRecord,
    epoch: Epoch,
    /// Its owner let it go.
    is_released: bool,
    bytes: usize,
    /// Boxed: a map has several places from its first entry on, and most sessions use few.
    streams: OwnMap<StreamNonce, Box<Log>>,
    inbox: Inbox,
}

impl MemoryStore {
    /// An empty store.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            tally: Tally::default(),
            full_until: AtomicU64::new(0),
            latest: AtomicU64::new(0),
            next_serial: AtomicU64::new(0),
            gone: None,
        }
    }

    /// From now on it keeps which logs have gone one by one, until that is [taken](Self::take_gone).
    pub(super) fn keeping_what_goes(self) -> Self {
        Self { gone: Some(Mutex::default()), ..self }
    }

    pub(super) fn take_gone(&self) -> Vec<StreamKey> {
        self.gone.as_ref().map(|gone| std::mem::take(&mut *lock(gone))).unwrap_or_default()
    }

    /// What [`read`](EventStore::read) tells of a log besides events; none when it is not there.
    pub(super) fn known(&self, key: &StreamKey) -> Option<LogPage> {
        let shard = self.shard(&key.session);
        let logs = shard.sessions.get(&key.session)?;
        let limit = ReadLimit { up_to: 0, events: 0, bytes: 0 };
        Some(logs.streams.get(&key.nonce)?.page(logs, 0, limit))
    }

    fn shard(&self, session: &str) -> MutexGuard<'_, Shard> {
        lock(&self.shards[shard_of(session, SHARDS)])
    }

    /// Marks a log as finished, with its place in the order of all that are.
    fn set_finished(&self, now: Ms, key: &StreamKey, log: &mut Log, finished: &mut Finished) {
        let kept_ms = log.paced.retention_ms.unwrap_or(self.limits.retention_ms);
        let place = (now + kept_ms, self.next_serial.fetch_add(1, Ordering::Relaxed));
        log.finished = Some(place);
        finished.insert(place, key.clone());
    }

    fn freed(&self, bytes: usize) {
        subtract(&self.tally.bytes, bytes);
    }

    fn remove(&self, shard: &mut Shard, key: &StreamKey) {
        let Some(logs) = shard.sessions.get_mut(&key.session) else { return };
        if let Some(log) = logs.streams.remove(&key.nonce) {
            self.gone.iter().for_each(|gone| lock(gone).push(key.clone()));
            logs.bytes -= log.bytes;
            self.forgot(&log);
            if let Some(Posted::Waits(number)) = log.posted {
                self.forget_waiting(logs, number);
            }
            if let Some(place) = log.finished {
                shard.finished.remove(&place);
            }
        }
    }

    fn forgot(&self, log: &Log) {
        subtract(&self.tally.streams, 1);
        subtract(&self.tally.events, log.events.len() + log.pinned.len());
        self.freed(log.bytes);
    }

    /// Writes without asking whether there is room in the store. A log that is not there is created only if asked.
    pub(super) fn put(
        &self,
        now: Ms,
        key: &StreamKey,
        epoch: Epoch,
        append: &Append,
        creates: bool,
    ) -> Result<(), StoreError> {
        let mut guard = self.shard(&key.session);
        let shard = &mut *guard;
        let logs = shard.sessions.get_mut(&key.session).ok_or(StoreError::Gone)?;
        if logs.epoch != epoch {
            return Err(StoreError::Fenced);
        }
        if creates {
            self.create(logs, key, &append.about);
        }
        let log = logs.streams.get_mut(&key.nonce).ok_or(StoreError::Gone)?;
        let (head, chain, is_finished) = (log.head(), log.chain, log.finished.is_some());
        let is_answered = append.events.last().is_some_and(|last| last.kind == EventKind::Terminal);
        let ends = is_answered || append.end.is_some();
        let mut added = 0;
        match append.judge(LogState { head, chain, is_finished })? {
            Verdict::Nothing if is_finished => return Ok(()),
            Verdict::Nothing | Verdict::Rest => {}
            Verdict::All => {
                if ends {
                    log.events.reserve_exact(append.events.len());
                }
                log.events.extend(append.events.iter().map(|event| Logged::new(event, seconds(now))));
                log.chain = append.chain;
                added = cost(&append.events);
                add(&self.tally.events, append.events.len());
            }
        }
        let waited = match log.posted {
            Some(Posted::Waits(number)) => {
                log.posted = Some(Posted::Taken);
                Some(number)
            }
            _ => None,
        };
        log.paced = append.paced.unwrap_or(log.paced);
        if ends {
            self.set_finished(now, key, log, &mut shard.finished);
            log.events.shrink_to_fit();
        }
        if let Some(end) = &append.end {
            added += end.len();
            log.tail = Some(end.clone());
        }
        log.bytes += added;
        logs.bytes += added;
        add(&self.tally.bytes, added);
        if let Some(number) = waited {
            self.forget_waiting(logs, number);
        }
        self.trim_stream(now, logs, key.nonce);
        self.trim_session(shard, key);
        Ok(())
    }

    /// The log, which is created where it is not there.
    fn create<'a>(&self, logs: &'a mut SessionLogs, key: &StreamKey, about: &Bytes) -> &'a mut Log {
        logs.streams.entry(key.nonce).or_insert_with(|| {
            let log = Box::new(Log::new(key, about.clone()));
            logs.bytes += log.bytes;
            add(&self.tally.bytes, log.bytes);
            add(&self.tally.streams, 1);
            log
        })
    }
}

impl EventStore for MemoryStore {
    fn hold(&self, session: &str, hold: &Hold, _ticket: &Ticket) -> Answer<Vec<RunningLog>> {
        let mut shard = self.shard(session);
        let Some(logs) = shard.sessions.get_mut(session) else {
            let is_taken = shard.taken.contains_key(session);
            let Some(record) = hold.record.clone().filter(|_| hold.seen.is_none() && !is_taken) else {
                return Answer::Now(Err(StoreError::Gone));
            };
            add(&self.tally.sessions, 1);
            let logs = SessionLogs {
                record,
                epoch: hold.epoch,
                is_released: false,
                bytes: 0,
                streams: OwnMap::default(),
                inbox: Inbox::default(),
            };
            shard.sessions.insert(session.into(), logs);
            return Answer::ok(Vec::new());
        };
        if logs.epoch != hold.epoch && !hold.replaces(logs.epoch) {
            return Answer::Now(Err(StoreError::Fenced));
        }
        if logs.epoch != hold.epoch {
            self.forget_taken(logs, u64::MAX);
        }
        (logs.epoch, logs.is_released) = (hold.epoch, false);
        if let Some(record) = &hold.record {
            logs.record = record.clone();
        }
        let running = logs.streams.iter().filter(|(_, log)| {
            hold.seen.is_some() && log.finished.is_none() && !matches!(log.posted, Some(Posted::Waits(_)))
        });
        let running = running.map(|(nonce, log)| {
            let (nonce, head, chain, about) = (*nonce, log.head(), log.chain, log.about.clone());
            RunningLog { nonce, head, chain, about }
        });
        Answer::ok(running.collect())
    }

    fn append(&self, now: Ms, key: &StreamKey, epoch: Epoch, append: &Append, _ticket: &Ticket) -> Answer<()> {
        self.latest.fetch_max(now.0, Ordering::Relaxed);
        Answer::Now(append.check_size(self.limits.max_event_bytes).and_then(|()| {
            let bytes = self.reserve(now, key, append)?;
            let result = self.put(now, key, epoch, append, append.first == 1);
            // What was added is counted with its log.
            self.freed(bytes);
            if append.end.is_some() {
                self.make_room(now);
            }
            result
        }))
    }

    fn attach(&self, session: &str, attach: &Attach, _ticket: &Ticket) -> Answer<Attached> {
        let mut shard = self.shard(session);
        let Some(logs) = shard.sessions.get_mut(session) else { return Answer::ok(Attached::default()) };
        if !attach.finds(logs.record.principal.as_deref()) {
            return Answer::ok(Attached { is_foreign: true, ..Attached::default() });
        }
        if let (Some(nonce), Some(message)) = (attach.stream, &attach.message)
            && let Err(error) = self.post(logs, &StreamKey { session: session.into(), nonce }, message)
        {
            return Answer::Now(Err(error));
        }
        if let Some(log) = attach.stream.filter(|_| attach.counts).and_then(|nonce| logs.streams.get_mut(&nonce)) {
            log.readers += u64::from(attach.fits(log.head(), log.tag_at(attach.after)));
        }
        let log = attach
            .stream
            .and_then(|nonce| logs.streams.get(&nonce))
            .map(|log| AttachedLog { about: log.about.clone(), page: log.page(logs, attach.after, attach.limit) });
        Answer::ok(Attached { session: Some(logs.record.clone()), is_foreign: false, log })
    }

    fn read(&self, key: &StreamKey, after: Seq, limit: ReadLimit, _ticket: &Ticket) -> Answer<LogPage> {
        let shard = self.shard(&key.session);
        let logs = shard.sessions.get(&key.session);
        let log = logs.and_then(|logs| Some(logs.streams.get(&key.nonce)?.page(logs, after, limit)));
        Answer::Now(log.ok_or(StoreError::Gone))
    }

    fn take(&self, session: &str, epoch: Epoch, after: u64, _ticket: &Ticket) -> Answer<Vec<Mail>> {
        let mut shard = self.shard(session);
        let Some(logs) = shard.sessions.get_mut(session) else { return Answer::Now(Err(StoreError::Gone)) };
        if logs.epoch != epoch {
            return Answer::Now(Err(StoreError::Fenced));
        }
        Answer::ok(self.take_mail(logs, after))
    }

    fn withdraw(&self, now: Ms, key: &StreamKey, end: &Bytes, _ticket: &Ticket) -> Answer<bool> {
        let mut guard = self.shard(&key.session);
        let shard = &mut *guard;
        let Some(logs) = shard.sessions.get_mut(&key.session) else { return Answer::Now(Err(StoreError::Gone)) };
        let Some(log) = logs.streams.get_mut(&key.nonce) else { return Answer::Now(Err(StoreError::Gone)) };
        let Some(Posted::Waits(number)) = log.posted else { return Answer::ok(log.posted == Some(Posted::Withdrawn)) };
        log.posted = Some(Posted::Withdrawn);
        log.tail = Some(end.clone());
        log.bytes += end.len();
        self.set_finished(now, key, log, &mut shard.finished);
        logs.bytes += end.len();
        add(&self.tally.bytes, end.len());
        self.forget_waiting(logs, number);
        Answer::ok(true)
    }

    fn release(&self, session: &str, epoch: Epoch) {
        if let Some(logs) = self.shard(session).sessions.get_mut(session).filter(|logs| logs.epoch == epoch) {
            logs.is_released = true;
        }
    }

    fn settle(&self, key: &StreamKey, epoch: Epoch, seq: Seq) {
        let mut shard = self.shard(&key.session);
        let Some(logs) = shard.sessions.get_mut(&key.session).filter(|logs| logs.epoch == epoch) else { return };
        let Some(log) = logs.streams.get_mut(&key.nonce) else { return };
        let is_question = |entry: &Logged| entry.kind == EventKind::Question;
        if let Ok(at) = log.pinned.binary_search_by_key(&seq, |(pinned, _)| *pinned)
            && is_question(&log.pinned[at].1)
            && let Some((_, entry)) = log.pinned.remove(at)
        {
            log.bytes -= entry.cost();
            logs.bytes -= entry.cost();
            self.freed(entry.cost());
            subtract(&self.tally.events, 1);
        } else if let Some(entry) = log.entry_mut(seq).filter(|entry| is_question(entry)) {
            entry.pinned = false;
        }
    }

    fn drop_stream(&self, key: &StreamKey, epoch: Epoch) {
        let mut shard = self.shard(&key.session);
        if shard.sessions.get(&key.session).is_some_and(|logs| logs.epoch == epoch) {
            self.remove(&mut shard, key);
        }
    }

    fn drop_session(&self, session: &str, epoch: Epoch) {
        let mut shard = self.shard(session);
        if shard.sessions.get(session).is_none_or(|logs| logs.epoch != epoch) {
            return;
        }
        if let Some((name, logs)) = shard.sessions.remove_entry(session) {
            if logs.epoch.number > 1 {
                let until = Ms(self.latest.load(Ordering::Relaxed)) + self.limits.max_age_ms;
                shard.taken.insert(name, until);
            }
            subtract(&self.tally.sessions, 1);
            logs.streams.values().for_each(|log| self.forgot(log));
            self.freed(logs.inbox.bytes());
            for place in logs.streams.values().filter_map(|log| log.finished) {
                shard.finished.remove(&place);
            }
        }
    }

    fn sweep(&self, now: Ms) -> Ms {
        self.latest.fetch_max(now.0, Ordering::Relaxed);
        let mut next = Ms::NEVER;
        for shard in &self.shards {
            let mut shard = lock(shard);
            shard.taken.retain(|_, until| *until > now);
            while let Some(first) = shard.finished.first_entry() {
                let due = first.key().0;
                if due > now {
                    next = next.min(due);
                    break;
                }
                let key = first.remove();
                self.remove(&mut shard, &key);
            }
        }
        next
    }

    fn usage(&self) -> Usage {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Usage {
            sessions: count(&self.tally.sessions),
            streams: count(&self.tally.streams),
            events: count(&self.tally.events),
            bytes: count(&self.tally.bytes),
            trimmed: count(&self.tally.trimmed),
        }
    }
}

/// A panic of another thread while it held the lock leaves a log that is still consistent: every
/// change is made before anything can panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn seconds(now: Ms) -> u32 {
    u32::try_from(now.0 / 1_000).unwrap_or(u32::MAX)
}
