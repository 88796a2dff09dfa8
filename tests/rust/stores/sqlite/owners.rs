//! Owners of a SQLite file's sessions: what others do to their logs, and when they count as lost.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::kit::events::sized;
use crate::kit::folder::Folder;
use tailrope_core::Ms;
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::contract::{Caller, Log};
use tailrope_core::store::{Append, EventStore, Limits, SessionRecord, SqliteStore, StoreError, StoreOptions, Watch};

/// What comes has come by then, also where a machine stalls.
const PATIENCE: Duration = Duration::from_secs(60);
/// With this a store gives its next sign of life, and looks for those of others, in many minutes.
const RARELY: u64 = 3_600_000;
/// With this every ten milliseconds.
const OFTEN: u64 = 30;

fn at(path: &Path, owner_lost_ms: u64) -> SqliteStore {
    let options = StoreOptions { owner_lost_ms, ..StoreOptions::default() };
    SqliteStore::open(path, &options).expect("the file can be opened")
}

fn until(what: &str, is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn count_of(file: &Path, rows: &str) -> i64 {
    let db = rusqlite::Connection::open(file).unwrap();
    db.query_row(&format!("SELECT count(*) FROM {rows}"), [], |row| row.get(0)).unwrap()
}

#[test]
fn an_owner_is_told_what_others_do_to_its_logs() {
    struct Hints(Mutex<Sender<()>>);
    impl Watch for Hints {
        fn changed(&self, _nonce: StreamNonce) {
            let _ = self.0.lock().unwrap().send(());
        }
    }
    let folder = Folder::new();
    let file = folder.path("a.db");
    let (owner, heir) = (at(&file, RARELY), at(&file, OFTEN));
    let (of_owner, of_heir) = (Caller::new(&owner, Ms(0)), Caller::new(&heir, Ms(0)));
    let told_of = |what: &str, number: u64, act: &dyn Fn(&Log)| {
        let mut log = of_owner.open(&format!("s {number}"), number);
        of_owner.push(&mut log, &[sized(1)]);
        let (tell, told) = channel();
        let hints: Arc<dyn Watch> = Arc::new(Hints(Mutex::new(tell)));
        owner.watch(&log.key, &Arc::downgrade(&hints));
        // Whoever begins to watch is told to look.
        told.recv_timeout(PATIENCE).expect("it is watched");
        act(&log);
        assert!(told.recv_timeout(PATIENCE).is_ok(), "rule 13: {what}");
        owner.unwatch(&log.key, &Arc::downgrade(&hints));
    };
    told_of("a claim", 1, &|log| assert_eq!(of_heir.claim(log), Ok(1)));
    told_of("the end of an heir", 2, &|log| {
        let unseen_ms = || of_heir.record(log).and_then(|record| record.owner_unseen_ms);
        until("for this one the owner gives no signs", || unseen_ms() >= Some(OFTEN));
        let more = Append { end: Some("lost".into()), ..log.append(2, &[sized(1)]) };
        assert_eq!(of_heir.write(log, &more), Err(StoreError::Fenced), "an heir adds nothing");
        assert_eq!(of_heir.finish(log, b"lost"), Ok(()));
    });
    told_of("the drop of a log", 3, &|log| heir.drop_stream(&log.key));
    told_of("the drop of a session", 4, &|log| heir.drop_session(&log.key.session));
}

/// Computers are suspended, clocks are set, and an age may be shorter than the pause between two signs.
#[test]
fn time_takes_nothing_from_an_owner_that_lives() {
    let folder = Folder::new();
    let file = folder.path("a.db");
    let time = Arc::new(AtomicU64::new(1_000_000));
    let clock = Arc::clone(&time);
    let options = StoreOptions {
        limits: Limits { max_age_ms: 1, ..Limits::default() },
        owner_lost_ms: RARELY,
        wall_clock: Some(Arc::new(move || clock.load(Ordering::SeqCst))),
        ..StoreOptions::default()
    };
    let [owner, other] = [(); 2].map(|()| SqliteStore::open(&file, &options).expect("the file can be opened"));
    let (of_owner, of_other) = (Caller::new(&owner, Ms(0)), Caller::new(&other, Ms(0)));
    let mut log = of_owner.open("s", 1);
    owner.put_session(Ms(0), "s", &SessionRecord::default());
    of_owner.push(&mut log, &[sized(1)]);
    for _ in 0..3 {
        time.fetch_add(86_400_000, Ordering::SeqCst);
        other.sweep(Ms(0));
        assert_eq!(of_other.session("s").map(|record| record.unseen_ms), Some(0));
    }
    of_owner.push(&mut log, &[sized(1)]);
    assert_eq!(of_other.record(&log).map(|record| record.owner_unseen_ms), Some(Some(0)));
    assert_eq!(of_other.finish(&log, b"lost"), Err(StoreError::Fenced));
    rusqlite::Connection::open(&file).unwrap().execute_batch("DELETE FROM owner").unwrap();
    assert_eq!(of_other.finish(&log, b"lost"), Err(StoreError::Fenced), "what is not there proves nothing");
}

#[test]
fn an_owner_whose_row_is_gone_writes_it_again() {
    let folder = Folder::new();
    let file = folder.path("a.db");
    let _owner = at(&file, OFTEN);
    rusqlite::Connection::open(&file).unwrap().execute_batch("DELETE FROM owner").unwrap();
    until("it gives signs again", || count_of(&file, "owner") == 1);
}

#[test]
fn all_of_an_owner_that_gives_no_signs_goes_in_the_end() {
    let folder = Folder::new();
    let file = folder.path("a.db");
    let time = Arc::new(AtomicU64::new(1_000_000));
    let clock = Arc::clone(&time);
    let owner = at(&file, RARELY);
    let log = Caller::new(&owner, Ms(0)).open("s", 1);
    owner.put_session(Ms(0), "s", &SessionRecord::default());
    let options = StoreOptions {
        limits: Limits { max_age_ms: 60_000, ..Limits::default() },
        owner_lost_ms: OFTEN,
        wall_clock: Some(Arc::new(move || clock.load(Ordering::SeqCst))),
        ..StoreOptions::default()
    };
    let other = SqliteStore::open(&file, &options).expect("the file can be opened");
    let caller = Caller::new(&other, Ms(0));
    until("it is lost", || count_of(&file, "owner WHERE lost = 1000000") == 1);
    time.fetch_add(60_000, Ordering::SeqCst);
    other.sweep(Ms(0));
    assert!(caller.session("s").is_some_and(|record| record.unseen_ms >= OFTEN) && caller.record(&log).is_some());
    time.fetch_add(1, Ordering::SeqCst);
    other.sweep(Ms(0));
    assert!(caller.session("s").is_none() && caller.record(&log).is_none());
    assert_eq!(count_of(&file, "owner"), 1);
}
