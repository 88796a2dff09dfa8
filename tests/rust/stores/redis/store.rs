//! The Redis store on one server: the contract of all stores, its bounds, its expiry, its addresses.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tailrope_core::Ms;
use tailrope_core::store::contract::{Caller, Log, check_retention, check_size};
use tailrope_core::store::{
    Append, Attach, Epoch, EventStore, Hold, Limits, ReadLimit, SessionRecord, StoreError, StoreOptions,
};
use tailrope_core::stream::Paced;

use super::server::{
    Hints, Kind, Server, address, at, follow, fresh, hints_come, keeps_the_contract, keeps_the_rules_between_processes,
    keys, place, refusal, watcher,
};
use crate::kit::events::{positions, question, sized, terminal};

fn limited(limits: Limits) -> Arc<dyn EventStore> {
    at(&fresh(Kind::Alone), &StoreOptions { limits, ..StoreOptions::default() })
}

#[test]
fn it_keeps_the_contract() {
    keeps_the_contract(Kind::Alone);
}

#[test]
fn i6_it_keeps_a_log_for_as_long_as_its_pace_says() {
    check_retention(&|retention_ms| limited(Limits { retention_ms, ..Limits::default() }), &|_, _| ());
}

#[test]
fn it_keeps_the_rules_between_processes() {
    keeps_the_rules_between_processes(Kind::Alone);
}

#[test]
fn tasks_live_in_it() {
    let address = fresh(Kind::Alone);
    crate::kit::task_life::live(&|options| at(&address, options));
}

#[test]
fn a_short_call_and_a_look_are_one_run_of_the_script_each() {
    let server = Server::start(&[]);
    let store = at(&server.address(""), &StoreOptions::default());
    let caller = Caller::new(&*store, Ms(0));
    let (mut answered, mut ended) = (Log::new("s", 1), Log::new("s", 2));
    caller.hold("s", SessionRecord::default());
    let before = server.runs();
    caller.push(&mut answered, &[sized(10), terminal()]);
    assert_eq!(server.runs() - before, 1);
    let events = vec![sized(10), question()];
    let paced = Paced { retry_ms: Some(700), closes: 2, closed_at: 1, ..Paced::default() };
    let end = Some(Bytes::from_static(b"end"));
    let append = Append { end, paced: Some(paced), ..ended.append(1, &events) };
    assert_eq!(caller.write(&ended, &append), Ok(()));
    assert_eq!(server.runs() - before, 2);
    let limit = ReadLimit { up_to: 9, events: 9, bytes: 999 };
    let attach = Attach { stream: Some(answered.key.nonce), counts: true, limit, ..Attach::default() };
    let found = caller.attach("s", &attach).log.map(|log| (log.page.page.events.len(), log.page.readers));
    assert_eq!((found, server.runs() - before), (Some((2, 1)), 3));
    ended.events = events;
    for (log, end, paced) in [(answered, None, Paced::default()), (ended, Some(&b"end"[..]), paced)] {
        log.assert_stored(&caller, 0, "rule 2");
        let page = caller.log(&log).expect("it is there").page;
        assert_eq!((page.is_finished, page.tail.as_deref(), page.paced), (true, end, paced));
    }
}

// Bounds (I11)

#[test]
fn a_stream_keeps_its_newest_events() {
    let store = limited(Limits { max_events_per_stream: 5, ..Limits::default() });
    let caller = Caller::new(&*store, Ms(0));
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
    let max = 2_000;
    let store = limited(Limits { max_bytes_per_stream: max, ..Limits::default() });
    let caller = Caller::new(&*store, Ms(0));
    let mut log = caller.open("s", 1);
    for _ in 0..50 {
        caller.push(&mut log, &[sized(100)]);
        assert!(store.usage().bytes <= max as u64, "{:?}", store.usage());
    }
    assert!(store.usage().events >= 3);
    caller.push(&mut log, &[sized(5_000)]);
    assert_eq!(positions(&caller, &log, 0), [51]);
    caller.push(&mut log, &[sized(10)]);
    assert_eq!(positions(&caller, &log, 0), [52]);
}

#[test]
fn an_event_that_is_too_large_is_refused_and_named() {
    check_size(&*limited(Limits { max_event_bytes: 100, ..Limits::default() }));
}

#[test]
fn o20_an_unanswered_question_outlives_the_events_around_it() {
    let store = limited(Limits { max_events_per_stream: 4, ..Limits::default() });
    let caller = Caller::new(&*store, Ms(0));
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
}

#[test]
fn questions_that_nobody_answers_yield_last_but_they_do_yield() {
    let max = 3_000;
    let store = limited(Limits { max_bytes_per_stream: max, ..Limits::default() });
    let caller = Caller::new(&*store, Ms(0));
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
    let store = limited(Limits { max_bytes_per_session: 9_000, ..Limits::default() });
    let caller = Caller::new(&*store, Ms(0));
    let mut running = caller.open("s", 0);
    caller.push(&mut running, &[sized(500), sized(500)]);
    let mut finished = Vec::new();
    for number in 1..=8 {
        let mut log = caller.open("s", number);
        caller.push(&mut log, &[sized(400), terminal()]);
        finished.push(log);
    }
    let mut other = caller.open("t", 99);
    caller.push(&mut other, &[sized(7_000)]);
    caller.push(&mut running, &[sized(1_000)]);
    let kept: Vec<bool> = finished.iter().map(|log| caller.log(log).is_some()).collect();
    assert!(kept.is_sorted() && !kept[0] && kept[7], "the oldest finished go first: {kept:?}");
    assert_eq!(positions(&caller, &running, 0), [1, 2, 3], "the running stream is whole");
    assert_eq!(positions(&caller, &other, 0), [1], "another session is not concerned");
    for _ in 0..100 {
        caller.push(&mut running, &[sized(100)]);
    }
    let kept = positions(&caller, &running, 0);
    assert!(*kept.last().unwrap() == 103 && kept.len() < 80, "then events of the largest go: {kept:?}");
    assert!(kept.windows(2).all(|pair| pair[1] == pair[0] + 1));
    assert!(store.usage().bytes <= 9_000 + 7_000 + 800, "{:?}", store.usage());
}

#[test]
fn drops_give_everything_back() {
    let address = fresh(Kind::Alone);
    let store = at(&address, &StoreOptions::default());
    let namespace = address.rsplit('=').next().unwrap();
    let caller = Caller::new(&*store, Ms(0));
    for number in 0..100 {
        let session = format!("session {}", number % 7);
        let mut log = caller.open(&session, number);
        caller.push(&mut log, &[sized(500), question()]);
        match number % 4 {
            0 => caller.push(&mut log, &[terminal()]),
            1 => caller.finish(&log, b"end").expect("it is ended"),
            2 => store.drop_stream(&log.key, caller.epoch),
            _ => {}
        }
    }
    assert!(keys(&place(&address), namespace).len() > 100);
    for number in 0..7 {
        store.drop_session(&format!("session {number}"), caller.epoch);
    }
    caller.assert_usage("F-54", |usage| (usage.sessions, usage.streams, usage.events, usage.bytes) == (0, 0, 0, 0));
    let left = keys(&place(&address), namespace);
    let is_kept = |key: &String| key.contains(":o:") || key.ends_with(":layout");
    assert!(left.len() == 2 && left.iter().all(is_kept), "its sign of life and the mark are left: {left:?}");
}

// Expiry

#[test]
fn i6_a_finished_log_is_readable_until_its_retention_ends() {
    let store = limited(Limits { retention_ms: 8_000, ..Limits::default() });
    let caller = Caller::new(&*store, Ms(0));
    let mut log = caller.open("s", 1);
    let since = Instant::now();
    caller.push(&mut log, &[sized(10), terminal()]);
    let mut found = true;
    while found {
        let asked = since.elapsed();
        found = caller.log(&log).is_some();
        assert!(found || since.elapsed() >= Duration::from_millis(7_990), "not before its time");
        assert!(!found || asked < Duration::from_secs(25), "not long after its time");
        if found && asked < Duration::from_secs(1) {
            log.assert_stored(&caller, 0, "I6");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(caller.read(&log, 0, ReadLimit { up_to: 9, events: 9, bytes: 99 }), Err(StoreError::Gone));
    let log = caller.open("s", 1);
    log.assert_stored(&caller, 0, "the name is free again");
    caller.assert_usage("I11", |usage| (usage.streams, usage.events) == (1, 0));
}

// Wake-ups

#[test]
fn o11_hints_of_other_processes_come() {
    hints_come(Kind::Alone);
}

#[test]
fn an_event_is_told_where_its_last_readers_are_and_nowhere_else() {
    let server = Server::start(&[]);
    let open = || at(&server.address(""), &StoreOptions::default());
    let owner = open();
    let caller = Caller::new(&*owner, Ms(0));
    let mut log = caller.open("s", 1);
    let told = |step: &mut dyn FnMut()| {
        let before = server.calls("publish");
        step();
        server.calls("publish") - before
    };
    let at_home = told(&mut || {
        caller.push(&mut log, &[sized(1)]);
        follow(&caller, &log);
        caller.push(&mut log, &[sized(2), question()]);
    });
    assert_eq!(at_home, 0);
    for readers in 1..=10 {
        let other = open();
        let other = Caller::new(&*other, Ms(0));
        assert_eq!(told(&mut || follow(&other, &log)), readers.min(9), "the owner, and where other readers are");
        assert_eq!(told(&mut || follow(&other, &log)), readers.min(8), "its own store object knows");
        assert_eq!(told(&mut || caller.push(&mut log, &[sized(1)])), readers.min(8));
    }
    let dropped = told(&mut || {
        owner.drop_session("s", caller.epoch);
        assert_eq!(caller.log(&log), None);
    });
    assert_eq!(dropped, 8);
}

#[test]
fn the_owner_of_a_session_without_logs_is_told_that_it_has_another_one() {
    let address = fresh(Kind::Alone);
    let (a, b) = (at(&address, &StoreOptions::default()), at(&address, &StoreOptions::default()));
    let owner = Caller::new(&*a, Ms(0));
    owner.hold("s", SessionRecord::default());
    let hints = Arc::new(Hints::default());
    a.watch(&"s".into(), &watcher(&hints));
    hints.wait();
    hints.forget();
    let hold = Hold { epoch: Epoch { number: 2, salt: 2 }, seen: Some(owner.epoch), record: None };
    assert_eq!(Caller::new(&*b, Ms(0)).try_hold("s", &hold), Ok(Vec::new()));
    hints.wait();
}

// Addresses

#[test]
fn an_address_that_cannot_be_used_is_refused_with_what_was_tried_and_nothing_secret() {
    let nobody = "redis://me:secret@127.0.0.1:1/0?connect_timeout_ms=300";
    let text = refusal(nobody);
    assert!(text.contains("\"redis://127.0.0.1:1\"") && text.contains("cannot be reached"), "{text}");
    let nowhere = refusal("redis://me:secret@no-such-host.invalid?connect_timeout_ms=300");
    assert!(nowhere.contains("cannot be resolved"), "{nowhere}");
    // It takes connections, and never says a word.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent = listener.local_addr().expect("bound");
    let text = refusal(&format!("redis://{silent}?connect_timeout_ms=300"));
    assert!(text.contains("no answer") || text.contains("does not answer"), "{text}");
    let alone = place(&address(Kind::Alone));
    for (address, what) in [
        (format!("redis://me:secret@{alone}?color=secret"), "the options are namespace, "),
        (format!("redis://me:secret@{alone}"), "user or password"),
        (format!("redis+cluster://{alone}"), "cluster"),
        ("redis:here".to_owned(), "two slashes"),
    ] {
        let text = refusal(&address);
        assert!(text.contains(what) && !text.contains("secret"), "{address}: {text}");
    }
}

#[test]
fn namespaces_share_a_server_and_no_log() {
    let (one, two) = (fresh(Kind::Alone), fresh(Kind::Alone));
    let stores = [&one, &two].map(|address| at(address, &StoreOptions::default()));
    let callers = [&stores[0], &stores[1]].map(|store| Caller::new(&**store, Ms(0)));
    let mut log = callers[0].open("s", 1);
    callers[0].push(&mut log, &[sized(10)]);
    assert!(callers[1].log(&log).is_none() && callers[1].session("s", None).is_none(), "I7");
    stores[1].drop_session("s", callers[1].epoch);
    callers[1].session("s", None);
    log.assert_stored(&callers[0], 0, "I7");
}

#[test]
fn a_database_of_its_own_is_used() {
    let server = Server::start(&[]);
    let store = at(&server.address("/3"), &StoreOptions::default());
    let caller = Caller::new(&*store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(10)]);
    let spaces = server.say(&["INFO", "keyspace"]);
    assert!(spaces[0].contains("db3:") && !spaces[0].contains("db0:"), "{spaces:?}");
}
