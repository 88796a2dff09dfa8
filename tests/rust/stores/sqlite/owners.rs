//! Owners of a SQLite file's sessions: what others do to their logs, and when they count as lost.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use super::store::swept;
use crate::kit::events::sized;
use crate::kit::eventually::{PATIENCE, eventually};
use crate::kit::folder::Folder;
use tailrope_core::Ms;
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::contract::{Caller, Log};
use tailrope_core::store::{
    Attach, Attached, Complete, Epoch, EventStore, Hold, Limits, Operation, Outcome, Owner, ReadLimit, SessionRecord,
    SqliteStore, StoreError, StoreOptions, Ticket, Watch,
};

/// With this a store gives a sign of life, and looks for those of others, every few milliseconds.
const OFTEN: u64 = 30;

fn at(path: &Path) -> SqliteStore {
    SqliteStore::open(path, &StoreOptions::default()).expect("the file can be opened")
}

/// What this one sees of the owner of a log's session.
fn owner_of(caller: &Caller<'_>, log: &Log) -> Option<Owner> {
    caller.read(log, 0, ReadLimit::default()).expect("it is there").owner
}

/// A session that this epoch had, taken over.
fn take_over(heir: &Caller<'_>, session: &str, seen: Epoch) {
    let hold = Hold { epoch: heir.epoch, seen: Some(seen), record: None };
    assert_eq!(heir.try_hold(session, &hold).map(|running| running.len()), Ok(1), "its log has no end");
}

fn count_of(file: &Path, rows: &str) -> i64 {
    let db = rusqlite::Connection::open(file).unwrap();
    db.query_row(&format!("SELECT count(*) FROM {rows}"), [], |row| row.get(0)).unwrap()
}

#[test]
fn an_owner_is_told_what_others_do_to_its_sessions() {
    struct Hints(Mutex<Sender<()>>);
    impl Watch for Hints {
        fn changed(&self, _nonce: StreamNonce) {
            let _ = self.0.lock().unwrap().send(());
        }
    }
    let folder = Folder::new();
    let file = folder.path("a.db");
    let (owner, heir) = (at(&file), at(&file));
    let of_owner = Caller::new(&owner, Ms(0));
    let of_heir = Caller::new(&heir, Ms(0)).with(Epoch { number: 2, salt: 8 });
    let log = of_owner.open("s", 1);
    let (tell, told) = channel();
    let hints: Arc<dyn Watch> = Arc::new(Hints(Mutex::new(tell)));
    owner.watch(&log.key, &Arc::downgrade(&hints));
    let is_told = |what: &str| assert!(told.recv_timeout(PATIENCE).is_ok(), "rule 13: {what}");
    is_told("who begins to watch is told to look");
    let attach = Attach { stream: Some(log.key.nonce), counts: true, ..Attach::default() };
    assert_eq!(of_heir.attach("s", &attach).log.map(|log| log.page.readers), Some(1));
    is_told("a reader");
    take_over(&of_heir, "s", of_owner.epoch);
    is_told("an heir");
    assert_eq!(of_heir.append(&log, 1, &[sized(1)]), Ok(()));
    is_told("an event of the heir");
    heir.drop_session("s", of_heir.epoch);
    is_told("a drop");
}

#[test]
fn what_is_written_together_sees_what_was_asked_before() {
    struct Outcomes(Mutex<Sender<Outcome>>);
    impl Complete for Outcomes {
        fn complete(&self, _ticket: &Ticket, outcome: Outcome) {
            self.0.lock().unwrap().send(outcome).unwrap();
        }
    }
    let folder = Folder::new();
    let file = folder.path("a.db");
    let store = at(&file);
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    let (tell, told) = channel();
    let to: Arc<dyn Complete> = Arc::new(Outcomes(Mutex::new(tell)));
    let nonce = log.key.nonce;
    let ticket = |number| Ticket { to: Arc::downgrade(&to), nonce, operation: Operation::Append, number };
    let append = |log: &Log, epoch, number| {
        let _ = store.append(Ms(0), &log.key, epoch, &log.append(log.head() + 1, &[sized(1)]), &ticket(number));
    };
    let (epoch, heir) = (caller.epoch, Epoch { number: 2, salt: 8 });
    let counts = Attach { stream: Some(nonce), counts: true, ..Attach::default() };
    let hold = Hold { epoch: heir, seen: Some(epoch), record: None };
    // While another process has the file all of it waits, to be written in one transaction or two.
    let locking = rusqlite::Connection::open(&file).unwrap();
    locking.execute_batch("BEGIN IMMEDIATE").unwrap();
    for number in 0..20 {
        append(&log, epoch, 2 * number);
        log.events.push(sized(1));
        let _ = store.attach("s", &counts, &ticket(2 * number + 1));
    }
    append(&log, epoch, 40);
    log.events.push(sized(1));
    let _ = store.hold("s", &hold, &ticket(41));
    append(&log, epoch, 42);
    store.drop_session("s", heir);
    append(&Log::new("s", 2), heir, 43);
    locking.execute_batch("COMMIT").unwrap();
    let next = || told.recv_timeout(PATIENCE).expect("it is answered");
    for count in 1..=20 {
        assert!(matches!(next(), Outcome::Done(Ok(()))));
        let Outcome::Attached(Ok(Attached { log: Some(found), .. })) = next() else { panic!("it is found") };
        assert_eq!((found.page.page.head, found.page.readers), (count, count));
    }
    assert!(matches!(next(), Outcome::Done(Ok(()))));
    let Outcome::Held(Ok(running)) = next() else { panic!("it is taken over") };
    assert_eq!(running.iter().map(|log| log.head).collect::<Vec<_>>(), [21]);
    assert!(matches!(next(), Outcome::Done(Err(StoreError::Fenced))));
    assert!(matches!(next(), Outcome::Done(Err(StoreError::Gone))));
}

#[test]
fn an_owner_whose_row_is_gone_writes_it_again() {
    let folder = Folder::new();
    let file = folder.path("a.db");
    let options = StoreOptions { owner_lost_ms: OFTEN, ..StoreOptions::default() };
    let _owner = SqliteStore::open(&file, &options).expect("the file can be opened");
    rusqlite::Connection::open(&file).unwrap().execute_batch("DELETE FROM owner").unwrap();
    eventually("it gives signs again", || count_of(&file, "owner") == 1);
}

#[test]
fn all_of_an_owner_that_gives_no_signs_goes_in_the_end() {
    let folder = Folder::new();
    let file = folder.path("a.db");
    let time = Arc::new(AtomicU64::new(1_000_000));
    let clock = Arc::clone(&time);
    let owner = at(&file);
    let of_owner = Caller::new(&owner, Ms(0));
    let log = of_owner.open("s", 1);
    // More than one transaction removes.
    (0..300).for_each(|number| of_owner.hold(&format!("t {number}"), SessionRecord::default()));
    drop(owner);
    // As if its process had been killed.
    rusqlite::Connection::open(&file).unwrap().execute_batch("UPDATE owner SET beat = 0, lost = NULL").unwrap();
    let options = StoreOptions {
        limits: Limits { max_age_ms: 60_000, ..Limits::default() },
        owner_lost_ms: OFTEN,
        wall_clock: Some(Arc::new(move || clock.load(Ordering::SeqCst))),
        ..StoreOptions::default()
    };
    let other = SqliteStore::open(&file, &options).expect("the file can be opened");
    let caller = Caller::new(&other, Ms(0));
    eventually("it is lost", || count_of(&file, "owner WHERE lost = 1000000") == 1);
    time.fetch_add(60_000, Ordering::SeqCst);
    swept(&file);
    assert!(owner_of(&caller, &log).is_some_and(|owner| owner.unseen_ms >= OFTEN));
    time.fetch_add(1, Ordering::SeqCst);
    eventually("all of it goes", || count_of(&file, "session") == 0 && count_of(&file, "owner") == 1);
    assert!(caller.session("s", None).is_none() && caller.log(&log).is_none());
}
