//! Maps whose keys no client can choose.

use std::hash::{BuildHasher as _, Hash};

/// Our own processes have counted or drawn the keys, or they are digests ([session names](crate::store::session_name)). So they are
/// hashed fast, without protection against keys that are made to collide.
pub(crate) type OwnMap<K, V> = rustc_hash::FxHashMap<K, V>;

/// Which of `shards` has a key. It says nothing of the place in the shard's own map.
pub(crate) fn shard_of(key: impl Hash, shards: usize) -> usize {
    // The map takes the lowest bits and the highest.
    (rustc_hash::FxBuildHasher.hash_one(key) >> 32) as usize % shards
}
