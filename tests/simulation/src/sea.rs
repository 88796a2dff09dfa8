//! The simulated store: what all nodes share. It keeps to the letter of [`EventStore`]'s contract.
//!
//! [`EventStore`]: tailrope_core::store::EventStore

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use tailrope_checker::{Fact, Timed, Why, marks};
use tailrope_core::Ms;
use tailrope_core::protocol::RequestId;
use tailrope_core::store::{Outcome, ReadLimit, Record, SessionRecord, StoreError, StreamKey, session_name};
use tailrope_core::stream::{Chain, EventKind, Page, Seq, StoredEvent};

use crate::dice::Dice;
use crate::schedule::Setup;

/// What a store can be asked.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Open(Bytes),
    Append { events: Vec<StoredEvent>, chain_before: u64, chain: u64 },
    Finish(Bytes),
    SetRetry(u32),
    Read(Seq, ReadLimit),
    Record,
    Claim,
    Settle(Seq),
    DropStream,
    DropSession,
    PutSession(SessionRecord),
    Session,
}

impl Operation {
    /// Whether it is about the session as a whole.
    pub(crate) fn is_of_session(&self) -> bool {
        matches!(self, Self::DropSession | Self::PutSession(_) | Self::Session)
    }

    /// What a caller is told instead of an answer; none where it waits for none.
    pub(crate) fn failure(&self, error: StoreError) -> Option<Outcome> {
        match self {
            Self::Open(_) | Self::Append { .. } | Self::Finish(_) => Some(Outcome::Done(Err(error))),
            Self::Read(..) => Some(Outcome::Page(Err(error))),
            Self::Record => Some(Outcome::Record(Err(error))),
            Self::Session => Some(Outcome::Session(Err(error))),
            Self::Claim => Some(Outcome::Claimed(Err(error))),
            _ => None,
        }
    }

    /// Whether it holds the response of a request.
    pub(crate) fn has_end(&self) -> bool {
        match self {
            Self::Append { events, .. } => events.iter().any(|event| event.kind.is_response()),
            _ => false,
        }
    }
}

#[derive(Debug)]
struct Log {
    owner: usize,
    /// Positions `low` to the head.
    events: VecDeque<StoredEvent>,
    /// Events that outlived the trimmed prefix.
    pinned: VecDeque<StoredEvent>,
    settled: Vec<Seq>,
    low: Seq,
    low_tag: u32,
    chain: u64,
    /// The running hash at the ends of appends.
    chains: BTreeMap<Seq, u64>,
    finished: Option<Ms>,
    tail: Option<Bytes>,
    about: Bytes,
    claims: u64,
    retry_ms: Option<u32>,
    /// Somebody knows that its owner gives no sign.
    is_left: bool,
    /// The test's name for the stream.
    name: String,
}

impl Log {
    fn head(&self) -> Seq {
        self.low + self.events.len() as Seq - 1
    }

    fn tag_at(&self, seq: Seq) -> Option<u32> {
        if seq + 1 == self.low {
            return Some(self.low_tag);
        }
        let at = usize::try_from(seq.checked_sub(self.low)?).ok()?;
        self.events.get(at).map(|event| event.tag)
    }

    /// By prefix, but for what is pinned, which yields last; the newest stays.
    fn trim(&mut self, max: usize) -> bool {
        let mut trimmed = false;
        while self.events.len() + self.pinned.len() > max {
            if self.events.len() > 1 {
                let Some(event) = self.events.pop_front() else { break };
                (self.low, self.low_tag) = (event.seq + 1, event.tag);
                let is_open = event.kind == EventKind::Question && !self.settled.contains(&event.seq);
                if is_open || event.kind == EventKind::Terminal {
                    self.pinned.push_back(event);
                } else {
                    trimmed = true;
                }
            } else if self.pinned.pop_front().is_some() {
                trimmed = true;
            } else {
                break;
            }
        }
        trimmed
    }
}

struct Known {
    record: SessionRecord,
    created: Ms,
    owner: usize,
}

/// A hint on its way to a node.
#[derive(Clone, Debug)]
pub(crate) struct Hint {
    pub(crate) due: Ms,
    pub(crate) node: usize,
    pub(crate) key: StreamKey,
}

/// See the module.
pub(crate) struct Sea {
    pub(crate) now: Ms,
    pub(crate) facts: Vec<Timed>,
    pub(crate) hints: Vec<Hint>,
    pub(crate) hint_ms: u64,
    pub(crate) coverage: BTreeMap<&'static str, u64>,
    /// When each owner gave its last sign, and its node.
    pub(crate) owners: Vec<(Ms, usize)>,
    nodes: usize,
    logs: BTreeMap<(Arc<str>, [u8; 12]), Log>,
    sessions: BTreeMap<Arc<str>, Known>,
    /// The test's names for sessions, by what the store knows them by.
    names: BTreeMap<Arc<str>, String>,
    owner_lost_ms: u64,
    retention_ms: u64,
    max_events: usize,
    dice: Dice,
}

impl Sea {
    pub(crate) fn new(setup: &Setup) -> Self {
        Self {
            now: Ms(0),
            facts: Vec::new(),
            hints: Vec::new(),
            hint_ms: setup.hint_ms,
            coverage: BTreeMap::new(),
            owners: Vec::new(),
            nodes: setup.nodes as usize,
            logs: BTreeMap::new(),
            sessions: BTreeMap::new(),
            names: BTreeMap::new(),
            owner_lost_ms: setup.owner_lost_ms,
            retention_ms: setup.retention_ms,
            max_events: setup.max_events as usize,
            dice: Dice::new(setup.seed ^ 0x5EA),
        }
    }

    pub(crate) fn tell(&mut self, fact: Fact) {
        self.facts.push(Timed { at: Some(self.now.0), fact });
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.coverage.entry(what).or_default() += 1;
    }

    fn log(&mut self, key: &StreamKey) -> Option<&mut Log> {
        self.logs.get_mut(&(Arc::clone(&key.session), key.nonce.0))
    }

    /// A session has an id.
    pub(crate) fn named(&mut self, id: &str) {
        self.names.insert(session_name(id), id.to_owned());
    }

    /// `session` is the test's name for it, or what the store knows it by.
    pub(crate) fn gone(&mut self, session: &str, stream: Option<String>, why: Why) {
        let session = self.names.get(session).map_or(session, String::as_str).to_owned();
        self.tell(Fact::Gone { session, stream, why });
    }

    /// Others are told, some time.
    fn changed(&mut self, owner: usize, key: &StreamKey) {
        let own = self.owners[owner].1;
        for node in (0..self.nodes).filter(|node| *node != own) {
            let late = if self.hint_ms == 0 { 0 } else { self.dice.below(self.hint_ms) };
            self.hints.push(Hint { due: self.now + late, node, key: key.clone() });
        }
    }

    /// Does an operation of an owner. None where there is nothing to tell.
    pub(crate) fn perform(&mut self, owner: usize, key: &StreamKey, operation: &Operation) -> Option<Outcome> {
        let now = self.now;
        Some(match operation {
            Operation::Open(about) => {
                self.open(owner, key, about);
                Outcome::Done(Ok(()))
            }
            Operation::Append { events, chain_before, chain } => {
                Outcome::Done(self.append(owner, key, events, (*chain_before, *chain)))
            }
            Operation::Read(after, limit) => Outcome::Page(self.read(key, *after, *limit)),
            Operation::Record => Outcome::Record(Ok(self.record(owner, key))),
            Operation::Claim => Outcome::Claimed(self.claim(owner, key)),
            Operation::Session => Outcome::Session(Ok(self.sessions.get(&key.session).map(|known| SessionRecord {
                age_ms: now.since(known.created),
                unseen_ms: now.since(self.owners[known.owner].0),
                ..known.record.clone()
            }))),
            Operation::PutSession(record) => {
                let created = self.sessions.get(&key.session).map_or(now, |known| known.created);
                self.sessions.insert(Arc::clone(&key.session), Known { record: record.clone(), created, owner });
                return None;
            }
            Operation::Finish(tail) => Outcome::Done(self.finish(owner, key, tail)),
            Operation::SetRetry(retry_ms) => {
                if let Some(log) = self.log(key) {
                    log.retry_ms = Some(*retry_ms);
                }
                return None;
            }
            Operation::Settle(seq) => {
                if let Some(log) = self.log(key) {
                    log.settled.push(*seq);
                    log.pinned.retain(|event| event.seq != *seq || event.kind != EventKind::Question);
                }
                return None;
            }
            Operation::DropStream => {
                self.forget(owner, key, Why::StoreLost);
                return None;
            }
            Operation::DropSession => {
                self.drop_session(owner, &key.session);
                return None;
            }
        })
    }

    fn open(&mut self, owner: usize, key: &StreamKey, about: &Bytes) {
        let place = (Arc::clone(&key.session), key.nonce.0);
        if self.logs.contains_key(&place) {
            return;
        }
        let chain = Chain::start(&key.nonce.0);
        let log = Log {
            owner,
            events: VecDeque::new(),
            pinned: VecDeque::new(),
            settled: Vec::new(),
            low: 1,
            low_tag: chain.tag(),
            chain: chain.0,
            chains: BTreeMap::from([(0, chain.0)]),
            finished: None,
            tail: None,
            about: about.clone(),
            claims: 0,
            retry_ms: None,
            is_left: false,
            name: name_of(about),
        };
        self.logs.insert(place, log);
    }

    fn append(
        &mut self,
        owner: usize,
        key: &StreamKey,
        events: &[StoredEvent],
        (chain_before, chain): (u64, u64),
    ) -> Result<(), StoreError> {
        let (now, max) = (self.now, self.max_events);
        let log = self.log(key).ok_or(StoreError::Gone)?;
        let (Some(first), Some(last)) = (events.first(), events.last()) else { return Ok(()) };
        let next = log.head() + 1;
        if (log.head(), log.chain) == (last.seq, chain) {
            self.count("appends that were stored before");
            return Ok(());
        }
        let refused = if log.finished.is_some() {
            Some((StoreError::Gone, "appends after the end"))
        } else if log.owner != owner {
            Some((StoreError::Fenced, "appends fenced"))
        } else if next < first.seq || (next == first.seq && log.chain != chain_before) {
            Some((StoreError::RolledBack, "appends to a log that was set back"))
        } else if next > first.seq {
            Some((StoreError::OutOfOrder, "appends out of order"))
        } else {
            None
        };
        if let Some((error, what)) = refused {
            self.count(what);
            return Err(error);
        }
        log.events.extend(events.iter().cloned());
        log.chain = chain;
        log.chains.insert(last.seq, chain);
        if last.kind == EventKind::Terminal {
            log.finished = Some(now);
        }
        let trimmed = log.trim(max);
        if trimmed {
            self.count("logs trimmed");
        }
        for event in events {
            let text = String::from_utf8_lossy(&event.frame);
            for mark in marks(&text) {
                if let Some(log) = self.log(key).filter(|log| log.name != mark.stream) {
                    // One that was created again, after its request was answered.
                    log.name = mark.stream.to_owned();
                }
                let (session, stream) = (mark.session.to_owned(), mark.stream.to_owned());
                self.tell(Fact::Kept { session, stream, n: mark.n });
            }
        }
        self.changed(owner, key);
        Ok(())
    }

    fn finish(&mut self, owner: usize, key: &StreamKey, tail: &Bytes) -> Result<(), StoreError> {
        let (now, owner_lost_ms) = (self.now, self.owner_lost_ms);
        let seen: Vec<Ms> = self.owners.iter().map(|(seen, _)| *seen).collect();
        if let Some(name) =
            self.log(key).filter(|log| log.finished.is_some() && log.owner != owner).map(|l| l.name.clone())
        {
            // Its owner was faster, and whoever took it for gone has told the error already.
            self.count("ends that came too late");
            self.gone(&key.session, Some(name), Why::Unheard);
            return Ok(());
        }
        let log = self.log(key).ok_or(StoreError::Gone)?;
        if log.finished.is_some() {
            return Ok(());
        }
        let is_taken = log.owner != owner;
        if is_taken && now.since(seen[log.owner]) < owner_lost_ms {
            return Err(StoreError::Fenced);
        }
        (log.finished, log.owner, log.tail) = (Some(now), owner, Some(tail.clone()));
        if is_taken {
            self.count("logs ended for owners that are gone");
        }
        self.changed(owner, key);
        Ok(())
    }

    fn read(&mut self, key: &StreamKey, after: Seq, limit: ReadLimit) -> Result<Page, StoreError> {
        let log = self.log(key).ok_or(StoreError::Gone)?;
        let mut page = Page { events: Vec::new(), head: log.head(), low: log.low, tag_at: log.tag_at(after) };
        let mut bytes = 0;
        let wanted = log.pinned.iter().chain(&log.events).filter(|event| event.seq > after && event.seq <= limit.up_to);
        for event in wanted {
            let is_full = page.events.len() >= limit.events || (bytes > 0 && bytes + event.frame.len() > limit.bytes);
            if is_full {
                break;
            }
            bytes += event.frame.len();
            page.events.push(event.clone());
        }
        Ok(page)
    }

    fn record(&mut self, owner: usize, key: &StreamKey) -> Option<Record> {
        let now = self.now;
        let seen: Vec<Ms> = self.owners.iter().map(|(seen, _)| *seen).collect();
        let owner_lost_ms = self.owner_lost_ms;
        let log = self.log(key)?;
        let is_left = log.owner != owner && log.finished.is_none() && now.since(seen[log.owner]) >= owner_lost_ms;
        if is_left && !std::mem::replace(&mut log.is_left, true) {
            let name = log.name.clone();
            self.gone(&key.session, Some(name), Why::OwnerLost);
        }
        let log = self.log(key)?;
        Some(Record {
            head: log.head(),
            low: log.low,
            finished: log.finished.is_some(),
            tail: log.tail.clone(),
            chain: log.chain,
            about: log.about.clone(),
            claims: log.claims,
            retry_ms: log.retry_ms,
            owner_unseen_ms: (log.owner != owner).then(|| now.since(seen[log.owner])),
        })
    }

    fn claim(&mut self, owner: usize, key: &StreamKey) -> Result<u64, StoreError> {
        let log = self.log(key).ok_or(StoreError::Gone)?;
        log.claims += 1;
        let claims = log.claims;
        self.changed(owner, key);
        Ok(claims)
    }

    fn forget(&mut self, owner: usize, key: &StreamKey, why: Why) {
        if let Some(log) = self.logs.remove(&(Arc::clone(&key.session), key.nonce.0)) {
            self.gone(&key.session, Some(log.name), why);
            self.changed(owner, key);
        }
    }

    fn drop_session(&mut self, owner: usize, session: &Arc<str>) {
        self.sessions.remove(session);
        let keys: Vec<StreamKey> = self.logs.keys().filter(|(of, _)| of == session).map(key).collect();
        for key in keys {
            self.forget(owner, &key, Why::Ended);
        }
        self.gone(session, None, Why::Ended);
    }

    /// Retention. Returns when it is due next.
    pub(crate) fn sweep(&mut self) -> Ms {
        let (now, retention_ms) = (self.now, self.retention_ms);
        let mut next = Ms::NEVER;
        let mut over = Vec::new();
        for (place, log) in &self.logs {
            let Some(due) = log.finished.map(|finished| finished + retention_ms) else { continue };
            if due <= now {
                over.push(key(place));
            } else {
                next = next.min(due);
            }
        }
        for key in over {
            self.count("logs expired");
            let owner = self.log(&key).map_or(0, |log| log.owner);
            self.forget(owner, &key, Why::Expired);
        }
        next
    }

    /// The store loses what it held last of a stream, or the stream itself.
    pub(crate) fn roll_back(&mut self, session: &str, stream: &str, by: u64) {
        let name = session_name(session);
        let found = self.logs.iter().find(|((of, _), log)| **of == *name && log.name == *stream);
        let Some(key) = found.map(|(place, _)| key(place)) else { return };
        self.gone(session, Some(stream.to_owned()), Why::StoreLost);
        // Whose end is lost elsewhere than in its own process, nobody ends again: that is not asked for.
        let is_finished = self.log(&key).is_some_and(|log| log.finished.is_some());
        if by.is_multiple_of(4) || (is_finished && self.nodes > 1) {
            self.count("logs lost by the store");
            self.logs.remove(&(Arc::clone(&key.session), key.nonce.0));
            return;
        }
        let Some(log) = self.log(&key) else { return };
        let goal = log.head().saturating_sub(1 + by % 5).max(log.low - 1);
        let Some((seq, chain)) = log.chains.range(log.low - 1..=goal).next_back().map(|(seq, chain)| (*seq, *chain))
        else {
            return;
        };
        log.events.retain(|event| event.seq <= seq);
        log.pinned.retain(|event| event.seq <= seq);
        log.chains.retain(|at, _| *at <= seq);
        (log.chain, log.finished, log.tail) = (chain, None, None);
        self.count("logs set back");
    }
}

/// The test's name for the stream that is opened with this.
pub(crate) fn name_of(about: &Bytes) -> String {
    let requests = RequestId::decode_all(about).unwrap_or_default();
    requests.first().map_or_else(|| "standalone".to_owned(), |id| format!("r{}", id.as_text()))
}

fn key((session, nonce): &(Arc<str>, [u8; 12])) -> StreamKey {
    StreamKey { session: Arc::clone(session), nonce: tailrope_core::protocol::StreamNonce(*nonce) }
}
