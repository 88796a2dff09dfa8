//! The machine of one stream.
//!
//! ```text
//!                  ┌───────── everything stored is sent ─────────┐
//!                  ▼                                             │
//!   open      ┌────────┐   close / lost   ┌──────────┐  resume  ┌┴──────────┐
//!  ──────────▶│  Live  │─────────────────▶│ Detached │─────────▶│ Replaying │
//!             └───┬────┘                  └────┬─────┘◀─────────└───────────┘
//!                 │ end sent                   │ end, nobody connected    close / lost
//!                 ▼                            ▼
//!             ┌────────────────────────────────────┐
//!             │ Terminated: readable until retention│   (a resume reads the log again)
//!             └────────────────────────────────────┘
//! ```
//!
//! There is no hand-over between replay and live tail: a connection is the position `sent`, and its
//! writer, whenever it can take more, gets what the log holds after it. An append only wakes it.
//! A resume on a live stream takes the stream over.

mod connections;
mod log;
mod reading;

use std::collections::VecDeque;

use bytes::Bytes;

use super::cuts::Cut;
use super::event::{NewEvent, Page, Seq};
use super::io::{ConnectionId, Drain, Frame, Input, Output, Outputs, Refused, Spread};
use super::link::Link;
use super::pacing::{Paced, Pacing};
use crate::Ms;

/// Pause before a failed load is tried again.
const LOAD_AGAIN_MS: u64 = 250;
/// Pause before a log that could not be created is tried again.
const CREATE_AGAIN_MS: u64 = 1_000;

/// What the session's protocol revision allows on this stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamRules {
    /// Every connection starts with a priming event.
    pub priming: bool,
    /// Connections may be closed before the stream is terminated.
    pub early_close: bool,
    /// The standalone stream: superseded connections are parked, and there is no terminal.
    pub standalone: bool,
}

/// A stream that is known from its record in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Follow {
    /// The last stored position.
    pub head: Seq,
    /// The stream has its end.
    pub finished: bool,
    /// An end that is not in the log.
    pub tail: Option<Bytes>,
    /// How its readers are paced.
    pub paced: Paced,
    /// Its reader cannot come back: its connection stays until the end, or until a drain.
    pub stays: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Ending {
    Open,
    /// The terminal is published; it is the last event of the log.
    Answered,
    /// The end is outside the log.
    Synthesized(Bytes),
}

/// Whether the store has how the stream's readers are paced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeptPaced {
    Stored,
    /// It has to be stored.
    New,
    /// The append without an answer has it.
    Asked,
    /// The next append has it: the log is not there, or the store did not take the last one.
    Waiting,
}

/// A resume that the store has still to confirm.
#[derive(Clone, Debug)]
struct Arrival {
    conn: ConnectionId,
    after: Seq,
    /// What the store is asked for.
    up_to: Seq,
    loading: bool,
    visit: u32,
    tag: Option<u32>,
    spread: Spread,
}

/// One stream. See the module's diagram.
#[derive(Debug)]
pub struct Machine {
    pacing: Pacing,
    rules: StreamRules,
    /// See [`Follow::stays`].
    stays: bool,
    /// The store has the log: ids may leave that name it.
    is_created: bool,
    /// The store has not answered the last append.
    is_writing: bool,
    paced: Paced,
    kept_paced: KeptPaced,
    /// Last position that the store confirmed.
    durable: Seq,
    /// Events that the store has not confirmed, in order.
    queue: VecDeque<NewEvent>,
    /// So many of them, from the first on, it was asked to hold.
    asked: usize,
    /// Bytes of the payloads in the queue.
    unconfirmed_bytes: usize,
    /// After a failed batch its events are appended one by one, so that one bad event harms no other.
    singly: usize,
    ending: Ending,
    /// The end is stored (or, synthesized, decided).
    finished: bool,
    link: Option<Link>,
    parked: Option<Link>,
    /// In the order in which they came.
    arriving: Vec<Arrival>,
    /// The newest connection that was its reader.
    newest: ConnectionId,
    /// Last position handed to any connection, with its tag.
    handed: (Seq, u32),
    visits: u32,
    retry_ms: u32,
    /// The last reader came to another process.
    is_read_elsewhere: bool,
    resumes: u32,
    /// How the last reader was lost, until its client comes back.
    cut: Option<Cut>,
    draining: Option<Drain>,
}

impl Machine {
    /// A new stream with an empty log. `start_tag` is the chain tag of the priming position.
    pub fn new(rules: StreamRules, pacing: Pacing, start_tag: u32) -> Self {
        let mut pacing = pacing;
        if !rules.early_close {
            (pacing.max_connection_ms, pacing.max_connection_bytes) = (0, 0);
        }
        Self {
            retry_ms: pacing.retry_ms,
            pacing,
            rules,
            stays: false,
            is_created: false,
            is_writing: false,
            paced: Paced::default(),
            kept_paced: KeptPaced::Stored,
            durable: 0,
            queue: VecDeque::new(),
            asked: 0,
            unconfirmed_bytes: 0,
            singly: 0,
            ending: Ending::Open,
            finished: false,
            link: None,
            parked: None,
            arriving: Vec::new(),
            newest: 0,
            handed: (0, start_tag),
            visits: 0,
            is_read_elsewhere: false,
            resumes: 0,
            cut: None,
            draining: None,
        }
    }

    /// A stream that the store knows already.
    pub fn follow(rules: StreamRules, pacing: Pacing, start_tag: u32, record: Follow) -> Self {
        let mut machine = Self::new(rules, pacing, start_tag);
        machine.is_created = true;
        machine.stays = record.stays;
        if record.stays {
            (machine.pacing.max_connection_ms, machine.pacing.max_connection_bytes) = (0, 0);
        }
        machine.durable = record.head;
        machine.finished = record.finished;
        machine.set_paced(machine.permitted(record.paced));
        machine.ending = match record.tail {
            Some(tail) => Ending::Synthesized(tail),
            None if record.finished => Ending::Answered,
            None => Ending::Open,
        };
        machine
    }

    /// The last position that the store confirmed.
    pub fn durable(&self) -> Seq {
        self.durable
    }

    /// The same, once the store has the log.
    pub fn stored(&self) -> Option<Seq> {
        self.is_created.then_some(self.durable)
    }

    /// Whether the stream has its end, sent or not.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Whether an end was decided, stored or not.
    pub fn is_ending(&self) -> bool {
        self.ending != Ending::Open
    }

    /// The stream's end, if it is not in the log.
    pub fn tail(&self) -> Option<&Bytes> {
        match &self.ending {
            Ending::Synthesized(tail) => Some(tail),
            Ending::Open | Ending::Answered => None,
        }
    }

    /// The connection that reads the stream now.
    pub fn connection(&self) -> Option<ConnectionId> {
        self.link.as_ref().map(|link| link.conn)
    }

    /// How old a connection is that reads, and after how much silence it has gone on, in milliseconds.
    pub fn lived(&self, conn: ConnectionId, now: Ms) -> Option<(u64, u64)> {
        let link = self.link.iter().chain(&self.parked).find(|link| link.conn == conn)?;
        Some((now.since(link.came), link.silent_ms))
    }

    /// Whether the connection can be given more at once: its writer has to ask, for nobody wakes it.
    pub fn has_more(&self, conn: ConnectionId) -> bool {
        let links = self.link.iter().chain(&self.parked);
        links.filter(|link| link.conn == conn).any(|link| !link.waiting)
    }

    /// Whether a newer connection than this one has been the reader.
    pub fn has_had_newer(&self, conn: ConnectionId) -> bool {
        conn < self.newest
    }

    /// The last position that was handed to a connection here.
    pub fn handed(&self) -> Seq {
        self.handed.0
    }

    /// Whether the last reader came to another process.
    pub fn is_read_elsewhere(&self) -> bool {
        self.is_read_elsewhere
    }

    /// The position behind which its reader wants events next.
    pub fn reads_after(&self) -> Seq {
        self.link.as_ref().map_or(self.durable, |link| link.sent)
    }

    /// The chain tag that a resume has brought which is not confirmed yet; none where there is no such resume.
    pub fn arriving(&self, conn: ConnectionId) -> Option<Option<u32>> {
        self.arriving.iter().find(|arrival| arrival.conn == conn).map(|arrival| arrival.tag)
    }

    /// Whether this connection was handed everything that is stored.
    pub fn has_everything(&self, conn: ConnectionId) -> bool {
        self.link.as_ref().is_some_and(|link| link.conn == conn && link.sent >= self.durable)
    }

    /// The stream's reconnection delay in milliseconds.
    pub fn retry_ms(&self) -> u32 {
        self.retry_ms
    }

    /// Events that were published and are not confirmed.
    pub fn unconfirmed(&self) -> usize {
        self.queue.len()
    }

    /// Bytes of the payloads of these.
    pub fn unconfirmed_bytes(&self) -> usize {
        self.unconfirmed_bytes
    }

    /// The events that the store has not confirmed, in order.
    pub fn waiting(&self) -> impl Iterator<Item = &NewEvent> {
        self.queue.iter()
    }

    /// Those of them, from the first on, that the store was asked to hold.
    pub fn asked(&self) -> impl ExactSizeIterator<Item = &NewEvent> {
        self.queue.range(..self.asked)
    }

    /// When [`Input::Tick`] is due, if ever.
    pub fn deadline(&self) -> Ms {
        let reader = self.link.iter().filter(|link| link.waiting).map(|link| self.link_deadline(link));
        let parked = self.parked.iter().filter(|link| link.waiting).map(|link| self.parked_deadline(link));
        reader.chain(parked).min().unwrap_or(Ms::NEVER)
    }

    /// Takes one input and appends what has to be done to `out`.
    ///
    /// # Errors
    /// [`Refused`] when the input is not taken; nothing has changed then.
    pub fn handle(&mut self, now: Ms, input: Input, out: &mut dyn Outputs) -> Result<(), Refused> {
        match input {
            Input::Publish(event) => return self.publish(event, out),
            Input::Terminate { payload } => return self.terminate(payload, out),
            Input::CloseRequested { retry_ms, hold_ms } => return self.close_requested(retry_ms, hold_ms, out),
            Input::Open { conn, spread } => self.open(now, conn, spread, out),
            Input::Resume { conn, after, visit, tag, spread } => {
                self.arrive(Arrival { conn, after, up_to: self.durable, loading: false, visit, tag, spread }, out);
            }
            Input::Pace(paced) => self.pace(paced, out),
            Input::Create => self.create(out),
            Input::Appended => self.appended(out),
            Input::AppendFailed => self.append_failed(now, out),
            Input::Grown { head } => self.grown(head, out),
            Input::Ended { head, tail } => self.ended(head, tail, out),
            Input::Page { conn, page } => self.page(now, conn, page, out),
            Input::LoadFailed { conn } => self.load_failed(now, conn, out),
            Input::Ready { conn } => self.ready(now, conn, out),
            Input::Drain(drain) => self.drain(drain, out),
            Input::Taken => self.taken(out),
            Input::Paced(paced) => self.paced(paced, out),
            Input::Lost { conn } => self.lost(now, conn, out),
            Input::Tick => self.tick(now, out),
        }
        Ok(())
    }
}

/// Lets the connection's writer come back.
fn wake(link: &mut Link, out: &mut dyn Outputs) {
    if link.waiting {
        link.waiting = false;
        out.push(Output::Wake { conn: link.conn });
    }
}

/// There is nothing to send: a comment if it is time for one, and then the writer waits.
fn rest(now: Ms, link: &mut Link, pacing: &Pacing, out: &mut dyn Outputs) {
    if link.opened && link.keep_alive_due(pacing) <= now {
        link.wrote(now);
        out.push(Output::Send { conn: link.conn, frame: Frame::KeepAlive });
    }
    link.waiting = true;
}

/// The number of the visit after this one, as event ids can hold it.
fn next_visit(visit: u32) -> u32 {
    (visit + 1) % (1 << 24)
}

/// Whether the log shows another history at a reader's position than the reader was given. A position that was trimmed
/// away shows nothing.
fn contradicts(page: &Page, tag: Option<u32>) -> bool {
    matches!((page.tag_at, tag), (Some(at), Some(tag)) if at != tag)
}
