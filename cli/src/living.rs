//! Which owners of sessions live: whose count in the store grows while it is looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;
use tailrope_stores::inspect::{Beat, Inspect, SessionSeen};

/// An owner that gave no sign for so long gives none: the slowest gives one every 2.5 seconds.
const PATIENCE: Duration = Duration::from_secs(4);
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// It gave a sign of life while it was looked at.
    Lives,
    /// It gave none.
    Silent,
    /// It ended in order.
    Closed,
    /// The store has nothing of it.
    Unknown,
    /// The session has none: it was let go, and anybody may take it over.
    Released,
}

impl State {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lives => "lives",
            Self::Silent => "silent",
            Self::Closed => "closed",
            Self::Unknown => "unknown",
            Self::Released => "released",
        }
    }
}

/// Who writes a session.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Owner {
    id: Option<String>,
    state: State,
    epoch: u64,
}

impl Owner {
    pub(crate) fn lives(&self) -> bool {
        self.state == State::Lives
    }

    pub(crate) fn shown(&self) -> String {
        match &self.id {
            Some(id) => format!("{} {}", &id[..id.len().min(8)], self.state.name()),
            None => self.state.name().to_owned(),
        }
    }
}

/// What became of the owners of some sessions.
pub(crate) struct Owners(BTreeMap<String, State>);

impl Owners {
    /// Looks at the owners until each has given a sign of life, or had the time to.
    pub(crate) fn look<'a>(
        store: &mut dyn Inspect,
        sessions: impl Iterator<Item = &'a SessionSeen>,
    ) -> Result<Self, String> {
        let names: BTreeSet<&str> = sessions.filter_map(|session| session.owner.as_deref()).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let first = store.beats(&names)?;
        let mut states = BTreeMap::new();
        let mut open = Vec::new();
        for (name, beat) in names.into_iter().zip(first) {
            match beat {
                Beat::Closed => _ = states.insert(name.to_owned(), State::Closed),
                Beat::Unknown => _ = states.insert(name.to_owned(), State::Unknown),
                Beat::Count(_) => open.push((name, beat)),
            }
        }
        let begun = Instant::now();
        while !open.is_empty() && begun.elapsed() < PATIENCE {
            sleep(PAUSE);
            let names: Vec<&str> = open.iter().map(|(name, _)| *name).collect();
            let beats = store.beats(&names)?;
            let mut still = Vec::new();
            for ((name, before), beat) in open.into_iter().zip(beats) {
                match beat {
                    Beat::Count(_) if beat == before => still.push((name, before)),
                    Beat::Count(_) => _ = states.insert(name.to_owned(), State::Lives),
                    Beat::Closed => _ = states.insert(name.to_owned(), State::Closed),
                    Beat::Unknown => _ = states.insert(name.to_owned(), State::Unknown),
                }
            }
            open = still;
        }
        states.extend(open.into_iter().map(|(name, _)| (name.to_owned(), State::Silent)));
        Ok(Self(states))
    }

    pub(crate) fn of(&self, session: &SessionSeen) -> Owner {
        let known = |id: &String| self.0.get(id).copied().unwrap_or(State::Unknown);
        let state = session.owner.as_ref().map_or(State::Released, known);
        Owner { id: session.owner.clone(), state, epoch: session.epoch }
    }
}
