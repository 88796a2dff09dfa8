//! The answers to a resume (design: one documented, terminal answer for each case).
//!
//! | case | answer |
//! |---|---|
//! | the stream's log continues after the cursor | 200, echo, suffix, live tail |
//! | the cursor is at the terminal, or a tombstone | 204 |
//! | not possible, the id names a request | 200 and an error for that request under a tombstone |
//! | not possible, the id is of a standalone stream | 200, the caller's own standalone stream from its start |
//! | not possible otherwise | 400 with a JSON-RPC error |
//!
//! An id of another session is not found in this one: it is answered like an unknown id, byte for byte (I7).

use crate::engine::connections::conn::{Conn, Phase, Position, Reading};
use crate::engine::lines::log_later;
use crate::engine::lines::shown;
use crate::engine::sessions::change::Change;
use crate::engine::stats::Counters;
use crate::exchange::AnswerHead;
use crate::protocol::{Cursor, EventId, IdEncoder, Origin, Refusal, StreamNonce, sse};
use crate::session::{SynthesizedEnd, end_payload};
use crate::stream::{CloseReason, ConnectionId, RejectReason};

impl Change<'_> {
    /// Answers a resume, on the connection that `conn` makes.
    pub(crate) fn answer_resume(
        &mut self,
        last_event_id: &str,
        conn: impl FnOnce(StreamNonce, Origin) -> Conn,
        arrival: Option<ConnectionId>,
    ) -> Result<ConnectionId, Refusal> {
        if let Some(own) = self.cell.shared.store.own_ids() {
            let located = own.locate(&self.cell.name, last_event_id);
            let nonce = located.map_or(StreamNonce::NONE, |(nonce, _)| nonce);
            let echo = Some(last_event_id.into());
            let conn = self.connect(Conn { echo, ..conn(nonce, Origin::Unnamed) }, arrival);
            match (located, own.host()) {
                (Some((_, after)), _) => {
                    self.resume_log(conn, Position::of_cursor(nonce, after, 0, None));
                }
                (None, Some(host)) => self.ask_replay(host, last_event_id, conn),
                (None, None) => self.answer_unknown(conn),
            }
            return Ok(conn);
        }
        match EventId::parse(last_event_id) {
            None => {
                Counters::add(&self.cell.shared.counters.resumes_refused, 1);
                log_later!(self, DEBUG, [cursor = shown(last_event_id).to_owned()], ?cursor, "no event id of ours");
                Err(self.cell.dialect.wording.not_resumable())
            }
            Some(EventId::Tombstone(nonce, origin)) => {
                let conn = self.connect(conn(nonce, origin), arrival);
                self.answer_complete(conn);
                Ok(conn)
            }
            Some(EventId::Position(cursor)) => {
                let conn = self.connect(conn(cursor.nonce, cursor.origin.clone()), arrival);
                let Cursor { nonce, seq, visit, tag, .. } = cursor;
                let position = Position::of_cursor(nonce, seq, visit, Some(tag));
                self.resume_log(conn, position);
                Ok(conn)
            }
        }
    }

    /// Answers a resume whose cursor the machine does not take.
    pub(crate) fn answer_reject(&mut self, conn: ConnectionId, why: RejectReason) {
        match why {
            RejectReason::Complete => self.answer_complete(conn),
            RejectReason::Unknown
                if self
                    .state
                    .conns
                    .get(&conn)
                    .is_some_and(|conn| matches!(conn.phase, Phase::Reading(Reading { instead: true, .. }))) =>
            {
                self.answer_contradiction(conn);
            }
            RejectReason::Unknown => self.answer_unknown(conn),
        }
    }

    pub(crate) fn answer_complete(&mut self, id: ConnectionId) {
        Counters::add(&self.cell.shared.counters.resumes_complete, 1);
        if let Some(conn) = self.state.conns.get_mut(&id) {
            let (request, cursor) = conn.asked_for();
            log_later!(self, DEBUG, [], connection = id, %request, ?cursor, "resume: nothing is left of the stream");
            self.finish(id, AnswerHead::NO_CONTENT, Vec::new());
        }
    }

    /// There is no standalone stream to give instead, or the store does not even know its start. So what the store says
    /// contradicts itself, and asking once more would never end.
    fn answer_contradiction(&mut self, id: ConnectionId) {
        log_later!(self, ERROR, [], "the store does not know the start of a stream");
        self.answer(id, AnswerHead::EVENT_STREAM, Vec::new());
        self.close(id, CloseReason::Fault);
    }

    pub(crate) fn answer_unknown(&mut self, id: ConnectionId) {
        let counters = &self.cell.shared.counters;
        let Some(conn) = self.state.conns.get_mut(&id) else { return };
        let (request, cursor) = conn.asked_for();
        log_later!(self, INFO, [], connection = id, %request, ?cursor, "resume not possible");
        match conn.origin.clone() {
            Origin::Request(request) => {
                Counters::add(&counters.resumes_lost, 1);
                let ids = IdEncoder::new(conn.nonce, &conn.origin);
                let payload = end_payload(&request, SynthesizedEnd::Lost);
                let mut bytes = Vec::new();
                sse::write_message(&mut bytes, |out| ids.tombstone(out), &payload);
                self.finish(id, AnswerHead::EVENT_STREAM, bytes);
            }
            Origin::Standalone => {
                Counters::add(&counters.resumes_lost, 1);
                // The client was told a position in the stream that is lost. The stream that is given instead has to
                // write its own priming event, as if no `retry` had been told.
                conn.retry_ms = None;
                conn.after_opening = list_changed(self.state.session.list_changed());
                if self.cell.is_elsewhere() && self.state.session.standalone().is_none() {
                    // Only the owner of a session creates its streams.
                    return self.answer_contradiction(id);
                }
                let nonce = self.standalone();
                if let Some(conn) = self.state.conns.get_mut(&id) {
                    conn.nonce = nonce;
                }
                let position = Position { instead: true, ..Position::start(nonce) };
                if self.state.session.stream(nonce).is_none() {
                    // Another process writes the stream, and nobody has read it here yet.
                    return self.resume_log(id, position);
                }
                self.resume_stream(id, position);
            }
            Origin::Unnamed => {
                Counters::add(&counters.resumes_refused, 1);
                // If the answer had to begin before the store answered, it has begun as a stream: then it is not
                // refused, but just ends.
                self.refuse(id, &self.cell.dialect.wording.not_resumable());
                self.finish(id, AnswerHead::EVENT_STREAM, Vec::new());
            }
        }
    }
}

/// Tells a client that has missed events of a standalone stream to fetch its lists again. These messages are not in the
/// log, so they have no ids.
fn list_changed(declared: &crate::protocol::ListChanged) -> Vec<u8> {
    let lists = [("tools", declared.tools), ("prompts", declared.prompts), ("resources", declared.resources)];
    let mut out = Vec::new();
    for (list, _) in lists.into_iter().filter(|(_, declared)| *declared) {
        let payload = format!(r#"{{"jsonrpc":"2.0","method":"notifications/{list}/list_changed"}}"#);
        sse::write_anonymous(&mut out, payload.as_bytes());
    }
    out
}
