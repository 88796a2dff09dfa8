//! What a session keeps of one of its connections.

use bytes::Bytes;

use crate::engine::connections::{Chunk, Wake};
use crate::exchange::{AnswerHead, Join};
use crate::protocol::{Dialect, Origin, Refusal, StreamNonce};
use crate::store::Ticket;
use crate::stream::{CloseReason, Page, Seq};
use crate::sync::Arc;

/// What one page of a connection holds when nobody asked for another size.
pub(crate) const PAGE_BYTES: usize = 64 << 10;
/// The longest event id that the log shows as a whole.
const MAX_SHOWN: usize = 256;

pub(crate) struct Conn {
    pub(crate) nonce: StreamNonce,
    pub(crate) outbox: Vec<Chunk>,
    pub(crate) head: Option<AnswerHead>,
    pub(crate) end: Option<CloseReason>,
    pub(crate) wake: Arc<dyn Wake>,
    pub(crate) key: u64,
    /// Its writer is inside `poll`, or was woken and has not polled since: it needs no wake-up.
    pub(crate) awake: bool,
    /// What the cursor of a resume says about its stream.
    pub(crate) origin: Origin,
    /// The event id of a resume whose answer is not in the log yet, and its position.
    pub(crate) cursor: Option<Box<str>>,
    pub(crate) after: Seq,
    /// The event id to repeat, where the store makes the ids.
    pub(crate) echo: Option<Box<str>>,
    /// Goes out right after the first bytes.
    pub(crate) after_opening: Vec<u8>,
    pub(crate) page_bytes: usize,
    /// For answers in JSON, which have no stream.
    pub(crate) join: Option<Join>,
    /// It is not the stream that was asked for.
    pub(crate) instead: bool,
    /// The replay of the host's own store that it waits for, and what tells it apart from other waits.
    pub(crate) replay: Option<(u64, u64)>,
    /// When the client comes back, as it was told last on this connection.
    pub(crate) retry_ms: Option<u32>,
    /// Events that were read for it before it asked, with the position that they follow.
    pub(crate) page: Option<(Seq, Page)>,
    /// The store is asked to count it as the stream's newest reader.
    pub(crate) attaching: Option<Ticket>,
    /// It was told its own position before its stream was known.
    pub(crate) primed: bool,
    /// The response, where that is larger than the store takes: this connection gets it all the same, and no other.
    pub(crate) unkept: Option<Bytes>,
}

impl Conn {
    pub(crate) fn new(nonce: StreamNonce, origin: Origin, wake: Arc<dyn Wake>, key: u64) -> Self {
        Self {
            nonce,
            outbox: Vec::new(),
            head: None,
            end: None,
            wake,
            key,
            // Whoever opens a connection polls it first.
            awake: true,
            origin,
            cursor: None,
            after: 0,
            echo: None,
            after_opening: Vec::new(),
            page_bytes: PAGE_BYTES,
            join: None,
            instead: false,
            replay: None,
            retry_ms: None,
            page: None,
            attaching: None,
            primed: false,
            unkept: None,
        }
    }

    /// The connection of a new stream: that there will be one is known at once.
    pub(crate) fn open(nonce: StreamNonce, origin: Origin, wake: Arc<dyn Wake>, key: u64) -> Self {
        Self { head: Some(AnswerHead::EVENT_STREAM), ..Self::new(nonce, origin, wake, key) }
    }

    /// Lets what goes with the first bytes out.
    pub(crate) fn flush_after_opening(&mut self) {
        if !self.after_opening.is_empty() {
            let bytes = std::mem::take(&mut self.after_opening);
            self.own().extend_from_slice(&bytes);
        }
    }

    /// Answers with a refusal. Nothing of the answer may be out yet.
    pub(crate) fn refuse(&mut self, refusal: &Refusal, dialect: &Dialect) {
        self.head = Some(AnswerHead::refused(refusal, dialect));
        self.own().extend_from_slice(&refusal.body(dialect));
    }

    /// How the log names the request of a resume, and its event id.
    pub(crate) fn asked_for(&mut self) -> (String, Box<str>) {
        let request = match &self.origin {
            Origin::Request(request) => request.to_json(),
            Origin::Standalone => "none".to_owned(),
            Origin::Unnamed => "unknown".to_owned(),
        };
        (request, self.cursor.take().unwrap_or_default())
    }

    /// A buffer at the end of the outbox.
    pub(crate) fn own(&mut self) -> &mut Vec<u8> {
        if !matches!(self.outbox.last(), Some(Chunk::Own(_))) {
            self.outbox.push(Chunk::Own(Vec::new()));
        }
        match self.outbox.last_mut() {
            Some(Chunk::Own(bytes)) => bytes,
            _ => unreachable!("an own chunk was just put at the end"),
        }
    }
}

/// As much of a client's text as a log line takes.
pub(crate) fn shown(text: &str) -> &str {
    text.char_indices().nth(MAX_SHOWN).map_or(text, |(end, _)| &text[..end])
}
