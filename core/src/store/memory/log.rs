//! A log in memory: its events, which of them go first, and what is read of it. It knows no bounds.

use std::collections::VecDeque;

use bytes::Bytes;

use super::inbox::Posted;
use super::room::{EVENT_OVERHEAD, LOG_OVERHEAD};
use super::{Place, SessionLogs};
use crate::store::{LogPage, Owner, ReadLimit, StreamKey};
use crate::stream::{Chain, EventKind, Paced, Page, Seq, StoredEvent};
use crate::sync::Arc;

/// An event.
pub(super) struct Logged {
    pub(super) frame: Arc<[u8]>,
    pub(super) tag: u32,
    /// Seconds on the engine's clock.
    pub(super) at: u32,
    pub(super) kind: EventKind,
    /// A terminal, or a question without an answer: it outlives the trimmed prefix.
    pub(super) pinned: bool,
}

impl Logged {
    pub(super) fn new(event: &StoredEvent, at: u32) -> Self {
        let StoredEvent { kind, tag, .. } = *event;
        let pinned = matches!(kind, EventKind::Question | EventKind::Terminal);
        Self { frame: Arc::clone(&event.frame), tag, at, kind, pinned }
    }

    pub(super) fn cost(&self) -> usize {
        self.frame.len() + EVENT_OVERHEAD
    }

    fn stored(&self, seq: Seq) -> StoredEvent {
        StoredEvent { seq, kind: self.kind, tag: self.tag, frame: Arc::clone(&self.frame) }
    }
}

/// The log of a stream.
pub(super) struct Log {
    /// Positions `low` to `head`.
    pub(super) events: VecDeque<Logged>,
    /// Events that outlived the trimmed prefix.
    pub(super) pinned: VecDeque<(Seq, Logged)>,
    pub(super) low: Seq,
    /// The tag at `low - 1`.
    pub(super) low_tag: u32,
    pub(super) chain: u64,
    pub(super) bytes: usize,
    pub(super) finished: Option<Place>,
    pub(super) tail: Option<Bytes>,
    pub(super) about: Bytes,
    pub(super) paced: Paced,
    pub(super) readers: u64,
    /// None where the owner created the log.
    pub(super) posted: Option<Posted>,
}

impl Log {
    pub(super) fn new(key: &StreamKey, about: Bytes) -> Self {
        let chain = Chain::start(&key.nonce.0);
        Self {
            events: VecDeque::new(),
            pinned: VecDeque::new(),
            low: 1,
            low_tag: chain.tag(),
            chain: chain.0,
            bytes: LOG_OVERHEAD + about.len(),
            finished: None,
            tail: None,
            about,
            paced: Paced::default(),
            readers: 0,
            posted: None,
        }
    }

    pub(super) fn head(&self) -> Seq {
        self.low + self.events.len() as Seq - 1
    }

    /// Whether anything may be freed: the newest event always stays.
    pub(super) fn can_free(&self) -> bool {
        self.events.len() > 1 || !self.pinned.is_empty()
    }

    /// When its oldest event was stored, in seconds.
    pub(super) fn oldest(&self) -> u32 {
        self.pinned.front().map(|(_, entry)| entry).or_else(|| self.events.front()).map_or(0, |entry| entry.at)
    }

    pub(super) fn tag_at(&self, seq: Seq) -> Option<u32> {
        if seq + 1 == self.low {
            return Some(self.low_tag);
        }
        let at = usize::try_from(seq.checked_sub(self.low)?).ok()?;
        self.events.get(at).map(|entry| entry.tag)
    }

    pub(super) fn entry_mut(&mut self, seq: Seq) -> Option<&mut Logged> {
        let at = usize::try_from(seq.checked_sub(self.low)?).ok()?;
        self.events.get_mut(at)
    }

    /// The events after a position, and where the log stands.
    pub(super) fn page(&self, logs: &SessionLogs, after: Seq, limit: ReadLimit) -> LogPage {
        let mut page = Page { events: Vec::new(), head: self.head(), low: self.low, tag_at: self.tag_at(after) };
        let mut bytes = 0;
        let mut take = |seq: Seq, entry: &Logged| {
            let full = page.events.len() >= limit.events || (bytes > 0 && bytes + entry.frame.len() > limit.bytes);
            if !full {
                bytes += entry.frame.len();
                page.events.push(entry.stored(seq));
            }
            !full
        };
        let pinned = self.pinned.iter().filter(|(seq, _)| *seq > after && *seq <= limit.up_to);
        let mut room = pinned.fold(true, |room, (seq, entry)| room && take(*seq, entry));
        let start = (after + 1).max(self.low);
        for seq in start..=limit.up_to.min(self.head()) {
            let Some(entry) = usize::try_from(seq - self.low).ok().and_then(|at| self.events.get(at)) else { break };
            room = room && take(seq, entry);
            if !room {
                break;
            }
        }
        LogPage {
            page,
            chain: self.chain,
            is_finished: self.finished.is_some(),
            tail: self.tail.clone(),
            paced: self.paced,
            readers: self.readers,
            owner: logs.is_released.then_some(Owner { epoch: logs.epoch, unseen_ms: u64::MAX }),
        }
    }

    /// Moves `low` past the oldest event. Returns the bytes that this freed.
    pub(super) fn trim_one(&mut self) -> usize {
        let Some(entry) = self.events.pop_front() else { return 0 };
        let seq = self.low;
        self.low += 1;
        self.low_tag = entry.tag;
        if entry.pinned {
            self.pinned.push_back((seq, entry));
            return 0;
        }
        let cost = entry.cost();
        self.bytes -= cost;
        cost
    }
}
