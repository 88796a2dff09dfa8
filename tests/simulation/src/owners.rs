//! The store objects: each counts beats in the store while it lives, and the others look at them.

use tailrope_core::Ms;
use tailrope_core::store::{Sightings, beat_ms};

/// Pause before a beat that the store did not answer is tried again.
const AGAIN_MS: u64 = 500;

struct Owner {
    node: usize,
    owner_lost_ms: u64,
    /// What it counts to, and what of that the store has.
    beats: u64,
    stored: u64,
    last: Ms,
    due: Ms,
    /// Others may have missed it since its last beat, by no fault of the store.
    has_failed: bool,
    is_dead: bool,
    seen: Sightings,
}

#[derive(Default)]
pub(crate) struct Owners(Vec<Owner>);

/// What a look at an owner showed.
pub(crate) struct Look {
    pub(crate) unseen_ms: u64,
    pub(crate) is_lost: bool,
    /// It was paused, cut off or dead, so it may be taken for lost.
    pub(crate) has_failed: bool,
    /// It lives, and gave no sign for so long that a clock would have it lost.
    pub(crate) is_spared: bool,
}

impl Owners {
    pub(crate) fn add(&mut self, node: usize, owner_lost_ms: u64, now: Ms) -> usize {
        let seen = Sightings::new(owner_lost_ms);
        let (beats, stored, has_failed, is_dead) = (1, 1, false, false);
        self.0.push(Owner { node, owner_lost_ms, beats, stored, last: now, due: now, has_failed, is_dead, seen });
        self.0.len() - 1
    }

    pub(crate) fn node(&self, owner: usize) -> usize {
        self.0[owner].node
    }

    /// Its process has not been replaced by another one.
    pub(crate) fn is_there(&self, owner: usize) -> bool {
        self.0[owner + 1..].iter().all(|later| later.node != self.0[owner].node)
    }

    /// When the owner tries its next beat.
    pub(crate) fn due(&self, owner: usize) -> Ms {
        self.0[owner].due
    }

    /// The process runs.
    pub(crate) fn beat(&mut self, owner: usize, now: Ms, is_answered: bool) {
        let owner = &mut self.0[owner];
        if owner.due > now {
            return;
        }
        owner.due = now + if is_answered { beat_ms(owner.owner_lost_ms) } else { AGAIN_MS };
        if is_answered {
            owner.beats += 1;
            (owner.stored, owner.last, owner.has_failed) = (owner.beats, now, false);
        }
    }

    /// No beat was answered for half of the time after which others take it for gone.
    pub(crate) fn is_cut_off(&self, owner: usize, now: Ms) -> bool {
        let owner = &self.0[owner];
        now.since(owner.last) >= owner.owner_lost_ms / 2
    }

    pub(crate) fn has_failed(&mut self, owner: usize) {
        self.0[owner].has_failed = true;
    }

    pub(crate) fn died(&mut self, owner: usize) {
        (self.0[owner].has_failed, self.0[owner].is_dead) = (true, true);
    }

    /// The store loses the last beats of an owner, which hears of that and tries the next one at once.
    pub(crate) fn set_back(&mut self, owner: usize, by: u64, now: Ms) {
        let owner = &mut self.0[owner];
        (owner.stored, owner.due) = (owner.stored.saturating_sub(by), now);
    }

    pub(crate) fn look(&mut self, observer: usize, owner: usize, now: Ms) -> Look {
        let Owner { stored, last, has_failed, is_dead, .. } = self.0[owner];
        let observer = &mut self.0[observer];
        let unseen_ms = observer.seen.saw(&owner.to_string(), Some(stored), now);
        let is_lost = unseen_ms >= observer.owner_lost_ms;
        let is_spared = !is_lost && !is_dead && now.since(last) >= observer.owner_lost_ms;
        Look { unseen_ms, is_lost, has_failed, is_spared }
    }
}
