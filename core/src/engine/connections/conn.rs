//! What a session keeps of one of its connections.

use bytes::Bytes;

use crate::Ms;
use crate::engine::connections::{Chunk, Wake};
use crate::exchange::{AnswerHead, Join};
use crate::protocol::{Origin, StreamNonce};
use crate::session::TraceParent;
use crate::store::Ticket;
use crate::stream::{Chain, CloseReason, Page, Seq};
use crate::sync::Arc;

/// How many bytes one page of a connection holds, unless another size is asked for.
pub(crate) const PAGE_BYTES: usize = 64 << 10;

/// A connection.
pub(crate) struct Conn {
    pub(crate) nonce: StreamNonce,
    pub(crate) phase: Phase,
    pub(crate) head: Option<AnswerHead>,
    pub(crate) outbox: Vec<Chunk>,
    pub(crate) wake: Arc<dyn Wake>,
    pub(crate) key: u64,
    /// Its writer is inside `poll`, or was woken and has not polled since: it needs no wake-up.
    pub(crate) awake: bool,
    pub(crate) page_bytes: usize,
    /// What the cursor of a resume says about its stream.
    pub(crate) origin: Origin,
    /// The event id of a resume, until a log line tells how the resume was answered.
    pub(crate) cursor: Option<Box<str>>,
    /// The event id to repeat, if the store makes the ids.
    pub(crate) echo: Option<Box<str>>,
    /// Written right after the first bytes.
    pub(crate) after_opening: Vec<u8>,
    /// The reconnection delay that the client was told last on this connection.
    pub(crate) retry_ms: Option<u32>,
    /// The store is being asked to count this connection as the stream's newest reader.
    pub(crate) attaching: Option<Ticket>,
    /// Set if the connection gets one JSON body, made of the answers on its stream.
    pub(crate) gathers: Option<Join>,
    /// Set if it resumes a call that has its place in a trace.
    pub(crate) traced: Option<Box<Traced>>,
}

/// A resume in a trace.
pub(crate) struct Traced {
    /// The place of its call.
    pub(crate) parent: TraceParent,
    pub(crate) since: Ms,
    /// How many events were stored after the cursor.
    pub(crate) replayed: u64,
}

/// How far a connection is.
pub(crate) enum Phase {
    /// The store is asked for the connection's stream first.
    Seeking(Seek),
    /// The host's own store replays for it, under this number.
    Replaying(u64),
    /// The machine of the stream says what the connection is given.
    Reading(Reading),
    /// The connection has no stream: the answers to its requests go into one JSON body.
    Json(Join),
    /// The connection ends after what is in the outbox.
    Ended(CloseReason),
}

/// A position that a connection wants to go on from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    pub(crate) nonce: StreamNonce,
    pub(crate) after: Seq,
    pub(crate) visit: u32,
    /// None if the store makes the ids.
    pub(crate) tag: Option<u32>,
    /// There is no cursor: the stream is read from what is left of its start.
    pub(crate) fresh: bool,
    /// The stream is given instead of the one that was asked for.
    pub(crate) instead: bool,
}

impl Position {
    /// A cursor's position.
    pub(crate) fn of_cursor(nonce: StreamNonce, after: Seq, visit: u32, tag: Option<u32>) -> Self {
        Self { nonce, after, visit, tag, fresh: false, instead: false }
    }

    /// The start of a log.
    pub(crate) fn start(nonce: StreamNonce) -> Self {
        Self::of_cursor(nonce, 0, 0, Some(Chain::start(&nonce.0).tag()))
    }
}

/// What is known of a connection whose stream is looked up.
#[derive(Clone, Copy)]
pub(crate) struct Seek {
    pub(crate) position: Position,
    /// Since when the store has been unable to tell.
    pub(crate) fault: Option<Ms>,
}

/// What is known of a connection that reads.
#[derive(Default)]
pub(crate) struct Reading {
    pub(crate) after: Seq,
    /// The stream is given instead of the one that was asked for.
    pub(crate) instead: bool,
    /// Events that were read for it before it asked, with the position that they follow.
    pub(crate) page: Option<(Seq, Page)>,
    /// The response, if the store did not take it. This connection gets it all the same, and no other does.
    pub(crate) unkept: Option<Bytes>,
}

impl Conn {
    pub(crate) fn new(nonce: StreamNonce, origin: Origin, wake: Arc<dyn Wake>, key: u64) -> Self {
        Self {
            nonce,
            phase: Phase::Reading(Reading::default()),
            head: None,
            outbox: Vec::new(),
            wake,
            key,
            // The caller that opens a connection polls it first.
            awake: true,
            page_bytes: PAGE_BYTES,
            origin,
            cursor: None,
            echo: None,
            after_opening: Vec::new(),
            retry_ms: None,
            attaching: None,
            gathers: None,
            traced: None,
        }
    }

    /// The connection of a new stream. It is known at once that the answer is a stream.
    pub(crate) fn open(nonce: StreamNonce, origin: Origin, wake: Arc<dyn Wake>, key: u64) -> Self {
        Self { head: Some(AnswerHead::EVENT_STREAM), ..Self::new(nonce, origin, wake, key) }
    }

    /// Why the connection ends, if it does.
    pub(crate) fn end(&self) -> Option<CloseReason> {
        if let Phase::Ended(why) = self.phase { Some(why) } else { None }
    }

    pub(crate) fn seek(&mut self) -> Option<&mut Seek> {
        if let Phase::Seeking(seek) = &mut self.phase { Some(seek) } else { None }
    }

    pub(crate) fn reading(&mut self) -> Option<&mut Reading> {
        if let Phase::Reading(reading) = &mut self.phase { Some(reading) } else { None }
    }

    /// Writes what follows the first bytes.
    pub(crate) fn flush_after_opening(&mut self) {
        if !self.after_opening.is_empty() {
            let bytes = std::mem::take(&mut self.after_opening);
            self.own().extend_from_slice(&bytes);
        }
    }

    /// How log lines name the request of a resume, and its event id. The id is given only the first time.
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
