//! What a connection is given while it is open, and how it is forgotten.

use crate::Ms;
use crate::engine::connections::conn::Phase;
use crate::engine::connections::{Chunk, Poll};
use crate::engine::lines::log_later;
use crate::engine::live::Note;
use crate::engine::sessions::cell::Cell;
use crate::engine::sessions::change::Change;
use crate::engine::shared::lock;
use crate::engine::stats::Counters;
use crate::exchange::AnswerHead;
use crate::protocol::{StreamNonce, sse};
use crate::session::Stream;
use crate::stream::{CloseReason, ConnectionId, Frame, Input};

impl Cell {
    pub(crate) fn poll(&self, id: ConnectionId, max_bytes: usize) -> Poll {
        let over = |now| Poll {
            head: Some(AnswerHead::EMPTY),
            chunks: Vec::new(),
            end: Some(CloseReason::Superseded),
            more: false,
            wait_until: now,
        };
        // The connection does not exist any more: it was fenced or its session has ended, and it was told so before.
        self.change_or(over(Ms(0)), |change| change.poll(id, max_bytes).unwrap_or_else(|| over(change.now)))
    }

    pub(crate) fn lost(&self, id: ConnectionId) {
        // Most connections have ended by the time they are dropped.
        if !self.look_or(false, |state| state.conns.contains_key(&id)) {
            return self.let_go();
        }
        self.change(|change| {
            let Some(nonce) = change.state.conns.get(&id).map(|conn| conn.nonce) else { return };
            let unfinished = change.state.session.stream(nonce).is_some();
            change.disconnect(id, unfinished);
            Counters::add(&self.shared.counters.connections_lost, 1);
            log_later!(change, DEBUG, of nonce, [], connection = id, unfinished, "connection lost");
            change.input(nonce, Input::Lost { conn: id });
        });
        self.let_go();
    }

    /// Forgets the view of another process's session if it has no connection and relays nothing, once the logs that the
    /// owner left have their ends. If it did not wait for these ends, a client whose connections are sent away each
    /// time would never get one.
    pub(crate) fn let_go(&self) {
        let is_over = |cell: &Self| {
            let state = lock(&cell.state);
            let is_busy = !state.writing.is_empty() || !state.relays.is_empty() || state.adoption.is_pending();
            state.conns.is_empty() && !is_busy
        };
        if self.is_elsewhere() && !self.is_forked() {
            self.unregister(is_over);
        }
    }
}

impl Change<'_> {
    fn poll(&mut self, id: ConnectionId, max_bytes: usize) -> Option<Poll> {
        let conn = self.state.conns.get_mut(&id)?;
        conn.awake = true;
        conn.page_bytes = max_bytes;
        self.has_lived(id);
        self.read_on(id);
        self.gather(id);
        let nonce = self.state.conns.get(&id)?.nonce;
        let stream = self.state.session.stream(nonce);
        let has_more = stream.is_some_and(|stream| stream.machine.has_more(id));
        let stream = stream.map_or(Ms::NEVER, Stream::deadline);
        // The connection may wait for the store, not for the stream.
        let wait_until = stream.min(self.state.timers.next());
        let conn = self.state.conns.get_mut(&id)?;
        conn.awake = false;
        // If the connection ends before it is known how its answer starts, the answer is empty.
        let head = conn.head.filter(|_| conn.gathers.is_none()).or_else(|| conn.end().map(|_| AnswerHead::EMPTY));
        let end = conn.end();
        let more = has_more && end.is_none();
        let poll = Poll { head, chunks: std::mem::take(&mut conn.outbox), end, more, wait_until };
        if let Some(why) = poll.end {
            self.disconnect(id, why != CloseReason::Complete);
        }
        Some(poll)
    }

    /// Gives a connection that can take more what there is.
    pub(crate) fn read_on(&mut self, id: ConnectionId) {
        while let Some(conn) = self.state.conns.get(&id)
            && conn.outbox.is_empty()
            && matches!(conn.phase, Phase::Reading(_))
        {
            let nonce = conn.nonce;
            self.input(nonce, Input::Ready { conn: id });
            self.perform();
            let touched = self.effects.touched.len();
            // The caller hands over what was written, so no wake-up is needed for it. If nothing was written, the
            // wake-up was for something else: look once more.
            self.effects.touched.retain(|touched| *touched != id);
            if self.effects.touched.len() == touched {
                return;
            }
        }
    }

    /// Encodes a frame into the connection's outbox.
    pub(crate) fn send_frame(&mut self, nonce: StreamNonce, conn: ConnectionId, frame: Frame) {
        let counters = &self.cell.shared.counters;
        if let (Frame::Gap { count, .. }, Some(stream)) = (&frame, self.state.session.stream_mut(nonce)) {
            stream.counts.gaps += 1;
            self.note_live(nonce, Note::Gap { count: *count });
        }
        let (Some(stream), Some(out)) = (self.state.session.stream(nonce), self.state.conns.get_mut(&conn)) else {
            return;
        };
        if !matches!(frame, Frame::Priming { .. }) {
            out.flush_after_opening();
        }
        let told_ms = out.retry_ms;
        if let Frame::Priming { retry_ms, .. } | Frame::Retry { ms: retry_ms } = frame {
            out.retry_ms = Some(retry_ms);
        }
        if let (Frame::Priming { retry_ms, .. }, Some(told_ms)) = (&frame, told_ms) {
            // The client has its position already. The stream's own delay may differ from the one that the client was
            // told.
            if told_ms != *retry_ms {
                sse::write_retry(out.own(), *retry_ms);
            }
            out.flush_after_opening();
            return self.effects.touched.push(conn);
        }
        let unkept = if matches!(frame, Frame::Tail(_)) { out.reading().and_then(|r| r.unkept.take()) } else { None };
        match frame {
            Frame::Events(events) => out.outbox.extend(events.into_iter().map(|event| Chunk::Shared(event.frame))),
            Frame::Priming { seq, visit, tag, retry_ms } => {
                match self.cell.shared.store.own_ids() {
                    None => {
                        let write_id = |bytes: &mut Vec<u8>| stream.ids.encode(seq, visit, tag, bytes);
                        sse::write_priming(out.own(), write_id, Some(retry_ms));
                    }
                    Some(own) => match out.echo.take().or_else(|| own.id_at(&self.cell.key(nonce), seq)) {
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
                log_later!(self, WARN, of nonce, [], first, count,
                    "gap: a client missed events that a bound had dropped (max_events_per_stream, max_bytes_per_stream)");
                sse::write_gap(out.own(), first, count);
            }
            Frame::Retry { ms } => sse::write_retry(out.own(), ms),
            Frame::KeepAlive => sse::write_keep_alive(out.own()),
            Frame::Tail(end) if self.cell.shared.store.own_ids().is_some() => {
                sse::write_anonymous(out.own(), &unkept.unwrap_or(end));
            }
            Frame::Tail(end) => {
                sse::write_message(out.own(), |bytes| stream.ids.tombstone(bytes), &unkept.unwrap_or(end));
            }
        }
        self.effects.touched.push(conn);
    }
}
