//! How connections come to a session: for a call, to listen, to resume.

use crate::Ms;
use crate::engine::connections::conn::{Conn, shown};
use crate::engine::connections::seeks::Position;
use crate::engine::connections::{Connection, Wake};
use crate::engine::lines::log_later;
use crate::engine::sessions::cell::{Cell, State};
use crate::engine::stats::Counters;
use crate::exchange::{Fault, Join};
use crate::protocol::{Origin, Refusal, RequestId, Revision, StreamNonce};
use crate::session::{Step, SynthesizedEnd};
use crate::stream::ConnectionId;
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

impl Cell {
    fn check_forked(&self) -> Result<(), Refusal> {
        if self.is_forked() { Err(self.dialect.wording.closing()) } else { Ok(()) }
    }

    fn check_open(&self, state: &State) -> Result<(), Refusal> {
        if state.session.has_ended() || state.is_ending {
            return Err(self.dialect.wording.session_ended());
        }
        self.shared.check().map_err(|_| self.dialect.wording.closing())
    }

    /// The session takes so many more requests (I11).
    fn check_requests(&self, state: &mut State, more: usize) -> Result<(), Refusal> {
        let max = self.shared.options.max_requests_per_session;
        if state.session.in_flight() + more <= max {
            return Ok(());
        }
        log_later!(self, state, WARN, [], max, "a request is refused: max_requests_per_session of this session run");
        Err(Fault::TooManyRequests.refusal(self.dialect))
    }

    /// A session that lives elsewhere takes no requests here.
    fn check_owned(&self) -> Result<(), Refusal> {
        if self.is_adopted() { Err(self.dialect.wording.session_ended()) } else { Ok(()) }
    }

    /// Registers a connection of a stream. It comes now, unless its arrival had a number already.
    fn attach(&self, state: &mut State, now: Ms, conn: Conn, arrival: Option<ConnectionId>) -> ConnectionId {
        let id = arrival.unwrap_or_else(|| self.shared.number());
        state.conns.insert(id, conn);
        state.session.connected(now);
        Counters::add(&self.shared.counters.connections_opened, 1);
        self.shared.connections.fetch_add(1, Ordering::Relaxed);
        id
    }

    fn connection(me: &Arc<Self>, conn: ConnectionId) -> Connection {
        Connection { cell: Arc::clone(me), conn }
    }

    pub(crate) fn call(
        me: &Arc<Self>,
        requests: &[RequestId],
        initialize: Option<Revision>,
        wake: Arc<dyn Wake>,
        key: u64,
    ) -> Result<Connection, Refusal> {
        me.check_forked()?;
        me.check_owned()?;
        let conn = me.change(|state, now, steps| {
            me.check_open(state)?;
            if me.is_store_behind() {
                return Err(me.dialect.wording.store_behind());
            }
            me.check_requests(state, requests.len())?;
            let nonce = me.shared.nonce();
            let id = me.attach(state, now, Conn::open(nonce, Origin::Unnamed, wake, key), None);
            let opened = state.session.open_requests(now, nonce, requests, initialize, (id, me.shared.jitter()), steps);
            if let Err(duplicate) = opened {
                me.detach(state, now, id, false);
                return Err(me.dialect.wording.in_flight_already(&duplicate));
            }
            me.opened(state, now, nonce, steps);
            Ok(id)
        })?;
        Ok(Self::connection(me, conn))
    }

    pub(crate) fn call_json(
        me: &Arc<Self>,
        requests: &[RequestId],
        initialize: Option<Revision>,
        wake: Arc<dyn Wake>,
        key: u64,
    ) -> Result<Connection, Refusal> {
        me.check_forked()?;
        me.check_owned()?;
        let conn = me.with(|state, now| {
            me.check_open(state)?;
            me.check_requests(state, requests.len())?;
            let nonce = me.shared.nonce();
            let claimed = state.session.claim_requests(nonce, requests);
            claimed.map_err(|duplicate| me.dialect.wording.in_flight_already(&duplicate))?;
            if let (Some(revision), [request]) = (initialize, requests) {
                state.session.initialize_asked(request, revision);
            }
            let join = Some(Join::new(requests));
            let id = me.attach(state, now, Conn { join, ..Conn::new(nonce, Origin::Unnamed, wake, key) }, None);
            state.json.extend(requests.iter().map(|request| (request.clone(), id)));
            if state.session.is_draining() {
                me.end_json(state, SynthesizedEnd::Draining);
            }
            Ok(id)
        })?;
        Ok(Self::connection(me, conn))
    }

    pub(crate) fn listen(
        me: &Arc<Self>,
        arrival: Option<ConnectionId>,
        wake: Arc<dyn Wake>,
        key: u64,
    ) -> Result<Connection, Refusal> {
        me.check_forked()?;
        let conn = me.change(|state, now, steps| {
            me.check_open(state)?;
            let nonce = match state.session.standalone() {
                Some(nonce) => nonce,
                // Its owner has yet to give it a name.
                None if me.is_adopted() => return Err(me.dialect.wording.closing()),
                None => me.standalone(state, now, steps),
            };
            let conn = me.attach(state, now, Conn::new(nonce, Origin::Standalone, wake, key), arrival);
            me.resume_log(state, now, conn, Position::start(nonce), steps);
            Ok(conn)
        })?;
        Self::come_back(me);
        Ok(Self::connection(me, conn))
    }

    /// The session's standalone stream, with its log.
    pub(crate) fn standalone(&self, state: &mut State, now: Ms, steps: &mut Vec<Step>) -> StreamNonce {
        let (nonce, new) = state.session.standalone_or(now, self.shared.nonce(), steps);
        if new {
            self.opened(state, now, nonce, steps);
        }
        nonce
    }

    pub(crate) fn resume(
        me: &Arc<Self>,
        last_event_id: &str,
        revision: Option<Revision>,
        arrival: Option<ConnectionId>,
        wake: Arc<dyn Wake>,
        key: u64,
    ) -> Result<Connection, Refusal> {
        me.check_forked()?;
        let conn = me.change(|state, now, steps| {
            me.check_open(state)?;
            if let Some(revision) = revision {
                state.session.assume_revision(revision);
            }
            let attach = |state: &mut State, nonce, origin| {
                let cursor = Some(shown(last_event_id).into());
                me.attach(state, now, Conn { cursor, ..Conn::new(nonce, origin, wake, key) }, arrival)
            };
            me.answer_resume(state, now, last_event_id, attach, steps)
        })?;
        Self::come_back(me);
        Ok(Self::connection(me, conn))
    }

    /// An adopted session has a new reader. The last one before it may have left after the session was found: it can be found
    /// again, so that the next reader here is not served beside this one (I4).
    fn come_back(me: &Arc<Self>) {
        if me.is_adopted() && matches!(me.shared.register(me), Ok(None)) {
            me.has_place.store(false, Ordering::Relaxed);
            // It was admitted before, and is served also where its place was taken meanwhile.
            let _ = me.take_place();
        }
    }
}
