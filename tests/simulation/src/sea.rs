//! The simulated store: what all nodes share. It keeps to the letter of [`EventStore`]'s contract.
//!
//! [`EventStore`]: tailrope_core::store::EventStore

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tailrope_checker::{Fact, Timed, Why, marks};
use tailrope_core::Ms;
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::{
    Append, Attach, Attached, AttachedLog, Epoch, Hold, LogPage, LogState, Outcome, Owner, ReadLimit, RunningLog,
    StoreError, StreamKey, Usage, Verdict, session_name,
};
use tailrope_core::stream::{EventKind, Seq, StoredEvent};

use crate::dice::Dice;
use crate::log::{Log, Version};
use crate::operation::Operation;
use crate::owners::Owners;
use crate::schedule::Setup;
use crate::session::{Held, Session};

/// The name of the logs that are no streams: of messages without an answer.
pub(crate) const MESSAGE: &str = "message";
/// What wall clocks show at the beginning.
const WALL_MS: u64 = 1 << 40;

/// A hint on its way to a node.
#[derive(Clone, Debug)]
pub(crate) struct Hint {
    pub(crate) due: Ms,
    pub(crate) node: usize,
    pub(crate) news: News,
}

/// What may have changed.
#[derive(Clone, Debug)]
pub(crate) enum News {
    Log(StreamKey),
    /// A message waits for the owner of the session.
    Posted(Arc<str>),
    Session(Arc<str>),
    Anything,
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
    pub(crate) sessions: BTreeMap<Arc<str>, Session>,
    /// The names of sessions that were dropped and had several owners, and until when these stay taken.
    pub(crate) taken: BTreeMap<Arc<str>, Ms>,
    /// The sessions of which something was lost.
    pub(crate) set_back: BTreeSet<Arc<str>>,
    /// Logs that expired, by session and name.
    expired: BTreeSet<(Arc<str>, String)>,
    /// Counts what readers and closes do to logs.
    pub(crate) steps: u64,
    /// The test's names for sessions, by what the store knows them by.
    names: BTreeMap<Arc<str>, String>,
    owner_lost_ms: Vec<u64>,
    pub(crate) retention_ms: u64,
    max_age_ms: u64,
    max_events: usize,
    pub(crate) max_inbox: usize,
    trimmed: u64,
    dice: Dice,
}

/// No schedule of this length has so much to tell.
const MAX_FACTS: usize = 100_000;

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
            sessions: BTreeMap::new(),
            taken: BTreeMap::new(),
            set_back: BTreeSet::new(),
            expired: BTreeSet::new(),
            steps: 0,
            names: BTreeMap::new(),
            owner_lost_ms: setup.owner_lost_ms.to_vec(),
            retention_ms: setup.retention_ms,
            max_age_ms: setup.max_age_ms,
            max_events: setup.max_events as usize,
            max_inbox: setup.max_inbox as usize,
            trimmed: 0,
            dice: Dice::new(setup.seed ^ 0x5EA),
        }
    }

    pub(crate) fn tell(&mut self, fact: Fact) {
        assert!(self.facts.len() < MAX_FACTS, "it goes round in circles");
        self.facts.push(Timed { at: Some(self.now.0), fact });
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.coverage.entry(what).or_default() += 1;
    }

    /// Whether a session, by the test's name for it, was taken from this process when it might be.
    pub(crate) fn is_inherited(&self, session: &str, owner: usize) -> bool {
        self.sessions.get(&session_name(session)).is_some_and(|known| known.robbed.contains(&owner))
    }

    /// Whether this process has the session, also where the store forgot that.
    pub(crate) fn is_owned_by(&self, session: &str, owner: usize) -> bool {
        let known = self.sessions.get(&session_name(session));
        known.is_some_and(|known| known.held.owner == owner || known.forgotten.contains(&owner))
    }

    /// The store object of the process that has the session; none of one that was let go.
    pub(crate) fn owner_of(&self, session: &str) -> Option<usize> {
        self.sessions.get(&session_name(session)).and_then(Session::owner)
    }

    /// Whether the log of a stream is over.
    pub(crate) fn has_expired(&self, session: &str, stream: &str) -> bool {
        self.expired.contains(&(session_name(session), stream.to_owned()))
    }

    /// Whether the store has lost anything of a session, by the test's name for it.
    pub(crate) fn was_set_back(&self, session: &str) -> bool {
        self.set_back.contains(&session_name(session))
    }

    /// Whether nobody is to begin a request any more.
    pub(crate) fn is_withdrawn(&self, session: &str, stream: &str) -> bool {
        self.sessions.get(&session_name(session)).is_some_and(|known| {
            let log = known.logs.iter().find(|(_, log)| log.name == stream);
            log.is_some_and(|(nonce, _)| known.inbox.is_withdrawn(nonce))
        })
    }

    pub(crate) fn has_session(&self, session: &str) -> bool {
        self.sessions.contains_key(&session_name(session))
    }

    /// Whether a reader that is at a store object, and came with this step, was there before the log said that such readers are
    /// closed. One that comes while the store fails is not counted, so the last count may be of another one.
    pub(crate) fn is_closed_at(&self, session: &str, stream: &str, observer: usize, came: u64) -> bool {
        self.sessions.get(&session_name(session)).is_some_and(|known| {
            let log = known.logs.values().find(|log| log.name == stream);
            known.held.owner != observer && log.is_some_and(|log| log.is_closed_at(observer, came))
        })
    }

    pub(crate) fn log(&mut self, key: &StreamKey) -> Option<&mut Log> {
        self.sessions.get_mut(&key.session)?.logs.get_mut(&key.nonce.0)
    }

    /// Whether the session has this epoch.
    fn has_epoch(&self, session: &str, epoch: Epoch) -> bool {
        self.sessions.get(session).is_some_and(|known| known.held.epoch == epoch)
    }

    /// A session has an id.
    pub(crate) fn named(&mut self, id: &str) {
        self.names.insert(session_name(id), id.to_owned());
    }

    /// `session` is the test's name for it, or what the store knows it by.
    pub(crate) fn gone(&mut self, session: &str, stream: Option<String>, why: Why) {
        if stream.as_deref() == Some(MESSAGE) {
            return;
        }
        // The checker knows sessions of clients, and no tasks.
        let session = self.name_of(session);
        if self.names.values().any(|known| *known == session) {
            self.tell(Fact::Gone { session, stream, why });
        }
    }

    pub(crate) fn name_of(&self, session: &str) -> String {
        self.names.get(session).map_or(session, String::as_str).to_owned()
    }

    /// The other store objects of these are told some time of what `by` did (rule 13), and nobody else.
    pub(crate) fn changed(&mut self, by: usize, news: &News, concerns: &BTreeSet<usize>) {
        for other in concerns.iter().filter(|other| **other != by) {
            if self.owners.is_there(*other) {
                self.hint(self.owners.node(*other), news);
            }
        }
    }

    fn hint(&mut self, node: usize, news: &News) {
        let late = if self.hint_ms == 0 { 0 } else { self.dice.below(self.hint_ms) };
        self.hints.push(Hint { due: self.now + late, node, news: news.clone() });
    }

    pub(crate) fn hint_all(&mut self) {
        (0..self.walls.len()).for_each(|node| self.hint(node, &News::Anything));
    }

    /// Does an operation of an owner. None where there is nothing to tell.
    pub(crate) fn perform(&mut self, owner: usize, key: &StreamKey, operation: &Operation) -> Option<Outcome> {
        match operation {
            Operation::Hold(hold) => return Some(Outcome::Held(self.hold(owner, key, hold))),
            Operation::Append(epoch, append) => {
                return Some(Outcome::Done(self.append(owner, key, *epoch, append)));
            }
            Operation::Attach(attach) => return Some(Outcome::Attached(self.attach(owner, key, attach))),
            Operation::Read(after, limit) => return Some(Outcome::Page(self.read(owner, key, *after, *limit))),
            Operation::Take(epoch, after) => {
                return Some(Outcome::Taken(self.take(&key.session, *epoch, *after)));
            }
            Operation::Withdraw(end) => return Some(Outcome::Withdrawn(self.withdraw(owner, key, end))),
            Operation::Release(epoch)
            | Operation::Settle(epoch, _)
            | Operation::DropStream(epoch)
            | Operation::DropSession(epoch)
                if !self.has_epoch(&key.session, *epoch) => {}
            Operation::Release(_) => {
                let now = self.now;
                if let Some(known) = self.sessions.get_mut(&key.session) {
                    known.set(now, Held { is_released: true, ..known.held.clone() });
                    known.is_left = true;
                }
            }
            Operation::Settle(_, seq) => {
                let settled = self.log(key).map(|log| log.settle(*seq)).unwrap_or_default();
                self.dropped(&settled);
            }
            Operation::DropStream(_) => self.forget(owner, key, Why::StoreLost),
            Operation::DropSession(_) => self.drop_session(owner, &key.session),
        }
        None
    }

    /// A store object begins to use the store.
    pub(crate) fn join(&mut self, node: usize) -> usize {
        self.owners.add(node, self.owner_lost_ms[node], self.now)
    }

    /// What an owner's wall clock shows.
    pub(crate) fn wall(&self, owner: usize) -> Ms {
        self.now + self.walls[self.owners.node(owner)]
    }

    pub(crate) fn set_clock(&mut self, node: usize, ms: u64, is_back: bool) {
        let wall = &mut self.walls[node];
        *wall = if is_back { wall.saturating_sub(ms) } else { *wall + ms };
    }

    fn hold(&mut self, owner: usize, key: &StreamKey, hold: &Hold) -> Result<Vec<RunningLog>, StoreError> {
        let Hold { epoch, seen, record } = hold;
        let now = self.now;
        let Some(known) = self.sessions.get_mut(&key.session) else {
            if self.taken.contains_key(&key.session) {
                self.count("sessions that are not brought back");
                return Err(StoreError::Gone);
            }
            let record = record.clone().filter(|_| seen.is_none()).ok_or(StoreError::Gone)?;
            let held = Held { record, epoch: *epoch, owner, is_released: false };
            let (before, is_left, robbed, forgotten, written, logs, lost, inbox) = Default::default();
            let new = Session { held, before, is_left, robbed, forgotten, written, logs, lost, inbox };
            self.sessions.insert(Arc::clone(&key.session), new);
            return Ok(Vec::new());
        };
        let is_same = known.held.epoch == *epoch;
        if !is_same && !hold.replaces(known.held.epoch) {
            self.count(if seen.is_some() { "heirs that came second" } else { "owners that came back" });
            return Err(StoreError::Fenced);
        }
        let is_again = !is_same && *seen == Some(*epoch);
        let is_left = known.is_left && !is_same;
        // Nobody's, once it is let go.
        let before: BTreeSet<usize> = known.owner().into_iter().collect();
        if !is_same {
            known.inbox.has_new_owner(now);
            let robbed = std::mem::take(&mut known.forgotten).into_iter().chain([known.held.owner]);
            known.robbed.extend(robbed.filter(|_| is_left));
        }
        known.robbed.remove(&owner);
        let record = record.as_ref().unwrap_or(&known.held.record).clone();
        known.set(now, Held { record, epoch: *epoch, owner, is_released: false });
        // Who saw that its owner gave no sign may be about to take it, also when the owner is back by now.
        known.is_left &= is_same;
        if seen.is_none() {
            return Ok(Vec::new());
        }
        let running = known.logs.iter().filter(|(nonce, log)| !log.is_finished() && !known.inbox.has_waiting(nonce));
        let (names, running): (Vec<_>, Vec<_>) = running
            .map(|(nonce, log)| {
                let (head, chain, about) = (log.head(), log.now().chain, log.about.clone());
                (log.name.clone(), RunningLog { nonce: StreamNonce(*nonce), head, chain, about })
            })
            .unzip();
        if !is_same {
            self.count(if is_again { "sessions that their owners have again" } else { "sessions taken over" });
        }
        self.changed(owner, &News::Session(Arc::clone(&key.session)), &before);
        // Whose owner has done nothing wrong has no end but its own.
        for name in names.into_iter().filter(|_| is_left) {
            self.gone(&key.session, Some(name), Why::OwnerLost);
        }
        Ok(running)
    }

    fn append(&mut self, owner: usize, key: &StreamKey, epoch: Epoch, append: &Append) -> Result<(), StoreError> {
        let Append { first, events, chain, about, end, paced, .. } = append;
        let (now, wall, max) = (self.now, self.wall(owner), self.max_events);
        let known = self.sessions.get_mut(&key.session).ok_or(StoreError::Gone)?;
        if known.held.epoch != epoch {
            self.count("appends fenced");
            return Err(StoreError::Fenced);
        }
        assert!(!known.is_written_by_two(), "two owners with one number write");
        if *first == 1 {
            known.logs.entry(key.nonce.0).or_insert_with(|| Log::new(key, about, now));
        }
        let log = known.logs.get_mut(&key.nonce.0).ok_or(StoreError::Gone)?;
        let (before, is_finished) = (log.now().clone(), log.is_finished());
        let new = match append.judge(LogState { head: before.head, chain: before.chain, is_finished }) {
            Ok(Verdict::Nothing) => {
                self.count("appends that were stored before");
                return Ok(());
            }
            Ok(Verdict::Rest) => &[],
            Ok(Verdict::All) => &events[..],
            Err(error) => {
                self.count(match error {
                    StoreError::Gone => "appends after the end",
                    StoreError::RolledBack => "appends to a log that was set back",
                    _ => "appends out of order",
                });
                return Err(error);
            }
        };
        let is_end = end.is_some() || new.last().is_some_and(|last| last.kind == EventKind::Terminal);
        let (head, chain) = new.last().map_or((before.head, before.chain), |last| (last.seq, *chain));
        let (finished, tail) = (is_end.then_some(wall), end.clone());
        let paced = paced.unwrap_or(before.paced);
        log.add(new, Version { at: now, head, chain, finished, tail, paced });
        let trimmed = log.trim(max);
        let followers = log.followers.clone();
        known.inbox.answered(&key.nonce.0, now);
        if end.is_some() && epoch.number > 1 {
            self.count("logs ended by heirs");
        }
        if !trimmed.is_empty() {
            self.trimmed += trimmed.len() as u64;
            self.count("logs trimmed");
        }
        if paced.closes > before.paced.closes {
            self.steps += 1;
            let step = self.steps;
            if let Some(log) = self.log(key) {
                log.closed = Some(step);
            }
            self.count("closes of readers elsewhere");
        }
        for event in new {
            for mark in marks(&String::from_utf8_lossy(&event.frame)) {
                if let Some(log) = self.log(key).filter(|log| log.name != mark.stream) {
                    // One that was created again, after its request was answered.
                    log.name = mark.stream.to_owned();
                }
                let (session, stream) = (mark.session.to_owned(), mark.stream.to_owned());
                self.tell(Fact::Kept { session, stream, n: mark.n });
            }
        }
        self.dropped(&trimmed);
        self.note_restored(key);
        if !new.is_empty() || end.is_some() || append.paced.is_some() {
            self.changed(owner, &News::Log(key.clone()), &followers);
        }
        Ok(())
    }

    /// A bound has dropped these events.
    fn dropped(&mut self, events: &[StoredEvent]) {
        for event in events {
            for mark in marks(&String::from_utf8_lossy(&event.frame)) {
                let (session, stream) = (mark.session.to_owned(), mark.stream.to_owned());
                self.tell(Fact::Dropped { session, stream, n: mark.n });
            }
        }
    }

    /// The owner of a session, as another sees it.
    fn owner(&mut self, observer: usize, session: &str) -> Option<Owner> {
        let now = self.now;
        let known = self.sessions.get_mut(session)?;
        let epoch = known.held.epoch;
        if known.held.is_released {
            return Some(Owner { epoch, unseen_ms: u64::MAX });
        }
        if known.held.owner == observer {
            return None;
        }
        let look = self.owners.look(observer, known.held.owner, now);
        // An owner that has done nothing wrong is not to be taken for lost.
        known.is_left |= look.is_lost && look.has_failed;
        if look.is_spared && known.logs.values().any(|log| !log.is_finished()) {
            self.count("owners spared by those who look");
        }
        Some(Owner { epoch, unseen_ms: look.unseen_ms })
    }

    fn attach(&mut self, observer: usize, key: &StreamKey, attach: &Attach) -> Result<Attached, StoreError> {
        let Some(known) = self.sessions.get(&key.session) else { return Ok(Attached::default()) };
        if !attach.finds(known.held.record.principal.as_deref()) {
            return Ok(Attached { is_foreign: true, ..Attached::default() });
        }
        if let Some(message) = attach.message.as_ref().filter(|_| attach.stream.is_some()) {
            self.post(observer, key, message)?;
        }
        let Some(known) = self.sessions.get_mut(&key.session) else { return Ok(Attached::default()) };
        let session = Some(known.held.record.clone());
        let log = attach.stream.and_then(|nonce| known.logs.get_mut(&nonce.0));
        let log = log.filter(|log| attach.counts && attach.fits(log.head(), log.tag_at(attach.after)));
        if let Some(log) = log {
            log.readers += 1;
            self.steps += 1;
            log.came.insert(observer, self.steps);
            let mut concerns = log.followers.clone();
            log.followers.insert(observer);
            concerns.extend(known.owner());
            self.changed(observer, &News::Log(key.clone()), &concerns);
        }
        let owner = self.owner(observer, &key.session);
        let log = self
            .log(key)
            .filter(|_| attach.stream.is_some())
            .map(|log| AttachedLog { about: log.about.clone(), page: log.page(owner, attach.after, attach.limit) });
        Ok(Attached { session, is_foreign: false, log })
    }

    fn read(&mut self, owner: usize, key: &StreamKey, after: Seq, limit: ReadLimit) -> Result<LogPage, StoreError> {
        let owner = self.owner(owner, &key.session);
        Ok(self.log(key).ok_or(StoreError::Gone)?.page(owner, after, limit))
    }

    pub(crate) fn forget(&mut self, owner: usize, key: &StreamKey, why: Why) {
        let Some(known) = self.sessions.get_mut(&key.session) else { return };
        if let Some(log) = known.logs.remove(&key.nonce.0) {
            known.inbox.forget(&key.nonce.0);
            if why == Why::StoreLost {
                known.lost.entry(key.nonce.0).or_insert_with(|| (log.name.clone(), log.now().clone()));
            }
            if why == Why::Expired {
                self.expired.insert((Arc::clone(&key.session), log.name.clone()));
            }
            self.gone(&key.session, Some(log.name), why);
            self.changed(owner, &News::Log(key.clone()), &log.followers);
        }
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = (StreamKey, &Log)> {
        let of = |session: &Arc<str>, nonce: &[u8; 12]| StreamKey {
            session: Arc::clone(session),
            nonce: StreamNonce(*nonce),
        };
        self.sessions
            .iter()
            .flat_map(move |(session, known)| known.logs.iter().map(move |(nonce, log)| (of(session, nonce), log)))
    }

    fn drop_session(&mut self, owner: usize, session: &Arc<str>) {
        let keys: Vec<StreamKey> = self.keys().filter(|(key, _)| key.session == *session).map(|(key, _)| key).collect();
        for key in keys {
            self.forget(owner, &key, Why::Ended);
        }
        if self.sessions.remove(session).is_some_and(|known| known.held.epoch.number > 1) {
            let until = self.wall(owner) + self.max_age_ms;
            self.taken.insert(Arc::clone(session), until);
        }
        self.gone(session, None, Why::Ended);
    }

    pub(crate) fn usage(&self) -> Usage {
        let mut usage = Usage { sessions: self.sessions.len() as u64, trimmed: self.trimmed, ..Usage::default() };
        for (_, log) in self.keys() {
            let (events, bytes) = log.held();
            usage.streams += 1;
            usage.events += events;
            usage.bytes += bytes;
        }
        usage
    }
}
