//! The PostgreSQL store on one server: the contract of all stores, its bounds, its retention, its addresses.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tailrope_core::Ms;
use tailrope_core::store::contract::{Caller, Log, check, check_retention, check_shared};
use tailrope_core::store::{Append, EventStore, Limits, Owner, ReadLimit, SessionRecord, StoreError, StoreOptions};
use tailrope_core::stream::Paced;
use tailrope_stores::open;

use super::bell::{Bell, read_by};
use super::database::{Administrator, Namespaces, at, namespace, told, two, with_clock};
use crate::kit::events::{positions, positions_if_kept, question, sized, terminal};
use crate::kit::eventually::eventually;

#[test]
fn it_keeps_the_contract() {
    let namespaces = Namespaces::direct();
    check(&|| Arc::new(at(&namespaces.address(), &StoreOptions::default())));
}

#[test]
fn it_keeps_the_contract_between_processes() {
    let namespaces = Namespaces::direct();
    check_shared(&|| two(&namespaces));
}

#[test]
fn tasks_live_in_it() {
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    crate::kit::task_life::live(&|options| Arc::new(at(&address, options)));
}

#[test]
fn i6_it_keeps_a_log_for_as_long_as_its_pace_says() {
    let namespaces = Namespaces::direct();
    let make = |retention_ms| -> Arc<dyn EventStore> {
        Arc::new(at(&namespaces.address(), &limited(Limits { retention_ms, ..Limits::default() })))
    };
    check_retention(&make, &|store, _| {
        store.sweep(Ms(0));
    });
}

fn limited(limits: Limits) -> StoreOptions {
    StoreOptions { limits, ..StoreOptions::default() }
}

// Bounds (I11)

#[test]
fn a_stream_keeps_its_newest_events() {
    let namespaces = Namespaces::direct();
    let store = at(&namespaces.address(), &limited(Limits { max_events_per_stream: 5, ..Limits::default() }));
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
    let namespaces = Namespaces::direct();
    let max = 1_500;
    let store = at(&namespaces.address(), &limited(Limits { max_bytes_per_stream: max, ..Limits::default() }));
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
fn events_of_every_size_come_back() {
    let namespaces = Namespaces::direct();
    let store = at(&namespaces.address(), &limited(Limits { max_event_bytes: 6 << 20, ..Limits::default() }));
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    let refused = caller.append(&log, 1, &[sized(10), sized((6 << 20) + 1)]);
    assert_eq!(refused, Err(StoreError::TooLarge { bytes: (6 << 20) + 1, max: 6 << 20 }));
    for size in [0, 1, 1_900, 2_100, 9_000, 70_000, 6 << 20] {
        caller.push(&mut log, &[sized(size), sized(3)]);
    }
    log.assert_stored(&caller, 0, "rule 4");
}

#[test]
fn o20_an_unanswered_question_outlives_the_events_around_it() {
    let namespaces = Namespaces::direct();
    let store = at(&namespaces.address(), &limited(Limits { max_events_per_stream: 4, ..Limits::default() }));
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(1), question(), sized(1), question()]);
    store.settle(&log.key, caller.epoch, 4);
    for _ in 0..6 {
        caller.push(&mut log, &[sized(1)]);
    }
    assert_eq!(positions(&caller, &log, 0), [2, 8, 9, 10], "rule 5");
    assert_eq!(caller.log(&log).map(|log| log.page.page.low), Some(8));
    assert_eq!(positions(&caller, &log, 2), [8, 9, 10]);
    store.settle(&log.key, caller.epoch, 2);
    assert_eq!(positions(&caller, &log, 0), [8, 9, 10], "answered, it goes");
    caller.assert_usage("I11", |usage| usage.events == 3);
}

#[test]
fn questions_that_nobody_answers_yield_last_but_they_do_yield() {
    let namespaces = Namespaces::direct();
    let max = 3_000;
    let store = at(&namespaces.address(), &limited(Limits { max_bytes_per_stream: max, ..Limits::default() }));
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    for _ in 0..100 {
        caller.push(&mut log, &[question()]);
        assert!(store.usage().bytes <= max as u64, "{:?}", store.usage());
    }
    let kept = positions(&caller, &log, 0);
    assert!(kept.len() > 10 && *kept.last().unwrap() == 100, "the newest are kept: {kept:?}");
}

#[test]
fn a_session_over_its_bytes_gives_up_its_oldest_finished_streams_first() {
    let namespaces = Namespaces::direct();
    let (options, time) = with_clock(Limits { max_bytes_per_session: 10_000, ..Limits::default() });
    let store = at(&namespaces.address(), &options);
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
    caller.push(&mut other, &[sized(9_000)]);
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
    assert!(store.usage().bytes <= 10_000 + 10_000);
}

#[test]
fn the_database_keeps_its_bytes_and_drops_give_everything_back() {
    let namespaces = Namespaces::direct();
    let max = 100_000;
    let address = namespaces.address();
    let options = limited(Limits { max_bytes: max, ..Limits::default() });
    let stores = [at(&address, &options), at(&address, &options)];
    for number in 0..300 {
        let store = &stores[number as usize % 2];
        let caller = Caller::new(store, Ms(0));
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
        stores[0].drop_session(&format!("session {number}"), Caller::new(&stores[0], Ms(0)).epoch);
    }
    for store in &stores {
        Caller::new(store, Ms(0))
            .assert_usage("F-54", |usage| (usage.sessions, usage.streams, usage.events, usage.bytes) == (0, 0, 0, 0));
    }
    let rows =
        |table: &str| Administrator::new().number(&format!("SELECT count(*) FROM {}.{table}", namespace(&address)));
    eventually("F-54: nothing is left", || ["event", "trash", "stream", "session"].map(rows) == [0; 4]);
}

#[test]
fn age_and_retention_take_what_they_are_over() {
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    let (options, time) = with_clock(Limits { max_age_ms: 60_000, retention_ms: 5_000, ..Limits::default() });
    let store = at(&address, &options);
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(1), sized(1)]);
    time.fetch_add(30_000, Ordering::SeqCst);
    caller.push(&mut log, &[sized(1)]);
    time.fetch_add(32_000, Ordering::SeqCst);
    caller.push(&mut log, &[sized(1)]);
    assert_eq!(positions(&caller, &log, 0), [3, 4]);
    time.fetch_add(900_000, Ordering::SeqCst);
    let mut number = 2;
    // A log that is finished now, and goes with the sweep after its retention.
    let mut finished = || {
        number += 1;
        let mut log = caller.open("s", number);
        caller.push(&mut log, &[terminal()]);
        log
    };
    let swept = |earlier: &Log| {
        store.sweep(Ms(0));
        eventually("I11: it is swept", || caller.log(earlier).is_none());
    };
    let earlier = finished();
    time.fetch_add(1, Ordering::SeqCst);
    caller.push(&mut log, &[terminal()]);
    assert_eq!(positions(&caller, &log, 0), [5], "the newest always stays");
    let mut running = caller.open("s", 2);
    caller.push(&mut running, &[sized(1)]);
    time.fetch_add(4_999, Ordering::SeqCst);
    swept(&earlier);
    assert!(caller.log(&log).is_some(), "I6: readable until retention ends");
    time.fetch_add(1, Ordering::SeqCst);
    swept(&log);
    let earlier = finished();
    time.fetch_add(900_000, Ordering::SeqCst);
    swept(&earlier);
    assert!(caller.log(&running).is_some(), "its owner is there");
    drop(store);
    let later = at(&address, &options);
    let caller = Caller::new(&later, Ms(0));
    let owner = caller.log(&running).and_then(|log| log.page.owner);
    assert_eq!(owner.map(|owner| owner.unseen_ms), Some(u64::MAX), "its owner said goodbye");
    time.fetch_add(60_001, Ordering::SeqCst);
    later.sweep(Ms(0));
    eventually("a session that was left goes in time", || caller.session("s", None).is_none());
    caller.assert_usage("F-54", |usage| usage.streams == 0 && usage.sessions == 0 && usage.bytes == 0);
}

// The database

#[test]
fn reopening_finds_everything() {
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    let options = StoreOptions::default();
    let store = at(&address, &options);
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(10), question(), sized(0)]);
    let paced = Paced { retry_ms: Some(700), retention_ms: Some(9), closes: 2, closed_at: 1, ..Paced::default() };
    caller.write(&log, &Append { paced: Some(paced), ..log.append(4, &[]) }).expect("it is set");
    let known = SessionRecord { principal: Some("alice".into()), retry_ms: 9, ..SessionRecord::default() };
    caller.hold("alice's", known.clone());
    let mut ended = caller.open("s", 2);
    caller.push(&mut ended, &[sized(10)]);
    caller.finish(&ended, b"tail").expect("it is ended");
    let usage = store.usage();
    drop(store);
    let store = at(&address, &options);
    let caller = Caller::new(&store, Ms(7));
    log.assert_stored(&caller, 0, "I6");
    ended.assert_stored(&caller, 0, "I6");
    let found = caller.log(&log).unwrap();
    let owner = Some(Owner { epoch: caller.epoch, unseen_ms: u64::MAX });
    assert_eq!((found.page.paced, found.page.is_finished, found.page.owner), (paced, false, owner));
    assert_eq!(caller.log(&ended).unwrap().page.tail, Some(Bytes::from_static(b"tail")));
    assert_eq!(caller.session("alice's", Some("alice")), Some(known));
    caller.assert_usage("I11", |now| *now == usage);
}

#[test]
fn what_was_done_already_is_said_to_be_after_a_commit_that_waits_for_the_replica() {
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    let store = at(&address, &StoreOptions::default());
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(1)]);
    let server = Administrator::new();
    // A transaction that changes and locks nothing waits for nobody.
    let locked_by = || server.ask(&format!("SELECT xmax FROM {}.session", namespace(&address)));
    let before = locked_by();
    assert_eq!(caller.append(&log, 1, &[sized(1)]), Ok(()), "rule 2");
    assert_ne!(locked_by(), before);
    log.assert_stored(&caller, 0, "rule 2");
}

#[test]
fn a_log_that_the_database_lost_events_of_is_told() {
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    let store = at(&address, &StoreOptions::default());
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(1), sized(2)]);
    let namespace = namespace(&address);
    // As a standby that was behind has it.
    Administrator::new().run(&format!(
        "DELETE FROM {namespace}.event WHERE seq = 2; UPDATE {namespace}.stream SET head = 1, events = 1"
    ));
    assert_eq!(caller.append(&log, 3, &[sized(3)]), Err(StoreError::RolledBack));
}

#[test]
fn tables_that_cannot_be_used_are_refused_with_what_is_wrong() {
    let namespaces = Namespaces::direct();
    let [newer, older, other, foreign] = [(); 4].map(|()| namespaces.address());
    let server = Administrator::new();
    for (address, versions) in [(&newer, "version = 99, serves = 98"), (&older, "version = 4, serves = 3")] {
        drop(at(address, &StoreOptions::default()));
        server.run(&format!("UPDATE {}.about SET {versions}", namespace(address)));
    }
    server.run(&format!("CREATE SCHEMA {0}; CREATE TABLE {0}.about (x text)", namespace(&other)));
    server.run(&format!("CREATE SCHEMA {0}; CREATE TABLE {0}.stream (x text)", namespace(&foreign)));
    let newer_is =
        "has version 99 of the tables, for releases that know version 98 to 99; this release knows version 7";
    let older_is = "has version 4 of the tables, for releases that know version 3 to 4; this release knows version 7";
    let other_is = "is of something else";
    for (address, what) in [(newer, newer_is), (older, older_is), (other, other_is), (foreign, other_is)] {
        let error = open(&address, &StoreOptions::default()).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(what), "{error:?}");
    }
}

#[test]
fn tables_of_a_later_release_that_serves_this_one_are_used() {
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    let before = at(&address, &StoreOptions::default());
    // As the first process of the later release does in a rolling upgrade.
    Administrator::new().run(&format!(
        "ALTER TABLE {0}.about ADD what text DEFAULT 'new'; UPDATE {0}.about SET version = version + 1;
         ALTER TABLE {0}.session ADD more bigint NOT NULL DEFAULT 0; ALTER TABLE {0}.stream ADD more text;
         ALTER TABLE {0}.message ADD more text",
        namespace(&address)
    ));
    let after = at(&address, &StoreOptions::default());
    let mut log = Caller::new(&before, Ms(0)).open("s", 1);
    for store in [&before, &after] {
        Caller::new(store, Ms(0)).push(&mut log, &[sized(10)]);
    }
    Caller::new(&after, Ms(0)).post(&Log::new("s", 2), b"message").expect("it waits");
    assert_eq!(Caller::new(&before, Ms(0)).take("s", 0).map(|mail| mail.len()), Ok(1));
    log.assert_stored(&Caller::new(&after, Ms(0)), 0, "I3");
}

#[test]
fn addresses_are_refused_with_what_was_tried_and_what_there_is() {
    let direct = told("TAILROPE_TEST_POSTGRES");
    let wrong_password = direct.replace("p%40ss%2Fword", "secret");
    let wrong_database = direct.replace("/events", "/secret-less");
    for (address, what) in [
        ("postgres://me:secret@127.0.0.1/db?passwort=secret".to_owned(), "the options are namespace, connections"),
        ("postgres://me:secret@127.0.0.1:1/db".to_owned(), "connection refused"),
        ("postgres://me:secret@no-such-host.invalid/db".to_owned(), "cannot be resolved"),
        (wrong_password, "refuses the user or the password"),
        (wrong_database, "no such database"),
        (format!("{direct}?sslmode=require"), "the connection failed"),
    ] {
        let error = open(&address, &StoreOptions::default()).err().map(|error| error.to_string()).unwrap_or_default();
        let has_secret = error.replace("secret-less", "").contains("secret");
        assert!(error.contains(what) && !has_secret, "{address}: {error}");
    }
}

// What it takes of the server

#[test]
fn a_short_call_is_one_transaction() {
    let namespaces = Namespaces::direct();
    // Each connection has a row of what it counts.
    let address = format!("{}&connections=1", namespaces.address());
    let store = at(&address, &StoreOptions::default());
    let caller = Caller::new(&store, Ms(0));
    caller.hold("s", SessionRecord::default());
    let mut log = Log::new("s", 1);
    caller.push(&mut log, &[sized(10), terminal()]);
    log.assert_stored(&caller, 0, "I3");
    let (server, name) = (Administrator::new(), namespace(&address));
    // Each row has the number of the transaction that wrote it.
    let written_by = format!(
        "SELECT count(DISTINCT of::text) FROM (SELECT xmin AS of FROM {name}.session UNION ALL SELECT xmin FROM {name}.stream
         UNION ALL SELECT xmin FROM {name}.event UNION ALL SELECT xmin FROM {name}.tally) AS written"
    );
    assert_eq!(server.number(&written_by), 1);
    assert_eq!(server.number(&format!("SELECT count(*) FROM {name}.event")), 3, "with what the log is about");
}

#[test]
fn a_store_takes_four_connections_and_each_of_them_is_used() {
    let namespaces = Namespaces::direct();
    let name = format!("four-{}", std::process::id());
    let address = format!("{}&application_name={name}", namespaces.address());
    let (store, server) = (at(&address, &StoreOptions::default()), Administrator::new());
    let caller = Caller::new(&store, Ms(0));
    let mut logs: Vec<_> = (0..16).map(|number| caller.open(&format!("s {number}"), 1)).collect();
    let bell = Bell::watching(&store, &logs[0]);
    for log in &mut logs {
        caller.push(log, &[sized(10)]);
        caller.log(log);
    }
    // Several at a time, so that one connection is busy when the next is asked for.
    std::thread::scope(|scope| {
        for mut log in logs.iter().map(|log| caller.open(&format!("again {}", log.key.session), 1)) {
            let store = &store;
            scope.spawn(move || (0..8).for_each(|_| Caller::new(store, Ms(0)).push(&mut log, &[sized(10)])));
        }
    });
    // Somebody else writes, and it hears of that.
    let other = at(&address.replace("four-", "other-"), &StoreOptions::default());
    let heard = bell.rings();
    read_by(&other, &logs[0]);
    bell.wait(heard);
    let count = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'");
    eventually("all are used", || server.number(&count) >= 4);
    assert_eq!(server.number(&count), 4);
}

#[test]
fn a_sign_of_life_costs_the_same_among_many() {
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    let (_store, server, name) = (at(&address, &StoreOptions::default()), Administrator::new(), namespace(&address));
    let pages = || {
        let beat = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM {name}.beat(1)");
        // The first reads what the later ones find in memory.
        let plans: Vec<_> = (0..3).filter_map(|_| server.ask(&beat)).collect();
        let plan: serde_json::Value = serde_json::from_str(&plans[2]).expect("it is JSON");
        plan[0]["Plan"]["Shared Hit Blocks"].as_u64().expect("it counts pages")
    };
    let alone = pages();
    server.run(&format!(
        "INSERT INTO {name}.owner (id) SELECT 1000 + n FROM generate_series(1, 20000) AS n;
         INSERT INTO {name}.tally SELECT 1000 + n, lane, 1, 1, 1, 1 FROM generate_series(1, 20000) AS n, generate_series(0, 2) AS lane"
    ));
    let among_many = pages();
    assert!(among_many < alone + 50, "{alone} pages alone, {among_many} among 20,000");
}
