//! How long calls took, by how they ended: histograms of a fixed size.

use crate::session::Outcome;
use crate::sync::atomic::{AtomicU64, Ordering};

/// What the counts of a [`Histogram`] are up to, each included, in milliseconds. One more count is of longer calls.
pub const DURATION_BOUNDS_MS: [u64; 14] =
    [10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000];

const COUNTS: usize = DURATION_BOUNDS_MS.len() + 1;
const OUTCOMES: usize = Outcome::ALL.len();

/// How long calls took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// How many took so long: longer than the [bound](DURATION_BOUNDS_MS) before, and no longer than their own.
    pub counts: [u64; COUNTS],
    /// How long they took together, in milliseconds.
    pub sum_ms: u64,
}

/// How long calls took, by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durations([Histogram; OUTCOMES]);

impl Durations {
    /// Of each outcome that calls have had.
    pub fn entries(&self) -> impl Iterator<Item = (Outcome, &Histogram)> {
        let all = Outcome::ALL.iter().copied().zip(&self.0);
        all.filter(|(_, histogram)| histogram.counts.iter().any(|count| *count > 0))
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (one, other) in self.0.iter_mut().zip(&other.0) {
            one.sum_ms += other.sum_ms;
            one.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    counts: [AtomicU64; COUNTS],
    sum_ms: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct DurationCounters([Counts; OUTCOMES]);

impl DurationCounters {
    pub(crate) fn add(&self, outcome: Outcome, ms: u64) {
        let of = &self.0[outcome as usize];
        of.counts[DURATION_BOUNDS_MS.partition_point(|bound| *bound < ms)].fetch_add(1, Ordering::Relaxed);
        of.sum_ms.fetch_add(ms, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Durations {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let of = |of: &Counts| Histogram { counts: of.counts.each_ref().map(read), sum_ms: read(&of.sum_ms) };
        Durations(self.0.each_ref().map(of))
    }
}
