//! The memory store: every operation is done before the call returns.
//!
//! Logs are sharded by session, so that the bounds of a session are kept under one lock. The bound
//! over everything is a counter. Where it would be passed, the streams that finished first go first,
//! whichever shard they are in, then the oldest events of the others. What finds no room even then is
//! refused.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::BuildHasher;

use bytes::Bytes;

use super::append::{LogState, Verdict};
use super::{
    Answer, Append, Attach, Attached, AttachedLog, Epoch, EventStore, Hold, Limits, LogPage, MAX_TAKEN, Mail, Message,
    Owner, ReadLimit, RunningLog, SessionRecord, StoreError, StreamKey, Ticket, Usage, check_inbox,
};
use crate::Ms;
use crate::protocol::StreamNonce;
use crate::stream::{Chain, EventKind, Paced, Page, Seq, StoredEvent};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 16;
/// What an event costs besides its frame: the entry, the reference counts, the allocator.
const EVENT_OVERHEAD: usize = 56;
/// What a log costs without events: itself, its names, its places in the maps.
const LOG_OVERHEAD: usize = 384;
/// After nothing could be freed, no log is looked at again for so long.
const FULL_MS: u64 = 1_000;

/// An event store in this process's memory, bounded by [`Limits`].
pub struct MemoryStore {
    limits: Limits,
    hasher: RandomState,
    shards: Vec<Mutex<Shard>>,
    held: Held,
    /// Until then nothing can be freed, in milliseconds on the engine's clock.
    full_until: AtomicU64,
    /// The latest time that it was told.
    latest: AtomicU64,
    next_serial: AtomicU64,
}

/// What there is now, so that nobody has to count it.
#[derive(Default)]
struct Held {
    sessions: AtomicU64,
    streams: AtomicU64,
    events: AtomicU64,
    bytes: AtomicU64,
    trimmed: AtomicU64,
}

fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

fn take(counter: &AtomicU64, count: usize) {
    counter.fetch_sub(count as u64, Ordering::Relaxed);
}

/// When a stream finished, and a number that orders those of one millisecond.
type Place = (Ms, u64);
/// Finished streams, oldest first.
type Finished = BTreeMap<Place, StreamKey>;

#[derive(Default)]
struct Shard {
    sessions: HashMap<Arc<str>, SessionLogs>,
    finished: Finished,
    /// Until when the names of sessions that had several owners stay taken.
    taken: HashMap<Arc<str>, Ms>,
}

struct SessionLogs {
    record: SessionRecord,
    epoch: Epoch,
    /// Its owner let it go.
    is_released: bool,
    bytes: usize,
    streams: HashMap<StreamNonce, Log>,
    inbox: Inbox,
}

/// Messages for the session's owner, by their numbers.
#[derive(Default)]
struct Inbox {
    last: u64,
    /// They wait.
    waiting: BTreeMap<u64, (StreamNonce, Message)>,
    waiting_bytes: usize,
    /// The owner has them, and may ask again.
    taken: BTreeMap<u64, (StreamNonce, Message)>,
}

/// What became of the message that a log is the answer of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Posted {
    Waits(u64),
    Taken,
    Withdrawn,
}

struct Logged {
    frame: Arc<[u8]>,
    tag: u32,
    /// Seconds on the engine's clock.
    at: u32,
    kind: EventKind,
    /// A terminal, or a question without an answer: it outlives the trimmed prefix.
    pinned: bool,
}

impl Logged {
    fn cost(&self) -> usize {
        self.frame.len() + EVENT_OVERHEAD
    }

    fn stored(&self, seq: Seq) -> StoredEvent {
        StoredEvent { seq, kind: self.kind, tag: self.tag, frame: Arc::clone(&self.frame) }
    }
}

struct Log {
    /// Positions `low` to `head`.
    events: VecDeque<Logged>,
    /// Events that outlived the trimmed prefix.
    pinned: VecDeque<(Seq, Logged)>,
    low: Seq,
    /// The tag at `low - 1`.
    low_tag: u32,
    chain: u64,
    bytes: usize,
    finished: Option<Place>,
    tail: Option<Bytes>,
    about: Bytes,
    paced: Paced,
    readers: u64,
    /// None of a log that its owner created.
    posted: Option<Posted>,
}

impl Log {
    fn new(key: &StreamKey, about: Bytes) -> Self {
        let chain = Chain::start(&key.nonce.0);
        Self {
            events: VecDeque::new(),
            pinned: VecDeque::new(),
            low: 1,
            low_tag: chain.tag(),
            chain: chain.0,
            bytes: LOG_OVERHEAD + about.len(),
            finished: None,
            tail: None,
            about,
            paced: Paced::default(),
            readers: 0,
            posted: None,
        }
    }

    fn head(&self) -> Seq {
        self.low + self.events.len() as Seq - 1
    }

    /// Whether anything may be freed: the newest event always stays.
    fn can_free(&self) -> bool {
        self.events.len() > 1 || !self.pinned.is_empty()
    }

    /// When its oldest event was stored, in seconds.
    fn oldest(&self) -> u32 {
        self.pinned.front().map(|(_, entry)| entry).or_else(|| self.events.front()).map_or(0, |entry| entry.at)
    }

    fn tag_at(&self, seq: Seq) -> Option<u32> {
        if seq + 1 == self.low {
            return Some(self.low_tag);
        }
        let at = usize::try_from(seq.checked_sub(self.low)?).ok()?;
        self.events.get(at).map(|entry| entry.tag)
    }

    fn entry_mut(&mut self, seq: Seq) -> Option<&mut Logged> {
        let at = usize::try_from(seq.checked_sub(self.low)?).ok()?;
        self.events.get_mut(at)
    }

    /// The events after a position, and where the log stands.
    fn page(&self, logs: &SessionLogs, after: Seq, limit: ReadLimit) -> LogPage {
        let mut page = Page { events: Vec::new(), head: self.head(), low: self.low, tag_at: self.tag_at(after) };
        let mut bytes = 0;
        let mut take = |seq: Seq, entry: &Logged| {
            let full = page.events.len() >= limit.events || (bytes > 0 && bytes + entry.frame.len() > limit.bytes);
            if !full {
                bytes += entry.frame.len();
                page.events.push(entry.stored(seq));
            }
            !full
        };
        let pinned = self.pinned.iter().filter(|(seq, _)| *seq > after && *seq <= limit.up_to);
        let mut room = pinned.fold(true, |room, (seq, entry)| room && take(*seq, entry));
        let start = (after + 1).max(self.low);
        for seq in start..=limit.up_to.min(self.head()) {
            let Some(entry) = usize::try_from(seq - self.low).ok().and_then(|at| self.events.get(at)) else { break };
            room = room && take(seq, entry);
            if !room {
                break;
            }
        }
        LogPage {
            page,
            chain: self.chain,
            is_finished: self.finished.is_some(),
            tail: self.tail.clone(),
            paced: self.paced,
            readers: self.readers,
            owner: logs.is_released.then_some(Owner { epoch: logs.epoch, unseen_ms: u64::MAX }),
        }
    }

    /// Moves `low` past the oldest event. Returns the bytes that this freed.
    fn trim_one(&mut self) -> usize {
        let Some(entry) = self.events.pop_front() else { return 0 };
        let seq = self.low;
        self.low += 1;
        self.low_tag = entry.tag;
        if entry.pinned {
            self.pinned.push_back((seq, entry));
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
            held: Held::default(),
            full_until: AtomicU64::new(0),
            latest: AtomicU64::new(0),
            next_serial: AtomicU64::new(0),
        }
    }

    /// What [`read`](EventStore::read) tells of a log besides events; none when it is not there.
    pub(super) fn known(&self, key: &StreamKey) -> Option<LogPage> {
        let shard = self.shard(&key.session);
        let logs = shard.sessions.get(&key.session)?;
        let limit = ReadLimit { up_to: 0, events: 0, bytes: 0 };
        Some(logs.streams.get(&key.nonce)?.page(logs, 0, limit))
    }

    fn shard(&self, session: &str) -> MutexGuard<'_, Shard> {
        let at = self.hasher.hash_one(session) as usize % SHARDS;
        lock(&self.shards[at])
    }

    fn freed(&self, bytes: usize) {
        take(&self.held.bytes, bytes);
    }

    /// Counts the bytes of an append, and makes room for them. Returns them, for whoever [frees](Self::freed) them
    /// when they are counted with their log.
    ///
    /// # Errors
    /// [`StoreError::Full`]; then they are not counted.
    fn reserve(&self, now: Ms, key: &StreamKey, append: &Append) -> Result<usize, StoreError> {
        let is_new = append.first == 1 && self.known(key).is_none();
        let log = if is_new { LOG_OVERHEAD + append.about.len() } else { 0 };
        let is_end_alone = append.events.is_empty() && append.end.is_some();
        let bytes = if is_end_alone { 0 } else { log + cost(&append.events) };
        add(&self.held.bytes, bytes);
        // An end always finds room, and so does what needs none.
        if bytes == 0 || self.make_room(now) {
            return Ok(bytes);
        }
        self.freed(bytes);
        Err(StoreError::Full { max: self.limits.max_bytes })
    }

    /// Whether an append finds room.
    pub(super) fn check_room(&self, now: Ms, key: &StreamKey, append: &Append) -> Result<(), StoreError> {
        self.reserve(now, key, append).map(|bytes| self.freed(bytes))
    }

    /// Marks a log as finished, with its place in the order of all that are.
    fn set_finished(&self, now: Ms, key: &StreamKey, log: &mut Log, finished: &mut Finished) {
        let place = (now, self.next_serial.fetch_add(1, Ordering::Relaxed));
        log.finished = Some(place);
        finished.insert(place, key.clone());
    }

    /// Brings a log that was written back into its own bounds.
    fn trim_stream(&self, now: Ms, logs: &mut SessionLogs, nonce: StreamNonce) {
        let Some(log) = logs.streams.get_mut(&nonce) else { return };
        let oldest = seconds(now).saturating_sub(u32::try_from(self.limits.max_age_ms / 1_000).unwrap_or(u32::MAX));
        let is_over = |log: &Log| {
            log.events.len() + log.pinned.len() > self.limits.max_events_per_stream
                || log.bytes > self.limits.max_bytes_per_stream
                || (log.events.len() > 1 && log.events.front().is_some_and(|entry| entry.at < oldest))
        };
        let mut freed = 0;
        while is_over(log) {
            let Some(bytes) = self.free_one(log) else { break };
            freed += bytes;
        }
        logs.bytes -= freed;
        self.freed(freed);
    }

    /// Brings a session back into its bound: its streams that finished first go first, then the oldest
    /// events of its largest streams.
    fn trim_session(&self, shard: &mut Shard, written: &StreamKey) {
        let max = self.limits.max_bytes_per_session;
        let Some(logs) = shard.sessions.get(&written.session).filter(|logs| logs.bytes > max) else { return };
        let finished = logs.streams.iter().filter_map(|(nonce, log)| Some((log.finished?, *nonce, log.bytes)));
        let mut finished: Vec<_> = finished.filter(|(_, nonce, _)| *nonce != written.nonce).collect();
        finished.sort_unstable();
        // An eighth more than needed, so that the next events do not look through all streams again.
        let mut over = logs.bytes - (max - max / 8);
        for (_, nonce, bytes) in finished {
            self.remove(shard, &StreamKey { session: Arc::clone(&written.session), nonce });
            over = over.saturating_sub(bytes);
            if over == 0 {
                return;
            }
        }
        let Some(logs) = shard.sessions.get_mut(&written.session) else { return };
        while logs.bytes > max {
            let largest = logs.streams.values_mut().filter(|log| log.can_free()).max_by_key(|log| log.bytes);
            let Some(log) = largest else { return };
            let freed = self.free_quarter(log);
            logs.bytes -= freed;
            self.freed(freed);
        }
    }

    fn is_over(&self, max: usize) -> bool {
        self.held.bytes.load(Ordering::Relaxed) > max as u64
    }

    /// Brings the store back into its bound, if it is over it. No lock may be held. Whether it fits.
    ///
    /// An eighth more than needed goes, so that the next events do not look through the logs again.
    fn make_room(&self, now: Ms) -> bool {
        let max = self.limits.max_bytes;
        if !self.is_over(max) {
            return true;
        }
        if self.drop_finished(max - max / 8) || now.0 < self.full_until.load(Ordering::Relaxed) {
            return !self.is_over(max);
        }
        while self.is_over(max - max / 8) {
            if !self.trim_running(max - max / 8) {
                break;
            }
        }
        let fits = !self.is_over(max);
        if !fits {
            self.full_until.store((now + FULL_MS).0, Ordering::Relaxed);
        }
        fits
    }

    /// Frees logs that finished first until `max` is kept. Whether it is.
    fn drop_finished(&self, max: usize) -> bool {
        while self.is_over(max) {
            let oldest = (0..SHARDS)
                .filter_map(|at| lock(&self.shards[at]).finished.first_key_value().map(|(place, _)| (*place, at)))
                .min();
            let Some((_, at)) = oldest else { return false };
            let mut shard = lock(&self.shards[at]);
            if let Some((_, key)) = shard.finished.pop_first() {
                self.remove(&mut shard, &key);
            }
        }
        true
    }

    /// Frees the oldest events of logs that have no end, a quarter of each log, until `max` is kept. Whether any went.
    fn trim_running(&self, max: usize) -> bool {
        let mut logs = Vec::new();
        for (at, shard) in self.shards.iter().enumerate() {
            let shard = lock(shard);
            for (session, of_session) in &shard.sessions {
                let trimmable = of_session.streams.iter().filter(|(_, log)| log.can_free());
                logs.extend(trimmable.map(|(nonce, log)| (log.oldest(), at, Arc::clone(session), *nonce)));
            }
        }
        logs.sort_unstable_by_key(|(oldest, ..)| *oldest);
        let mut has_freed = false;
        for (_, at, session, nonce) in logs {
            if !self.is_over(max) {
                break;
            }
            let mut shard = lock(&self.shards[at]);
            let Some(of_session) = shard.sessions.get_mut(&session) else { continue };
            let Some(log) = of_session.streams.get_mut(&nonce) else { continue };
            let freed = self.free_quarter(log);
            of_session.bytes -= freed;
            self.freed(freed);
            has_freed |= freed > 0;
        }
        has_freed
    }

    /// Frees a quarter of a log, at least one event. Returns the bytes.
    fn free_quarter(&self, log: &mut Log) -> usize {
        let goal = log.bytes / 4;
        let mut freed = 0;
        while let Some(bytes) = self.free_one(log) {
            freed += bytes;
            if freed > 0 && freed >= goal {
                break;
            }
        }
        freed
    }

    /// Frees the oldest event that may go: pinned ones yield last, the newest event never does.
    /// Returns the bytes, 0 when the event is pinned from now on; none when nothing may go.
    fn free_one(&self, log: &mut Log) -> Option<usize> {
        if log.events.len() > 1 {
            add(&self.held.trimmed, 1);
            let freed = log.trim_one();
            take(&self.held.events, usize::from(freed > 0));
            return Some(freed);
        }
        let (_, entry) = log.pinned.pop_front()?;
        take(&self.held.events, 1);
        log.bytes -= entry.cost();
        Some(entry.cost())
    }

    fn remove(&self, shard: &mut Shard, key: &StreamKey) {
        let Some(logs) = shard.sessions.get_mut(&key.session) else { return };
        if let Some(log) = logs.streams.remove(&key.nonce) {
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
        take(&self.held.streams, 1);
        take(&self.held.events, log.events.len() + log.pinned.len());
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
        let mut added = 0;
        match append.judge(LogState { head, chain, is_finished })? {
            Verdict::Nothing if is_finished => return Ok(()),
            Verdict::Nothing | Verdict::Rest => {}
            Verdict::All => {
                for event in &append.events {
                    let StoredEvent { kind, tag, .. } = *event;
                    let pinned = matches!(kind, EventKind::Question | EventKind::Terminal);
                    log.events.push_back(Logged {
                        frame: Arc::clone(&event.frame),
                        tag,
                        at: seconds(now),
                        kind,
                        pinned,
                    });
                }
                log.chain = append.chain;
                added = cost(&append.events);
                add(&self.held.events, append.events.len());
            }
        }
        log.paced = append.paced.unwrap_or(log.paced);
        let is_answered = append.events.last().is_some_and(|last| last.kind == EventKind::Terminal);
        if is_answered || append.end.is_some() {
            self.set_finished(now, key, log, &mut shard.finished);
            log.events.shrink_to_fit();
        }
        if let Some(end) = &append.end {
            added += end.len();
            log.tail = Some(end.clone());
        }
        log.bytes += added;
        logs.bytes += added;
        add(&self.held.bytes, added);
        self.trim_stream(now, logs, key.nonce);
        self.trim_session(shard, key);
        Ok(())
    }

    /// Leaves a message for the session's owner, with the log of its answer, where that is not there.
    fn post(&self, logs: &mut SessionLogs, key: &StreamKey, message: &Message) -> Result<(), StoreError> {
        if logs.streams.contains_key(&key.nonce) {
            return Ok(());
        }
        check_inbox(logs.inbox.waiting.len(), logs.inbox.waiting_bytes, message)?;
        let bytes = LOG_OVERHEAD + message.about.len() + message.bytes();
        if self.held.bytes.load(Ordering::Relaxed) + bytes as u64 > self.limits.max_bytes as u64 {
            return Err(StoreError::Full { max: self.limits.max_bytes });
        }
        self.create(logs, key, &message.about);
        logs.inbox.last += 1;
        let number = logs.inbox.last;
        if let Some(log) = logs.streams.get_mut(&key.nonce) {
            log.posted = Some(Posted::Waits(number));
        }
        logs.inbox.waiting.insert(number, (key.nonce, message.clone()));
        logs.inbox.waiting_bytes += message.bytes();
        logs.bytes += message.bytes();
        add(&self.held.bytes, message.bytes());
        Ok(())
    }

    fn forget_waiting(&self, logs: &mut SessionLogs, number: u64) {
        if let Some(message) = logs.inbox.waiting.remove(&number) {
            logs.inbox.waiting_bytes -= message.1.bytes();
            self.forget_messages(logs, std::iter::once(message));
        }
    }

    /// These messages are not kept any more.
    fn forget_messages(&self, logs: &mut SessionLogs, messages: impl Iterator<Item = (StreamNonce, Message)>) {
        let bytes = messages.map(|(_, message)| message.bytes()).sum();
        logs.bytes -= bytes;
        self.freed(bytes);
    }

    /// Creates a log that is not there.
    fn create(&self, logs: &mut SessionLogs, key: &StreamKey, about: &Bytes) {
        if let Entry::Vacant(place) = logs.streams.entry(key.nonce) {
            let log = place.insert(Log::new(key, about.clone()));
            logs.bytes += log.bytes;
            add(&self.held.bytes, log.bytes);
            add(&self.held.streams, 1);
        }
    }
}

/// What events cost.
fn cost(events: &[StoredEvent]) -> usize {
    events.iter().map(|event| event.frame.len() + EVENT_OVERHEAD).sum()
}

impl EventStore for MemoryStore {
    fn hold(&self, session: &str, hold: &Hold, _ticket: &Ticket) -> Answer<Vec<RunningLog>> {
        let mut shard = self.shard(session);
        let Some(logs) = shard.sessions.get_mut(session) else {
            let is_taken = shard.taken.contains_key(session);
            let Some(record) = hold.record.clone().filter(|_| hold.seen.is_none() && !is_taken) else {
                return Answer::Now(Err(StoreError::Gone));
            };
            add(&self.held.sessions, 1);
            let logs = SessionLogs {
                record,
                epoch: hold.epoch,
                is_released: false,
                bytes: 0,
                streams: HashMap::new(),
                inbox: Inbox::default(),
            };
            shard.sessions.insert(session.into(), logs);
            return Answer::ok(Vec::new());
        };
        if logs.epoch != hold.epoch && hold.seen != Some(logs.epoch) {
            return Answer::Now(Err(StoreError::Fenced));
        }
        if logs.epoch != hold.epoch {
            let taken = std::mem::take(&mut logs.inbox.taken);
            self.forget_messages(logs, taken.into_values());
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
        let behind = logs.inbox.taken.split_off(&after.saturating_add(1));
        let done = std::mem::replace(&mut logs.inbox.taken, behind);
        self.forget_messages(logs, done.into_values());
        while logs.inbox.taken.len() < MAX_TAKEN
            && let Some((number, (nonce, message))) = logs.inbox.waiting.pop_first()
        {
            logs.inbox.waiting_bytes -= message.bytes();
            if let Some(log) = logs.streams.get_mut(&nonce) {
                log.posted = Some(Posted::Taken);
            }
            logs.inbox.taken.insert(number, (nonce, message));
        }
        let taken = logs.inbox.taken.iter();
        let taken =
            taken.map(|(number, (nonce, message))| Mail { number: *number, nonce: *nonce, message: message.clone() });
        Answer::ok(taken.collect())
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
        add(&self.held.bytes, end.len());
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
            take(&self.held.events, 1);
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
            take(&self.held.sessions, 1);
            logs.streams.values().for_each(|log| self.forgot(log));
            let messages = logs.inbox.waiting.values().chain(logs.inbox.taken.values());
            self.freed(messages.map(|(_, message)| message.bytes()).sum());
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
                let due = first.key().0 + self.limits.retention_ms;
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
            sessions: count(&self.held.sessions),
            streams: count(&self.held.streams),
            events: count(&self.held.events),
            bytes: count(&self.held.bytes),
            trimmed: count(&self.held.trimmed),
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
