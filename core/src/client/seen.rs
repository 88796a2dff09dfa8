//! Which messages came before a resume.

use std::collections::{HashSet, VecDeque};

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// How many of the newest messages are remembered. What a server repeats follows the cursor, or an older one that was
/// kept because the connection broke before the newer was read.
const WINDOW: usize = 1_024;

/// The newest messages of a stream.
#[derive(Debug, Default)]
pub(super) struct Seen {
    before: Window,
    /// Ids of this connection.
    here: Window,
    resumed: bool,
    /// An id named two messages of one connection: ids tell nothing.
    ambiguous: bool,
}

#[derive(Debug, Default)]
struct Window {
    order: VecDeque<u64>,
    set: HashSet<u64>,
}

impl Window {
    /// Whether it is new.
    fn insert(&mut self, key: u64) -> bool {
        if !self.set.insert(key) {
            return false;
        }
        self.order.push_back(key);
        if self.order.len() > WINDOW
            && let Some(oldest) = self.order.pop_front()
        {
            self.set.remove(&oldest);
        }
        true
    }

    fn contains(&self, key: u64) -> bool {
        self.set.contains(&key)
    }

    fn clear(&mut self) {
        self.order.clear();
        self.set.clear();
    }
}

impl Seen {
    pub(super) fn resumed(&mut self) {
        self.resumed = true;
        self.here.clear();
    }

    /// Whether this message is to be dropped: it came before the resume, under this id and as it is. A server may
    /// give one id to all its messages, or count anew with each connection: those are delivered.
    pub(super) fn is_repeated(&mut self, id: &str, data: &str) -> bool {
        let id = xxh3_64(id.as_bytes());
        let message = xxh3_64_with_seed(data.as_bytes(), id);
        if !self.here.insert(id) {
            self.ambiguous = true;
        }
        if self.resumed && !self.ambiguous && self.before.contains(message) {
            return true;
        }
        self.before.insert(message);
        false
    }
}
