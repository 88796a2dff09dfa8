//! The owners of logs besides this store object: which of them are gone.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::queue::lock;
use crate::Ms;
use crate::store::liveness::Sightings;

/// The beat of an owner that said goodbye.
const GOODBYE: i64 = -1;
/// For how long the database is told of one after it was seen.
const KEPT: Duration = Duration::from_secs(60);

pub(super) struct Owners {
    opened: Instant,
    lost_ms: u64,
    seen: Mutex<Seen>,
}

struct Seen {
    sightings: Sightings,
    /// With the beat at which it stood still, and when it was last seen so.
    lost: HashMap<i64, (i64, Instant)>,
}

impl Owners {
    pub(super) fn new(owner_lost_ms: u64) -> Self {
        let seen = Seen { sightings: Sightings::new(owner_lost_ms), lost: HashMap::new() };
        Self { opened: Instant::now(), lost_ms: owner_lost_ms, seen: Mutex::new(seen) }
    }

    /// The database has this beat of an owner, or none. Returns for how many milliseconds it is known to give no sign.
    pub(super) fn saw(&self, owner: i64, beat: Option<i64>) -> u64 {
        let now = Ms(self.opened.elapsed().as_millis().try_into().unwrap_or(u64::MAX));
        let mut seen = lock(&self.seen);
        let unseen_ms = match beat {
            Some(GOODBYE) => u64::MAX,
            beat => seen.sightings.saw(&owner.to_string(), beat.map(i64::cast_unsigned), now),
        };
        match beat.filter(|_| unseen_ms >= self.lost_ms) {
            Some(beat) => seen.lost.insert(owner, (beat, Instant::now())),
            None => seen.lost.remove(&owner),
        };
        unseen_ms
    }

    /// Those that are gone, and their beats: the database does nothing to one that has another beat by now.
    pub(super) fn lost(&self) -> (Vec<i64>, Vec<i64>) {
        let mut seen = lock(&self.seen);
        seen.lost.retain(|_, (_, at)| at.elapsed() < KEPT);
        seen.lost.iter().map(|(owner, (beat, _))| (*owner, *beat)).unzip()
    }
}
