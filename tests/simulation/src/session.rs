//! A session in the simulated store.

use std::collections::{BTreeMap, BTreeSet};

use tailrope_core::Ms;
use tailrope_core::store::{Epoch, SessionRecord};

use crate::inbox::Inbox;
use crate::log::{Log, Version};

/// Whose a session is, and what is kept of it.
#[derive(Clone)]
pub(crate) struct Held {
    pub(crate) record: SessionRecord,
    pub(crate) epoch: Epoch,
    pub(crate) owner: usize,
    pub(crate) is_released: bool,
}

pub(crate) struct Session {
    pub(crate) held: Held,
    /// What that was before, and until when.
    pub(crate) before: Vec<(Ms, Held)>,
    /// It may be taken over: its owner let it go, or did something wrong and was seen to give no sign.
    pub(crate) is_left: bool,
    /// The store objects that owned it and do not know yet that it was taken from them, when it might be.
    pub(crate) robbed: BTreeSet<usize>,
    /// Those that own it and were forgotten by the store. Nobody has taken it since.
    pub(crate) forgotten: BTreeSet<usize>,
    /// The salt with which each number has written since the store was set back last.
    pub(crate) written: BTreeMap<u64, u64>,
    pub(crate) logs: BTreeMap<[u8; 12], Log>,
    /// Where logs stood, and the streams that they are of, before the store lost something of them that is not back.
    pub(crate) lost: BTreeMap<[u8; 12], (String, Version)>,
    pub(crate) inbox: Inbox,
}

impl Session {
    pub(crate) fn set(&mut self, now: Ms, held: Held) {
        let before = std::mem::replace(&mut self.held, held);
        self.before.push((now, before));
    }

    /// The store forgets what was done after this time. Whether it had another owner then.
    pub(crate) fn set_back_to(&mut self, time: Ms) -> bool {
        self.written.clear();
        let kept = self.before.iter().take_while(|(until, _)| *until <= time).count();
        let Some((_, held)) = self.before.get(kept).cloned() else { return false };
        let lost = self.before.drain(kept..).map(|(_, held)| held);
        let lost = lost.chain([std::mem::replace(&mut self.held, held)]);
        let later: Vec<usize> =
            lost.filter(|lost| lost.epoch.number > self.held.epoch.number).map(|lost| lost.owner).collect();
        self.is_left |= !later.is_empty();
        self.forgotten.extend(&later);
        !later.is_empty()
    }

    /// Something is written with the session's epoch. Whether another one of the same number has written before.
    pub(crate) fn is_written_by_two(&mut self) -> bool {
        let Epoch { number, salt } = self.held.epoch;
        *self.written.entry(number).or_insert(salt) != salt
    }

    /// The store object of its owner; none of one that was let go.
    pub(crate) fn owner(&self) -> Option<usize> {
        (!self.held.is_released).then_some(self.held.owner)
    }
}
