//! Pages that the machines read from their logs.

use crate::engine::lines::log_later;
use crate::engine::sessions::change::Change;
use crate::protocol::StreamNonce;
use crate::store::{Answer, LogPage, Operation, ReadLimit, StoreError};
use crate::stream::{ConnectionId, Input, Seq};

/// Events in one page. The byte bound is what usually ends a page.
pub(crate) const PAGE_EVENTS: usize = 4_096;

impl Change<'_> {
    pub(crate) fn load(&mut self, nonce: StreamNonce, conn: ConnectionId, (after, up_to): (Seq, Seq)) {
        let Some(out) = self.state.conns.get_mut(&conn) else { return };
        let bytes = out.page_bytes;
        let Some(reading) = out.reading() else { return };
        let known = reading.page.take().filter(|(from, page)| *from == after && page.head >= up_to);
        if let Some((_, mut page)) = known {
            page.events.retain(|event| event.seq <= up_to);
            self.input(nonce, Input::Page { conn, page });
            return;
        }
        // A page must not be larger than what a connection may carry: that bound would mean nothing.
        let bytes = match self.cell.shared.options.pacing.max_connection_bytes {
            0 => bytes,
            max => bytes.min(usize::try_from(max).unwrap_or(usize::MAX)),
        };
        let tag = self.state.session.stream(nonce).and_then(|stream| stream.machine.arriving(conn));
        if let Some(tag) = tag.filter(|_| self.cell.shared.store.outlives_process()) {
            return self.attach_log((nonce, conn), (after, tag, bytes));
        }
        let limit = ReadLimit { up_to, events: PAGE_EVENTS, bytes };
        let ticket = self.cell.ticket(nonce, Operation::Read(conn));
        let outcome = match self.cell.shared.store.read(&self.cell.key(nonce), after, limit, &ticket) {
            Answer::Now(result) => result,
            Answer::Later => return self.wait(ticket),
        };
        let input = self.page_input(conn, nonce, outcome);
        self.input(nonce, input);
    }

    pub(crate) fn page_input(
        &mut self,
        conn: ConnectionId,
        nonce: StreamNonce,
        outcome: Result<LogPage, StoreError>,
    ) -> Input {
        match outcome {
            Ok(LogPage { page, is_finished, tail, .. }) => {
                let is_over = self.state.session.stream(nonce).is_some_and(|stream| stream.machine.is_finished());
                if is_finished && is_over {
                    // If the store was set back, its log has an end that tells of the loss.
                    self.input(nonce, Input::Ended { head: page.head, tail });
                }
                Input::Page { conn, page }
            }
            Err(error) => {
                log_later!(self, WARN, of nonce, [], %error, "log not readable");
                Input::LoadFailed { conn }
            }
        }
    }
}
