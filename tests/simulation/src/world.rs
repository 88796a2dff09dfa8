//! The nodes, their sessions, and the clients, as one schedule moves them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::json;
use tailrope_checker::{Fact, Probe, Why};
use tailrope_core::Ms;
use tailrope_core::engine::{Clock, Engine, ManualClock, Options, Wake};
use tailrope_core::protocol::{Dialect, RequestId, Revision};
use tailrope_core::session::{Pace, Paces};
use tailrope_core::store::{EventStore, Limits};
use tailrope_core::stream::{Drain, Pacing};

use crate::dice::Seeded;
use crate::hosts::Host;
use crate::node_store::{Fate, Mode, NodeStore, lock};
use crate::reader::{Asked, Reader};
use crate::relaying::Message;
use crate::schedule::{Decision, Setup};
use crate::sea::Sea;
use crate::tasks::Tasks;

/// Who was woken and has not been looked after.
#[derive(Default)]
pub(crate) struct Bells(Mutex<BTreeSet<u64>>);

impl Bells {
    pub(crate) fn set(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        lock(&self.0)
    }
}

impl Wake for Bells {
    fn wake(&self, key: u64) {
        self.set().insert(key);
    }
}

/// The key of wake-ups for sessions; their outcomes are taken after every decision.
pub(crate) const SESSION: u64 = u64::MAX;

pub(crate) struct Node {
    pub(crate) store: Arc<NodeStore>,
    pub(crate) engine: Engine,
    pub(crate) is_paused: bool,
    pub(crate) is_draining: bool,
}

/// An engine and its sessions hold each other until it lets them go.
impl Drop for Node {
    fn drop(&mut self) {
        self.store.stop();
        self.engine.release();
    }
}

impl Node {
    /// It runs, and the store answers it.
    pub(crate) fn is_answered(&self) -> bool {
        !self.is_paused && self.store.is_answered()
    }
}

pub(crate) struct Session {
    pub(crate) name: String,
    /// Where its requests go; none when that process is gone.
    pub(crate) home: Option<Host>,
    /// Hosts that had it before, and have not heard of another one.
    pub(crate) earlier: Vec<Host>,
    /// How often hosts adopted it.
    pub(crate) adoptions: u64,
    pub(crate) has_ended: bool,
    pub(crate) requests: i64,
    pub(crate) questions: u64,
}

pub(crate) struct Stream {
    pub(crate) session: usize,
    pub(crate) name: String,
    pub(crate) request: Option<i64>,
    pub(crate) emitted: u64,
    /// So many of them ran ahead of the store.
    pub(crate) ahead: u64,
    /// The handler of any owner has answered it.
    pub(crate) was_answered: bool,
    /// How often a handler was given it.
    pub(crate) begun: u64,
    /// Which of the session's hosts have given it to a handler, and whether that has answered it.
    pub(crate) run_by: BTreeMap<u64, bool>,
    /// Its client was told that it does not begin.
    pub(crate) is_refused: bool,
    /// Event ids that clients were given, in the order in which they came.
    pub(crate) ids: Vec<Arc<str>>,
    /// Questions of the server without an answer.
    pub(crate) asked: Vec<RequestId>,
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
    pub(crate) messages: Vec<Message>,
    pub(crate) tasks: Tasks,
    pub(crate) adoptions: u64,
    /// Everything works again.
    pub(crate) is_healed: bool,
    probes: u64,
    /// The store answers nobody.
    pub(crate) is_out: bool,
}

/// Heartbeats are no part of it: the checker knows what handlers send.
fn paces(setup: &Setup) -> Paces {
    let mut paces = Paces::default();
    let pace = Pace {
        retry_ms: Some(50),
        hold_ms: Some(setup.seed % 3 * 200),
        max_connection_ms: Some(setup.seed % 2 * 700),
        max_connection_bytes: Some(0),
        retention_ms: Some(90_000),
        ..Pace::default()
    };
    if setup.is_paced {
        paces.set("*", pace).expect("every tool");
    }
    paces
}

fn options(setup: &Setup, clock: &Arc<ManualClock>, at: usize, store: &Arc<NodeStore>) -> Options {
    Options {
        pacing: Pacing {
            max_batch: setup.max_batch as usize,
            max_connection_bytes: setup.max_connection_bytes,
            ..Pacing::default()
        },
        paces: paces(setup),
        limits: Limits { retention_ms: setup.retention_ms, ..Limits::default() },
        task_after_ms: 0,
        store_timeout_ms: setup.store_timeout_ms,
        owner_lost_ms: setup.owner_lost_ms[at],
        store: Some(Arc::clone(store) as Arc<dyn EventStore>),
        clock: Some(Arc::clone(clock) as Arc<dyn Clock>),
        randomness: Some(Arc::new(Seeded::new(setup.seed.wrapping_mul(1_000) + store.owner as u64))),
        ..Options::default()
    }
}

pub(crate) fn node(setup: &Setup, clock: &Arc<ManualClock>, sea: &Arc<Mutex<Sea>>, at: usize, mode: Mode) -> Node {
    let store = Arc::new(NodeStore::new(sea, at, mode, setup.calls_off));
    let engine = Engine::new(options(setup, clock, at, &store));
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
            messages: Vec::new(),
            tasks: Tasks::default(),
            adoptions: 0,
            is_healed: false,
            probes: 0,
            is_out: false,
        };
        let revision = if setup.is_old { Revision::V2025_06_18 } else { Revision::V2025_11_25 };
        for at in 0..setup.sessions as usize {
            let home = at % world.nodes.len();
            let name = format!("s{at}");
            let wake = Arc::clone(&world.bells) as Arc<dyn Wake>;
            world.sea().named(&name);
            let engine = &world.nodes[home].engine;
            let handle = engine.open_session(&name, None, &Dialect::MCP_PYTHON_2, wake, SESSION);
            let handle = handle.expect("a new engine opens sessions");
            world.stream(at, &name, "standalone".to_owned(), None);
            handle.accept_posted();
            if setup.adopts {
                world.initialize(&handle);
            }
            handle.assume_revision(revision);
            let home = Some(Host::new(home, handle, 0));
            let (earlier, adoptions, requests, questions) = Default::default();
            world.sessions.push(Session { name, home, earlier, adoptions, has_ended: false, requests, questions });
        }
        // Clients know of a session when it is stored.
        world.nodes.iter().for_each(|node| node.store.do_all());
        world.run();
        world
    }

    pub(crate) fn sea(&self) -> MutexGuard<'_, Sea> {
        lock(&self.sea)
    }

    pub(crate) fn tell(&self, fact: Fact) {
        self.sea().tell(fact);
    }

    pub(crate) fn count(&self, what: &'static str) {
        self.sea().count(what);
    }

    pub(crate) fn stream(&mut self, session: usize, session_name: &str, name: String, request: Option<i64>) {
        let revision = if self.setup.is_old { Revision::V2025_06_18 } else { Revision::V2025_11_25 };
        self.tell(Fact::Stream {
            session: session_name.to_owned(),
            stream: name.clone(),
            request: request.map(|id| json!(id)),
            revision: Some(revision.as_str().to_owned()),
        });
        let (emitted, ahead, was_answered, begun, run_by, is_refused, ids, asked) = Default::default();
        let last_news = Ms(0);
        self.streams.push(Stream {
            session,
            name,
            request,
            emitted,
            ahead,
            was_answered,
            begun,
            run_by,
            is_refused,
            ids,
            asked,
            last_news,
        });
    }

    /// Lets one thing happen, and everybody react who can.
    pub(crate) fn step(&mut self, decision: Decision) {
        self.decide(decision);
        self.run();
    }

    pub(crate) fn pick<T>(from: &[T], number: u64) -> Option<usize> {
        (!from.is_empty()).then(|| (number % from.len() as u64) as usize)
    }

    pub(crate) fn node(&self, number: u64) -> usize {
        (number % self.nodes.len() as u64) as usize
    }

    /// A stream, the newest ones more often.
    fn a_stream(&self, number: u64) -> usize {
        let count = self.streams.len() as u64;
        let back = if number.is_multiple_of(2) { (number / 2) % count.min(3) } else { (number / 2) % count };
        (count - 1 - back) as usize
    }

    fn decide(&mut self, decision: Decision) {
        if decision.harms_owners() {
            self.harm_tasks();
        }
        match decision {
            Decision::Call { session, node } => {
                let session = Self::pick(&self.sessions, session).unwrap_or(0);
                self.call(session, self.entrance(session, node));
            }
            Decision::Notify { stream, count } => {
                let stream = self.a_stream(stream);
                (0..count).for_each(|_| self.notify(stream));
            }
            Decision::Ask { stream } => self.ask(self.a_stream(stream)),
            Decision::Settle { stream, node } => {
                let stream = self.a_stream(stream);
                self.settle(stream, self.entrance(self.streams[stream].session, node));
            }
            Decision::Tell { session, node } => {
                let session = Self::pick(&self.sessions, session).unwrap_or(0);
                self.tell_server(session, self.node(node));
            }
            Decision::Flood { session, node } => {
                let session = Self::pick(&self.sessions, session).unwrap_or(0);
                self.flood(session, self.node(node));
            }
            Decision::Revoke { stream, node } => {
                let stream = self.a_stream(stream);
                self.revoke(stream, self.node(node));
            }
            Decision::Delete { session, node } => {
                let session = Self::pick(&self.sessions, session).unwrap_or(0);
                self.delete(session, self.node(node));
            }
            Decision::Serve { session } => {
                let session = Self::pick(&self.sessions, session).unwrap_or(0);
                self.dispatch(session);
            }
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
                self.end_session(at);
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
            Decision::DoInTurns => self.do_in_turns(),
            Decision::Release { node } => self.nodes[self.node(node)].store.tell_held(),
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
            Decision::Orphan { session } => {
                let session = Self::pick(&self.sessions, session).unwrap_or(0);
                self.orphan(session);
            }
            Decision::Forget { session, node } => {
                let session = Self::pick(&self.sessions, session).unwrap_or(0);
                self.forget(session, self.node(node));
            }
            Decision::Drain { node, retry_ms } => {
                let at = self.node(node);
                if self.nodes[at].is_paused {
                    return;
                }
                self.count("drains");
                for session in 0..self.sessions.len() {
                    let is_here = self.sessions[session].node() == Some(at)
                        || self.readers.iter().any(|reader| reader.session == session && reader.node == at);
                    if self.setup.is_old && is_here {
                        self.permit_ends(session, Why::Cancelled);
                    }
                }
                self.nodes[at].is_draining = true;
                self.nodes[at].engine.drain(Drain::after(retry_ms));
            }
            Decision::RollBack { stream, by } => {
                self.set_back(self.a_stream(stream), by);
            }
            Decision::Hint { pick, twice } => {
                let hint = {
                    let mut sea = self.sea();
                    let Some(at) = Self::pick(&sea.hints, pick) else { return };
                    if twice { sea.hints[at].clone() } else { sea.hints.remove(at) }
                };
                if self.is_told(&hint) {
                    self.nodes[hint.node].store.tell(&hint);
                } else if !twice {
                    self.sea().hints.push(hint);
                }
            }
            Decision::Advance { ms } => self.advance(ms),
            Decision::Outage { stream, ms, is_suspended } => {
                self.count(if is_suspended { "suspensions" } else { "outages" });
                self.outage(self.a_stream(stream), ms, is_suspended);
            }
            Decision::Task(decision) => self.decide_task(decision),
            Decision::SetClock { node, ms, is_back } => {
                self.count("clocks set");
                let node = self.node(node);
                self.sea().set_clock(node, ms, is_back);
            }
        }
    }

    /// The host ends a session.
    pub(crate) fn end_session(&mut self, at: usize) {
        // One that another process has is not this one's to end.
        let Some(handle) = self.home(at).filter(|handle| !handle.has_ended()) else { return };
        let is_drained = self.sessions[at].node().is_some_and(|node| self.nodes[node].is_draining);
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

    /// Where a client's request comes in: at the session's own process every other time.
    fn entrance(&self, session: usize, node: u64) -> usize {
        match self.sessions[session].node() {
            Some(home) if node.is_multiple_of(2) => home,
            _ => self.node(node / 2),
        }
    }

    /// Does everything that can be done, one operation of each node after the other.
    pub(crate) fn do_in_turns(&self) {
        let turn = |node: &&Node| {
            node.store.tell_held();
            node.store.decide(0, Fate::Done)
        };
        while self.nodes.iter().filter(turn).count() > 0 {}
    }

    fn fate(&self, node: u64, pick: u64, fate: Fate) {
        self.nodes[self.node(node)].store.decide(pick, fate);
    }

    fn probe(&mut self, stream: usize, node: usize) {
        let Stream { session, request, ref ids, .. } = self.streams[stream];
        let (Some(_), Some(id)) = (request, ids.first()) else { return };
        let Some(other) = (0..self.sessions.len()).find(|other| *other != session) else { return };
        if self.sessions[other].has_ended || !self.nodes[node].is_answered() {
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
