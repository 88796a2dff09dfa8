//! Who has how many of the places for sessions (I11).
//!
//! A session takes its place with the first request that it admits, because only then it is known whose session it is.
//! Where no place is left, or its principal has its share, the idlest session of the same principal gives way: nobody
//! loses a session to somebody else. The lock of the places comes before that of a session, never after it.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;

use crate::Ms;
use crate::engine::sessions::SessionHandle;
use crate::engine::sessions::cell::{Cell, Look};
use crate::engine::shared::lock;
use crate::engine::stats::Counters;
use crate::engine::{EngineError, Options};
use crate::sync::atomic::Ordering;
use crate::sync::{Arc, Weak};

/// How many sessions are looked at for one newcomer.
const MAX_LOOKS: usize = 64;

const ALL: &str = "max_sessions";
const OF_PRINCIPAL: &str = "max_sessions_per_principal";

struct Place {
    cell: Weak<Cell>,
    principal: Option<Arc<str>>,
    /// The session was not idle then. It may have had contact since.
    known: Ms,
}

/// The places that are taken.
#[derive(Default)]
pub(crate) struct Places {
    by_number: HashMap<u64, Place>,
    /// The sessions of each principal, by the last contact that is known. A session that had contact since then is put back
    /// in its right place when the idlest one is looked for.
    by_principal: HashMap<Option<Arc<str>>, BTreeSet<(Ms, u64)>>,
    /// The bounds that an operator was warned of.
    warned: Vec<&'static str>,
}

/// A bound that is reached: the option, and its number.
type Reached = (&'static str, usize);

impl Places {
    /// Takes a place for a session that has none. The session that gives way to it, if one has to, and the bound which
    /// that is for.
    fn take(
        &mut self,
        newcomer: &Cell,
        principal: Option<Arc<str>>,
        now: Ms,
        options: &Options,
    ) -> Result<Option<(Arc<Cell>, Reached)>, EngineError> {
        let mut left = None;
        if let Some(reached) = self.reached(&principal, options) {
            match self.make_room(&principal, now) {
                None => return Err(EngineError::TooManySessions { option: reached.0, max: reached.1 }),
                Some(cell) => left = cell.map(|cell| (cell, reached)),
            }
        }
        self.by_principal.entry(principal.clone()).or_default().insert((now, newcomer.number));
        self.by_number.insert(newcomer.number, Place { cell: newcomer.me.clone(), principal, known: now });
        Ok(left)
    }

    fn reached(&self, principal: &Option<Arc<str>>, options: &Options) -> Option<Reached> {
        let (max, max_of_principal) = (options.max_sessions, options.max_sessions_per_principal);
        let share = self.by_principal.get(principal).map_or(0, BTreeSet::len);
        if principal.is_some() && share >= max_of_principal {
            Some((OF_PRINCIPAL, max_of_principal))
        } else {
            (self.by_number.len() >= max).then_some((ALL, max))
        }
    }

    /// Frees a place of this principal: that of its idlest session, which is to be ended then, or that of one which has
    /// ended. None when all that were looked at are in use.
    fn make_room(&mut self, principal: &Option<Arc<str>>, now: Ms) -> Option<Option<Arc<Cell>>> {
        let mut last = Bound::Unbounded;
        for _ in 0..MAX_LOOKS {
            let share = self.by_principal.get(principal)?;
            let (known, number) = *share.range((last, Bound::Unbounded)).next()?;
            last = Bound::Excluded((known, number));
            let cell = self.by_number.get(&number).and_then(|place| place.cell.upgrade());
            match cell.as_ref().map_or(Look::HasEnded, |cell| cell.look(known, now)) {
                Look::GivesWay => {
                    self.leave(number);
                    return Some(cell);
                }
                Look::HasEnded => {
                    self.leave(number);
                    return Some(None);
                }
                Look::HadContact(at) => self.put_back(number, at),
                Look::IsInUse => self.put_back(number, now),
            }
        }
        None
    }

    fn put_back(&mut self, number: u64, known: Ms) {
        if let Some(place) = self.by_number.get_mut(&number)
            && let Some(share) = self.by_principal.get_mut(&place.principal)
        {
            share.remove(&(place.known, number));
            share.insert((known, number));
            place.known = known;
        }
    }

    /// The session needs its place no longer, if it had one.
    pub(crate) fn leave(&mut self, number: u64) {
        let Some(Place { principal, known, .. }) = self.by_number.remove(&number) else { return };
        if let Some(share) = self.by_principal.get_mut(&principal) {
            share.remove(&(known, number));
            if share.is_empty() {
                self.by_principal.remove(&principal);
            }
        }
    }

    /// The engine is released, and ends no session any more.
    pub(crate) fn clear(&mut self) {
        self.by_number.clear();
        self.by_principal.clear();
    }
}

impl Cell {
    /// Takes the session's place among the others, unless it has one.
    pub(crate) fn take_place(&self) -> Result<(), EngineError> {
        if self.has_place.load(Ordering::Relaxed) {
            return Ok(());
        }
        let shared = &self.shared;
        shared.check()?;
        let now = self.now();
        let mut is_first = false;
        let taken = {
            let mut places = lock(&shared.places);
            if places.by_number.contains_key(&self.number) {
                return Ok(());
            }
            // An end that comes from now on waits for the lock of the places, and frees this one.
            let principal = self.principal_while_open()?;
            let taken = places.take(self, principal, now, &shared.options);
            if let Ok(Some((_, (option, _)))) = &taken {
                is_first = !places.warned.contains(option);
                places.warned.extend(is_first.then_some(option));
            }
            taken
        };
        match taken {
            Err(error) => {
                tracing::warn!(
                    target: "tailrope", session = %self.name,
                    "a new session is refused: {error}, and its user has no idle one that could end for it. Clients that end \
                     their sessions with DELETE, a shorter idle time or a larger bound avoid this"
                );
                Err(error)
            }
            Ok(left) => {
                self.has_place.store(true, Ordering::Relaxed);
                if let Some((cell, reached)) = left {
                    cell.leave_for(&self.name, reached, is_first);
                }
                Ok(())
            }
        }
    }

    /// Ends the session for one that needs its place.
    fn leave_for(self: &Arc<Self>, newcomer: &str, (option, max): Reached, is_first: bool) {
        self.end();
        Counters::add(&self.shared.counters.sessions_gave_way, 1);
        lock(&self.shared.ended).push(SessionHandle::new(Arc::clone(self)));
        if is_first {
            tracing::warn!(
                target: "tailrope", session = %self.name, newcomer, option, max,
                "a session ended before its idle time: its user opened one more than fits. Clients that end their sessions \
                 with DELETE, a shorter idle time or a larger bound avoid this. The next ones are logged at level debug"
            );
        } else {
            tracing::debug!(
                target: "tailrope", session = %self.name, newcomer, option, max, "a session ended for a newer one of its user"
            );
        }
    }
}
