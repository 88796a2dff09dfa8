//! What an append asks, and what a log says to it.

use bytes::Bytes;

use super::StoreError;
use crate::stream::{Paced, Seq, StoredEvent};

/// One change of a log.
#[derive(Clone, Debug, Default)]
pub struct Append {
    /// The position of the first event, the next one of the log. With 1 the log is created, if it is not there.
    pub first: Seq,
    /// Added at dense positions. There may be none.
    pub events: Vec<StoredEvent>,
    /// The running hash before the first of them. Without events neither this nor the next says anything.
    pub chain_before: u64,
    /// The running hash after the last of them.
    pub chain: u64,
    /// Kept with a log that is created, so that a process that finds the log later knows what it is of.
    pub about: Bytes,
    /// A log that is created gets an id for its priming position, from a store that makes the ids.
    pub primes: bool,
    /// The log ends behind the events, with this payload that is not in it. Not together with a terminal.
    pub end: Option<Bytes>,
    /// What the log says from now on of how the stream's connections are paced, wherever they are.
    pub paced: Option<Paced>,
}

/// The state of a log that decides whether it takes an append.
#[derive(Clone, Copy, Debug)]
pub struct LogState {
    /// The last position; 0 where there is no event.
    pub head: Seq,
    /// The running hash at the head: of a log without events, [`Chain::start`](crate::stream::Chain::start) of its stream.
    pub chain: u64,
    /// It has its end.
    pub is_finished: bool,
}

/// What is to be done to a log that takes an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything is there already.
    Nothing,
    /// The events are there, or there are none: what comes with them is to be written.
    Rest,
    /// Everything is to be written.
    All,
}

impl Append {
    /// The position of the last event, or the one before `first`.
    pub fn last(&self) -> Seq {
        self.first + self.events.len() as Seq - 1
    }

    /// Of payloads.
    pub(super) fn bytes(&self) -> usize {
        let frames: usize = self.events.iter().map(|event| event.frame.len()).sum();
        frames + self.about.len() + self.end.as_ref().map_or(0, Bytes::len)
    }

    /// What a log that is there says.
    ///
    /// # Errors
    /// Why it takes nothing.
    pub fn judge(&self, log: LogState) -> Result<Verdict, StoreError> {
        // Only events have a position: a log that was set back takes its end all the same.
        let is_there = self.events.is_empty() || (log.head, log.chain) == (self.last(), self.chain);
        let has_rest = self.end.is_some() || self.paced.is_some();
        let next = log.head + 1;
        if is_there {
            Ok(if log.is_finished || !has_rest { Verdict::Nothing } else { Verdict::Rest })
        } else if log.is_finished {
            Err(StoreError::Gone)
        } else if next < self.first || (next == self.first && log.chain != self.chain_before) {
            Err(StoreError::RolledBack)
        } else if next > self.first {
            Err(StoreError::OutOfOrder)
        } else {
            Ok(Verdict::All)
        }
    }

    /// Refuses events that are larger than the store takes.
    pub fn check_size(&self, max: usize) -> Result<(), StoreError> {
        match self.events.iter().map(|event| event.frame.len()).find(|bytes| *bytes > max) {
            Some(bytes) => Err(StoreError::TooLarge { bytes, max }),
            None => Ok(()),
        }
    }
}
