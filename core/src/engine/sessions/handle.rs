//! A session, as its host sees it.

use crate::Ms;
use crate::engine::connections::{Connection, Wake};
use crate::engine::sessions::cell::{Cell, User};
use crate::engine::sessions::change::Change;
use crate::engine::sessions::{OutgoingMessage, SendOutcome, Sent};
use crate::engine::{EngineError, Options};
use crate::exchange::{Action, Admission, AnswerHead, Fault, Pause, Principal, Request, Requester, Terms};
use crate::protocol::{Dialect, Kind, Refusal, RequestId, Revision};
use crate::session::{Call, OutgoingKind, SynthesizedEnd, end_payload};
use crate::store::{HostOperation, HostReplay, HostStore, OwnIds, SessionId, session_name};
use crate::stream::{ConnectionId, Input};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Weak};

/// An open session. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SessionHandle {
    pub(crate) cell: Arc<Cell>,
    /// The number of the first connection, if it counts as having come earlier; 0 if it comes now.
    arrival: Arc<AtomicU64>,
}

/// A session that is not held: the engine may forget it.
#[derive(Clone, Debug)]
pub struct WeakSession(Weak<Cell>);

impl WeakSession {
    /// The session, if the engine or somebody else still has it.
    pub fn upgrade(&self) -> Option<SessionHandle> {
        self.0.upgrade().map(SessionHandle::new)
    }
}

impl SessionHandle {
    pub(crate) fn new(cell: Arc<Cell>) -> Self {
        Self::arrived(cell, 0)
    }

    /// For a request that came before the session was found.
    pub(crate) fn arrived(cell: Arc<Cell>, arrival: ConnectionId) -> Self {
        Self { cell, arrival: Arc::new(AtomicU64::new(arrival)) }
    }

    pub(crate) fn arrival(&self) -> Option<ConnectionId> {
        Some(self.arrival.swap(0, Ordering::Relaxed)).filter(|arrival| *arrival != 0)
    }

    /// The session, without holding it.
    pub fn downgrade(&self) -> WeakSession {
        WeakSession(Arc::downgrade(&self.cell))
    }

    /// The session's id.
    pub fn id(&self) -> &str {
        &self.cell.id
    }

    /// The name by which stores and log lines know the session.
    pub fn name(&self) -> &str {
        &self.cell.name
    }

    /// Whether it is the session with this id at this server (I7).
    pub fn is(&self, session: SessionId<'_>) -> bool {
        *self.cell.name == *session_name(session)
    }

    /// How the session speaks.
    pub fn dialect(&self) -> &'static Dialect {
        self.cell.dialect
    }

    /// The options of the session's engine.
    pub fn options(&self) -> &Options {
        &self.cell.shared.options
    }

    /// Binds the session to the user of the request that opens it (W-008, I7).
    ///
    /// # Errors
    /// The [`Refusal`] to answer with if nobody can tell whose request it is.
    pub fn claim(&self, requester: &Requester<'_>) -> Result<(), Refusal> {
        let principal = self.cell.shared.principal_of(requester);
        let principal = principal.map_err(|_| self.not_claimed(Fault::Unidentified.refusal(self.cell.dialect)))?;
        let user = User::of(requester);
        self.cell.change_or((), |change| {
            change.state.user = user;
            if change.state.principal != principal {
                change.state.principal = principal;
                change.state.session.principal_changed();
            }
        });
        Ok(())
    }

    /// Whether a request of this principal may use the session (I7).
    pub fn belongs_to(&self, principal: Option<&Principal>) -> bool {
        self.cell.belongs_to(principal)
    }

    /// Checks that a request may use the session: another user, and another server, finds nothing (I7).
    fn check_requester(&self, request: &Request<'_>) -> Result<(), Refusal> {
        let cell = &self.cell;
        let unknown = || cell.dialect.wording.session_unknown();
        // A session that was opened before there was a request has no server.
        if request.server.is_some_and(|server| !cell.server.is_empty() && *cell.server != *server) {
            return Err(unknown());
        }
        let principal = cell.shared.principal_of(&request.requester).map_err(|_| unknown())?;
        self.check(principal.as_ref(), Some(&request.requester))
    }

    /// Checks that a request of this principal may use the session. No other principal finds it (I7). For hosts that
    /// have to know before they can have the request [admitted](Self::admit).
    ///
    /// # Errors
    /// The [`Refusal`] to answer with: that of a session that is not known, or has ended.
    pub fn check_principal(&self, principal: Option<&Principal>) -> Result<(), Refusal> {
        self.check(principal, None)
    }

    fn check(&self, principal: Option<&Principal>, requester: Option<&Requester<'_>>) -> Result<(), Refusal> {
        let cell = &self.cell;
        cell.requested(principal, requester).unwrap_or_else(|| {
            cell.shared.warn_foreign(&cell.name, principal);
            Err(cell.dialect.wording.session_unknown())
        })
    }

    /// Gives the session's streams another reconnection delay than the engine's, in milliseconds.
    pub fn set_retry_ms(&self, retry_ms: u32) {
        self.cell.change_or((), |change| change.state.session.set_retry_ms(retry_ms));
    }

    /// Gives the session's streams another longest silence than the engine's, in milliseconds; 0 means no bound.
    pub fn set_keep_alive_ms(&self, keep_alive_ms: u64) {
        self.cell.change_or((), |change| change.state.session.set_keep_alive_ms(keep_alive_ms));
    }

    /// Gives the session another idle time than the engine's, in milliseconds; 0 means never.
    pub fn set_idle_ms(&self, idle_ms: u64) {
        self.cell.set_idle_ms(idle_ms);
    }

    /// Examines an HTTP request of this session.
    ///
    /// # Errors
    /// The [`Refusal`] to answer with.
    pub fn admit(&self, request: &Request<'_>, terms: &Terms<'_>) -> Result<Admission, Refusal> {
        let checked = self.check_requester(request);
        let admitted = checked.and_then(|()| self.cell.admit(&request.head, request.body, terms));
        admitted.map_err(|refusal| self.not_admitted(refusal, request))
    }

    /// Takes the session's place among the open sessions. The idlest session of the same principal may have to give way
    /// for it. The first request that is [admitted](Self::admit) takes the place, too: this is for hosts that open the
    /// session only after they have admitted its first request.
    ///
    /// # Errors
    /// [`EngineError::TooManySessions`] if no session can give way, [`EngineError::SessionEnded`],
    /// [`EngineError::Closed`], [`EngineError::Forked`].
    pub fn take_place(&self) -> Result<(), EngineError> {
        self.cell.take_place()
    }

    /// Opens the connection that an admitted request asks for: of a call, of the standalone stream, or of a resume.
    ///
    /// # Errors
    /// As [`call`](Self::call), [`listen`](Self::listen) and [`resume`](Self::resume).
    ///
    /// # Panics
    /// When the request asks for no connection.
    pub fn open(
        &self,
        admission: &Admission,
        json_response: bool,
        wake: Arc<dyn Wake>,
        key: u64,
    ) -> Result<Connection, Refusal> {
        let (revision, initialize) = (admission.revision(), admission.initialize());
        if let Some(last_event_id) = admission.last_event_id() {
            let resumed = self.resume(last_event_id, revision, wake, key);
            return resumed.map_err(|refusal| self.not_opened(refusal));
        }
        if let Some(revision) = revision.filter(|_| initialize.is_none()) {
            self.assume_revision(revision);
        }
        let opened = match (admission.action(), &*admission.requests()) {
            (Action::Listen, _) => return self.listen(wake, key).map_err(|refusal| self.not_opened(refusal)),
            (Action::Call, requests) => {
                let envelopes = admission.envelopes();
                let pace = self.cell.shared.options.paces.of_call(envelopes).filter(|_| !json_response);
                let call = Call { requests, initialize, pace, envelopes };
                let open = if json_response { Self::open_json } else { Self::open_call };
                open(self, &call, wake, key).inspect_err(|refusal| self.cell.note_refused(admission, refusal))
            }
            (action, _) => panic!("a {action:?} opens no connection"),
        };
        let opened = opened.map_err(|refusal| self.cell.shared.counters.counted(refusal));
        if opened.is_ok() && admission.lasting().next().is_some() {
            self.cell.change_or((), |change| change.note(admission));
        }
        opened
    }

    /// Notes messages of the client that are not requests: an answer settles the server's question.
    pub fn received(&self, admission: &Admission) {
        let envelopes = admission.envelopes();
        self.cell.change_or((), |change| {
            change.note_cancelled(envelopes);
            // For a call, that was noted when it began.
            if admission.action() == Action::Message {
                change.note(admission);
            }
            let Change { state, now, .. } = change;
            state.session.contact(*now);
            for envelope in envelopes.iter().filter(|e| matches!(e.kind, Kind::Response | Kind::ErrorResponse)) {
                if let Some((nonce, seq)) = envelope.id.as_ref().and_then(|id| state.session.settle_question(id)) {
                    self.cell.shared.store.settle(&self.cell.key(nonce), state.epoch, seq);
                }
            }
        });
    }

    /// Call this when the handlers have been given the messages of the request. The requests that these cancel get
    /// their end, if the SDK does not say that they get no response (I13).
    pub fn dispatched(&self, admission: &Admission) {
        if self.cell.dialect.settles_cancelled {
            for request in admission.cancelled() {
                self.cancelled(request);
            }
        }
    }

    /// Sets the revision of a session whose `initialize` the engine does not see.
    pub fn assume_revision(&self, revision: Revision) {
        if self.revision().is_none() {
            self.cell.change_or((), |change| change.state.session.assume_revision(revision));
        }
    }

    /// The revision that was negotiated, or asked for by an `initialize` without an answer yet.
    pub fn revision(&self) -> Option<Revision> {
        self.cell.look_or(None, |state| state.session.revision())
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`EngineError::Store`] when the store did not take it, [`EngineError::Earlier`], [`EngineError::Full`],
    /// [`EngineError::Finished`] for a request to the client that nobody could answer,
    /// [`EngineError::SessionEnded`]. A response that the store did not take is answered to the
    /// client with an error by the engine; the caller has nothing left to do (I9).
    pub fn send(&self, message: OutgoingMessage<'_>) -> Result<Sent, EngineError> {
        self.send_in_turn(message, 0).map(|(sent, _)| sent)
    }

    /// As [`send`](Self::send). Also says what the host does before the handler that sends goes on: `since_ms` is how long
    /// the host's event loop has not turned, as far as it knows.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_in_turn(&self, message: OutgoingMessage<'_>, since_ms: u64) -> Result<(Sent, Pause), EngineError> {
        self.cell.shared.check()?;
        let (kind, bytes) = (message.kind, message.payload.len());
        self.cell.change(|change| {
            let sent = change.publish(message)?;
            // A handler does not go on after a response, and one that waits for the store pauses.
            let has_to_pause = kind != OutgoingKind::Response && !matches!(sent, Sent::Pending(_));
            Ok((sent, if has_to_pause { change.state.turns.sent(bytes, since_ms) } else { Pause::None }))
        })
    }

    /// The outcomes of messages that were [`Sent::Pending`].
    pub fn take_outcomes(&self) -> Vec<SendOutcome> {
        self.cell.change_or(Vec::new(), |change| std::mem::take(&mut change.state.outcomes))
    }

    /// Operations that the host's own store has to do for this session; each is reported with its
    /// number to one of the methods below.
    pub fn take_operations(&self) -> Vec<HostOperation> {
        self.host().map(|host| host.take_operations(&self.cell.name)).unwrap_or_default()
    }

    /// The host's store stored the event and gave it this id.
    pub fn stored(&self, number: u64, event_id: &str) {
        if let Some(host) = self.host() {
            host.stored(number, event_id);
        }
    }

    /// The host's store did not store the event. `what` is for the server's log.
    pub fn not_stored(&self, number: u64, what: String) {
        if let Some(host) = self.host() {
            host.failed(number, what);
        }
    }

    /// The host's store replayed, or could not.
    pub fn replayed(&self, number: u64, replay: Result<HostReplay, String>) {
        self.cell.change_or((), |change| change.take_replay(number, replay));
    }

    fn host(&self) -> Option<&HostStore> {
        self.cell.shared.store.own_ids().and_then(OwnIds::host)
    }

    /// Closes the connection that carries this request's stream; the stream goes on. `retry_ms` is kept for the
    /// stream's later connections; with `hold_ms` these are closed again after that time. Returns whether the stream
    /// can be polled; if not, nothing is closed.
    pub fn close_connection(&self, request: &RequestId, retry_ms: Option<u32>, hold_ms: Option<u64>) -> bool {
        self.cell.change_or(false, |change| {
            let Some((_, nonce)) = change.state.session.find_request(request) else { return false };
            change.input(nonce, Input::CloseRequested { retry_ms, hold_ms })
        })
    }

    /// Closes the connection of the standalone stream, in the same way.
    pub fn close_standalone(&self, retry_ms: Option<u32>, hold_ms: Option<u64>) -> bool {
        self.cell.change_or(false, |change| {
            if change.state.session.has_ended() {
                return false;
            }
            let nonce = change.standalone();
            change.input(nonce, Input::CloseRequested { retry_ms, hold_ms })
        })
    }

    /// The request with exactly this id was cancelled and will get no response: it gets its end now
    /// (I13). Returns whether there was such a request.
    pub fn cancelled(&self, request: &RequestId) -> bool {
        self.cell.change_or(false, |change| {
            if change.state.json.contains_key(request) {
                let body = end_payload(request, SynthesizedEnd::Cancelled);
                return change.answer_json(request, AnswerHead::JSON, body.to_vec(), Some(SynthesizedEnd::Cancelled));
            }
            change.state.session.end_request(change.now, request, SynthesizedEnd::Cancelled, &mut change.steps)
        })
    }

    /// The request in flight that this id means: exactly, or by its text if only one has it.
    pub fn find_request(&self, id: &RequestId) -> Option<RequestId> {
        self.cell.look_or(None, |state| state.session.find_request(id).map(|(found, _)| found.clone()))
    }

    /// Requests without a response.
    pub fn in_flight(&self) -> usize {
        self.cell.look_or(0, |state| state.session.in_flight())
    }

    /// Milliseconds until the session counts as idle; none while something holds it (I11).
    pub fn idle_in_ms(&self) -> Option<u64> {
        let max_detached_ms = self.cell.shared.options.max_detached_ms;
        let at = self.cell.look_or(Ms::NEVER, |state| state.session.idle_at(max_detached_ms));
        (at != Ms::NEVER).then(|| at.since(self.now()))
    }

    /// Drains this session alone, because what serves it is going away. [`Engine::drain`](crate::engine::Engine::drain)
    /// does so with all sessions.
    pub fn drain(&self) {
        if !self.cell.is_forked() {
            self.cell.drain(self.cell.shared.drain_of(None, None));
        }
    }

    /// Whether a drain has yet to leave the session to other processes: something runs in it.
    pub fn is_handing_over(&self) -> bool {
        !self.cell.is_forked() && self.cell.is_handing_over()
    }

    /// Whether the session has ended, at least here. Another process may have it: then a look-up finds it there.
    pub fn has_ended(&self) -> bool {
        self.cell.has_ended()
    }

    /// Ends the session: requests in flight get an error, connections close, logs are freed.
    pub fn end(&self) {
        self.cell.end();
    }

    /// Ends the session as soon as nothing runs in it, the store has what was sent, and its connections have carried it.
    /// For a session whose `initialize` was refused: its client has to get to know why.
    pub fn end_at_rest(&self) {
        self.cell.change_or((), |change| change.state.ends_at_rest = true);
    }

    /// Ends the session because its client asks for it, with a DELETE. As [`end`](Self::end), but even in a drain,
    /// nothing is left for other processes to go on with.
    pub fn delete(&self) {
        self.cell.delete();
    }

    /// Stops serving the session, which has not ended for its client. As [`end`](Self::end), but if the store outlives
    /// the process, what it has of the session can still be read.
    pub fn release(&self) {
        self.cell.leave();
    }

    /// Call this if the host has [looked up](crate::engine::Engine::look_up_session) a session and opened no connection
    /// of it. The session is forgotten, unless others read it here. Does nothing with sessions that were opened here.
    pub fn let_go(&self) {
        self.cell.let_go();
    }

    /// The engine's time.
    pub fn now(&self) -> Ms {
        self.cell.now()
    }
}
