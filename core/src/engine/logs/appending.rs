//! What the machines append to their logs, and what happens if the store refuses it.

use std::cell::RefCell;

use bytes::Bytes;

use crate::engine::lines::log_later;
use crate::engine::logs::log::Write;
use crate::engine::sessions::change::Change;
use crate::protocol::{StreamNonce, sse};
use crate::session::Stream;
use crate::store::{Append, StoreError};
use crate::stream::{EventKind, Input, Paced, Seq, StoredEvent};
use crate::sync::Arc;

/// Bytes that a thread keeps for writing its next frame.
const KEPT_BYTES: usize = 16 << 10;

thread_local! {
    /// Where a frame is written, before it is copied to a block of its own size.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Change<'_> {
    pub(crate) fn append_to_log(&mut self, nonce: StreamNonce, first: Seq, paced: Option<Paced>) {
        let Some(stream) = self.state.session.stream(nonce) else { return };
        let mut chain = stream.chain;
        let events = stream.machine.asked();
        // A thread that is ending has no buffer.
        let mut scratch = SCRATCH.try_with(RefCell::take).unwrap_or_default();
        let mut stored = Vec::with_capacity(events.len());
        for (seq, event) in (first..).zip(events) {
            chain = chain.then(&event.payload, self.cell.shared.chain_key.as_ref());
            let tag = chain.tag();
            scratch.clear();
            sse::write_message(&mut scratch, |out| stream.ids.encode(seq, 0, tag, out), &event.payload);
            if scratch.len() > self.cell.shared.options.warn_event_bytes {
                log_later!(self, WARN, of nonce, [bytes = scratch.len()], bytes,
                    "large event: clients with a smaller buffer will drop it");
            }
            stored.push(StoredEvent { seq, kind: event.kind, tag, frame: Arc::from(scratch.as_slice()) });
        }
        if scratch.capacity() <= KEPT_BYTES {
            let _ = SCRATCH.try_with(|kept| kept.replace(scratch));
        }
        let append = Append { events: stored, chain: chain.0, paced, ..self.empty_append(stream, first) };
        self.put(nonce, self.state.epoch, Write::Append(append));
    }

    pub(crate) fn end_log(&mut self, nonce: StreamNonce, tail: Bytes) {
        let Some(stream) = self.state.session.stream(nonce) else { return };
        let first = stream.machine.durable() + 1;
        let append = Append { end: Some(tail), ..self.empty_append(stream, first) };
        self.put(nonce, self.state.epoch, Write::End(append));
    }

    /// An append without anything, at the end of the stream's log.
    fn empty_append(&self, stream: &Stream, first: Seq) -> Append {
        // If the logs are gone with the process, only the trace is asked for.
        let is_kept = first == 1 && (self.cell.shared.store.outlives_process() || stream.trace.is_some());
        Append {
            first,
            chain_before: stream.chain.0,
            chain: stream.chain.0,
            about: if is_kept { stream.about() } else { Bytes::new() },
            primes: self.state.session.rules().priming,
            ..Append::default()
        }
    }

    pub(crate) fn append_refused(&mut self, nonce: StreamNonce, error: StoreError) {
        match error {
            StoreError::RolledBack | StoreError::Gone => {
                self.state.wants_stock = true;
                self.log_lost(nonce, &error);
            }
            // The log is another process's, which gives the call its end.
            StoreError::Fenced => {}
            _ => self.hand_over(nonce),
        }
        if self.input(nonce, Input::AppendFailed) {
            self.state.errors.insert(nonce, error);
        }
    }

    /// Whether the response of a stream goes to its reader without the store.
    pub(crate) fn is_handed_over(&mut self, nonce: StreamNonce) -> bool {
        let reader = self.state.session.stream(nonce).and_then(|stream| stream.machine.connection());
        let reading = reader.and_then(|conn| self.state.conns.get_mut(&conn)?.reading());
        reading.is_some_and(|reading| reading.unkept.is_some())
    }

    /// A response that the store did not take goes to the connection that reads the stream now, if there is one. The store has
    /// all that comes before it.
    fn hand_over(&mut self, nonce: StreamNonce) {
        let Some(stream) = self.state.session.stream(nonce).filter(|stream| stream.has_one_response()) else { return };
        let machine = &stream.machine;
        let response = machine.asked().next().filter(|event| event.kind == EventKind::Terminal);
        let reader = machine.connection().and_then(|conn| self.state.conns.get_mut(&conn)?.reading());
        if let (Some(response), Some(reader)) = (response, reader) {
            reader.unkept = Some(response.payload.clone());
        }
    }
}
