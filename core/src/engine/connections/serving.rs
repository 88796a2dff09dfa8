//! What a connection is given while it is open, and how it goes.

use crate::Ms;
use crate::engine::connections::conn::Conn;
use crate::engine::connections::{Chunk, Poll};
use crate::engine::lines::log_later;
use crate::engine::sessions::cell::{Cell, State};
use crate::engine::shared::lock;
use crate::engine::stats::Counters;
use crate::exchange::AnswerHead;
use crate::protocol::{RequestId, StreamNonce, sse};
use crate::session::Step;
use crate::store::OwnIds;
use crate::stream::{CloseReason, ConnectionId, Frame, Input};
use crate::sync::atomic::Ordering;

impl Cell {
    /// Forgets a connection. `more` when its stream may have something to come back for.
    pub(crate) fn detach(&self, state: &mut State, now: Ms, id: ConnectionId, more: bool) -> Option<Conn> {
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

    pub(crate) fn poll(&self, id: ConnectionId, max_bytes: usize) -> Poll {
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

    pub(crate) fn lost(&self, id: ConnectionId) {
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
    pub(crate) fn let_go(&self) {
        if self.is_adopted() && !self.is_forked() {
            self.release(|cell| lock(&cell.state).conns.is_empty());
        }
    }

    pub(crate) fn close_connection(&self, request: &RequestId, retry_ms: Option<u32>, hold_ms: Option<u64>) -> bool {
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

    pub(crate) fn close_standalone(&self, retry_ms: Option<u32>, hold_ms: Option<u64>) -> bool {
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

    /// Encodes a frame into the connection's outbox.
    pub(crate) fn write(&self, state: &mut State, nonce: StreamNonce, conn: ConnectionId, frame: Frame) {
        let counters = &self.shared.counters;
        let (Some(stream), Some(out)) = (state.session.stream(nonce), state.conns.get_mut(&conn)) else { return };
        if !matches!(frame, Frame::Priming { .. }) {
            out.flush_after_opening();
        }
        let told_ms = out.retry_ms;
        if let Frame::Priming { retry_ms, .. } | Frame::Retry { ms: retry_ms } = frame {
            out.retry_ms = Some(retry_ms);
        }
        if let Frame::Priming { retry_ms, .. } = frame
            && std::mem::take(&mut out.primed)
        {
            // It has its position already; the stream's own delay may be another than it was told.
            if told_ms != Some(retry_ms) {
                sse::write_retry(out.own(), retry_ms);
            }
            out.flush_after_opening();
            return state.touched.push(conn);
        }
        let unkept = if matches!(frame, Frame::Tail(_)) { out.unkept.take() } else { None };
        match frame {
            Frame::Events(events) => out.outbox.extend(events.into_iter().map(|event| Chunk::Shared(event.frame))),
            Frame::Priming { seq, visit, tag, retry_ms } => {
                match self.shared.store.own_ids() {
                    None => {
                        let write_id = |bytes: &mut Vec<u8>| stream.ids.encode(seq, visit, tag, bytes);
                        sse::write_priming(out.own(), write_id, Some(retry_ms));
                    }
                    Some(own) => match out.echo.take().or_else(|| own.id_at(&self.key(nonce), seq)) {
                        Some(id) => {
                            sse::write_priming(
                                out.own(),
                                |bytes| bytes.extend_from_slice(id.as_bytes()),
                                Some(retry_ms),
                            );
                        }
                        None => sse::write_keep_alive(out.own()),
                    },
                }
                out.flush_after_opening();
            }
            Frame::Gap { first, count } => {
                Counters::add(&counters.gaps, 1);
                Counters::add(&counters.events_missed, count);
                log_later!(self, state, WARN, [stream = nonce.hex()], %stream, first, count, "gap");
                sse::write_gap(out.own(), first, count);
            }
            Frame::Retry { ms } => sse::write_retry(out.own(), ms),
            Frame::KeepAlive => sse::write_keep_alive(out.own()),
            Frame::Tail(end) if self.shared.store.own_ids().is_some() => {
                sse::write_anonymous(out.own(), &unkept.unwrap_or(end));
            }
            Frame::Tail(end) => {
                sse::write_message(out.own(), |bytes| stream.ids.tombstone(bytes), &unkept.unwrap_or(end));
            }
        }
        state.touched.push(conn);
    }
}
