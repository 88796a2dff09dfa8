//! Signs of life: the count that this store object keeps in the file, and what it has seen of the counts of others.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rusqlite::{Connection, OptionalExtension, Result, TransactionBehavior, params};
use tailrope_core::Ms;
use tailrope_core::store::parts::Sightings;

use super::Context;
use super::forks::Link;

/// What the last look showed of other store objects: their counts, and for how many milliseconds these stand still.
#[derive(Default)]
pub(super) struct Others(Mutex<HashMap<i64, (i64, u64)>>);

impl Others {
    /// For how many milliseconds an owner with this count is known to give no sign; for ever when it has closed its
    /// store, and has no count any more.
    pub(super) fn unseen_ms(&self, owner: i64, count: Option<i64>) -> u64 {
        let Some(count) = count else { return u64::MAX };
        self.lock().get(&owner).filter(|seen| seen.0 == count).map_or(0, |seen| seen.1)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i64, (i64, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the writer needs to give signs, and to look for those of others.
pub(super) struct Beats {
    own: i64,
    sightings: Sightings,
}

impl Beats {
    pub(super) fn new(owner_lost_ms: u64) -> Self {
        Self { own: 0, sightings: Sightings::new(owner_lost_ms) }
    }

    /// A sign of life, and a look at those of the others, at this time of a clock that never goes back. They are one
    /// transaction: where nobody can write to the file, an old count says nothing.
    pub(super) fn beat(&mut self, file: &Link, context: &Context, now: Ms) -> Result<()> {
        self.own += 1;
        let given = Instant::now();
        let counts = file.with(|db, _| {
            let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
            // Another process may have removed its row: it took this one for lost, which stood still for long.
            transaction
                .prepare_cached(
                    "INSERT INTO owner (id, beat) VALUES (?1, ?2)
                     ON CONFLICT (id) DO UPDATE SET beat = excluded.beat, lost = NULL",
                )?
                .execute(params![context.owner, self.own])?;
            let counts = {
                let mut select =
                    transaction.prepare_cached("SELECT id, beat FROM owner WHERE id <> ?1 AND beat IS NOT NULL")?;
                let rows = select.query_map(params![context.owner], |row| Ok((row.get(0)?, row.get(1)?)))?;
                rows.collect::<Result<Vec<(i64, i64)>>>()?
            };
            transaction.commit()?;
            Ok(counts)
        })?;
        context.pulse.answered(given);
        let seen = counts.into_iter().map(|(owner, count)| {
            let unseen_ms = self.sightings.saw(&owner.to_string(), Some(count.cast_unsigned()), now);
            (owner, (count, unseen_ms))
        });
        let seen: HashMap<_, _> = seen.collect();
        context.pulse.saw_company(seen.values().any(|(_, unseen_ms)| *unseen_ms < context.owner_lost_ms));
        *context.others.lock() = seen;
        Ok(())
    }
}

/// The same for an owner whose count is in the file. Without a row nothing is known.
pub(super) fn unseen_ms(db: &Connection, context: &Context, owner: i64) -> Result<u64> {
    let mut select = db.prepare_cached("SELECT beat FROM owner WHERE id = ?1")?;
    let row = select.query_row(params![owner], |row| row.get(0)).optional()?;
    Ok(row.map_or(0, |count| context.others.unseen_ms(owner, count)))
}

/// Nothing more comes of this store object.
pub(super) fn say_goodbye(db: &Connection, context: &Context) -> Result<()> {
    let values = params![context.owner, context.now()];
    db.execute("UPDATE owner SET beat = NULL, lost = ?2 WHERE id = ?1", values).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::schema;
    use tailrope_core::store::Durability;

    const LOST: u64 = 9_000;

    /// A store object that shares a file.
    struct Node {
        file: Link,
        context: Context,
        beats: Beats,
    }

    impl Node {
        fn new(owner: i64, path: &std::path::Path) -> Self {
            let again = path.to_owned();
            let open = || schema::open_writer(path, Durability::Process, "");
            let file = Link::open(open, move || schema::open_writer_again(&again, Durability::Process)).unwrap();
            // It does not wait for a lock.
            file.with(|db, _| db.busy_handler(None)).unwrap();
            Self { file, context: Context::of(owner, LOST), beats: Beats::new(LOST) }
        }

        fn beat(&mut self, now: u64) -> Result<()> {
            self.beats.beat(&self.file, &self.context, Ms(now))
        }

        fn unseen_ms(&self, other: &Self) -> u64 {
            self.file.with(|db, _| unseen_ms(db, &self.context, other.context.owner)).unwrap()
        }
    }

    #[test]
    fn another_that_gives_signs_is_company() {
        let folder = std::env::temp_dir().join(format!("tailrope-company-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (mut one, mut other) = (Node::new(1, &folder.join("a.db")), Node::new(2, &folder.join("a.db")));
        one.beat(0).unwrap();
        assert!(!one.context.pulse.has_company(), "it is alone");
        other.beat(0).unwrap();
        one.beat(3_000).unwrap();
        assert!(one.context.pulse.has_company() && other.context.pulse.has_company());
        for now in (6_000..=15_000).step_by(3_000) {
            one.beat(now).unwrap();
        }
        assert!(!one.context.pulse.has_company(), "the other stands still");
        drop((one, other));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn o14_what_nobody_can_write_to_says_nothing_of_an_owner() {
        let folder = std::env::temp_dir().join(format!("tailrope-signs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (mut owner, mut other) = (Node::new(1, &folder.join("a.db")), Node::new(2, &folder.join("a.db")));
        owner.beat(0).unwrap();
        other.beat(0).unwrap();
        let locking = Connection::open(folder.join("a.db")).unwrap();
        locking.execute_batch("BEGIN IMMEDIATE").unwrap();
        for now in (3_000..60_000).step_by(3_000) {
            assert!(owner.beat(now).is_err() && other.beat(now).is_err());
            assert_eq!(other.unseen_ms(&owner), 0);
        }
        locking.execute_batch("COMMIT").unwrap();
        // Nobody can say whose turn comes first after that.
        other.beat(60_000).unwrap();
        other.beat(63_000).unwrap();
        assert!(other.unseen_ms(&owner) < LOST, "it has had no time to give a sign");
        owner.beat(63_000).unwrap();
        assert_eq!(other.unseen_ms(&owner), 0, "it has given one since the last look");
        for now in [66_000, 69_000, 72_000, 75_000] {
            assert!(other.unseen_ms(&owner) < LOST);
            other.beat(now).unwrap();
        }
        assert_eq!(other.unseen_ms(&owner), LOST, "it stands still");
        other.file.with(|db, _| db.execute("DELETE FROM owner WHERE id = 1", [])).unwrap();
        assert_eq!(other.unseen_ms(&owner), 0, "a count that is not there proves nothing");
        owner.beat(76_000).unwrap();
        other.beat(78_000).unwrap();
        assert_eq!((other.unseen_ms(&owner), owner.unseen_ms(&other)), (0, 0));
        owner.file.with(|db, _| say_goodbye(db, &owner.context)).unwrap();
        assert_eq!(other.unseen_ms(&owner), u64::MAX);
        drop((owner, other));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
