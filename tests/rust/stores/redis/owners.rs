//! The Redis store and the owners of logs: who is gone, and who is only out of sight.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tailrope_core::Ms;
use tailrope_core::store::contract::{Caller, Log};
use tailrope_core::store::{EventStore, SessionRecord, StoreError, StoreOptions};

use super::server::{Kind, Server, at, eventually, fresh, keys, place, say};
use crate::kit::events::{question, sized};
use crate::stores::postgres::proxy::Proxy;

fn options(owner_lost_ms: u64) -> StoreOptions {
    StoreOptions { owner_lost_ms, ..StoreOptions::default() }
}

fn with_a_log(store: &dyn EventStore) -> Log {
    let caller = Caller::new(store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(10), question()]);
    store.put_session(Ms(0), "s", &SessionRecord::default());
    caller.record(&log);
    log
}

fn unseen(caller: &Caller<'_>, log: &Log) -> u64 {
    caller.record(log).and_then(|record| record.owner_unseen_ms).expect("somebody else's log is there")
}

/// The key with an owner's sign of life.
fn sign(server: &Server) -> String {
    let mut signs = keys(&server.place(), "tailrope:o");
    assert_eq!(signs.len(), 1, "{signs:?}");
    signs.remove(0)
}

/// A store that reaches its server only as long as the proxy lets it.
fn behind(proxy: &Proxy, owner_lost_ms: u64) -> Arc<dyn EventStore> {
    at(&format!("redis://127.0.0.1:{}", proxy.port), &options(owner_lost_ms))
}

#[test]
fn i13_the_log_of_an_owner_that_said_goodbye_is_ended_by_others() {
    let address = fresh(Kind::Alone);
    let (owner, other) = (at(&address, &options(2_000)), at(&address, &options(2_000)));
    let log = with_a_log(&*owner);
    let reads = Caller::new(&*other, Ms(0));
    let last = Cell::new(0);
    eventually("it gives signs", || {
        let seen = unseen(&reads, &log);
        seen < last.replace(seen)
    });
    drop(owner);
    assert_eq!(unseen(&reads, &log), u64::MAX);
    assert_eq!(reads.session("s").map(|session| session.unseen_ms), Some(u64::MAX));
    assert_eq!(reads.append(&log, 3, &[sized(1)]), Err(StoreError::Fenced));
    assert_eq!(reads.finish(&log, b"gone"), Ok(()));
    let record = reads.record(&log).unwrap();
    assert_eq!((record.finished, record.tail.as_deref()), (true, Some(&b"gone"[..])));
    assert_eq!(reads.append(&log, 3, &[sized(1)]), Err(StoreError::Gone));
    log.assert_stored(&reads, 0, "I1");
}

#[test]
fn i13_an_owner_is_gone_when_its_sign_stood_still_for_the_whole_time_that_was_watched() {
    const LOST_MS: u64 = 600;
    let server = Server::start(&[]);
    let proxy = Proxy::new(server.place().parse().expect("a host and a port"));
    let (owner, other) = (behind(&proxy, 300), at(&server.address(""), &options(LOST_MS)));
    let log = with_a_log(&*owner);
    let reads = Caller::new(&*other, Ms(0));
    proxy.set_silent(true);
    std::thread::sleep(Duration::from_millis(LOST_MS));
    let began = Instant::now();
    assert_eq!(reads.finish(&log, b"gone"), Err(StoreError::Fenced), "who has never looked knows nothing");
    eventually("it is gone", || {
        let (is_lost, ended) = (unseen(&reads, &log) >= LOST_MS, reads.finish(&log, b"gone"));
        assert!(!is_lost || ended == Ok(()), "{ended:?}");
        ended.is_ok()
    });
    assert!(began.elapsed() >= Duration::from_millis(LOST_MS), "{:?}", began.elapsed());
    // It comes back, and finds that it was given up.
    proxy.set_silent(false);
    assert_eq!(Caller::new(&*owner, Ms(0)).append(&log, 3, &[sized(1)]), Err(StoreError::Gone));
}

#[test]
fn an_outage_that_is_longer_than_owner_lost_ms_is_no_proof_of_anything() {
    const LOST_MS: u64 = 500;
    let server = Server::start(&[]);
    let proxy = Proxy::new(server.place().parse().expect("a host and a port"));
    let (owner, other) = (behind(&proxy, LOST_MS), at(&server.address(""), &options(LOST_MS)));
    let log = with_a_log(&*owner);
    let reads = Caller::new(&*other, Ms(0));
    unseen(&reads, &log);
    proxy.set_silent(true);
    server.signal("STOP");
    std::thread::sleep(Duration::from_millis(2 * LOST_MS));
    server.signal("CONT");
    // The others have it again before its owner has.
    assert!(unseen(&reads, &log) < LOST_MS);
    assert_eq!(reads.finish(&log, b"gone"), Err(StoreError::Fenced));
    proxy.set_silent(false);
    let mut log = log;
    Caller::new(&*owner, Ms(0)).push(&mut log, &[sized(1)]);
    log.assert_stored(&reads, 0, "I1");
}

#[test]
fn each_store_object_goes_by_its_own_setting_whatever_the_owner_has() {
    let server = Server::start(&[]);
    for (of_owner, of_other) in [(10_000, 60_000), (60_000, 10_000)] {
        let (owner, other) = (at(&server.address(""), &options(of_owner)), at(&server.address(""), &options(of_other)));
        let log = with_a_log(&*owner);
        let reads = Caller::new(&*other, Ms(0));
        assert!(unseen(&reads, &log) < of_other);
        assert!(reads.session("s").is_some_and(|session| session.unseen_ms < of_other));
        owner.drop_session("s");
    }
}

#[test]
fn a_sign_of_life_that_the_server_lost_proves_nothing_and_comes_again() {
    let server = Server::start(&[]);
    let proxy = Proxy::new(server.place().parse().expect("a host and a port"));
    let owner = behind(&proxy, 400);
    let log = with_a_log(&*owner);
    let sign = sign(&server);
    proxy.set_silent(true);
    eventually("it is not there", || {
        server.say(&["DEL", &sign]);
        server.say(&["EXISTS", &sign]) == ["0"]
    });
    let other = at(&server.address(""), &options(10));
    let reads = Caller::new(&*other, Ms(0));
    for _ in 0..10 {
        assert_eq!(unseen(&reads, &log), 0);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(reads.finish(&log, b"gone"), Err(StoreError::Fenced));
    proxy.set_silent(false);
    let count = || server.say(&["GET", &sign]).first().and_then(|count| count.parse::<u64>().ok());
    eventually("it gives signs again", || count().is_some());
    // Where each is lost again, others still see that they are not the same.
    let before = count();
    server.say(&["DEL", &sign]);
    eventually("and again", || count().is_some());
    assert!(count() > before, "it goes on counting");
}

#[test]
fn what_an_owner_has_is_kept_while_it_is_there_and_its_sign_for_longer_than_anything_else() {
    let address = fresh(Kind::Alone);
    let (server, namespace) = (place(&address), address.rsplit('=').next().unwrap());
    let limits = tailrope_core::store::Limits { max_age_ms: 1_000, ..Default::default() };
    let store = at(&address, &StoreOptions { limits, ..options(2_000) });
    let caller = Caller::new(&*store, Ms(0));
    let mut log = with_a_log(&*store);
    let left = || -> Vec<(String, i64)> {
        let left = |key: String| (key.clone(), say(&server, &["PTTL", &key])[0].parse().unwrap());
        keys(&server, namespace).into_iter().map(left).collect()
    };
    let of_others = left().into_iter().filter(|(key, _)| !key.contains(":o:"));
    let of_others: Vec<String> = of_others.map(|(key, _)| key).collect();
    assert!(of_others.len() == 5, "{of_others:?}");
    for key in &of_others {
        say(&server, &["PEXPIRE", key, "86400000"]);
    }
    eventually("it says for how long they are kept", || left().iter().all(|(_, ms)| *ms < 3_600_000));
    std::thread::sleep(Duration::from_millis(1_000));
    caller.push(&mut log, &[sized(10)]);
    let low = caller.record(&log).map(|record| record.low);
    assert_eq!(low, Some(3), "what is old goes when there is something new");
    drop(store);
    let left = left();
    let sign = left.iter().find(|(key, _)| key.contains(":o:")).expect("it said goodbye").1;
    assert!(left.len() == 6 && left.iter().all(|(_, ms)| (0..=sign).contains(ms)), "{left:?}");
}
