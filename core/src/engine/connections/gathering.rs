//! Answers in one JSON body to calls that run in another process: the stream of the call is read here, and the answers
//! to its requests go into the body.

use crate::engine::connections::Chunk;
use crate::engine::connections::conn::{Conn, Phase};
use crate::engine::sessions::change::Change;
use crate::exchange::{AnswerHead, Join};
use crate::protocol::sse_decoder::{Decoder, Item};
use crate::protocol::{Kind, Refusal, jsonrpc};
use crate::stream::{CloseReason, ConnectionId, Input};

impl Change<'_> {
    /// Reads the stream for a connection that gets one body, until the body is whole or there is nothing more to read.
    pub(crate) fn gather(&mut self, id: ConnectionId) {
        while let Some(conn) = self.state.conns.get_mut(&id) {
            let Some(join) = &mut conn.gathers else { return };
            if conn.head.is_some_and(|head| head.is_refusal) {
                conn.gathers = None;
                return;
            }
            let chunks = std::mem::take(&mut conn.outbox);
            if let Some(body) = add(join, &chunks) {
                self.stop_gathering(id);
                return self.finish(id, AnswerHead::JSON, body);
            }
            if conn.end().is_some() {
                // The call runs, but nobody can come back for its answer.
                return self.refuse_gathering(id, &self.cell.dialect.wording.answer_unknown());
            }
            if chunks.is_empty() {
                return;
            }
            self.read_on(id);
        }
    }

    /// Refuses the request of a connection that was sent nothing of its stream.
    pub(crate) fn refuse_gathering(&mut self, id: ConnectionId, refusal: &Refusal) {
        self.stop_gathering(id);
        self.refuse(id, refusal);
        self.enter(id, Phase::Ended(CloseReason::Complete));
    }

    /// Makes a connection stop reading its stream, as if its answer had not begun.
    fn stop_gathering(&mut self, id: ConnectionId) {
        let Some(conn) = self.state.conns.get_mut(&id) else { return };
        let Conn { nonce, gathers, head, outbox, .. } = &mut **conn;
        (*gathers, *head) = (None, None);
        outbox.clear();
        let nonce = *nonce;
        self.input(nonce, Input::Lost { conn: id });
    }
}

/// Adds the answers in these parts of a stream. Returns the body, if no answer is missing any more.
fn add(join: &mut Join, chunks: &[Chunk]) -> Option<Vec<u8>> {
    let mut decoder = Decoder::new(usize::MAX);
    for chunk in chunks {
        decoder.push(chunk.as_ref());
        while let Ok(Some(item)) = decoder.next() {
            let Item::Event(event) = item else { continue };
            let Ok(body) = jsonrpc::read(event.data.as_bytes()) else { continue };
            for envelope in body.envelopes() {
                let is_answer = matches!(envelope.kind, Kind::Response | Kind::ErrorResponse);
                // An error without an id answers the only request.
                let request = envelope.id.as_ref().or_else(|| join.only());
                if let Some(request) = request.filter(|_| is_answer).cloned()
                    && let Some(body) = join.answer(&request, event.data.as_bytes()[envelope.range.clone()].to_vec())
                {
                    return Some(body);
                }
            }
        }
    }
    None
}
