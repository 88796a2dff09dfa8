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
    /// The reconnection delay that was set for it.
    pub retry_ms: Option<u32>,
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
    /// What the store was asked for.
    up_to: Seq,
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
        machine.retry_ms = record.retry_ms.unwrap_or(machine.retry_ms);
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

    /// The events that the store has not confirmed, in order.
    pub fn waiting(&self) -> impl Iterator<Item = &NewEvent> {
        self.appending.iter().chain(&self.queue)
    }

    /// When [`Input::Tick`] is due, if ever.
    pub fn deadline(&self) -> Ms {
        if self.opening {
            return Ms::NEVER;
        }
        let reader = self.link.iter().filter(|link| link.waiting).map(|link| link.deadline(&self.pacing));
        let parked = self.parked.iter().filter(|link| link.waiting).map(|link| link.parked_deadline(&self.pacing));
        reader.chain(parked).min().unwrap_or(Ms::NEVER)
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
                self.arrive(Arrival { conn, after, up_to: self.durable, visit, tag, jitter }, out);
            }
            Input::Opening => self.opening = true,
            Input::Opened => self.log_opened(out),
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

    fn log_opened(&mut self, out: &mut Vec<Output>) {
        self.opening = false;
        self.pump(out);
        self.settle(out);
        for arrival in &self.arriving {
            out.push(Output::Load { conn: arrival.conn, after: arrival.after, up_to: arrival.up_to });
        }
        for link in [&mut self.link, &mut self.parked].into_iter().flatten() {
            wake(link, out);
        }
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
            let seq = self.durable + 1;
            if let Some(close) = self.link.as_mut().and_then(|link| link.close.as_mut())
                && close.seq >= seq
            {
                close.seq -= 1;
            }
            self.reopen_without(event.kind);
            out.push(Output::Unstored { token: event.token, seq, kind: event.kind });
        }
        self.pump(out);
        self.settle(out);
        self.wake(out);
    }

    /// A response is lost, so the response behind it cannot be the end: that has to tell of the loss.
    fn reopen_without(&mut self, kind: EventKind) {
        match kind {
            EventKind::Terminal => self.ending = Ending::Open,
            EventKind::Answer => {
                if let Some(last) = self.queue.back_mut().filter(|last| last.kind == EventKind::Terminal) {
                    last.kind = EventKind::Answer;
                    self.ending = Ending::Open;
                }
            }
            EventKind::Progress | EventKind::Question => {}
        }
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
        if self.finished || self.opening || self.unconfirmed() > 0 {
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
        self.visits = next_visit(self.visits);
        let link = self.link_from(now, conn, jitter, primed);
        self.supersede_arrivals(self.arriving.len(), out);
        self.take_over(now, link, out);
    }

    fn link_from(&self, now: Ms, conn: ConnectionId, jitter: u16, primed: (Seq, u32, u32)) -> Link {
        let mut link = Link::new(conn, jitter, primed, now, &self.pacing);
        if !self.rules.early_close {
            link.age_due = Ms::NEVER;
        }
        link
    }

    fn arrive(&mut self, arrival: Arrival, out: &mut Vec<Output>) {
        let Arrival { conn, after, .. } = arrival;
        if after > self.durable {
            out.push(Output::Reject { conn, why: RejectReason::Unknown });
            return self.forget_if_done(out);
        }
        let up_to = arrival.up_to;
        self.arriving.push(arrival);
        if !self.opening {
            out.push(Output::Load { conn, after, up_to });
        }
    }

    /// Takes the arrival of this connection off the list, with how many came before it.
    fn arrived(&mut self, conn: ConnectionId) -> Option<(usize, Arrival)> {
        let at = self.arriving.iter().position(|arrival| arrival.conn == conn)?;
        Some((at, self.arriving.remove(at)))
    }

    /// The first `count` arrivals are older than a reader that is valid: it is the newest.
    fn supersede_arrivals(&mut self, count: usize, out: &mut Vec<Output>) {
        for arrival in self.arriving.drain(..count) {
            out.push(Output::Close { conn: arrival.conn, why: CloseReason::Superseded });
        }
    }

    fn accept(&mut self, now: Ms, (older, arrival): (usize, &Arrival), out: &mut Vec<Output>) {
        self.resumes = self.resumes.saturating_add(1);
        let visit = next_visit(arrival.visit.max(self.visits));
        self.visits = visit;
        let primed = (arrival.after, visit, arrival.tag.unwrap_or_default());
        let mut link = self.link_from(now, arrival.conn, arrival.jitter, primed);
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
        self.supersede_arrivals(older, out);
        out.push(Output::Accept { conn: arrival.conn });
        self.take_over(now, link, out);
    }

    /// The newest valid reader gets the stream; the one before is fenced (I4).
    fn take_over(&mut self, now: Ms, mut link: Link, out: &mut Vec<Output>) {
        if self.draining && self.may_drain() {
            link.close = Some(CloseAt { seq: self.published(), why: CloseReason::Drain });
        }
        if self.rules.standalone && !self.opening {
            // A parked connection needs its cursor too: it may be promoted, or dropped by a proxy.
            self.write_opening(now, out);
        }
        let Some(old) = self.link.replace(link) else { return };
        // One that was to be closed anyway is not kept.
        let park = self.rules.standalone && old.close.is_none();
        let superseded = if park { self.parked.replace(old) } else { Some(old) };
        if let Some(superseded) = superseded {
            out.push(Output::Close { conn: superseded.conn, why: CloseReason::Superseded });
        }
    }

    /// Whether a drain closes this stream's connections. Any stream may end a standalone connection
    /// at any time (W-055).
    fn may_drain(&self) -> bool {
        self.rules.early_close || self.rules.standalone
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
        // Nobody is to stay connected, so nobody is promoted either.
        if let Some(parked) = self.parked.take() {
            self.part(&parked, why, out);
        }
        self.wake(out);
    }

    /// Ends a connection whose client comes back, after the delay that it is told.
    fn part(&self, link: &Link, why: CloseReason, out: &mut Vec<Output>) {
        let retry_ms = match why {
            CloseReason::Limit | CloseReason::Drain => link.spread_retry(self.retry_ms),
            _ => self.retry_ms,
        };
        let conn = link.conn;
        if link.opened && link.retry_sent != Some(retry_ms) {
            out.push(Output::Send { conn, frame: Frame::Retry { ms: retry_ms } });
        }
        out.push(Output::Close { conn, why });
    }

    fn drain(&mut self, retry_ms: u32, out: &mut Vec<Output>) {
        self.draining = true;
        self.retry_ms = self.retry_ms.max(retry_ms);
        if self.may_drain() {
            self.close_at_published(CloseReason::Drain, out);
        }
    }

    fn lost(&mut self, conn: ConnectionId, out: &mut Vec<Output>) {
        self.arriving.retain(|arrival| arrival.conn != conn);
        if self.parked.as_ref().is_some_and(|link| link.conn == conn) {
            self.parked = None;
        }
        if self.connection() == Some(conn) {
            self.promote(out);
        }
        self.forget_if_done(out);
    }

    fn end_link(&mut self, why: CloseReason, out: &mut Vec<Output>) {
        if let Some(link) = &self.link {
            out.push(Output::Close { conn: link.conn, why });
        }
        self.promote(out);
        self.forget_if_done(out);
    }

    /// The parked connection, if there is one, takes the place of the reader. It goes on from its own
    /// position.
    fn promote(&mut self, out: &mut Vec<Output>) {
        self.link = self.parked.take();
        self.wake(out);
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
        if let Some(link) = &mut self.link {
            wake(link, out);
        }
    }

    fn tick(&mut self, now: Ms, out: &mut Vec<Output>) {
        if let Some(link) = self.link.as_mut().filter(|link| link.deadline(&self.pacing) <= now) {
            wake(link, out);
        }
        if let Some(link) = self.parked.as_mut().filter(|link| link.parked_deadline(&self.pacing) <= now) {
            wake(link, out);
        }
    }

    fn ready(&mut self, now: Ms, conn: ConnectionId, out: &mut Vec<Output>) {
        if self.connection() == Some(conn) {
            self.advance(now, out);
        } else if let Some(mut link) = self.parked.take_if(|link| link.conn == conn) {
            // A parked connection gets its first bytes and comments, no events.
            if !self.opening {
                self.open_bytes(now, &mut link, false, out);
            }
            rest(now, &mut link, &self.pacing, out);
            self.parked = Some(link);
        }
    }

    /// Gives the reader what is due, in wire order: first bytes, events, end or close, comment.
    fn advance(&mut self, now: Ms, out: &mut Vec<Output>) {
        let Some(link) = &mut self.link else { return };
        let conn = link.conn;
        link.waiting = false;
        if self.opening || link.loading.is_some() {
            return rest(now, link, &self.pacing, out);
        }
        if link.close.is_none() && self.rules.early_close {
            let max_bytes = self.pacing.max_connection_bytes;
            if link.hold_due <= now {
                link.close = Some(CloseAt { seq: self.durable, why: CloseReason::Polled });
            } else if link.age_due <= now || (max_bytes != 0 && link.bytes >= max_bytes) {
                link.close = Some(CloseAt { seq: link.sent, why: CloseReason::Limit });
            }
        }
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
            link.loading = Some(limit);
            link.waiting = true;
            out.push(Output::Load { conn, after: link.sent, up_to: limit });
        } else if link.sent >= limit {
            self.finish_turn(now, out);
        } else {
            rest(now, link, &self.pacing, out);
        }
    }

    fn write_opening(&mut self, now: Ms, out: &mut Vec<Output>) {
        if let Some(mut link) = self.link.take() {
            let follows = link.sent < self.durable || self.finished;
            self.open_bytes(now, &mut link, follows, out);
            self.link = Some(link);
        }
    }

    /// The first bytes of a connection: its cursor, or a comment where priming is not allowed and
    /// nothing `follows` at once.
    fn open_bytes(&self, now: Ms, link: &mut Link, follows: bool, out: &mut Vec<Output>) {
        if link.opened {
            return;
        }
        link.opened = true;
        link.last_write = now;
        let conn = link.conn;
        let frame = if self.rules.priming {
            let (seq, visit, tag) = link.primed;
            link.retry_sent = Some(self.retry_ms);
            Frame::Priming { seq, visit, tag, retry_ms: self.retry_ms }
        } else if follows {
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
            if let Some(link) = self.link.take() {
                self.part(&link, close.why, out);
            }
            self.promote(out);
            return self.forget_if_done(out);
        }
        rest(now, link, &self.pacing, out);
    }

    fn page(&mut self, now: Ms, conn: ConnectionId, page: Page, out: &mut Vec<Output>) {
        if let Some((older, arrival)) = self.arrived(conn) {
            if contradicts(&page, arrival.tag) {
                out.push(Output::Reject { conn, why: RejectReason::Unknown });
                return self.forget_if_done(out);
            }
            if self.finished && arrival.after == self.durable && self.ending == Ending::Answered {
                out.push(Output::Reject { conn, why: RejectReason::Complete });
                return self.forget_if_done(out);
            }
            self.accept(now, (older, &arrival), out);
            if let Some(link) = &mut self.link {
                link.loading = Some(arrival.up_to);
            }
        }
        if self.load_parked(conn) {
            return;
        }
        let Some(link) = self.link.as_mut().filter(|link| link.conn == conn) else { return };
        let Some(asked) = link.loading.take() else { return };
        link.waiting = false;
        link.fault = None;
        let unverified = link.unverified.take();
        if contradicts(&page, unverified) {
            out.push(Output::Reject { conn, why: RejectReason::Unknown });
            self.promote(out);
            return self.forget_if_done(out);
        }
        self.deliver(now, asked, page, out);
    }

    /// An answer of the store came too late for a connection that was parked meanwhile; when it is
    /// promoted, it asks again.
    fn load_parked(&mut self, conn: ConnectionId) -> bool {
        let Some(parked) = self.parked.as_mut().filter(|link| link.conn == conn) else { return false };
        parked.loading = None;
        true
    }

    /// Hands over what the store holds up to the position that it was `asked` for.
    fn deliver(&mut self, now: Ms, asked: Seq, page: Page, out: &mut Vec<Output>) {
        let Page { mut events, .. } = page;
        let durable = self.durable;
        let Some(link) = &mut self.link else { return };
        let conn = link.conn;
        let limit = link.close.map_or(durable, |close| close.seq.min(durable));
        let mut last = link.sent;
        events.retain(|event| {
            let next = event.seq > last && event.seq <= limit;
            last = if next { event.seq } else { last };
            next
        });
        if asked > link.sent {
            // Something follows, so that it leaves together with the first bytes.
            self.write_opening(now, out);
        }
        let Some(link) = &mut self.link else { return };
        if events.is_empty() && asked > link.sent {
            // Nothing is left of what was asked for. Waiting for it would never end.
            out.push(Output::Send { conn, frame: Frame::Gap { first: link.sent + 1, count: asked - link.sent } });
            link.sent = asked;
            link.last_write = now;
        }
        // A position that retention took is announced where it is missing (I8).
        while !events.is_empty() {
            let missing = events[0].seq - link.sent - 1;
            if missing > 0 {
                out.push(Output::Send { conn, frame: Frame::Gap { first: link.sent + 1, count: missing } });
            }
            let run = events.windows(2).position(|pair| pair[1].seq != pair[0].seq + 1).map_or(events.len(), |i| i + 1);
            let rest = events.split_off(run);
            let last = &events[run - 1];
            link.sent = last.seq;
            link.last_write = now;
            self.handed = self.handed.max((last.seq, last.tag));
            link.bytes += events.iter().map(|event| event.frame.len() as u64).sum::<u64>();
            out.push(Output::Send { conn, frame: Frame::Events(std::mem::replace(&mut events, rest)) });
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
        if let Some((older, arrival)) = self.arrived(conn) {
            // Clients survive two refusals, not a failover: answer, and keep trying.
            self.accept(now, (older, &arrival), out);
            if let Some(link) = &mut self.link {
                link.unverified = arrival.tag;
            }
            self.write_opening(now, out);
        }
        if self.load_parked(conn) {
            return;
        }
        let Some(link) = self.link.as_mut().filter(|link| link.conn == conn) else { return };
        link.loading = None;
        let since = link.fault.map_or(now, |(since, _)| since);
        if now.since(since) >= self.pacing.store_wait_ms {
            return self.end_link(CloseReason::Fault, out);
        }
        link.fault = Some((since, now + LOAD_AGAIN_MS));
        rest(now, link, &self.pacing, out);
    }
}

/// Lets the connection's writer come back.
fn wake(link: &mut Link, out: &mut Vec<Output>) {
    if link.waiting {
        link.waiting = false;
        out.push(Output::Wake { conn: link.conn });
    }
}

/// There is nothing to send: a comment if it is time for one, and then the writer waits.
fn rest(now: Ms, link: &mut Link, pacing: &Pacing, out: &mut Vec<Output>) {
    if link.opened && link.keep_alive_due(pacing) <= now {
        link.last_write = now;
        out.push(Output::Send { conn: link.conn, frame: Frame::KeepAlive });
    }
    link.waiting = true;
}

/// The number of the visit after this one, as event ids can hold it.
fn next_visit(visit: u32) -> u32 {
    (visit + 1) % (1 << 24)
}

/// Whether the log shows another history at the cursor's position than the cursor was made from. A
/// position that was trimmed away shows nothing.
fn contradicts(page: &Page, tag: Option<u32>) -> bool {
    matches!((page.tag_at, tag), (Some(at), Some(tag)) if at != tag)
}
