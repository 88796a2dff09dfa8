//! The states of one stream, as its client sees it.
//!
//! ```text
//!             Posted                    Standalone, Continued, Saved
//!               │                                   │
//!               ▼      end or break, resumable      ▼
//!   ┌───────► Open ───────────┐   ┌──────────► Connecting ◄──────┐
//!   │           │             ▼   │ time           │             │
//!   │           │           Waiting ◄──────────────┤ refused for now, or no connection
//!   │           │             ▲                    │
//!   │           │             └── (budget left)    │
//!   └───────────┼──────────────────────────────────┘ head of an event stream
//!               ▼
//!             Done: finished, failed with its kind, or aborted
//! ```
//!
//! Its driver makes one connection for each [`Step::Connect`], tells what comes of it, lets go of it at
//! [`Step::Disconnect`], and ticks at [`ResumableStream::deadline`].

use super::failure::Failure;
use super::pacing::{Fruitless, Options, Pacing};
use super::repeats::is_for_now;
use super::seen::Seen;
use super::token::Token;
use crate::Ms;
use crate::protocol::jsonrpc::{self, Kind};
use crate::protocol::{Decoder, RequestId, sse_decoder};

/// How a stream begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opening {
    /// A POST with these requests was answered with an event stream: the stream is open.
    Posted(Vec<RequestId>),
    /// A GET without a cursor.
    Standalone,
    /// A GET with a cursor of somebody else's. Whose stream it is, and which requests wait for it, is not known.
    Continued(String),
    /// A stream that was saved.
    Saved(Token),
}

/// What happens to a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input<'a> {
    /// The head of the answer to a [`Step::Connect`].
    Head {
        /// The HTTP status.
        status: u16,
        /// `Content-Type`, with or without parameters.
        content_type: Option<&'a str>,
        /// `Retry-After`, in milliseconds.
        retry_after_ms: Option<u64>,
    },
    /// Bytes of the body.
    Bytes(&'a [u8]),
    /// The body ended in good order.
    End,
    /// The connection broke, or could not be made.
    Broken,
    /// Nobody waits for this request any more.
    Cancelled(RequestId),
    /// Nobody waits for the stream any more.
    Abort,
    /// Time has passed.
    Tick,
}

/// An event with data, for the host's client. It carries no id: the cursor is the stream's business.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The type that the event names, unless it is `message`.
    pub event: Option<String>,
    /// The data.
    pub data: String,
}

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Connect with GET, with this `Last-Event-ID` if there is one (W-063, W-066).
    Connect {
        /// The cursor.
        last_event_id: Option<String>,
    },
    /// The first answer of a stream that began with a GET is an event stream.
    Opened,
    /// Hand this over.
    Deliver(Message),
    /// The server announced that it lost this many events of the stream (I8).
    Gap {
        /// The position of the first.
        first: u64,
        /// How many.
        count: u64,
    },
    /// The server refused the cursor of a standalone stream. It is read from where it is; what came meanwhile is
    /// lost, and nobody knows how much.
    CursorLost,
    /// Let go of the connection.
    Disconnect,
    /// Every request is answered, or the stream has no more to give. What its connection still carries may be read
    /// and thrown away.
    Finished,
    /// The stream does not go on; requests without an answer get none from it.
    Failed(Failure),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    Open,
    Waiting { until: Ms },
    Done,
}

/// One stream; see the module.
#[derive(Debug)]
pub struct ResumableStream {
    state: State,
    pacing: Pacing,
    decoder: Decoder,
    seen: Seen,
    cursor: String,
    requests: Vec<RequestId>,
    is_standalone: bool,
    /// It began with a POST, or is known to answer requests.
    has_requests: bool,
    /// A response came on a stream whose requests are not known: its next end is the last one.
    is_answered: bool,
    /// The first answer of a GET was taken.
    is_opened: bool,
    /// This connection brought an id that is new, or a message.
    has_progressed: bool,
    /// This connection brought a message.
    has_delivered: bool,
    /// When something last came, or the connection was asked for.
    heard_at: Ms,
    /// Since when this connection is open.
    opened_at: Option<Ms>,
}

impl ResumableStream {
    /// A stream. All but a posted one say at once that they connect.
    pub fn new(now: Ms, opening: Opening, options: Options, steps: &mut Vec<Step>) -> Self {
        let is_posted = matches!(opening, Opening::Posted(_));
        let (cursor, retry_ms, requests, is_standalone) = match opening {
            Opening::Posted(requests) => (String::new(), None, requests, false),
            Opening::Standalone => (String::new(), None, Vec::new(), true),
            Opening::Continued(cursor) => (cursor, None, Vec::new(), false),
            Opening::Saved(token) => (token.last_event_id, token.retry_ms, token.requests, token.is_standalone),
        };
        let decoder = Decoder::new(options.max_event_bytes).resumed_from(&cursor);
        let mut stream = Self {
            state: State::Open,
            pacing: Pacing::new(options, retry_ms),
            decoder,
            seen: Seen::default(),
            cursor,
            has_requests: !requests.is_empty(),
            requests,
            is_standalone,
            is_answered: false,
            is_opened: is_posted,
            has_progressed: is_posted,
            has_delivered: is_posted,
            heard_at: now,
            opened_at: None,
        };
        if !is_posted {
            stream.connect(now, steps);
        }
        stream
    }

    /// The last event id; empty when there is none (W-109).
    pub fn cursor(&self) -> &str {
        &self.cursor
    }

    /// The reconnection time that the stream told.
    pub fn retry_ms(&self) -> Option<u64> {
        self.pacing.retry_ms()
    }

    /// Tries in a row that brought nothing.
    pub fn attempts(&self) -> u32 {
        self.pacing.attempts()
    }

    /// Requests without an answer.
    pub fn requests(&self) -> &[RequestId] {
        &self.requests
    }

    /// Whether nothing will come of it any more.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// What it takes to continue the stream in another process; none while it has no cursor, or is done. The host
    /// adds what it knows of the session.
    pub fn token(&self) -> Option<Token> {
        (!self.is_done() && !self.cursor.is_empty()).then(|| Token {
            last_event_id: self.cursor.clone(),
            retry_ms: self.retry_ms(),
            requests: self.requests.clone(),
            is_standalone: self.is_standalone,
            session_id: None,
            protocol_version: None,
        })
    }

    /// When to [`Tick`](Input::Tick).
    pub fn deadline(&self) -> Ms {
        match self.state {
            State::Waiting { until } => until,
            // A head that does not come is silence, too.
            State::Open | State::Connecting => self.silence_deadline(),
            State::Done => Ms::NEVER,
        }
    }

    /// Takes an input. `jitter` is a random fraction of 2^32, for the wait that may follow.
    pub fn handle(&mut self, now: Ms, jitter: u32, input: Input<'_>, steps: &mut Vec<Step>) {
        match (self.state, input) {
            (State::Done, _) => {}
            (State::Connecting, Input::Head { status, content_type, retry_after_ms }) => {
                self.head(now, jitter, (status, content_type, retry_after_ms), steps);
            }
            (State::Open, Input::Bytes(bytes)) => self.bytes(now, bytes, steps),
            (State::Open | State::Connecting, Input::End) => self.ended(now, jitter, Fruitless::Empty, steps),
            (State::Open | State::Connecting, Input::Broken) => self.ended(now, jitter, Fruitless::Failed, steps),
            (_, Input::Cancelled(request)) => self.cancelled(&request, steps),
            (state, Input::Abort) => {
                self.state = State::Done;
                if !matches!(state, State::Waiting { .. }) {
                    steps.push(Step::Disconnect);
                }
            }
            (State::Waiting { until }, Input::Tick) if until <= now => self.connect(now, steps),
            (State::Open | State::Connecting, Input::Tick) if self.deadline() <= now => {
                steps.push(Step::Disconnect);
                self.ended(now, jitter, Fruitless::Failed, steps);
            }
            // A connection that was let go of may still have something to tell.
            (_, Input::Head { .. } | Input::Bytes(_) | Input::End | Input::Broken | Input::Tick) => {}
        }
    }

    fn silence_deadline(&self) -> Ms {
        self.pacing.options().max_silence_ms.map_or(Ms::NEVER, |silence_ms| self.heard_at + silence_ms)
    }

    fn is_resumable(&self) -> bool {
        self.is_standalone || !self.cursor.is_empty()
    }

    fn connect(&mut self, now: Ms, steps: &mut Vec<Step>) {
        self.state = State::Connecting;
        self.heard_at = now;
        self.opened_at = None;
        (self.has_progressed, self.has_delivered) = (false, false);
        let last_event_id = (!self.cursor.is_empty()).then(|| self.cursor.clone());
        steps.push(Step::Connect { last_event_id });
    }

    fn head(
        &mut self,
        now: Ms,
        jitter: u32,
        (status, content_type, retry_after_ms): (u16, Option<&str>, Option<u64>),
        steps: &mut Vec<Step>,
    ) {
        let failure = match status {
            200 if content_type.is_some_and(is_event_stream) => return self.open(now, steps),
            status if is_for_now(status) => {
                steps.push(Step::Disconnect);
                return self.fruitless(now, jitter, Fruitless::Failed, retry_after_ms.unwrap_or(0), steps);
            }
            // The server has nothing more for this stream (W-110).
            204 if !self.has_requests => {
                steps.push(Step::Disconnect);
                return self.finish(steps);
            }
            400..=499 if self.is_standalone && !self.cursor.is_empty() && !matches!(status, 401 | 403..=405) => {
                self.cursor.clear();
                steps.extend([Step::Disconnect, Step::CursorLost]);
                return self.fruitless(now, jitter, Fruitless::Failed, 0, steps);
            }
            404 => Failure::SessionLost,
            405 => Failure::NoStream,
            401 | 403 => Failure::Unauthorized { status },
            204 | 400..=499 if !self.cursor.is_empty() => Failure::StreamLost { status },
            _ => Failure::Unexpected { status },
        };
        steps.push(Step::Disconnect);
        self.fail(failure, steps);
    }

    fn open(&mut self, now: Ms, steps: &mut Vec<Step>) {
        self.state = State::Open;
        self.heard_at = now;
        self.opened_at = Some(now);
        self.decoder = Decoder::new(self.pacing.options().max_event_bytes).resumed_from(&self.cursor);
        if self.cursor.is_empty() {
            // Nothing is sent again without a cursor.
            self.seen = Seen::default();
        } else if self.is_opened {
            self.seen.resumed();
        }
        if !self.is_opened {
            self.is_opened = true;
            steps.push(Step::Opened);
        }
    }

    fn bytes(&mut self, now: Ms, bytes: &[u8], steps: &mut Vec<Step>) {
        self.heard_at = now;
        self.decoder.push(bytes);
        while self.state == State::Open {
            match self.decoder.next() {
                Ok(Some(item)) => self.item(item, steps),
                Ok(None) => return,
                Err(error) => {
                    steps.push(Step::Disconnect);
                    self.fail(Failure::TooLarge { bytes: error.size_bytes, max: error.limit_bytes }, steps);
                }
            }
        }
    }

    fn item(&mut self, item: sse_decoder::Item, steps: &mut Vec<Step>) {
        match item {
            sse_decoder::Item::Comment(text) => steps.extend(gap(&text)),
            sse_decoder::Item::Retry(retry_ms) => self.pacing.set_retry_ms(retry_ms),
            sse_decoder::Item::Cursor(id) => self.moved(&id),
            sse_decoder::Item::Event(event) => self.event(event, steps),
        }
    }

    fn moved(&mut self, id: &str) {
        if self.set_cursor(id) {
            self.progressed();
        }
    }

    /// Whether the stream has a cursor that it had not.
    fn set_cursor(&mut self, id: &str) -> bool {
        let id = if is_sendable(id) { id } else { "" };
        let is_new = self.cursor != id;
        if is_new {
            id.clone_into(&mut self.cursor);
        }
        is_new && !id.is_empty()
    }

    fn progressed(&mut self) {
        self.has_progressed = true;
        self.pacing.progressed();
    }

    fn event(&mut self, event: sse_decoder::Event, steps: &mut Vec<Step>) {
        let sse_decoder::Event { event, data, id, last_id } = event;
        if data.is_empty() {
            // A priming event (W-111).
            self.moved(&last_id);
            return;
        }
        self.set_cursor(&last_id);
        let is_message = event == "message";
        if let Some(id) = id.filter(|id| is_message && !id.is_empty())
            && self.seen.is_repeated(&id, &data)
        {
            return;
        }
        self.progressed();
        self.has_delivered = true;
        if is_message {
            self.settle(data.as_bytes());
        }
        steps.push(Step::Deliver(Message { event: (!is_message).then_some(event), data }));
        if self.has_requests && self.requests.is_empty() {
            self.finish(steps);
        }
    }

    /// Takes the requests that a message answers from those that wait.
    fn settle(&mut self, data: &[u8]) {
        for envelope in jsonrpc::read_leniently(data) {
            if !matches!(envelope.kind, Kind::Response | Kind::ErrorResponse) {
                continue;
            }
            self.is_answered |= !self.is_standalone;
            let Some(id) = &envelope.id else { continue };
            let exact = self.requests.iter().position(|request| request == id);
            // Some servers answer with the id's text.
            let alike = || {
                let mut alike = (0..self.requests.len()).filter(|at| self.requests[*at].as_text() == id.as_text());
                alike.next().filter(|_| alike.next().is_none())
            };
            if let Some(at) = exact.or_else(alike) {
                self.requests.swap_remove(at);
            }
        }
    }

    fn ended(&mut self, now: Ms, jitter: u32, how: Fruitless, steps: &mut Vec<Step>) {
        if self.is_answered && !self.has_requests {
            return self.finish(steps);
        }
        if self.state == State::Open && !self.is_resumable() {
            return self.fail(Failure::NotResumable, steps);
        }
        if let Some(opened_at) = self.opened_at {
            self.has_progressed |= self.pacing.was_open(now.since(opened_at));
        }
        if self.has_progressed {
            self.wait(now, jitter, if self.has_delivered { 0 } else { MIN_WAIT_MS });
        } else {
            self.fruitless(now, jitter, how, 0, steps);
        }
    }

    fn fruitless(&mut self, now: Ms, jitter: u32, how: Fruitless, at_least_ms: u64, steps: &mut Vec<Step>) {
        let given_up = self.pacing.failed(now, how);
        let given_up = given_up.or_else(|| self.pacing.is_too_long(at_least_ms).then(|| self.pacing.tried_ms(now)));
        match given_up {
            Some(for_ms) => self.fail(Failure::GaveUp { attempts: self.pacing.attempts(), for_ms }, steps),
            None => self.wait(now, jitter, at_least_ms),
        }
    }

    fn wait(&mut self, now: Ms, jitter: u32, at_least_ms: u64) {
        self.state = State::Waiting { until: now + self.pacing.delay(at_least_ms, jitter) };
    }

    /// The server may still have something to say of the request, but nobody comes back for it.
    fn cancelled(&mut self, request: &RequestId, steps: &mut Vec<Step>) {
        let Some(at) = self.requests.iter().position(|waiting| waiting == request) else { return };
        self.requests.swap_remove(at);
        if !self.requests.is_empty() {
            return;
        }
        if self.state == State::Connecting {
            steps.push(Step::Disconnect);
        }
        self.finish(steps);
    }

    fn finish(&mut self, steps: &mut Vec<Step>) {
        self.state = State::Done;
        steps.push(Step::Finished);
    }

    fn fail(&mut self, failure: Failure, steps: &mut Vec<Step>) {
        self.state = State::Done;
        steps.push(Step::Failed(failure));
    }
}

pub(super) fn is_event_stream(content_type: &str) -> bool {
    let media_type = content_type.split_once(';').map_or(content_type, |(media_type, _)| media_type);
    media_type.trim().eq_ignore_ascii_case("text/event-stream")
}

/// The least wait after a connection that brought no message, whatever the stream told: it may go on like that.
const MIN_WAIT_MS: u64 = 5;

/// Whether `Last-Event-ID` can carry the id as it is: no control characters, and no blanks around it, which readers of
/// headers drop.
fn is_sendable(id: &str) -> bool {
    !id.bytes().any(|byte| byte.is_ascii_control()) && id.trim_matches([' ', '\t']) == id
}

/// The gap that a comment announces.
fn gap(comment: &str) -> Option<Step> {
    let mut words = comment.trim().split(' ');
    let (Some("gap"), Some(first), Some(count), None) = (words.next(), words.next(), words.next(), words.next()) else {
        return None;
    };
    Some(Step::Gap { first: first.parse().ok()?, count: count.parse().ok()? })
}
