//! The SQLite store: the contract of all stores, its bounds, its commits and its faults.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::kit::events::{positions, positions_if_kept, question, sized, terminal};
use crate::kit::eventually::eventually;
use crate::kit::folder::Folder;
use tailrope_core::Ms;
use tailrope_core::store::contract::{Caller, Log, check, check_retention, check_settle, check_shared};
use tailrope_core::store::{
    Append, Attach, Complete, Durability, Epoch, EventStore, Hold, Limits, Operation, Outcome, ReadLimit,
    SessionRecord, StoreError, StoreOptions, Ticket,
};
use tailrope_core::stream::Paced;
use tailrope_stores::SqliteStore;

pub(crate) fn at(path: &Path, options: &StoreOptions) -> SqliteStore {
    tailrope_stores::sqlite::open(path, options).expect("the file can be opened")
}

pub(crate) fn limited(limits: Limits) -> StoreOptions {
    StoreOptions { limits, ..StoreOptions::default() }
}

/// Signs of life in the file of one store object. Retention is applied after each.
fn beats(file: &Path) -> isize {
    let db = rusqlite::Connection::open(file).unwrap();
    db.query_row("SELECT max(beat) FROM owner", [], |row| row.get(0)).unwrap()
}

/// Waits until retention was applied.
pub(crate) fn swept(file: &Path) {
    let before = beats(file);
    eventually("it gives signs", || beats(file) >= before + 2);
}

#[test]
fn it_keeps_the_contract() {
    let folder = Folder::new();
    let files = AtomicU64::new(0);
    check(&|| {
        let file = folder.path(&format!("{}.db", files.fetch_add(1, Ordering::Relaxed)));
        Arc::new(at(&file, &StoreOptions::default()))
    });
}

#[test]
fn i6_it_keeps_a_log_for_as_long_as_its_pace_says() {
    let folder = Folder::new();
    // Retention is applied with each sign of life.
    let make = |retention_ms| -> Arc<dyn EventStore> {
        let options = StoreOptions { owner_lost_ms: 30, ..limited(Limits { retention_ms, ..Limits::default() }) };
        Arc::new(at(&folder.path(&format!("{retention_ms}.db")), &options))
    };
    check_retention(&make, &|_, _| ());
}

#[test]
fn it_keeps_the_contract_when_every_commit_waits_for_the_disk() {
    let folder = Folder::new();
    let files = AtomicU64::new(0);
    let options = StoreOptions { durability: Durability::Power, ..StoreOptions::default() };
    check(&|| Arc::new(at(&folder.path(&format!("{}.db", files.fetch_add(1, Ordering::Relaxed))), &options)));
}

#[test]
fn two_processes_on_one_file_keep_the_contract() {
    let folder = Folder::new();
    let files = AtomicU64::new(0);
    check_shared(&|| {
        let file = folder.path(&format!("{}.db", files.fetch_add(1, Ordering::Relaxed)));
        (Arc::new(at(&file, &StoreOptions::default())), Arc::new(at(&file, &StoreOptions::default())))
    });
}

// Bounds (I11)

#[test]
fn a_stream_keeps_its_newest_events() {
    let folder = Folder::new();
    let limits = Limits { max_events_per_stream: 5, ..Limits::default() };
    let store = at(&folder.path("a.db"), &limited(limits));
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    for _ in 0..12 {
        caller.push(&mut log, &[sized(10)]);
    }
    assert_eq!(positions(&caller, &log, 0), [8, 9, 10, 11, 12]);
    assert_eq!(caller.log(&log).map(|log| (log.page.page.low, log.page.page.head)), Some((8, 12)));
    assert_eq!((store.usage().events, store.usage().trimmed), (5, 7));
    let tag_at = |after| caller.read(&log, after, ReadLimit { up_to: 12, events: 1, bytes: 1 }).unwrap().page.tag_at;
    assert!(tag_at(7).is_some() && tag_at(12).is_some());
    assert_eq!((tag_at(6), tag_at(0)), (None, None));
    let mut batch = caller.open("s", 2);
    caller.push(&mut batch, &vec![sized(1); 9]);
    assert_eq!(positions(&caller, &batch, 0), [5, 6, 7, 8, 9], "a batch larger than the bound leaves its end");
}

#[test]
fn a_stream_keeps_its_bytes_and_its_newest_event_whatever_its_size() {
    let folder = Folder::new();
    let max = 1_000;
    let store = at(&folder.path("a.db"), &limited(Limits { max_bytes_per_stream: max, ..Limits::default() }));
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    for _ in 0..50 {
        caller.push(&mut log, &[sized(100)]);
        assert!(store.usage().bytes <= max as u64);
    }
    assert!(store.usage().events >= 3);
    caller.push(&mut log, &[sized(5_000)]);
    assert_eq!(positions(&caller, &log, 0), [51]);
    caller.push(&mut log, &[sized(10)]);
    assert_eq!(positions(&caller, &log, 0), [52]);
}

#[test]
fn an_event_that_is_too_large_is_refused_and_named() {
    let folder = Folder::new();
    let store = at(&folder.path("a.db"), &limited(Limits { max_event_bytes: 100, ..Limits::default() }));
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    let refused = caller.append(&log, 1, &[sized(10), sized(101)]);
    assert_eq!(refused, Err(StoreError::TooLarge { bytes: 101, max: 100 }));
    caller.push(&mut log, &[sized(100)]);
}

#[test]
fn o20_an_unanswered_question_outlives_the_events_around_it() {
    let folder = Folder::new();
    let store = at(&folder.path("a.db"), &limited(Limits { max_events_per_stream: 4, ..Limits::default() }));
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(1), question(), sized(1), question()]);
    store.settle(&log.key, caller.epoch, 4);
    for _ in 0..6 {
        caller.push(&mut log, &[sized(1)]);
    }
    assert_eq!(positions(&caller, &log, 0), [2, 8, 9, 10]);
    assert_eq!(caller.log(&log).map(|log| log.page.page.low), Some(8));
    assert_eq!(positions(&caller, &log, 2), [8, 9, 10]);
    store.settle(&log.key, caller.epoch, 2);
    assert_eq!(positions(&caller, &log, 0), [8, 9, 10], "answered, it goes");
    caller.assert_usage("I11", |usage| usage.events == 3);
    check_settle(&at(&folder.path("b.db"), &limited(Limits { max_events_per_stream: 4, ..Limits::default() })));
}

#[test]
fn questions_that_nobody_answers_yield_last_but_they_do_yield() {
    let folder = Folder::new();
    let max = 2_000;
    let store = at(&folder.path("a.db"), &limited(Limits { max_bytes_per_stream: max, ..Limits::default() }));
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    for _ in 0..200 {
        caller.push(&mut log, &[question()]);
        assert!(store.usage().bytes <= max as u64, "{:?}", store.usage());
    }
    let kept = positions(&caller, &log, 0);
    assert!(kept.len() > 10 && *kept.last().unwrap() == 200, "the newest are kept: {kept:?}");
}

#[test]
fn a_session_over_its_bytes_gives_up_its_oldest_finished_streams_first() {
    let folder = Folder::new();
    let time = Arc::new(AtomicU64::new(1_000));
    let clock = Arc::clone(&time);
    let options = StoreOptions {
        limits: Limits { max_bytes_per_session: 6_000, ..Limits::default() },
        wall_clock: Some(Arc::new(move || clock.load(Ordering::SeqCst))),
        ..StoreOptions::default()
    };
    let store = at(&folder.path("a.db"), &options);
    let caller = Caller::new(&store, Ms(0));
    let mut running = caller.open("s", 0);
    caller.push(&mut running, &[sized(500), sized(500)]);
    let mut finished = Vec::new();
    for number in 1..=8 {
        time.fetch_add(1, Ordering::SeqCst);
        let mut log = caller.open("s", number);
        caller.push(&mut log, &[sized(400), terminal()]);
        finished.push(log);
    }
    let mut other = caller.open("t", 99);
    caller.push(&mut other, &[sized(5_000)]);
    caller.push(&mut running, &[sized(1_000)]);
    let kept: Vec<bool> = finished.iter().map(|log| caller.log(log).is_some()).collect();
    assert!(kept.is_sorted() && !kept[0] && kept[7], "the oldest finished go first: {kept:?}");
    assert_eq!(positions(&caller, &running, 0), [1, 2, 3], "the running stream is whole");
    assert_eq!(positions(&caller, &other, 0), [1], "another session is not concerned");
    for _ in 0..100 {
        caller.push(&mut running, &[sized(100)]);
    }
    let kept = positions(&caller, &running, 0);
    assert!(*kept.last().unwrap() == 103 && kept.len() < 60, "then events of the largest go: {kept:?}");
    assert!(kept.windows(2).all(|pair| pair[1] == pair[0] + 1));
    assert!(store.usage().bytes <= 6_000 + 5_000 + 400);
}

#[test]
fn the_file_keeps_its_bytes_and_drops_give_everything_back() {
    let folder = Folder::new();
    let max = 100_000;
    let store = at(&folder.path("a.db"), &limited(Limits { max_bytes: max, ..Limits::default() }));
    let caller = Caller::new(&store, Ms(0));
    for number in 0..300 {
        let session = format!("session {}", number % 20);
        let mut log = caller.open(&session, number);
        caller.push(&mut log, &[sized(500), sized(500)]);
        match number % 4 {
            0 => caller.push(&mut log, &[terminal()]),
            1 => caller.finish(&log, b"end").expect("it is ended"),
            2 => store.drop_stream(&log.key, caller.epoch),
            _ => {}
        }
        caller.assert_usage("I11", |usage| usage.bytes <= max as u64);
        // A finished log may go at any time, because the bound is kept beside the appends.
        if let Some(kept) = positions_if_kept(&caller, &log) {
            assert!(kept.windows(2).all(|pair| pair[1] == pair[0] + 1), "{kept:?}");
        }
    }
    for number in 0..20 {
        store.drop_session(&format!("session {number}"), caller.epoch);
    }
    caller.assert_usage("F-54", |usage| (usage.sessions, usage.streams, usage.events, usage.bytes) == (0, 0, 0, 0));
}

#[test]
fn age_and_retention_take_what_they_are_over() {
    let folder = Folder::new();
    let time = Arc::new(AtomicU64::new(1_000_000));
    let clock = Arc::clone(&time);
    let options = StoreOptions {
        limits: Limits { max_age_ms: 60_000, retention_ms: 5_000, ..Limits::default() },
        owner_lost_ms: 30,
        wall_clock: Some(Arc::new(move || clock.load(Ordering::SeqCst))),
        ..StoreOptions::default()
    };
    let file = folder.path("a.db");
    let store = at(&file, &options);
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(1), sized(1)]);
    time.fetch_add(30_000, Ordering::SeqCst);
    caller.push(&mut log, &[sized(1)]);
    time.fetch_add(32_000, Ordering::SeqCst);
    caller.push(&mut log, &[sized(1)]);
    assert_eq!(positions(&caller, &log, 0), [3, 4]);
    time.fetch_add(900_000, Ordering::SeqCst);
    caller.push(&mut log, &[terminal()]);
    assert_eq!(positions(&caller, &log, 0), [5], "the newest always stays");
    let mut running = caller.open("s", 2);
    caller.push(&mut running, &[sized(1)]);
    time.fetch_add(4_999, Ordering::SeqCst);
    swept(&file);
    assert!(caller.log(&log).is_some(), "I6: readable until retention ends");
    time.fetch_add(1, Ordering::SeqCst);
    swept(&file);
    assert!(caller.log(&log).is_none() && caller.log(&running).is_some());
    caller.open("released", 3);
    store.release("released", caller.epoch);
    caller.attach("", &Attach::default());
    time.fetch_add(60_000, Ordering::SeqCst);
    swept(&file);
    assert!(caller.session("released", None).is_some(), "who takes it over has that time");
    time.fetch_add(1, Ordering::SeqCst);
    swept(&file);
    assert_eq!(caller.session("released", None), None, "nobody did, though its owner is there");
    caller.assert_usage("F-54", |usage| (usage.sessions, usage.streams) == (1, 1));
    time.fetch_add(900_000, Ordering::SeqCst);
    swept(&file);
    assert!(caller.session("s", None).is_some(), "its owner is there");
    drop(store);
    let later = at(&file, &options);
    let caller = Caller::new(&later, Ms(0));
    let owner = caller.log(&running).and_then(|log| log.page.owner);
    assert!(owner.is_some_and(|owner| owner.unseen_ms == u64::MAX), "its owner said goodbye");
    time.fetch_add(60_001, Ordering::SeqCst);
    swept(&file);
    assert_eq!((caller.session("s", None), caller.log(&running)), (None, None), "a session that was left goes in time");
    caller.assert_usage("F-54", |usage| usage.streams == 0 && usage.sessions == 0 && usage.bytes == 0);
}

#[test]
fn retention_goes_on_while_there_is_more_than_one_transaction_may_remove() {
    let folder = Folder::new();
    let time = Arc::new(AtomicU64::new(1_000_000));
    let clock = Arc::clone(&time);
    let options = StoreOptions {
        limits: Limits { retention_ms: 5_000, ..Limits::default() },
        owner_lost_ms: 2_000,
        wall_clock: Some(Arc::new(move || clock.load(Ordering::SeqCst))),
        ..StoreOptions::default()
    };
    let file = folder.path("a.db");
    let store = at(&file, &options);
    let caller = Caller::new(&store, Ms(0));
    for number in 0..1_000 {
        let mut log = caller.open("s", number);
        caller.push(&mut log, &[terminal()]);
    }
    let before = beats(&file);
    time.fetch_add(5_000, Ordering::SeqCst);
    caller.assert_usage("I11: all of it goes", |usage| usage.streams == 0);
    let waited = beats(&file) - before;
    assert!(waited <= 2, "four transactions do not wait for {waited} signs of life");
}

// Commits

/// Transactions in the file's write-ahead log besides signs of life. A frame that ends one says how many pages the file
/// has then.
pub(crate) fn commits(file: &Path) -> isize {
    let before = beats(file);
    let log = std::fs::read(file.with_extension("db-wal")).unwrap();
    let page = u32::from_be_bytes(log[8..12].try_into().unwrap()) as usize;
    let all = log[32..].chunks_exact(24 + page).filter(|frame| frame[4..8] != [0; 4]).count().cast_signed();
    if beats(file) == before { all - before } else { commits(file) }
}

#[test]
fn a_short_call_is_one_commit() {
    let folder = Folder::new();
    let file = folder.path("a.db");
    let store = at(&file, &StoreOptions::default());
    let caller = Caller::new(&store, Ms(0));
    caller.hold("s", SessionRecord::default());
    let before = commits(&file);
    let mut log = Log::new("s", 1);
    caller.push(&mut log, &[sized(10), terminal()]);
    assert_eq!(commits(&file) - before, 1, "its log, its event and its end");
    let call =
        Append { end: Some("end".into()), paced: Some(Paced::default()), ..Log::new("s", 2).append(1, &[sized(10)]) };
    caller.write(&Log::new("s", 2), &call).expect("it is written");
    assert_eq!(commits(&file) - before, 2);
    let stock = Hold { epoch: caller.epoch, seen: Some(caller.epoch), record: None };
    assert_eq!(caller.try_hold("s", &stock), Ok(Vec::new()));
    assert_eq!(commits(&file) - before, 2, "an owner that takes stock writes nothing");
    log.assert_stored(&caller, 0, "I2");
}

/// Lets go of the store when the store answers.
struct Last(Mutex<Option<SqliteStore>>, Mutex<Sender<()>>);

impl Complete for Last {
    fn complete(&self, _ticket: &Ticket, _outcome: Outcome) {
        drop(self.0.lock().unwrap().take());
        self.1.lock().unwrap().send(()).unwrap();
    }
}

#[test]
fn a_store_that_its_own_thread_lets_go_of_is_closed() {
    let folder = Folder::new();
    for operation in [Operation::Append, Operation::Read(1)] {
        let (gone, told) = channel();
        let last = Arc::new(Last(Mutex::new(None), Mutex::new(gone)));
        let to: Weak<dyn Complete> = Arc::downgrade(&(Arc::clone(&last) as Arc<dyn Complete>));
        let log = Log::new("s", 1);
        let ticket = Ticket { to, nonce: log.key.nonce, operation, number: 1 };
        let mut kept = last.0.lock().unwrap();
        let store = kept.insert(at(&folder.path("a.db"), &StoreOptions::default()));
        match operation {
            Operation::Append => drop(store.append(Ms(0), &log.key, Epoch::default(), &log.append(1, &[]), &ticket)),
            _ => drop(store.read(&log.key, 0, ReadLimit::default(), &ticket)),
        }
        drop(kept);
        told.recv_timeout(Duration::from_secs(30)).expect("its threads do not wait for each other");
    }
}

#[test]
fn i9_a_file_that_fails_for_a_while_harms_the_events_of_that_while() {
    let folder = Folder::new();
    let file = folder.path("a.db");
    let store = at(&file, &StoreOptions::default());
    let caller = Caller::new(&store, Ms(0));
    let mut logs = [1, 2].map(|number| caller.open("s", number));
    logs.iter_mut().for_each(|log| caller.push(log, &[sized(10)]));
    let usage = store.usage();
    let other = rusqlite::Connection::open(&file).unwrap();
    other.busy_timeout(Duration::from_secs(20)).unwrap();
    other.execute_batch("ALTER TABLE event RENAME TO away").unwrap();
    // Both are in one transaction, and fail each for itself.
    std::thread::scope(|scope| {
        for log in &logs {
            scope.spawn(|| {
                let caller = Caller::new(&store, Ms(0));
                assert!(matches!(caller.append(log, 2, &[sized(10)]), Err(StoreError::Failed(_))));
                let everything = ReadLimit { up_to: 9, events: 9, bytes: 999 };
                assert!(matches!(caller.read(log, 0, everything), Err(StoreError::Failed(_))));
            });
        }
    });
    assert_eq!(store.usage(), usage, "rule 7");
    other.execute_batch("ALTER TABLE away RENAME TO event").unwrap();
    for log in &mut logs {
        caller.push(log, &[sized(20)]);
        log.assert_stored(&caller, 0, "F-58");
    }
}

#[test]
fn a_lock_of_another_process_is_waited_for_and_nobody_waits_for_the_store() {
    let folder = Folder::new();
    let file = folder.path("a.db");
    let store = at(&file, &StoreOptions::default());
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(10)]);
    let other = rusqlite::Connection::open(&file).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    std::thread::scope(|scope| {
        let store = &store;
        let mut slow = log.clone();
        let writing = scope.spawn(move || {
            Caller::new(store, Ms(0)).push(&mut slow, &[sized(20)]);
            slow
        });
        // These return although the writer waits; a read that comes behind the write waits with it.
        for seq in 1..1_000 {
            store.settle(&log.key, caller.epoch, seq);
            store.usage();
        }
        assert!(!writing.is_finished());
        other.execute_batch("COMMIT").unwrap();
        writing.join().unwrap().assert_stored(&Caller::new(store, Ms(0)), 0, "I2");
    });
}

#[test]
fn a_lock_that_another_process_keeps_is_told_in_time_and_harms_nobody() {
    let folder = Folder::new();
    let file = folder.path("a.db");
    let store = at(&file, &StoreOptions::default());
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    let other = rusqlite::Connection::open(&file).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let told = caller.once().append(&log, 1, &[sized(10)]);
    assert!(matches!(told, Err(StoreError::TimedOut { after_ms: 5_000.. })), "rule 10: {told:?}");
    other.execute_batch("COMMIT").unwrap();
    caller.push(&mut log, &[sized(10)]);
    log.assert_stored(&caller, 0, "rule 7");
}
