//! How a connection gets from one phase to the next, and how it ends.

use crate::engine::connections::Chunk;
use crate::engine::connections::conn::Phase;
use crate::engine::live::Note;
use crate::engine::sessions::change::Change;
use crate::engine::sessions::timers::Reason;
use crate::exchange::AnswerHead;
use crate::protocol::Refusal;
use crate::store::OwnIds;
use crate::stream::{CloseReason, ConnectionId};
use crate::sync::atomic::Ordering;

impl Change<'_> {
    /// Puts a connection into another phase. What the phase before waited for is called off.
    pub(crate) fn enter(&mut self, id: ConnectionId, phase: Phase) {
        let Some(conn) = self.state.conns.get_mut(&id) else { return };
        match std::mem::replace(&mut conn.phase, phase) {
            Phase::Seeking(_) => {
                self.state.timers.clear(Reason::Seek(id));
                self.state.timers.clear(Reason::Comment(id));
            }
            Phase::Replaying(number) => {
                self.state.timers.clear(Reason::Replay(number));
                if let Some(host) = self.cell.shared.store.own_ids().and_then(OwnIds::host) {
                    host.forget_replay(&self.cell.name, number);
                }
            }
            Phase::Reading(_) | Phase::Json(_) | Phase::Ended(_) => {}
        }
    }

    /// Gives a connection a part of its answer. `head` is how the answer starts, if it has not started yet.
    pub(crate) fn answer(&mut self, id: ConnectionId, head: AnswerHead, bytes: Vec<u8>) {
        let Some(conn) = self.state.conns.get_mut(&id) else { return };
        conn.head.get_or_insert(head);
        if !bytes.is_empty() {
            conn.outbox.push(Chunk::Own(bytes));
        }
        self.effects.touched.push(id);
    }

    /// Gives a connection the rest of its answer.
    pub(crate) fn finish(&mut self, id: ConnectionId, head: AnswerHead, bytes: Vec<u8>) {
        self.answer(id, head, bytes);
        self.enter(id, Phase::Ended(CloseReason::Complete));
    }

    /// Refuses the request of a connection. If its answer has begun as a stream, nothing is done: the stream just ends.
    pub(crate) fn refuse(&mut self, id: ConnectionId, refusal: &Refusal) {
        if self.state.conns.get(&id).is_some_and(|conn| conn.head.is_none()) {
            let dialect = self.cell.dialect;
            self.cell.shared.counters.refused(refusal.reason);
            self.answer(id, AnswerHead::refused(refusal, dialect), refusal.body(dialect));
        }
    }

    /// Ends a connection after what is ready for it.
    pub(crate) fn close(&mut self, id: ConnectionId, why: CloseReason) {
        self.enter(id, Phase::Ended(why));
        self.cell.shared.counters.closed(why);
        self.effects.touched.push(id);
    }

    /// Forgets a connection. `more` says whether its stream may have something to come back for.
    pub(crate) fn disconnect(&mut self, id: ConnectionId, more: bool) {
        if let Some(conn) = self.state.conns.get(&id) {
            let why = conn.end().map_or("lost", CloseReason::as_str);
            self.note_live(conn.nonce, Note::Closed { conn: id, why });
        }
        self.enter(id, Phase::Ended(CloseReason::Complete));
        let Some(mut conn) = self.state.conns.remove(&id) else { return };
        self.observe_connection(&mut conn);
        self.effects.released.push(conn.wake);
        if let Some(ticket) = &conn.attaching {
            self.call_off_attach(ticket);
        }
        let retry_ms = conn.retry_ms.unwrap_or_else(|| self.state.session.retry_ms());
        self.state.session.disconnected(self.now, more.then_some(retry_ms));
        self.cell.shared.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
