//! The places for sessions, and how many of them each account has (I11).
//!
//! A session takes its place with the first request that it admits, because only then is it known whose session it is.
//! An account is the strongest fact about a user: nobody gets a second share by a header that they made up. If no place is
//! left, or the account has its share, the idlest session of the same principal gives way: nobody loses a session to
//! somebody else. The lock of the places is taken before that of a session, never after it.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;

use crate::Ms;
use crate::engine::{EngineError, Options};
use crate::exchange::Principal;
use crate::maps::OwnMap;

/// How many sessions are looked at for one newcomer.
const MAX_LOOKS: usize = 64;

const ALL: &str = "max_sessions";
const OF_PRINCIPAL: &str = "max_sessions_per_principal";

/// Whether a session gives way to a newcomer that has no place.
#[derive(PartialEq)]
pub(crate) enum Standing {
    /// Nothing holds the session.
    GivesWay,
    HasEnded,
    /// It had contact later than was known.
    HadContact(Ms),
    IsInUse,
}

struct Place {
    principal: Option<Principal>,
    /// When the session was last known not to be idle. It may have had contact since.
    known: Ms,
}

/// The account that a session or a task counts for; empty for those of nobody.
pub(crate) fn account(principal: Option<&Principal>) -> &str {
    principal.map_or("", Principal::account)
}

/// The places that are taken.
#[derive(Default)]
pub(crate) struct Places {
    by_number: OwnMap<u64, Place>,
    /// The sessions of each account, by the last contact that is known. A session that had contact since then is put back
    /// in its right place when the idlest one is looked for.
    by_account: HashMap<Box<str>, BTreeSet<(Ms, u64)>>,
    /// The bounds that an operator was warned of.
    warned: Vec<&'static str>,
}

/// A bound that is reached: the option, and its number.
pub(crate) type Reached = (&'static str, usize);

impl Places {
    /// Takes a place for a session that has none. Returns the session that gives way to it, if one has to, and the
    /// bound that was reached. `look` says whether a session gives way: it gets the session's number and the last
    /// contact that is known here.
    pub(crate) fn take(
        &mut self,
        newcomer: u64,
        principal: Option<Principal>,
        now: Ms,
        options: &Options,
        look: impl Fn(u64, Ms) -> Standing,
    ) -> Result<Option<(u64, Reached)>, EngineError> {
        let mut left = None;
        if let Some(reached) = self.reached(&principal, options) {
            match self.make_room(&principal, now, look) {
                None => return Err(EngineError::TooManySessions { option: reached.0, max: reached.1 }),
                Some(number) => left = number.map(|number| (number, reached)),
            }
        }
        self.by_account.entry(account(principal.as_ref()).into()).or_default().insert((now, newcomer));
        self.by_number.insert(newcomer, Place { principal, known: now });
        Ok(left)
    }

    fn reached(&self, principal: &Option<Principal>, options: &Options) -> Option<Reached> {
        let (max, max_of_principal) = (options.max_sessions, options.max_sessions_per_principal);
        let share = self.by_account.get(account(principal.as_ref())).map_or(0, BTreeSet::len);
        if principal.is_some() && share >= max_of_principal {
            Some((OF_PRINCIPAL, max_of_principal))
        } else {
            (self.by_number.len() >= max).then_some((ALL, max))
        }
    }

    /// Frees a place of this principal: that of its idlest session, which is to be ended then, or that of one which has
    /// ended. None when all that were looked at are in use.
    fn make_room(
        &mut self,
        principal: &Option<Principal>,
        now: Ms,
        look: impl Fn(u64, Ms) -> Standing,
    ) -> Option<Option<u64>> {
        let mut last = Bound::Unbounded;
        for _ in 0..MAX_LOOKS {
            let share = self.by_account.get(account(principal.as_ref()))?;
            let (known, number) = *share.range((last, Bound::Unbounded)).next()?;
            last = Bound::Excluded((known, number));
            if self.by_number.get(&number).is_some_and(|place| place.principal != *principal) {
                continue;
            }
            match look(number, known) {
                Standing::HadContact(at) => self.put_back(number, at),
                Standing::IsInUse => self.put_back(number, now),
                standing => {
                    self.leave(number);
                    return Some((standing == Standing::GivesWay).then_some(number));
                }
            }
        }
        None
    }

    fn put_back(&mut self, number: u64, known: Ms) {
        if let Some(place) = self.by_number.get_mut(&number)
            && let Some(share) = self.by_account.get_mut(account(place.principal.as_ref()))
        {
            share.remove(&(place.known, number));
            share.insert((known, number));
            place.known = known;
        }
    }

    /// Frees the place of a session, if it had one.
    pub(crate) fn leave(&mut self, number: u64) {
        let Some(Place { principal, known }) = self.by_number.remove(&number) else { return };
        let account = account(principal.as_ref());
        if let Some(share) = self.by_account.get_mut(account) {
            share.remove(&(known, number));
            if share.is_empty() {
                self.by_account.remove(account);
            }
        }
    }

    pub(crate) fn has(&self, number: u64) -> bool {
        self.by_number.contains_key(&number)
    }

    /// Whether this is the first time that an operator is to be warned of a bound.
    pub(crate) fn warns(&mut self, option: &'static str) -> bool {
        let is_first = !self.warned.contains(&option);
        self.warned.extend(is_first.then_some(option));
        is_first
    }
}
