//! Performs what the stream machines ask for, until nothing is left.

use std::collections::VecDeque;

use crate::Ms;
use crate::engine::lines::log_later;
use crate::engine::sessions::Sent;
use crate::engine::sessions::cell::{Cell, State};
use crate::engine::stats::Counters;
use crate::exchange::AnswerHead;
use crate::protocol::StreamNonce;
use crate::session::{Step, SynthesizedEnd};
use crate::store::{Operation, Outcome, StoreError, Ticket};
use crate::stream::{CloseReason, Input, Output};

impl Cell {
    pub(crate) fn perform(&self, state: &mut State, now: Ms, steps: Vec<Step>) {
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
    pub(crate) fn opened(&self, state: &mut State, now: Ms, nonce: StreamNonce, steps: &mut Vec<Step>) {
        Counters::add(&self.shared.counters.streams_opened, 1);
        self.watch(state, nonce);
        if self.shared.store.own_ids().is_some() && state.session.rules().priming {
            // The priming position gets its id before any event.
            let _ = state.session.handle(now, nonce, Input::Create, steps);
        }
    }

    /// The outcome of a question.
    pub(crate) fn completed(&self, state: &mut State, now: Ms, ticket: &Ticket, outcome: Outcome) {
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
}
