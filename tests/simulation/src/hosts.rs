//! The hosts of a session: the one that has it, and earlier ones that have not heard of another. A store that is set back may say
//! again that the session is an earlier host's.

use std::collections::BTreeMap;

use tailrope_checker::{Fact, N, Why};
use tailrope_core::engine::{Clock, Posted, SessionHandle};

use crate::node_store::Mode;
use crate::world::{Session, Stream, World};

/// By then a process has looked whether an owner is gone.
const LOOKS_MS: u64 = 2_000;

/// A session in a process, and what the host there knows of it.
pub(crate) struct Host {
    pub(crate) node: usize,
    pub(crate) handle: SessionHandle,
    /// How many hosts had the session before it.
    pub(crate) generation: u64,
    /// It knows that another process has the session.
    is_fenced: bool,
    /// What was relayed to the session and is not taken yet.
    pub(crate) posted: Vec<Posted>,
    /// Messages whose outcome is not known yet.
    pub(crate) pending: BTreeMap<u64, (usize, N)>,
}

impl Host {
    pub(crate) fn new(node: usize, handle: SessionHandle, generation: u64) -> Self {
        let (is_fenced, posted, pending) = Default::default();
        Self { node, handle, generation, is_fenced, posted, pending }
    }
}

impl Session {
    /// The process where it lives.
    pub(crate) fn node(&self) -> Option<usize> {
        self.home.as_ref().map(|host| host.node)
    }

    /// Which of its hosts has it.
    pub(crate) fn generation(&self) -> Option<u64> {
        self.home.as_ref().map(|host| host.generation)
    }

    /// A host adopts it.
    pub(crate) fn next_host(&mut self, node: usize, handle: &SessionHandle) -> Host {
        self.adoptions += 1;
        Host::new(node, handle.clone(), self.adoptions)
    }

    /// Another host has it from now on; none where nobody has it.
    pub(crate) fn goes_to(&mut self, host: Option<Host>) {
        self.earlier.extend(std::mem::replace(&mut self.home, host));
    }

    /// The process is gone.
    pub(crate) fn loses(&mut self, node: usize) {
        self.home.take_if(|host| host.node == node);
        self.earlier.retain(|host| host.node != node);
    }
}

impl World {
    /// The session where it lives, if that process runs.
    pub(crate) fn home(&self, session: usize) -> Option<SessionHandle> {
        let host = self.sessions[session].home.as_ref()?;
        (!self.nodes[host.node].is_paused).then(|| host.handle.clone())
    }

    /// Whether the handlers of the session's host were given the request of a stream.
    pub(crate) fn is_run_by_owner(&self, stream: usize) -> bool {
        let Stream { session, request, run_by, .. } = &self.streams[stream];
        request.is_none() || self.sessions[*session].generation().is_some_and(|host| run_by.contains_key(&host))
    }

    /// The host in a process has begun a call that came there.
    pub(crate) fn begun_at(&mut self, stream: usize, node: usize) {
        let Session { home, earlier, .. } = &self.sessions[self.streams[stream].session];
        let host = home.iter().chain(earlier.iter().rev()).find(|host| host.node == node);
        let generation = host.map(|host| host.generation);
        self.streams[stream].run_by.extend(generation.map(|generation| (generation, false)));
    }

    /// An earlier host goes on where the store says again that the session is its own, unless it has heard of another one.
    pub(crate) fn note_returned(&mut self) {
        for at in 0..self.sessions.len() {
            let Session { home, earlier, .. } = &mut self.sessions[at];
            earlier.retain(|host| !host.handle.has_ended());
            if earlier.is_empty() || home.as_ref().is_some_and(|host| !host.handle.has_ended()) {
                continue;
            }
            let owner = self.sea().owner_of(&self.sessions[at].name);
            let is_owner = |host: &Host| owner == Some(self.nodes[host.node].store.owner);
            let Some(place) = self.sessions[at].earlier.iter().rposition(is_owner) else { continue };
            self.count("sessions that earlier hosts have again");
            let known = &mut self.sessions[at];
            known.home = Some(known.earlier.remove(place));
        }
    }

    /// The process of a session stands still, `other` has the session and crashes, and the store forgets that.
    pub(crate) fn forget(&mut self, session: usize, other: usize) {
        let Some(home) = self.sessions[session].node().filter(|home| *home != other) else { return };
        let began = self.clock.now();
        self.nodes[home].is_paused = true;
        self.nodes[other].store.state().mode = Mode::Now;
        self.call(session, other);
        self.run();
        self.advance(self.setup.owner_lost_ms[other] + LOOKS_MS);
        self.crash(other, 0);
        let lost_ms = self.clock.now().since(began + 1);
        self.set_back(session, 4 * lost_ms + 1);
        self.nodes[home].is_paused = false;
    }

    /// What an owner runs that another process took for gone ends, also what that process does not know of.
    pub(crate) fn note_fenced(&mut self) {
        for at in 0..self.sessions.len() {
            let Session { name, home, .. } = &self.sessions[at];
            let ended = home.as_ref().filter(|host| !host.is_fenced && host.handle.has_ended());
            if ended.is_some_and(|host| self.sea().is_inherited(name, self.nodes[host.node].store.owner)) {
                self.sessions[at].home.iter_mut().for_each(|host| host.is_fenced = true);
                self.count("sessions that ended because another process has them");
                self.permit_ends(at, Why::OwnerLost);
                self.note_unborn(at);
            }
        }
    }

    /// An owner does not know that the store has a log of whose first append it has not heard, and without an id its client can
    /// not come back for it.
    pub(crate) fn note_unborn(&self, session: usize) {
        let is_unborn =
            |stream: &&Stream| stream.session == session && stream.ids.is_empty() && stream.ahead == stream.emitted;
        for stream in self.streams.iter().filter(is_unborn) {
            for n in (1..=stream.emitted).map(N::Event) {
                let (session, stream) = (self.sessions[session].name.clone(), stream.name.clone());
                self.tell(Fact::Unsure { session, stream, n });
            }
        }
    }

    pub(crate) fn permit_ends(&self, session: usize, why: Why) {
        let requests = self.streams.iter().filter(|stream| stream.session == session && stream.request.is_some());
        let mut sea = self.sea();
        requests.for_each(|stream| sea.gone(&self.sessions[session].name, Some(stream.name.clone()), why));
    }
}
