//! What an append asks, and what a log says to it.

use super::StoreError;
use crate::stream::{Seq, StoredEvent};

/// Events that are added together.
#[derive(Clone, Copy, Debug)]
pub struct Append<'a> {
    /// At least one, at dense positions.
    pub events: &'a [StoredEvent],
    /// The running hash before the first of them.
    pub chain_before: u64,
    /// The running hash after the last of them.
    pub chain: u64,
}

/// The state of a log that decides whether it takes an append.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogState {
    pub(super) head: Seq,
    pub(super) chain: u64,
    pub(super) is_finished: bool,
    pub(super) is_mine: bool,
}

impl Append<'_> {
    /// What the log says without being written; none when the events are to be written.
    pub(super) fn judge(&self, log: LogState) -> Option<Result<(), StoreError>> {
        let (Some(first), Some(last)) = (self.events.first(), self.events.last()) else { return Some(Ok(())) };
        if (log.head, log.chain) == (last.seq, self.chain) {
            return Some(Ok(()));
        }
        let next = log.head + 1;
        let error = if log.is_finished {
            StoreError::Gone
        } else if !log.is_mine {
            StoreError::Fenced
        } else if next < first.seq || (next == first.seq && log.chain != self.chain_before) {
            StoreError::RolledBack
        } else if next > first.seq {
            StoreError::OutOfOrder
        } else {
            return None;
        };
        Some(Err(error))
    }

    /// Refuses events that are larger than the store takes.
    pub(super) fn check_size(&self, max: usize) -> Result<(), StoreError> {
        match self.events.iter().map(|event| event.frame.len()).find(|bytes| *bytes > max) {
            Some(bytes) => Err(StoreError::TooLarge { bytes, max }),
            None => Ok(()),
        }
    }
}
