//! The streams of a session: opening, inputs, ends.

use std::collections::btree_map::Entry;

use bytes::Bytes;
use smallvec::SmallVec;

use super::ends::{SynthesizedEnd, ends_payload};
use super::heartbeat::Heartbeat;
use super::idle::awaited_until;
use super::requests::Requests;
use super::{About, Asked, CallPace, Counts, Outcome, Record, Session, Steps, TraceParent};
use crate::Ms;
use crate::protocol::{Envelope, IdEncoder, Origin, RequestId, Revision, StreamNonce};
use crate::stream::{
    Chain, ConnectionId, Drain, Follow, Input, Machine, Output, Outputs, Refused, Spread, StreamRules,
};

/// A stream with what the protocol adds to its machine.
#[derive(Debug)]
pub struct Stream {
    /// The machine.
    pub machine: Machine,
    /// Writes the stream's event ids.
    pub ids: IdEncoder,
    /// The running hash at the last confirmed position.
    pub chain: Chain,
    /// What the ids say about the stream.
    pub origin: Origin,
    /// The terminal is the response of the last one that is open.
    pub(super) requests: Requests,
    pub(super) heartbeat: Option<Heartbeat>,
    /// When its call began; never for a stream that is known from the store only.
    begun: Ms,
    /// What is counted of it, for the records of its requests.
    pub counts: Counts,
    /// The place of its call in a trace, where it has one.
    pub trace: Option<TraceParent>,
    /// Until when its client is expected to come back, where it has no reader.
    awaited_until: Option<Ms>,
}

/// A call that opens a stream.
#[derive(Clone, Debug, Default)]
pub struct Call<'a> {
    /// The ids of its requests.
    pub requests: &'a [RequestId],
    /// The revision that it asks for, where it is an `initialize`.
    pub initialize: Option<Revision>,
    /// How it is paced, where its tool has a pace.
    pub pace: Option<CallPace>,
    /// The messages of its POST, which say what the requests ask for.
    pub envelopes: &'a [Envelope],
}

impl Stream {
    fn new(nonce: StreamNonce, origin: Origin, machine: Machine, chain: Chain) -> Self {
        let (ids, requests) = (IdEncoder::new(nonce, &origin), Requests::default());
        Self {
            machine,
            ids,
            chain,
            origin,
            requests,
            heartbeat: None,
            begun: Ms::NEVER,
            counts: Counts::default(),
            trace: None,
            awaited_until: None,
        }
    }

    /// The end for a connection that was not sent the stream's own, when the log goes: it speaks for the
    /// responses, too, that the store has not taken, or holds and cannot give at once.
    pub fn last_end(&self, end: SynthesizedEnd) -> Option<Bytes> {
        // Of several responses nobody knows here which were sent; the only one would have ended the connection.
        let is_only = self.has_one_response();
        let is_unsent = |token: u64| is_only || self.machine.waiting().any(|event| event.token == token);
        let ends = self.requests.ends_with(|token| is_unsent(token).then_some(end));
        let nothing_is_unsent = ends.len() == self.requests.ends().len();
        if nothing_is_unsent { self.machine.tail().cloned() } else { Some(ends_payload(&ends)) }
    }

    /// When something of it is due, which is [`Session::tick`]'s to do.
    pub fn deadline(&self) -> Ms {
        let heartbeat = self.heartbeat.as_ref().map_or(Ms::NEVER, |heartbeat| heartbeat.due);
        self.machine.deadline().min(heartbeat).min(self.awaited_until.unwrap_or(Ms::NEVER))
    }

    /// Whether all that the stream's requests get is one response.
    pub fn has_one_response(&self) -> bool {
        self.requests.is_only_answered()
    }

    /// What log lines call it: its request, and the tool that this calls.
    pub fn subject(&self) -> Option<(&RequestId, &Asked)> {
        self.requests.first()
    }

    /// Its first request that has no end.
    pub fn running(&self) -> Option<&RequestId> {
        self.requests.open().next()
    }

    /// Its requests whose response the store has not answered for.
    pub(super) fn unstored(&self) -> impl Iterator<Item = (&RequestId, &Asked, Outcome)> {
        self.machine.waiting().filter_map(|event| self.requests.answered(event.token))
    }

    /// When its call began, where this process knows.
    pub fn begun(&self) -> Option<Ms> {
        (self.begun != Ms::NEVER).then_some(self.begun)
    }

    /// Whether it has no reader, and its client is expected to come back.
    pub fn is_awaited(&self) -> bool {
        self.awaited_until.is_some()
    }

    /// The record of one of its requests.
    fn record(&self, nonce: StreamNonce, request: RequestId, asked: Asked, outcome: Outcome) -> Record {
        let (begun, counts) = (self.begun(), self.counts);
        Record { stream: Some(nonce), request, asked, begun, outcome, cause: None, counts }
    }

    /// What is kept with the log.
    pub fn about(&self) -> Bytes {
        About { requests: self.requests.ids().cloned().collect(), trace: self.trace.clone() }.encode()
    }
}

/// Where the outputs of one stream go.
struct OfStream<'a> {
    nonce: StreamNonce,
    steps: &'a mut Steps,
}

impl Outputs for OfStream<'_> {
    fn push(&mut self, output: Output) {
        self.steps.push((self.nonce, output));
    }
}

impl Session {
    /// Gives one input to one stream.
    ///
    /// # Errors
    /// [`Refused`] as from the machine; [`Refused::Finished`] also where there is no such machine.
    pub fn handle(&mut self, now: Ms, nonce: StreamNonce, input: Input, out: &mut Steps) -> Result<(), Refused> {
        let stream = self.streams.get_mut(&nonce).ok_or(Refused::Finished)?;
        let before = stream.machine.unconfirmed_bytes();
        // Also one in another process.
        let had_reader = stream.machine.has_readers() || input == Input::Taken;
        if matches!(input, Input::Open { .. } | Input::Taken) {
            stream.counts.resumes += u32::from(stream.counts.connections > 0);
            stream.counts.connections += 1;
        }
        let result = stream.machine.handle(now, input, &mut OfStream { nonce, steps: out });
        self.unconfirmed_bytes += stream.machine.unconfirmed_bytes();
        self.unconfirmed_bytes -= before;
        let awaited_until = if stream.machine.has_readers() || stream.machine.is_finished() {
            None
        } else if had_reader {
            Some(awaited_until(now, stream.machine.retry_ms()))
        } else {
            stream.awaited_until
        };
        let was_awaited = std::mem::replace(&mut stream.awaited_until, awaited_until).is_some();
        self.awaited += usize::from(awaited_until.is_some());
        self.awaited -= usize::from(was_awaited);
        self.next_due = self.next_due.min(stream.deadline());
        result
    }

    /// Drops the machine of a stream that has nothing left to do. Its log stays readable.
    pub fn forget(&mut self, nonce: StreamNonce) {
        if self.streams.get(&nonce).is_some_and(|stream| stream.machine.is_done()) {
            self.remove(nonce);
            self.questions.retain(|_, question| question.nonce != nonce);
        }
    }

    /// Drops the machine of a stream that is written elsewhere and that nobody reads here.
    pub fn let_go(&mut self, nonce: StreamNonce) {
        if self.streams.get(&nonce).is_some_and(|stream| !stream.machine.has_readers()) {
            self.remove(nonce);
        }
    }

    fn remove(&mut self, nonce: StreamNonce) {
        if let Some(stream) = self.streams.remove(&nonce) {
            self.unconfirmed_bytes -= stream.machine.unconfirmed_bytes();
            self.awaited -= usize::from(stream.awaited_until.is_some());
        }
    }

    /// Opens the stream of a call, with its first connection. Without one the store has its log, which somebody else reads.
    ///
    /// # Errors
    /// The first id that is already in flight, or stands twice; nothing has changed then (F-08).
    pub fn open_requests(
        &mut self,
        now: Ms,
        nonce: StreamNonce,
        call: &Call<'_>,
        conn: Option<(ConnectionId, Spread)>,
        out: &mut Steps,
    ) -> Result<(), RequestId> {
        let Call { requests, initialize, ref pace, envelopes } = *call;
        self.claim_requests(nonce, requests)?;
        let origin = Origin::of_requests(requests);
        if let (Some(revision), [only]) = (initialize, requests) {
            self.initialize = Some(only.clone());
            self.greeting = Some((nonce, false));
            self.revision = Some(revision);
        }
        let rules = self.stream_rules(false);
        let chain = Chain::start(&nonce.0);
        let machine = match conn {
            Some(_) => Machine::new(rules, self.pacing, chain.tag()),
            None => Machine::follow(rules, self.pacing, chain.tag(), Follow::default()),
        };
        let mut stream = Box::new(Stream::new(nonce, origin, machine, chain));
        stream.requests = Requests::new(requests.iter().map(|id| (id.clone(), Asked::of_request(envelopes, id))));
        stream.begun = now;
        // Where there is no priming event the first heartbeat comes in the place of the comment: an id is worth more.
        let first_ms = (!rules.priming).then_some(self.pacing.first_comment_ms);
        stream.heartbeat = pace.as_ref().and_then(|pace| Heartbeat::new(now, pace, first_ms));
        self.streams.insert(nonce, stream);
        self.last_contact = now;
        if let Some(pace) = pace {
            let _ = self.handle(now, nonce, Input::Pace(pace.pace.paced()), out);
        }
        if let Some(drain) = self.draining {
            let _ = self.handle(now, nonce, Input::Drain(drain), out);
        }
        if let Some((conn, spread)) = conn {
            let _ = self.handle(now, nonce, Input::Open { conn, spread }, out);
        }
        Ok(())
    }

    /// Puts requests in flight without a stream of events (JSON answers).
    ///
    /// # Errors
    /// As [`open_requests`](Self::open_requests).
    pub fn open_outside(&mut self, now: Ms, nonce: StreamNonce, call: &Call<'_>) -> Result<(), RequestId> {
        self.claim_requests(nonce, call.requests)?;
        for id in call.requests {
            self.outside.insert(id.clone(), (Asked::of_request(call.envelopes, id), now));
        }
        if let (Some(revision), [only]) = (call.initialize, call.requests) {
            self.initialize = Some(only.clone());
            self.revision = Some(revision);
        }
        Ok(())
    }

    fn claim_requests(&mut self, nonce: StreamNonce, requests: &[RequestId]) -> Result<(), RequestId> {
        for (at, id) in requests.iter().enumerate() {
            match self.in_flight.entry(id.clone()) {
                Entry::Vacant(place) => {
                    place.insert(nonce);
                }
                Entry::Occupied(_) => {
                    for claimed in &requests[..at] {
                        self.in_flight.remove(claimed);
                    }
                    return Err(id.clone());
                }
            }
        }
        Ok(())
    }

    /// The standalone stream; `nonce` names it if it does not exist yet. The flag says if it is new.
    pub fn standalone_or(&mut self, now: Ms, nonce: StreamNonce, out: &mut Steps) -> (StreamNonce, bool) {
        if let Some(nonce) = self.standalone {
            return (nonce, false);
        }
        let chain = Chain::start(&nonce.0);
        let machine = Machine::new(self.stream_rules(true), self.pacing, chain.tag());
        self.streams.insert(nonce, Box::new(Stream::new(nonce, Origin::Standalone, machine, chain)));
        self.standalone = Some(nonce);
        // Before the revision is negotiated nothing is kept of the session.
        self.note_fact(self.facts != 0);
        if let Some(drain) = self.draining {
            let _ = self.handle(now, nonce, Input::Drain(drain), out);
        }
        (nonce, true)
    }

    /// Names the standalone stream of a session that lives elsewhere.
    pub fn set_standalone(&mut self, standalone: Option<StreamNonce>) {
        // A store may say anything, but a machine is of one kind.
        let known = standalone.and_then(|nonce| self.stream(nonce));
        if known.is_none_or(|stream| stream.origin == Origin::Standalone) {
            self.standalone = standalone;
        }
    }

    /// The standalone stream is gone for good: the next message to it begins another.
    pub fn forget_standalone(&mut self) {
        if let Some(nonce) = self.standalone.take() {
            self.remove(nonce);
            self.questions.retain(|_, question| question.nonce != nonce);
        }
    }

    /// Gives a stream that is known from the store a machine again.
    pub fn follow(
        &mut self,
        now: Ms,
        nonce: StreamNonce,
        (origin, trace): (Origin, Option<TraceParent>),
        chain: Chain,
        record: Follow,
    ) {
        let rules = self.stream_rules(origin == Origin::Standalone);
        let start = Chain::start(&nonce.0);
        let machine = Machine::follow(rules, self.pacing, start.tag(), record);
        self.remove(nonce);
        self.streams.insert(nonce, Box::new(Stream { trace, ..Stream::new(nonce, origin, machine, chain) }));
        if let Some(drain) = self.draining {
            let _ = self.handle(now, nonce, Input::Drain(drain), &mut Steps::new());
        }
    }

    fn stream_rules(&self, standalone: bool) -> StreamRules {
        let rules = self.rules();
        StreamRules { priming: rules.priming, early_close: rules.early_close, standalone }
    }

    /// The request with this id gets an end from the engine, unless it has one already (I13).
    pub fn end_request(&mut self, now: Ms, id: &RequestId, end: SynthesizedEnd, out: &mut Steps) -> bool {
        let Some(nonce) = self.in_flight.get(id).copied() else { return false };
        let Some(stream) = self.streams.get_mut(&nonce) else { return false };
        self.in_flight.remove(id);
        let failed = stream.requests.fail(id, end);
        self.note_ends(nonce, failed, (end, false));
        self.end_failed(now, nonce, out);
        true
    }

    /// The store has the event of this token. If that is a response, its request has had its end.
    pub fn stored(&mut self, nonce: StreamNonce, token: u64) {
        let Some(stream) = self.streams.get(&nonce) else { return };
        if let Some((id, asked, outcome)) = stream.requests.answered(token) {
            if outcome == Outcome::Result && !self.records_results {
                self.results.push(stream.begun);
                return;
            }
            self.over.push(Box::new(stream.record(nonce, id.clone(), asked.clone(), outcome)));
        }
    }

    /// Requests of a stream have got this end. `is_handed_over` says that a reader has the response all the same.
    pub(super) fn note_ends(
        &mut self,
        nonce: StreamNonce,
        failed: impl IntoIterator<Item = (RequestId, Asked)>,
        (end, is_handed_over): (SynthesizedEnd, bool),
    ) {
        let (outcome, mut message) = (self.outcome(end), end.message());
        if is_handed_over {
            message += ": it went once to the client that was connected";
        }
        let Some(stream) = self.streams.get(&nonce) else { return };
        for (id, asked) in failed {
            // The end of a session has a reason of its own.
            let cause = (end != SynthesizedEnd::SessionEnded).then(|| message.clone());
            self.over.push(Box::new(Record { cause, ..stream.record(nonce, id, asked, outcome) }));
        }
    }

    /// A request without a stream has had its end.
    pub(super) fn note_outside(&mut self, id: &RequestId, payload: &[u8], end: Option<SynthesizedEnd>) {
        let outcome = end.map_or_else(|| Outcome::of_response(payload), |end| self.outcome(end));
        if let Some((asked, begun)) = self.outside.remove(id) {
            if outcome == Outcome::Result && !self.records_results {
                self.results.push(begun);
                return;
            }
            let counts = Counts { connections: 1, ..Counts::default() };
            let (request, begun) = (id.clone(), Some(begun));
            self.over.push(Box::new(Record { stream: None, request, asked, begun, outcome, cause: None, counts }));
        }
    }

    /// The requests that have had their end since this was asked last.
    /// Of those that ended well only when they began, unless [each has a record](Self::record_results).
    pub fn take_over(&mut self) -> (SmallVec<[Ms; 1]>, SmallVec<[Box<Record>; 1]>) {
        (std::mem::take(&mut self.results), std::mem::take(&mut self.over))
    }

    /// Whether calls that end well have a record, too.
    pub fn record_results(&mut self, are_recorded: bool) {
        self.records_results = are_recorded;
    }

    /// The session ends because of this, and its calls with it.
    pub fn blame(&mut self, outcome: Outcome) {
        self.ends_because = outcome;
    }

    /// How a call has ended that got this end.
    fn outcome(&self, end: SynthesizedEnd) -> Outcome {
        if end == SynthesizedEnd::SessionEnded { self.ends_because } else { end.into() }
    }

    /// How many requests have no end, and since when the oldest of them runs. One whose response the store has not answered for
    /// has none.
    pub fn running(&self) -> (usize, Ms) {
        if self.ended {
            return (0, Ms::NEVER);
        }
        let (mut count, mut oldest) = (self.in_flight.len(), Ms::NEVER);
        for stream in self.streams.values() {
            let unstored = stream.unstored().count();
            count += unstored;
            if unstored > 0 || stream.running().is_some() {
                oldest = oldest.min(stream.begun);
            }
        }
        (count, self.outside.values().fold(oldest, |oldest, (_, begun)| oldest.min(*begun)))
    }

    /// The session has ended so, and nobody will hear what the store does with the responses that wait for it.
    pub fn end_unstored(&mut self, end: SynthesizedEnd) {
        let (outcome, cause) = (self.outcome(end), end.unstored_cause());
        for (nonce, stream) in &self.streams {
            let ended =
                stream.unstored().map(|(id, asked, _)| stream.record(*nonce, id.clone(), asked.clone(), outcome));
            self.over.extend(ended.map(|record| Box::new(Record { cause: Some(cause.into()), ..record })));
        }
    }

    /// Ends a stream all of whose requests are answered or failed, when one failed. While others of a
    /// batch are open they go on: the last end terminates the stream.
    pub(super) fn end_failed(&mut self, now: Ms, nonce: StreamNonce, out: &mut Steps) {
        let Some(stream) = self.streams.get(&nonce) else { return };
        if stream.requests.open().next().is_none() && stream.requests.have_failed() {
            let payload = ends_payload(&stream.requests.ends());
            let _ = self.handle(now, nonce, Input::Terminate { payload }, out);
        }
    }

    /// Ends every request of a stream that is open.
    pub fn end_stream(&mut self, now: Ms, nonce: StreamNonce, end: SynthesizedEnd, out: &mut Steps) {
        let Some(stream) = self.streams.get_mut(&nonce) else { return };
        for id in stream.requests.open() {
            self.in_flight.remove(id);
        }
        let failed = stream.requests.fail_open(end);
        self.note_ends(nonce, failed, (end, false));
        self.end_failed(now, nonce, out);
    }

    /// Ends the session: every open request gets its end, every connection closes.
    pub fn end(&mut self, now: Ms, end: SynthesizedEnd, out: &mut Steps) {
        self.ended = true;
        self.end_requests(now, end, out);
        self.in_flight.clear();
        self.questions.clear();
    }

    /// Ends every request in flight.
    fn end_requests(&mut self, now: Ms, end: SynthesizedEnd, out: &mut Steps) {
        let is_unfinished = |stream: &Stream| stream.requests.open().next().is_some();
        let unfinished: Vec<StreamNonce> =
            self.streams.iter().filter(|(_, stream)| is_unfinished(stream)).map(|(nonce, _)| *nonce).collect();
        for nonce in unfinished {
            self.end_stream(now, nonce, end, out);
        }
    }

    /// Closes every connection that may be closed early, now and from now on, because the process is going away.
    pub fn drain(&mut self, now: Ms, drain: Drain, out: &mut Steps) {
        self.draining = Some(drain);
        let nonces: Vec<StreamNonce> = self.streams.keys().copied().collect();
        for nonce in nonces {
            let _ = self.handle(now, nonce, Input::Drain(drain), out);
        }
    }

    /// The calls of a session whose connections must not be closed early get an error: the process waits no longer.
    pub fn end_drain(&mut self, now: Ms, out: &mut Steps) {
        if !self.rules().early_close {
            self.end_requests(now, SynthesizedEnd::Draining, out);
        }
    }

    /// Whether a drain has begun.
    pub fn is_draining(&self) -> bool {
        self.draining.is_some()
    }

    /// Whether a call may begin: in a drain only one whose client can be told to come back for the answer. Any other is sent
    /// again elsewhere, and would run twice (F-44). No session begins: its client would wait for one that is going away.
    pub fn may_begin(&self, is_initialize: bool, is_json: bool) -> bool {
        self.draining.is_none() || (self.rules().early_close && !is_json && !is_initialize)
    }

    /// Lets every stream whose time has come act.
    pub fn tick(&mut self, now: Ms, out: &mut Steps) {
        let due: Vec<StreamNonce> =
            self.streams.iter().filter(|(_, stream)| stream.deadline() <= now).map(|(nonce, _)| *nonce).collect();
        for nonce in due {
            self.beat(now, nonce, out);
            if let Some(stream) = self.streams.get_mut(&nonce)
                && stream.awaited_until.is_some_and(|until| until <= now)
            {
                stream.awaited_until = None;
                self.awaited -= 1;
            }
            let _ = self.handle(now, nonce, Input::Tick, out);
        }
        self.next_due = self.streams.values().map(|stream| stream.deadline()).min().unwrap_or(Ms::NEVER);
    }
}
