//! Lines that may be due often and are written seldom.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The shortest time between two lines of one kind.
const PAUSE: Duration = Duration::from_secs(60);

/// When a line was last written.
#[derive(Default)]
pub(super) struct Rarely(Mutex<Option<Instant>>);

impl Rarely {
    /// Whether the line is to be written now.
    pub(super) fn is_due(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|last| last.elapsed() >= PAUSE);
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }
}
