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

use std::collections::VecDeque;

use bytes::Bytes;

use super::event::{EventKind, NewEvent, Page, Seq};
use super::io::{CloseReason, ConnectionId, Frame, Input, Output, Refused, RejectReason};
use super::link::{CloseAt, Link};
use super::pacing::Pacing;
use crate::Ms;

/// Pause before a failed load is tried again.
const LOAD_AGAIN_MS: u64 = 250;

/// Where a stream is in its life. For logs and tests; the machine derives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A connection has everything that is stored.
    Live,
    /// Nobody is connected.
    Detached,
    /// A connection is behind the log.
    Replaying,
    /// The end is stored.
    Terminated,
}

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
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Ending {
    Open,
    /// The terminal is published; it is the last event of the log.
    Answered,
    /// The end is outside the log.
    Synthesized(Bytes),
}

/// A resume that the store has still to confirm.
#[derive(Clone, Debug)]
struct Arrival {
    conn: ConnectionId,
    after: Seq,
    visit: u32,
    tag: Option<u32>,
    jitter: u16,
}

/// One stream. See the module's diagram.
#[derive(Debug)]
pub struct Machine {
    pacing: Pacing,
    rules: StreamRules,
    opening: bool,
    /// Last position that the store confirmed.
    durable: Seq,
    /// Events that the store was asked to hold.
    appending: Vec<NewEvent>,
    /// Events that wait behind them.
    queue: VecDeque<NewEvent>,
    /// After a failed batch its events are appended one by one, so that one bad event harms no other.
    singly: usize,
    ending: Ending,
    /// The end is stored (or, synthesized, decided).
    finished: bool,
    link: Option<Link>,
    parked: Option<Link>,
    arriving: Vec<Arrival>,
    /// Last position handed to any connection, with its tag.
    handed: (Seq, u32),
    visits: u32,
    retry_ms: u32,
    hold_ms: Option<u64>,
    resumes: u32,
    draining: bool,
}

impl Machine {
    /// A new stream with an empty log. `start_tag` is the chain tag of the priming position.
    pub fn new(rules: StreamRules, pacing: Pacing, start_tag: u32) -> Self {
        Self {
            retry_ms: pacing.retry_ms,
            pacing,
            rules,
            opening: false,
            durable: 0,
            appending: Vec::new(),
            queue: VecDeque::new(),
            singly: 0,
            ending: Ending::Open,
            finished: false,
            link: None,
            parked: None,
            arriving: Vec::new(),
            handed: (0, start_tag),
            visits: 0,
            hold_ms: None,
            resumes: 0,
            draining: false,
        }
    }

    /// A stream that the store knows already.
    pub fn follow(rules: StreamRules, pacing: Pacing, start_tag: u32, record: Follow) -> Self {
        let mut machine = Self::new(rules, pacing, start_tag);
        machine.durable = record.head;
        machine.finished = record.finished;
        machine.ending = match record.tail {
            Some(tail) => Ending::Synthesized(tail),
            None if record.finished => Ending::Answered,
            None => Ending::Open,
        };
        machine
    }

    /// Where the stream is in its life.
    pub fn state(&self) -> State {
        match &self.link {
            _ if self.finished => State::Terminated,
            None => State::Detached,
            Some(link) if link.sent < self.durable => State::Replaying,
            Some(_) => State::Live,
        }
    }

    /// The last position that the store confirmed.
    pub fn durable(&self) -> Seq {
        self.durable
    }

    /// Whether the stream has its end, sent or not.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Whether an end was decided, stored or not.
    pub fn is_ending(&self) -> bool {
        self.ending != Ending::Open
    }

    /// The connection that reads the stream now.
    pub fn connection(&self) -> Option<ConnectionId> {
        self.link.as_ref().map(|link| link.conn)
    }

    /// The stream's reconnection delay in milliseconds.
    pub fn retry_ms(&self) -> u32 {
        self.retry_ms
    }

    /// Events that the store was asked to hold and has not confirmed.
    pub fn appending(&self) -> usize {
        self.appending.len()
    }

    /// Events that were published and are not confirmed.
    pub fn unconfirmed(&self) -> usize {
        self.appending.len() + self.queue.len()
    }

    /// When [`Input::Tick`] is due, if ever.
    pub fn deadline(&self) -> Ms {
        if self.opening {
            return Ms::NEVER;
        }
        [&self.link, &self.parked]
            .into_iter()
            .flatten()
            .filter(|link| link.waiting)
            .map(|link| link.deadline(&self.pacing))
            .min()
            .unwrap_or(Ms::NEVER)
    }

    /// Takes one input and appends what has to be done to `out`.
    ///
    /// # Errors
    /// [`Refused`] when the input is not taken; nothing has changed then.
    pub fn handle(&mut self, now: Ms, input: Input, out: &mut Vec<Output>) -> Result<(), Refused> {
        match input {
            Input::Publish(event) => return self.publish(event, out),
            Input::Terminate { payload } => return self.terminate(payload, out),
            Input::CloseRequested { retry_ms, hold_ms } => return self.close_requested(retry_ms, hold_ms, out),
            Input::Open { conn, jitter } => self.open(now, conn, jitter, out),
            Input::Resume { conn, after, visit, tag, jitter } => {
                self.arrive(Arrival { conn, after, visit, tag, jitter }, out);
            }
            Input::Opening => self.opening = true,
            Input::Opened => {
                self.opening = false;
                self.pump(out);
                self.wake(out);
            }
            Input::Appended => self.appended(out),
            Input::AppendFailed => self.append_failed(out),
            Input::Page { conn, page } => self.page(now, conn, page, out),
            Input::LoadFailed { conn } => self.load_failed(now, conn, out),
            Input::Ready { conn } => self.ready(now, conn, out),
            Input::Drain { retry_ms } => self.drain(retry_ms, out),
            Input::Lost { conn } => self.lost(conn, out),
            Input::Tick => self.tick(now, out),
        }
        Ok(())
    }

    fn publish(&mut self, event: NewEvent, out: &mut Vec<Output>) -> Result<(), Refused> {
        if self.is_ending() {
            return Err(Refused::Finished);
        }
        // A response always gets in: its request would never end otherwise.
        let droppable = matches!(event.kind, EventKind::Progress | EventKind::Question);
        if droppable && self.unconfirmed() >= self.pacing.max_unconfirmed {
            return Err(Refused::Full);
        }
        if event.kind == EventKind::Terminal {
            self.ending = Ending::Answered;
        }
        self.queue.push_back(event);
        self.pump(out);
        Ok(())
    }

    /// Hands waiting events to the store, one append at a time: positions stay dense when one fails.
    fn pump(&mut self, out: &mut Vec<Output>) {
        if self.opening || !self.appending.is_empty() || self.queue.is_empty() {
            return;
        }
        let batch = if self.singly > 0 { 1 } else { self.pacing.max_batch.min(self.queue.len()) };
        self.appending.extend(self.queue.drain(..batch));
        out.push(Output::Append { first: self.durable + 1, events: self.appending.clone() });
    }

    fn appended(&mut self, out: &mut Vec<Output>) {
        self.durable += self.appending.len() as Seq;
        self.singly = self.singly.saturating_sub(1);
        for event in self.appending.drain(..).filter(|event| event.token != 0) {
            out.push(Output::Stored { token: event.token });
        }
        self.pump(out);
        self.settle(out);
        self.wake(out);
    }

    fn append_failed(&mut self, out: &mut Vec<Output>) {
        if self.appending.len() > 1 {
            self.singly = self.appending.len();
            while let Some(event) = self.appending.pop() {
                self.queue.push_front(event);
            }
        } else if let Some(event) = self.appending.pop() {
            self.singly = self.singly.saturating_sub(1);
            let lost_seq = self.durable + 1;
            if let Some(close) = self.link.as_mut().and_then(|link| link.close.as_mut())
                && close.seq >= lost_seq
            {
                close.seq -= 1;
            }
            let terminal = event.kind == EventKind::Terminal;
            if terminal {
                self.ending = Ending::Open;
            }
            out.push(Output::Unstored { token: event.token, terminal });
        }
        self.pump(out);
        self.settle(out);
        self.wake(out);
    }

    fn terminate(&mut self, payload: Bytes, out: &mut Vec<Output>) -> Result<(), Refused> {
        if self.is_ending() {
            return Err(Refused::Finished);
        }
        self.ending = Ending::Synthesized(payload);
        self.settle(out);
        self.wake(out);
        Ok(())
    }

    /// The end counts once everything published before it is stored.
    fn settle(&mut self, out: &mut Vec<Output>) {
        if self.finished || self.unconfirmed() > 0 {
            return;
        }
        match &self.ending {
            Ending::Open => return,
            Ending::Answered => {}
            Ending::Synthesized(tail) => out.push(Output::Finish { tail: tail.clone() }),
        }
        self.finished = true;
        self.forget_if_done(out);
    }

    fn open(&mut self, now: Ms, conn: ConnectionId, jitter: u16, out: &mut Vec<Output>) {
        let (seq, tag) = self.handed;
        let primed = (seq, self.visits, tag);
        self.visits += 1;
        let link = Link::new(conn, jitter, primed, now, &self.pacing);
        out.push(Output::Accept { conn });
        self.take_over(now, link, out);
    }

    fn arrive(&mut self, arrival: Arrival, out: &mut Vec<Output>) {
        let Arrival { conn, after, .. } = arrival;
        if after > self.durable {
            out.push(Output::Reject { conn, why: RejectReason::Unknown });
            return;
        }
        self.arriving.push(arrival);
        out.push(Output::Load { conn, after, up_to: self.durable });
    }

    fn accept(&mut self, now: Ms, arrival: &Arrival, out: &mut Vec<Output>) {
        self.resumes = self.resumes.saturating_add(1);
        let visit = (arrival.visit.max(self.visits) + 1) % (1 << 24);
        self.visits = visit;
        let primed = (arrival.after, visit, arrival.tag.unwrap_or_default());
        let mut link = Link::new(arrival.conn, arrival.jitter, primed, now, &self.pacing);
        match self.hold_ms {
            Some(hold_ms) if self.resumes <= self.pacing.max_polls => {
                if hold_ms == 0 {
                    link.close = Some(CloseAt { seq: self.published(), why: CloseReason::Polled });
                } else {
                    link.hold_due = now + hold_ms;
                }
            }
            _ => {}
        }
        out.push(Output::Accept { conn: arrival.conn });
        self.take_over(now, link, out);
    }

    /// The newest valid reader gets the stream; the one before is fenced (I4).
    fn take_over(&mut self, now: Ms, mut link: Link, out: &mut Vec<Output>) {
        if self.draining && self.rules.early_close {
            link.close = Some(CloseAt { seq: self.published(), why: CloseReason::Drain });
        }
        if self.rules.standalone && self.link.is_some() {
            // A parked connection needs its cursor too: it may be promoted, or dropped by a proxy.
            self.write_opening(now, out);
        }
        let Some(old) = self.link.replace(link) else { return };
        let superseded = if self.rules.standalone { self.parked.replace(old.park()) } else { Some(old) };
        if let Some(superseded) = superseded {
            out.push(Output::Close { conn: superseded.conn, why: CloseReason::Superseded });
        }
    }

    /// Positions given to everything published so far.
    fn published(&self) -> Seq {
        self.durable + self.unconfirmed() as Seq
    }

    fn close_requested(
        &mut self,
        retry_ms: Option<u32>,
        hold_ms: Option<u64>,
        out: &mut Vec<Output>,
    ) -> Result<(), Refused> {
        if !self.rules.early_close {
            return Err(Refused::NotResumable);
        }
        if self.is_ending() {
            return Err(Refused::Finished);
        }
        self.retry_ms = retry_ms.unwrap_or(self.retry_ms);
        self.hold_ms = hold_ms.or(self.hold_ms);
        self.close_at_published(CloseReason::Asked, out);
        Ok(())
    }

    fn close_at_published(&mut self, why: CloseReason, out: &mut Vec<Output>) {
        let seq = self.published();
        if let Some(link) = &mut self.link {
            // An earlier request keeps its place.
            link.close.get_or_insert(CloseAt { seq, why });
        }
        self.wake(out);
    }

    fn drain(&mut self, retry_ms: u32, out: &mut Vec<Output>) {
        self.draining = true;
        self.retry_ms = self.retry_ms.max(retry_ms);
        if let Some(parked) = self.parked.take() {
            out.push(Output::Close { conn: parked.conn, why: CloseReason::Drain });
        }
        if self.rules.early_close {
            self.close_at_published(CloseReason::Drain, out);
        } else if self.rules.standalone
            && let Some(link) = self.link.take()
        {
            // Any stream may end a standalone connection at any time (W-055).
            out.push(Output::Close { conn: link.conn, why: CloseReason::Drain });
        }
    }

    fn lost(&mut self, conn: ConnectionId, out: &mut Vec<Output>) {
        self.arriving.retain(|arrival| arrival.conn != conn);
        if self.parked.as_ref().is_some_and(|link| link.conn == conn) {
            self.parked = None;
        }
        if self.connection() == Some(conn) {
            self.link = self.parked.take();
            self.wake(out);
        }
        self.forget_if_done(out);
    }

    fn end_link(&mut self, why: CloseReason, out: &mut Vec<Output>) {
        if let Some(link) = self.link.take() {
            out.push(Output::Close { conn: link.conn, why });
        }
        self.forget_if_done(out);
    }

    /// Whether the end is stored and nobody is connected.
    pub fn is_done(&self) -> bool {
        self.finished && self.link.is_none() && self.parked.is_none() && self.arriving.is_empty()
    }

    fn forget_if_done(&self, out: &mut Vec<Output>) {
        if self.is_done() {
            out.push(Output::Forget);
        }
    }

    fn wake(&mut self, out: &mut Vec<Output>) {
        if let Some(link) = &mut self.link
            && link.waiting
        {
            link.waiting = false;
            out.push(Output::Wake { conn: link.conn });
        }
    }

    fn tick(&mut self, now: Ms, out: &mut Vec<Output>) {
        for link in [&mut self.link, &mut self.parked].into_iter().flatten() {
            if link.waiting && link.deadline(&self.pacing) <= now {
                link.waiting = false;
                out.push(Output::Wake { conn: link.conn });
            }
        }
    }

    fn ready(&mut self, now: Ms, conn: ConnectionId, out: &mut Vec<Output>) {
        if self.connection() == Some(conn) {
            self.advance(now, out);
        } else if let Some(link) = self.parked.as_mut().filter(|link| link.conn == conn) {
            // A parked connection gets comments only.
            if link.keep_alive_due(&self.pacing) <= now {
                link.last_write = now;
                out.push(Output::Send { conn, frame: Frame::KeepAlive });
            }
            link.waiting = true;
        }
    }

    /// Gives the reader what is due, in wire order: first bytes, events, end or close, comment.
    fn advance(&mut self, now: Ms, out: &mut Vec<Output>) {
        let Some(link) = &mut self.link else { return };
        if link.loading {
            return;
        }
        if self.opening {
            link.waiting = true;
            return;
        }
        let conn = link.conn;
        link.waiting = false;
        if link.close.is_none() && self.rules.early_close && link.opened {
            if link.hold_due <= now {
                link.close = Some(CloseAt { seq: self.durable, why: CloseReason::Polled });
            } else if link.age_due <= now || self.over_bytes() {
                let seq = self.link.as_ref().map_or(0, |link| link.sent);
                return self.close_for_limit(now, seq, out);
            }
        }
        let Some(link) = &mut self.link else { return };
        let limit = link.close.map_or(self.durable, |close| close.seq.min(self.durable));
        let can_load = link.fault.is_none_or(|(_, again)| again <= now);
        let pending = link.sent < limit || self.finished || link.close.is_some();
        if !link.opened && !pending && now < link.open_due {
            link.waiting = true;
            return;
        }
        self.write_opening(now, out);
        let Some(link) = &mut self.link else { return };
        if link.sent < limit && can_load {
            link.loading = true;
            out.push(Output::Load { conn, after: link.sent, up_to: limit });
        } else if link.sent >= limit {
            self.finish_turn(now, out);
        } else {
            self.rest(now, out);
        }
    }

    fn over_bytes(&self) -> bool {
        let max = self.pacing.max_connection_bytes;
        max != 0 && self.link.as_ref().is_some_and(|link| link.bytes >= max)
    }

    fn close_for_limit(&mut self, now: Ms, seq: Seq, out: &mut Vec<Output>) {
        if let Some(link) = &mut self.link {
            link.close = Some(CloseAt { seq, why: CloseReason::Limit });
        }
        self.finish_turn(now, out);
    }

    /// The first bytes of a connection: its cursor, or a comment where priming is not allowed.
    fn write_opening(&mut self, now: Ms, out: &mut Vec<Output>) {
        let Some(link) = self.link.as_mut().filter(|link| !link.opened) else { return };
        link.opened = true;
        link.last_write = now;
        let conn = link.conn;
        let frame = if self.rules.priming {
            let (seq, visit, tag) = link.primed;
            link.retry_sent = Some(self.retry_ms);
            Frame::Priming { seq, visit, tag, retry_ms: self.retry_ms }
        } else if link.sent < self.durable || self.finished {
            return;
        } else {
            Frame::KeepAlive
        };
        out.push(Output::Send { conn, frame });
    }

    /// Everything due is sent: end the connection, or write a comment, or rest.
    fn finish_turn(&mut self, now: Ms, out: &mut Vec<Output>) {
        let Some(link) = &mut self.link else { return };
        let conn = link.conn;
        if self.finished && link.sent >= self.durable {
            if let Ending::Synthesized(tail) = &self.ending {
                out.push(Output::Send { conn, frame: Frame::Tail(tail.clone()) });
            }
            return self.end_link(CloseReason::Complete, out);
        }
        if let Some(close) = link.close.filter(|close| link.sent >= close.seq) {
            let retry_ms = match close.why {
                CloseReason::Limit | CloseReason::Drain => link.spread_retry(self.retry_ms),
                _ => self.retry_ms,
            };
            if link.retry_sent != Some(retry_ms) {
                out.push(Output::Send { conn, frame: Frame::Retry { ms: retry_ms } });
            }
            return self.end_link(close.why, out);
        }
        self.rest(now, out);
    }

    fn rest(&mut self, now: Ms, out: &mut Vec<Output>) {
        let Some(link) = &mut self.link else { return };
        if link.keep_alive_due(&self.pacing) <= now {
            link.last_write = now;
            out.push(Output::Send { conn: link.conn, frame: Frame::KeepAlive });
        }
        link.waiting = true;
    }

    fn page(&mut self, now: Ms, conn: ConnectionId, page: Page, out: &mut Vec<Output>) {
        if let Some(at) = self.arriving.iter().position(|arrival| arrival.conn == conn) {
            let arrival = self.arriving.remove(at);
            if contradicts(&page, arrival.tag) {
                out.push(Output::Reject { conn, why: RejectReason::Unknown });
                return self.forget_if_done(out);
            }
            if self.finished && arrival.after == self.durable && self.ending == Ending::Answered {
                out.push(Output::Reject { conn, why: RejectReason::Complete });
                return self.forget_if_done(out);
            }
            self.accept(now, &arrival, out);
            self.write_opening_with(now, &page, out);
        }
        let Some(link) = self.link.as_mut().filter(|link| link.conn == conn) else { return };
        link.loading = false;
        link.fault = None;
        let unverified = link.unverified.take();
        if contradicts(&page, unverified) {
            self.link = self.parked.take();
            out.push(Output::Reject { conn, why: RejectReason::Unknown });
            return self.forget_if_done(out);
        }
        self.deliver(now, page, out);
    }

    /// Opens a resumed connection at once where something follows, so that both leave together.
    fn write_opening_with(&mut self, now: Ms, page: &Page, out: &mut Vec<Output>) {
        let close = self.link.as_ref().is_some_and(|link| link.close.is_some());
        if !page.events.is_empty() || self.finished || close {
            self.write_opening(now, out);
        }
    }

    fn deliver(&mut self, now: Ms, page: Page, out: &mut Vec<Output>) {
        let durable = self.durable;
        let Some(link) = &mut self.link else { return };
        let conn = link.conn;
        let limit = link.close.map_or(durable, |close| close.seq.min(durable));
        let Page { mut events, low, .. } = page;
        events.retain(|event| event.seq > link.sent && event.seq <= limit);
        let mut start = link.sent;
        // A position that retention took is announced where it is missing (I8).
        while !events.is_empty() {
            let missing = events[0].seq - start - 1;
            if missing > 0 {
                out.push(Output::Send { conn, frame: Frame::Gap { first: start + 1, count: missing } });
            }
            let run = events.windows(2).position(|pair| pair[1].seq != pair[0].seq + 1).map_or(events.len(), |i| i + 1);
            let rest = events.split_off(run);
            let last = &events[run - 1];
            start = last.seq;
            self.handed = self.handed.max((last.seq, last.tag));
            link.bytes += events.iter().map(|event| event.frame.len() as u64).sum::<u64>();
            out.push(Output::Send { conn, frame: Frame::Events(std::mem::replace(&mut events, rest)) });
        }
        // Trimmed up to `low` and nothing kept on the way.
        let trimmed = low.saturating_sub(1).min(limit);
        if trimmed > start {
            out.push(Output::Send { conn, frame: Frame::Gap { first: start + 1, count: trimmed - start } });
            start = trimmed;
        }
        if start > link.sent {
            link.sent = start;
            link.last_write = now;
        } else if start < limit {
            // The store has less than it confirmed. Waiting would never end; say what is missing.
            out.push(Output::Send { conn, frame: Frame::Gap { first: start + 1, count: limit - start } });
            link.sent = limit;
        }
        if link.sent >= limit {
            if link.opened {
                self.finish_turn(now, out);
            } else {
                self.advance(now, out);
            }
        }
    }

    fn load_failed(&mut self, now: Ms, conn: ConnectionId, out: &mut Vec<Output>) {
        if let Some(at) = self.arriving.iter().position(|arrival| arrival.conn == conn) {
            // Clients survive two refusals, not a failover: answer, and keep trying.
            let arrival = self.arriving.remove(at);
            self.accept(now, &arrival, out);
            if let Some(link) = &mut self.link {
                link.unverified = arrival.tag;
            }
            self.write_opening(now, out);
        }
        let Some(link) = self.link.as_mut().filter(|link| link.conn == conn) else { return };
        link.loading = false;
        let since = link.fault.map_or(now, |(since, _)| since);
        if now.since(since) >= self.pacing.store_wait_ms {
            return self.end_link(CloseReason::Fault, out);
        }
        link.fault = Some((since, now + LOAD_AGAIN_MS));
        self.rest(now, out);
    }
}

/// Whether the log shows another history at the cursor's position than the cursor was made from. A
/// position that was trimmed away shows nothing.
fn contradicts(page: &Page, tag: Option<u32>) -> bool {
    matches!((page.tag_at, tag), (Some(at), Some(tag)) if at != tag)
}
