//! Several processes on one store in memory, that do what happens in the order of the test: a hint comes when it is let through,
//! and an owner is alive until the test says that it is not.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use tailrope_core::Ms;
use tailrope_core::engine::Options;
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::{
    Answer, Append, Attach, Attached, Epoch, EventStore, Hold, Limits, LogPage, Mail, MemoryStore, Operation, Outcome,
    Owner, ReadLimit, RunningLog, SessionRecord, StoreError, StoredEvent, StreamKey, Ticket, Usage, Watcher, Watchers,
    session_name,
};
use tailrope_core::stream::{Chain, EventKind, Seq};

use crate::kit::common::{Bench, SECRET};
use crate::kit::relaying::{ALICE, identity};

/// What a store object is told of.
#[derive(Debug)]
enum Hint {
    Changed(Arc<str>, StreamNonce),
    Posted(Arc<str>),
    Session(Arc<str>),
}

#[derive(Default)]
struct Known {
    /// Who holds each session, and with which epoch.
    owners: HashMap<Arc<str>, (usize, Epoch)>,
    followers: HashMap<StreamKey, BTreeSet<usize>>,
    hints: VecDeque<(usize, Hint)>,
}

struct Hub {
    memory: MemoryStore,
    known: Mutex<Known>,
    /// Processes that give no sign of life.
    lost: Mutex<BTreeSet<usize>>,
    /// Every message that the store was given, with the stream of its answer.
    posts: Mutex<Vec<(Arc<str>, Attach)>>,
}

/// The store object of one process.
pub(crate) struct Node {
    hub: Arc<Hub>,
    index: usize,
    watchers: Watchers,
    /// Nothing is done.
    pub(crate) fails: AtomicBool,
    /// Messages are not taken.
    pub(crate) refuses: AtomicBool,
    /// Messages and withdrawals are done, and it is said that there was no answer in time.
    pub(crate) is_unheard: AtomicBool,
    /// Messages and withdrawals are done, and nothing is said.
    pub(crate) is_silent: AtomicBool,
    /// Takes are done, and answered when the test says so.
    pub(crate) holds_takes: AtomicBool,
    held: Mutex<Vec<(Ticket, Outcome)>>,
    /// So many more readers were counted, and messages numbered, before the store was set back.
    pub(crate) readers_before: AtomicU64,
    pub(crate) messages_before: AtomicU64,
    /// What is said of appends, which are done if so.
    pub(crate) of_appends: Mutex<Option<(StoreError, bool)>>,
    /// Hints are lost.
    pub(crate) is_deaf: AtomicBool,
    pub(crate) takes: AtomicU64,
    /// What was called off.
    pub(crate) abandoned: AtomicU64,
    /// Ends of logs of messages are not done, and nothing is said; and how many came.
    pub(crate) holds_ends: AtomicBool,
    /// They are confirmed, and the store loses them.
    pub(crate) loses_ends: AtomicBool,
    pub(crate) ends: AtomicU64,
    pub(crate) holds: AtomicU64,
    /// Another process is said to have been faster with every session.
    pub(crate) is_beaten: AtomicBool,
    /// Is run when a session is left.
    at_release: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

/// See the module.
pub(crate) struct Fleet {
    hub: Arc<Hub>,
    pub(crate) nodes: Vec<Arc<Node>>,
    pub(crate) benches: Vec<Bench>,
}

impl Fleet {
    pub(crate) fn new(count: usize) -> Self {
        Self::with(count, Options::default())
    }

    pub(crate) fn with(count: usize, options: Options) -> Self {
        let memory = MemoryStore::new(Limits::default());
        let hub = Arc::new(Hub { memory, known: Mutex::default(), lost: Mutex::default(), posts: Mutex::default() });
        let node = |index| {
            let (
                fails,
                refuses,
                is_unheard,
                is_silent,
                holds_takes,
                held,
                is_deaf,
                takes,
                holds,
                is_beaten,
                of_appends,
                (abandoned, holds_ends, loses_ends, ends),
            ) = Default::default();
            let (hub, watchers, readers_before, messages_before, at_release) =
                (Arc::clone(&hub), Watchers::default(), AtomicU64::new(0), AtomicU64::new(0), Mutex::default());
            Arc::new(Node {
                hub,
                index,
                watchers,
                fails,
                refuses,
                is_unheard,
                is_silent,
                holds_takes,
                held,
                readers_before,
                messages_before,
                of_appends,
                is_deaf,
                takes,
                abandoned,
                holds_ends,
                loses_ends,
                ends,
                holds,
                is_beaten,
                at_release,
            })
        };
        let nodes: Vec<Arc<Node>> = (0..count).map(node).collect();
        let bench = |node: &Arc<Node>| Bench::new(Options { store: Some(Arc::clone(node) as _), ..options.clone() });
        let benches = nodes.iter().map(bench).collect();
        Self { hub, nodes, benches }
    }

    /// Lets every hint through, and what comes of it.
    pub(crate) fn settle(&self) {
        loop {
            let next = self.hub.known.lock().unwrap().hints.pop_front();
            let Some((index, hint)) = next else { return };
            let Node { watchers, is_deaf, .. } = &*self.nodes[index];
            if is_deaf.load(Ordering::SeqCst) {
                continue;
            }
            match hint {
                Hint::Changed(session, nonce) => watchers.changed(&session, nonce),
                Hint::Posted(session) => watchers.posted(&session),
                Hint::Session(session) => watchers.session_changed(&session),
            }
        }
    }

    /// Time passes everywhere.
    pub(crate) fn advance(&self, ms: u64) {
        self.settle();
        for bench in &self.benches {
            bench.advance(ms);
        }
        self.settle();
    }

    /// The process gives no sign of life any more.
    pub(crate) fn lose(&self, index: usize) {
        self.hub.lost.lock().unwrap().insert(index);
    }

    /// Hints may have been missed everywhere, or the store set back.
    pub(crate) fn disturb(&self) {
        self.nodes.iter().for_each(|node| node.watchers.all_changed());
        self.settle();
    }

    /// The store loses a log of the session.
    pub(crate) fn lose_log(&self, id: &str, nonce: StreamNonce) {
        let session = session_name(id);
        let (_, epoch) = self.hub.known.lock().unwrap().owners[&session];
        self.hub.memory.drop_stream(&StreamKey { session, nonce }, epoch);
    }

    /// The name of the only session.
    pub(crate) fn only_session(&self) -> Arc<str> {
        let known = self.hub.known.lock().unwrap();
        assert_eq!(known.owners.len(), 1);
        Arc::clone(known.owners.keys().next().unwrap())
    }

    /// The owner of the only session, a task, writes something to its log.
    pub(crate) fn write_to_task(&self, payload: &[u8]) {
        let session = self.only_session();
        let (owner, epoch) = self.hub.known.lock().unwrap().owners[&session];
        let key = StreamKey { session, nonce: StreamNonce(*b"tailropetask") };
        let Answer::Now(Ok(page)) = self.nodes[owner].read(&key, 0, ReadLimit::default(), &nobody()) else { panic!() };
        let (first, chain_before) = (page.page.head + 1, page.chain);
        let chain = Chain(chain_before).then(payload, None);
        let event = StoredEvent { seq: first, kind: EventKind::Question, tag: chain.tag(), frame: payload.into() };
        let append = Append { first, events: vec![event], chain_before, chain: chain.0, ..Append::default() };
        assert!(matches!(self.nodes[owner].append(Ms(0), &key, epoch, &append, &nobody()), Answer::Now(Ok(()))));
    }

    /// The store loses the session with everything that it has.
    pub(crate) fn lose_session(&self, name: &Arc<str>) {
        let (_, epoch) = self.hub.known.lock().unwrap().owners[name];
        self.hub.memory.drop_session(name, epoch);
    }

    /// The store forgets that the owner of the session let it go.
    pub(crate) fn forget_release(&self, name: &Arc<str>) {
        let (owner, epoch) = self.hub.known.lock().unwrap().owners[name];
        let hold = Hold { epoch, seen: Some(epoch), record: None };
        assert!(matches!(self.nodes[owner].hold(name, &hold, &nobody()), Answer::Now(Ok(_))));
    }

    /// A process takes a session over, whoever has it.
    pub(crate) fn take_over(&self, index: usize, id: &str) {
        let name = session_name(id);
        let (_, seen) = self.hub.known.lock().unwrap().owners[&name];
        let hold = Hold { epoch: Epoch { number: seen.number + 1, salt: 7 }, seen: Some(seen), record: None };
        assert!(matches!(self.nodes[index].hold(&name, &hold, &nobody()), Answer::Now(Ok(_))));
    }

    /// The store forgets that the session has another owner than this process once was.
    pub(crate) fn forget_owner(&self, index: usize, id: &str, epoch: Epoch) {
        let name = session_name(id);
        let hold = Hold { epoch, seen: Some(self.epoch(id)), record: None };
        assert!(matches!(self.hub.memory.hold(&name, &hold, &nobody()), Answer::Now(Ok(_))));
        self.hub.known.lock().unwrap().owners.insert(name, (index, epoch));
    }

    /// What the store keeps of alice's session.
    pub(crate) fn record(&self, id: &str) -> SessionRecord {
        let attach = Attach { principal: identity(ALICE), ..Attach::default() };
        self.post(0, &session_name(id), &attach).session.expect("it is there")
    }

    /// The store forgets what changed in that since the session began.
    pub(crate) fn forget_record(&self, id: &str) {
        let record = Some(SessionRecord { principal: self.record(id).principal, ..SessionRecord::default() });
        let hold = Hold { epoch: self.epoch(id), seen: None, record };
        assert!(matches!(self.hub.memory.hold(&session_name(id), &hold, &nobody()), Answer::Now(Ok(_))));
    }

    pub(crate) fn usage(&self) -> Usage {
        self.hub.memory.usage()
    }

    /// The epoch of the session's last owner.
    pub(crate) fn epoch(&self, id: &str) -> Epoch {
        self.hub.known.lock().unwrap().owners[&session_name(id)].1
    }

    /// Every message that the store was given.
    pub(crate) fn posts(&self) -> Vec<(Arc<str>, Attach)> {
        self.hub.posts.lock().unwrap().clone()
    }

    /// A process gives the store a message as it is.
    pub(crate) fn post(&self, index: usize, session: &str, attach: &Attach) -> Attached {
        match self.nodes[index].attach(session, attach, &nobody()) {
            Answer::Now(attached) => attached.expect("the store works"),
            Answer::Later => unreachable!("the memory store answers at once"),
        }
    }
}

/// Of who does not wait for anything.
pub(crate) fn nobody() -> Ticket {
    struct Nobody;
    impl tailrope_core::store::Complete for Nobody {
        fn complete(&self, _: &Ticket, _: Outcome) {}
    }
    let to: Weak<Nobody> = Weak::new();
    Ticket { to, nonce: StreamNonce([0; 12]), operation: Operation::Take, number: 0 }
}

impl Node {
    /// Runs this when the process leaves a session next, before another one can have it.
    pub(crate) fn at_release(&self, run: impl FnOnce() + Send + 'static) {
        *self.at_release.lock().unwrap() = Some(Box::new(run));
    }

    /// Answers the takes that were held.
    pub(crate) fn answer_takes(&self) {
        self.holds_takes.store(false, Ordering::SeqCst);
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        held.into_iter().for_each(|(ticket, outcome)| ticket.complete(outcome));
    }

    fn does_fail(&self) -> Result<(), StoreError> {
        let fails = self.fails.load(Ordering::SeqCst);
        if fails { Err(StoreError::Failed(SECRET.to_owned())) } else { Ok(()) }
    }

    fn ask<T>(&self, ask: impl FnOnce(&MemoryStore) -> Answer<T>) -> Answer<T> {
        match self.does_fail() {
            Ok(()) => ask(&self.hub.memory),
            Err(error) => Answer::Now(Err(error)),
        }
    }

    /// Says what it has to of something that was done.
    fn tell<T>(&self, answer: Answer<T>) -> Answer<T> {
        if self.is_silent.load(Ordering::SeqCst) {
            Answer::Later
        } else if self.is_unheard.load(Ordering::SeqCst) {
            Answer::Now(Err(StoreError::TimedOut { after_ms: 1 }))
        } else {
            answer
        }
    }

    fn hint(&self, known: &mut Known, to: usize, hint: Hint) {
        if to != self.index {
            known.hints.push_back((to, hint));
        }
    }

    fn changed(&self, key: &StreamKey) {
        let known = &mut *self.hub.known.lock().unwrap();
        for follower in known.followers.get(key).cloned().unwrap_or_default() {
            self.hint(known, follower, Hint::Changed(Arc::clone(&key.session), key.nonce));
        }
    }

    /// What this store object tells of a log besides what is in memory.
    fn see(&self, session: &str, page: &mut LogPage) {
        page.readers += self.readers_before.load(Ordering::SeqCst);
        let known = self.hub.known.lock().unwrap();
        let Some((owner, epoch)) = known.owners.get(session).copied() else { return };
        if owner != self.index && page.owner.is_none() {
            let is_lost = self.hub.lost.lock().unwrap().contains(&owner);
            page.owner = Some(Owner { epoch, unseen_ms: if is_lost { 1 << 40 } else { 0 } });
        }
    }
}

impl EventStore for Node {
    fn hold(&self, session: &str, hold: &Hold, ticket: &Ticket) -> Answer<Vec<RunningLog>> {
        self.holds.fetch_add(1, Ordering::SeqCst);
        if self.is_beaten.load(Ordering::SeqCst) {
            return Answer::Now(Err(StoreError::Fenced));
        }
        let answer = self.ask(|memory| memory.hold(session, hold, ticket));
        if matches!(answer, Answer::Now(Ok(_))) {
            let known = &mut *self.hub.known.lock().unwrap();
            let name: Arc<str> = session.into();
            let before = known.owners.insert(Arc::clone(&name), (self.index, hold.epoch));
            if let Some((owner, _)) = before {
                self.hint(known, owner, Hint::Session(name));
            }
        }
        answer
    }

    fn append(&self, now: Ms, key: &StreamKey, epoch: Epoch, append: &Append, ticket: &Ticket) -> Answer<()> {
        if append.events.is_empty() && append.end.is_some() {
            self.ends.fetch_add(1, Ordering::SeqCst);
            if self.holds_ends.load(Ordering::SeqCst) {
                return Answer::Later;
            }
            if self.loses_ends.load(Ordering::SeqCst) {
                return Answer::Now(Ok(()));
            }
        }
        let said = self.of_appends.lock().unwrap().clone();
        if let Some((error, false)) = said {
            return Answer::Now(Err(error));
        }
        let answer = self.ask(|memory| memory.append(now, key, epoch, append, ticket));
        if matches!(answer, Answer::Now(Ok(()))) {
            self.changed(key);
        }
        said.map_or(answer, |(error, _)| Answer::Now(Err(error)))
    }

    fn attach(&self, session: &str, attach: &Attach, ticket: &Ticket) -> Answer<Attached> {
        if attach.message.is_some() && self.refuses.load(Ordering::SeqCst) {
            return Answer::Now(Err(StoreError::Failed(SECRET.to_owned())));
        }
        let streams = self.hub.memory.usage().streams;
        let answer = self.ask(|memory| memory.attach(session, attach, ticket));
        let Answer::Now(Ok(mut attached)) = answer else { return answer };
        let is_post = attach.message.is_some();
        if let (Some(log), Some(nonce)) = (&mut attached.log, attach.stream) {
            self.see(session, &mut log.page);
            let known = &mut *self.hub.known.lock().unwrap();
            let name: Arc<str> = session.into();
            let owner = known.owners.get(session).map(|(owner, _)| *owner);
            if is_post && self.hub.memory.usage().streams > streams {
                self.hub.posts.lock().unwrap().push((Arc::clone(&name), attach.clone()));
                owner.into_iter().for_each(|owner| self.hint(known, owner, Hint::Posted(Arc::clone(&name))));
            }
            if attach.counts {
                let key = StreamKey { session: Arc::clone(&name), nonce };
                let followers = known.followers.entry(key).or_default();
                let concerned: BTreeSet<usize> = followers.iter().copied().chain(owner).collect();
                followers.insert(self.index);
                for other in concerned {
                    self.hint(known, other, Hint::Changed(Arc::clone(&name), nonce));
                }
            }
        }
        let answer = Answer::Now(Ok(attached));
        if is_post { self.tell(answer) } else { answer }
    }

    fn read(&self, key: &StreamKey, after: Seq, limit: ReadLimit, ticket: &Ticket) -> Answer<LogPage> {
        match self.ask(|memory| memory.read(key, after, limit, ticket)) {
            Answer::Now(Ok(mut page)) => {
                self.see(&key.session, &mut page);
                Answer::Now(Ok(page))
            }
            other => other,
        }
    }

    fn take(&self, session: &str, epoch: Epoch, after: u64, ticket: &Ticket) -> Answer<Vec<Mail>> {
        self.takes.fetch_add(1, Ordering::SeqCst);
        let before = self.messages_before.load(Ordering::SeqCst);
        let mut answer = self.ask(|memory| memory.take(session, epoch, after.saturating_sub(before), ticket));
        if let Answer::Now(Ok(taken)) = &mut answer {
            taken.iter_mut().for_each(|mail| mail.number += before);
        }
        match answer {
            Answer::Now(taken) if self.holds_takes.load(Ordering::SeqCst) => {
                self.held.lock().unwrap().push((ticket.clone(), Outcome::Taken(taken)));
                Answer::Later
            }
            answer => answer,
        }
    }

    fn withdraw(&self, now: Ms, key: &StreamKey, end: &Bytes, ticket: &Ticket) -> Answer<bool> {
        let answer = self.ask(|memory| memory.withdraw(now, key, end, ticket));
        self.changed(key);
        self.tell(answer)
    }

    fn abandon(&self, _: &StreamKey, _: &Ticket) {
        self.abandoned.fetch_add(1, Ordering::SeqCst);
    }

    fn release(&self, session: &str, epoch: Epoch) {
        if let Some(run) = self.at_release.lock().unwrap().take() {
            run();
        }
        self.hub.memory.release(session, epoch);
    }

    fn watch(&self, session: &Arc<str>, watcher: &Watcher) {
        self.watchers.watch(session, watcher);
    }

    fn unwatch(&self, session: &str, watcher: &Watcher) {
        self.watchers.unwatch(session, watcher);
    }

    fn settle(&self, key: &StreamKey, epoch: Epoch, seq: Seq) {
        self.hub.memory.settle(key, epoch, seq);
    }

    fn drop_stream(&self, key: &StreamKey, epoch: Epoch) {
        self.hub.memory.drop_stream(key, epoch);
        self.changed(key);
    }

    fn drop_session(&self, session: &str, epoch: Epoch) {
        self.hub.memory.drop_session(session, epoch);
        let followed: Vec<StreamKey> = {
            let known = self.hub.known.lock().unwrap();
            known.followers.keys().filter(|key| &*key.session == session).cloned().collect()
        };
        followed.iter().for_each(|key| self.changed(key));
    }

    fn sweep(&self, now: Ms) -> Ms {
        self.hub.memory.sweep(now)
    }

    fn usage(&self) -> Usage {
        self.hub.memory.usage()
    }

    fn outlives_process(&self) -> bool {
        true
    }
}
