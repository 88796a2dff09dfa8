//! What the file of a session holds, and how it changes. No file is touched here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use serde::{Deserialize, Serialize, Serializer};
use tailrope_core::protocol::{ListChanged, Revision, StreamNonce};
use tailrope_core::store::{
    Append, Chain, Epoch, EventKind, Hold, Limits, LogState, MAX_TAKEN, Mail, Message, Paced, Page, ReadLimit,
    RunningLog, Seq, SessionRecord, StoreError, StoredEvent, Verdict, check_inbox,
};

/// About how many bytes an event costs besides its frame.
const EVENT_COST: usize = 100;

/// What the file of a session holds. All times are in milliseconds since 1970: processes share them.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(super) struct Session {
    /// The store object that owns the session; none if the session was released.
    pub(super) owner: Option<String>,
    epoch: (u64, u64),
    record: Record,
    pub(super) written: u64,
    /// By the hexadecimal digits of their nonces.
    pub(super) logs: BTreeMap<String, Log>,
    /// How many messages have been posted.
    posted: u64,
}

/// The fields of [`SessionRecord`].
pub(super) type Record = (Option<String>, Option<Box<str>>, u32, [bool; 3], Option<[u8; 12]>, Raw);

#[derive(Clone, Default, Serialize, Deserialize)]
pub(super) struct Log {
    nonce: [u8; 12],
    pub(super) about: Raw,
    /// As `Paced::to_bytes` writes it.
    paced: Raw,
    pub(super) head: Seq,
    low: Seq,
    pub(super) chain: u64,
    pub(super) tail: Option<Raw>,
    pub(super) ended: Option<u64>,
    pub(super) readers: u64,
    pub(super) events: Vec<Event>,
    /// None for a log that the session's owner created.
    posted: Option<Posted>,
    /// The message that the log is the answer to, with its number, until it is forgotten.
    message: Option<(u64, Raw)>,
}

/// What became of a message.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Posted {
    Waits,
    Taken,
    Withdrawn,
}

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Event {
    pub(super) seq: Seq,
    kind: u8,
    tag: u32,
    written: u64,
    pub(super) is_settled: bool,
    frame: Raw,
}

/// Any bytes. In the file they are a string if they are valid UTF-8, so that most frames stay readable, and numbers
/// otherwise.
#[derive(Clone, Default, Deserialize)]
#[serde(from = "Written")]
pub(super) struct Raw(pub(super) Arc<[u8]>);

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<Written> for Raw {
    fn from(written: Written) -> Self {
        Self(match written {
            Written::Text(text) => text.into_bytes().into(),
            Written::Bytes(bytes) => bytes.into(),
        })
    }
}

impl Serialize for Raw {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match str::from_utf8(&self.0) {
            Ok(text) => text.serialize(serializer),
            Err(_) => self.0.serialize(serializer),
        }
    }
}

impl Event {
    fn new(event: &StoredEvent, written: u64) -> Self {
        let StoredEvent { seq, kind, tag, ref frame } = *event;
        Self { seq, kind: kind as u8, tag, written, is_settled: false, frame: Raw(Arc::clone(frame)) }
    }

    fn stored(&self) -> StoredEvent {
        StoredEvent { seq: self.seq, kind: self.kind(), tag: self.tag, frame: Arc::clone(&self.frame.0) }
    }

    fn kind(&self) -> EventKind {
        match self.kind {
            1 => EventKind::Answer,
            2 => EventKind::Question,
            3 => EventKind::Terminal,
            _ => EventKind::Progress,
        }
    }

    /// Whether the event survives trimming (rule 5).
    fn stays(&self) -> bool {
        self.kind() == EventKind::Terminal || (self.kind() == EventKind::Question && !self.is_settled)
    }

    fn bytes(&self) -> usize {
        self.frame.0.len() + EVENT_COST
    }
}

impl From<&Bytes> for Raw {
    fn from(bytes: &Bytes) -> Self {
        Self(bytes.as_ref().into())
    }
}

impl Raw {
    pub(super) fn bytes(&self) -> Bytes {
        Bytes::copy_from_slice(&self.0)
    }
}

impl Log {
    fn new(nonce: StreamNonce, about: &Bytes) -> Self {
        let (about, chain) = (Raw::from(about), Chain::start(&nonce.0).0);
        Self { nonce: nonce.0, about, low: 1, chain, ..Self::default() }
    }

    fn bytes(&self) -> usize {
        self.about.0.len() + self.events.iter().map(Event::bytes).sum::<usize>()
    }

    fn waits(&self) -> bool {
        self.posted == Some(Posted::Waits)
    }

    /// How many bytes the message costs while it waits or may be asked for again.
    fn message_bytes(&self) -> usize {
        self.message.as_ref().map_or(0, |(_, body)| self.about.0.len() + body.0.len())
    }

    /// Forgets the message if the owner has taken it and its number is `up_to` or less: the owner does not ask for it
    /// again.
    fn forget_message(&mut self, up_to: u64) {
        if self.posted == Some(Posted::Taken) && self.message.as_ref().is_some_and(|(number, _)| *number <= up_to) {
            self.message = None;
        }
    }

    pub(super) fn paced(&self) -> Paced {
        Paced::from_bytes(&self.paced.0).unwrap_or_default()
    }

    fn state(&self) -> LogState {
        LogState { head: self.head, chain: self.chain, is_finished: self.ended.is_some() }
    }

    /// Does what the verdict left to do.
    fn write(&mut self, append: &Append, verdict: Verdict, now: u64) {
        if verdict == Verdict::Nothing {
            return;
        }
        if self.waits() {
            (self.posted, self.message) = (Some(Posted::Taken), None);
        }
        if verdict == Verdict::All {
            self.events.extend(append.events.iter().map(|event| Event::new(event, now)));
            (self.head, self.chain) = (append.last(), append.chain);
        }
        if let Some(paced) = append.paced {
            self.paced = Raw(paced.to_bytes().as_slice().into());
        }
        self.tail = append.end.as_ref().map(Raw::from);
        let ends = self.tail.is_some() || append.events.iter().any(|event| event.kind == EventKind::Terminal);
        self.ended = ends.then_some(now);
    }

    /// Removes the oldest events, as far as the bounds ask for it. The newest event stays. Returns how many were
    /// removed.
    fn trim(&mut self, limits: &Limits, max_bytes: usize, now: u64) -> u64 {
        let (before, mut low) = (self.events.len(), self.low);
        let (mut count, mut bytes) = (before, self.bytes());
        for event in self.events.iter().filter(|event| event.seq >= self.low && event.seq < self.head) {
            let is_old = now.saturating_sub(event.written) > limits.max_age_ms;
            if count <= limits.max_events_per_stream && bytes <= max_bytes && !is_old {
                break;
            }
            low = event.seq + 1;
            if !event.stays() {
                (count, bytes) = (count - 1, bytes - event.bytes());
            }
        }
        self.low = low;
        self.events.retain(|event| event.seq >= low || event.stays());
        (before - self.events.len()) as u64
    }

    pub(super) fn page(&self, after: Seq, limit: ReadLimit) -> Page {
        let mut bytes = 0;
        let wanted = self.events.iter().filter(|event| event.seq > after && event.seq <= limit.up_to);
        let fitting = wanted.take(limit.events).enumerate().take_while(|(index, event)| {
            bytes += event.frame.0.len();
            *index == 0 || bytes <= limit.bytes
        });
        let events = fitting.map(|(_, event)| event.stored()).collect();
        Page { events, head: self.head, low: self.low, tag_at: self.tag_at(after) }
    }

    pub(super) fn tag_at(&self, seq: Seq) -> Option<u32> {
        if seq == 0 {
            return Some(Chain::start(&self.nonce).tag());
        }
        self.events.iter().find(|event| event.seq == seq).map(|event| event.tag)
    }
}

impl Session {
    /// Begins the session, keeps its record, or takes it over. See [`EventStore::hold`](tailrope_core::store::EventStore::hold).
    pub(super) fn hold(held: &mut Option<Self>, hold: &Hold, owner: &str) -> Result<Vec<RunningLog>, StoreError> {
        let epoch = (hold.epoch.number, hold.epoch.salt);
        if held.is_none() && hold.seen.is_none() && hold.record.is_some() {
            *held = Some(Self { epoch, ..Self::default() });
        }
        let session = held.as_mut().ok_or(StoreError::Gone)?;
        if session.epoch != epoch {
            if !hold.replaces(session.epoch()) {
                return Err(StoreError::Fenced);
            }
            session.epoch = epoch;
            session.logs.values_mut().for_each(|log| log.forget_message(u64::MAX));
        }
        hold.record.iter().for_each(|record| session.set(record));
        session.owner = Some(owner.to_owned());
        Ok(if hold.seen.is_some() { session.running() } else { Vec::new() })
    }

    /// Writes to a log. `room` bytes are left for events. Returns how many events were removed because of the bounds.
    pub(super) fn append(
        &mut self,
        nonce: StreamNonce,
        append: &Append,
        limits: &Limits,
        room: &mut usize,
    ) -> Result<u64, StoreError> {
        let (name, now) = (nonce.hex(), now());
        let state = match self.logs.get(&name) {
            Some(log) => log.state(),
            None if append.first == 1 => Log::new(nonce, &append.about).state(),
            None => return Err(StoreError::Gone),
        };
        let verdict = append.judge(state)?;
        if verdict == Verdict::All {
            let cost = cost(append);
            *room = room.checked_sub(cost).ok_or(StoreError::Full { max: limits.max_bytes })?;
            while self.bytes() + cost > limits.max_bytes_per_session && self.forget_oldest() {}
        }
        let others = self.logs.iter().filter(|(other, _)| **other != name).map(|(_, log)| log.bytes()).sum();
        let max_bytes = limits.max_bytes_per_session.saturating_sub(others).min(limits.max_bytes_per_stream);
        let log = self.logs.entry(name).or_insert_with(|| Log::new(nonce, &append.about));
        log.write(append, verdict, now);
        Ok(log.trim(limits, max_bytes, now))
    }

    /// Leaves a message for the owner, with the log of its answer. `room` bytes are left for it. If the log exists, the
    /// message was posted before, and nothing changes.
    pub(super) fn post(
        &mut self,
        nonce: StreamNonce,
        message: &Message,
        limits: &Limits,
        room: &mut usize,
    ) -> Result<(), StoreError> {
        let (name, about) = (nonce.hex(), &message.about);
        if self.logs.contains_key(&name) {
            return Ok(());
        }
        let waiting = || self.logs.values().filter(|log| log.waits());
        check_inbox(waiting().count(), waiting().map(Log::message_bytes).sum(), message)?;
        *room = room.checked_sub(message.bytes()).ok_or(StoreError::Full { max: limits.max_bytes })?;
        self.posted += 1;
        let (posted, body) = (Some(Posted::Waits), Raw::from(&message.body));
        let message = Some((self.posted, body));
        self.logs.insert(name, Log { posted, message, ..Log::new(nonce, about) });
        Ok(())
    }

    /// The messages that the owner has taken, except those with a number up to `after`, and then those that wait.
    pub(super) fn take(&mut self, after: u64) -> Vec<Mail> {
        self.logs.values_mut().for_each(|log| log.forget_message(after));
        let left = self.logs.values_mut().filter_map(|log| Some((log.message.clone()?, log)));
        let mut left: Vec<_> = left.collect();
        // Messages that were taken came before those that wait.
        left.sort_unstable_by_key(|((number, _), _)| *number);
        let told = left.into_iter().take(MAX_TAKEN).map(|((number, body), log)| {
            log.posted = Some(Posted::Taken);
            let message = Message { about: log.about.bytes(), body: body.bytes() };
            Mail { number, nonce: StreamNonce(log.nonce), message }
        });
        told.collect()
    }

    /// Ends the log of a message that still waits. Returns whether the message is withdrawn, now or before.
    pub(super) fn withdraw(&mut self, nonce: StreamNonce, end: &Bytes) -> Result<bool, StoreError> {
        let log = self.logs.get_mut(&nonce.hex()).ok_or(StoreError::Gone)?;
        if log.waits() {
            (log.posted, log.message) = (Some(Posted::Withdrawn), None);
            (log.tail, log.ended) = (Some(Raw::from(end)), Some(now()));
        }
        Ok(log.posted == Some(Posted::Withdrawn))
    }

    pub(super) fn has_mail(&self) -> bool {
        self.logs.values().any(Log::waits)
    }

    pub(super) fn nonces(&self) -> impl Iterator<Item = StreamNonce> {
        self.logs.values().map(|log| StreamNonce(log.nonce))
    }

    fn set(&mut self, record: &SessionRecord) {
        let SessionRecord { revision, principal, retry_ms, list_changed, standalone, note } = record.clone();
        let ListChanged { tools, prompts, resources } = list_changed;
        let revision = revision.map(|revision| revision.as_str().to_owned());
        self.record = (
            revision,
            principal,
            retry_ms,
            [tools, prompts, resources],
            standalone.map(|nonce| nonce.0),
            Raw(note[..].into()),
        );
    }

    pub(super) fn record(&self) -> SessionRecord {
        let (revision, principal, retry_ms, [tools, prompts, resources], standalone, note) = self.record.clone();
        SessionRecord {
            revision: revision.as_deref().and_then(Revision::parse),
            principal,
            retry_ms,
            list_changed: ListChanged { tools, prompts, resources },
            standalone: standalone.map(StreamNonce),
            note: note.bytes(),
        }
    }

    pub(super) fn epoch(&self) -> Epoch {
        Epoch { number: self.epoch.0, salt: self.epoch.1 }
    }

    pub(super) fn bytes(&self) -> usize {
        self.logs.values().map(|log| log.bytes() + log.message_bytes()).sum()
    }

    fn running(&self) -> Vec<RunningLog> {
        let running = self.logs.values().filter(|log| log.ended.is_none() && !log.waits());
        running
            .map(|log| {
                let (nonce, about) = (StreamNonce(log.nonce), log.about.bytes());
                RunningLog { nonce, head: log.head, chain: log.chain, about }
            })
            .collect()
    }

    /// Forgets the log that ended first; false when none has ended.
    fn forget_oldest(&mut self) -> bool {
        let ended = self.logs.iter().filter_map(|(name, log)| Some((log.ended?, name.clone())));
        ended.min().is_some_and(|(_, name)| self.logs.remove(&name).is_some())
    }
}

/// The session, for its owner: only the owner may change it (rule 12).
pub(super) fn owned(session: &mut Option<Session>, epoch: Epoch) -> Result<&mut Session, StoreError> {
    let session = session.as_mut().ok_or(StoreError::Gone)?;
    if session.epoch() == epoch { Ok(session) } else { Err(StoreError::Fenced) }
}

/// What the events of an append cost, in bytes.
pub(super) fn cost(append: &Append) -> usize {
    append.events.iter().map(|event| event.frame.len() + EVENT_COST).sum()
}

pub(super) fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis().try_into().unwrap_or(u64::MAX)
}
