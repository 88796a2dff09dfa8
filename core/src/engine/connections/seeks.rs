//! Resumes of streams that have no machine: the store is asked for the stream first.
//!
//! Nothing is known of the answer until the store has answered, so the head of the answer waits. If the store cannot
//! tell, the resume is not refused: clients give up after two refusals, but otherwise survive a failover. They get
//! their own position back, then comments, and the store is asked again until `store_wait_ms` have passed.

use crate::Ms;
use crate::engine::connections::conn::{PAGE_BYTES, Phase, Position, Reading, Seek};
use crate::engine::lines::log_later;
use crate::engine::live::Note;
use crate::engine::logs::reading::PAGE_EVENTS;
use crate::engine::sessions::cell::{SESSION, State};
use crate::engine::sessions::change::Change;
use crate::engine::sessions::timers::Reason;
use crate::exchange::AnswerHead;
use crate::protocol::{IdEncoder, MAX_VISIT, Origin, RequestId, StreamNonce, sse};
use crate::session::{About, Stream};
use crate::store::{Answer, Attach, Attached, AttachedLog, LogPage, Operation, ReadLimit, StoreError, Ticket};
use crate::stream::{Chain, CloseReason, ConnectionId, Follow, Input, Seq};
use crate::sync::atomic::Ordering;

/// Pause before a store that could not tell is asked again.
const ASK_AGAIN_MS: u64 = 250;

impl State {
    /// Whether this process writes the stream.
    fn is_written_here(&self, nonce: StreamNonce) -> bool {
        self.session.stream(nonce).is_some() && !self.followed.contains_key(&nonce)
    }
}

impl Change<'_> {
    /// Continues a stream that may have no machine.
    pub(crate) fn resume_log(&mut self, conn: ConnectionId, position: Position) {
        self.cell.shared.sweep(self.now);
        if self.cell.is_elsewhere() && conn < self.cell.shared.drained_from.load(Ordering::Relaxed) {
            // The reader was being looked up when the drain began. Newer readers may have come and gone since (I4).
            self.enter(conn, Phase::Seeking(Seek { position, fault: None }));
            self.begin_echo(conn);
            return self.close(conn, CloseReason::Drain);
        }
        // A fresh reader of a stream that other processes may read, too, has to be counted first.
        let is_counted =
            position.fresh && self.cell.shared.store.outlives_process() && !self.state.session.is_draining();
        // A reader that a newer one overtook while it was looked up does not count any more (I4).
        let is_outdated =
            self.state.session.stream(position.nonce).is_some_and(|stream| stream.machine.has_had_newer(conn));
        if (self.state.is_written_here(position.nonce) && !is_counted) || is_outdated {
            return self.resume_stream(conn, position);
        }
        self.enter(conn, Phase::Seeking(Seek { position, fault: None }));
        match self.state.arrived.take_if(|(arrived, _)| *arrived == conn) {
            Some((_, attached)) => self.attached((position.nonce, conn), Ok(attached)),
            None => self.seek(conn),
        }
    }

    /// Begins a connection whose stream the store has told of already.
    pub(crate) fn begin_found(&mut self, conn: ConnectionId, position: Position, attached: Attached) {
        self.enter(conn, Phase::Seeking(Seek { position, fault: None }));
        self.looked_up(conn, Ok(attached));
    }

    /// Asks the store for the stream of a connection.
    pub(crate) fn seek(&mut self, id: ConnectionId) {
        let Some(conn) = self.state.conns.get_mut(&id).filter(|conn| conn.attaching.is_none()) else { return };
        let Some(Seek { position: Position { nonce, after, tag, .. }, .. }) = conn.seek().copied() else { return };
        self.attach_log((nonce, id), (after, tag, PAGE_BYTES));
    }

    /// Asks for what follows a position, for a reader that is new to the stream.
    pub(crate) fn attach_log(
        &mut self,
        (nonce, conn): (StreamNonce, ConnectionId),
        (after, tag, bytes): (Seq, Option<u32>, usize),
    ) {
        let attach = Attach {
            stream: Some(nonce),
            principal: self.state.identity(),
            after,
            tag,
            // In a drain, the reader is sent away: readers elsewhere must not give way to it.
            counts: self.cell.shared.store.outlives_process() && !self.state.session.is_draining(),
            limit: ReadLimit { up_to: Seq::MAX, events: PAGE_EVENTS, bytes },
            ..Attach::default()
        };
        let ticket = self.cell.ticket(nonce, Operation::Attach(conn));
        match self.cell.shared.store.attach(&self.cell.name, &attach, &ticket) {
            Answer::Now(result) => self.attached((nonce, conn), result),
            Answer::Later => {
                if let Some(conn) = self.state.conns.get_mut(&conn) {
                    conn.attaching = Some(ticket.clone());
                }
                self.wait(ticket);
            }
        }
    }

    /// A reader that is gone must not be counted: it would fence the reader that its client has elsewhere by now. If
    /// the store has counted it all the same, it counts.
    pub(crate) fn call_off_attach(&mut self, ticket: &Ticket) {
        if self.stop_waiting(ticket) {
            self.cell.shared.store.abandon(&self.cell.key(ticket.nonce), ticket);
            self.counted(ticket.nonce, None);
        }
    }

    /// The store has told of the stream of a new reader, or could not.
    pub(crate) fn attached(
        &mut self,
        (nonce, conn): (StreamNonce, ConnectionId),
        result: Result<Attached, StoreError>,
    ) {
        if nonce == SESSION {
            return self.record_read(result);
        }
        if self.state.relays.is_posting(nonce) {
            return self.posted(nonce, result);
        }
        if self.state.relays.is_sought(nonce) {
            return self.looked_for_session(nonce, result);
        }
        let log = result.as_ref().ok().and_then(|attached| attached.log.as_ref());
        let readers = log.map(|log| log.page.readers);
        let mut is_sought = false;
        if let Some(conn) = self.state.conns.get_mut(&conn) {
            conn.attaching = None;
            is_sought = conn.seek().is_some();
        }
        self.counted(nonce, readers);
        if log.is_some_and(|log| self.is_taken_over(&log.page)) {
            return;
        }
        if is_sought {
            return self.looked_up(conn, result);
        }
        let page = result.and_then(|attached| attached.log.map(|log| log.page).ok_or(StoreError::Gone));
        let input = self.page_input(conn, nonce, page);
        self.input(nonce, input);
    }

    /// Begins a connection without a cursor on a stream that has been there before.
    pub(crate) fn open_stream(&mut self, nonce: StreamNonce, conn: ConnectionId) {
        let spread = self.cell.spread(self.now);
        self.input(nonce, Input::Open { conn, spread });
        let is_reader = |stream: &Stream| stream.machine.connection() == Some(conn);
        if self.state.session.stream(nonce).is_some_and(is_reader) {
            self.note_live(nonce, Note::Opened { conn, is_resume: false });
            self.has_reader(nonce, conn);
        }
    }

    /// A stream has a new reader. Connections that came earlier lose the stream, as the reader before does: those that
    /// are still being looked up, and those that have ended but have not taken what was ready (I4).
    pub(crate) fn has_reader(&mut self, nonce: StreamNonce, reader: ConnectionId) {
        self.effects.read.push((nonce, reader));
        self.supersede_older(nonce, reader);
    }

    pub(crate) fn supersede_older(&mut self, nonce: StreamNonce, reader: ConnectionId) {
        let older = self.state.conns.iter_mut().filter(|(id, conn)| **id < reader && conn.nonce == nonce);
        let lost = older.filter_map(|(id, conn)| match conn.phase {
            Phase::Seeking(_) => Some((*id, false)),
            Phase::Ended(_) if conn.head == Some(AnswerHead::EVENT_STREAM) => Some((*id, true)),
            _ => None,
        });
        for (id, has_ended) in lost.collect::<Vec<_>>() {
            self.answer(id, AnswerHead::EVENT_STREAM, Vec::new());
            if let Some(conn) = self.state.conns.get_mut(&id) {
                conn.outbox.clear();
            }
            if has_ended {
                self.enter(id, Phase::Ended(CloseReason::Superseded));
            } else {
                self.close(id, CloseReason::Superseded);
            }
        }
    }

    pub(crate) fn resume_stream(&mut self, conn: ConnectionId, position: Position) {
        let Position { nonce, after, visit, tag, fresh, instead } = position;
        let origin = self.state.conns.get(&conn).map(|conn| &conn.origin);
        if tag.is_some() && self.state.session.stream(nonce).is_some_and(|stream| Some(&stream.origin) != origin) {
            return self.answer_unknown(conn);
        }
        self.enter(conn, Phase::Reading(Reading { after, instead, ..Reading::default() }));
        if fresh {
            self.answer(conn, AnswerHead::EVENT_STREAM, Vec::new());
            return self.open_stream(nonce, conn);
        }
        let spread = self.cell.spread(self.now);
        self.input(nonce, Input::Resume { conn, after, visit, tag, spread });
    }

    /// The store has said what it has of the stream of a connection, or could not tell.
    fn looked_up(&mut self, conn: ConnectionId, result: Result<Attached, StoreError>) {
        let Some(Seek { position, fault }) = self.state.conns.get_mut(&conn).and_then(|conn| conn.seek()).copied()
        else {
            return;
        };
        let nonce = position.nonce;
        let attached = match result {
            Ok(attached) => attached,
            Err(error) => {
                log_later!(self, WARN, of nonce, [], %error, "stream not looked up");
                let stream = self.state.session.stream(nonce);
                let is_known = stream.is_some_and(|stream| position.after <= stream.machine.durable());
                if is_known && (!position.fresh || self.state.is_written_here(nonce)) {
                    // The first bytes of this reader fence the reader before it here (I4). A reader elsewhere goes on
                    // there, but its client has left it.
                    return self.resume_stream(conn, position);
                }
                return self.seek_failed(conn);
            }
        };
        if let Some(record) = attached.session.filter(|_| self.cell.is_elsewhere()) {
            self.state.session.set_standalone(record.standalone);
        }
        if attached.log.as_ref().is_some_and(|log| self.is_forgotten(&log.page)) {
            // The store was set back. What its log lacks is written again, so it is asked later.
            return self.seek_failed(conn);
        }
        let is_standalone = self.state.session.standalone() == Some(nonce);
        let is_awaited = self.state.writing.contains_key(&nonce) || (is_standalone && self.cell.is_elsewhere());
        let Some(log) = attached.log else {
            if self.state.session.stream(nonce).is_some() || !is_awaited {
                return self.log_missing(conn, position);
            }
            // The log is being written, or its owner has yet to create it.
            return self.seek_failed(conn);
        };
        if self.state.session.stream(nonce).is_none() && self.may_be_posted(&log) {
            // The request waits for this process to take it, or for its host to begin it.
            self.state.inbox.is_hinted = true;
            return self.seek_failed(conn);
        }
        let known = self.state.session.stream(nonce).map_or(0, |stream| stream.machine.durable());
        let is_ahead = position.after > log.page.page.head.max(known) && !log.page.is_finished;
        if is_ahead && self.cell.is_elsewhere() && !self.cell.is_gone(log.page.owner) && !self.has_waited(fault) {
            // The store may have lost what the cursor was made from: the owner appends it again (O10).
            return self.seek_failed(conn);
        }
        let Some(reader) = self.state.conns.get(&conn) else { return };
        // An answer in JSON is read to its end: nobody can come back for the rest.
        let (origin, stays) = (reader.origin.clone(), reader.gathers.is_some());
        let About { requests, trace } = About::decode(&log.about).unwrap_or_default();
        let LogPage { page, chain, mut is_finished, mut tail, paced, readers, owner } = log.page;
        if let Some(end) = self.state.unconfirmed_end(nonce).filter(|_| !is_finished) {
            // An end that the store has not confirmed is the log's end all the same.
            (is_finished, tail) = (true, Some(end));
        }
        let mut is_left = false;
        if self.state.session.stream(nonce).is_none() {
            // A log that belongs here but has no machine is written by nobody. Every machine ends its log before it
            // goes, so the store must have lost that end.
            let is_followed = owner.is_some() || self.cell.is_elsewhere();
            let is_written = is_finished || is_followed || origin == Origin::Standalone;
            if !is_written || (position.tag.is_some() && !is_of(&origin, is_standalone, &requests)) {
                return self.log_missing(conn, position);
            }
            let paced = self.state.relays.paced(nonce).filter(|_| page.head == 0).unwrap_or(paced);
            let follow = Follow { head: page.head, finished: is_finished, tail, paced, stays };
            self.state.session.follow(self.now, nonce, (origin, trace), Chain(chain), follow);
            if is_followed && !is_finished {
                is_left = !requests.is_empty() && self.cell.is_gone(owner);
                self.follow(nonce, requests);
                self.counted(nonce, Some(readers));
                self.saw_owner(owner);
                if is_standalone && self.state.adoption.is_taken() {
                    self.send_to_owner(nonce);
                }
            }
        } else if self.state.followed.contains_key(&nonce) {
            let found = LogPage { page: page.clone(), chain, is_finished, tail, paced, readers, owner };
            self.catch_up(nonce, Some((position.after, found)));
        }
        self.resume_stream(conn, position);
        // The connection may have been given another stream instead.
        let conn = self.state.conns.get_mut(&conn).filter(|conn| conn.nonce == nonce);
        if let Some(reading) = conn.and_then(|conn| conn.reading()) {
            reading.page = Some((position.after, page));
        }
        if is_left {
            // Now, not with the next look: the reader may be sent away before that.
            self.inherit();
        }
    }

    /// Whether a log of a session that is owned here may be the answer to a request that another process relays.
    fn may_be_posted(&self, log: &AttachedLog) -> bool {
        let AttachedLog { about, page: LogPage { page, is_finished, owner, .. } } = log;
        let is_own = owner.is_none() && !self.cell.is_elsewhere();
        is_own && page.head == 0 && !is_finished && About::decode(about).is_some_and(|about| !about.requests.is_empty())
    }

    /// The store has no log for a connection.
    fn log_missing(&mut self, conn: ConnectionId, position: Position) {
        let is_standalone = self.state.session.standalone() == Some(position.nonce);
        if self.state.session.stream(position.nonce).is_some() {
            return self.resume_stream(conn, position);
        }
        if self.state.session.has_greeted(position.nonce) {
            return self.answer_complete(conn);
        }
        if is_standalone {
            self.state.session.forget_standalone();
        }
        self.answer_unknown(conn);
    }

    /// The store could not tell. The answer begins all the same, and the store is asked again after a pause.
    fn seek_failed(&mut self, id: ConnectionId) {
        self.begin_echo(id);
        let Some(seek) = self.state.conns.get_mut(&id).and_then(|conn| conn.seek()) else { return };
        let since = *seek.fault.get_or_insert(self.now);
        self.state.timers.set(Reason::Seek(id), self.now + ASK_AGAIN_MS);
        if self.has_waited(Some(since)) {
            self.close(id, CloseReason::Fault);
        }
    }

    /// Whether a connection for which the store has been unable to tell since then has waited as long as it may.
    fn has_waited(&self, since: Option<Ms>) -> bool {
        self.now.since(since.unwrap_or(self.now)) >= self.cell.shared.options.pacing.store_wait_ms
    }

    /// Writes the first bytes of an answer whose stream is not known yet: the client's own position.
    fn begin_echo(&mut self, id: ConnectionId) {
        let Some(conn) = self.state.conns.get(&id).filter(|conn| conn.head.is_none()) else { return };
        let nonce = conn.nonce;
        self.has_reader(nonce, id);
        let reader = self.state.session.stream(nonce).and_then(|stream| stream.machine.connection());
        if reader.is_some_and(|reader| reader < id) {
            // The client reads on this connection from now on.
            self.input(nonce, Input::Taken);
        }
        self.answer(id, AnswerHead::EVENT_STREAM, Vec::new());
        self.comment_later(id);
        let State { session, conns, .. } = &mut *self.state;
        let Some(conn) = conns.get_mut(&id) else { return };
        if !session.rules().priming {
            return sse::write_keep_alive(conn.own());
        }
        let retry_ms = session.retry_ms();
        conn.retry_ms = Some(retry_ms);
        if let Some(echo) = conn.echo.take() {
            sse::write_priming(conn.own(), |out| out.extend_from_slice(echo.as_bytes()), Some(retry_ms));
        } else if let Phase::Seeking(Seek { position, .. }) = &mut conn.phase {
            position.visit = (position.visit + 1) % (MAX_VISIT + 1);
            // From here on the client has a cursor, and gets what comes after it (I2, I3).
            position.fresh = false;
            let Position { nonce, after, visit, tag, .. } = *position;
            let ids = IdEncoder::new(nonce, &conn.origin);
            let write_id = |out: &mut Vec<u8>| ids.encode(after, visit, tag.unwrap_or_default(), out);
            sse::write_priming(conn.own(), write_id, Some(retry_ms));
        }
    }

    /// Writes a comment to a connection that waits for the store.
    pub(crate) fn comment(&mut self, id: ConnectionId) {
        if let Some(conn) = self.state.conns.get_mut(&id) {
            sse::write_keep_alive(conn.own());
            self.effects.touched.push(id);
            self.comment_later(id);
        }
    }

    fn comment_later(&mut self, id: ConnectionId) {
        let keep_alive_ms = self.cell.shared.options.pacing.keep_alive_ms;
        if keep_alive_ms != 0 {
            self.state.timers.set(Reason::Comment(id), self.now + keep_alive_ms);
        }
    }

    /// The process is going away: clients that wait for a look-up are told when to come back.
    pub(crate) fn drain_seeks(&mut self) {
        let seeks = self.state.conns.iter_mut().filter_map(|(id, conn)| Some((*id, conn.seek()?.position)));
        let mut seeks: Vec<_> = seeks.collect();
        seeks.sort_unstable_by_key(|(id, _)| *id);
        for (id, position) in seeks {
            if position.fresh && self.state.is_written_here(position.nonce) {
                self.resume_stream(id, position);
            } else {
                self.begin_echo(id);
                self.close(id, CloseReason::Drain);
            }
        }
    }
}

/// Whether a log is of the kind of stream that a cursor says it is. The machine of the stream is made for that kind,
/// and a client that knows the log's name can claim another kind.
fn is_of(origin: &Origin, is_standalone: bool, requests: &[RequestId]) -> bool {
    if is_standalone {
        return *origin == Origin::Standalone;
    }
    // `requests` is empty if the store does not keep them.
    match origin {
        Origin::Standalone => requests.is_empty(),
        Origin::Request(request) => requests.is_empty() || requests.contains(request),
        Origin::Unnamed => true,
    }
}
