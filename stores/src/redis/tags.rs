//! The names of keys and channels. Everything of one session has the same hash tag, and is so at one server
//! of a cluster.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

/// Hash tags: enough for a cluster of any size.
const TAGS: u64 = 1_024;

/// What all names begin with.
#[derive(Clone)]
pub(super) struct Tags {
    namespace: Arc<str>,
}

impl Tags {
    pub(super) fn new(namespace: &str) -> Self {
        Self { namespace: namespace.into() }
    }

    /// The tag of a session.
    pub(super) fn of(session: &str) -> u16 {
        // Smaller than TAGS.
        u16::try_from(xxh3_64(session.as_bytes()) % TAGS).unwrap_or_default()
    }

    /// A tag in names.
    pub(super) fn text(tag: u16) -> String {
        format!("{tag:03x}")
    }

    /// What the keys of a tag begin with.
    pub(super) fn prefix(&self, tag: u16) -> String {
        format!("{}:{{{}}}:", self.namespace, Self::text(tag))
    }

    /// Where a store object is told what concerns it.
    pub(super) fn channel(&self, of: &str) -> String {
        format!("{}:n:{of}", self.namespace)
    }

    /// The mark of the keys' layout.
    pub(super) fn layout(&self) -> String {
        format!("{}:layout", self.namespace)
    }

    /// The sign of life of a store object, and its hash tag.
    pub(super) fn owner(&self, owner: &str) -> String {
        format!("{}:o:{{{owner}}}", self.namespace)
    }
}
