//! How connections come to a session: for a call, to listen, to resume.

use crate::engine::connections::conn::{Conn, Phase, Position};
use crate::engine::connections::{Connection, Wake};
use crate::engine::lines::shown;
use crate::engine::live::Note;
use crate::engine::sessions::SessionHandle;
use crate::engine::sessions::cell::Cell;
use crate::engine::sessions::change::Change;
use crate::engine::stats::Counters;
use crate::exchange::{Fault, Join};
use crate::protocol::{EventId, Origin, Refusal, RequestId, Revision, StreamNonce};
use crate::session::Call;
use crate::stream::{ConnectionId, Input};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

impl SessionHandle {
    /// Opens the stream of a POST that carries these requests. `initialize` is the revision that an
    /// `initialize` asks for. `key` is what `wake` is called with.
    ///
    /// # Errors
    /// 400 when an id is in flight already: that request is untouched (F-08). 404 when the session has ended. 503 in a
    /// drain if the client cannot be told to come back: it has to send the request again. So it is with an `initialize`.
    pub fn call(
        &self,
        requests: &[RequestId],
        initialize: Option<Revision>,
        wake: Arc<dyn Wake>,
        key: u64,
    ) -> Result<Connection, Refusal> {
        self.open_call(&Call { requests, initialize, ..Call::default() }, wake, key)
    }

    pub(crate) fn open_call(&self, call: &Call<'_>, wake: Arc<dyn Wake>, key: u64) -> Result<Connection, Refusal> {
        self.cell.open(|change| {
            change.check_requests(call.requests.len(), call.initialize.is_some(), false)?;
            if self.cell.is_store_behind() {
                return Err(self.cell.dialect.wording.store_behind());
            }
            let nonce = self.cell.shared.nonce();
            let id = change.connect(Conn::open(nonce, Origin::Unnamed, wake, key), None);
            let Change { state, now, steps, .. } = change;
            let reader = Some((id, self.cell.spread(*now)));
            let opened = state.session.open_requests(*now, nonce, call, reader, steps);
            if let Err(duplicate) = opened {
                change.disconnect(id, false);
                return Err(self.cell.dialect.wording.in_flight_already(&duplicate));
            }
            change.count_begun(call.requests.len());
            change.opened(nonce);
            change.note_live(nonce, Note::Opened { conn: id, is_resume: false });
            Ok(id)
        })
    }

    /// As [`call`](Self::call), but it is answered with one JSON body when all its requests have their answers. Nothing
    /// is stored, and nothing can be resumed.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_json(
        &self,
        requests: &[RequestId],
        initialize: Option<Revision>,
        wake: Arc<dyn Wake>,
        key: u64,
    ) -> Result<Connection, Refusal> {
        self.open_json(&Call { requests, initialize, ..Call::default() }, wake, key)
    }

    pub(crate) fn open_json(&self, call: &Call<'_>, wake: Arc<dyn Wake>, key: u64) -> Result<Connection, Refusal> {
        let requests = call.requests;
        self.cell.open(|change| {
            change.check_requests(requests.len(), call.initialize.is_some(), true)?;
            let nonce = self.cell.shared.nonce();
            let opened = change.state.session.open_outside(change.now, nonce, call);
            opened.map_err(|duplicate| self.cell.dialect.wording.in_flight_already(&duplicate))?;
            change.count_begun(requests.len());
            let phase = Phase::Json(Join::new(requests));
            let id = change.connect(Conn { phase, ..Conn::new(nonce, Origin::Unnamed, wake, key) }, None);
            change.state.json.extend(requests.iter().map(|request| (request.clone(), id)));
            Ok(id)
        })
    }

    /// Opens a connection to the standalone stream. It takes the stream over.
    ///
    /// # Errors
    /// 404 when the session has ended.
    pub fn listen(&self, wake: Arc<dyn Wake>, key: u64) -> Result<Connection, Refusal> {
        let connection = self.cell.open(|change| {
            let nonce = match change.state.session.standalone() {
                Some(nonce) => nonce,
                // The session's owner has yet to give the standalone stream a name.
                None if self.cell.is_elsewhere() => return Err(self.cell.dialect.wording.closing()),
                None => change.standalone(),
            };
            let id = change.connect(Conn::new(nonce, Origin::Standalone, wake, key), self.arrival());
            change.resume_log(id, Position { fresh: true, ..Position::start(nonce) });
            Ok(id)
        })?;
        self.cell.come_back();
        Ok(connection)
    }

    /// Continues the stream of an event id. How the answer starts may be known only when the store has answered: see
    /// [`Poll::head`](crate::engine::Poll::head). `revision` is that of the request, for sessions whose own revision is
    /// not known.
    ///
    /// # Errors
    /// 404 when the session has ended; 400 when the id is not of our form.
    pub fn resume(
        &self,
        last_event_id: &str,
        revision: Option<Revision>,
        wake: Arc<dyn Wake>,
        key: u64,
    ) -> Result<Connection, Refusal> {
        let connection = self.cell.open(|change| {
            if let Some(revision) = revision {
                change.state.session.assume_revision(revision);
            }
            let cursor = Some(shown(last_event_id).into());
            let conn = |nonce, origin| Conn { cursor, ..Conn::new(nonce, origin, wake, key) };
            change.answer_resume(last_event_id, conn, self.arrival())
        })?;
        self.cell.come_back();
        Ok(connection)
    }

    /// Whether a cursor may be one of this store's. [`open`](Self::open) refuses a request with another one.
    pub fn may_know(&self, last_event_id: &str) -> bool {
        self.cell.shared.store.own_ids().is_some() || EventId::parse(last_event_id).is_some()
    }
}

impl Cell {
    /// Opens a connection, unless the session has ended.
    pub(crate) fn open(
        self: &Arc<Self>,
        make: impl FnOnce(&mut Change<'_>) -> Result<ConnectionId, Refusal>,
    ) -> Result<Connection, Refusal> {
        if self.is_forked() {
            return Err(self.dialect.wording.closing());
        }
        let conn = self.change(|change| {
            change.check_open()?;
            make(change)
        })?;
        Ok(Connection { cell: Arc::clone(self), conn })
    }

    /// The view of another process's session has a new reader. The last reader before it may have left after this one
    /// found the view, and the view was forgotten. So the view is made findable again: otherwise the next reader here
    /// would get a view beside this one (I4).
    pub(crate) fn come_back(self: &Arc<Self>) {
        if self.is_elsewhere() && matches!(self.shared.register(self), Ok(None)) {
            self.has_place.store(false, Ordering::Relaxed);
            // The reader was admitted before, so it is served even if another session has taken the place meanwhile.
            let _ = self.take_place();
        }
    }
}

impl Change<'_> {
    /// Checks that the session has not ended.
    pub(crate) fn check_open(&self) -> Result<(), Refusal> {
        if !self.state.is_open() {
            return Err(self.cell.over(self.state));
        }
        self.cell.shared.check().map_err(|_| self.cell.dialect.wording.closing())
    }

    /// Checks that the session takes `more` further requests (I11), and that their call may begin. A session that lives
    /// elsewhere takes no requests here.
    pub(crate) fn check_requests(&mut self, more: usize, is_initialize: bool, is_json: bool) -> Result<(), Refusal> {
        if self.cell.is_elsewhere() {
            return Err(self.cell.dialect.wording.session_ended());
        }
        if !self.state.session.may_begin(is_initialize, is_json) {
            return Err(self.cell.dialect.wording.closing());
        }
        self.check_signs()?;
        let max = self.cell.shared.options.max_requests_per_session;
        if self.state.session.in_flight() + more <= max {
            return Ok(());
        }
        Err(Fault::TooManyRequests.refusal(self.cell.dialect))
    }

    /// Checks that no other process may have the session. If the store has given no sign for long, a session that it
    /// knows may be another process's by now (O18). A session that the store was never given cannot be anybody else's.
    fn check_signs(&mut self) -> Result<(), Refusal> {
        if self.state.facts_put.is_none() || !self.cell.shared.store.is_cut_off() {
            return Ok(());
        }
        Err(Fault::StoreSilent.refusal(self.cell.dialect))
    }

    /// Registers a connection of a stream. It counts as coming now, unless it already has a number from its arrival.
    pub(crate) fn connect(&mut self, conn: Conn, arrival: Option<ConnectionId>) -> ConnectionId {
        let id = arrival.unwrap_or_else(|| self.cell.shared.number());
        self.state.conns.insert(id, Box::new(conn));
        self.state.session.connected(self.now);
        Counters::add(&self.cell.shared.counters.connections_opened, 1);
        self.cell.shared.connections.fetch_add(1, Ordering::Relaxed);
        id
    }

    /// The session's standalone stream. If there is none, it is opened.
    pub(crate) fn standalone(&mut self) -> StreamNonce {
        let (nonce, new) = self.state.session.standalone_or(self.now, self.cell.shared.nonce(), &mut self.steps);
        if new {
            self.opened(nonce);
        }
        nonce
    }

    /// Counts requests that begin.
    pub(crate) fn count_begun(&self, requests: usize) {
        Counters::add(&self.cell.shared.counters.calls_begun, requests as u64);
    }

    /// Counts a new stream. Its log comes with its first append.
    pub(crate) fn opened(&mut self, nonce: StreamNonce) {
        Counters::add(&self.cell.shared.counters.streams_opened, 1);
        self.watch(nonce);
        if self.cell.shared.store.own_ids().is_some() && self.state.session.rules().priming {
            // The priming position gets its id before any event.
            self.input(nonce, Input::Create);
        }
    }
}
