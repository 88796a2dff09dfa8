//! Streams that another process writes: the log is followed while somebody reads it here.
//!
//! It is the same machine; its head is moved by what the store tells instead of by its own appends.
//! The store is asked again and again, so a hint that is lost delays but never harms.
//!
//! Readers are given the end that the record has, and no other. One that is made up here, because the owner
//! seems to be gone, goes to the store first: what was seen of the owner may be old, and the store refuses
//! the end of an owner that has given a sign since. When it has answered, the log is looked at again.

use super::cell::{Cell, State};
use super::lines::log_later;
use crate::Ms;
use crate::protocol::{Origin, RequestId, StreamNonce};
use crate::session::{Step, SynthesizedEnd, end_payload, ends_payload, nameless_end};
use crate::store::Record;
use crate::stream::{Chain, Input};

/// Pause between two looks at a log that is followed. Hints come before: this is for those that are lost,
/// and for owners that give no sign any more.
pub(super) const FOLLOW_MS: u64 = 1_000;

/// A stream that is followed.
pub(super) struct Followed {
    /// Requests that the stream was opened for.
    pub(super) requests: Vec<RequestId>,
    pub(super) due: Ms,
    pub(super) asking: bool,
    /// Before this the store is not given another end.
    end_due: Ms,
}

impl State {
    /// When the next look at a log is due.
    pub(super) fn follow_deadline(&self) -> Ms {
        self.followed.values().filter(|followed| !followed.asking).map(|f| f.due).min().unwrap_or(Ms::NEVER)
    }
}

impl Cell {
    /// From now on the stream, whose machine was just made from this record, is followed if it has to be.
    pub(super) fn follow(&self, state: &mut State, now: Ms, nonce: StreamNonce, record: &Record) {
        if record.owner_unseen_ms.is_some() && !record.finished {
            let requests = RequestId::decode_all(&record.about).unwrap_or_default();
            // Looked at again at once: there were no hints yet when it was looked at.
            state.followed.insert(nonce, Followed { requests, due: now, asking: false, end_due: now });
            self.watch(state, nonce, record.claims);
        }
    }

    /// Gives the machine of a stream that is followed what its log has got.
    pub(super) fn catch_up(
        &self,
        state: &mut State,
        now: Ms,
        nonce: StreamNonce,
        record: Option<&Record>,
        steps: &mut Vec<Step>,
    ) {
        let State { session, followed, writing, .. } = state;
        let (Some(stream), Some(known)) = (session.stream_mut(nonce), followed.get(&nonce)) else {
            followed.remove(&nonce);
            return self.unwatch(state, nonce);
        };
        let lost = |end| match &stream.origin {
            Origin::Request(request) => Some(end_payload(request, end)),
            Origin::Unnamed if known.requests.is_empty() => Some(nameless_end(end)),
            Origin::Unnamed => {
                Some(ends_payload(&known.requests.iter().map(|id| (id.clone(), end)).collect::<Vec<_>>()))
            }
            Origin::Standalone => None,
        };
        let (mut inputs, mut made_up) = (Vec::new(), None);
        match record {
            None => inputs.push(Input::Ended { tail: lost(SynthesizedEnd::Lost) }),
            Some(record) => {
                let owner_lost_ms = self.shared.options.owner_lost_ms;
                let is_left = record.owner_unseen_ms.is_some_and(|unseen_ms| unseen_ms >= owner_lost_ms);
                if record.head > stream.machine.durable() {
                    inputs.push(Input::Grown { head: record.head });
                }
                if record.finished {
                    inputs.push(Input::Ended { tail: record.tail.clone() });
                } else if is_left && known.end_due <= now && !writing.contains_key(&nonce) {
                    made_up = lost(SynthesizedEnd::OwnerLost);
                }
                stream.chain = Chain(record.chain);
            }
        }
        for input in inputs {
            let _ = state.session.handle(now, nonce, input, steps);
        }
        if state.session.stream(nonce).is_none_or(|stream| stream.machine.is_finished()) {
            state.followed.remove(&nonce);
        } else if let Some(followed) = state.followed.get_mut(&nonce) {
            (followed.due, followed.asking) = (now + FOLLOW_MS, false);
            if let Some(tail) = made_up {
                followed.end_due = now + FOLLOW_MS;
                log_later!(self, state, WARN, [stream = nonce.hex()], %stream,
                    "the process that ran the request seems to be gone");
                self.end_log(state, now, nonce, tail, steps);
            }
        }
    }

    /// Looks at the logs whose time has come. Those that nobody reads any more are let go of.
    pub(super) fn tick_followed(&self, state: &mut State, now: Ms, steps: &mut Vec<Step>) {
        let due: Vec<StreamNonce> =
            state.followed.iter().filter(|(_, f)| !f.asking && f.due <= now).map(|(nonce, _)| *nonce).collect();
        for nonce in due {
            let is_read = state.session.stream(nonce).is_some_and(|stream| stream.machine.has_readers());
            if is_read {
                self.ask_record(state, now, nonce, steps);
            } else {
                state.followed.remove(&nonce);
                state.session.let_go(nonce);
                self.unwatch(state, nonce);
            }
        }
    }
}
