//! Which stream an outgoing message belongs to (W-020, W-053, W-054, W-057).

use bytes::Bytes;

use super::{Asked, Outcome, Question, Session, Steps, SynthesizedEnd, TraceParent};
use crate::Ms;
use crate::protocol::{RequestId, StreamNonce, jsonrpc};
use crate::stream::{EventKind, Input, NewEvent, Refused, Seq};

/// Questions without an answer that a session remembers. A client that never answers must not make it
/// grow without limit (I11).
const MAX_QUESTIONS: usize = 1_024;

/// What kind of message the server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutgoingKind {
    /// A result or an error.
    Response,
    /// A request to the client.
    Request,
    /// A notification.
    Notification,
}

/// Where an outgoing message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// To this stream.
    Stream(StreamNonce),
    /// To the standalone stream.
    Standalone,
    /// Nowhere: its request has its end already, the first wins (I13).
    Late,
}

impl Session {
    /// Finds the stream of a message.
    ///
    /// A response goes to the stream of its request. Anything else goes to the stream of the request
    /// it is related to, or to the standalone stream when it is related to none. Some SDKs hand
    /// their handlers every request id as text, so `related` matches exactly first and then by its
    /// text, if one request in flight has it.
    pub fn route(&self, kind: OutgoingKind, id: Option<&RequestId>, related: Option<&RequestId>) -> Route {
        let name = match (kind, id) {
            (OutgoingKind::Response, Some(id)) => {
                return self.in_flight.get(id).map_or(Route::Late, |at| Route::Stream(*at));
            }
            // An error without an id answers nothing that could be named.
            (OutgoingKind::Response, None) => return Route::Standalone,
            _ => related,
        };
        match name {
            None => Route::Standalone,
            Some(related) => self.find_request(related).map_or(Route::Late, |(_, nonce)| Route::Stream(nonce)),
        }
    }

    /// The request in flight with this id, or the only one with this text.
    pub fn find_request(&self, id: &RequestId) -> Option<(&RequestId, StreamNonce)> {
        let found = self.in_flight.get_key_value(id);
        let (id, nonce) = found.or_else(|| self.in_flight.get_key_value(&id.of_same_text()?))?;
        Some((id, *nonce))
    }

    /// What a request in flight asks for.
    pub fn asked(&self, id: &RequestId) -> Option<&Asked> {
        let nonce = self.in_flight.get(id)?;
        let of_stream = self.streams.get(nonce).and_then(|stream| stream.requests.asked(id));
        of_stream.or_else(|| self.outside.get(id).map(|(asked, _)| asked))
    }

    /// The call of a request in flight has this place in a trace; of several requests of one POST, the first counts.
    pub fn trace(&mut self, id: &RequestId, trace: TraceParent) {
        let stream = self.in_flight.get(id).and_then(|nonce| self.streams.get_mut(nonce));
        if let Some(stream) = stream {
            stream.trace.get_or_insert(trace);
        }
    }

    /// Publishes a message on the stream that [`route`](Self::route) found. Returns where a question is logged that is
    /// not waited for any more, because too many are, or because this message cancels it: it may be trimmed like any other
    /// event.
    ///
    /// # Errors
    /// [`Refused`] as from the stream's machine.
    #[expect(clippy::too_many_arguments, reason = "one message with everything that its SDK knows of it")]
    pub fn publish(
        &mut self,
        now: Ms,
        nonce: StreamNonce,
        kind: OutgoingKind,
        id: Option<&RequestId>,
        payload: Bytes,
        token: u64,
        out: &mut Steps,
    ) -> Result<Option<(StreamNonce, Seq)>, Refused> {
        let stream = self.streams.get(&nonce).ok_or(Refused::Finished)?;
        let event_kind = match kind {
            OutgoingKind::Notification => EventKind::Progress,
            OutgoingKind::Request => EventKind::Question,
            OutgoingKind::Response => match stream.requests.open().count() {
                0 => EventKind::Progress,
                // The last response is the end, unless the end has to speak for other requests.
                1 if !stream.requests.have_failed() => EventKind::Terminal,
                _ => EventKind::Answer,
            },
        };
        let position = stream.machine.published() + 1;
        let outcome = if kind == OutgoingKind::Response { Outcome::of_response(&payload) } else { Outcome::Result };
        if kind == OutgoingKind::Response {
            self.read_initialize(id, &payload);
        }
        if let Some(heartbeat) = self.streams.get_mut(&nonce).and_then(|stream| stream.heartbeat.as_mut()) {
            heartbeat.heard(now, &payload);
        }
        // Before the machine runs, which may end the stream and forget it.
        if kind == OutgoingKind::Response
            && let (Some(id), Some(stream)) = (id, self.streams.get_mut(&nonce))
            && !stream.machine.is_ending()
        {
            stream.requests.answer(id, token, outcome);
            self.in_flight.remove(id);
        }
        let cancelled = self.cancelled_question(kind, &payload);
        self.handle(now, nonce, Input::Publish(NewEvent { kind: event_kind, payload, token }), out)?;
        if event_kind == EventKind::Answer {
            self.end_failed(now, nonce, out);
        }
        let mut forgotten = cancelled.and_then(|question| self.settle_question(&question));
        if let (EventKind::Question, Some(id)) = (event_kind, id) {
            if self.questions.len() >= MAX_QUESTIONS {
                forgotten = self.forget_question();
            }
            self.questions.insert(id.clone(), Question { nonce, position, token });
        }
        Ok(forgotten)
    }

    /// The question that a message of the server cancels.
    fn cancelled_question(&self, kind: OutgoingKind, payload: &[u8]) -> Option<RequestId> {
        let may_cancel = kind == OutgoingKind::Notification
            && !self.questions.is_empty()
            && memchr::memmem::find(payload, jsonrpc::CANCELLED.as_bytes()).is_some();
        let messages = if may_cancel { jsonrpc::read_leniently(payload) } else { Vec::new() };
        messages.into_iter().find_map(|message| message.fields.cancelled_request)
    }

    /// Forgets the oldest question without an answer.
    fn forget_question(&mut self) -> Option<(StreamNonce, Seq)> {
        let oldest = self.questions.iter().min_by_key(|(_, question)| question.token)?.0.clone();
        self.settle_question(&oldest)
    }

    /// The store did not take an event. A response gets `end` in its place (F-59), unless it was handed over; the
    /// positions behind it move up.
    pub fn unstored(
        &mut self,
        now: Ms,
        nonce: StreamNonce,
        (token, seq, kind): (u64, Seq, EventKind),
        (end, is_handed_over): (SynthesizedEnd, bool),
        out: &mut Steps,
    ) {
        self.questions.retain(|_, question| {
            let behind = question.nonce == nonce && question.position > seq;
            let lost = question.nonce == nonce && question.position == seq;
            question.position -= u64::from(behind);
            !lost
        });
        let Some(stream) = self.streams.get_mut(&nonce) else { return };
        if let Some(heartbeat) = &mut stream.heartbeat {
            heartbeat.lost(seq);
        }
        if kind.is_response() {
            let failed = stream.requests.fail_answered(token, end);
            if !failed.is_empty() {
                self.note_ends(nonce, failed, (end, is_handed_over));
                self.end_failed(now, nonce, out);
            }
        }
    }

    /// Reads from the server's own answer to `initialize` what the session was told.
    pub(super) fn read_initialize(&mut self, id: Option<&RequestId>, payload: &[u8]) {
        if id.is_none() || id != self.initialize.as_ref() {
            return;
        }
        self.initialize = None;
        let Some(result) = jsonrpc::read_initialize_result(payload) else { return };
        self.revision = crate::protocol::Revision::parse(&result.protocol_version).or(self.revision);
        self.list_changed = result.list_changed;
        self.note_fact(true);
    }

    /// A request without a stream of events was answered: by its handler, or with this end.
    pub fn answered_outside(&mut self, id: &RequestId, payload: &[u8], end: Option<SynthesizedEnd>) {
        self.read_initialize(Some(id), payload);
        self.in_flight.remove(id);
        self.note_outside(id, payload, end);
    }

    /// The client answered a request of the server. Returns where that request is logged.
    pub fn settle_question(&mut self, id: &RequestId) -> Option<(StreamNonce, Seq)> {
        // The SDKs take the answer to "7" for that to their request 7.
        let known = if self.questions.contains_key(id) { Some(id.clone()) } else { id.number_of_text() };
        self.questions.remove(&known?).map(|question| (question.nonce, question.position))
    }
}
