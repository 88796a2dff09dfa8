//! What goes into the log: publishing, the store's answers, the end.

use bytes::Bytes;

use super::{CREATE_AGAIN_MS, Ending, KeptPaced, Machine, wake};
use crate::Ms;
use crate::stream::event::{EventKind, NewEvent, Seq};
use crate::stream::io::{Output, Outputs, Refused};

impl Machine {
    pub(super) fn publish(&mut self, event: NewEvent, out: &mut dyn Outputs) -> Result<(), Refused> {
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
        self.unconfirmed_bytes += event.payload.len();
        self.queue.push_back(event);
        self.pump(out);
        Ok(())
    }

    /// Hands waiting events to the store, one append at a time: positions stay dense when one fails.
    pub(super) fn pump(&mut self, out: &mut dyn Outputs) {
        if self.is_writing || (self.queue.is_empty() && self.kept_paced != KeptPaced::New) {
            return;
        }
        let most = if self.singly > 0 { 1 } else { self.pacing.max_batch };
        self.asked = most.min(self.queue.len());
        self.append(out);
    }

    /// Lets the store create the log, for readers that come before its first event.
    pub(super) fn create(&mut self, out: &mut dyn Outputs) {
        if !self.is_created && !self.is_writing {
            self.append(out);
        }
    }

    fn append(&mut self, out: &mut dyn Outputs) {
        self.is_writing = true;
        let paced = matches!(self.kept_paced, KeptPaced::New | KeptPaced::Waiting).then(|| Box::new(self.paced));
        if paced.is_some() {
            self.kept_paced = KeptPaced::Asked;
        }
        out.push(Output::Append { first: self.durable + 1, paced });
    }

    pub(super) fn appended(&mut self, out: &mut dyn Outputs) {
        self.is_writing = false;
        if self.kept_paced == KeptPaced::Asked {
            self.kept_paced = KeptPaced::Stored;
        }
        if !std::mem::replace(&mut self.is_created, true)
            && let Some(parked) = &mut self.parked
        {
            wake(parked, out);
        }
        let stored = std::mem::take(&mut self.asked);
        self.durable += stored as Seq;
        self.singly = self.singly.saturating_sub(1);
        for event in self.queue.drain(..stored) {
            self.unconfirmed_bytes -= event.payload.len();
            if event.token != 0 {
                out.push(Output::Stored { token: event.token });
            }
        }
        self.pump(out);
        self.settle(out);
        self.wake(out);
        self.load_arrivals(out);
    }

    pub(super) fn append_failed(&mut self, now: Ms, out: &mut dyn Outputs) {
        self.is_writing = false;
        if self.kept_paced == KeptPaced::Asked {
            self.kept_paced = KeptPaced::Waiting;
        }
        match std::mem::take(&mut self.asked) {
            0 => {}
            1 => {
                if let Some(event) = self.queue.pop_front() {
                    self.lose(&event, out);
                }
            }
            several => self.singly = several,
        }
        self.pump(out);
        if !self.is_created && !self.is_writing {
            self.creation_failed(now, out);
        }
        self.settle(out);
        self.wake(out);
        self.load_arrivals(out);
    }

    /// Nothing can leave yet: readers wait, and the log is tried again with the next event or after a pause.
    fn creation_failed(&mut self, now: Ms, out: &mut dyn Outputs) {
        // Those at an event that is in no log go first.
        self.load_arrivals(out);
        for link in [&mut self.link, &mut self.parked].into_iter().flatten() {
            link.open_due = now + CREATE_AGAIN_MS;
        }
        let waiting: Vec<_> = self.arriving.iter().map(|arrival| arrival.conn).collect();
        waiting.into_iter().for_each(|conn| self.load_failed(now, conn, out));
    }

    /// The event behind the last confirmed position is in no log; those behind it move up.
    fn lose(&mut self, event: &NewEvent, out: &mut dyn Outputs) {
        self.singly = self.singly.saturating_sub(1);
        self.unconfirmed_bytes -= event.payload.len();
        let seq = self.durable + 1;
        if let Some(close) = self.link.as_mut().and_then(|link| link.close.as_mut())
            && close.seq >= seq
        {
            close.seq -= 1;
        }
        self.reopen_without(event.kind);
        out.push(Output::Unstored { token: event.token, seq, kind: event.kind });
    }

    pub(super) fn grown(&mut self, head: Seq, out: &mut dyn Outputs) {
        if let Some(link) = self.link.as_mut().filter(|link| head < link.sent) {
            // Its events may be written again, or others in their place.
            link.is_unverified = link.tag.is_some();
        }
        self.durable = self.durable.max(head);
        self.wake(out);
        self.load_arrivals(out);
    }

    pub(super) fn ended(&mut self, head: Seq, tail: Option<Bytes>, out: &mut dyn Outputs) {
        if self.finished && head >= self.durable {
            return;
        }
        self.durable = self.durable.min(head);
        self.asked = 0;
        std::mem::take(&mut self.queue).iter().for_each(|event| self.lose(event, out));
        self.ending = tail.map_or(Ending::Answered, Ending::Synthesized);
        self.finished = true;
        self.is_writing = false;
        self.wake(out);
        self.load_arrivals(out);
        self.forget_if_done(out);
    }

    /// A response is lost, so neither the response behind it nor an end that was decided can be the end:
    /// that has to tell of the loss.
    pub(super) fn reopen_without(&mut self, kind: EventKind) {
        match kind {
            EventKind::Terminal => self.ending = Ending::Open,
            EventKind::Answer if matches!(self.ending, Ending::Synthesized(_)) => self.ending = Ending::Open,
            EventKind::Answer => {
                if let Some(last) = self.queue.back_mut().filter(|last| last.kind == EventKind::Terminal) {
                    last.kind = EventKind::Answer;
                    self.ending = Ending::Open;
                }
            }
            EventKind::Progress | EventKind::Question => {}
        }
    }

    pub(super) fn terminate(&mut self, payload: Bytes, out: &mut dyn Outputs) -> Result<(), Refused> {
        if self.is_ending() {
            return Err(Refused::Finished);
        }
        self.ending = Ending::Synthesized(payload);
        self.settle(out);
        self.wake(out);
        Ok(())
    }

    /// The end counts once everything published before it is stored.
    pub(super) fn settle(&mut self, out: &mut dyn Outputs) {
        if self.finished || self.is_writing || self.unconfirmed() > 0 {
            return;
        }
        match &self.ending {
            Ending::Open => return,
            Ending::Answered => {}
            Ending::Synthesized(tail) => out.push(Output::Finish { tail: tail.clone() }),
        }
        self.is_created = true;
        self.finished = true;
        self.forget_if_done(out);
    }
}
