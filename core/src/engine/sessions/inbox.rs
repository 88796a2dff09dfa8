//! What a session that is owned here knows of its inbox.

use std::collections::{BTreeMap, VecDeque};

use crate::Ms;
use crate::exchange::Relayed;
use crate::protocol::{RequestId, StreamNonce};
use crate::store::MAX_TAKEN;

/// How many messages are remembered as taken.
const MAX_KNOWN: usize = 256;
/// How long a cancellation waits for a request that it has overtaken.
const CANCELLED_MS: u64 = 30_000;
/// How many cancellations wait at most.
const MAX_CANCELLED: usize = 256;

/// What a session knows of its inbox.
#[derive(Default)]
pub(crate) struct Inbox {
    /// The host takes what is relayed.
    pub(crate) is_served: bool,
    /// The host of a session that was adopted has yet to accept what waits: nothing is taken until then.
    pub(crate) is_closed: bool,
    /// A message may wait.
    pub(crate) is_hinted: bool,
    /// The store was asked for messages, and has not answered.
    pub(crate) is_asking: bool,
    /// The last question failed: it is not known which messages were taken then.
    pub(crate) is_unsure: bool,
    /// The number of the last message that the store has told.
    pub(crate) after: u64,
    /// The streams of the messages that were taken last.
    known: VecDeque<StreamNonce>,
    /// The messages that wait for the host.
    pub(crate) waiting: VecDeque<(StreamNonce, Relayed)>,
    /// The messages that neither run nor have an end, with their requests. They wait for the host, or the host has
    /// them.
    pub(crate) unsettled: BTreeMap<StreamNonce, Vec<RequestId>>,
    /// Requests that were cancelled before they came.
    cancelled: VecDeque<(Ms, RequestId)>,
}

impl Inbox {
    /// Whether messages may have been taken of which nothing is known yet.
    pub(crate) fn is_unclear(&self) -> bool {
        self.is_asking || self.is_unsure
    }

    /// Whether a message is here that has yet to begin, or may come.
    pub(crate) fn is_in_use(&self) -> bool {
        self.is_closed || self.is_hinted || self.is_unclear() || !self.unsettled.is_empty()
    }

    /// Whether the host has to begin some before more are taken.
    pub(crate) fn is_full(&self) -> bool {
        self.unsettled.len() >= MAX_TAKEN
    }

    /// Whether the message of this stream is still to begin.
    pub(crate) fn has(&self, nonce: StreamNonce) -> bool {
        self.unsettled.contains_key(&nonce)
    }

    pub(crate) fn has_begun_before(&mut self, nonce: StreamNonce) -> bool {
        if self.known.contains(&nonce) {
            return true;
        }
        if self.known.len() == MAX_KNOWN {
            self.known.pop_front();
        }
        self.known.push_back(nonce);
        false
    }

    /// Notes the cancellation of a request that is not known: the request may come yet.
    pub(crate) fn note_cancelled(&mut self, now: Ms, request: &RequestId) {
        self.cancelled.truncate(MAX_CANCELLED - 1);
        self.cancelled.push_front((now + CANCELLED_MS, request.clone()));
    }

    /// Whether this request was cancelled before it came. False for a batch, because its other requests would end, too.
    pub(crate) fn is_cancelled(&mut self, now: Ms, requests: &[RequestId]) -> bool {
        let [request] = requests else { return false };
        self.cancelled.retain(|(until, _)| *until > now);
        let before = self.cancelled.len();
        self.cancelled.retain(|(_, other)| other != request);
        self.cancelled.len() < before
    }
}
