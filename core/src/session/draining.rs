//! What a drain means for a session.

use super::ends::SynthesizedEnd;
use super::streams::Stream;
use super::{Session, Steps};
use crate::Ms;
use crate::protocol::StreamNonce;
use crate::stream::{Drain, Input};

impl Session {
    /// Closes every connection that may be closed early, now and from now on, because the process is going away.
    pub fn drain(&mut self, now: Ms, drain: Drain, out: &mut Steps) {
        self.draining = Some(drain);
        let nonces: Vec<StreamNonce> = self.streams.keys().copied().collect();
        for nonce in nonces {
            let _ = self.handle(now, nonce, Input::Drain(drain), out);
        }
    }

    /// The calls whose clients cannot be told to come back get an error, because the process waits no longer: those of a
    /// session whose connections must not be closed early, and those of which no id has left.
    pub fn end_drain(&mut self, now: Ms, out: &mut Steps) {
        if !self.rules().early_close {
            return self.end_requests(now, SynthesizedEnd::Draining, out);
        }
        let is_unborn = |stream: &Stream| stream.machine.stored().is_none() && stream.running().is_some();
        let unborn = self.streams.iter().filter(|(_, stream)| is_unborn(stream)).map(|(nonce, _)| *nonce);
        for nonce in unborn.collect::<Vec<_>>() {
            self.end_stream(now, nonce, SynthesizedEnd::Draining, out);
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

    /// How many calls have no end that the store has: those in flight, and those whose responses it has not taken.
    pub fn unsettled(&self) -> usize {
        self.in_flight.len() + self.streams.values().map(|stream| stream.unstored().count()).sum::<usize>()
    }
}
