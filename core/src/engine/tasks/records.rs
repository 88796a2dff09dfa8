//! The log of a task, as its owner knows it: its records, and which of them the store has.
//!
//! The store has what it confirmed, unless it was set back. So an owner keeps every record that a reader needs, and can write
//! it once more. What a task said of itself before it said something else nobody needs: it is forgotten, and the records behind
//! it move up if the store lost it.

use crate::engine::tasks::TASK_LOG;
use crate::store::{Append, Epoch, StoredEvent};
use crate::stream::{Chain, ChainKey, EventKind, Paced, Seq};
use crate::task::{Change, What};

/// A position of the log, and the running hash there.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Point {
    seq: Seq,
    chain: u64,
}

impl Point {
    fn start() -> Self {
        Self { seq: 0, chain: Chain::start(&TASK_LOG.0).0 }
    }
}

struct Record {
    /// Its number for the machine, which stays the same where the record moves up.
    number: u64,
    event: StoredEvent,
}

impl Record {
    /// Puts the record behind this point.
    fn put_behind(&mut self, end: &mut Point, key: Option<&ChainKey>) {
        let chain = Chain(end.chain).then(&self.event.frame, key);
        (self.event.seq, self.event.tag) = (end.seq + 1, chain.tag());
        *end = Point { seq: end.seq + 1, chain: chain.0 };
    }
}

/// See the module.
pub(in crate::engine) struct Records {
    epoch: Epoch,
    /// In order, without those that are forgotten.
    list: Vec<Record>,
    /// Where the log ends when it has all of them.
    end: Point,
    /// Where it ends in the store, as far as that has confirmed it, and where when it does what it is asked.
    stored: Point,
    asked: Point,
    /// How many records the machine knows to be stored.
    told: u64,
    bytes: usize,
}

impl Records {
    /// Of a task that is new.
    pub(super) fn new(epoch: Epoch) -> Self {
        let start = Point::start();
        Self { epoch, list: Vec::new(), end: start, stored: start, asked: start, told: 0, bytes: 0 }
    }

    /// Of a task that this process takes over: these are in its log, which ends here.
    pub(super) fn loaded(epoch: Epoch, events: Vec<StoredEvent>, head: Seq, chain: u64) -> Self {
        let end = Point { seq: head, chain };
        let bytes = events.iter().map(|event| event.frame.len()).sum();
        let list = events.into_iter().map(|event| Record { number: event.seq - 1, event }).collect();
        let mut records = Self { epoch, list, end, stored: end, asked: end, told: head, bytes };
        records.forget_superseded();
        records
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Bytes of all that is kept.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the store has nothing of the task.
    pub(super) fn is_new(&self) -> bool {
        self.told == 0
    }

    /// Whether the store has everything.
    pub(super) fn are_stored(&self) -> bool {
        self.stored == self.end
    }

    /// Whether the log ends here.
    pub(super) fn end_at(&self, seq: Seq, chain: u64) -> bool {
        self.end == Point { seq, chain }
    }

    /// The next record.
    pub(super) fn push(&mut self, number: u64, change: &Change, key: Option<&ChainKey>) {
        // What a task says of itself may be trimmed. Until it has its end, its log could not be read without one of the others.
        let kind = match change.what {
            What::Message(_) => EventKind::Progress,
            What::Ended(..) => EventKind::Terminal,
            _ => EventKind::Question,
        };
        let payload = change.encode();
        self.bytes += payload.len();
        let event = StoredEvent { seq: 0, kind, tag: 0, frame: payload[..].into() };
        let mut record = Record { number, event };
        record.put_behind(&mut self.end, key);
        self.list.push(record);
    }

    /// The number of the next record.
    pub(super) fn next_number(&self) -> u64 {
        self.list.last().map_or(0, |last| last.number + 1).max(self.told)
    }

    /// Everything that the store does not have. The retention counts if that has the task's end.
    pub(super) fn append(&mut self, retention_ms: u64) -> Append {
        self.asked = self.end;
        let missing = self.list.iter().filter(|record| record.event.seq > self.stored.seq);
        let events: Vec<StoredEvent> = missing.map(|record| record.event.clone()).collect();
        let has_end = events.iter().any(|event| event.kind == EventKind::Terminal);
        Append {
            first: self.stored.seq + 1,
            events,
            chain_before: self.stored.chain,
            chain: self.asked.chain,
            paced: has_end.then(|| Paced { retention_ms: Some(retention_ms), ..Paced::default() }),
            ..Append::default()
        }
    }

    /// The store has done what it was asked. Returns how many events it has more.
    pub(super) fn appended(&mut self) -> u64 {
        let count = self.asked.seq - self.stored.seq;
        self.stored = self.asked;
        self.forget_superseded();
        count
    }

    /// The number of the last record that the store has and the machine does not know of.
    pub(super) fn newly_stored(&mut self) -> Option<u64> {
        let last = self.list.iter().rfind(|record| record.event.seq <= self.stored.seq)?.number;
        (self.told <= last).then(|| {
            self.told = last + 1;
            last
        })
    }

    /// The store has nothing of the log any more.
    pub(super) fn lost(&mut self) {
        self.stored = Point::start();
    }

    /// The store's log ends here. The records behind that are to be written again. False where that is the log of somebody else.
    pub(super) fn restore(&mut self, head: Seq, chain: u64, key: Option<&ChainKey>) -> bool {
        let is_known = match self.list.iter().rfind(|record| record.event.seq <= head) {
            None => Point { seq: head, chain } == Point::start(),
            Some(last) if last.event.seq == head => last.event.tag == Chain(chain).tag(),
            // One that is forgotten: nobody else writes with this epoch.
            Some(_) => head < self.end.seq,
        };
        if is_known {
            self.stored = Point { seq: head, chain };
            self.end = self.stored;
            let behind = self.list.iter_mut().filter(|record| record.event.seq > head);
            behind.for_each(|record| record.put_behind(&mut self.end, key));
        }
        is_known
    }

    /// The store lacks records that the machine knows to be stored.
    pub(super) fn is_behind(&self) -> bool {
        let last = self.list.iter().rfind(|record| record.event.seq <= self.stored.seq);
        last.map_or(0, |last| last.number + 1) < self.told
    }

    /// The store does not take what it does not have.
    pub(super) fn retract(&mut self) {
        self.list.retain(|record| record.event.seq <= self.stored.seq);
        self.bytes = self.list.iter().map(|record| record.event.frame.len()).sum();
        self.end = self.stored;
    }

    fn forget_superseded(&mut self) {
        let is_said = |record: &Record| record.event.kind == EventKind::Progress;
        let is_stored = |record: &&Record| record.event.seq <= self.stored.seq && is_said(record);
        let Some(last) = self.list.iter().rfind(is_stored).map(|record| record.number) else { return };
        let bytes = &mut self.bytes;
        self.list.retain(|record| {
            let is_kept = !is_said(record) || record.number >= last;
            *bytes -= if is_kept { 0 } else { record.event.frame.len() };
            is_kept
        });
    }
}
