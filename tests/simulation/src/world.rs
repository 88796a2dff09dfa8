//! The nodes, their sessions, and the clients, as one schedule moves them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::json;
use tailrope_checker::{Fact, N, Probe, Why};
use tailrope_core::Ms;
use tailrope_core::engine::{
    Clock, Engine, EngineError, ManualClock, Options, OutgoingMessage, Sent, SessionHandle, Wake,
};
use tailrope_core::protocol::{Dialect, Envelope, Kind, RequestId, Revision, jsonrpc};
use tailrope_core::store::{EventStore, Limits, StoreError};
use tailrope_core::stream::Pacing;

use crate::dice::Seeded;
use crate::node_store::{Fate, Mode, NodeStore};
use crate::reader::{Asked, Reader};
use crate::schedule::{Decision, Setup};
use crate::sea::Sea;

/// How often an owner gives a sign of life.
const SIGN_MS: u64 = 2_000;

/// Who was woken and has not been looked after.
#[derive(Default)]
pub(crate) struct Bells(Mutex<BTreeSet<u64>>);

impl Bells {
    fn set(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.0.lock().expect("nothing panics while it is held")
    }
}

impl Wake for Bells {
    fn wake(&self, key: u64) {
        self.set().insert(key);
    }
}

/// The key of wake-ups for sessions; their outcomes are taken after every decision.
const SESSION: u64 = u64::MAX;

pub(crate) struct Node {
    pub(crate) store: Arc<NodeStore>,
    pub(crate) engine: Engine,
    pub(crate) is_paused: bool,
    pub(crate) is_draining: bool,
}

pub(crate) struct Session {
    pub(crate) name: String,
    /// Where its requests go; none when that process is gone.
    pub(crate) home: Option<(usize, SessionHandle)>,
    pub(crate) has_ended: bool,
    requests: i64,
    questions: u64,
    /// Messages whose outcome is not known yet.
    pending: BTreeMap<u64, (usize, N)>,
}

pub(crate) struct Stream {
    pub(crate) session: usize,
    pub(crate) name: String,
    pub(crate) request: Option<i64>,
    emitted: u64,
    pub(crate) is_answered: bool,
    /// Event ids that clients were given, in the order in which they came.
    pub(crate) ids: Vec<Arc<str>>,
    /// Questions of the server without an answer.
    asked: Vec<RequestId>,
    /// When an event came last.
    pub(crate) last_news: Ms,
}

pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) sea: Arc<Mutex<Sea>>,
    pub(crate) bells: Arc<Bells>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) streams: Vec<Stream>,
    pub(crate) readers: Vec<Reader>,
    probes: u64,
    signed: Ms,
}

fn options(setup: &Setup, clock: &Arc<ManualClock>, store: &Arc<NodeStore>) -> Options {
    Options {
        pacing: Pacing {
            max_batch: setup.max_batch as usize,
            max_connection_bytes: setup.max_connection_bytes,
            ..Pacing::default()
        },
        limits: Limits { retention_ms: setup.retention_ms, ..Limits::default() },
        store_timeout_ms: setup.store_timeout_ms,
        owner_lost_ms: setup.owner_lost_ms,
        store: Some(Arc::clone(store) as Arc<dyn EventStore>),
        clock: Some(Arc::clone(clock) as Arc<dyn Clock>),
        randomness: Some(Arc::new(Seeded::new(setup.seed.wrapping_mul(1_000) + store.owner as u64))),
        ..Options::default()
    }
}

fn node(setup: &Setup, clock: &Arc<ManualClock>, sea: &Arc<Mutex<Sea>>, at: usize, mode: Mode) -> Node {
    let store = Arc::new(NodeStore::new(sea, at, mode, setup.calls_off));
    let engine = Engine::new(options(setup, clock, &store));
    Node { store, engine, is_paused: false, is_draining: false }
}

impl World {
    pub(crate) fn new(setup: &Setup) -> Self {
        let (clock, bells): (Arc<ManualClock>, Arc<Bells>) = Default::default();
        let sea = Arc::new(Mutex::new(Sea::new(setup)));
        let mode = if setup.is_slow { Mode::Later } else { Mode::Now };
        let nodes: Vec<Node> = (0..setup.nodes as usize).map(|at| node(setup, &clock, &sea, at, mode)).collect();
        let mut world = Self {
            setup: setup.clone(),
            clock,
            sea,
            bells,
            nodes,
            sessions: Vec::new(),
            streams: Vec::new(),
            readers: Vec::new(),
            probes: 0,
            signed: Ms(0),
        };
        let revision = if setup.is_old { Revision::V2025_06_18 } else { Revision::V2025_11_25 };
        for at in 0..setup.sessions as usize {
            let home = at % world.nodes.len();
            let name = format!("s{at}");
            let wake = Arc::clone(&world.bells) as Arc<dyn Wake>;
            let engine = &world.nodes[home].engine;
            let handle = engine.open_session(&name, None, &Dialect::MCP_PYTHON_2, wake, SESSION);
            let handle = handle.expect("a new engine opens sessions");
            world.stream(at, &name, "standalone".to_owned(), None);
            handle.assume_revision(revision);
            let (requests, questions, pending) = Default::default();
            let home = Some((home, handle));
            world.sessions.push(Session { name, home, has_ended: false, requests, questions, pending });
        }
        // Clients know of a session when it is stored.
        world.nodes.iter().for_each(|node| node.store.do_all());
        world.run();
        world
    }

    pub(crate) fn sea(&self) -> MutexGuard<'_, Sea> {
        self.sea.lock().expect("nothing panics while it is held")
    }

    pub(crate) fn tell(&self, fact: Fact) {
        self.sea().tell(fact);
    }

    pub(crate) fn count(&self, what: &'static str) {
        self.sea().count(what);
    }

    fn stream(&mut self, session: usize, session_name: &str, name: String, request: Option<i64>) {
        let revision = if self.setup.is_old { Revision::V2025_06_18 } else { Revision::V2025_11_25 };
        self.tell(Fact::Stream {
            session: session_name.to_owned(),
            stream: name.clone(),
            request: request.map(|id| json!(id)),
            revision: Some(revision.as_str().to_owned()),
        });
        let (emitted, is_answered, ids, asked) = Default::default();
        self.streams.push(Stream { session, name, request, emitted, is_answered, ids, asked, last_news: Ms(0) });
    }

    /// Lets one thing happen, and everybody react who can.
    pub(crate) fn step(&mut self, decision: Decision) {
        self.decide(decision);
        self.run();
    }

    fn pick<T>(from: &[T], number: u64) -> Option<usize> {
        (!from.is_empty()).then(|| (number % from.len() as u64) as usize)
    }

    fn node(&self, number: u64) -> usize {
        (number % self.nodes.len() as u64) as usize
    }

    /// A stream, the newest ones more often.
    fn a_stream(&self, number: u64) -> usize {
        let count = self.streams.len() as u64;
        let back = if number.is_multiple_of(2) { (number / 2) % count.min(3) } else { (number / 2) % count };
        (count - 1 - back) as usize
    }

    fn decide(&mut self, decision: Decision) {
        match decision {
            Decision::Call { session, .. } => self.call(Self::pick(&self.sessions, session).unwrap_or(0)),
            Decision::Notify { stream, count } => {
                let stream = self.a_stream(stream);
                (0..count).for_each(|_| self.notify(stream));
            }
            Decision::Ask { stream } => self.ask(self.a_stream(stream)),
            Decision::Settle { stream } => self.settle(self.a_stream(stream)),
            Decision::Respond { stream } => self.respond(self.a_stream(stream)),
            Decision::Broadcast { session } => {
                let session = Self::pick(&self.sessions, session).unwrap_or(0);
                self.notify(session);
            }
            Decision::Listen { session, node } => {
                let session = Self::pick(&self.sessions, session).unwrap_or(0);
                self.open(session, self.node(node), Asked::Listen, Probe::Own);
            }
            Decision::Resume { stream, node, back } => {
                let (stream, node) = (self.a_stream(stream), self.node(node));
                let ids = &self.streams[stream].ids;
                let Some(at) = Self::pick(ids, back) else { return };
                let id = Arc::clone(&ids[ids.len() - 1 - at]);
                self.open(stream, node, Asked::Resume(id), Probe::Own);
            }
            Decision::Probe { stream, node } => self.probe(self.a_stream(stream), self.node(node)),
            Decision::CloseConnection { stream, retry_ms, hold_ms } => {
                let Stream { session, request, .. } = self.streams[self.a_stream(stream)];
                let Some(handle) = self.home(session) else { return };
                match request {
                    Some(id) => handle.close_connection(&RequestId::integer(id), Some(retry_ms), hold_ms),
                    None => handle.close_standalone(Some(retry_ms), hold_ms),
                };
            }
            Decision::Cancel { stream } => self.cancel(self.a_stream(stream)),
            Decision::EndSession { session } => {
                let at = Self::pick(&self.sessions, session).unwrap_or(0);
                let Some(handle) = self.home(at) else { return };
                let is_drained = self.sessions[at].home.as_ref().is_some_and(|(node, _)| self.nodes[*node].is_draining);
                if is_drained {
                    // Its logs stay.
                    self.permit_ends(at, Why::Ended);
                } else {
                    self.sea().gone(&self.sessions[at].name, None, Why::Ended);
                    self.sessions[at].has_ended = true;
                }
                self.count("sessions ended");
                handle.end();
                self.take_outcomes(at);
                self.sessions[at].home = None;
            }
            Decision::Lose { connection, bytes } => {
                let Some(at) = Self::pick(&self.readers, connection) else { return };
                self.lose(at, bytes);
            }
            Decision::Stall { connection } => {
                let Some(at) = Self::pick(&self.readers, connection) else { return };
                self.readers[at].is_stalled = true;
            }
            Decision::Deliver { connection } => {
                let Some(at) = Self::pick(&self.readers, connection) else { return };
                self.readers[at].is_stalled = false;
                self.deliver(at);
            }
            Decision::Do { node, pick } => self.fate(node, pick, Fate::Done),
            Decision::Fail { node, pick } => self.fate(node, pick, Fate::Failed),
            Decision::Unheard { node, pick } => self.fate(node, pick, Fate::Unheard),
            Decision::Overdue { node, pick } => self.fate(node, pick, Fate::Overdue),
            Decision::Hold { node, pick } => self.fate(node, pick, Fate::Held),
            Decision::DoAll { node } => self.nodes[self.node(node)].store.do_all(),
            Decision::Release { node } => self.nodes[self.node(node)].store.release(),
            Decision::Mode { node, mode } => {
                let mode = [Mode::Later, Mode::Now, Mode::Failing][(mode % 3) as usize];
                self.nodes[self.node(node)].store.state().mode = mode;
            }
            Decision::Partition { node } => {
                self.count("partitions");
                self.nodes[self.node(node)].store.state().is_cut_off = true;
            }
            Decision::Heal { node } => self.nodes[self.node(node)].store.state().is_cut_off = false,
            Decision::Pause { node } => {
                self.count("pauses");
                let node = self.node(node);
                self.nodes[node].is_paused = true;
            }
            Decision::Wake { node } => {
                let node = self.node(node);
                self.nodes[node].is_paused = false;
            }
            Decision::Crash { node, done } => {
                self.count("crashes");
                let node = self.node(node);
                self.crash(node, done);
            }
            Decision::Leave { node, how } => {
                self.count("departures");
                let node = self.node(node);
                self.leave(node, how);
            }
            Decision::Drain { node, retry_ms } => {
                let at = self.node(node);
                if self.nodes[at].is_paused {
                    return;
                }
                self.count("drains");
                for session in 0..self.sessions.len() {
                    let is_here = self.sessions[session].home.as_ref().is_some_and(|(node, _)| *node == at);
                    if self.setup.is_old && is_here {
                        self.permit_ends(session, Why::Cancelled);
                    }
                }
                self.nodes[at].is_draining = true;
                self.nodes[at].engine.drain(retry_ms);
            }
            Decision::RollBack { stream, by } => {
                let Stream { session, name, .. } = &self.streams[self.a_stream(stream)];
                self.sea().roll_back(&self.sessions[*session].name, name, by);
            }
            Decision::Hint { pick, twice } => {
                let hint = {
                    let mut sea = self.sea();
                    let Some(at) = Self::pick(&sea.hints, pick) else { return };
                    if twice { sea.hints[at].clone() } else { sea.hints.remove(at) }
                };
                let node = &self.nodes[hint.node];
                if !node.is_paused && !node.store.state().is_cut_off {
                    node.store.watchers.changed(&hint.key);
                } else if !twice {
                    self.sea().hints.push(hint);
                }
            }
            Decision::Advance { ms } => self.advance(ms),
        }
    }

    fn fate(&self, node: u64, pick: u64, fate: Fate) {
        self.nodes[self.node(node)].store.decide(pick, fate);
    }

    /// The session where it lives, if that process runs.
    pub(crate) fn home(&self, session: usize) -> Option<SessionHandle> {
        let (node, handle) = self.sessions[session].home.as_ref()?;
        (!self.nodes[*node].is_paused).then(|| handle.clone())
    }

    fn permit_ends(&self, session: usize, why: Why) {
        let requests = self.streams.iter().filter(|stream| stream.session == session && stream.request.is_some());
        let mut sea = self.sea();
        requests.for_each(|stream| sea.gone(&self.sessions[session].name, Some(stream.name.clone()), why));
    }

    // Sending

    fn call(&mut self, session: usize) {
        let Some(handle) = self.home(session) else { return };
        if self.streams.len() >= 12 {
            return;
        }
        let request = self.sessions[session].requests + 1;
        self.sessions[session].requests = request;
        let name = self.sessions[session].name.clone();
        self.stream(session, &name, format!("r{request}"), Some(request));
        let node = self.sessions[session].home.as_ref().map_or(0, |(node, _)| *node);
        if self.setup.is_old && self.nodes[node].is_draining {
            // Whoever cannot come back is told to ask again.
            self.permit_ends(session, Why::Cancelled);
        }
        drop(handle);
        self.open(self.streams.len() - 1, node, Asked::Call(RequestId::integer(request)), Probe::Own);
    }

    fn mark(&self, stream: usize, n: N) -> String {
        let Stream { session, name, .. } = &self.streams[stream];
        format!("[[{}/{name}/{n}]]", self.sessions[*session].name)
    }

    fn notify(&mut self, stream: usize) {
        let session = self.streams[stream].session;
        if self.home(session).is_none() {
            return;
        }
        let n = N::Event(self.streams[stream].emitted + 1);
        self.streams[stream].emitted += 1;
        let related = self.streams[stream].request.map(RequestId::integer);
        let payload = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"t":"{}"}}}}"#,
            self.mark(stream, n)
        );
        self.send(stream, n, OutgoingMessage::notification(related.as_ref(), payload.as_bytes()));
    }

    fn ask(&mut self, stream: usize) {
        let session = self.streams[stream].session;
        if self.home(session).is_none() {
            return;
        }
        let n = N::Event(self.streams[stream].emitted + 1);
        self.streams[stream].emitted += 1;
        self.sessions[session].questions += 1;
        let id = RequestId::text_id(&format!("q{}", self.sessions[session].questions));
        self.streams[stream].asked.push(id.clone());
        let related = self.streams[stream].request.map(RequestId::integer);
        let payload = format!(
            r#"{{"jsonrpc":"2.0","id":{},"method":"roots/list","params":{{"t":"{}"}}}}"#,
            id.to_json(),
            self.mark(stream, n)
        );
        self.send(stream, n, OutgoingMessage::request(&id, related.as_ref(), payload.as_bytes()));
    }

    fn settle(&mut self, stream: usize) {
        let Some(handle) = self.home(self.streams[stream].session) else { return };
        let Some(id) = self.streams[stream].asked.pop() else { return };
        let fields = jsonrpc::Fields::default();
        handle.received(&[Envelope { kind: Kind::Response, method: None, id: Some(id), range: 0..0, fields }]);
    }

    pub(crate) fn respond(&mut self, stream: usize) {
        let Some(request) = self.streams[stream].request.filter(|_| !self.streams[stream].is_answered) else { return };
        if self.home(self.streams[stream].session).is_none() {
            return;
        }
        self.streams[stream].is_answered = true;
        let payload = format!(r#"{{"jsonrpc":"2.0","id":{request},"result":{{"t":"{}"}}}}"#, self.mark(stream, N::End));
        self.send(stream, N::End, OutgoingMessage::response(&RequestId::integer(request), payload.as_bytes()));
    }

    fn cancel(&mut self, stream: usize) {
        let Stream { session, request: Some(request), ref name, .. } = self.streams[stream] else { return };
        let Some(handle) = self.home(session) else { return };
        self.sea().gone(&self.sessions[session].name, Some(name.clone()), Why::Cancelled);
        self.count("requests cancelled");
        handle.cancelled(&RequestId::integer(request));
    }

    fn send(&mut self, stream: usize, n: N, message: OutgoingMessage<'_>) {
        let Some(session) = self.streams.get(stream).map(|stream| stream.session) else { return };
        let Some(handle) = self.home(session) else { return };
        let names = (self.sessions[session].name.clone(), self.streams[stream].name.clone());
        self.tell(Fact::Emit { session: names.0, stream: names.1, n });
        match handle.send(message) {
            Ok(Sent::Pending(token)) => {
                self.sessions[session].pending.insert(token, (stream, n));
            }
            Ok(Sent::Stored) => self.word(stream, n, Ok(true)),
            Ok(Sent::Dropped) => self.word(stream, n, Ok(false)),
            Err(error) => self.word(stream, n, Err(&error)),
        }
    }

    /// What the server said of an event: it is stored, it was not needed, or it is not stored.
    fn word(&self, stream: usize, n: N, word: Result<bool, &EngineError>) {
        let Stream { session, name: stream, .. } = &self.streams[stream];
        let (session, stream) = (self.sessions[*session].name.clone(), stream.clone());
        self.tell(match word {
            Ok(true) => Fact::Ack { session, stream, n },
            // Nobody is told what became of a response (I9).
            Ok(false) if n == N::End => Fact::Unsure { session, stream, n },
            Err(EngineError::Store(StoreError::TimedOut { .. }) | EngineError::SessionEnded) => {
                Fact::Unsure { session, stream, n }
            }
            Ok(false) | Err(_) => Fact::Refused { session, stream, n },
        });
    }

    pub(crate) fn take_outcomes(&mut self, session: usize) {
        let Some((node, handle)) = &self.sessions[session].home else { return };
        if self.nodes[*node].is_paused {
            return;
        }
        for (token, outcome) in handle.take_outcomes() {
            let Some((stream, n)) = self.sessions[session].pending.remove(&token) else { continue };
            match outcome {
                Ok(()) if n == N::End => {}
                Ok(()) => self.word(stream, n, Ok(true)),
                Err(error) => self.word(stream, n, Err(&error)),
            }
        }
    }

    // Time

    pub(crate) fn advance(&mut self, ms: u64) {
        let end = self.clock.now() + ms;
        // A busy moment may have many steps; each of them gets somewhere.
        for _ in 0..400 {
            let now = self.clock.now();
            let left = end.since(now);
            if left == 0 {
                return;
            }
            let running = self.nodes.iter().filter(|node| !node.is_paused);
            let engine = running.map(|node| node.engine.next_deadline()).min().unwrap_or(Ms::NEVER);
            let hint = self.sea().hints.iter().map(|hint| hint.due).min().unwrap_or(Ms::NEVER);
            let next = engine.min(hint).min(self.signed + SIGN_MS);
            self.clock.advance(next.since(now).clamp(1, left));
            self.happen();
        }
        let left = end.since(self.clock.now());
        self.clock.advance(left);
        self.happen();
    }

    /// What time brings by itself.
    fn happen(&mut self) {
        let now = self.clock.now();
        let is_sign = now >= self.signed + SIGN_MS;
        if is_sign {
            self.signed = now;
        }
        let hints = {
            let mut sea = self.sea();
            sea.now = now;
            for node in &self.nodes {
                if is_sign && !node.is_paused && !node.store.state().is_cut_off {
                    sea.owners[node.store.owner].0 = now;
                }
            }
            let is_told = |node: usize| !self.nodes[node].is_paused && !self.nodes[node].store.state().is_cut_off;
            let (due, later) =
                std::mem::take(&mut sea.hints).into_iter().partition(|hint| hint.due <= now && is_told(hint.node));
            sea.hints = later;
            let due: Vec<crate::sea::Hint> = due;
            due
        };
        for hint in hints {
            self.nodes[hint.node].store.watchers.changed(&hint.key);
        }
        for node in self.nodes.iter().filter(|node| !node.is_paused) {
            node.engine.tick();
        }
        self.run();
    }

    /// Whoever was woken goes on.
    pub(crate) fn run(&mut self) {
        for _ in 0..1_000 {
            let woken = std::mem::take(&mut *self.bells.set());
            let (mut left, mut did) = (Vec::new(), false);
            for key in woken {
                let Some(reader) = usize::try_from(key).ok().and_then(|at| self.readers.get(at)) else { continue };
                if reader.is_stalled || self.nodes[reader.node].is_paused {
                    left.push(key);
                } else {
                    did = true;
                    self.poll(key as usize);
                }
            }
            self.bells.set().extend(left);
            if !did {
                break;
            }
        }
        for session in 0..self.sessions.len() {
            self.take_outcomes(session);
        }
    }

    // Processes that go

    fn restart(&mut self, at: usize) {
        let mode = if self.setup.is_slow { Mode::Later } else { Mode::Now };
        let new = node(&self.setup, &self.clock, &self.sea, at, mode);
        let old = std::mem::replace(&mut self.nodes[at], new);
        self.note_stats(&old);
    }

    /// Counts what an engine did.
    pub(crate) fn note_stats(&self, node: &Node) {
        let mut sea = self.sea();
        for (name, count) in node.engine.stats().entries().into_iter().skip(5) {
            *sea.coverage.entry(name).or_default() += count;
        }
    }

    /// The connections of a node break, and its sessions have no home any more.
    fn cut(&mut self, at: usize) {
        for reader in 0..self.readers.len() {
            if self.readers[reader].node == at {
                self.lose(reader, 0);
            }
        }
        for session in &mut self.sessions {
            if session.home.as_ref().is_some_and(|(node, _)| *node == at) {
                (session.home, session.pending) = (None, BTreeMap::new());
            }
        }
    }

    pub(crate) fn crash(&mut self, at: usize, done: u64) {
        for session in 0..self.sessions.len() {
            if self.sessions[session].home.as_ref().is_some_and(|(node, _)| *node == at) {
                self.permit_ends(session, Why::OwnerLost);
            }
        }
        self.nodes[at].store.die(done);
        self.cut(at);
        self.restart(at);
    }

    pub(crate) fn leave(&mut self, at: usize, how: u64) {
        if self.nodes[at].is_paused {
            return;
        }
        // Who closes in order ends what runs, with what the store tells of it at once.
        let why = if how.is_multiple_of(2) { Why::Ended } else { Why::OwnerLost };
        for session in 0..self.sessions.len() {
            if self.sessions[session].home.as_ref().is_some_and(|(node, _)| *node == at) {
                self.permit_ends(session, why);
            }
        }
        if how.is_multiple_of(2) {
            self.nodes[at].engine.close();
        } else {
            self.nodes[at].engine.release();
        }
        self.run();
        self.nodes[at].store.do_all();
        self.run();
        self.nodes[at].store.die(0);
        self.cut(at);
        self.restart(at);
    }

    fn probe(&mut self, stream: usize, node: usize) {
        let Stream { session, request, ref ids, .. } = self.streams[stream];
        let (Some(_), Some(id)) = (request, ids.first()) else { return };
        let Some(other) = (0..self.sessions.len()).find(|other| *other != session) else { return };
        let is_well = {
            let state = self.nodes[node].store.state();
            !self.nodes[node].is_paused && !state.is_cut_off && state.mode != Mode::Failing
        };
        if self.sessions[other].has_ended || !is_well {
            return;
        }
        let foreign = Arc::clone(id);
        // Another stream's name, of the same request.
        let mut bytes = id.as_bytes().to_vec();
        bytes[2..8].fill(b'Q');
        let Ok(unknown) = String::from_utf8(bytes) else { return };
        self.probes += 1;
        self.count("probes");
        let pair = self.probes;
        self.open(other, node, Asked::Probe(foreign, pair), Probe::Foreign);
        self.open(other, node, Asked::Probe(unknown.into(), pair), Probe::Unknown);
        // Both at one moment: what happens between them would tell them apart.
        for _ in 0..4 {
            self.run();
            self.nodes[node].store.do_all();
        }
        self.run();
    }

    pub(crate) fn open(&mut self, stream: usize, node: usize, asked: Asked, probe: Probe) {
        let at = self.readers.len() as u64;
        self.readers.push(Reader::new(stream, self.streams[stream].session, node, asked, probe));
        self.bells.wake(at);
    }
}
