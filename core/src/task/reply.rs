//! The answer to a call that may become a task, until that is decided: one JSON body, or a stream of events.
//!
//! It stays open how the answer begins as long as nobody can tell, because a quick call without notifications is answered with a
//! body, as the SDK answers it. What the SDK sends before that waits, a second at most.

use bytes::Bytes;

use crate::Ms;
use crate::protocol::fields::pick;
use crate::protocol::jsonrpc::{
    HEADER_MISMATCH, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, MISSING_CLIENT_CAPABILITY, PARSE_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
};

/// How long notifications wait for the answer that they could go with.
const HOLD_MS: u64 = 1_000;
/// Bytes of notifications that wait.
const MAX_WAITING_BYTES: usize = 64 << 10;
/// When a silent answer begins, and how long it is silent after that: middleboxes close connections on which nothing moves.
pub(super) const SILENCE_MS: u64 = 15_000;

/// What the client of a call is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// An answer with this body, as `application/json`. Nothing follows it.
    Body {
        /// Its HTTP status.
        status: u16,
        /// A response.
        body: Bytes,
    },
    /// 200, and a stream of events.
    Begin,
    /// An event of it, without an id: it cannot be resumed.
    Event(Bytes),
    /// A comment in it.
    Comment,
    /// The end of it.
    End,
}

/// What was given of an answer.
#[derive(Debug)]
pub(super) struct Answer {
    /// The client takes streams.
    takes_streams: bool,
    is_begun: bool,
    is_over: bool,
    opened: Ms,
    last_write: Ms,
    waiting: Vec<Bytes>,
}

impl Answer {
    pub(super) fn new(now: Ms, takes_streams: bool) -> Self {
        Self { takes_streams, is_begun: false, is_over: false, opened: now, last_write: now, waiting: Vec::new() }
    }

    /// Whether bytes of it may be on their way.
    pub(super) fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// Nothing more is given.
    pub(super) fn close(&mut self) {
        self.is_over = true;
        self.waiting.clear();
    }

    /// When [`tick`](Self::tick) has something to do.
    pub(super) fn deadline(&self) -> Ms {
        if self.is_over || !self.takes_streams {
            return Ms::NEVER;
        }
        let silence = self.last_write + SILENCE_MS;
        if self.waiting.is_empty() { silence } else { silence.min(self.opened + HOLD_MS) }
    }

    /// A notification of the SDK.
    pub(super) fn notify(&mut self, now: Ms, message: Bytes, out: &mut impl FnMut(Reply)) {
        if self.is_over || !self.takes_streams {
            return;
        }
        self.waiting.push(message);
        let bytes: usize = self.waiting.iter().map(Bytes::len).sum();
        if self.is_begun || bytes > MAX_WAITING_BYTES || now >= self.opened + HOLD_MS {
            self.begin(now, out);
        }
    }

    pub(super) fn tick(&mut self, now: Ms, out: &mut impl FnMut(Reply)) {
        if self.deadline() > now {
            return;
        }
        if self.waiting.is_empty() {
            let was_begun = self.is_begun;
            self.begin(now, out);
            if was_begun {
                out(Reply::Comment);
            }
        } else {
            self.begin(now, out);
        }
    }

    /// The response, which is the end.
    pub(super) fn finish(&mut self, now: Ms, response: Bytes, out: &mut impl FnMut(Reply)) {
        if self.is_over {
            return;
        }
        if self.is_begun || !self.waiting.is_empty() {
            self.waiting.push(response);
            self.begin(now, out);
            out(Reply::End);
        } else {
            out(Reply::Body { status: status_of(&response), body: response });
        }
        self.close();
    }

    fn begin(&mut self, now: Ms, out: &mut impl FnMut(Reply)) {
        if !self.is_begun {
            out(Reply::Begin);
        }
        self.is_begun = true;
        self.last_write = now;
        self.waiting.drain(..).map(Reply::Event).for_each(out);
    }
}

/// The HTTP status of a response: that of the SDKs for this code, and 200 for all else.
fn status_of(response: &[u8]) -> u16 {
    let code = || {
        let [error] = pick(std::str::from_utf8(response).ok()?, &["error"]).ok()?.values;
        let [code] = pick(error?.get(), &["code"]).ok()?.values;
        code?.get().parse().ok()
    };
    match code() {
        Some(
            PARSE_ERROR
            | INVALID_REQUEST
            | INVALID_PARAMS
            | HEADER_MISMATCH
            | MISSING_CLIENT_CAPABILITY
            | UNSUPPORTED_PROTOCOL_VERSION,
        ) => 400,
        Some(METHOD_NOT_FOUND) => 404,
        _ => 200,
    }
}
