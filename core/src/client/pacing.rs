//! How long a stream waits between its connections, and when it gives up.

use std::fmt;

use crate::Ms;

/// Where back-off starts when a server said to come back at once.
const MIN_BACKOFF_MS: u64 = 50;
/// The growth of the wait after a connection that was accepted, delivered nothing and was closed. A poll that finds
/// nothing is no fault: the wait follows the time spent so, and a result is late by an eighth of it at most.
const EMPTY_GROWTH: f64 = 1.125;

/// The longest wait that a server can ask for: what a faulty one says is not to stop a stream for ever.
const MAX_ASKED_MS: u64 = 60 * 60 * 1_000;

/// How a stream comes back. Durations are in milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The wait before a resume while the stream has told no `retry`. Default 1,000.
    pub initial_delay_ms: u64,
    /// The longest wait that back-off makes. A longer `retry` is waited all the same (W-043), up to an hour. Default 30,000.
    pub max_delay_ms: u64,
    /// By how much the wait grows with each failure in a row; 1 or more. Default 1.5.
    pub growth: f64,
    /// How much later than the wait, at most, as a share of it; 0 to 10. Clients that were told to come back
    /// together return spread over it (F-75). Default 0.25.
    pub jitter: f64,
    /// No further try when the tries since the last progress took so long; none: never. The time that their connections were
    /// open does not count, and a connection that was open for `max_delay_ms` is progress. Default 600,000.
    pub give_up_after_ms: Option<u64>,
    /// How many tries without progress are made; none: any number. Default 100.
    pub max_attempts: Option<u32>,
    /// A connection that is silent for so long counts as broken, as does one that gets no answer; none: it may be silent.
    /// Default 300,000.
    pub max_silence_ms: Option<u64>,
    /// What one event may hold, in bytes (F-60). Default 64 MiB.
    pub max_event_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            initial_delay_ms: 1_000,
            max_delay_ms: 30_000,
            growth: 1.5,
            jitter: 0.25,
            give_up_after_ms: Some(600_000),
            max_attempts: Some(100),
            max_silence_ms: Some(300_000),
            max_event_bytes: 64 << 20,
        }
    }
}

/// An option is out of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OptionsError {
    /// The option's name.
    pub name: &'static str,
    /// What it has to be.
    pub range: &'static str,
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has to be {}", self.name, self.range)
    }
}

impl std::error::Error for OptionsError {}

impl Options {
    /// The options, if each is in its range.
    ///
    /// # Errors
    /// The first that is not.
    pub fn checked(self) -> Result<Self, OptionsError> {
        let fault = |name, range| Err(OptionsError { name, range });
        if !(1.0..=100.0).contains(&self.growth) {
            return fault("growth", "a number from 1 to 100");
        }
        if !(0.0..=10.0).contains(&self.jitter) {
            return fault("jitter", "a number from 0 to 10");
        }
        if self.max_event_bytes == 0 {
            return fault("max_event_bytes", "at least 1");
        }
        if self.max_silence_ms == Some(0) {
            return fault("max_silence_ms", "at least 1");
        }
        Ok(self)
    }
}

/// How a connection without progress ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fruitless {
    /// It was accepted, and closed in good order.
    Empty,
    /// It was refused, could not be made, or broke.
    Failed,
}

/// The tries since the last progress of a stream.
#[derive(Debug)]
pub(super) struct Pacing {
    options: Options,
    retry_ms: Option<u64>,
    /// What the wait has grown by.
    grown: f64,
    attempts: u32,
    /// When the first of them ended.
    since: Option<Ms>,
}

impl Pacing {
    pub(super) fn new(options: Options, retry_ms: Option<u64>) -> Self {
        Self { options, retry_ms, grown: 1.0, attempts: 0, since: None }
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    pub(super) fn retry_ms(&self) -> Option<u64> {
        self.retry_ms
    }

    pub(super) fn attempts(&self) -> u32 {
        self.attempts
    }

    pub(super) fn set_retry_ms(&mut self, retry_ms: u64) {
        self.retry_ms = Some(retry_ms);
    }

    pub(super) fn progressed(&mut self) {
        (self.grown, self.attempts, self.since) = (1.0, 0, None);
    }

    /// A connection was open for so long. Whether that is progress by itself: a server that keeps a connection that long
    /// keeps the stream, and idle streams are not to be given up.
    pub(super) fn was_open(&mut self, open_ms: u64) -> bool {
        let is_kept = open_ms >= self.options.max_delay_ms;
        if is_kept {
            self.progressed();
        } else if let Some(since) = &mut self.since {
            // Tries take time; what lies between them does not count.
            *since = *since + open_ms;
        }
        is_kept
    }

    /// Whether a wait that an answer asks for is longer than there is time.
    pub(super) fn is_too_long(&self, at_least_ms: u64) -> bool {
        self.options.give_up_after_ms.is_some_and(|limit| at_least_ms > limit)
    }

    /// For how long nothing has come of any try.
    pub(super) fn tried_ms(&self, now: Ms) -> u64 {
        self.since.map_or(0, |since| now.since(since))
    }

    /// Counts a connection that brought nothing. Returns for how long that has gone on, when it is not to go on.
    pub(super) fn failed(&mut self, now: Ms, how: Fruitless) -> Option<u64> {
        self.attempts = self.attempts.saturating_add(1);
        let growth = match how {
            Fruitless::Empty => self.options.growth.min(EMPTY_GROWTH),
            Fruitless::Failed => self.options.growth,
        };
        // What is beyond this makes no difference to a wait that has a bound.
        self.grown = (self.grown * growth).min(1e12);
        self.since.get_or_insert(now);
        let for_ms = self.tried_ms(now);
        let is_out_of_time = self.options.give_up_after_ms.is_some_and(|limit| for_ms >= limit);
        let is_out_of_tries = self.options.max_attempts.is_some_and(|limit| self.attempts >= limit);
        (is_out_of_time || is_out_of_tries).then_some(for_ms)
    }

    /// The wait before the next connection. `at_least_ms` is what an answer asked for; `jitter` is a fraction of
    /// 2^32.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "waits are positive; those that a double cannot hold exactly are centuries"
    )]
    pub(super) fn delay(&self, at_least_ms: u64, jitter: u32) -> u64 {
        let floor = self.retry_ms.map_or(self.options.initial_delay_ms, |told| told.min(MAX_ASKED_MS));
        let backed_off = if self.attempts == 0 {
            floor
        } else {
            let base = floor.max(MIN_BACKOFF_MS) as f64;
            (base * self.grown).min(self.options.max_delay_ms as f64) as u64
        };
        let delay = floor.max(backed_off).max(at_least_ms.min(MAX_ASKED_MS));
        let spread = delay as f64 * self.options.jitter * (f64::from(jitter) / f64::from(u32::MAX));
        delay.saturating_add(spread as u64)
    }
}
