//! Waiting for what comes some time.

use std::time::{Duration, Instant};

/// What comes has come by then, also where a machine stalls.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until this holds.
pub(crate) fn eventually(what: &str, is_true: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
