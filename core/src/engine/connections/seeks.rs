//! Resumes of streams that have no machine: the store is asked for the stream first.
//!
//! Nothing is known of the answer until the store has told, so its head waits. A store that cannot
//! tell makes no refusal: clients give up after two of these and survive a failover otherwise. They
//! get their own position back, then comments, and the store is asked again until `store_wait_ms`.

use crate::Ms;
use crate::engine::connections::conn::PAGE_BYTES;
use crate::engine::lines::log_later;
use crate::engine::logs::reading::PAGE_EVENTS;
use crate::engine::sessions::cell::State;
use crate::engine::sessions::change::Change;
use crate::exchange::AnswerHead;
use crate::protocol::{IdEncoder, MAX_VISIT, Origin, RequestId, StreamNonce, sse};
use crate::session::Stream;
use crate::store::{Answer, Attach, Attached, LogPage, Operation, ReadLimit, StoreError, Ticket};
use crate::stream::{Chain, CloseReason, ConnectionId, Follow, Input, Seq};

/// Pause before a store that could not tell is asked again.
const ASK_AGAIN_MS: u64 = 250;

/// A position that a connection wants to go on from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    pub(crate) nonce: StreamNonce,
    pub(crate) after: Seq,
    pub(crate) visit: u32,
    /// None where the store makes the ids.
    pub(crate) tag: Option<u32>,
    /// There is no cursor: the stream is read from what is left of its start.
    pub(crate) fresh: bool,
}

impl Position {
    /// A cursor's position.
    pub(crate) fn of_cursor(nonce: StreamNonce, after: Seq, visit: u32, tag: Option<u32>) -> Self {
        Self { nonce, after, visit, tag, fresh: false }
    }

    /// Where a listener without a cursor begins.
    pub(crate) fn start(nonce: StreamNonce) -> Self {
        Self { nonce, after: 0, visit: 0, tag: Some(Chain::start(&nonce.0).tag()), fresh: true }
    }
}

/// A connection whose stream has to be looked up.
pub(crate) struct Seek {
    position: Position,
    /// Since when the store cannot tell, and when it is asked again.
    fault: Option<(Ms, Ms)>,
    asking: bool,
    last_write: Ms,
}

impl State {
    /// Whether this process writes the stream.
    fn is_written_here(&self, nonce: StreamNonce) -> bool {
        self.session.stream(nonce).is_some() && !self.followed.contains_key(&nonce)
    }

    /// When a look-up has something to do.
    pub(crate) fn seek_deadline(&self, keep_alive_ms: u64) -> Ms {
        let due = |seek: &Seek| match seek.fault {
            None => Ms::NEVER,
            Some((_, again)) => comment_due(seek, keep_alive_ms).min(if seek.asking { Ms::NEVER } else { again }),
        };
        self.seeks.values().map(due).min().unwrap_or(Ms::NEVER)
    }
}

impl Change<'_> {
    /// Continues a stream that may have no machine.
    pub(crate) fn resume_log(&mut self, conn: ConnectionId, position: Position) {
        self.cell.shared.sweep(self.now);
        // A fresh reader of a stream that others may read, too, has to be counted first.
        let is_counted =
            position.fresh && self.cell.shared.store.outlives_process() && !self.state.session.is_draining();
        // One that a newer reader has overtaken while it was looked up does not count any more (I4).
        let is_outdated =
            self.state.session.stream(position.nonce).is_some_and(|stream| stream.machine.has_had_newer(conn));
        if (self.state.is_written_here(position.nonce) && !is_counted) || is_outdated {
            return self.resume_stream(conn, position);
        }
        self.state.seeks.insert(conn, Seek { position, fault: None, asking: false, last_write: self.now });
        match self.state.arrived.take_if(|(arrived, _)| *arrived == conn) {
            Some((_, attached)) => self.attached((position.nonce, conn), Ok(attached)),
            None => self.seek(conn),
        }
    }

    /// Asks the store for the stream of a connection.
    fn seek(&mut self, conn: ConnectionId) {
        let Some(seek) = self.state.seeks.get_mut(&conn) else { return };
        seek.asking = true;
        let Position { nonce, after, tag, .. } = seek.position;
        self.attach_log((nonce, conn), (after, tag, PAGE_BYTES));
    }

    /// Asks for what follows a position, for a reader that is new to the stream.
    pub(crate) fn attach_log(
        &mut self,
        (nonce, conn): (StreamNonce, ConnectionId),
        (after, tag, bytes): (Seq, Option<u32>, usize),
    ) {
        let attach = Attach {
            stream: Some(nonce),
            principal: self.state.session.principal().map(Into::into),
            after,
            tag,
            // Nobody elsewhere gives way to one that is sent away.
            counts: self.cell.shared.store.outlives_process() && !self.state.session.is_draining(),
            limit: ReadLimit { up_to: Seq::MAX, events: PAGE_EVENTS, bytes },
            ..Attach::default()
        };
        let ticket = self.cell.ticket(nonce, Operation::Attach(conn));
        match self.cell.shared.store.attach(&self.cell.name, &attach, &ticket) {
            Answer::Now(result) => self.attached((nonce, conn), result),
            Answer::Later => {
                self.wait(&ticket);
                if let Some(conn) = self.state.conns.get_mut(&conn) {
                    conn.attaching = Some(ticket);
                }
            }
        }
    }

    /// A reader that is gone is not counted: it would fence the one that its client has elsewhere by now. Where the store
    /// has done it all the same, it counts.
    pub(crate) fn call_off_attach(&mut self, ticket: &Ticket) {
        if self.state.waits.remove(ticket.number).is_some() {
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
        let log = result.as_ref().ok().and_then(|attached| attached.log.as_ref());
        let readers = log.map(|log| log.page.readers);
        if let Some(conn) = self.state.conns.get_mut(&conn) {
            conn.attaching = None;
        }
        self.counted(nonce, readers);
        if log.is_some_and(|log| self.is_taken_over(&log.page)) {
            return;
        }
        if self.state.seeks.contains_key(&conn) {
            return self.found(conn, result);
        }
        let page = result.and_then(|attached| attached.log.map(|log| log.page.page).ok_or(StoreError::Gone));
        let input = self.page_input(conn, nonce, page);
        self.input(nonce, input);
    }

    /// Begins a connection without a cursor on a stream that has been there before.
    pub(crate) fn open_stream(&mut self, nonce: StreamNonce, conn: ConnectionId) {
        let jitter = self.cell.shared.jitter();
        self.input(nonce, Input::Open { conn, jitter });
        let is_reader = |stream: &Stream| stream.machine.connection() == Some(conn);
        if self.state.session.stream(nonce).is_some_and(is_reader) {
            self.has_reader(nonce, conn);
        }
    }

    /// A stream has a reader: a connection that came before it and is still looked up has lost it, as the reader before has,
    /// and so has one that was let go of and has not taken what was ready (I4).
    pub(crate) fn has_reader(&mut self, nonce: StreamNonce, reader: ConnectionId) {
        let State { conns, seeks, .. } = &mut *self.state;
        for (id, conn) in conns.iter_mut().filter(|(id, conn)| **id < reader && conn.nonce == nonce) {
            if seeks.remove(id).is_some() {
                self.cell.shared.counters.closed(CloseReason::Superseded);
            } else if conn.end.is_none() || conn.head != Some(AnswerHead::EVENT_STREAM) {
                continue;
            }
            conn.head.get_or_insert(AnswerHead::EVENT_STREAM);
            conn.outbox.clear();
            conn.end = Some(CloseReason::Superseded);
            self.effects.touched.push(*id);
        }
    }

    fn resume_stream(&mut self, conn: ConnectionId, position: Position) {
        let Position { nonce, after, visit, tag, fresh } = position;
        let origin = self.state.conns.get(&conn).map(|conn| &conn.origin);
        if tag.is_some() && self.state.session.stream(nonce).is_some_and(|stream| Some(&stream.origin) != origin) {
            return self.answer_unknown(conn);
        }
        if fresh {
            if let Some(conn) = self.state.conns.get_mut(&conn) {
                conn.head = Some(AnswerHead::EVENT_STREAM);
            }
            self.effects.touched.push(conn);
            return self.open_stream(nonce, conn);
        }
        if let Some(conn) = self.state.conns.get_mut(&conn) {
            conn.after = after;
        }
        let jitter = self.cell.shared.jitter();
        self.input(nonce, Input::Resume { conn, after, visit, tag, jitter });
    }

    /// It is known what the store has of the stream of a connection, or it could not tell.
    fn found(&mut self, conn: ConnectionId, result: Result<Attached, StoreError>) {
        let Some(position) = self.state.seeks.get(&conn).map(|seek| seek.position) else { return };
        let nonce = position.nonce;
        let attached = match result {
            Ok(attached) => attached,
            Err(error) => {
                log_later!(self, WARN, [stream = nonce.hex()], %stream, %error, "stream not looked up");
                let stream = self.state.session.stream(nonce);
                let is_known = stream.is_some_and(|stream| position.after <= stream.machine.durable());
                if is_known && (!position.fresh || self.state.is_written_here(nonce)) {
                    // The reader before it here is fenced with its first bytes (I4). One elsewhere, whose client has left
                    // it, goes on there.
                    self.state.seeks.remove(&conn);
                    return self.resume_stream(conn, position);
                }
                return self.seek_failed(conn);
            }
        };
        if let Some(record) = attached.session.filter(|_| self.cell.is_adopted()) {
            self.state.session.set_standalone(record.standalone);
        }
        let is_standalone = self.state.session.standalone() == Some(nonce);
        let is_awaited = self.state.writing.contains_key(&nonce) || (is_standalone && self.cell.is_adopted());
        let Some(log) = attached.log else {
            if self.state.session.stream(nonce).is_some() || !is_awaited {
                self.state.seeks.remove(&conn);
                return self.not_found(conn, position);
            }
            // It is being written, or its owner has yet to create it.
            return self.seek_failed(conn);
        };
        self.state.seeks.remove(&conn);
        let Some(origin) = self.state.conns.get(&conn).map(|conn| conn.origin.clone()) else { return };
        let requests = RequestId::decode_all(&log.about).unwrap_or_default();
        let LogPage { page, chain, mut is_finished, mut tail, paced, readers, owner } = log.page;
        if let Some(end) = self.state.unconfirmed_end(nonce).filter(|_| !is_finished) {
            // The end that the store has not confirmed is its end all the same.
            (is_finished, tail) = (true, Some(end));
        }
        if self.state.session.stream(nonce).is_none() {
            // One that is to be written here and has no machine is written by nobody: the store lost its
            // end, which every machine leaves behind.
            let is_followed = owner.is_some() || self.cell.is_adopted();
            let is_written = is_finished || is_followed || origin == Origin::Standalone;
            if !is_written || (position.tag.is_some() && !is_of(&origin, is_standalone, &requests)) {
                return self.not_found(conn, position);
            }
            let follow = Follow { head: page.head, finished: is_finished, tail, paced };
            self.state.session.follow(self.now, nonce, origin, Chain(chain), follow);
            if is_followed && !is_finished {
                self.follow(nonce, requests);
                self.counted(nonce, Some(readers));
            }
        } else if self.state.followed.contains_key(&nonce) {
            let found = LogPage { page: page.clone(), chain, is_finished, tail, paced, readers, owner };
            self.catch_up(nonce, Some((position.after, found)));
        }
        if let Some(conn) = self.state.conns.get_mut(&conn) {
            conn.page = Some((position.after, page));
        }
        self.resume_stream(conn, position);
    }

    /// The store has no log for a connection.
    fn not_found(&mut self, conn: ConnectionId, position: Position) {
        let is_standalone = self.state.session.standalone() == Some(position.nonce);
        if self.state.session.stream(position.nonce).is_some() {
            return self.resume_stream(conn, position);
        }
        if is_standalone {
            self.state.session.forget_standalone();
        }
        self.answer_unknown(conn);
    }

    /// The store could not tell: the answer begins all the same, and it is asked again in a while.
    fn seek_failed(&mut self, id: ConnectionId) {
        self.begin_echo(id);
        let store_wait_ms = self.cell.shared.options.pacing.store_wait_ms;
        let Some(seek) = self.state.seeks.get_mut(&id) else { return };
        seek.asking = false;
        let since = seek.fault.map_or(self.now, |(since, _)| since);
        seek.fault = Some((since, self.now + ASK_AGAIN_MS));
        if self.now.since(since) >= store_wait_ms {
            self.end_seek(id, CloseReason::Fault);
        }
    }

    /// The first bytes of an answer whose stream is not known yet: the client's own position.
    fn begin_echo(&mut self, id: ConnectionId) {
        let Some(conn) = self.state.conns.get(&id).filter(|conn| conn.head.is_none()) else { return };
        let nonce = conn.nonce;
        self.has_reader(nonce, id);
        let reader = self.state.session.stream(nonce).and_then(|stream| stream.machine.connection());
        if reader.is_some_and(|reader| reader < id) {
            // Its client reads here from now on.
            self.input(nonce, Input::Taken);
        }
        let State { session, seeks, conns, .. } = &mut *self.state;
        let (Some(seek), Some(conn)) = (seeks.get_mut(&id), conns.get_mut(&id)) else { return };
        conn.head = Some(AnswerHead::EVENT_STREAM);
        seek.last_write = self.now;
        self.effects.touched.push(id);
        if !session.rules().priming {
            return sse::write_keep_alive(conn.own());
        }
        let retry_ms = session.retry_ms();
        if let Some(echo) = conn.echo.take() {
            sse::write_priming(conn.own(), |out| out.extend_from_slice(echo.as_bytes()), Some(retry_ms));
        } else {
            let Position { nonce, after, visit, tag, fresh } = &mut seek.position;
            *visit = (*visit + 1) % (MAX_VISIT + 1);
            // It has a cursor from here on, and gets what is behind that (I2, I3).
            *fresh = false;
            let ids = IdEncoder::new(*nonce, &conn.origin);
            let write_id = |out: &mut Vec<u8>| ids.encode(*after, *visit, tag.unwrap_or_default(), out);
            sse::write_priming(conn.own(), write_id, Some(retry_ms));
        }
        conn.retry_ms = Some(retry_ms);
        conn.primed = true;
    }

    fn end_seek(&mut self, id: ConnectionId, why: CloseReason) {
        self.state.seeks.remove(&id);
        if let Some(conn) = self.state.conns.get_mut(&id) {
            conn.end = Some(why);
            self.cell.shared.counters.closed(why);
            self.effects.touched.push(id);
        }
    }

    /// Does what time asks for: asks again, writes comments.
    pub(crate) fn tick_seeks(&mut self) {
        let keep_alive_ms = self.cell.shared.options.pacing.keep_alive_ms;
        let State { seeks, conns, .. } = &mut *self.state;
        let mut again = Vec::new();
        for (id, seek) in seeks {
            let Some((_, at)) = seek.fault else { continue };
            if !seek.asking && at <= self.now {
                again.push(*id);
            }
            if let Some(conn) = conns.get_mut(id).filter(|_| comment_due(seek, keep_alive_ms) <= self.now) {
                sse::write_keep_alive(conn.own());
                seek.last_write = self.now;
                self.effects.touched.push(*id);
            }
        }
        for conn in again {
            self.seek(conn);
        }
    }

    /// The process is going away: who waits for a look-up is told when to come back.
    pub(crate) fn drain_seeks(&mut self) {
        let waiting: Vec<_> = self.state.seeks.iter().map(|(conn, seek)| (*conn, seek.position)).collect();
        for (id, position) in waiting {
            if position.fresh && self.state.is_written_here(position.nonce) {
                self.state.seeks.remove(&id);
                self.resume_stream(id, position);
            } else {
                self.begin_echo(id);
                self.end_seek(id, CloseReason::Drain);
            }
        }
    }
}

/// Whether a log is of the kind of stream that a cursor says it is. Its machine is made by that, and a client that knows a
/// name of the log can say another.
fn is_of(origin: &Origin, is_standalone: bool, requests: &[RequestId]) -> bool {
    if is_standalone {
        return *origin == Origin::Standalone;
    }
    // Empty where the store does not keep it.
    match origin {
        Origin::Standalone => requests.is_empty(),
        Origin::Request(request) => requests.is_empty() || requests.contains(request),
        Origin::Unnamed => true,
    }
}

fn comment_due(seek: &Seek, keep_alive_ms: u64) -> Ms {
    if keep_alive_ms == 0 { Ms::NEVER } else { seek.last_write + keep_alive_ms }
}
