//! Owners of a SQLite file's sessions: what others do to their logs, and when they count as lost.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};

use super::store::swept;
use crate::kit::events::sized;
use crate::kit::eventually::{PATIENCE, eventually};
use crate::kit::folder::Folder;
use tailrope_core::Ms;
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::contract::{Caller, Log, check_released};
use tailrope_core::store::{
    Attach, Attached, Complete, Epoch, EventStore, Hold, Limits, Operation, Outcome, Owner, ReadLimit, SessionRecord,
    StoreError, StoreOptions, Ticket, Watch,
};
use tailrope_stores::SqliteStore;

/// With this a store gives a sign of life, and looks for those of others, every few milliseconds.
pub(crate) const OFTEN: u64 = 30;

fn at(path: &Path) -> SqliteStore {
    tailrope_stores::sqlite::open(path, &StoreOptions::default()).expect("the file can be opened")
}

/// What this one sees of the owner of a log's session.
fn owner_of(caller: &Caller<'_>, log: &Log) -> Option<Owner> {
    caller.read(log, 0, ReadLimit::default()).expect("it is there").owner
}

pub(crate) fn count_of(file: &Path, rows: &str) -> i64 {
    let db = rusqlite::Connection::open(file).unwrap();
    db.query_row(&format!("SELECT count(*) FROM {rows}"), [], |row| row.get(0)).unwrap()
}

/// Stands for all logs of a session.
const ALL: StreamNonce = StreamNonce([0; 12]);

/// Tells which logs hints are for.
struct Hints(Mutex<Sender<StreamNonce>>);

impl Watch for Hints {
    fn changed(&self, nonce: StreamNonce) {
        let _ = self.0.lock().unwrap().send(nonce);
    }

    fn posted(&self) {}

    fn all_changed(&self) {
        self.changed(ALL);
    }
}

fn hints() -> (Arc<dyn Watch>, Receiver<StreamNonce>) {
    let (tell, told) = channel();
    (Arc::new(Hints(Mutex::new(tell))), told)
}

#[test]
fn an_owner_is_told_of_the_logs_that_are_read_elsewhere_and_of_no_others() {
    let folder = Folder::new();
    let file = folder.path("a.db");
    let (store, other) = (at(&file), at(&file));
    let owner = Caller::new(&store, Ms(0));
    let (hints, told) = hints();
    store.watch(&"s".into(), &Arc::downgrade(&hints));
    for numbers in [0..5, 5..10] {
        let mut logs: Vec<Log> = numbers.map(|number| owner.open("s", number)).collect();
        owner.push(&mut logs[0], &[sized(1)]);
        store.drop_stream(&logs[1].key, owner.epoch);
        let nonce = logs[2].key.nonce;
        let attach = Attach { stream: Some(nonce), counts: true, ..Attach::default() };
        Caller::new(&other, Ms(0)).attach("s", &attach);
        assert_eq!(told.recv_timeout(PATIENCE), Ok(nonce), "rule 13");
    }
}

#[test]
fn the_owner_of_a_session_without_logs_is_told_that_another_has_it() {
    let folder = Folder::new();
    let file = folder.path("a.db");
    let (store, other) = (at(&file), at(&file));
    let owner = Caller::new(&store, Ms(0));
    owner.hold("s", SessionRecord::default());
    let (hints, told) = hints();
    store.watch(&"s".into(), &Arc::downgrade(&hints));
    let epoch = Epoch { number: 2, salt: 8 };
    let hold = Hold { epoch, seen: Some(owner.epoch), record: None };
    assert_eq!(Caller::new(&other, Ms(0)).try_hold("s", &hold), Ok(Vec::new()));
    assert_eq!(told.recv_timeout(PATIENCE), Ok(ALL), "rule 13");
}

#[test]
fn a_session_that_is_begun_anew_is_not_taken_for_the_one_before() {
    struct Nobody;
    impl Complete for Nobody {
        fn complete(&self, _ticket: &Ticket, _outcome: Outcome) {}
    }
    let folder = Folder::new();
    let file = folder.path("a.db");
    let (store, other) = (at(&file), at(&file));
    let owner = Caller::new(&store, Ms(0));
    let (log, next, epoch) = (owner.open("s", 1), Log::new("s", 2), owner.epoch);
    let (hints, told) = hints();
    other.watch(&log.key.session, &Arc::downgrade(&hints));
    let is_told = |nonce| while told.recv_timeout(PATIENCE).expect("rule 13") != nonce {};
    is_told(log.key.nonce);
    let to: Weak<Nobody> = Weak::new();
    let ticket = Ticket { to, nonce: next.key.nonce, operation: Operation::Append, number: 0 };
    // While another process has the file, what comes after the first operation waits, to be written in one transaction.
    let locking = rusqlite::Connection::open(&file).unwrap();
    locking.execute_batch("BEGIN IMMEDIATE").unwrap();
    store.settle(&log.key, epoch, 1);
    store.drop_session("s", epoch);
    let _ = store.hold("s", &Hold { epoch, seen: None, record: Some(SessionRecord::default()) }, &ticket);
    let _ = store.append(Ms(0), &next.key, epoch, &next.append(1, &[]), &ticket);
    store.release("s", epoch);
    let _ = store.hold("s", &Hold { epoch, seen: Some(epoch), record: None }, &ticket);
    locking.execute_batch("COMMIT").unwrap();
    is_told(next.key.nonce);
    assert_eq!(owner_of(&owner, &next), None, "rule 12: its owner came back");
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
    let _owner = tailrope_stores::sqlite::open(&file, &options).expect("the file can be opened");
    rusqlite::Connection::open(&file).unwrap().execute_batch("DELETE FROM owner").unwrap();
    eventually("it gives signs again", || count_of(&file, "owner") == 1);
}

#[test]
fn o16_what_was_let_go_of_and_nobody_takes_over_goes_in_the_end() {
    let folder = Folder::new();
    let time = Arc::new(AtomicU64::new(1_000_000));
    let clock = Arc::clone(&time);
    let options = StoreOptions {
        limits: Limits { max_age_ms: 60_000, ..Limits::default() },
        owner_lost_ms: 2_000,
        wall_clock: Some(Arc::new(move || clock.load(Ordering::SeqCst))),
        ..StoreOptions::default()
    };
    let open = || -> Arc<dyn EventStore> {
        Arc::new(tailrope_stores::sqlite::open(&folder.path("a.db"), &options).expect("the file can be opened"))
    };
    check_released(&|| (open(), open()), 60_000, &|ms| _ = time.fetch_add(ms, Ordering::SeqCst));
}

#[test]
fn o16_all_of_an_owner_that_gives_no_signs_goes_in_the_end() {
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
    let other = tailrope_stores::sqlite::open(&file, &options).expect("the file can be opened");
    let caller = Caller::new(&other, Ms(0));
    eventually("it is lost", || count_of(&file, "owner WHERE lost = 1000000") == 1);
    time.fetch_add(60_000, Ordering::SeqCst);
    swept(&file);
    assert!(owner_of(&caller, &log).is_some_and(|owner| owner.unseen_ms >= OFTEN));
    time.fetch_add(1, Ordering::SeqCst);
    eventually("all of it goes", || count_of(&file, "session") == 0 && count_of(&file, "owner") == 1);
    assert!(caller.session("s", None).is_none() && caller.log(&log).is_none());
}
