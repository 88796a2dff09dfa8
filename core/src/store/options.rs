//! What can be set on a store, whatever its kind.

use std::fmt;
use std::sync::Arc;

use super::{EncryptionKey, Limits};

/// What a durable store promises when it says that an event is stored. Which process has a session or a message, and that a
/// session has ended, survives a power failure with either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// It survives the end of the process, however that comes. A power failure may take the last ones.
    #[default]
    Process,
    /// It survives a power failure. Every commit waits for the disk.
    Power,
}

/// Tells the time in milliseconds since 1970.
pub type WallClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// What can be set on a store.
#[derive(Clone)]
pub struct StoreOptions {
    /// The bounds. For a store that processes share they hold for all of them together, so all should
    /// have the same.
    pub limits: Limits,
    /// What stored means.
    pub durability: Durability,
    /// Whose process has given no sign of life for so long counts as gone, in milliseconds.
    pub owner_lost_ms: u64,
    /// Payloads are encrypted with the first of these before they get to the store, and read with any of them.
    /// Not encrypted when there is none.
    pub encryption_keys: Vec<EncryptionKey>,
    /// The clock of durable stores; the system's when there is none.
    pub wall_clock: Option<WallClock>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            durability: Durability::default(),
            owner_lost_ms: 10_000,
            encryption_keys: Vec::new(),
            wall_clock: None,
        }
    }
}

impl fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limits, durability, owner_lost_ms, .. } = self;
        f.debug_struct("StoreOptions")
            .field("limits", limits)
            .field("durability", durability)
            .field("owner_lost_ms", owner_lost_ms)
            .finish_non_exhaustive()
    }
}
