//! How the log is read: what a connection gets when it can take more.

use super::{Ending, LOAD_AGAIN_MS, Machine, contradicts, rest};
use crate::Ms;
use crate::stream::event::{Page, Seq};
use crate::stream::io::{CloseReason, ConnectionId, Frame, Output, Outputs, RejectReason};
use crate::stream::link::{CloseAt, Link};

impl Machine {
    pub(super) fn ready(&mut self, now: Ms, conn: ConnectionId, out: &mut dyn Outputs) {
        if self.connection() == Some(conn) {
            self.advance(now, out);
        } else if let Some(mut link) = self.parked.take_if(|link| link.conn == conn) {
            // A parked connection gets its first bytes and comments, no events.
            if self.is_created {
                self.open_bytes(now, &mut link, false, out);
                rest(now, &mut link, &self.pacing, out);
            } else {
                self.await_log(now, &mut link, out);
            }
            self.parked = Some(link);
        }
    }

    /// The store has no log yet, so no id may leave. It is asked for one when no event has come; where that takes a while,
    /// a comment tells the client that it was heard.
    fn await_log(&mut self, now: Ms, link: &mut Link, out: &mut dyn Outputs) {
        if link.open_due <= now {
            link.comment_due.get_or_insert(now + self.pacing.first_comment_ms);
        }
        if link.comment_due.is_some_and(|due| due <= now) {
            // The next one is a keep-alive.
            link.wrote(now);
            link.comment_due = Some(link.keep_alive_due(&self.pacing));
            out.push(Output::Send { conn: link.conn, frame: Frame::KeepAlive });
        }
        link.waiting = true;
        if link.open_due <= now {
            self.create(out);
        }
    }

    /// Gives the reader what is due, in wire order: first bytes, events, end or close, comment.
    pub(super) fn advance(&mut self, now: Ms, out: &mut dyn Outputs) {
        if let Some(mut link) = self.link.take_if(|_| !self.is_created) {
            self.await_log(now, &mut link, out);
            self.link = Some(link);
            return;
        }
        let Some(link) = &mut self.link else { return };
        let conn = link.conn;
        link.waiting = false;
        if link.loading.is_some() {
            return rest(now, link, &self.pacing, out);
        }
        if link.close.is_none() && self.rules.early_close {
            let max_bytes = self.pacing.max_connection_bytes;
            if link.hold_due <= now {
                link.close = Some(CloseAt { seq: self.durable, why: CloseReason::Polled });
            } else if link.age_due(&self.pacing) <= now || (max_bytes != 0 && link.bytes >= max_bytes) {
                link.close = Some(CloseAt { seq: link.sent, why: CloseReason::Limit });
            }
        }
        let limit = link.close.map_or(self.durable, |close| close.seq.min(self.durable));
        // A cursor that the store could not check is checked when it can be, also where nothing follows it.
        let wants_page = link.sent < limit || link.is_unverified;
        if !wants_page {
            link.fault = None;
        }
        let can_load = link.fault.is_none_or(|(_, again)| again <= now);
        let pending = link.sent < limit || self.finished || link.close.is_some();
        if !link.opened && !pending && now < link.open_due {
            link.waiting = true;
            return;
        }
        self.write_opening(now, out);
        let Some(link) = &mut self.link else { return };
        if wants_page && can_load {
            link.loading = Some(limit);
            link.waiting = true;
            out.push(Output::Load { conn, after: link.sent, up_to: limit });
        } else if link.sent >= limit {
            self.finish_turn(now, out);
        } else {
            rest(now, link, &self.pacing, out);
        }
    }

    pub(super) fn write_opening(&mut self, now: Ms, out: &mut dyn Outputs) {
        if let Some(mut link) = self.link.take() {
            let follows = link.sent < self.durable || self.finished;
            self.open_bytes(now, &mut link, follows, out);
            self.link = Some(link);
        }
    }

    /// The first bytes of a connection: its cursor, or a comment where priming is not allowed and
    /// nothing `follows` at once.
    pub(super) fn open_bytes(&self, now: Ms, link: &mut Link, follows: bool, out: &mut dyn Outputs) {
        if link.opened {
            return;
        }
        link.opened = true;
        link.wrote(now);
        let conn = link.conn;
        let frame = if self.rules.priming {
            let (seq, visit, tag) = link.primed;
            let retry_ms = link.effective_retry_ms(self.retry_ms);
            link.retry_sent = Some(retry_ms);
            Frame::Priming { seq, visit, tag, retry_ms }
        } else if follows {
            return;
        } else {
            Frame::KeepAlive
        };
        out.push(Output::Send { conn, frame });
    }

    /// Everything due is sent: end the connection, or write a comment, or rest.
    pub(super) fn finish_turn(&mut self, now: Ms, out: &mut dyn Outputs) {
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

    pub(super) fn page(&mut self, now: Ms, conn: ConnectionId, page: Page, out: &mut dyn Outputs) {
        let arriving = self.arriving.iter().find(|arrival| arrival.conn == conn);
        let arriving = arriving.map(|arrival| (arrival.up_to, arrival.after, arrival.tag));
        let reading = self.link.as_ref().filter(|link| link.conn == conn);
        let reading = reading.and_then(|link| Some((link.loading?, link.sent, link.tag)));
        let Some((asked, after, tag)) = arriving.or(reading) else {
            self.load_parked(conn);
            return;
        };
        let is_other = contradicts(&page, tag);
        let asked = asked.min(self.durable);
        if page.head < asked && !is_other {
            // The store was set back. The process that writes the log writes again what is missing.
            return self.load_failed(now, conn, out);
        }
        if let Some((older, arrival)) = self.arrived(conn) {
            if is_other || after > self.published() {
                out.push(Output::Reject { conn, why: RejectReason::Unknown });
                return self.forget_if_done(out);
            }
            if self.finished && after == self.durable && self.ending == Ending::Answered {
                out.push(Output::Reject { conn, why: RejectReason::Complete });
                return self.forget_if_done(out);
            }
            self.accept(now, (older, &arrival), out);
        }
        let Some(link) = self.link.as_mut().filter(|link| link.conn == conn) else { return };
        link.loading = None;
        link.waiting = false;
        link.fault = None;
        let was_unverified = std::mem::take(&mut link.is_unverified);
        if is_other {
            out.push(Output::Reject { conn, why: RejectReason::Unknown });
            self.promote(out);
            return self.forget_if_done(out);
        }
        if was_unverified && asked <= link.sent {
            // The cursor was checked, nothing was read: what came meanwhile is next.
            return self.advance(now, out);
        }
        self.deliver(now, asked, page, out);
    }

    /// An answer of the store came too late for a connection that was parked meanwhile; when it is
    /// promoted, it asks again.
    pub(super) fn load_parked(&mut self, conn: ConnectionId) -> bool {
        let Some(parked) = self.parked.as_mut().filter(|link| link.conn == conn) else { return false };
        parked.loading = None;
        true
    }

    /// Hands over what the store holds up to the position that it was `asked` for.
    pub(super) fn deliver(&mut self, now: Ms, asked: Seq, page: Page, out: &mut dyn Outputs) {
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
        if asked > link.sent || !events.is_empty() {
            // Something follows, so that it leaves together with the first bytes.
            self.write_opening(now, out);
        }
        let Some(link) = &mut self.link else { return };
        if events.is_empty() && asked > link.sent {
            // Nothing is left of what was asked for. Waiting for it would never end.
            out.push(Output::Send { conn, frame: Frame::Gap { first: link.sent + 1, count: asked - link.sent } });
            (link.sent, link.tag) = (asked, None);
            link.wrote(now);
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
            (link.sent, link.tag) = (last.seq, Some(last.tag));
            link.wrote(now);
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

    pub(super) fn load_failed(&mut self, now: Ms, conn: ConnectionId, out: &mut dyn Outputs) {
        if let Some((older, arrival)) = self.arrived(conn) {
            // Clients survive two refusals, not a failover: answer, and keep trying.
            self.accept(now, (older, &arrival), out);
            if let Some(link) = &mut self.link {
                link.is_unverified = arrival.tag.is_some();
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
