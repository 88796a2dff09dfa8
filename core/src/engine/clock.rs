//! The engine's clock and its randomness. Tests bring their own.

use crate::Ms;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Tells the time that is handed to the pure parts. It is asked while the lock of a session is held: it must not wait, nor
/// call the session or its engine.
pub trait Clock: Send + Sync {
    /// Milliseconds since some start; never goes back.
    fn now(&self) -> Ms;

    /// Milliseconds since 1970, for what clients read: times of tasks. Nothing is measured by it, because it may be set.
    fn unix_ms(&self) -> u64;
}

/// The operating system's monotonic clock.
#[derive(Debug)]
pub struct SystemClock(Instant);

impl Default for SystemClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Ms {
        Ms(u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn unix_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// A clock that moves when it is told to. It starts in September of 2020.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Moves the clock forward.
    pub fn advance(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Ms {
        Ms(self.0.load(Ordering::Relaxed))
    }

    fn unix_ms(&self) -> u64 {
        const START_MS: u64 = 1_600_000_000_000;
        START_MS + self.0.load(Ordering::Relaxed)
    }
}

/// Randomness for the names of streams, and to spread times. It is asked while the lock of a session is held: it must not
/// wait for long, nor call the session or its engine.
pub trait RandomSource: Send + Sync {
    /// Fills a block. Only tests bring a source of their own: anybody who can guess these bytes can guess event ids.
    fn fill(&self, block: &mut [u8]);
}

/// The operating system's randomness.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRandomness;

impl RandomSource for SystemRandomness {
    /// # Panics
    /// When the operating system has no randomness: an id that can be guessed is worse than no server.
    fn fill(&self, block: &mut [u8]) {
        getrandom::fill(block).expect("the operating system provides randomness");
    }
}

/// Randomness for nonces and jitter, fetched from its source in blocks.
pub(crate) struct Randomness {
    source: Arc<dyn RandomSource>,
    block: Mutex<(Vec<u8>, usize)>,
}

impl Randomness {
    pub(crate) fn new(source: Arc<dyn RandomSource>) -> Self {
        Self { source, block: Mutex::default() }
    }

    /// Bytes that nobody can guess, if nobody can guess the source's.
    pub(crate) fn take<const N: usize>(&self) -> [u8; N] {
        let mut guard = self.block.lock().unwrap_or_else(PoisonError::into_inner);
        let (block, used) = &mut *guard;
        if *used + N > block.len() {
            block.resize(768, 0);
            self.source.fill(block);
            *used = 0;
        }
        let mut out = [0; N];
        out.copy_from_slice(&block[*used..*used + N]);
        // Bytes that are handed out do not stay in memory here.
        block[*used..*used + N].fill(0);
        *used += N;
        out
    }
}
