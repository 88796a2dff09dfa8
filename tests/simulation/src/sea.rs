//! The simulated store: what all nodes share. It keeps to the letter of [`EventStore`]'s contract.
//!
//! [`EventStore`]: tailrope_core::store::EventStore

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use tailrope_checker::{Fact, Timed, Why, marks};
use tailrope_core::Ms;
use tailrope_core::protocol::RequestId;
use tailrope_core::store::{Append, Outcome, ReadLimit, Record, SessionRecord, StoreError, StreamKey, session_name};
use tailrope_core::stream::{Chain, EventKind, Page, Seq, StoredEvent};

use crate::dice::Dice;
use crate::owners::Owners;
use crate::schedule::Setup;

/// What a store can be asked.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Append(Append),
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
            Self::Append(_) => Some(Outcome::Done(Err(error))),
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
            Self::Append(append) => append.events.iter().any(|event| event.kind.is_response()),
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
    fn new(owner: usize, key: &StreamKey, about: &Bytes) -> Self {
        let chain = Chain::start(&key.nonce.0);
        Self {
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

/// What wall clocks show at the beginning.
const WALL_MS: u64 = 1 << 40;

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
    pub(crate) owners: Owners,
    /// How far the nodes' wall clocks are ahead of `now`.
    walls: Vec<u64>,
    logs: BTreeMap<(Arc<str>, [u8; 12]), Log>,
    sessions: BTreeMap<Arc<str>, Known>,
    /// The test's names for sessions, by what the store knows them by.
    names: BTreeMap<Arc<str>, String>,
    owner_lost_ms: Vec<u64>,
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
            owners: Owners::default(),
            walls: vec![WALL_MS; setup.nodes as usize],
            logs: BTreeMap::new(),
            sessions: BTreeMap::new(),
            names: BTreeMap::new(),
            owner_lost_ms: setup.owner_lost_ms.to_vec(),
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
        let own = self.owners.node(owner);
        for node in (0..self.walls.len()).filter(|node| *node != own) {
            let late = if self.hint_ms == 0 { 0 } else { self.dice.below(self.hint_ms) };
            self.hints.push(Hint { due: self.now + late, node, key: key.clone() });
        }
    }

    /// Does an operation of an owner. None where there is nothing to tell.
    pub(crate) fn perform(&mut self, owner: usize, key: &StreamKey, operation: &Operation) -> Option<Outcome> {
        Some(match operation {
            Operation::Append(append) => Outcome::Done(self.append(owner, key, append)),
            Operation::Read(after, limit) => Outcome::Page(self.read(key, *after, *limit)),
            Operation::Record => Outcome::Record(Ok(self.record(owner, key))),
            Operation::Claim => Outcome::Claimed(self.claim(owner, key)),
            Operation::Session => Outcome::Session(Ok(self.session(owner, &key.session))),
            Operation::PutSession(record) => {
                let wall = self.wall(owner);
                let created = self.sessions.get(&key.session).map_or(wall, |known| known.created);
                self.sessions.insert(Arc::clone(&key.session), Known { record: record.clone(), created, owner });
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

    /// A store object begins to use the store.
    pub(crate) fn join(&mut self, node: usize) -> usize {
        self.owners.add(node, self.owner_lost_ms[node], self.now)
    }

    /// What an owner's wall clock shows.
    fn wall(&self, owner: usize) -> Ms {
        self.now + self.walls[self.owners.node(owner)]
    }

    pub(crate) fn set_clock(&mut self, node: usize, ms: u64, is_back: bool) {
        let wall = &mut self.walls[node];
        *wall = if is_back { wall.saturating_sub(ms) } else { *wall + ms };
    }

    fn append(&mut self, owner: usize, key: &StreamKey, append: &Append) -> Result<(), StoreError> {
        let Append { first, events, chain_before, chain, about, end, retry_ms, .. } = append;
        if *first == 1 {
            let place = (Arc::clone(&key.session), key.nonce.0);
            self.logs.entry(place).or_insert_with(|| Log::new(owner, key, about));
        }
        let (now, wall, max) = (self.now, self.wall(owner), self.max_events);
        let log = self.log(key).ok_or(StoreError::Gone)?;
        let (of, head, log_chain, is_finished) = (log.owner, log.head(), log.chain, log.finished.is_some());
        let is_there = (head + 1, log_chain) == (first + events.len() as Seq, *chain);
        if is_there && (is_finished || (end.is_none() && retry_ms.is_none())) {
            self.count("appends that were stored before");
            return Ok(());
        }
        let is_heir = of != owner && events.is_empty() && end.is_some();
        let is_mine = of == owner || (is_heir && self.owners.look(owner, of, now).is_lost);
        let refused = if is_finished {
            Some((StoreError::Gone, "appends after the end"))
        } else if !is_mine {
            Some((StoreError::Fenced, "appends fenced"))
        } else if is_there || events.is_empty() {
            None
        } else if head + 1 < *first || (head + 1 == *first && log_chain != *chain_before) {
            Some((StoreError::RolledBack, "appends to a log that was set back"))
        } else if head + 1 > *first {
            Some((StoreError::OutOfOrder, "appends out of order"))
        } else {
            None
        };
        if let Some((error, what)) = refused {
            self.count(what);
            return Err(error);
        }
        if is_heir {
            self.count("logs ended for owners that are gone");
        }
        let log = self.log(key).ok_or(StoreError::Gone)?;
        let new = if is_there { &[] } else { &events[..] };
        if let Some(last) = new.last() {
            log.events.extend(new.iter().cloned());
            log.chain = *chain;
            log.chains.insert(last.seq, *chain);
        }
        log.retry_ms = retry_ms.or(log.retry_ms);
        if end.is_some() || new.last().is_some_and(|last| last.kind == EventKind::Terminal) {
            (log.finished, log.owner, log.tail) = (Some(wall), owner, end.clone());
        }
        if log.trim(max) {
            self.count("logs trimmed");
        }
        for event in new {
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
        if !new.is_empty() || end.is_some() {
            self.changed(owner, key);
        }
        Ok(())
    }

    fn session(&mut self, owner: usize, session: &str) -> Option<SessionRecord> {
        let (now, wall) = (self.now, self.wall(owner));
        let known = self.sessions.get(session)?;
        let unseen_ms = self.owners.look(owner, known.owner, now).unseen_ms;
        Some(SessionRecord { age_ms: wall.since(known.created), unseen_ms, ..known.record.clone() })
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
        let (now, log) = (self.now, self.log(key)?);
        let (of, is_open, is_left) = (log.owner, log.finished.is_none(), log.is_left);
        let look = (of != owner).then(|| self.owners.look(owner, of, now));
        if look.as_ref().is_some_and(|look| look.is_spared && is_open) {
            self.count("owners spared by those who look");
        }
        // An owner that has done nothing wrong is not to be taken for lost.
        if !is_left && is_open && look.as_ref().is_some_and(|look| look.is_lost && look.has_failed) {
            let log = self.log(key)?;
            log.is_left = true;
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
            owner_unseen_ms: look.map(|look| look.unseen_ms),
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
    pub(crate) fn sweep(&mut self, owner: usize) -> Ms {
        let (now, wall, retention_ms) = (self.now, self.wall(owner), self.retention_ms);
        let mut next = Ms::NEVER;
        let mut over = Vec::new();
        for (place, log) in &self.logs {
            let Some(due) = log.finished.map(|finished| finished + retention_ms) else { continue };
            if due <= wall {
                over.push(key(place));
            } else {
                next = next.min(now + due.since(wall));
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
        if by.is_multiple_of(4) || (is_finished && self.walls.len() > 1) {
            self.count("logs lost by the store");
            self.logs.remove(&(Arc::clone(&key.session), key.nonce.0));
            return;
        }
        let Some(log) = self.log(&key) else { return };
        let owner = log.owner;
        let goal = log.head().saturating_sub(1 + by % 5).max(log.low - 1);
        let Some((seq, chain)) = log.chains.range(log.low - 1..=goal).next_back().map(|(seq, chain)| (*seq, *chain))
        else {
            return;
        };
        log.events.retain(|event| event.seq <= seq);
        log.pinned.retain(|event| event.seq <= seq);
        log.chains.retain(|at, _| *at <= seq);
        (log.chain, log.finished, log.tail) = (chain, None, None);
        self.owners.set_back(owner, by % 5, self.now);
        self.count("logs set back");
    }
}

/// The test's name for the stream that is opened with this.
fn name_of(about: &Bytes) -> String {
    let requests = RequestId::decode_all(about).unwrap_or_default();
    requests.first().map_or_else(|| "standalone".to_owned(), |id| format!("r{}", id.as_text()))
}

fn key((session, nonce): &(Arc<str>, [u8; 12])) -> StreamKey {
    StreamKey { session: Arc::clone(session), nonce: tailrope_core::protocol::StreamNonce(*nonce) }
}
