//! One session in the engine: what is known of it, behind its lock. What changes it is a [`Change`](super::change::Change).

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::Ms;
use crate::engine::connections::Wake;
use crate::engine::connections::conn::Conn;
use crate::engine::connections::relays::Relays;
use crate::engine::logs::log::{Watched, Writing};
use crate::engine::sessions::SendOutcome;
use crate::engine::sessions::adopting::Adoption;
use crate::engine::sessions::inbox::Inbox;
use crate::engine::sessions::messages::Sender;
use crate::engine::sessions::timers::Timers;
use crate::engine::shared::{Shared, lock};
use crate::exchange::{AnswerHead, Principal, Requester, Turns};
use crate::maps::OwnMap;
use crate::protocol::{Dialect, Refusal, RequestId, StreamNonce};
use crate::session::Session;
use crate::store::{
    Attached, Complete, Epoch, Operation, Owner, SessionId, SessionRecord, StoreError, StreamKey, Ticket, session_name,
};
use crate::stream::{ConnectionId, Cuts};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Mutex, Weak};

/// Stands for the session itself, not for a stream, in writes and questions to the store. It has no positions.
pub(crate) const SESSION: StreamNonce = StreamNonce::NONE;

/// What a function of the operator calls a user.
#[derive(Clone)]
pub(crate) struct User {
    pub(crate) name: Box<str>,
    /// It is the one for names of users, so they are shown not in the log alone.
    is_shown: bool,
}

impl User {
    pub(crate) fn of(requester: &Requester<'_>) -> Option<Self> {
        let is_shown = requester.log_user.is_some_and(|name| !name.is_empty());
        requester.log_name().map(|name| Self { name, is_shown })
    }

    /// The name for the live page: only what the operator's function for that says.
    pub(crate) fn shown(&self) -> Option<Box<str>> {
        self.is_shown.then(|| self.name.clone())
    }
}

pub(crate) struct State {
    pub(crate) session: Session,
    /// Whose session it is: nobody else finds it (I7).
    pub(crate) principal: Option<Principal>,
    /// What records call its user, where the operator's functions say it.
    pub(crate) user: Option<User>,
    /// Boxed: a map has room for several entries from its first one on, and most sessions use one.
    pub(crate) conns: OwnMap<ConnectionId, Box<Conn>>,
    pub(crate) json: HashMap<RequestId, ConnectionId>,
    /// Answers in JSON that wait until the store has what is known of the session.
    pub(crate) json_answers: Vec<(ConnectionId, AnswerHead, Vec<u8>)>,
    /// Late outcomes that the host has not taken yet.
    pub(crate) outcomes: Vec<SendOutcome>,
    /// The senders that wait for the store, by the token of their message.
    pub(crate) senders: OwnMap<u64, Sender>,
    /// Why an event was not stored whose sender did not wait, by stream.
    pub(crate) failures: OwnMap<StreamNonce, StoreError>,
    /// How many of the bytes that wait for the store in this engine are this session's.
    pub(crate) unanswered: u64,
    /// How many of the streams whose clients are expected to come back are this session's.
    pub(crate) awaited: u64,
    pub(crate) errors: OwnMap<StreamNonce, StoreError>,
    /// Questions that the store has not answered.
    pub(crate) questions: OwnMap<u64, Ticket>,
    pub(crate) timers: Timers,
    /// Writes to logs that the store has not answered.
    pub(crate) writing: OwnMap<StreamNonce, Writing>,
    /// Requests that are on their way to the session's owner.
    pub(crate) relays: Relays,
    /// What other processes relay to the session.
    pub(crate) inbox: Inbox,
    /// Whether this process adopts the session of another process.
    pub(crate) adoption: Adoption,
    /// If this session was adopted here: the view that it comes from. If this is that view: the session that was
    /// adopted. The store does not tell one of the other, because both are in one process.
    pub(crate) beside: Option<Weak<Cell>>,
    /// Streams that another process writes, with the requests that they were opened for.
    pub(crate) followed: BTreeMap<StreamNonce, Vec<RequestId>>,
    /// Since when the logs of some of these are gone.
    pub(crate) gone: OwnMap<StreamNonce, Ms>,
    /// When the store said last that it may have been set back.
    pub(crate) disturbed: Option<Ms>,
    /// Streams that other processes may read or write.
    pub(crate) watched: OwnMap<StreamNonce, Watched>,
    /// The store tells what other processes do to the session.
    pub(crate) is_watching: bool,
    /// What the store told of the stream of a connection that is about to be opened.
    pub(crate) arrived: Option<(ConnectionId, Attached)>,
    /// Every write names this epoch.
    pub(crate) epoch: Epoch,
    /// Another process has the session.
    pub(crate) is_fenced: bool,
    /// If the session lives elsewhere: its owner, as it was seen last.
    pub(crate) owner: Option<Owner>,
    /// If that owner is gone, the session is not taken over once more before this time.
    pub(crate) inherit_again: Ms,
    /// When that owner is next told that its client is connected here.
    pub(crate) sign_at: Option<Ms>,
    /// What its handlers have sent since the writers of connections last ran.
    pub(crate) turns: Turns,
    /// A host that was told that the session is idle, and keeps it, is not told again before this time.
    pub(crate) idle_again: Ms,
    /// The last sign of the client that was known when other processes were last checked for a later one.
    pub(crate) looked_since: Option<Ms>,
    /// It is about to end, for a newer session or because another process has it: nothing opens in it any more.
    pub(crate) is_ending: bool,
    /// It ends once nothing runs in it.
    pub(crate) ends_at_rest: bool,
    /// The version of the session's facts that the store was given last. None if it was given none, or has to be given
    /// them again.
    pub(crate) facts_put: Option<u32>,
    /// The store may have been set back: it is asked what it has of the session.
    pub(crate) wants_stock: bool,
    pub(crate) next_token: u64,
    /// When the engine looks at the session next.
    pub(crate) scheduled: Ms,
}

/// What a session is called.
#[derive(Clone)]
pub(crate) struct Names {
    /// The server that it is of; empty if the host does not know.
    pub(crate) server: Arc<str>,
    /// What its client calls it. It is a credential.
    pub(crate) id: Arc<str>,
    /// What the store and log lines call it. A session of another server with the same id has another name.
    pub(crate) name: Arc<str>,
}

impl From<SessionId<'_>> for Names {
    fn from(id: SessionId<'_>) -> Self {
        Self { server: id.server().into(), id: id.id().into(), name: session_name(id) }
    }
}

pub(crate) struct Cell {
    pub(crate) shared: Arc<Shared>,
    pub(crate) server: Arc<str>,
    pub(crate) id: Arc<str>,
    /// See [`Names`].
    pub(crate) name: Arc<str>,
    pub(crate) number: u64,
    pub(crate) dialect: &'static Dialect,
    pub(crate) me: Weak<Self>,
    /// What cuts the connections of its server, if that is to be learned.
    pub(crate) cuts: Option<Arc<Mutex<Cuts>>>,
    pub(crate) wake: (Arc<dyn Wake>, u64),
    /// This engine must not drop the logs: the session lives elsewhere, or its logs stay in the store.
    pub(crate) keeps_logs: AtomicBool,
    elsewhere: AtomicBool,
    /// It counts for the bounds of sessions.
    pub(crate) has_place: AtomicBool,
    pub(crate) state: Mutex<State>,
}

impl State {
    /// What stores know the session's principal as.
    pub(crate) fn identity(&self) -> Option<Box<str>> {
        self.principal.as_ref().map(|principal| principal.identity().into())
    }

    /// The name of the user for the live page: only what the operator's function for that says.
    pub(crate) fn shown_user(&self) -> Option<Box<str>> {
        self.user.as_ref().and_then(User::shown)
    }

    /// Whether the session goes on here.
    pub(crate) fn is_open(&self) -> bool {
        !self.session.has_ended() && !self.is_ending && !self.is_fenced
    }

    /// Forgets a stream that has no machine any more.
    pub(crate) fn forget(&mut self, nonce: StreamNonce) {
        self.watched.remove(&nonce);
        self.failures.remove(&nonce);
        self.errors.remove(&nonce);
    }
}

impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Cell {
    pub(crate) fn new(
        shared: Arc<Shared>,
        Names { server, id, name }: Names,
        now: Ms,
        principal: Option<&Principal>,
        dialect: &'static Dialect,
        wake: (Arc<dyn Wake>, u64),
    ) -> Arc<Self> {
        let mut session = Session::new(now, shared.options.pacing);
        session.record_results(shared.options.log_calls || shared.live.is_watched(now));
        let epoch = Epoch { number: 1, salt: shared.salt() };
        let number = shared.number();
        let cuts = shared.cuts_of(&server);
        let limits = shared.options.limits;
        let turns = Turns::new(limits.max_events_per_stream, limits.max_bytes_per_stream);
        Arc::new_cyclic(|me| Self {
            shared,
            server,
            id,
            name,
            number,
            dialect,
            me: me.clone(),
            cuts,
            wake,
            keeps_logs: AtomicBool::new(false),
            elsewhere: AtomicBool::new(false),
            has_place: AtomicBool::new(false),
            state: Mutex::new(State {
                session,
                principal: principal.cloned(),
                user: None,
                conns: OwnMap::default(),
                json: HashMap::new(),
                json_answers: Vec::new(),
                outcomes: Vec::new(),
                senders: OwnMap::default(),
                failures: OwnMap::default(),
                unanswered: 0,
                awaited: 0,
                errors: OwnMap::default(),
                questions: OwnMap::default(),
                timers: Timers::default(),
                writing: OwnMap::default(),
                relays: Relays::default(),
                inbox: Inbox::default(),
                adoption: Adoption::default(),
                beside: None,
                followed: BTreeMap::new(),
                gone: OwnMap::default(),
                disturbed: None,
                watched: OwnMap::default(),
                is_watching: false,
                arrived: None,
                epoch,
                is_fenced: false,
                owner: None,
                inherit_again: Ms(0),
                sign_at: None,
                turns,
                idle_again: Ms(0),
                looked_since: None,
                is_ending: false,
                ends_at_rest: false,
                facts_put: None,
                wants_stock: false,
                next_token: 1,
                scheduled: Ms::NEVER,
            }),
        })
    }

    pub(crate) fn now(&self) -> Ms {
        self.shared.clock.now()
    }

    pub(crate) fn names(&self) -> Names {
        Names { server: Arc::clone(&self.server), id: Arc::clone(&self.id), name: Arc::clone(&self.name) }
    }

    pub(crate) fn key(&self, nonce: StreamNonce) -> StreamKey {
        StreamKey { session: Arc::clone(&self.name), nonce }
    }

    pub(crate) fn ticket(&self, nonce: StreamNonce, operation: Operation) -> Ticket {
        let to: Weak<dyn Complete> = self.me.clone();
        Ticket { to, nonce, operation, number: self.shared.number() }
    }

    /// A ticket for an operation that nobody waits for.
    pub(crate) fn ticket_of_nobody(&self, nonce: StreamNonce, operation: Operation) -> Ticket {
        let to: Weak<Self> = Weak::new();
        Ticket { to, ..self.ticket(nonce, operation) }
    }

    /// Sets after how many milliseconds without anything the session is idle; 0 means never.
    pub(crate) fn set_idle_ms(&self, idle_ms: u64) {
        self.shared.note_idle_ms(idle_ms);
        self.change_or((), |change| change.state.session.set_idle_ms(idle_ms));
    }

    /// Makes this the view of a session that was opened elsewhere.
    pub(crate) fn show(&self, record: &SessionRecord) {
        self.keeps_logs.store(true, Ordering::SeqCst);
        self.elsewhere.store(true, Ordering::SeqCst);
        self.shared.note_idle_ms(self.shared.options.session_idle_ms);
        let SessionRecord { revision, retry_ms, list_changed, standalone, .. } = *record;
        lock(&self.state).session.assume(revision, retry_ms, list_changed, standalone);
    }

    /// Looks at the state of the session. In the child of a fork, returns `forked` instead.
    pub(crate) fn look_or<T>(&self, forked: T, look: impl FnOnce(&State) -> T) -> T {
        if self.is_forked() { forked } else { look(&lock(&self.state)) }
    }

    pub(crate) fn is_elsewhere(&self) -> bool {
        self.elsewhere.load(Ordering::Relaxed)
    }

    pub(crate) fn belongs_to(&self, principal: Option<&Principal>) -> bool {
        self.look_or(false, |state| state.principal.as_ref() == principal)
    }

    /// A request of this principal has come, which is a sign of the client. None if the principal may not use the
    /// session. Otherwise whether the session goes on, and the answer if it does not.
    pub(crate) fn requested(
        &self,
        principal: Option<&Principal>,
        requester: Option<&Requester<'_>>,
    ) -> Option<Result<(), Refusal>> {
        if self.is_forked() {
            return None;
        }
        let now = self.now();
        let mut state = lock(&self.state);
        if state.principal.as_ref() != principal {
            return None;
        }
        state.session.contact(now);
        if state.user.is_none() {
            state.user = requester.and_then(User::of);
        }
        Some(if state.is_open() { Ok(()) } else { Err(self.over(&state)) })
    }

    /// The answer to a request for a session that is over here. If another process has the session, or may take it, it
    /// goes on there, and its client has to come back.
    pub(crate) fn over(&self, state: &State) -> Refusal {
        let is_left = state.session.is_draining() && self.keeps_logs.load(Ordering::SeqCst);
        let wording = self.dialect.wording;
        if state.is_fenced || is_left { wording.session_unread() } else { wording.session_ended() }
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.shared.is_forked()
    }

    /// Whether the session has ended, at least here. The child of a fork has no sessions.
    pub(crate) fn has_ended(&self) -> bool {
        self.look_or(true, |state| state.session.has_ended() || state.is_fenced)
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        if self.is_elsewhere() {
            lock(&self.shared.timed).remove(&self.number);
            self.renounce(&lock(&self.state));
        }
        self.count(&mut lock(&self.state), 0, 0);
        self.unwatch_all(&mut lock(&self.state));
    }
}
