//! What is held, put together from what each connection has counted.

use tailrope_core::store::Usage;

/// A row of `tally`, or a sum of several. One row alone may be negative: others take away what it added.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) sessions: i64,
    pub(super) streams: i64,
    pub(super) events: i64,
    pub(super) bytes: i64,
}

pub(super) struct Book {
    /// By the lanes of this store object; the last is the housekeeper's.
    own: Vec<Tally>,
    /// By all other store objects, when the last sign of life was given.
    pub(super) others: Tally,
    pub(super) trimmed: u64,
}

impl Book {
    pub(super) fn new(lanes: usize) -> Self {
        Self { own: vec![Tally::default(); lanes], others: Tally::default(), trimmed: 0 }
    }

    pub(super) fn set(&mut self, lane: usize, tally: Tally, trimmed: i64) {
        self.own[lane] = tally;
        self.trimmed += trimmed.max(0).cast_unsigned();
    }

    pub(super) fn bytes(&self) -> i64 {
        self.others.bytes + self.own.iter().map(|tally| tally.bytes).sum::<i64>()
    }

    pub(super) fn usage(&self) -> Usage {
        let sum = |of: fn(&Tally) -> i64| {
            let sum = of(&self.others) + self.own.iter().map(of).sum::<i64>();
            sum.max(0).cast_unsigned()
        };
        Usage {
            sessions: sum(|tally| tally.sessions),
            streams: sum(|tally| tally.streams),
            events: sum(|tally| tally.events),
            bytes: sum(|tally| tally.bytes),
            trimmed: self.trimmed,
        }
    }
}
