//! Performs what the stream machines ask for, until nothing is left.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::cell::{Cell, State};
use super::connection::Chunk;
use super::handle::Sent;
use super::lines::log_later;
use super::stats::Counters;
use super::writing::Write;
use crate::Ms;
use crate::exchange::AnswerHead;
use crate::protocol::{StreamNonce, sse};
use crate::session::{Step, Stream, SynthesizedEnd};
use crate::store::{Answer, Append, Operation, Outcome, ReadLimit, StoreError, Ticket};
use crate::stream::{CloseReason, ConnectionId, EventKind, Frame, Input, NewEvent, Output, Paced, Seq, StoredEvent};

/// Events in one page. The byte bound is what usually ends a page.
pub(super) const PAGE_EVENTS: usize = 4_096;

impl Cell {
    pub(super) fn perform(&self, state: &mut State, now: Ms, steps: Vec<Step>) {
        let mut queue = VecDeque::from(steps);
        let mut more = Vec::new();
        while let Some((nonce, output)) = queue.pop_front() {
            self.step(state, now, nonce, output, &mut more);
            queue.extend(more.drain(..));
        }
    }

    fn step(&self, state: &mut State, now: Ms, nonce: StreamNonce, output: Output, more: &mut Vec<Step>) {
        let counters = &self.shared.counters;
        match output {
            Output::Append { first, events, paced } => {
                self.append_to_log(state, now, nonce, (first, &events, paced), more)
            }
            Output::Stored { token } => state.results.push((nonce, token, Ok(Sent::Stored))),
            Output::Unstored { token, seq, kind } => {
                Counters::add(&counters.events_unstored, 1);
                let error = state.errors.remove(&nonce).unwrap_or(StoreError::Gone);
                log_later!(self, state, ERROR, [stream = nonce.hex(), error = error.clone()], %stream, ?kind, %error,
                    "event not stored");
                let end = match error {
                    StoreError::TooLarge { bytes, max } => SynthesizedEnd::TooLarge { bytes, max },
                    _ => SynthesizedEnd::Unstored,
                };
                state.session.unstored(now, nonce, (token, seq, kind), end, more);
                state.results.push((nonce, token, if kind.is_response() { Ok(Sent::Dropped) } else { Err(error) }));
            }
            Output::Load { conn, after, up_to } => self.load(state, now, nonce, conn, (after, up_to), more),
            Output::Accept { conn } => {
                let stored = state.session.stream(nonce).map_or(0, |stream| stream.machine.durable());
                if let Some(out) = state.conns.get_mut(&conn) {
                    out.head = Some(AnswerHead::EVENT_STREAM);
                    Counters::add(&counters.resumes_accepted, u64::from(!out.instead));
                    let replayed = stored.saturating_sub(out.after);
                    let (request, cursor) = out.asked_for();
                    log_later!(self, state, DEBUG, [stream = nonce.hex()], %stream, connection = conn, %request, ?cursor,
                        replayed, "resume");
                }
                state.touched.push(conn);
                self.has_reader(state, nonce, conn);
            }
            Output::Reject { conn, why } => self.answer_reject(state, now, conn, why, more),
            Output::Send { conn, frame } => self.write(state, nonce, conn, frame),
            Output::Wake { conn } => state.touched.push(conn),
            Output::Close { conn, why } => {
                counters.closed(why);
                log_later!(self, state, DEBUG, [stream = nonce.hex()], %stream, connection = conn, why = why.as_str(),
                    "connection closed");
                if let Some(out) = state.conns.get_mut(&conn) {
                    out.head.get_or_insert(AnswerHead::EVENT_STREAM);
                    out.end = Some(why);
                    if why == CloseReason::Superseded {
                        // Another reader has the stream: not even what is ready goes out here (I4).
                        out.outbox.clear();
                    }
                }
                state.touched.push(conn);
            }
            Output::Finish { tail } => self.end_log(state, now, nonce, tail, more),
            Output::Forget => {
                state.session.forget(nonce);
                if state.session.stream(nonce).is_none() {
                    state.watched.remove(&nonce);
                }
            }
        }
    }

    /// Counts a new stream, whose log comes with its first append.
    pub(super) fn opened(&self, state: &mut State, now: Ms, nonce: StreamNonce, steps: &mut Vec<Step>) {
        Counters::add(&self.shared.counters.streams_opened, 1);
        self.watch(state, nonce);
        if self.shared.store.own_ids().is_some() && state.session.rules().priming {
            // The priming position gets its id before any event.
            let _ = state.session.handle(now, nonce, Input::Create, steps);
        }
    }

    fn append_to_log(
        &self,
        state: &mut State,
        now: Ms,
        nonce: StreamNonce,
        (first, events, paced): (Seq, &[NewEvent], Option<Paced>),
        more: &mut Vec<Step>,
    ) {
        let Some(stream) = state.session.stream(nonce) else { return };
        let mut chain = stream.chain;
        let mut scratch = Vec::with_capacity(events.iter().map(|event| event.payload.len() + 128).sum());
        let mut stored = Vec::with_capacity(events.len());
        for (seq, event) in (first..).zip(events) {
            chain = chain.then(&event.payload, self.shared.chain_key.as_ref());
            let tag = chain.tag();
            scratch.clear();
            sse::write_message(&mut scratch, |out| stream.ids.encode(seq, 0, tag, out), &event.payload);
            if scratch.len() > self.shared.options.warn_event_bytes {
                log_later!(self, state, WARN, [stream = nonce.hex(), bytes = scratch.len()], %stream, bytes,
                    "large event: clients with a smaller buffer will drop it");
            }
            stored.push(StoredEvent { seq, kind: event.kind, tag, frame: Arc::from(scratch.as_slice()) });
        }
        let append = Append { events: stored, chain: chain.0, paced, ..self.empty_append(state, stream, first) };
        self.put(state, now, nonce, state.epoch, Write::Append(append), more);
    }

    fn end_log(&self, state: &mut State, now: Ms, nonce: StreamNonce, tail: Bytes, more: &mut Vec<Step>) {
        let Some(stream) = state.session.stream(nonce) else { return };
        let first = stream.machine.durable() + 1;
        let append = Append { end: Some(tail), ..self.empty_append(state, stream, first) };
        self.put(state, now, nonce, state.epoch, Write::End(append), more);
    }

    /// An append without anything, at the end of the stream's log.
    pub(super) fn empty_append(&self, state: &State, stream: &Stream, first: Seq) -> Append {
        // Nobody asks for it where the logs are gone with the process.
        let is_kept = first == 1 && self.shared.store.outlives_process();
        Append {
            first,
            chain_before: stream.chain.0,
            chain: stream.chain.0,
            about: if is_kept { stream.about() } else { Bytes::new() },
            primes: state.session.rules().priming,
            ..Append::default()
        }
    }

    pub(super) fn append_refused(
        &self,
        state: &mut State,
        now: Ms,
        nonce: StreamNonce,
        error: StoreError,
        more: &mut Vec<Step>,
    ) {
        if matches!(error, StoreError::RolledBack | StoreError::Gone) {
            state.wants_stock = true;
            self.log_lost(state, now, nonce, &error, more);
        }
        if let StoreError::TooLarge { bytes, max } = error {
            self.hand_over(state, nonce, bytes, max);
        }
        state.errors.insert(nonce, error);
        let _ = state.session.handle(now, nonce, Input::AppendFailed, more);
    }

    /// A response that the store does not take goes to the connection that reads the stream now, if there is one.
    fn hand_over(&self, state: &mut State, nonce: StreamNonce, bytes: usize, max: usize) {
        let Some(stream) = state.session.stream(nonce).filter(|stream| stream.has_one_response()) else { return };
        let machine = &stream.machine;
        let response = machine.waiting().next().filter(|event| event.kind == EventKind::Terminal);
        let reader = machine.connection().and_then(|conn| state.conns.get_mut(&conn));
        if let (Some(response), Some(reader)) = (response, reader) {
            reader.unkept = Some(response.payload.clone());
            log_later!(self, state, WARN, [stream = nonce.hex()], %stream, bytes, max,
                "the response is larger than max_event_bytes: it is sent once, and cannot be resumed");
        }
    }

    fn load(
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

    pub(super) fn page_input(
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

    /// The outcome of a question.
    pub(super) fn completed(&self, state: &mut State, now: Ms, ticket: &Ticket, outcome: Outcome) {
        let mut steps = Vec::new();
        let Ticket { nonce, operation, .. } = *ticket;
        match (operation, outcome) {
            (Operation::Read(conn), Outcome::Page(result)) => {
                let input = self.page_input(state, conn, nonce, result.map(|read| read.page));
                let _ = state.session.handle(now, nonce, input, &mut steps);
            }
            (Operation::Look(after), Outcome::Page(result)) => {
                self.looked(state, now, nonce, result.map(|page| (after, page)), &mut steps);
            }
            (Operation::Attach(conn), Outcome::Attached(result)) => {
                self.attached(state, now, (nonce, conn), result, &mut steps);
            }
            (operation, outcome) => {
                log_later!(
                    self,
                    state,
                    ERROR,
                    [],
                    ?operation,
                    ?outcome,
                    "a store gave an outcome of another operation"
                );
            }
        }
        self.perform(state, now, steps);
    }

    /// Encodes a frame into the connection's outbox.
    pub(super) fn write(&self, state: &mut State, nonce: StreamNonce, conn: ConnectionId, frame: Frame) {
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
