//! One session in the engine: its lock, its connections, and what happens around a change.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use super::conn::Conn;
use super::connection::{Poll, Wake};
use super::following::Followed;
use super::handle::{OutgoingMessage, SendOutcome, Sent};
use super::lines::{Line, log_later};
use super::outbox::Sender;
use super::seeks::Seek;
use super::stats::Counters;
use super::waits::{Waited, Waits};
use super::watching::Watched;
use super::writing::Writing;
use super::{EngineError, Shared, lock};
use crate::Ms;
use crate::exchange::{AnswerHead, Pace, Pause, Turn};
use crate::protocol::{Dialect, Envelope, Kind, RequestId, StreamNonce};
use crate::session::{OutgoingKind, Session, Step, SynthesizedEnd, end_payload};
use crate::store::{
    Attached, Complete, Epoch, Operation, Outcome, OwnIds, Owner, SessionRecord, StoreError, StreamKey, Ticket,
    session_name,
};
use crate::stream::{CloseReason, ConnectionId, Input};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Mutex, Weak};

/// Names the session itself among what is written.
pub(super) const SESSION: StreamNonce = StreamNonce([0; 12]);
/// What one page of a connection holds when nobody asked for another size.
pub(super) const PAGE_BYTES: usize = 64 << 10;
pub(super) struct State {
    pub(super) session: Session,
    pub(super) conns: HashMap<ConnectionId, Conn>,
    pub(super) json: HashMap<RequestId, ConnectionId>,
    /// Late outcomes that the host has not taken yet.
    pub(super) outcomes: Vec<SendOutcome>,
    /// Outcomes of the change under way. A response that the store did not take is
    /// [`Sent::Dropped`]: the engine answers for it, and raising would kill the SDK's session (I9).
    pub(super) results: Vec<(StreamNonce, u64, Result<Sent, StoreError>)>,
    /// Who waits for the store, by message.
    pub(super) senders: HashMap<u64, Sender>,
    /// Why an event of a stream was not stored whose sender did not wait.
    pub(super) failures: HashMap<StreamNonce, StoreError>,
    /// Bytes that this session has among those that the engine waits for the store with.
    pub(super) unanswered: u64,
    pub(super) errors: HashMap<StreamNonce, StoreError>,
    /// Connections to look at when the change is done.
    pub(super) touched: Vec<ConnectionId>,
    /// What the change has to log.
    pub(super) lines: Vec<Line>,
    /// The store was given something that it will answer later.
    pub(super) asked_later: bool,
    /// What was asked of the store and is not answered.
    pub(super) waits: Waits,
    /// What the store has to do to logs and has not answered.
    pub(super) writing: HashMap<StreamNonce, Writing>,
    /// Connections whose stream the store has to tell first.
    pub(super) seeks: BTreeMap<ConnectionId, Seek>,
    /// Streams that another process writes.
    pub(super) followed: BTreeMap<StreamNonce, Followed>,
    /// Streams that other processes may read or write.
    pub(super) watched: HashMap<StreamNonce, Watched>,
    /// The store tells what other processes do to the session.
    pub(super) is_watching: bool,
    /// What the store told of the stream of a connection that is about to come.
    pub(super) arrived: Option<(ConnectionId, Attached)>,
    /// What is written names this epoch.
    pub(super) epoch: Epoch,
    /// Another process has the session.
    pub(super) is_fenced: bool,
    /// The session's owner, of one that lives elsewhere, as it was seen last.
    pub(super) owner: Option<Owner>,
    /// What its handlers have sent since the writers of connections ran.
    pub(super) pace: Pace,
    /// A host that was told that the session is idle, and keeps it, is not told again before this time.
    idle_again: Ms,
    /// It is about to end, for a newer session or because another process has it: nothing opens in it any more.
    pub(super) is_ending: bool,
    /// The version of what is known of the session that the store was given last; none where it is to be given it again.
    pub(super) facts_put: Option<u32>,
    /// The store may have been set back: it is asked what it has of the session.
    pub(super) wants_stock: bool,
    pub(super) next_token: u64,
    /// When the engine looks at the session next.
    pub(super) scheduled: Ms,
}

pub(super) struct Cell {
    pub(super) shared: Arc<Shared>,
    pub(super) id: Arc<str>,
    /// What the store and the log know it by.
    pub(super) name: Arc<str>,
    pub(super) number: u64,
    pub(super) dialect: &'static Dialect,
    pub(super) me: Weak<Self>,
    wake: (Arc<dyn Wake>, u64),
    /// The logs are not this engine's to drop: the session lives elsewhere, or its store goes on.
    pub(super) keeps_logs: AtomicBool,
    adopted: AtomicBool,
    /// It counts for the bounds of sessions.
    pub(super) has_place: AtomicBool,
    pub(super) state: Mutex<State>,
}

/// What a newcomer without a place finds.
pub(super) enum Look {
    /// Nothing holds the session.
    GivesWay,
    HasEnded,
    /// It had contact later than was known.
    HadContact(Ms),
    IsInUse,
}

impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Cell {
    pub(super) fn new(
        shared: Arc<Shared>,
        id: Arc<str>,
        now: Ms,
        principal: Option<&str>,
        dialect: &'static Dialect,
        wake: (Arc<dyn Wake>, u64),
    ) -> Arc<Self> {
        let session = Session::new(now, principal, shared.options.pacing);
        let epoch = Epoch { number: 1, salt: shared.salt() };
        let number = shared.number();
        let limits = shared.options.limits;
        let pace = Pace::new(limits.max_events_per_stream, limits.max_bytes_per_stream);
        Arc::new_cyclic(|me| Self {
            shared,
            name: session_name(&id),
            id,
            number,
            dialect,
            me: me.clone(),
            wake,
            keeps_logs: AtomicBool::new(false),
            adopted: AtomicBool::new(false),
            has_place: AtomicBool::new(false),
            state: Mutex::new(State {
                session,
                conns: HashMap::new(),
                json: HashMap::new(),
                outcomes: Vec::new(),
                results: Vec::new(),
                senders: HashMap::new(),
                failures: HashMap::new(),
                unanswered: 0,
                errors: HashMap::new(),
                touched: Vec::new(),
                lines: Vec::new(),
                asked_later: false,
                waits: Waits::default(),
                writing: HashMap::new(),
                seeks: BTreeMap::new(),
                followed: BTreeMap::new(),
                watched: HashMap::new(),
                is_watching: false,
                arrived: None,
                epoch,
                is_fenced: false,
                owner: None,
                pace,
                idle_again: Ms(0),
                is_ending: false,
                facts_put: None,
                wants_stock: false,
                next_token: 1,
                scheduled: Ms::NEVER,
            }),
        })
    }

    pub(super) fn now(&self) -> Ms {
        self.shared.clock.now()
    }

    pub(super) fn key(&self, nonce: StreamNonce) -> StreamKey {
        StreamKey { session: Arc::clone(&self.name), nonce }
    }

    pub(super) fn ticket(&self, nonce: StreamNonce, operation: Operation) -> Ticket {
        let to: Weak<dyn Complete> = self.me.clone();
        Ticket { to, nonce, operation, number: self.shared.number() }
    }

    /// Runs a change under the lock. After it is released, wakes the hosts that have something to do, and logs.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut State, Ms) -> T) -> T {
        let mut state = lock(&self.state);
        // Behind the lock, so that no change comes with an older time than the one before it.
        let now = self.now();
        let value = change(&mut state, now);
        self.take_stock(&mut state, now);
        self.keep_facts(&mut state, now);
        let mut wakes = Vec::new();
        let touched = std::mem::take(&mut state.touched);
        for id in &touched {
            if let Some(conn) = state.conns.get_mut(id).filter(|conn| !conn.awake) {
                conn.awake = true;
                wakes.push((Arc::clone(&conn.wake), conn.key));
            }
        }
        self.settle_senders(&mut state);
        if std::mem::take(&mut state.asked_later) {
            let (wake, key) = &self.wake;
            wakes.push((Arc::clone(wake), *key));
        }
        let mut deadline = state.session.deadline().min(state.waits.deadline());
        if !state.seeks.is_empty() {
            deadline = deadline.min(state.seek_deadline(self.shared.options.pacing.keep_alive_ms));
        }
        if !state.followed.is_empty() {
            deadline = deadline.min(state.follow_deadline());
        }
        deadline = deadline.min(self.idle_deadline(&state));
        if deadline < state.scheduled {
            // Under the session's lock, so that no later change of it is overtaken.
            self.shared.schedule(state.scheduled, deadline, self.number);
            state.scheduled = deadline;
        }
        // Keeps its capacity for the next change.
        state.touched = touched;
        state.touched.clear();
        let lines = std::mem::take(&mut state.lines);
        let is_lost = state.is_fenced && !state.session.has_ended() && !std::mem::replace(&mut state.is_ending, true);
        drop(state);
        if is_lost {
            self.end_fenced();
        }
        for (wake, key) in wakes {
            wake.wake(key);
        }
        for line in lines {
            line();
        }
        value
    }

    /// Runs a change that produces steps, and performs them.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State, Ms, &mut Vec<Step>) -> T) -> T {
        self.with(|state, now| {
            let mut steps = Vec::new();
            let value = change(state, now, &mut steps);
            self.perform(state, now, steps);
            value
        })
    }

    /// The time `at` that was scheduled has come. Returns whether the session is idle now.
    pub(super) fn tick(&self, at: Ms) -> bool {
        self.change(|state, now, steps| {
            if at != state.scheduled {
                return false;
            }
            state.scheduled = Ms::NEVER;
            state.session.tick(now, steps);
            self.give_up(state, now);
            self.tick_seeks(state, now, steps);
            self.tick_followed(state, now, steps);
            let is_idle = self.idle_deadline(state) <= now;
            if is_idle {
                state.idle_again = now + self.shared.max_pause_ms();
            }
            is_idle
        })
    }

    /// When the host is told that the session is idle (I11).
    fn idle_deadline(&self, state: &State) -> Ms {
        // One that lives elsewhere is not this host's to end.
        if self.is_adopted() || state.session.has_ended() {
            return Ms::NEVER;
        }
        state.session.idle_at(self.shared.options.max_detached_ms).max(state.idle_again)
    }

    /// Sets after how long without anything the session is idle, in milliseconds; 0 is never.
    pub(super) fn set_idle_ms(&self, idle_ms: u64) {
        self.shared.note_idle_ms(idle_ms);
        self.with_or((), |state, _| state.session.set_idle_ms(idle_ms));
    }

    /// Makes this the view of a session that was opened elsewhere.
    pub(super) fn adopt(&self, record: &SessionRecord) {
        self.keeps_logs.store(true, Ordering::SeqCst);
        self.adopted.store(true, Ordering::SeqCst);
        let SessionRecord { revision, retry_ms, list_changed, standalone, .. } = *record;
        lock(&self.state).session.adopt(revision, retry_ms, list_changed, standalone);
    }

    pub(super) fn is_adopted(&self) -> bool {
        self.adopted.load(Ordering::Relaxed)
    }

    pub(super) fn claim(&self, principal: Option<&str>) {
        self.with_or((), |state, _| state.session.claim(principal));
    }

    pub(super) fn belongs_to(&self, principal: Option<&str>) -> bool {
        !self.is_forked() && lock(&self.state).session.belongs_to(principal)
    }

    /// A request of this principal has come, which is a sign of its client. None where it may not use the session;
    /// otherwise whether the session goes on.
    pub(super) fn asked(&self, principal: Option<&str>) -> Option<bool> {
        if self.is_forked() {
            return None;
        }
        let now = self.now();
        let mut state = lock(&self.state);
        if !state.session.belongs_to(principal) {
            return None;
        }
        state.session.contact(now);
        Some(!state.session.has_ended() && !state.is_ending)
    }

    pub(super) fn is_forked(&self) -> bool {
        self.shared.is_forked()
    }

    /// As [`with`](Self::with); in the child of a fork nothing but this value.
    pub(super) fn with_or<T>(&self, forked: T, change: impl FnOnce(&mut State, Ms) -> T) -> T {
        if self.is_forked() { forked } else { self.with(change) }
    }

    /// Forgets a connection. `more` when its stream may have something to come back for.
    pub(super) fn detach(&self, state: &mut State, now: Ms, id: ConnectionId, more: bool) -> Option<Conn> {
        let conn = state.conns.remove(&id)?;
        state.seeks.remove(&id);
        if let Some(ticket) = &conn.attaching {
            self.call_off_attach(state, ticket);
        }
        let retry_ms = conn.retry_ms.unwrap_or_else(|| state.session.retry_ms());
        state.session.disconnected(now, more.then_some(retry_ms));
        if let Some((number, wait)) = conn.replay {
            state.waits.remove(wait);
            if let Some(host) = self.shared.store.own_ids().and_then(OwnIds::host) {
                host.forget_replay(&self.name, number);
            }
        }
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        Some(conn)
    }

    pub(super) fn poll(&self, id: ConnectionId, max_bytes: usize) -> Poll {
        let over = |now| Poll {
            head: Some(AnswerHead::EMPTY),
            chunks: Vec::new(),
            end: Some(CloseReason::Superseded),
            wait_until: now,
        };
        self.with_or(over(Ms(0)), |state, now| {
            let Some(conn) = state.conns.get_mut(&id) else {
                // Fenced, or its session ended, and it was told before.
                return over(now);
            };
            conn.awake = true;
            if conn.outbox.is_empty() && conn.end.is_none() && conn.join.is_none() {
                conn.page_bytes = max_bytes;
                self.write_next(state, now, id);
            }
            let machine = state.conns.get(&id).and_then(|conn| state.session.stream(conn.nonce));
            let mut wait_until = machine.map_or(Ms::NEVER, |stream| stream.machine.deadline());
            if !state.seeks.is_empty() {
                wait_until = wait_until.min(state.seek_deadline(self.shared.options.pacing.keep_alive_ms));
            }
            // It may be the store that is waited for.
            wait_until = wait_until.min(state.waits.deadline());
            let Some(conn) = state.conns.get_mut(&id) else { return over(now) };
            conn.awake = false;
            // One that ends before anybody knows how it starts has nothing to say.
            let head = conn.head.or_else(|| conn.end.map(|_| AnswerHead::EMPTY));
            let poll = Poll { head, chunks: std::mem::take(&mut conn.outbox), end: conn.end, wait_until };
            if let Some(why) = poll.end {
                self.detach(state, now, id, why != CloseReason::Complete);
            }
            poll
        })
    }

    /// Lets a connection that can take more have what is there.
    fn write_next(&self, state: &mut State, now: Ms, id: ConnectionId) {
        while let Some(conn) = state.conns.get(&id).filter(|conn| conn.outbox.is_empty() && conn.end.is_none()) {
            let (nonce, mut steps) = (conn.nonce, Vec::new());
            let _ = state.session.handle(now, nonce, Input::Ready { conn: id }, &mut steps);
            self.perform(state, now, steps);
            let touched = state.touched.len();
            // What was written for it the caller hands over. Where nothing was, it was woken for something else.
            state.touched.retain(|touched| *touched != id);
            if state.touched.len() == touched {
                return;
            }
        }
    }

    pub(super) fn lost(&self, id: ConnectionId) {
        if self.is_forked() {
            return;
        }
        self.change(|state, now, steps| {
            let Some(nonce) = state.conns.get(&id).map(|conn| conn.nonce) else { return };
            let unfinished = state.session.stream(nonce).is_some();
            self.detach(state, now, id, unfinished);
            Counters::add(&self.shared.counters.connections_lost, 1);
            log_later!(self, state, DEBUG, [stream = nonce.hex()], %stream, connection = id, unfinished, "connection lost");
            let _ = state.session.handle(now, nonce, Input::Lost { conn: id }, steps);
        });
        self.let_go();
    }

    /// An adopted session that has no connection is forgotten.
    pub(super) fn let_go(&self) {
        if self.is_adopted() && !self.is_forked() {
            self.release(|cell| lock(&cell.state).conns.is_empty());
        }
    }

    pub(super) fn received(&self, envelopes: &[Envelope]) {
        self.with_or((), |state, now| {
            state.session.contact(now);
            for envelope in envelopes.iter().filter(|e| matches!(e.kind, Kind::Response | Kind::ErrorResponse)) {
                if let Some((nonce, seq)) = envelope.id.as_ref().and_then(|id| state.session.settle_question(id)) {
                    self.shared.store.settle(&self.key(nonce), state.epoch, seq);
                }
            }
        });
    }

    pub(super) fn send(&self, message: OutgoingMessage<'_>, turn: Turn) -> Result<(Sent, Pause), EngineError> {
        self.shared.check()?;
        let (kind, bytes) = (message.kind, message.payload.len());
        self.with(|state, now| {
            let sent = self.publish(state, now, message)?;
            // A handler does not go on after a response, and one that waits for the store pauses.
            let has_to_pause = kind != OutgoingKind::Response && !matches!(sent, Sent::Pending(_));
            Ok((sent, if has_to_pause { state.pace.sent(bytes, turn) } else { Pause::None }))
        })
    }

    pub(super) fn late(&self, state: &mut State, kind: OutgoingKind) -> Result<Sent, EngineError> {
        Counters::add(&self.shared.counters.messages_late, 1);
        log_later!(self, state, DEBUG, [], ?kind, "message dropped: its request has its end");
        if kind == OutgoingKind::Request { Err(EngineError::Finished) } else { Ok(Sent::Dropped) }
    }

    pub(super) fn close_connection(&self, request: &RequestId, retry_ms: Option<u32>, hold_ms: Option<u64>) -> bool {
        if self.is_forked() {
            return false;
        }
        self.change(|state, now, steps| {
            let Some((_, nonce)) = state.session.find_request(request) else { return false };
            self.close_stream(state, now, nonce, (retry_ms, hold_ms), steps)
        })
    }

    fn close_stream(
        &self,
        state: &mut State,
        now: Ms,
        nonce: StreamNonce,
        (retry_ms, hold_ms): (Option<u32>, Option<u64>),
        steps: &mut Vec<Step>,
    ) -> bool {
        state.session.handle(now, nonce, Input::CloseRequested { retry_ms, hold_ms }, steps).is_ok()
    }

    pub(super) fn close_standalone(&self, retry_ms: Option<u32>, hold_ms: Option<u64>) -> bool {
        if self.is_forked() {
            return false;
        }
        self.change(|state, now, steps| {
            if state.session.has_ended() {
                return false;
            }
            let nonce = self.standalone(state, now, steps);
            self.close_stream(state, now, nonce, (retry_ms, hold_ms), steps)
        })
    }

    pub(super) fn cancelled(&self, request: &RequestId) -> bool {
        if self.is_forked() {
            return false;
        }
        self.change(|state, now, steps| {
            if state.json.contains_key(request) {
                let body = end_payload(request, SynthesizedEnd::Cancelled);
                return self.answer_json(state, request, AnswerHead::JSON, body.to_vec());
            }
            state.session.end_request(now, request, SynthesizedEnd::Cancelled, steps)
        })
    }

    /// The principal of a session that has not ended.
    pub(super) fn principal_while_open(&self) -> Result<Option<Arc<str>>, EngineError> {
        let session = &lock(&self.state).session;
        if session.has_ended() { Err(EngineError::SessionEnded) } else { Ok(session.principal().map(Into::into)) }
    }

    /// Looks whether the session gives way to a newer one. If it does, nothing opens in it any more, and the caller ends
    /// it. `known` is what the caller knows of its last contact.
    pub(super) fn look(&self, known: Ms, now: Ms) -> Look {
        let mut state = lock(&self.state);
        if state.session.has_ended() {
            Look::HasEnded
        } else if state.session.last_contact() > known {
            Look::HadContact(state.session.last_contact())
        } else if !self.is_adopted() && state.session.may_give_way(now, self.shared.options.max_detached_ms) {
            state.is_ending = true;
            Look::GivesWay
        } else {
            // One that lives elsewhere is here only while somebody reads it.
            Look::IsInUse
        }
    }

    pub(super) fn idle_in_ms(&self) -> Option<u64> {
        if self.is_forked() {
            return None;
        }
        let now = self.now();
        let at = lock(&self.state).session.idle_at(self.shared.options.max_detached_ms);
        (at != Ms::NEVER).then(|| at.since(now))
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        if self.is_adopted() {
            lock(&self.shared.timed).remove(&self.number);
            self.renounce(&lock(&self.state));
        }
        self.count_unanswered(&mut lock(&self.state), 0);
        self.unwatch_all(&mut lock(&self.state));
    }
}

impl Complete for Cell {
    fn complete(&self, ticket: &Ticket, outcome: Outcome) {
        self.with(|state, now| {
            let Ticket { nonce, number, .. } = *ticket;
            let mut steps = Vec::new();
            match (state.waits.remove(number), outcome) {
                (Some(Waited::Write(_)), Outcome::Done(result)) => {
                    self.answered(state, now, nonce, result.map(|()| Vec::new()), &mut steps);
                }
                (Some(Waited::Write(_)), Outcome::Held(result)) => {
                    self.answered(state, now, nonce, result, &mut steps);
                }
                (Some(_), outcome) => self.completed(state, now, ticket, outcome),
                (None, Outcome::Done(Ok(()))) if self.answered_late(state, now, ticket, Vec::new()) => {}
                (None, Outcome::Held(Ok(running))) if self.answered_late(state, now, ticket, running.clone()) => {}
                (None, outcome) => log_later!(self, state, DEBUG, [], ?outcome, "the store answered too late"),
            }
            self.perform(state, now, steps);
        });
    }
}
