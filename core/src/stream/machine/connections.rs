//! Who reads the log: opening, resuming, taking over, closing, losing.

use super::{Arrival, KeptPaced, Machine, StreamRules, next_visit, wake};
use crate::Ms;
use crate::stream::cuts::Cut;
use crate::stream::event::Seq;
use crate::stream::io::{CloseReason, ConnectionId, Drain, Frame, Output, Outputs, Refused, RejectReason, Spread};
use crate::stream::link::{CloseAt, Link};
use crate::stream::pacing::{Paced, Pacing};

impl Machine {
    pub(super) fn open(&mut self, now: Ms, conn: ConnectionId, spread: Spread, out: &mut dyn Outputs) {
        if self.is_outdated(conn, out) {
            return;
        }
        let (seq, tag) = self.handed;
        let primed = (seq, self.visits, tag);
        self.visits = next_visit(self.visits);
        let link = self.link_from(now, conn, spread, primed);
        self.supersede_arrivals(self.arriving.partition_point(|arrival| arrival.conn < conn), out);
        self.take_over(now, link, out);
    }

    /// Whether a newer connection than this one has been the reader: then this one is not, whatever it waited for.
    fn is_outdated(&self, conn: ConnectionId, out: &mut dyn Outputs) -> bool {
        let is_outdated = self.has_had_newer(conn);
        if is_outdated {
            out.push(Output::Close { conn, why: CloseReason::Superseded });
            self.forget_if_done(out);
        }
        is_outdated
    }

    pub(super) fn link_from(&self, now: Ms, conn: ConnectionId, spread: Spread, primed: (Seq, u32, u32)) -> Link {
        let Pacing { coalesce_ms, first_comment_ms, .. } = self.pacing;
        let may_wait_ms = match self.rules {
            // Nothing is about to come on it.
            StreamRules { priming: true, standalone: true, .. } => 0,
            StreamRules { priming: true, .. } => coalesce_ms,
            StreamRules { .. } => first_comment_ms,
        };
        Link::new(conn, spread, primed, now, may_wait_ms)
    }

    pub(super) fn arrive(&mut self, mut arrival: Arrival, out: &mut dyn Outputs) {
        let Arrival { conn, after, .. } = arrival;
        if self.is_outdated(conn, out) {
            return;
        }
        if after > self.published() {
            out.push(Output::Reject { conn, why: RejectReason::Unknown });
            return self.forget_if_done(out);
        }
        // A reader in another process may have an event before this one knows that it is stored.
        if self.is_created && after <= self.durable {
            arrival.loading = true;
            out.push(Output::Load { conn, after, up_to: arrival.up_to });
        }
        self.create(out);
        let older = self.arriving.partition_point(|other| other.conn < conn);
        self.arriving.insert(older, arrival);
    }

    /// The store has told something: arrivals that waited for it go on.
    pub(super) fn load_arrivals(&mut self, out: &mut dyn Outputs) {
        if self.arriving.iter().all(|arrival| arrival.loading) {
            return;
        }
        let (is_created, durable, published) = (self.is_created, self.durable, self.published());
        self.arriving.retain_mut(|arrival| {
            let conn = arrival.conn;
            let is_known = arrival.loading || arrival.after <= published;
            if !is_known {
                out.push(Output::Reject { conn, why: RejectReason::Unknown });
            } else if is_created && !arrival.loading && arrival.after <= durable {
                arrival.loading = true;
                arrival.up_to = durable;
                out.push(Output::Load { conn, after: arrival.after, up_to: durable });
            }
            is_known
        });
        self.forget_if_done(out);
    }

    /// Takes the arrival of this connection off the list, with how many came before it.
    pub(super) fn arrived(&mut self, conn: ConnectionId) -> Option<(usize, Arrival)> {
        let at = self.arriving.iter().position(|arrival| arrival.conn == conn)?;
        Some((at, self.arriving.remove(at)))
    }

    /// The first `count` arrivals are older than a reader that is valid: it is the newest.
    pub(super) fn supersede_arrivals(&mut self, count: usize, out: &mut dyn Outputs) {
        for arrival in self.arriving.drain(..count) {
            out.push(Output::Close { conn: arrival.conn, why: CloseReason::Superseded });
        }
    }

    pub(super) fn accept(&mut self, now: Ms, (older, arrival): (usize, &Arrival), out: &mut dyn Outputs) {
        self.resumes = self.resumes.saturating_add(1);
        let visit = next_visit(arrival.visit.max(self.visits));
        self.visits = visit;
        let primed = (arrival.after, visit, arrival.tag.unwrap_or_default());
        let mut link = self.link_from(now, arrival.conn, arrival.spread, primed);
        link.tag = arrival.tag;
        match self.paced.hold_ms {
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
        self.tell_cut(out);
        out.push(Output::Accept { conn: arrival.conn });
        self.take_over(now, link, out);
    }

    /// The newest valid reader gets the stream; the one before is fenced (I4).
    pub(super) fn take_over(&mut self, now: Ms, mut link: Link, out: &mut dyn Outputs) {
        self.newest = link.conn;
        self.is_read_elsewhere = false;
        if self.draining.is_some() && self.may_drain() {
            link.close = Some(CloseAt { seq: self.published(), why: CloseReason::Drain });
            self.create(out);
        }
        if self.rules.standalone && self.is_created {
            // A parked connection needs its cursor too: it may be promoted, or dropped by a proxy.
            self.write_opening(now, out);
        }
        if let Some(old) = self.link.replace(link) {
            self.fence(old, out);
        }
    }

    fn fence(&mut self, old: Link, out: &mut dyn Outputs) {
        // One that was to be closed anyway is not kept.
        let park = self.rules.standalone && old.close.is_none();
        let superseded = if park { self.parked.replace(old) } else { Some(old) };
        if let Some(superseded) = superseded {
            out.push(Output::Close { conn: superseded.conn, why: CloseReason::Superseded });
        }
    }

    /// A reader in another process got the stream (I4). Nobody is parked here: when that reader dies, nobody here hears of it.
    /// A client that is still there comes back, and is the newest then.
    pub(super) fn taken(&mut self, out: &mut dyn Outputs) {
        self.is_read_elsewhere = true;
        self.tell_cut(out);
        for old in [self.link.take(), self.parked.take()].into_iter().flatten() {
            out.push(Output::Close { conn: old.conn, why: CloseReason::Superseded });
        }
        self.forget_if_done(out);
    }

    /// Whether a drain closes this stream's connections. Any stream may end a standalone connection
    /// at any time (W-055).
    pub(super) fn may_drain(&self) -> bool {
        self.rules.early_close || self.rules.standalone
    }

    /// Positions given to everything published so far.
    pub fn published(&self) -> Seq {
        self.durable + self.unconfirmed() as Seq
    }

    pub(super) fn close_requested(
        &mut self,
        retry_ms: Option<u32>,
        hold_ms: Option<u64>,
        out: &mut dyn Outputs,
    ) -> Result<(), Refused> {
        if !self.rules.early_close {
            return Err(Refused::NotResumable);
        }
        if self.is_ending() {
            return Err(Refused::Finished);
        }
        let mut paced = self.paced;
        paced.retry_ms = retry_ms.or(paced.retry_ms);
        paced.hold_ms = hold_ms.or(paced.hold_ms);
        // A reader may have come to another process without this one knowing yet.
        if self.link.is_none() {
            (paced.closes, paced.closed_at) = (paced.closes.saturating_add(1), self.published());
        }
        self.retry_ms = retry_ms.unwrap_or(self.retry_ms);
        if paced != self.paced {
            (self.paced, self.kept_paced) = (paced, KeptPaced::New);
            self.pump(out);
        }
        self.close_at_published(CloseReason::Asked, out);
        Ok(())
    }

    /// How the stream is paced from its beginning. Where the store has the log, readers elsewhere are to know it at once.
    pub(super) fn pace(&mut self, paced: Paced, out: &mut dyn Outputs) {
        let paced = self.permitted(paced);
        if paced != self.paced {
            self.set_paced(paced);
            self.kept_paced = if self.is_created { KeptPaced::New } else { KeptPaced::Waiting };
            self.pump(out);
        }
    }

    /// What concerns early closes is left out where there are none.
    pub(super) fn permitted(&self, paced: Paced) -> Paced {
        match self.rules.early_close && !self.stays {
            true => paced,
            false => Paced { hold_ms: None, max_connection_ms: None, max_connection_bytes: None, ..paced },
        }
    }

    pub(super) fn set_paced(&mut self, paced: Paced) {
        let Paced { retry_ms, max_connection_ms, max_connection_bytes, .. } = paced;
        self.retry_ms = retry_ms.unwrap_or(self.retry_ms);
        self.pacing.max_connection_ms = max_connection_ms.unwrap_or(self.pacing.max_connection_ms);
        self.pacing.max_connection_bytes = max_connection_bytes.unwrap_or(self.pacing.max_connection_bytes);
        self.paced = paced;
    }

    /// The process that writes the log has closed its readers, or paces them in another way.
    pub(super) fn paced(&mut self, paced: Paced, out: &mut dyn Outputs) {
        let is_close = paced.closes > self.paced.closes && !self.stays;
        self.set_paced(self.permitted(paced));
        if is_close {
            // A log that was set back may not have got as far again.
            self.close_at(paced.closed_at.min(self.published()), CloseReason::Asked, out);
        }
    }

    pub(super) fn close_at_published(&mut self, why: CloseReason, out: &mut dyn Outputs) {
        self.close_at(self.published(), why, out);
    }

    /// Closes the connections once all up to this position is sent.
    fn close_at(&mut self, seq: Seq, why: CloseReason, out: &mut dyn Outputs) {
        if let Some(link) = &mut self.link {
            // An earlier request keeps its place.
            link.close.get_or_insert(CloseAt { seq, why });
            // The connection is to be told where it comes back to.
            self.create(out);
        }
        // Nobody is to stay connected, so nobody is promoted either.
        if let Some(parked) = self.parked.take() {
            self.part(&parked, why, out);
        }
        self.wake(out);
    }

    /// Ends a connection whose client comes back, after the delay that it is told.
    pub(super) fn part(&self, link: &Link, why: CloseReason, out: &mut dyn Outputs) {
        let retry_ms = match why {
            CloseReason::Drain => link.spread_retry(self.retry_ms, self.draining.map_or(0, |drain| drain.spread_ms)),
            CloseReason::Limit => {
                let retry_ms = self.retry_ms.max(link.spread.floor_ms);
                link.spread_retry(retry_ms, retry_ms / 2)
            }
            _ => link.effective_retry_ms(self.retry_ms),
        };
        let conn = link.conn;
        if link.opened && link.retry_sent != Some(retry_ms) {
            out.push(Output::Send { conn, frame: Frame::Retry { ms: retry_ms } });
        }
        out.push(Output::Close { conn, why });
    }

    pub(super) fn drain(&mut self, drain: Drain, out: &mut dyn Outputs) {
        self.draining = Some(drain);
        // What was asked of this stream alone holds longer.
        self.retry_ms = drain.retry_ms.max(self.paced.retry_ms.unwrap_or_default());
        if self.may_drain() {
            self.close_at_published(CloseReason::Drain, out);
        }
    }

    pub(super) fn lost(&mut self, now: Ms, conn: ConnectionId, out: &mut dyn Outputs) {
        self.arriving.retain(|arrival| arrival.conn != conn);
        if self.parked.as_ref().is_some_and(|link| link.conn == conn) {
            self.parked = None;
        }
        if let Some(link) = self.link.as_ref().filter(|link| link.conn == conn) {
            let (age_ms, silent_ms) = (now.since(link.came), now.since(link.last_write));
            // One that is to be closed anyway is not cut.
            self.cut = (link.opened && link.close.is_none()).then_some(Cut { at: now, age_ms, silent_ms });
            self.promote(out);
        }
        self.forget_if_done(out);
    }

    /// The client has come back: so it was not the one that ended its last connection.
    fn tell_cut(&mut self, out: &mut dyn Outputs) {
        if let Some(cut) = self.cut.take() {
            out.push(Output::Cut(cut));
        }
    }

    pub(super) fn end_link(&mut self, why: CloseReason, out: &mut dyn Outputs) {
        if let Some(link) = &self.link {
            out.push(Output::Close { conn: link.conn, why });
        }
        self.promote(out);
        self.forget_if_done(out);
    }

    /// The parked connection, if there is one, takes the place of the reader. It goes on from its own
    /// position.
    pub(super) fn promote(&mut self, out: &mut dyn Outputs) {
        self.link = self.parked.take();
        self.wake(out);
    }

    /// Whether anybody reads the stream, or is about to.
    pub fn has_readers(&self) -> bool {
        self.link.is_some() || self.parked.is_some() || !self.arriving.is_empty()
    }

    /// Whether the end is stored and nobody is connected.
    pub fn is_done(&self) -> bool {
        self.finished && !self.has_readers()
    }

    pub(super) fn forget_if_done(&self, out: &mut dyn Outputs) {
        if self.is_done() {
            out.push(Output::Forget);
        }
    }

    pub(super) fn wake(&mut self, out: &mut dyn Outputs) {
        if let Some(link) = &mut self.link {
            wake(link, out);
        }
    }

    pub(super) fn tick(&mut self, now: Ms, out: &mut dyn Outputs) {
        let is_due = self.link.as_ref().is_some_and(|link| self.link_deadline(link) <= now);
        if let Some(link) = self.link.as_mut().filter(|_| is_due) {
            wake(link, out);
        }
        let is_due = self.parked.as_ref().is_some_and(|link| self.parked_deadline(link) <= now);
        if let Some(link) = self.parked.as_mut().filter(|_| is_due) {
            wake(link, out);
        }
    }

    /// The next time at which a waiting reader has something to do.
    pub(super) fn link_deadline(&self, link: &Link) -> Ms {
        if self.is_created { link.deadline(&self.pacing) } else { self.parked_deadline(link) }
    }

    /// The same for a parked connection, which gets comments only, and for one whose log the store has not yet.
    pub(super) fn parked_deadline(&self, link: &Link) -> Ms {
        if self.is_created {
            return link.parked_deadline(&self.pacing);
        }
        match link.comment_due {
            Some(comment) if self.is_writing => comment,
            comment => link.open_due.min(comment.unwrap_or(Ms::NEVER)),
        }
    }
}
