//! Maps whose keys no client can choose.

use std::hash::{BuildHasher as _, Hash};

/// Our own processes have counted or drawn the keys, or they are digests ([session names](crate::store::session_name)). So they are
/// hashed fast, without protection against keys that are made to collide.
pub(crate) type OwnMap<K, V> = rustc_hash::FxHashMap<K, V>;

/// The shard of a key, from bits of its hash that the shard's own map does not use: that takes the lowest and the highest.
pub(crate) fn shard_of(key: impl Hash, shards: usize) -> usize {
    let hash = rustc_hash::FxBuildHasher.hash_one(key) as usize;
    (hash >> (usize::BITS / 2)) % shards
}
