//! Maps by what this process has counted or drawn itself.

/// Nobody else chooses its keys, so they are hashed fast, without protection against those that are made to collide.
pub(crate) type OwnMap<K, V> = rustc_hash::FxHashMap<K, V>;
