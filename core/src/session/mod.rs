//! One session: which stream a message belongs to, which requests are in flight, who may read.
//!
//! Pure, like the stream machine. A session owns its streams, and nothing of it can be reached
//! through another session: look-ups are always by (presented session, stream nonce) (I7).

mod about;
mod ends;
mod handshake;
mod heartbeat;
mod idle;
mod outcome;
mod paces;
mod record;
mod requests;
mod routing;
mod streams;

use std::collections::BTreeMap;

pub use about::{About, TraceParent};
pub use ends::{SynthesizedEnd, end_payload, ends_payload, nameless_end, refusal_payload, same_end, stream_end};
pub use handshake::{Handshake, MAX_HANDSHAKE_BYTES};
pub use outcome::{Outcome, Weight};
pub use paces::{CallPace, Pace, Paces};
pub use record::{Asked, Counts, Record};
pub use routing::{OutgoingKind, Route};
pub use streams::{Call, Stream};

use bytes::Bytes;
use smallvec::SmallVec;

use crate::Ms;
use crate::protocol::{Envelope, ListChanged, RequestId, Revision, Rules, StreamNonce, jsonrpc};
use crate::stream::{Drain, Output, Pacing, Seq};

/// An output with the stream that it belongs to.
pub type Step = (StreamNonce, Output);

/// What is to be done, in order. Mostly that is little.
pub type Steps = SmallVec<[Step; 4]>;

/// Where a request of the server is logged.
#[derive(Debug)]
struct Question {
    nonce: StreamNonce,
    position: Seq,
    /// Grows with every message of the session.
    token: u64,
}

/// The state of one session.
#[derive(Debug)]
pub struct Session {
    /// Negotiated by the response to `initialize`; until then, what that request asked for.
    revision: Option<Revision>,
    /// The `initialize` request, until it is answered.
    initialize: Option<RequestId>,
    /// The stream of `initialize`, and whether the client has said that it has read the answer.
    greeting: Option<(StreamNonce, bool)>,
    list_changed: ListChanged,
    handshake: Handshake,
    pacing: Pacing,
    /// Ordered, so that the same inputs give the same outputs.
    streams: BTreeMap<StreamNonce, Box<Stream>>,
    in_flight: BTreeMap<RequestId, StreamNonce>,
    /// Those of them that have no stream, and since when they run.
    outside: BTreeMap<RequestId, (Asked, Ms)>,
    /// The requests that have had their end, until somebody takes note of it.
    over: SmallVec<[Box<Record>; 1]>,
    /// When others began that ended well.
    results: SmallVec<[Ms; 1]>,
    records_results: bool,
    /// Why the calls have ended that end with the session.
    ends_because: Outcome,
    /// Requests of the server that the client has not answered, and where they are logged.
    questions: BTreeMap<RequestId, Question>,
    standalone: Option<StreamNonce>,
    draining: Option<Drain>,
    ended: bool,
    /// How long until it is idle, in milliseconds; 0 is never.
    idle_ms: u64,
    /// The last sign of the client.
    last_contact: Ms,
    begun: Ms,
    /// Until when somebody may still come back for something: see [`Session::idle_at`].
    poll_until: Ms,
    connections: usize,
    /// No stream is due before.
    next_due: Ms,
    /// Of events that the store has not confirmed, over all streams.
    unconfirmed_bytes: usize,
    /// Streams whose client is expected to come back.
    awaited: usize,
    /// Counts changes of what others have to know of the session: principal, revision, retry, lists, handshake.
    facts: u32,
}

impl Session {
    /// A session that was just created.
    pub fn new(now: Ms, pacing: Pacing) -> Self {
        Self {
            revision: None,
            initialize: None,
            greeting: None,
            list_changed: ListChanged::default(),
            handshake: Handshake::default(),
            pacing,
            streams: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            outside: BTreeMap::new(),
            over: SmallVec::new(),
            results: SmallVec::new(),
            records_results: false,
            ends_because: Outcome::SessionEnded,
            questions: BTreeMap::new(),
            standalone: None,
            draining: None,
            ended: false,
            idle_ms: 0,
            last_contact: now,
            begun: now,
            poll_until: now,
            connections: 0,
            next_due: Ms::NEVER,
            unconfirmed_bytes: 0,
            awaited: 0,
            facts: 0,
        }
    }

    /// Takes over what is known of a session that was opened elsewhere.
    pub fn assume(
        &mut self,
        revision: Option<Revision>,
        retry_ms: u32,
        list_changed: ListChanged,
        standalone: Option<StreamNonce>,
    ) {
        self.standalone = standalone;
        self.revision = revision;
        self.pacing.retry_ms = retry_ms;
        self.list_changed = list_changed;
    }

    /// Counts changes of what is kept of the session for readers elsewhere; 0 while its revision is not
    /// negotiated, and so nothing is kept.
    pub fn facts(&self) -> u32 {
        self.facts
    }

    fn note_fact(&mut self, is_new: bool) {
        self.facts = self.facts.wrapping_add(u32::from(is_new));
    }

    /// The session has another principal than the one that was kept of it.
    pub fn principal_changed(&mut self) {
        self.note_fact(self.revision.is_some());
    }

    /// The reconnection delay of streams that are opened from now on, in milliseconds.
    pub fn set_retry_ms(&mut self, retry_ms: u32) {
        self.note_fact(self.revision.is_some() && self.pacing.retry_ms != retry_ms);
        self.pacing.retry_ms = retry_ms;
    }

    /// The longest silence on connections of streams that are opened from now on, in milliseconds; 0 is any.
    pub fn set_keep_alive_ms(&mut self, keep_alive_ms: u64) {
        self.pacing.keep_alive_ms = keep_alive_ms;
    }

    /// The reconnection delay of streams that are opened from now on, in milliseconds.
    pub fn retry_ms(&self) -> u32 {
        self.pacing.retry_ms
    }

    /// What the session's revision allows.
    pub fn rules(&self) -> &'static Rules {
        self.revision.unwrap_or(Revision::ASSUMED).rules()
    }

    /// The negotiated revision, if the session got that far.
    pub fn revision(&self) -> Option<Revision> {
        self.revision
    }

    /// The revision of a session whose `initialize` this engine has not seen.
    pub fn assume_revision(&mut self, revision: Revision) {
        self.note_fact(self.revision.is_none());
        self.revision.get_or_insert(revision);
    }

    /// Takes note of a message that the handlers are given.
    pub fn note(&mut self, envelope: &Envelope, text: &Bytes) {
        let is_new = self.handshake.note(envelope, text);
        self.note_fact(self.facts != 0 && is_new);
    }

    /// The client has read the answer to `initialize`. Returns the stream of that answer the first time: nobody has a use
    /// for its log any more. None while the answer is not stored, because nobody can have read it.
    pub fn greeted(&mut self) -> Option<StreamNonce> {
        let (nonce, is_read) = self.greeting.as_mut()?;
        let is_running = self.streams.get(nonce).is_some_and(|stream| !stream.machine.is_finished());
        (!is_running && !std::mem::replace(is_read, true)).then_some(*nonce)
    }

    /// Whether this was the stream of an `initialize` whose answer the client has read.
    pub fn has_greeted(&self, nonce: StreamNonce) -> bool {
        self.greeting == Some((nonce, true))
    }

    /// Goes on with a session that was another process's, as its client has opened it there.
    pub fn adopt(&mut self, handshake: Handshake) {
        let initialize = handshake.replay().first().and_then(|text| jsonrpc::read(text).ok());
        self.initialize = initialize.and_then(|body| body.envelopes().first()?.id.clone());
        self.handshake = handshake;
        self.facts = self.facts.max(1);
    }

    /// Takes the answer to the `initialize` that another server object was given again. None where this is another message;
    /// otherwise whether the client can go on, as the same revision was negotiated.
    pub fn replayed(&mut self, id: Option<&RequestId>, payload: &[u8]) -> Option<bool> {
        let id = id.filter(|id| self.initialize.as_ref() == Some(id) && !self.in_flight.contains_key(id))?;
        let before = self.revision;
        self.read_initialize(Some(id), payload);
        Some(self.revision == before)
    }

    /// What the client has told that holds for the rest of the session.
    pub fn handshake(&self) -> &Handshake {
        &self.handshake
    }

    /// Whether the session has ended; nothing is taken any more then.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Which lists the server said it announces changes of.
    pub fn list_changed(&self) -> &ListChanged {
        &self.list_changed
    }

    /// Bytes of events that the store has not confirmed.
    pub fn unconfirmed_bytes(&self) -> usize {
        self.unconfirmed_bytes
    }

    /// Streams without a reader whose client is expected to come back: it had one not long ago, and its end is open.
    pub fn awaited(&self) -> usize {
        self.awaited
    }

    /// Requests without a response.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The streams that have a machine.
    pub fn streams(&self) -> impl Iterator<Item = (&StreamNonce, &Stream)> {
        self.streams.iter().map(|(nonce, stream)| (nonce, &**stream))
    }

    /// The requests that have no stream: what each asks for, and since when it runs.
    pub fn outside(&self) -> impl Iterator<Item = (&RequestId, &(Asked, Ms))> {
        self.outside.iter()
    }

    /// Since when this process has it.
    pub fn begun(&self) -> Ms {
        self.begun
    }

    /// One stream with its machine.
    pub fn stream(&self, nonce: StreamNonce) -> Option<&Stream> {
        self.streams.get(&nonce).map(|stream| &**stream)
    }

    /// One stream with its machine.
    pub fn stream_mut(&mut self, nonce: StreamNonce) -> Option<&mut Stream> {
        self.streams.get_mut(&nonce).map(|stream| &mut **stream)
    }

    /// The standalone stream, once it exists.
    pub fn standalone(&self) -> Option<StreamNonce> {
        self.standalone
    }

    /// When [`tick`](Self::tick) is due. It may come too early, never too late.
    pub fn deadline(&self) -> Ms {
        self.next_due
    }
}
