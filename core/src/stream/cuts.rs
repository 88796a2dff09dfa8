//! What cuts connections: an endpoint learns at which age, or after how much silence, its connections are lost.
//!
//! A proxy that cuts connections at an age cuts each of them there, so what is lost is lost at about one age, and nothing gets
//! older. Losses of other kinds are spread, or something gets older. Only the loss of a connection whose client came back for
//! its stream counts: no user wanted that one.

use std::collections::VecDeque;

use crate::Ms;

/// So many of the last losses...
const LAST: usize = 5;
/// ...have to be of about one length.
const ALIKE: usize = 4;
/// Nothing shorter is learned, in milliseconds: clients that come back more often than this cost more than they gain.
const SHORTEST_MS: u64 = 1_000;
/// Losses that come within this time, in milliseconds, have one cause, and count once.
const TOGETHER_MS: u64 = 250;
/// After this time, in milliseconds, one connection is left open to see whether it is still cut.
const TRY_AGAIN_MS: u64 = 600_000;

/// A connection that was lost, and whose client came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// When it was lost.
    pub at: Ms,
    /// How old it was, in milliseconds.
    pub age_ms: u64,
    /// For how long nothing had been written on it, in milliseconds.
    pub silent_ms: u64,
}

/// At what a connection is expected to be cut, in milliseconds; 0 where nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// The age.
    pub age_ms: u64,
    /// The silence.
    pub silent_ms: u64,
}

/// What is known of the cuts of one endpoint.
#[derive(Debug, Default)]
pub struct Cuts {
    age: Limit,
    silence: Limit,
}

impl Cuts {
    /// A connection was cut. What is to be told now: what was learned of it, where that is news.
    pub fn lost(&mut self, cut: Cut) -> Option<Expected> {
        let Cut { at, age_ms, silent_ms } = cut;
        let is_age = self.age.lost(at, age_ms);
        let is_silence = self.silence.lost(at, silent_ms);
        if self.age.explains(age_ms) && !self.silence.explains(silent_ms) && self.age.is_about(self.silence.learned) {
            // Both were learned of connections that were silent all the time. This one was not: so it was the age.
            self.silence.learned = None;
        }
        let news = Expected {
            age_ms: self.age.learned.filter(|_| is_age).unwrap_or_default(),
            silent_ms: self.silence.learned.filter(|_| is_silence).unwrap_or_default(),
        };
        (news != Expected::default()).then_some(news)
    }

    /// A connection has got this old, and has gone on after this much silence. Whether something that was learned is not so.
    pub fn lived(&mut self, age_ms: u64, silent_ms: u64) -> bool {
        let is_age = self.age.lived(age_ms);
        self.silence.lived(silent_ms) || is_age
    }

    /// What is expected of a connection that opens now.
    pub fn expected(&mut self, now: Ms) -> Expected {
        Expected { age_ms: self.age.expected(now), silent_ms: self.silence.expected(now) }
    }
}

/// A length of time at which connections are cut.
#[derive(Debug, Default)]
struct Limit {
    /// The last ones, in the order in which they were told.
    losses: VecDeque<Loss>,
    /// The shortest of those that were alike.
    learned: Option<u64>,
    /// What was told last: it is told once.
    told: Option<u64>,
    /// When a connection is left open next.
    try_at: Ms,
}

#[derive(Clone, Copy, Debug)]
struct Loss {
    at: Ms,
    ms: u64,
    /// Another connection got older: this one was lost for another reason.
    is_outlived: bool,
}

/// How much lengths differ that are alike: timers are exact, and processes are late.
fn width(ms: u64) -> u64 {
    60 + ms / 128
}

/// What nothing reaches that is cut at `ms`, also where it is cut late.
fn beyond(ms: u64) -> u64 {
    ms + width(ms) + ms / 8
}

impl Limit {
    /// Whether it was news.
    fn lost(&mut self, at: Ms, ms: u64) -> bool {
        if self.losses.iter().any(|loss| at.0.abs_diff(loss.at.0) < TOGETHER_MS) {
            return false;
        }
        self.lived(ms);
        if self.explains(ms) {
            self.try_at = at + TRY_AGAIN_MS;
        }
        if self.losses.len() == LAST {
            self.losses.pop_front();
        }
        self.losses.push_back(Loss { at, ms, is_outlived: false });
        let Some(shortest) = self.alike(ms) else { return false };
        self.learned = Some(shortest);
        self.try_at = at + TRY_AGAIN_MS;
        let is_news = self.told.is_none_or(|told| told.abs_diff(shortest) > told / 8);
        if is_news {
            self.told = Some(shortest);
        }
        is_news
    }

    /// The shortest of enough losses that are about as long as this one.
    fn alike(&self, ms: u64) -> Option<u64> {
        let losses =
            || self.losses.iter().filter(|loss| !loss.is_outlived && loss.ms >= SHORTEST_MS).map(|loss| loss.ms);
        let starts = losses().filter(|start| (*start..=start + width(*start)).contains(&ms));
        starts
            .filter(|start| losses().filter(|ms| (*start..=start + width(*start)).contains(ms)).count() >= ALIKE)
            .min()
    }

    /// Whether what was learned was not so.
    fn lived(&mut self, ms: u64) -> bool {
        for loss in &mut self.losses {
            loss.is_outlived |= ms > beyond(loss.ms);
        }
        self.learned.take_if(|learned| ms > beyond(*learned)).is_some()
    }

    /// Whether a loss at `ms` is what was to be expected.
    fn explains(&self, ms: u64) -> bool {
        self.learned.is_some_and(|learned| (learned.saturating_sub(width(learned))..=beyond(learned)).contains(&ms))
    }

    /// Whether another limit is about this one.
    fn is_about(&self, other: Option<u64>) -> bool {
        other.is_some_and(|other| self.explains(other))
    }

    fn expected(&mut self, now: Ms) -> u64 {
        let Some(learned) = self.learned else { return 0 };
        if now < self.try_at {
            return learned;
        }
        // A connection that ends by itself says nothing: then it is the turn of another.
        self.try_at = now + beyond(learned);
        0
    }
}
