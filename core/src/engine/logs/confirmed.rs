//! Appends that the store confirmed lately, in case it loses them in a failover.

use std::collections::{BTreeMap, BTreeSet};

use crate::Ms;
use crate::protocol::StreamNonce;
use crate::store::Append;

/// How long things are kept that a store may lose, in milliseconds: longer than a failover takes.
pub(crate) const FAILOVER_MS: u64 = 60_000;
/// How many bytes of appends an engine keeps.
pub(crate) const FAILOVER_BYTES: usize = 16 << 20;

/// A stream, with the number of its session.
pub(crate) type Key = (u64, StreamNonce);

/// The last append of each stream that the store confirmed lately. The oldest go first.
#[derive(Default)]
pub(crate) struct Confirmed {
    appends: BTreeMap<Key, (Ms, Append)>,
    by_time: BTreeSet<(Ms, Key)>,
    bytes: usize,
}

impl Confirmed {
    pub(crate) fn remember(&mut self, now: Ms, key: Key, append: Append) {
        self.remove(key);
        self.bytes += bytes_of(&append);
        self.by_time.insert((now, key));
        self.appends.insert(key, (now, append));
    }

    /// Forgets what has been kept for too long, or is too much. A log whose retention is over must not come back.
    pub(crate) fn trim(&mut self, now: Ms, retention_ms: u64) {
        let remembered_ms = FAILOVER_MS.min(retention_ms);
        while let Some((at, key)) = self.by_time.first().copied() {
            if at + remembered_ms > now && self.bytes <= FAILOVER_BYTES {
                return;
            }
            self.remove(key);
        }
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<Append> {
        let (at, append) = self.appends.remove(&key)?;
        self.by_time.remove(&(at, key));
        self.bytes -= bytes_of(&append);
        Some(append)
    }

    /// Forgets what is kept of a session.
    pub(crate) fn forget(&mut self, number: u64) {
        self.of(number).into_keys().for_each(|nonce| drop(self.remove((number, nonce))));
    }

    /// What is kept of the session with this number.
    pub(crate) fn of(&self, number: u64) -> BTreeMap<StreamNonce, Append> {
        let all = (number, StreamNonce([0; 12]))..=(number, StreamNonce([0xff; 12]));
        self.appends.range(all).map(|((_, nonce), (_, append))| (*nonce, append.clone())).collect()
    }
}

fn bytes_of(append: &Append) -> usize {
    let frames: usize = append.events.iter().map(|event| event.frame.len()).sum();
    size_of::<Append>() + frames + append.about.len() + append.end.as_ref().map_or(0, |end| end.len())
}
