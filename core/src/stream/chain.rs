//! The chain tag: which history a position belongs to.
//!
//! After a store failover a position may be written a second time with another payload. Every event
//! therefore carries a hash over all payloads up to it, and a cursor repeats the low 32 bits: a
//! cursor into a history that no longer exists is recognised instead of silently skipping an event.
//!
//! The store keeps these hashes. Where it is not to know the payloads, the hash has a key, because a hash without one
//! confirms guesses of short payloads.

use std::fmt;

use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A secret that chains are made with.
#[derive(Clone)]
pub struct ChainKey(pub [u8; 32]);

impl fmt::Debug for ChainKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChainKey(...)")
    }
}

/// The running hash of one stream, after some position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain(pub u64);

impl Chain {
    /// The chain at the priming position of the stream with this nonce.
    pub fn start(nonce: &[u8]) -> Self {
        Self(xxh3_64_with_seed(nonce, 0))
    }

    /// The chain after one more payload.
    #[must_use]
    pub fn then(self, payload: &[u8], key: Option<&ChainKey>) -> Self {
        let Some(ChainKey(key)) = key else { return Self(xxh3_64_with_seed(payload, self.0)) };
        let hash = Sha256::new().chain_update(key).chain_update(self.0.to_be_bytes()).chain_update(payload).finalize();
        Self(hash.iter().take(8).fold(0, |chain, byte| chain << 8 | u64::from(*byte)))
    }

    /// The part of the chain that event ids carry.
    pub fn tag(self) -> u32 {
        tag_of(self.0)
    }
}

/// The low 32 bits of a chain value, as event ids carry them.
#[expect(clippy::cast_possible_truncation, reason = "the tag is the low half on purpose")]
pub fn tag_of(chain: u64) -> u32 {
    chain as u32
}
