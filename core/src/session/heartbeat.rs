//! Progress in the place of a handler that is silent: clients whose timers take no notice of comments stay patient, and those
//! that get no priming event have a cursor.
//!
//! A heartbeat is an event like any other, on the token of the call itself. Its number has to be larger than the one before,
//! and smaller than the handler's next: it goes on from the handler's last by a billionth, and repeats what that said
//! otherwise. Before the handler's first it is just below 0.

use std::ops::Range;

use bytes::Bytes;

use super::{CallPace, Session, Steps};
use crate::Ms;
use crate::protocol::{RequestId, StreamNonce, jsonrpc};
use crate::stream::{EventKind, Input, NewEvent, Seq};

/// The number that heartbeats go on from before a handler's first: ten thousand are below 0, with which many handlers begin.
const START: f64 = -1e-5;
/// What a heartbeat adds, where a number of that size can tell it.
const STEP: f64 = 1e-9;
/// A longer notification of the handler is not repeated.
const MAX_REPEATED_BYTES: usize = 4 << 10;
/// The client of a stream that is read in another process counts as there for so long after its last sign: processes give
/// it every five minutes at the latest.
const READ_ELSEWHERE_MS: u64 = 600_000;

/// The heartbeats of a stream.
#[derive(Debug)]
pub(super) struct Heartbeat {
    request: RequestId,
    token: String,
    every_ms: u64,
    /// When the next is due.
    pub(super) due: Ms,
    /// The largest number that the handler has told, and how many heartbeats there were since.
    number: f64,
    beats: u32,
    /// The handler's last notification, and where its number stands in it.
    last: Option<(Bytes, Range<usize>)>,
    /// The last event is a heartbeat, at this position.
    at: Option<Seq>,
}

impl Heartbeat {
    /// For a call that asked for progress. The first one is due after `first_ms`, if that is sooner.
    pub(super) fn new(now: Ms, call: &CallPace, first_ms: Option<u64>) -> Option<Self> {
        let every_ms = call.pace.heartbeat_ms.filter(|every_ms| *every_ms > 0)?;
        let (request, token) = (call.request.clone(), call.token.clone()?);
        let due = now + every_ms.min(first_ms.unwrap_or(u64::MAX));
        Some(Self { request, token, every_ms, due, number: START, beats: 0, last: None, at: None })
    }

    /// The handler has sent something: it was not silent until now.
    pub(super) fn heard(&mut self, now: Ms, payload: &Bytes) {
        self.due = now + self.every_ms;
        self.at = None;
        let Some(told) = jsonrpc::read_progress(payload).filter(|told| told.token == self.token) else { return };
        if told.number > self.value() {
            (self.number, self.beats) = (told.number, 0);
        }
        let is_short = payload.len() <= MAX_REPEATED_BYTES;
        self.last = is_short.then(|| (payload.clone(), told.number_at));
    }

    /// The event at a position is in no log; those behind it move up.
    pub(super) fn lost(&mut self, seq: Seq) {
        self.at = self.at.filter(|at| *at != seq).map(|at| at - u64::from(at > seq));
    }

    /// The number of the last one.
    fn value(&self) -> f64 {
        self.number + f64::from(self.beats) * STEP.max(self.number.abs() * f64::EPSILON)
    }

    fn payload(&self) -> Option<Bytes> {
        let number = serde_json::Number::from_f64(self.value())?;
        let Some((last, at)) = &self.last else {
            let token = &self.token;
            let params = format!(r#"{{"progressToken":{token},"progress":{number}}}"#);
            return Some(format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#).into());
        };
        Some([&last[..at.start], number.to_string().as_bytes(), &last[at.end..]].concat().into())
    }
}

impl Session {
    /// Gives the client of a silent handler its heartbeat, where it is due. One that nobody has read yet is followed by no other.
    pub(super) fn beat(&mut self, now: Ms, nonce: StreamNonce, out: &mut Steps) {
        let is_there = self.last_contact + READ_ELSEWHERE_MS > now;
        let Some(stream) = self.streams.get_mut(&nonce) else { return };
        let Some(heartbeat) = stream.heartbeat.as_mut().filter(|heartbeat| heartbeat.due <= now) else { return };
        heartbeat.due = now + heartbeat.every_ms;
        if self.draining.is_some()
            || stream.machine.is_ending()
            || !stream.requests.open().any(|id| *id == heartbeat.request)
        {
            stream.heartbeat = None;
            return;
        }
        let is_handed = heartbeat.at.is_none_or(|at| stream.machine.handed() >= at);
        if !is_handed && (!is_there || !stream.machine.is_read_elsewhere()) {
            return;
        }
        heartbeat.beats = heartbeat.beats.saturating_add(1);
        let Some(payload) = heartbeat.payload() else { return };
        let event = NewEvent { kind: EventKind::Progress, payload, token: 0 };
        let is_taken = self.handle(now, nonce, Input::Publish(event), out).is_ok();
        if let Some(stream) = self.streams.get_mut(&nonce).filter(|_| is_taken)
            && let Some(heartbeat) = &mut stream.heartbeat
        {
            heartbeat.at = Some(stream.machine.published());
        }
    }
}
