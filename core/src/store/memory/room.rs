//! The bounds of the memory store: of a stream, of a session, and of everything.

use super::log::Log;
use super::{MemoryStore, SHARDS, SessionLogs, Shard, add, lock, seconds, subtract};
use crate::Ms;
use crate::protocol::StreamNonce;
use crate::store::{Append, StoreError, StreamKey};
use crate::stream::StoredEvent;
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

/// After nothing could be freed, no log is looked at again for so long.
const FULL_MS: u64 = 1_000;
/// What an event costs besides its frame: the entry, the reference counts, the allocator.
pub(super) const EVENT_OVERHEAD: usize = 56;
/// What a log costs without events: itself, its names, its places in the maps.
pub(super) const LOG_OVERHEAD: usize = 384;

/// What events cost.
pub(super) fn cost(events: &[StoredEvent]) -> usize {
    events.iter().map(|event| event.frame.len() + EVENT_OVERHEAD).sum()
}

impl MemoryStore {
    /// Counts the bytes of an append, and makes room for them. Returns them, to be [freed](Self::freed)
    /// when they are counted with their log.
    ///
    /// # Errors
    /// [`StoreError::Full`]; then they are not counted.
    pub(super) fn reserve(&self, now: Ms, key: &StreamKey, append: &Append) -> Result<usize, StoreError> {
        let is_new = append.first == 1 && self.known(key).is_none();
        let log = if is_new { LOG_OVERHEAD + append.about.len() } else { 0 };
        let is_end_alone = append.events.is_empty() && append.end.is_some();
        let bytes = if is_end_alone { 0 } else { log + cost(&append.events) };
        add(&self.tally.bytes, bytes);
        // An end always finds room, and so does what needs none.
        if bytes == 0 || self.make_room(now) {
            return Ok(bytes);
        }
        self.freed(bytes);
        Err(StoreError::Full { max: self.limits.max_bytes })
    }

    /// Whether an append finds room.
    pub(in crate::store) fn check_room(&self, now: Ms, key: &StreamKey, append: &Append) -> Result<(), StoreError> {
        self.reserve(now, key, append).map(|bytes| self.freed(bytes))
    }

    /// Brings a log that was written back into its own bounds.
    pub(super) fn trim_stream(&self, now: Ms, logs: &mut SessionLogs, nonce: StreamNonce) {
        let Some(log) = logs.streams.get_mut(&nonce) else { return };
        let oldest = seconds(now).saturating_sub(u32::try_from(self.limits.max_age_ms / 1_000).unwrap_or(u32::MAX));
        let is_over = |log: &Log| {
            log.events.len() + log.pinned.len() > self.limits.max_events_per_stream
                || log.bytes > self.limits.max_bytes_per_stream
                || (log.events.len() > 1 && log.events.front().is_some_and(|entry| entry.at < oldest))
        };
        let mut freed = 0;
        while is_over(log) {
            let Some(bytes) = self.free_one(log) else { break };
            freed += bytes;
        }
        logs.bytes -= freed;
        self.freed(freed);
    }

    /// Brings a session back into its bound: its finished streams whose retention ends first go first, then the oldest
    /// events of its largest streams.
    pub(super) fn trim_session(&self, shard: &mut Shard, written: &StreamKey) {
        let max = self.limits.max_bytes_per_session;
        let Some(logs) = shard.sessions.get(&written.session).filter(|logs| logs.bytes > max) else { return };
        let finished = logs.streams.iter().filter_map(|(nonce, log)| Some((log.finished?, *nonce, log.bytes)));
        let mut finished: Vec<_> = finished.filter(|(_, nonce, _)| *nonce != written.nonce).collect();
        finished.sort_unstable();
        // An eighth more than needed, so that the next events do not look through all streams again.
        let mut over = logs.bytes - (max - max / 8);
        for (_, nonce, bytes) in finished {
            self.remove(shard, &StreamKey { session: Arc::clone(&written.session), nonce });
            over = over.saturating_sub(bytes);
            if over == 0 {
                return;
            }
        }
        let Some(logs) = shard.sessions.get_mut(&written.session) else { return };
        while logs.bytes > max {
            let largest = logs.streams.values_mut().filter(|log| log.can_free()).max_by_key(|log| log.bytes);
            let Some(log) = largest else { return };
            let freed = self.free_quarter(log);
            logs.bytes -= freed;
            self.freed(freed);
        }
    }

    fn is_over(&self, max: usize) -> bool {
        self.tally.bytes.load(Ordering::Relaxed) > max as u64
    }

    /// Brings the store back into its bound, if it is over it. No lock may be held. Whether it fits.
    ///
    /// An eighth more than needed goes, so that the next events do not look through the logs again.
    pub(super) fn make_room(&self, now: Ms) -> bool {
        let max = self.limits.max_bytes;
        if !self.is_over(max) {
            return true;
        }
        if self.drop_finished(max - max / 8) || now.0 < self.full_until.load(Ordering::Relaxed) {
            return !self.is_over(max);
        }
        while self.is_over(max - max / 8) {
            if !self.trim_running(max - max / 8) {
                break;
            }
        }
        let fits = !self.is_over(max);
        if !fits {
            self.full_until.store((now + FULL_MS).0, Ordering::Relaxed);
        }
        fits
    }

    /// Frees finished logs, those whose retention ends first, until `max` is kept. Whether it is.
    fn drop_finished(&self, max: usize) -> bool {
        while self.is_over(max) {
            let oldest = (0..SHARDS)
                .filter_map(|at| lock(&self.shards[at]).finished.first_key_value().map(|(place, _)| (*place, at)))
                .min();
            let Some((_, at)) = oldest else { return false };
            let mut shard = lock(&self.shards[at]);
            if let Some((_, key)) = shard.finished.pop_first() {
                self.remove(&mut shard, &key);
            }
        }
        true
    }

    /// Frees the oldest events of logs that have no end, a quarter of each log, until `max` is kept. Whether any went.
    fn trim_running(&self, max: usize) -> bool {
        let mut logs = Vec::new();
        for (at, shard) in self.shards.iter().enumerate() {
            let shard = lock(shard);
            for (session, of_session) in &shard.sessions {
                let trimmable = of_session.streams.iter().filter(|(_, log)| log.can_free());
                logs.extend(trimmable.map(|(nonce, log)| (log.oldest(), at, Arc::clone(session), *nonce)));
            }
        }
        logs.sort_unstable_by_key(|(oldest, ..)| *oldest);
        let mut has_freed = false;
        for (_, at, session, nonce) in logs {
            if !self.is_over(max) {
                break;
            }
            let mut shard = lock(&self.shards[at]);
            let Some(of_session) = shard.sessions.get_mut(&session) else { continue };
            let Some(log) = of_session.streams.get_mut(&nonce) else { continue };
            let freed = self.free_quarter(log);
            of_session.bytes -= freed;
            self.freed(freed);
            has_freed |= freed > 0;
        }
        has_freed
    }

    /// Frees a quarter of a log, at least one event. Returns the bytes.
    fn free_quarter(&self, log: &mut Log) -> usize {
        let goal = log.bytes / 4;
        let mut freed = 0;
        while let Some(bytes) = self.free_one(log) {
            freed += bytes;
            if freed > 0 && freed >= goal {
                break;
            }
        }
        freed
    }

    /// Frees the oldest event that may go: pinned ones yield last, the newest event never does.
    /// Returns the bytes, 0 when the event is pinned from now on; none when nothing may go.
    fn free_one(&self, log: &mut Log) -> Option<usize> {
        if log.events.len() > 1 {
            add(&self.tally.trimmed, 1);
            let freed = log.trim_one();
            subtract(&self.tally.events, usize::from(freed > 0));
            return Some(freed);
        }
        let (_, entry) = log.pinned.pop_front()?;
        subtract(&self.tally.events, 1);
        log.bytes -= entry.cost();
        Some(entry.cost())
    }
}
