//! Pages that the machines read from their logs.

use crate::Ms;
use crate::engine::lines::log_later;
use crate::engine::sessions::cell::{Cell, State};
use crate::protocol::StreamNonce;
use crate::session::Step;
use crate::store::{Answer, Operation, ReadLimit, StoreError};
use crate::stream::{ConnectionId, Input, Seq};

/// Events in one page. The byte bound is what usually ends a page.
pub(crate) const PAGE_EVENTS: usize = 4_096;

impl Cell {
    pub(crate) fn load(
        &self,
        state: &mut State,
        now: Ms,
        nonce: StreamNonce,
        conn: ConnectionId,
        (after, up_to): (Seq, Seq),
        more: &mut Vec<Step>,
    ) {
        let Some(out) = state.conns.get_mut(&conn) else { return };
        let bytes = out.page_bytes;
        let known = out.page.take().filter(|(from, page)| *from == after && page.head >= up_to);
        if let Some((_, mut page)) = known {
            page.events.retain(|event| event.seq <= up_to);
            let _ = state.session.handle(now, nonce, Input::Page { conn, page }, more);
            return;
        }
        // A page that is larger than what a connection may carry would make nothing of that bound.
        let bytes = match self.shared.options.pacing.max_connection_bytes {
            0 => bytes,
            max => bytes.min(usize::try_from(max).unwrap_or(usize::MAX)),
        };
        let tag = state.session.stream(nonce).and_then(|stream| stream.machine.arriving(conn));
        if let Some(tag) = tag.filter(|_| self.shared.store.outlives_process()) {
            return self.attach_log(state, now, (nonce, conn), (after, tag, bytes), more);
        }
        let limit = ReadLimit { up_to, events: PAGE_EVENTS, bytes };
        let ticket = self.ticket(nonce, Operation::Read(conn));
        let outcome = match self.shared.store.read(&self.key(nonce), after, limit, &ticket) {
            Answer::Now(result) => result.map(|read| read.page),
            Answer::Later => return self.wait(state, now, &ticket),
        };
        let input = self.page_input(state, conn, nonce, outcome);
        let _ = state.session.handle(now, nonce, input, more);
    }

    pub(crate) fn page_input(
        &self,
        state: &mut State,
        conn: ConnectionId,
        nonce: StreamNonce,
        outcome: Result<crate::stream::Page, StoreError>,
    ) -> Input {
        match outcome {
            Ok(page) => Input::Page { conn, page },
            Err(error) => {
                log_later!(self, state, WARN, [stream = nonce.hex()], %stream, %error, "log not readable");
                Input::LoadFailed { conn }
            }
        }
    }
}
