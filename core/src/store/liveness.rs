//! Which owners of logs are gone, by what was seen of them.
//!
//! An owner adds one to a count in the store, again and again: its beat. Clocks of other machines, a store that
//! cannot be asked and a computer that was suspended say nothing of an owner, so no time is ever compared: others
//! look at the count, and an owner is lost when it stood still for long enough in what they saw.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::Ms;

/// Owners that nobody asked for in so many times `owner_lost_ms` are forgotten.
const KEPT: u64 = 1_000;
/// An owner beats as often as this whatever it is set to: others may be set to less.
const SLOWEST_BEAT_MS: u64 = 1_000;
/// A sign whose answer is late by so much shows that the store is away.
const LATE_MS: u64 = 750;
/// A store that fails for less time is not away: a connection broke, and the next one was made. One that refuses for less time
/// has met something that it does not take.
const TROUBLE_AFTER: Duration = Duration::from_millis(500);

/// The pause between two beats of an owner.
pub fn beat_ms(owner_lost_ms: u64) -> u64 {
    (owner_lost_ms / 4).clamp(1, SLOWEST_BEAT_MS)
}

/// When the beat after the one that was given then is due. Where its answer took long that is at once: it says only that the owner
/// lived when it was given.
pub fn next_beat(given: Instant, pause: Duration) -> Instant {
    given + pause
}

/// Whether a store is reached, and whether it takes what is written: the log has a line when either ends, and one when it is
/// so again.
#[derive(Debug, Default)]
pub struct Reach {
    away: Trouble,
    /// What makes it away: its operations fail, or it answers no sign of life. One that waits for a lock does the latter long
    /// before it fails.
    is_failing: AtomicBool,
    is_silent: AtomicBool,
    refusing: Trouble,
}

impl Reach {
    /// The store was not reached, or refuses everything.
    pub fn lost(&self, why: &str) {
        if self.lost_at(Instant::now()) {
            log_away(why);
        } else if self.away.is_explained_now() {
            tracing::warn!(target: "tailrope", error = why, "why the event store is away");
        }
    }

    fn lost_at(&self, now: Instant) -> bool {
        self.is_failing.store(true, Ordering::Relaxed);
        self.away.seen_at(now)
    }

    /// The store was reached.
    pub fn back(&self) {
        self.is_failing.store(false, Ordering::Relaxed);
        // Reads may go on where nothing is written. The next look shows that the silence is over.
        if !self.is_silent.load(Ordering::Relaxed) {
            self.tell_back(Instant::now());
        }
    }

    /// For how long the store has answered no sign of life; none if it answers them. Nothing is logged: the caller may have locks.
    pub(super) fn silent(&self, silent_ms: Option<u64>) {
        self.silent_at(Instant::now(), silent_ms);
    }

    fn silent_at(&self, now: Instant, silent_ms: Option<u64>) {
        self.is_silent.store(silent_ms.is_some(), Ordering::Relaxed);
        if let Some(since) = silent_ms.and_then(|ms| now.checked_sub(Duration::from_millis(ms))) {
            self.away.began_at(since);
        }
    }

    /// Logs that the store is away, or that it is there again, where its silence shows that first.
    pub(super) fn tell_away(&self) {
        let now = Instant::now();
        if !self.is_away() {
            self.tell_back(now);
        } else if self.tells_silence_at(now) {
            log_away("it does not answer");
        }
    }

    /// Whether the log is to say that it is away. Its next failure says why.
    fn tells_silence_at(&self, now: Instant) -> bool {
        self.is_silent.load(Ordering::Relaxed) && self.away.seen_at(now) && {
            self.away.lock().is_unexplained = true;
            true
        }
    }

    fn tell_back(&self, now: Instant) {
        if let Some(away_ms) = self.away.over_at(now) {
            let after_s = away_ms.div_ceil(1_000);
            tracing::warn!(target: "tailrope", away_ms, "the event store is back after {after_s} s");
        }
    }

    fn is_away(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed) || self.is_silent.load(Ordering::Relaxed)
    }

    fn away_at(&self, now: Instant) -> Option<u64> {
        self.away.lasts_at(now).filter(|_| self.is_away())
    }

    /// The store has answered, and did not take what was to be stored.
    pub fn refused(&self, why: &dyn fmt::Display) {
        if self.refused_at(Instant::now()) {
            tracing::warn!(
                target: "tailrope", error = %why,
                "the event store refuses what is to be stored: calls go on, their progress fails, and their results go once to the clients that are connected"
            );
        }
    }

    /// Whether the log is to say so. Where the store is away it says that.
    fn refused_at(&self, now: Instant) -> bool {
        self.away_at(now).is_none() && self.refusing.seen_at(now)
    }

    /// The store has stored something, or has room again.
    pub fn stored(&self) {
        if let Some(refused_ms) = self.refusing.over_at(Instant::now()) {
            let after_s = refused_ms.div_ceil(1_000);
            tracing::warn!(target: "tailrope", refused_ms, "the event store stores again after {after_s} s");
        }
    }

    /// See [`EventStore::away_ms`](super::EventStore::away_ms).
    pub fn away_ms(&self) -> Option<u64> {
        self.away_at(Instant::now())
    }

    /// See [`EventStore::refused_ms`](super::EventStore::refused_ms).
    pub fn refused_ms(&self) -> Option<u64> {
        self.refusing.is_logged().then(|| self.refusing.lasts_at(Instant::now())).flatten()
    }
}

fn log_away(why: &str) {
    tracing::warn!(
        target: "tailrope", error = why,
        "the event store is away: calls go on and their events wait, and if that lasts, further calls are refused"
    );
}

/// Something that goes wrong for a while.
#[derive(Debug, Default)]
struct Trouble {
    /// So that a store that is well costs nothing.
    is_there: AtomicBool,
    spell: Mutex<Spell>,
}

#[derive(Debug, Default)]
struct Spell {
    since: Option<Instant>,
    is_logged: bool,
    /// The log has said so, and not why.
    is_unexplained: bool,
}

impl Trouble {
    /// It went wrong. Whether the log is to say so.
    fn seen_at(&self, now: Instant) -> bool {
        self.is_there.store(true, Ordering::Relaxed);
        let mut spell = self.lock();
        let since = *spell.since.get_or_insert(now);
        now.saturating_duration_since(since) >= TROUBLE_AFTER && !std::mem::replace(&mut spell.is_logged, true)
    }

    /// It has gone wrong since then.
    fn began_at(&self, since: Instant) {
        self.is_there.store(true, Ordering::Relaxed);
        let mut spell = self.lock();
        spell.since = Some(spell.since.map_or(since, |known| known.min(since)));
    }

    /// It is known why. Whether the log is to say that.
    fn is_explained_now(&self) -> bool {
        std::mem::take(&mut self.lock().is_unexplained)
    }

    /// It went well. For how long it did not, if the log has said so.
    fn over_at(&self, now: Instant) -> Option<u64> {
        if !self.is_there.load(Ordering::Relaxed) {
            return None;
        }
        let mut state = self.lock();
        self.is_there.store(false, Ordering::Relaxed);
        let Spell { since, is_logged, .. } = std::mem::take(&mut *state);
        since.filter(|_| is_logged).map(|since| ms(now.saturating_duration_since(since)))
    }

    /// For how long it has gone wrong.
    fn lasts_at(&self, now: Instant) -> Option<u64> {
        if !self.is_there.load(Ordering::Relaxed) {
            return None;
        }
        let lasts = now.saturating_duration_since(self.lock().since?);
        (lasts >= TROUBLE_AFTER).then(|| ms(lasts))
    }

    fn is_logged(&self) -> bool {
        self.is_there.load(Ordering::Relaxed) && self.lock().is_logged
    }

    fn lock(&self) -> MutexGuard<'_, Spell> {
        self.spell.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What one store object has seen of the beats of others.
pub struct Sightings {
    /// What one pause between two looks counts at most. A single long one is no proof.
    step_ms: u64,
    keep_ms: u64,
    seen: HashMap<Box<str>, Sighting>,
}

struct Sighting {
    count: u64,
    looked: Ms,
    unseen_ms: u64,
}

impl Sightings {
    /// Nothing was seen yet. An owner counts as lost after `owner_lost_ms` milliseconds.
    pub fn new(owner_lost_ms: u64) -> Self {
        let keep_ms = owner_lost_ms.saturating_mul(KEPT);
        Self { step_ms: owner_lost_ms.div_ceil(3), keep_ms, seen: HashMap::new() }
    }

    /// A look at `now`, on this process's monotonic clock, found this count of the owner's beats; none where the
    /// store has none, which proves nothing. Returns for how many milliseconds the owner is known to give no sign.
    pub fn saw(&mut self, owner: &str, count: Option<u64>, now: Ms) -> u64 {
        let Some(count) = count else {
            self.seen.remove(owner);
            return 0;
        };
        if let Some(last) = self.seen.get_mut(owner).filter(|last| last.count == count) {
            last.unseen_ms = last.unseen_ms.saturating_add(now.since(last.looked).min(self.step_ms));
            last.looked = last.looked.max(now);
            return last.unseen_ms;
        }
        if !self.seen.contains_key(owner) {
            self.seen.retain(|_, last| now.since(last.looked) <= self.keep_ms);
        }
        self.seen.insert(owner.into(), Sighting { count, looked: now, unseen_ms: 0 });
        0
    }
}

/// When the signs of life of this store object had their answers. Others may take it for gone where these stay away.
#[derive(Debug)]
pub struct Pulse {
    opened: Instant,
    /// When the last sign with an answer was given, in milliseconds after that.
    last_ms: AtomicU64,
    patience_ms: u64,
    has_company: AtomicBool,
    /// With a sign in each pause, one whose answer takes longer is late.
    late_ms: u64,
}

impl Pulse {
    /// A sign was given just now.
    pub fn new(owner_lost_ms: u64) -> Self {
        Self {
            opened: Instant::now(),
            last_ms: AtomicU64::new(0),
            patience_ms: owner_lost_ms / 2,
            has_company: AtomicBool::new(false),
            late_ms: beat_ms(owner_lost_ms) + LATE_MS,
        }
    }

    /// A sign that was given at this time has its answer. Others may have seen it at once: the answer's own time says nothing.
    pub fn answered(&self, given: Instant) {
        self.last_ms.fetch_max(self.ms(given), Ordering::Relaxed);
    }

    /// Whether the last look showed others that live.
    pub fn saw_company(&self, has_company: bool) {
        self.has_company.store(has_company, Ordering::Relaxed);
    }

    /// See [`EventStore::has_company`](super::EventStore::has_company).
    pub fn has_company(&self) -> bool {
        self.has_company.load(Ordering::Relaxed)
    }

    /// See [`EventStore::is_cut_off`](super::EventStore::is_cut_off).
    pub fn is_cut_off(&self) -> bool {
        self.is_cut_off_at(Instant::now())
    }

    /// For how long the store has answered no sign, where that is longer than it takes.
    pub fn silent_ms(&self) -> Option<u64> {
        self.silent_at(Instant::now())
    }

    fn silent_at(&self, now: Instant) -> Option<u64> {
        let silent_ms = self.ms(now).saturating_sub(self.last_ms.load(Ordering::Relaxed));
        (silent_ms >= self.late_ms).then_some(silent_ms)
    }

    fn is_cut_off_at(&self, now: Instant) -> bool {
        self.ms(now).saturating_sub(self.last_ms.load(Ordering::Relaxed)) >= self.patience_ms
    }

    fn ms(&self, at: Instant) -> u64 {
        ms(at.saturating_duration_since(self.opened))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: u64 = 10_000;

    #[test]
    fn o18_an_owner_is_cut_off_when_no_sign_of_half_the_time_had_an_answer() {
        let pulse = Pulse::new(LOST);
        let at = |ms| pulse.opened + Duration::from_millis(ms);
        let is_cut_off = |ms| pulse.is_cut_off_at(at(ms));
        assert!(!is_cut_off(0) && !is_cut_off(4_999) && is_cut_off(5_000));
        // It was given before the others begin to count, however late its answer came.
        pulse.answered(at(2_500));
        assert!(!is_cut_off(7_499) && is_cut_off(7_500));
        pulse.answered(at(1_000));
        assert!(!is_cut_off(7_499), "an answer that was overtaken");
        assert!(!pulse.is_cut_off());
    }

    #[test]
    fn o18_a_beat_whose_answer_took_long_is_followed_by_another_at_once() {
        let (given, pause) = (Instant::now(), Duration::from_millis(beat_ms(LOST)));
        assert_eq!(next_beat(given, pause), given + pause);
        // Its answer shows that this one is no longer cut off only where it was given a short while ago.
        let pulse = Pulse::new(LOST);
        let answered = pulse.opened + Duration::from_secs(13);
        pulse.answered(pulse.opened);
        assert!(pulse.is_cut_off_at(answered) && next_beat(pulse.opened, pause) < answered);
    }

    #[test]
    fn a_store_that_is_away_is_known_to_be_within_two_seconds() {
        // One that answers no more: the sign after the last answer is late.
        let pulse = Pulse::new(LOST);
        assert!(pulse.late_ms < 2_000 && pulse.silent_ms().is_none());
        assert!(pulse.silent_at(pulse.opened + Duration::from_millis(1_999)).is_some());
        assert!(pulse.silent_at(pulse.opened + Duration::from_millis(beat_ms(LOST))).is_none(), "a sign in each pause");
        // One that refuses: the next sign fails, and the one after it.
        assert!(Duration::from_millis(beat_ms(LOST)) + TROUBLE_AFTER < Duration::from_secs(2));
    }

    #[test]
    fn a_store_that_fails_is_away_after_a_moment_and_each_outage_has_two_lines() {
        let (away, now) = (Reach::default().away, Instant::now());
        let at = |ms| now + Duration::from_millis(ms);
        assert!(!away.seen_at(at(0)) && away.lasts_at(at(0)).is_none(), "a connection broke, and the next one is made");
        assert_eq!(away.over_at(at(100)), None, "which is no outage");
        assert!(!away.seen_at(at(1_000)) && !away.seen_at(at(1_400)));
        assert_eq!(away.lasts_at(at(1_500)), Some(500));
        assert_eq!([1_600, 2_000, 9_000].map(|ms| away.seen_at(at(ms))), [true, false, false]);
        assert_eq!((away.lasts_at(at(9_000)), away.over_at(at(9_500))), (Some(8_000), Some(8_500)));
        assert_eq!((away.lasts_at(at(9_600)), away.over_at(at(9_600))), (None, None));
    }

    #[test]
    fn a_store_that_is_silent_is_away_in_the_log_as_for_health_until_it_answers() {
        let (reach, now) = (Reach::default(), Instant::now());
        let at = |ms| now + Duration::from_millis(ms);
        assert!(!reach.tells_silence_at(at(0)));
        reach.silent_at(at(1_800), Some(1_800));
        assert_eq!(reach.away_at(at(1_800)), Some(1_800));
        assert_eq!([1_800, 1_900].map(|ms| reach.tells_silence_at(at(ms))), [true, false], "before anything failed");
        let is_explained = |ms| !reach.lost_at(at(ms)) && reach.away.is_explained_now();
        assert_eq!([5_000, 5_100, 9_000].map(is_explained), [true, false, false], "and why, when it is known");
        assert_eq!(reach.away_at(at(9_000)), Some(9_000), "since one time");
        reach.back();
        assert_eq!(reach.away_at(at(9_500)), Some(9_500), "what reads is answered, and no sign of life");
        reach.lost_at(at(9_600));
        reach.silent_at(at(9_700), None);
        assert_eq!(reach.away_at(at(9_700)), Some(9_700), "a sign is answered, and the next operation failed");
        reach.back();
        assert_eq!(
            (reach.away_at(at(9_800)), reach.away.over_at(at(9_800))),
            (None, None),
            "the log has said that it is back"
        );
        // One that fails before it is silent.
        assert_eq!([10_000, 10_600].map(|ms| reach.lost_at(at(ms))), [false, true]);
        reach.silent_at(at(11_000), Some(1_500));
        let lines = (reach.tells_silence_at(at(11_000)), reach.lost_at(at(11_100)), reach.away.is_explained_now());
        assert_eq!(lines, (false, false, false), "one line");
        assert_eq!(reach.away_at(at(11_000)), Some(1_500));
    }

    #[test]
    fn a_store_that_is_away_does_not_refuse_what_is_written() {
        let (reach, now) = (Reach::default(), Instant::now());
        let at = |ms| now + Duration::from_millis(ms);
        assert_eq!([0, 400].map(|ms| reach.refused_at(at(ms))), [false, false]);
        assert_eq!(reach.refused_ms(), None, "it may have been at fault itself");
        assert_eq!([600, 700].map(|ms| reach.refused_at(at(ms))), [true, false], "it is told once");
        assert_eq!(reach.refusing.over_at(at(900)), Some(900));
        reach.lost_at(at(1_000));
        assert_eq!([1_600, 9_000].map(|ms| reach.refused_at(at(ms))), [false, false], "its line says more");
    }

    #[test]
    fn owners_that_nobody_looks_at_are_forgotten() {
        let mut sightings = Sightings::new(LOST);
        for at in 0..100_000 {
            sightings.saw(&format!("owner {at}"), Some(1), Ms(at * LOST));
        }
        assert!(sightings.seen.len() as u64 <= KEPT + 1, "{}", sightings.seen.len());
    }
}
