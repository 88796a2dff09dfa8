//! Performs what the stream machines ask for, until nothing is left.

use crate::engine::connections::conn::Traced;
use crate::engine::lines::{Subject, log_later};
use crate::engine::live::Note;
use crate::engine::sessions::Sent;
use crate::engine::sessions::change::Change;
use crate::engine::stats::Counters;
use crate::exchange::AnswerHead;
use crate::protocol::StreamNonce;
use crate::session::SynthesizedEnd;
use crate::store::{Operation, Outcome, StoreError, Ticket};
use crate::stream::{CloseReason, Output};

impl Change<'_> {
    pub(crate) fn perform(&mut self) {
        while !self.steps.is_empty() {
            for (nonce, output) in std::mem::take(&mut self.steps) {
                self.step(nonce, output);
            }
        }
    }

    fn step(&mut self, nonce: StreamNonce, output: Output) {
        let counters = &self.cell.shared.counters;
        match output {
            Output::Append { first, paced } => self.append_to_log(nonce, first, paced.map(|paced| *paced)),
            Output::Stored { token } => {
                self.state.session.stored(nonce, token);
                self.effects.results.push((nonce, token, Ok(Sent::Stored)));
            }
            Output::Unstored { token, seq, kind } => {
                Counters::add(&counters.events_unstored, 1);
                let error = self.state.errors.remove(&nonce).unwrap_or(StoreError::Gone);
                let is_handed_over = kind.is_response() && self.is_handed_over(nonce);
                if is_handed_over {
                    log_later!(self, WARN, of nonce, [error = error.clone()], %error,
                        "response not stored: its client gets it once, and cannot resume it");
                } else {
                    let text = match kind.is_response() {
                        true => "event not stored: its call gets an error instead of its response",
                        false => "event not stored: no client gets it, and its sender is told",
                    };
                    log_later!(self, ERROR, of nonce, [error = error.clone()], %error, "{text}");
                }
                let end = match error {
                    StoreError::TooLarge { bytes, max } => SynthesizedEnd::TooLarge { bytes, max },
                    _ => SynthesizedEnd::Unstored,
                };
                let end = (end, is_handed_over);
                self.state.session.unstored(self.now, nonce, (token, seq, kind), end, &mut self.steps);
                self.effects.results.push((
                    nonce,
                    token,
                    if kind.is_response() { Ok(Sent::Dropped) } else { Err(error) },
                ));
            }
            Output::Load { conn, after, up_to } => self.load(nonce, conn, (after, up_to)),
            Output::Cut(cut) => self.was_cut(cut),
            Output::Accept { conn } => {
                let stored = self.state.session.stream_mut(nonce).map_or(0, |stream| {
                    stream.counts.connections += 1;
                    stream.counts.resumes += 1;
                    stream.machine.durable()
                });
                if let Some(out) = self.state.conns.get_mut(&conn) {
                    out.head = Some(AnswerHead::EVENT_STREAM);
                    let is_resume = out.cursor.is_some();
                    let (request, cursor) = out.asked_for();
                    let (after, instead) = out.reading().map_or((0, false), |reading| (reading.after, reading.instead));
                    Counters::add(&counters.resumes_accepted, u64::from(!instead));
                    let replayed = stored.saturating_sub(after);
                    if is_resume && self.cell.shared.is_observed() {
                        let parent = self.state.session.stream(nonce).and_then(|stream| stream.trace.clone());
                        out.traced = parent.map(|parent| Box::new(Traced { parent, since: self.now, replayed }));
                    }
                    log_later!(self, DEBUG, [subject = Subject::of(&self.state.session, nonce)], stream = subject.stream,
                        connection = conn, %request, tool = subject.tool, ?cursor, replayed, "resume");
                }
                self.note_live(nonce, Note::Opened { conn, is_resume: true });
                self.effects.touched.push(conn);
                self.has_reader(nonce, conn);
            }
            Output::Reject { conn, why } => self.answer_reject(conn, why),
            Output::Send { conn, frame } => self.send_frame(nonce, conn, frame),
            Output::Wake { conn } => self.effects.touched.push(conn),
            Output::Close { conn, why } => {
                log_later!(self, DEBUG, of nonce, [], connection = conn, why = why.as_str(),
                    "connection closed");
                self.answer(conn, AnswerHead::EVENT_STREAM, Vec::new());
                if let Some(out) = self.state.conns.get_mut(&conn).filter(|_| why == CloseReason::Superseded) {
                    // Another reader has the stream: not even what is ready goes out here (I4).
                    out.outbox.clear();
                }
                self.close(conn, why);
            }
            Output::Finish { tail } => self.end_log(nonce, tail),
            Output::Forget => {
                self.state.session.forget(nonce);
                if self.state.session.stream(nonce).is_none() {
                    self.state.forget(nonce);
                }
            }
        }
    }

    /// A question to the store has its outcome.
    pub(crate) fn question_answered(&mut self, ticket: &Ticket, outcome: Outcome) {
        let Ticket { nonce, operation, .. } = *ticket;
        match (operation, outcome) {
            (Operation::Read(conn), Outcome::Page(result)) => {
                let input = self.page_input(conn, nonce, result);
                self.input(nonce, input);
            }
            (Operation::Look(after), Outcome::Page(result)) => {
                self.looked(ticket, result.map(|page| (after, page)));
            }
            (Operation::Attach(conn), Outcome::Attached(result)) => {
                self.attached((nonce, conn), result);
            }
            (Operation::Take, Outcome::Taken(result)) => self.taken(result),
            (Operation::Withdraw, Outcome::Withdrawn(result)) => self.withdrawn(nonce, result),
            (operation, outcome) => {
                log_later!(self, ERROR, [], ?operation, ?outcome, "a store gave an outcome of another operation");
            }
        }
    }
}
