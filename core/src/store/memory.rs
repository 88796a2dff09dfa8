//! The memory store: every operation is done before the call returns.
//!
//! Logs are sharded by session, so that the bounds of a session are kept under one lock. The bound
//! over everything is an atomic counter; when it is passed, the streams that finished first go
//! first, whichever shard they are in.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::{Answer, EventStore, Limits, ReadLimit, Record, StoreError, StreamKey, Ticket, Usage};
use crate::Ms;
use crate::protocol::StreamNonce;
use crate::stream::{Chain, EventKind, Page, Seq, StoredEvent};

const SHARDS: usize = 16;
/// What an event costs besides its frame: the entry, the reference counts, the allocator.
const EVENT_OVERHEAD: usize = 56;

/// An event store in this process's memory, bounded by [`Limits`].
pub struct MemoryStore {
    limits: Limits,
    hasher: RandomState,
    shards: Vec<Mutex<Shard>>,
    bytes: AtomicU64,
    trimmed: AtomicU64,
}

#[derive(Default)]
struct Shard {
    sessions: HashMap<Arc<str>, SessionLogs>,
    /// Finished streams, oldest first.
    finished: VecDeque<(Ms, Arc<str>, StreamNonce)>,
}

#[derive(Default)]
struct SessionLogs {
    bytes: usize,
    streams: HashMap<StreamNonce, Log>,
}

struct Entry {
    frame: Arc<[u8]>,
    tag: u32,
    /// Seconds on the engine's clock.
    at: u32,
    kind: EventKind,
}

impl Entry {
    fn cost(&self) -> usize {
        self.frame.len() + EVENT_OVERHEAD
    }

    fn stored(&self, seq: Seq) -> StoredEvent {
        StoredEvent { seq, kind: self.kind, tag: self.tag, frame: Arc::clone(&self.frame) }
    }
}

struct Log {
    /// Positions `low` to `head`.
    events: VecDeque<Entry>,
    /// Events that outlive the trimmed prefix: unanswered questions and terminals.
    pinned: Vec<(Seq, Entry)>,
    low: Seq,
    /// The tag at `low - 1`.
    low_tag: u32,
    chain: u64,
    bytes: usize,
    finished: Option<Ms>,
    tail: Option<Bytes>,
    /// Questions that were answered; only positions still in `events` matter.
    settled: Vec<Seq>,
}

impl Log {
    fn new(key: &StreamKey) -> Self {
        let chain = Chain::start(&key.nonce.0);
        Self {
            events: VecDeque::new(),
            pinned: Vec::new(),
            low: 1,
            low_tag: chain.tag(),
            chain: chain.0,
            bytes: 0,
            finished: None,
            tail: None,
            settled: Vec::new(),
        }
    }

    fn head(&self) -> Seq {
        self.low + self.events.len() as Seq - 1
    }

    fn tag_at(&self, seq: Seq) -> Option<u32> {
        if seq + 1 == self.low {
            return Some(self.low_tag);
        }
        let at = usize::try_from(seq.checked_sub(self.low)?).ok()?;
        self.events.get(at).map(|entry| entry.tag)
    }

    /// Moves `low` past the oldest event. Returns the bytes that this freed.
    fn trim_one(&mut self) -> usize {
        let Some(entry) = self.events.pop_front() else { return 0 };
        let seq = self.low;
        self.low += 1;
        self.low_tag = entry.tag;
        let keep = match entry.kind {
            EventKind::Terminal => true,
            EventKind::Question => !self.settled.contains(&seq),
            EventKind::Progress | EventKind::Answer => false,
        };
        self.settled.retain(|settled| *settled > seq);
        if keep {
            self.pinned.push((seq, entry));
            return 0;
        }
        let cost = entry.cost();
        self.bytes -= cost;
        cost
    }
}

impl MemoryStore {
    /// An empty store.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            bytes: AtomicU64::new(0),
            trimmed: AtomicU64::new(0),
        }
    }

    fn shard(&self, session: &str) -> MutexGuard<'_, Shard> {
        let at = self.hasher.hash_one(session) as usize % SHARDS;
        lock(&self.shards[at])
    }

    fn freed(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    /// Brings one session back into its bounds. The newest event of a stream always stays.
    fn trim_session(&self, now: Ms, logs: &mut SessionLogs, nonce: StreamNonce) {
        let SessionLogs { bytes: session_bytes, streams } = logs;
        let Some(log) = streams.get_mut(&nonce) else { return };
        let oldest = seconds(now).saturating_sub(u32::try_from(self.limits.max_age_ms / 1_000).unwrap_or(u32::MAX));
        let mut freed = 0;
        let mut trimmed = 0;
        while log.events.len() > 1
            && (log.events.len() > self.limits.max_events_per_stream
                || log.bytes > self.limits.max_bytes_per_stream
                || *session_bytes - freed > self.limits.max_bytes_per_session
                || log.events.front().is_some_and(|entry| entry.at < oldest))
        {
            freed += log.trim_one();
            trimmed += 1;
        }
        *session_bytes -= freed;
        self.freed(freed);
        self.trimmed.fetch_add(trimmed, Ordering::Relaxed);
    }

    /// Brings the store back into its bound: streams that finished first go first, then the oldest
    /// events of the largest streams.
    fn trim_all(&self) {
        while self.bytes.load(Ordering::Relaxed) > self.limits.max_bytes as u64 {
            let oldest =
                (0..SHARDS).filter_map(|at| lock(&self.shards[at]).finished.front().map(|entry| (entry.0, at))).min();
            let progress = match oldest {
                Some((_, at)) => self.evict_finished(&mut lock(&self.shards[at])),
                None => self.trim_largest(),
            };
            if !progress {
                return;
            }
        }
    }

    fn evict_finished(&self, shard: &mut Shard) -> bool {
        let Some((_, session, nonce)) = shard.finished.pop_front() else { return false };
        self.remove(shard, &session, nonce);
        true
    }

    fn trim_largest(&self) -> bool {
        let largest = (0..SHARDS)
            .filter_map(|at| {
                let shard = lock(&self.shards[at]);
                let logs = shard.sessions.iter().flat_map(|(session, logs)| {
                    logs.streams.iter().map(move |(nonce, log)| (log.bytes, session, *nonce, log.events.len()))
                });
                logs.filter(|(.., events)| *events > 1)
                    .max_by_key(|(bytes, ..)| *bytes)
                    .map(|(bytes, session, nonce, _)| (bytes, at, Arc::clone(session), nonce))
            })
            .max_by_key(|(bytes, ..)| *bytes);
        let Some((_, at, session, nonce)) = largest else { return false };
        let mut shard = lock(&self.shards[at]);
        let Some(logs) = shard.sessions.get_mut(&session) else { return true };
        let Some(log) = logs.streams.get_mut(&nonce) else { return true };
        let count = (log.events.len() / 4).max(1).min(log.events.len().saturating_sub(1));
        let freed: usize = (0..count).map(|_| log.trim_one()).sum();
        logs.bytes -= freed;
        self.freed(freed);
        self.trimmed.fetch_add(count as u64, Ordering::Relaxed);
        count > 0
    }

    fn remove(&self, shard: &mut Shard, session: &Arc<str>, nonce: StreamNonce) {
        let Some(logs) = shard.sessions.get_mut(session) else { return };
        if let Some(log) = logs.streams.remove(&nonce) {
            logs.bytes -= log.bytes;
            self.freed(log.bytes);
        }
        if logs.streams.is_empty() {
            shard.sessions.remove(session);
        }
    }
}

impl EventStore for MemoryStore {
    fn open(&self, _now: Ms, key: &StreamKey, _ticket: &Ticket) -> Answer<()> {
        let mut shard = self.shard(&key.session);
        let logs = match shard.sessions.get_mut(&key.session) {
            Some(logs) => logs,
            None => shard.sessions.entry(Arc::clone(&key.session)).or_default(),
        };
        logs.streams.entry(key.nonce).or_insert_with(|| Log::new(key));
        Answer::ok(())
    }

    fn append(&self, now: Ms, key: &StreamKey, events: &[StoredEvent], chain: u64, _ticket: &Ticket) -> Answer<()> {
        if let Some(event) = events.iter().find(|event| event.frame.len() > self.limits.max_event_bytes) {
            let bytes = event.frame.len();
            return Answer::Now(Err(StoreError::TooLarge { bytes, max: self.limits.max_event_bytes }));
        }
        let mut guard = self.shard(&key.session);
        let shard = &mut *guard;
        let Some(logs) = shard.sessions.get_mut(&key.session) else { return Answer::Now(Err(StoreError::Gone)) };
        let Some(log) = logs.streams.get_mut(&key.nonce) else { return Answer::Now(Err(StoreError::Gone)) };
        let (Some(first), Some(last)) = (events.first(), events.last()) else { return Answer::ok(()) };
        if log.head() == last.seq && log.chain == chain {
            return Answer::ok(());
        }
        if log.finished.is_some() {
            return Answer::Now(Err(StoreError::Gone));
        }
        if log.head() + 1 != first.seq {
            return Answer::Now(Err(StoreError::OutOfOrder));
        }
        let mut added = 0;
        for event in events {
            let entry = Entry { frame: Arc::clone(&event.frame), tag: event.tag, at: seconds(now), kind: event.kind };
            added += entry.cost();
            log.events.push_back(entry);
        }
        log.bytes += added;
        log.chain = chain;
        if last.kind == EventKind::Terminal {
            log.finished = Some(now);
            log.events.shrink_to_fit();
            shard.finished.push_back((now, Arc::clone(&key.session), key.nonce));
        }
        logs.bytes += added;
        self.bytes.fetch_add(added as u64, Ordering::Relaxed);
        self.trim_session(now, logs, key.nonce);
        drop(guard);
        if self.bytes.load(Ordering::Relaxed) > self.limits.max_bytes as u64 {
            self.trim_all();
        }
        Answer::ok(())
    }

    fn finish(&self, now: Ms, key: &StreamKey, tail: Bytes) {
        let mut guard = self.shard(&key.session);
        let shard = &mut *guard;
        let log = shard.sessions.get_mut(&key.session).and_then(|logs| logs.streams.get_mut(&key.nonce));
        let Some(log) = log.filter(|log| log.finished.is_none()) else { return };
        log.finished = Some(now);
        log.tail = Some(tail);
        shard.finished.push_back((now, Arc::clone(&key.session), key.nonce));
    }

    fn read(&self, key: &StreamKey, after: Seq, limit: ReadLimit, _ticket: &Ticket) -> Answer<Page> {
        let shard = self.shard(&key.session);
        let log = shard.sessions.get(&key.session).and_then(|logs| logs.streams.get(&key.nonce));
        let Some(log) = log else { return Answer::Now(Err(StoreError::Gone)) };
        let mut page = Page { events: Vec::new(), head: log.head(), low: log.low, tag_at: log.tag_at(after) };
        let mut bytes = 0;
        let mut take = |seq: Seq, entry: &Entry| {
            let full = page.events.len() >= limit.events || (bytes > 0 && bytes + entry.frame.len() > limit.bytes);
            if !full {
                bytes += entry.frame.len();
                page.events.push(entry.stored(seq));
            }
            !full
        };
        let pinned = log.pinned.iter().filter(|(seq, _)| *seq > after && *seq <= limit.up_to);
        let mut room = pinned.fold(true, |room, (seq, entry)| room && take(*seq, entry));
        let start = (after + 1).max(log.low);
        for seq in start..=limit.up_to.min(log.head()) {
            let Some(entry) = usize::try_from(seq - log.low).ok().and_then(|at| log.events.get(at)) else { break };
            room = room && take(seq, entry);
            if !room {
                break;
            }
        }
        Answer::ok(page)
    }

    fn record(&self, key: &StreamKey) -> Option<Record> {
        let shard = self.shard(&key.session);
        let log = shard.sessions.get(&key.session)?.streams.get(&key.nonce)?;
        Some(Record {
            head: log.head(),
            low: log.low,
            finished: log.finished.is_some(),
            tail: log.tail.clone(),
            chain: log.chain,
        })
    }

    fn settle(&self, key: &StreamKey, seq: Seq) {
        let mut shard = self.shard(&key.session);
        let Some(logs) = shard.sessions.get_mut(&key.session) else { return };
        let Some(log) = logs.streams.get_mut(&key.nonce) else { return };
        if let Some(at) = log.pinned.iter().position(|(pinned, _)| *pinned == seq) {
            let (_, entry) = log.pinned.remove(at);
            log.bytes -= entry.cost();
            logs.bytes -= entry.cost();
            self.freed(entry.cost());
        } else {
            log.settled.push(seq);
        }
    }

    fn drop_stream(&self, key: &StreamKey) {
        let mut shard = self.shard(&key.session);
        self.remove(&mut shard, &key.session, key.nonce);
    }

    fn drop_session(&self, session: &str) {
        let mut shard = self.shard(session);
        if let Some(logs) = shard.sessions.remove(session) {
            self.freed(logs.bytes);
        }
    }

    fn sweep(&self, now: Ms) -> Ms {
        let mut next = Ms::NEVER;
        for shard in &self.shards {
            let mut shard = lock(shard);
            while let Some((finished, session, nonce)) = shard.finished.front().cloned() {
                let due = finished + self.limits.retention_ms;
                if due > now {
                    next = next.min(due);
                    break;
                }
                shard.finished.pop_front();
                self.remove(&mut shard, &session, nonce);
            }
        }
        next
    }

    fn usage(&self) -> Usage {
        let mut usage = Usage {
            bytes: self.bytes.load(Ordering::Relaxed),
            trimmed: self.trimmed.load(Ordering::Relaxed),
            ..Usage::default()
        };
        for shard in &self.shards {
            let shard = lock(shard);
            usage.sessions += shard.sessions.len() as u64;
            for log in shard.sessions.values().flat_map(|logs| logs.streams.values()) {
                usage.streams += 1;
                usage.events += (log.events.len() + log.pinned.len()) as u64;
            }
        }
        usage
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
