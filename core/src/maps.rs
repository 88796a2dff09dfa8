//! Maps whose keys our own processes have counted or drawn.

/// No client chooses the keys, so they are hashed fast, without protection against keys that are made to collide.
pub(crate) type OwnMap<K, V> = rustc_hash::FxHashMap<K, V>;
