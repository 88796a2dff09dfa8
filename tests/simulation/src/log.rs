//! A log of the simulated store.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use tailrope_core::Ms;
use tailrope_core::protocol::RequestId;
use tailrope_core::store::{LogPage, Owner, ReadLimit, StreamKey};
use tailrope_core::stream::{Chain, EventKind, Paced, Page, Seq, StoredEvent};

#[derive(Debug)]
pub(crate) struct Log {
    /// Positions `low` to the head.
    events: VecDeque<StoredEvent>,
    /// Events that outlived the trimmed prefix.
    pinned: VecDeque<StoredEvent>,
    settled: Vec<Seq>,
    low: Seq,
    low_tag: u32,
    /// What each append made of it; the last is what it is.
    versions: Vec<Version>,
    pub(crate) about: Bytes,
    pub(crate) readers: u64,
    /// The store objects at which they attached.
    pub(crate) followers: BTreeSet<usize>,
    /// With which step the last reader came to a store object, and the last close of readers elsewhere.
    pub(crate) came: BTreeMap<usize, u64>,
    pub(crate) closed: Option<u64>,
    /// The test's name for the stream.
    pub(crate) name: String,
}

/// Where a log stands after an append.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    /// When the append was done.
    pub(crate) at: Ms,
    pub(crate) head: Seq,
    pub(crate) chain: u64,
    /// By the wall clock of its owner.
    pub(crate) finished: Option<Ms>,
    pub(crate) tail: Option<Bytes>,
    pub(crate) paced: Paced,
}

impl Version {
    /// Whether a log that stands there holds what one that stands here does: the same events, and the same end.
    pub(crate) fn holds(&self, other: &Self) -> bool {
        let of = |version: &Self| (version.head, version.chain, version.finished.is_some(), version.tail.clone());
        of(self) == of(other)
    }
}

impl Log {
    pub(crate) fn new(key: &StreamKey, about: &Bytes, at: Ms) -> Self {
        let chain = Chain::start(&key.nonce.0);
        Self {
            events: VecDeque::new(),
            pinned: VecDeque::new(),
            settled: Vec::new(),
            low: 1,
            low_tag: chain.tag(),
            versions: vec![Version {
                at,
                head: 0,
                chain: chain.0,
                finished: None,
                tail: None,
                paced: Paced::default(),
            }],
            about: about.clone(),
            readers: 0,
            followers: BTreeSet::new(),
            came: BTreeMap::new(),
            closed: None,
            name: name_of(about),
        }
    }

    pub(crate) fn now(&self) -> &Version {
        self.versions.last().expect("a log begins with a version")
    }

    pub(crate) fn head(&self) -> Seq {
        self.now().head
    }

    /// Whether a reader that is at this store object, and came there with this step, came before the last close of readers elsewhere.
    pub(crate) fn is_closed_at(&self, observer: usize, came: u64) -> bool {
        self.closed.is_some_and(|closed| self.came.get(&observer).is_some_and(|last| came.max(*last) < closed))
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.now().finished.is_some()
    }

    /// For [`Usage`](tailrope_core::store::Usage): events, and their bytes.
    pub(crate) fn held(&self) -> (u64, u64) {
        let held = self.pinned.iter().chain(&self.events);
        held.fold((0, 0), |(events, bytes), event| (events + 1, bytes + event.frame.len() as u64))
    }

    pub(crate) fn add(&mut self, events: &[StoredEvent], version: Version) {
        self.events.extend(events.iter().cloned());
        self.versions.push(version);
    }

    /// The store loses what was done after this time. False where that is the whole log.
    pub(crate) fn set_back_to(&mut self, time: Ms) -> bool {
        let kept = self.versions.iter().take_while(|version| version.at <= time).count();
        self.keep(kept);
        kept > 0
    }

    /// The store loses the last appends, but not all.
    pub(crate) fn set_back_by(&mut self, appends: usize) -> bool {
        self.keep(self.versions.len().saturating_sub(appends));
        true
    }

    /// Goes back to an older version, but not to what was trimmed.
    fn keep(&mut self, versions: usize) {
        let trimmed = self.versions.iter().take_while(|version| version.head + 1 < self.low).count();
        let closes = self.now().paced.closes;
        self.versions.truncate(versions.max(trimmed + 1));
        self.closed = self.closed.filter(|_| self.now().paced.closes == closes);
        let head = self.head();
        self.events.retain(|event| event.seq <= head);
        self.pinned.retain(|event| event.seq <= head);
    }

    pub(crate) fn tag_at(&self, seq: Seq) -> Option<u32> {
        if seq + 1 == self.low {
            return Some(self.low_tag);
        }
        let at = usize::try_from(seq.checked_sub(self.low)?).ok()?;
        self.events.get(at).map(|event| event.tag)
    }

    pub(crate) fn page(&self, owner: Option<Owner>, after: Seq, limit: ReadLimit) -> LogPage {
        let mut page = Page { events: Vec::new(), head: self.head(), low: self.low, tag_at: self.tag_at(after) };
        let mut bytes = 0;
        let wanted = self.pinned.iter().chain(&self.events);
        for event in wanted.filter(|event| event.seq > after && event.seq <= limit.up_to) {
            let is_full = page.events.len() >= limit.events || (bytes > 0 && bytes + event.frame.len() > limit.bytes);
            if is_full {
                break;
            }
            bytes += event.frame.len();
            page.events.push(event.clone());
        }
        let Version { chain, ref tail, paced, .. } = *self.now();
        let (is_finished, tail, readers) = (self.is_finished(), tail.clone(), self.readers);
        LogPage { page, chain, is_finished, tail, paced, readers, owner }
    }

    /// A question was answered. Returns it if it was kept for that alone.
    pub(crate) fn settle(&mut self, seq: Seq) -> Vec<StoredEvent> {
        self.settled.push(seq);
        let is_it = |event: &StoredEvent| event.seq == seq && event.kind == EventKind::Question;
        let (settled, pinned): (Vec<_>, Vec<_>) = self.pinned.drain(..).partition(is_it);
        self.pinned = pinned.into();
        settled
    }

    /// By prefix, but for what is pinned, which yields last; the newest stays. Returns what went.
    pub(crate) fn trim(&mut self, max: usize) -> Vec<StoredEvent> {
        let mut trimmed = Vec::new();
        while self.events.len() + self.pinned.len() > max {
            if self.events.len() > 1 {
                let Some(event) = self.events.pop_front() else { break };
                (self.low, self.low_tag) = (event.seq + 1, event.tag);
                let is_open = event.kind == EventKind::Question && !self.settled.contains(&event.seq);
                if is_open || event.kind == EventKind::Terminal {
                    self.pinned.push_back(event);
                } else {
                    trimmed.push(event);
                }
            } else if let Some(event) = self.pinned.pop_front() {
                trimmed.push(event);
            } else {
                break;
            }
        }
        trimmed
    }
}

/// The test's name for the stream that is opened with this.
fn name_of(about: &Bytes) -> String {
    let requests = RequestId::decode_all(about).unwrap_or_default();
    requests.first().map_or_else(|| "standalone".to_owned(), |id| format!("r{}", id.as_text()))
}
