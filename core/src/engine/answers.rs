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
//! An id of another session is not found in this one: it takes the path of an unknown id, byte for
//! byte (I7).

use super::cell::{Cell, State};
use super::conn::{Conn, shown};
use super::lines::log_later;
use super::seeks::Position;
use super::stats::Counters;
use crate::Ms;
use crate::exchange::AnswerHead;
use crate::protocol::{Cursor, EventId, IdEncoder, Origin, Refusal, StreamNonce, sse};
use crate::session::{Step, SynthesizedEnd, end_payload};
use crate::store::{HostReplay, HostStore, OwnIds};
use crate::stream::{Chain, CloseReason, ConnectionId, Input, RejectReason};

impl Cell {
    /// Answers a resume. `attach` registers the connection.
    pub(super) fn answer_resume(
        &self,
        state: &mut State,
        now: Ms,
        last_event_id: &str,
        attach: impl FnOnce(&mut State, StreamNonce, Origin) -> ConnectionId,
        steps: &mut Vec<Step>,
    ) -> Result<ConnectionId, Refusal> {
        if let Some(own) = self.shared.store.own_ids() {
            let located = own.locate(&self.name, last_event_id);
            let nonce = located.map_or(StreamNonce([0; 12]), |(nonce, _)| nonce);
            let conn = attach(state, nonce, Origin::Unnamed);
            if let Some(conn) = state.conns.get_mut(&conn) {
                conn.echo = Some(last_event_id.into());
            }
            match (located, own.host()) {
                (Some((_, after)), _) => {
                    self.resume_log(state, now, conn, Position::of_cursor(nonce, after, 0, None), steps);
                }
                (None, Some(host)) => self.ask_replay(state, now, host, last_event_id, conn),
                (None, None) => self.answer_unknown(state, now, conn, steps),
            }
            return Ok(conn);
        }
        match EventId::parse(last_event_id) {
            None => {
                Counters::add(&self.shared.counters.resumes_refused, 1);
                log_later!(
                    self,
                    state,
                    INFO,
                    [cursor = shown(last_event_id).to_owned()],
                    ?cursor,
                    "resume refused: no event id of ours"
                );
                Err(self.dialect.wording.not_resumable())
            }
            Some(EventId::Tombstone(nonce, origin)) => {
                let conn = attach(state, nonce, origin);
                self.answer_complete(state, conn);
                Ok(conn)
            }
            Some(EventId::Position(cursor)) => {
                let conn = attach(state, cursor.nonce, cursor.origin.clone());
                let Cursor { nonce, seq, visit, tag, .. } = cursor;
                let position = Position::of_cursor(nonce, seq, visit, Some(tag));
                self.resume_log(state, now, conn, position, steps);
                Ok(conn)
            }
        }
    }

    /// The machine does not take the cursor.
    pub(super) fn answer_reject(
        &self,
        state: &mut State,
        now: Ms,
        conn: ConnectionId,
        why: RejectReason,
        steps: &mut Vec<Step>,
    ) {
        match why {
            RejectReason::Complete => self.answer_complete(state, conn),
            RejectReason::Unknown if state.conns.get(&conn).is_some_and(|conn| conn.instead) => {
                self.answer_contradiction(state, conn);
            }
            RejectReason::Unknown => self.answer_unknown(state, now, conn, steps),
        }
    }

    fn answer_complete(&self, state: &mut State, id: ConnectionId) {
        Counters::add(&self.shared.counters.resumes_complete, 1);
        if let Some(conn) = state.conns.get_mut(&id) {
            let (request, cursor) = conn.asked_for();
            log_later!(self, state, DEBUG, [], connection = id, %request, ?cursor, "resume: nothing is left of the stream");
            finish(conn, AnswerHead::NO_CONTENT, &[]);
        }
        state.touched.push(id);
    }

    /// There is no standalone stream to give instead, or not even its start is one that the store knows. What it says
    /// of the log cannot be, and asking it once more would never end.
    fn answer_contradiction(&self, state: &mut State, id: ConnectionId) {
        log_later!(self, state, ERROR, [], "the store does not know the start of a stream");
        if let Some(conn) = state.conns.get_mut(&id) {
            conn.head.get_or_insert(AnswerHead::EVENT_STREAM);
            conn.end = Some(CloseReason::Fault);
            self.shared.counters.closed(CloseReason::Fault);
        }
        state.touched.push(id);
    }

    pub(super) fn answer_unknown(&self, state: &mut State, now: Ms, id: ConnectionId, steps: &mut Vec<Step>) {
        let counters = &self.shared.counters;
        let Some(conn) = state.conns.get_mut(&id) else { return };
        let (request, cursor) = conn.asked_for();
        log_later!(self, state, INFO, [], connection = id, %request, ?cursor, "resume not possible");
        match conn.origin.clone() {
            Origin::Request(request) => {
                Counters::add(&counters.resumes_lost, 1);
                let ids = IdEncoder::new(conn.nonce, &conn.origin);
                let payload = end_payload(&request, SynthesizedEnd::Lost);
                let mut bytes = Vec::new();
                sse::write_message(&mut bytes, |out| ids.tombstone(out), &payload);
                finish(conn, AnswerHead::EVENT_STREAM, &bytes);
            }
            Origin::Standalone => {
                Counters::add(&counters.resumes_lost, 1);
                (conn.instead, conn.after) = (true, 0);
                // What it was told is a position in the stream that is lost; the one to come back for has another.
                conn.primed = false;
                conn.after_opening = list_changed(state.session.list_changed());
                if self.is_adopted() && state.session.standalone().is_none() {
                    // Only the owner of a session creates its streams.
                    return self.answer_contradiction(state, id);
                }
                let nonce = self.standalone(state, now, steps);
                if let Some(conn) = state.conns.get_mut(&id) {
                    conn.nonce = nonce;
                }
                let start = Chain::start(&nonce.0).tag();
                if state.session.stream(nonce).is_none() {
                    // It is written elsewhere, and nobody has read it here.
                    let position = Position::of_cursor(nonce, 0, 0, Some(start));
                    return self.resume_log(state, now, id, position, steps);
                }
                let jitter = self.shared.jitter();
                let resume = Input::Resume { conn: id, after: 0, visit: 0, tag: Some(start), jitter };
                let _ = state.session.handle(now, nonce, resume, steps);
            }
            Origin::Unnamed => {
                Counters::add(&counters.resumes_refused, 1);
                // When the store could only be asked later, the answer has begun as a stream and just ends.
                if conn.head.is_none() {
                    conn.refuse(&self.dialect.wording.not_resumable(), self.dialect);
                }
                conn.end = Some(CloseReason::Complete);
            }
        }
        state.touched.push(id);
    }
}

/// What the host's own store replayed: outside the window, so in the store's own words.
impl Cell {
    fn ask_replay(&self, state: &mut State, now: Ms, host: &HostStore, last_event_id: &str, id: ConnectionId) {
        let number = host.replay(&self.name, last_event_id, id);
        let wait = self.wait_for_replay(state, now, number);
        if let Some(conn) = state.conns.get_mut(&id) {
            conn.replay = Some((number, wait));
        }
        state.asked_later = true;
    }

    pub(super) fn replayed(&self, number: u64, replay: Result<HostReplay, String>) {
        self.change(|state, now, steps| self.take_replay(state, now, number, replay, steps));
    }

    pub(super) fn take_replay(
        &self,
        state: &mut State,
        now: Ms,
        number: u64,
        replay: Result<HostReplay, String>,
        steps: &mut Vec<Step>,
    ) {
        let Some(host) = self.shared.store.own_ids().and_then(OwnIds::host) else { return };
        let Some(id) = host.take_replay(number) else { return };
        let Some(conn) = state.conns.get_mut(&id) else { return };
        if let Some((_, wait)) = conn.replay.take() {
            state.waits.remove(wait);
        }
        match replay {
            Ok(replay) => self.answer_replayed(state, now, id, host, &replay, steps),
            Err(error) => {
                // The client keeps its cursor, waits its retry and asks again.
                log_later!(self, state, WARN, [], %error, "event store did not replay");
                let mut bytes = Vec::new();
                self.write_echo(state, id, &mut bytes);
                if let Some(conn) = state.conns.get_mut(&id) {
                    finish(conn, AnswerHead::EVENT_STREAM, &bytes);
                    conn.end = Some(CloseReason::Fault);
                }
                self.shared.counters.closed(CloseReason::Fault);
                state.touched.push(id);
            }
        }
    }

    fn answer_replayed(
        &self,
        state: &mut State,
        now: Ms,
        id: ConnectionId,
        host: &HostStore,
        replay: &HostReplay,
        steps: &mut Vec<Step>,
    ) {
        // A name of another session's stream is no stream here: look-ups are by session and nonce (I7).
        let nonce = replay.stream.as_deref().and_then(|name| HostStore::stream_of(&self.name, name));
        let Some(nonce) = nonce else { return self.answer_unknown(state, now, id, steps) };
        let record = host.window(&self.key(nonce));
        let low = record.as_ref().map_or(0, |known| known.page.low);
        // The window knows ids that are cursors into it, the one before its first event included.
        let located = |id: &str| host.locate(&self.name, id).filter(|(stream, _)| *stream == nonce);
        let mut before_window =
            state.conns.get_mut(&id).map(|c| std::mem::take(&mut c.after_opening)).unwrap_or_default();
        let mut overlap = None;
        let mut last = None;
        for (event_id, payload) in &replay.events {
            let event_id = event_id.as_deref().filter(|event_id| sse::is_valid_event_id(event_id));
            last = event_id.map(|event_id| (event_id, located(event_id)));
            overlap = last.and_then(|(_, position)| position).filter(|(_, seq)| *seq >= low);
            if overlap.is_some() {
                break;
            }
            // Primings are positions, never messages (F-28).
            let Some(payload) = payload.as_deref().filter(|payload| *payload != b"{}") else { continue };
            match event_id {
                Some(event_id) => {
                    let write_id = |out: &mut Vec<u8>| out.extend_from_slice(event_id.as_bytes());
                    sse::write_message(&mut before_window, write_id, payload);
                }
                None => sse::write_anonymous(&mut before_window, payload),
            }
        }
        if before_window.len() > self.shared.options.limits.max_bytes_per_stream {
            return self.answer_unknown(state, now, id, steps);
        }
        // The window continues a replay that reaches into it, or ends right before it.
        let joins = low <= 1 || overlap.is_some() || matches!(last, Some((_, Some(_))));
        if record.is_some() && !joins {
            let Some((last_event_id, _)) = last else { return self.answer_unknown(state, now, id, steps) };
            // The window has moved on while the host replayed: what is between them is the host's, too.
            if let Some(conn) = state.conns.get_mut(&id) {
                conn.after_opening = before_window;
            }
            return self.ask_replay(state, now, host, last_event_id, id);
        }
        let (after, head, finished) = match (&record, overlap) {
            (Some(known), Some((_, seq))) => (seq.saturating_sub(1), known.page.head, known.is_finished),
            (Some(known), None) => (known.page.low.saturating_sub(1), known.page.head, known.is_finished),
            (None, _) => (0, 0, true),
        };
        if finished && after == head {
            if before_window.is_empty() {
                return self.answer_unknown(state, now, id, steps);
            }
            let mut bytes = Vec::new();
            self.write_echo(state, id, &mut bytes);
            bytes.append(&mut before_window);
            if let Some(conn) = state.conns.get_mut(&id) {
                finish(conn, AnswerHead::EVENT_STREAM, &bytes);
            }
            state.touched.push(id);
            return;
        }
        if let Some(conn) = state.conns.get_mut(&id) {
            conn.nonce = nonce;
            conn.after_opening = before_window;
        }
        self.resume_log(state, now, id, Position::of_cursor(nonce, after, 0, None), steps);
    }

    /// The client's own cursor with a retry, where its revision knows priming.
    fn write_echo(&self, state: &mut State, conn: ConnectionId, out: &mut Vec<u8>) {
        if !state.session.rules().priming {
            return;
        }
        if let Some(echo) = state.conns.get_mut(&conn).and_then(|conn| conn.echo.take()) {
            let retry_ms = state.session.retry_ms();
            sse::write_priming(out, |bytes| bytes.extend_from_slice(echo.as_bytes()), Some(retry_ms));
        }
    }
}

/// Gives a connection its whole answer.
fn finish(conn: &mut Conn, head: AnswerHead, bytes: &[u8]) {
    conn.head.get_or_insert(head);
    if !bytes.is_empty() {
        conn.own().extend_from_slice(bytes);
    }
    conn.end = Some(CloseReason::Complete);
}

/// Tells a client that missed what a standalone stream said to fetch its lists again. Not in the log,
/// so without ids.
fn list_changed(declared: &crate::protocol::ListChanged) -> Vec<u8> {
    let lists = [("tools", declared.tools), ("prompts", declared.prompts), ("resources", declared.resources)];
    let mut out = Vec::new();
    for (list, _) in lists.into_iter().filter(|(_, declared)| *declared) {
        let payload = format!(r#"{{"jsonrpc":"2.0","method":"notifications/{list}/list_changed"}}"#);
        sse::write_anonymous(&mut out, payload.as_bytes());
    }
    out
}
