//! Resumes of streams that have no machine: the store is asked for the stream's record first.
//!
//! Nothing is known of the answer until the record is there, so its head waits. A store that cannot
//! tell makes no refusal: clients give up after two of these and survive a failover otherwise. They
//! get their own position back, then comments, and the store is asked again until `store_wait_ms`.

use super::cell::{Cell, State};
use super::lines::log_later;
use crate::Ms;
use crate::exchange::AnswerHead;
use crate::protocol::{IdEncoder, MAX_VISIT, Origin, RequestId, StreamNonce, sse};
use crate::session::{Step, Stream};
use crate::store::{Answer, Operation, Record, StoreError, Ticket};
use crate::stream::{Chain, CloseReason, ConnectionId, Follow, Input, Seq};

/// Pause before a store that could not tell is asked again.
const ASK_AGAIN_MS: u64 = 250;

/// A position that a connection wants to go on from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    pub(super) nonce: StreamNonce,
    pub(super) after: Seq,
    pub(super) visit: u32,
    /// None where the store makes the ids.
    pub(super) tag: Option<u32>,
    /// There is no cursor: the stream is read from what is left of its start.
    pub(super) fresh: bool,
}

impl Position {
    /// A cursor's position.
    pub(super) fn of_cursor(nonce: StreamNonce, after: Seq, visit: u32, tag: Option<u32>) -> Self {
        Self { nonce, after, visit, tag, fresh: false }
    }

    /// Where a listener without a cursor begins.
    pub(super) fn start(nonce: StreamNonce) -> Self {
        Self { nonce, after: 0, visit: 0, tag: Some(Chain::start(&nonce.0).tag()), fresh: true }
    }
}

/// A connection whose stream has to be looked up.
pub(super) struct Seek {
    position: Position,
    /// What was asked before this says nothing of it: the stream may have got its end since.
    asked: u64,
    /// Since when the store cannot tell, and when it is asked again.
    fault: Option<(Ms, Ms)>,
    asking: bool,
    /// The question was asked before it came: the answer may be older than its cursor.
    joined: bool,
    last_write: Ms,
}

impl State {
    /// When a look-up has something to do.
    pub(super) fn seek_deadline(&self, keep_alive_ms: u64) -> Ms {
        let due = |seek: &Seek| match seek.fault {
            None => Ms::NEVER,
            Some((_, again)) => comment_due(seek, keep_alive_ms).min(if seek.asking { Ms::NEVER } else { again }),
        };
        self.seeks.values().map(due).min().unwrap_or(Ms::NEVER)
    }

    /// Whether a newer connection of the stream was told its position and waits for the store: until that has
    /// told whether it is valid, nothing goes out on this one (I4).
    pub(super) fn is_outrun(&self, id: ConnectionId) -> bool {
        let conn = self.conns.get(&id).filter(|conn| conn.end != Some(CloseReason::Superseded));
        conn.is_some_and(|conn| self.unproven.range(id + 1..).any(|(_, nonce)| *nonce == conn.nonce))
    }

    /// It is known what becomes of a connection that was told its position: nobody waits for that any more.
    pub(super) fn proved(&mut self, id: ConnectionId) {
        if let Some(nonce) = self.unproven.remove(&id) {
            self.touched.extend(self.conns.iter().filter(|(_, conn)| conn.nonce == nonce).map(|(id, _)| *id));
        }
    }

    /// Nobody waits for connections that have ended, or got another stream instead.
    pub(super) fn prove_ended(&mut self) {
        let is_over = |id: &ConnectionId, nonce: &StreamNonce| {
            self.conns.get(id).is_none_or(|conn| conn.end.is_some() || conn.nonce != *nonce)
        };
        let over: Vec<ConnectionId> =
            self.unproven.iter().filter(|(id, nonce)| is_over(id, nonce)).map(|(id, _)| *id).collect();
        over.into_iter().for_each(|id| self.proved(id));
    }

    /// Those whom the answer to the question with this number serves.
    fn seeks_of(&self, nonce: StreamNonce, number: u64) -> Vec<ConnectionId> {
        let is_served = |seek: &Seek| seek.position.nonce == nonce && seek.asked <= number;
        self.seeks.iter().filter(|(_, seek)| is_served(seek)).map(|(conn, _)| *conn).collect()
    }
}

impl Cell {
    /// Continues a stream that may have no machine.
    pub(super) fn resume_log(
        &self,
        state: &mut State,
        now: Ms,
        conn: ConnectionId,
        position: Position,
        steps: &mut Vec<Step>,
    ) {
        self.shared.sweep(now);
        if state.session.stream(position.nonce).is_some() && !state.followed.contains_key(&position.nonce) {
            return self.resume_stream(state, now, conn, position, steps);
        }
        // One question is enough for all who want the stream: its answer serves them in their order.
        let asking = state.seeks.values().any(|seek| seek.position.nonce == position.nonce && seek.asking)
            || state.followed.get(&position.nonce).is_some_and(|followed| followed.asking);
        let of_others =
            state.seeks.values().filter(|seek| seek.position.nonce == position.nonce).map(|seek| seek.asked);
        let asked = if asking { of_others.max().unwrap_or_default() } else { self.shared.number() };
        state.seeks.insert(conn, Seek { position, asked, fault: None, asking, joined: asking, last_write: now });
        if !asking {
            self.ask_record(state, now, position.nonce, steps);
        }
    }

    /// Begins a connection without a cursor on a stream that has been there before.
    pub(super) fn open_stream(
        &self,
        state: &mut State,
        now: Ms,
        nonce: StreamNonce,
        conn: ConnectionId,
        steps: &mut Vec<Step>,
    ) {
        let jitter = self.shared.jitter();
        let _ = state.session.handle(now, nonce, Input::Open { conn, jitter }, steps);
        let is_reader = |stream: &Stream| stream.machine.connection() == Some(conn);
        if state.session.stream(nonce).is_some_and(is_reader) {
            self.has_reader(state, nonce, conn);
            self.claim_log(state, now, nonce, conn, steps);
        }
    }

    /// A stream has a reader: whoever came before it and is still looked up has lost it, as the reader before has,
    /// and so has who was let go of and has not taken what was ready (I4).
    pub(super) fn has_reader(&self, state: &mut State, nonce: StreamNonce, reader: ConnectionId) {
        state.proved(reader);
        let State { conns, seeks, touched, .. } = state;
        for (id, conn) in conns.iter_mut().filter(|(id, conn)| **id < reader && conn.nonce == nonce) {
            if seeks.remove(id).is_some() {
                self.shared.counters.closed(CloseReason::Superseded);
            } else if conn.end.is_none() || conn.head != Some(AnswerHead::EVENT_STREAM) {
                continue;
            }
            conn.head.get_or_insert(AnswerHead::EVENT_STREAM);
            conn.outbox.clear();
            conn.end = Some(CloseReason::Superseded);
            touched.push(*id);
        }
    }

    fn resume_stream(&self, state: &mut State, now: Ms, conn: ConnectionId, position: Position, steps: &mut Vec<Step>) {
        let Position { nonce, after, visit, tag, fresh } = position;
        let origin = state.conns.get(&conn).map(|conn| &conn.origin);
        if tag.is_some() && state.session.stream(nonce).is_some_and(|stream| Some(&stream.origin) != origin) {
            return self.answer_unknown(state, now, conn, steps);
        }
        if fresh {
            if let Some(conn) = state.conns.get_mut(&conn) {
                conn.head = Some(AnswerHead::EVENT_STREAM);
            }
            state.touched.push(conn);
            return self.open_stream(state, now, nonce, conn, steps);
        }
        if let Some(conn) = state.conns.get_mut(&conn) {
            conn.after = after;
        }
        let jitter = self.shared.jitter();
        let _ = state.session.handle(now, nonce, Input::Resume { conn, after, visit, tag, jitter }, steps);
    }

    pub(super) fn ask_record(&self, state: &mut State, now: Ms, nonce: StreamNonce, steps: &mut Vec<Step>) {
        let ticket = self.ticket(nonce, Operation::Record);
        match self.shared.store.record(&self.key(nonce), &ticket) {
            Answer::Now(result) => self.recorded(state, now, &ticket, result, steps),
            Answer::Later => {
                for seek in state.seeks.values_mut().filter(|seek| seek.position.nonce == nonce) {
                    seek.asking = true;
                }
                if let Some(followed) = state.followed.get_mut(&nonce) {
                    followed.asking = true;
                }
                self.wait(state, now, &ticket);
            }
        }
    }

    /// The store has told what it knows of a stream that somebody wants to go on with, or could not.
    pub(super) fn recorded(
        &self,
        state: &mut State,
        now: Ms,
        ticket: &Ticket,
        result: Result<Option<Record>, StoreError>,
        steps: &mut Vec<Step>,
    ) {
        let Ticket { nonce, number, .. } = *ticket;
        let record = match result {
            // The end that the store has not confirmed is its end all the same.
            Ok(Some(record)) if !record.finished => match state.unconfirmed_end(nonce) {
                tail @ Some(_) => Some(Record { finished: true, tail, ..record }),
                None => Some(record),
            },
            // It is being written.
            Ok(None) if state.writing.contains_key(&nonce) => {
                return state.seeks_of(nonce, number).into_iter().for_each(|conn| self.seek_failed(state, now, conn));
            }
            Ok(record) => record,
            Err(error) => {
                log_later!(self, state, WARN, [stream = nonce.hex()], %stream, %error, "stream not looked up");
                self.note_claims(state, now, nonce, None, steps);
                if let Some(followed) = state.followed.get_mut(&nonce) {
                    (followed.due, followed.asking) = (now + ASK_AGAIN_MS, false);
                }
                return state.seeks_of(nonce, number).into_iter().for_each(|conn| self.seek_failed(state, now, conn));
            }
        };
        // First: a reader that is fenced gets nothing of what the record tells besides (I4).
        self.note_claims(state, now, nonce, record.as_ref(), steps);
        if state.followed.contains_key(&nonce) {
            self.catch_up(state, now, nonce, record.as_ref(), steps);
        }
        if let Some(record) = &record {
            self.take_end(state, now, nonce, record, steps);
        }
        let mut is_stale = false;
        for conn in state.seeks_of(nonce, number) {
            let head = record.as_ref().map_or(0, |record| record.head);
            if let Some(seek) = state.seeks.get_mut(&conn).filter(|seek| seek.joined && seek.position.after > head) {
                // Its client has read more elsewhere than this answer knows of.
                (seek.joined, seek.asking, seek.asked) = (false, false, self.shared.number());
                is_stale = true;
                continue;
            }
            let Some(seek) = state.seeks.remove(&conn) else { continue };
            let Some(origin) = state.conns.get(&conn).map(|conn| conn.origin.clone()) else { continue };
            if state.session.stream(nonce).is_none() {
                let is_standalone = state.session.standalone() == Some(nonce);
                let fits = |record: &Record| seek.position.tag.is_none() || is_of(&origin, is_standalone, record);
                if record.as_ref().is_some_and(|record| !fits(record)) {
                    self.answer_unknown(state, now, conn, steps);
                    continue;
                }
                // One that is to be written here and has no machine is written by nobody: the store lost its
                // end, which every machine leaves behind.
                let is_written = |record: &&Record| {
                    record.finished || record.owner_unseen_ms.is_some() || origin == Origin::Standalone
                };
                let Some(record) = record.as_ref().filter(is_written) else {
                    if is_standalone {
                        state.session.forget_standalone();
                    }
                    self.answer_unknown(state, now, conn, steps);
                    continue;
                };
                let Record { head, finished, tail, retry_ms, chain, .. } = record.clone();
                let follow = Follow { head, finished, tail, retry_ms };
                state.session.follow(now, nonce, origin, Chain(chain), follow);
                self.follow(state, now, nonce, record);
            }
            self.resume_stream(state, now, conn, seek.position, steps);
            // The end of a stream that was left comes behind what it has.
            if state.followed.contains_key(&nonce) {
                self.catch_up(state, now, nonce, record.as_ref(), steps);
            }
        }
        if is_stale {
            self.ask_record(state, now, nonce, steps);
        }
    }

    /// The store could not tell: the answer begins all the same, and it is asked again in a while.
    fn seek_failed(&self, state: &mut State, now: Ms, id: ConnectionId) {
        self.begin_echo(state, now, id);
        let store_wait_ms = self.shared.options.pacing.store_wait_ms;
        let Some(seek) = state.seeks.get_mut(&id) else { return };
        seek.asking = false;
        let since = seek.fault.map_or(now, |(since, _)| since);
        seek.fault = Some((since, now + ASK_AGAIN_MS));
        if now.since(since) >= store_wait_ms {
            self.end_seek(state, id, CloseReason::Fault);
        }
    }

    /// The first bytes of an answer whose stream is not known yet: the client's own position.
    fn begin_echo(&self, state: &mut State, now: Ms, id: ConnectionId) {
        let State { session, seeks, conns, touched, unproven, .. } = state;
        let (Some(seek), Some(conn)) = (seeks.get_mut(&id), conns.get_mut(&id)) else { return };
        if conn.head.is_some() {
            return;
        }
        conn.head = Some(AnswerHead::EVENT_STREAM);
        seek.last_write = now;
        unproven.insert(id, conn.nonce);
        touched.push(id);
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

    fn end_seek(&self, state: &mut State, id: ConnectionId, why: CloseReason) {
        state.seeks.remove(&id);
        if let Some(conn) = state.conns.get_mut(&id) {
            conn.end = Some(why);
            self.shared.counters.closed(why);
            state.touched.push(id);
        }
    }

    /// Does what time asks for: asks again, writes comments.
    pub(super) fn tick_seeks(&self, state: &mut State, now: Ms, steps: &mut Vec<Step>) {
        if state.seeks.is_empty() {
            return;
        }
        let keep_alive_ms = self.shared.options.pacing.keep_alive_ms;
        let State { seeks, conns, touched, .. } = state;
        let mut again = Vec::new();
        for (id, seek) in seeks {
            let Some((_, at)) = seek.fault else { continue };
            if !seek.asking && at <= now && !again.contains(&seek.position.nonce) {
                again.push(seek.position.nonce);
            }
            if let Some(conn) = conns.get_mut(id).filter(|_| comment_due(seek, keep_alive_ms) <= now) {
                sse::write_keep_alive(conn.own());
                seek.last_write = now;
                touched.push(*id);
            }
        }
        for nonce in again {
            self.ask_record(state, now, nonce, steps);
        }
    }

    /// The process is going away: who waits for a look-up is told when to come back.
    pub(super) fn drain_seeks(&self, state: &mut State, now: Ms) {
        let waiting: Vec<ConnectionId> = state.seeks.keys().copied().collect();
        for id in waiting {
            self.begin_echo(state, now, id);
            self.end_seek(state, id, CloseReason::Drain);
        }
    }
}

/// Whether a log is of the kind of stream that a cursor says it is. Its machine is made by that, and whoever knows a name
/// of the log can say another.
fn is_of(origin: &Origin, is_standalone: bool, record: &Record) -> bool {
    if is_standalone {
        return *origin == Origin::Standalone;
    }
    // Empty where the store does not keep it.
    let requests = RequestId::decode_all(&record.about).unwrap_or_default();
    match origin {
        Origin::Standalone => requests.is_empty(),
        Origin::Request(request) => requests.is_empty() || requests.contains(request),
        Origin::Unnamed => true,
    }
}

fn comment_due(seek: &Seek, keep_alive_ms: u64) -> Ms {
    if keep_alive_ms == 0 { Ms::NEVER } else { seek.last_write + keep_alive_ms }
}
