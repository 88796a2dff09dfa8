//! The Redis store and the owners of sessions: who is gone, and who is only out of sight.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tailrope_core::Ms;
use tailrope_core::store::contract::{Caller, Log, check_released};
use tailrope_core::store::{Epoch, EventStore, Hold, ReadLimit, SessionRecord, StoreError, StoreOptions};

use super::server::{Kind, Server, at, fresh, keys, place, say};
use crate::kit::events::{question, sized};
use crate::kit::eventually::eventually;
use crate::stores::postgres::proxy::Proxy;

fn options(owner_lost_ms: u64) -> StoreOptions {
    StoreOptions { owner_lost_ms, ..StoreOptions::default() }
}

fn with_a_log(store: &dyn EventStore) -> Log {
    let caller = Caller::new(store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(10), question()]);
    log
}

fn unseen(caller: &Caller<'_>, log: &Log) -> u64 {
    let page = caller.read(log, 0, ReadLimit::default()).expect("the log is there");
    page.owner.expect("the session is somebody else's").unseen_ms
}

/// Who comes after the owner.
fn heir(store: &dyn EventStore) -> Caller<'_> {
    Caller::new(store, Ms(0)).with(Epoch { number: 2, salt: 2 })
}

/// Takes the session over with its one log.
fn take(heir: &Caller<'_>, log: &Log) {
    let hold = Hold { epoch: heir.epoch, seen: Some(Epoch { number: 1, salt: 7 }), record: None };
    let running = heir.try_hold("s", &hold).expect("it can be taken over");
    assert_eq!(running.iter().map(|log| log.nonce).collect::<Vec<_>>(), [log.key.nonce]);
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
fn i13_the_session_of_an_owner_that_said_goodbye_is_taken_over_by_others() {
    let address = fresh(Kind::Alone);
    // The other one looks several times between two signs.
    let (owner, other) = (at(&address, &options(4_000)), at(&address, &options(1_000)));
    let log = with_a_log(&*owner);
    let heir = heir(&*other);
    let last = Cell::new(0);
    eventually("it gives signs", || {
        let seen = unseen(&heir, &log);
        seen < last.replace(seen)
    });
    drop(owner);
    eventually("it said goodbye", || unseen(&heir, &log) == u64::MAX);
    take(&heir, &log);
    assert_eq!(heir.finish(&log, b"gone"), Ok(()));
    let page = heir.log(&log).unwrap().page;
    assert_eq!((page.is_finished, page.tail.as_deref(), page.owner), (true, Some(&b"gone"[..]), None));
    log.assert_stored(&heir, 0, "I1");
}

#[test]
fn o14_no_owner_counts_as_gone_where_nobody_can_write() {
    const LOST_MS: u64 = 1_000;
    let server = Server::start(&[]);
    let (owner, other) = (at(&server.address(""), &options(300)), at(&server.address(""), &options(LOST_MS)));
    let log = with_a_log(&*owner);
    let reader = Caller::new(&*other, Ms(0));
    eventually("it gives signs", || unseen(&reader, &log) < LOST_MS && server.calls("mget") > 2);
    server.say(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let mut looks_until = None;
    while looks_until.is_none_or(|until| Instant::now() < until) {
        let unseen = unseen(&reader, &log);
        assert!(unseen < LOST_MS, "{unseen}");
        if looks_until.is_none() && other.is_cut_off() {
            looks_until = Some(Instant::now() + Duration::from_millis(3 * LOST_MS));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    server.say(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    eventually("its signs are written again", || !owner.is_cut_off() && !other.is_cut_off());
    assert!(unseen(&reader, &log) < LOST_MS);
}

#[test]
fn i13_an_owner_is_gone_when_its_sign_stood_still_for_the_whole_time_that_was_watched() {
    const LOST_MS: u64 = 600;
    let server = Server::start(&[]);
    let proxy = Proxy::new(server.place().parse().expect("a host and a port"));
    let (owner, other) = (behind(&proxy, 300), at(&server.address(""), &options(LOST_MS)));
    let mut log = with_a_log(&*owner);
    let heir = heir(&*other);
    proxy.set_silent(true);
    std::thread::sleep(Duration::from_millis(LOST_MS));
    let began = Instant::now();
    assert_eq!(unseen(&heir, &log), 0, "who has never looked knows nothing");
    eventually("it is gone", || unseen(&heir, &log) >= LOST_MS);
    assert!(began.elapsed() >= Duration::from_millis(LOST_MS), "{:?}", began.elapsed());
    let of_session = || keys(&server.place(), "tailrope:{*}");
    assert_eq!(of_session().len(), 5, "{:?}", of_session());
    for key in of_session() {
        server.say(&["PEXPIRE", &key, "60000"]);
    }
    take(&heir, &log);
    for key in of_session() {
        let left: u64 = server.say(&["PTTL", &key])[0].parse().unwrap();
        assert!(left > 60_000, "{key} is kept for the heir: {left}");
    }
    assert_eq!((other.usage().sessions, other.usage().streams), (1, 1));
    // It comes back, and finds that it was given up.
    proxy.set_silent(false);
    assert_eq!(Caller::new(&*owner, Ms(0)).append(&log, 3, &[sized(1)]), Err(StoreError::Fenced));
    eventually("it keeps nothing of it", || owner.usage().sessions == 0);
    heir.push(&mut log, &[sized(1)]);
    log.assert_stored(&heir, 0, "I4");
}

#[test]
fn o14_an_outage_that_is_longer_than_owner_lost_ms_is_no_proof_of_anything() {
    const LOST_MS: u64 = 500;
    let server = Server::start(&[]);
    let proxy = Proxy::new(server.place().parse().expect("a host and a port"));
    let (owner, other) = (behind(&proxy, LOST_MS), at(&server.address(""), &options(LOST_MS)));
    let mut log = with_a_log(&*owner);
    let reads = Caller::new(&*other, Ms(0));
    unseen(&reads, &log);
    proxy.set_silent(true);
    server.signal("STOP");
    std::thread::sleep(Duration::from_millis(2 * LOST_MS));
    server.signal("CONT");
    // The others have it again before its owner has.
    assert!(unseen(&reads, &log) < LOST_MS);
    proxy.set_silent(false);
    Caller::new(&*owner, Ms(0)).push(&mut log, &[sized(1)]);
    log.assert_stored(&reads, 0, "I1");
}

#[test]
fn o18_an_owner_whose_signs_have_no_answer_is_cut_off() {
    let server = Server::start(&[]);
    let proxy = Proxy::new(server.place().parse().expect("a host and a port"));
    let owner = behind(&proxy, 1_000);
    eventually("its signs have answers", || !owner.is_cut_off());
    proxy.set_silent(true);
    eventually("nobody answers", || owner.is_cut_off());
    proxy.set_silent(false);
    eventually("it is heard again", || !owner.is_cut_off());
}

#[test]
fn each_store_object_goes_by_its_own_setting_whatever_the_owner_has() {
    let server = Server::start(&[]);
    for (of_owner, of_other) in [(10_000, 60_000), (60_000, 10_000)] {
        let (owner, other) = (at(&server.address(""), &options(of_owner)), at(&server.address(""), &options(of_other)));
        let log = with_a_log(&*owner);
        assert!(unseen(&Caller::new(&*other, Ms(0)), &log) < of_other);
        owner.drop_session("s", Caller::new(&*owner, Ms(0)).epoch);
    }
}

#[test]
fn a_sign_of_life_that_the_server_lost_comes_again_or_is_one_that_stands_still() {
    const LOST_MS: u64 = 400;
    let server = Server::start(&[]);
    let proxy = Proxy::new(server.place().parse().expect("a host and a port"));
    let owner = behind(&proxy, LOST_MS);
    let log = with_a_log(&*owner);
    let sign = sign(&server);
    let other = at(&server.address(""), &options(LOST_MS));
    let reads = Caller::new(&*other, Ms(0));
    proxy.set_silent(true);
    eventually("it is not there", || {
        server.say(&["DEL", &sign]);
        server.say(&["EXISTS", &sign]) == ["0"]
    });
    assert_eq!(unseen(&reads, &log), 0, "that proves nothing");
    let began = Instant::now();
    assert_eq!(unseen(&reads, &log), 0, "and no more that it is there");
    eventually("an owner that never comes back is gone", || unseen(&reads, &log) >= LOST_MS);
    assert!(began.elapsed() >= Duration::from_millis(LOST_MS), "{:?}", began.elapsed());
    proxy.set_silent(false);
    let count = || server.say(&["GET", &sign]).first().and_then(|count| count.parse::<u64>().ok());
    eventually("it gives signs again", || unseen(&reads, &log) == 0 && count() > Some(0));
    // Where it is lost again, others still see that it is not the same.
    let before = count();
    server.say(&["DEL", &sign]);
    eventually("it goes on counting", || count() > before);
}

#[test]
fn an_owner_that_cannot_be_looked_for_is_not_gone_and_its_log_is_read() {
    let server = Server::start(&[]);
    let (owner, other) = (at(&server.address(""), &options(2_000)), at(&server.address(""), &options(2_000)));
    let log = with_a_log(&*owner);
    drop(owner);
    let reads = Caller::new(&*other, Ms(0));
    assert_eq!(server.say(&["ACL", "SETUSER", "default", "-mget"]), ["OK"]);
    assert_eq!(unseen(&reads, &log), 0, "who has never looked knows nothing");
    eventually("it cannot be looked for", || server.refusals("mget") > 0);
    assert_eq!(unseen(&reads, &log), 0, "nothing is known of it");
    assert_eq!(server.say(&["ACL", "SETUSER", "default", "+mget"]), ["OK"]);
    eventually("it is looked for again", || unseen(&reads, &log) == u64::MAX);
}

#[test]
fn owners_are_looked_for_beside_what_is_asked_and_as_often_as_this_one_gives_signs() {
    let server = Server::start(&[]);
    let (owner, other) = (at(&server.address(""), &options(60_000)), at(&server.address(""), &options(60_000)));
    let log = with_a_log(&*owner);
    let reads = Caller::new(&*other, Ms(0));
    let (began, before) = (Instant::now(), server.calls("mget"));
    for _ in 0..200 {
        unseen(&reads, &log);
    }
    eventually("it is looked for", || server.calls("mget") > before);
    let (looks, beats) = (server.calls("mget") - before, began.elapsed().as_millis() as u64 / 2_500);
    assert!(looks <= 2 + beats, "{looks} looks");
}

#[test]
fn o16_what_was_let_go_of_and_nobody_takes_over_goes_in_the_end() {
    let limits = tailrope_core::store::Limits { max_age_ms: 1_000, retention_ms: 1_000, ..Default::default() };
    let options = StoreOptions { limits, ..options(2_000) };
    let address = fresh(Kind::Alone);
    let sleep = |ms| std::thread::sleep(Duration::from_millis(ms));
    check_released(&|| (at(&address, &options), at(&address, &options)), 1_000, &sleep);
}

#[test]
fn o16_what_an_owner_has_is_kept_by_a_server_whose_memory_is_full() {
    let server = Server::start(&["--maxmemory", "100mb", "--maxmemory-policy", "noeviction"]);
    let limits = tailrope_core::store::Limits { max_age_ms: 1_000, ..Default::default() };
    let store = at(&server.address(""), &StoreOptions { limits, ..options(2_000) });
    with_a_log(&*store);
    server.say(&["CONFIG", "SET", "maxmemory", "1mb"]);
    let left = |key: &String| -> i64 { server.say(&["PTTL", key])[0].parse().unwrap() };
    let of_session = keys(&server.place(), "tailrope:{*}");
    for key in &of_session {
        server.say(&["PEXPIRE", key, "86400000"]);
    }
    eventually("it says for how long they are kept", || of_session.iter().all(|key| left(key) < 3_600_000));
}

#[test]
fn o16_what_an_owner_has_is_kept_while_it_is_there_and_its_sign_for_longer_than_anything_else() {
    let address = fresh(Kind::Alone);
    let (server, namespace) = (place(&address), address.rsplit('=').next().unwrap());
    let limits = tailrope_core::store::Limits { max_age_ms: 1_000, ..Default::default() };
    let store = at(&address, &StoreOptions { limits, ..options(2_000) });
    let caller = Caller::new(&*store, Ms(0));
    let mut log = with_a_log(&*store);
    caller.hold("idle", SessionRecord::default());
    // The mark of the layout outlives them all.
    let left = || -> Vec<(String, i64)> {
        let left = |key: String| (key.clone(), say(&server, &["PTTL", &key])[0].parse().unwrap());
        keys(&server, namespace).into_iter().filter(|key| !key.ends_with(":layout")).map(left).collect()
    };
    let of_others = left().into_iter().filter(|(key, _)| !key.contains(":o:"));
    let of_others: Vec<String> = of_others.map(|(key, _)| key).collect();
    assert!(of_others.len() == 6, "{of_others:?}");
    for wait_ms in [1_000, 0] {
        for key in &of_others {
            say(&server, &["PEXPIRE", key, "86400000"]);
        }
        eventually("it says for how long they are kept", || left().iter().all(|(_, ms)| *ms < 3_600_000));
        // Also when nothing was written for longer than an event is kept.
        std::thread::sleep(Duration::from_millis(wait_ms));
    }
    caller.push(&mut log, &[sized(10)]);
    let low = caller.log(&log).map(|log| log.page.page.low);
    assert_eq!(low, Some(3), "what is old goes when there is something new");
    drop(store);
    let left = left();
    let sign = left.iter().find(|(key, _)| key.contains(":o:")).expect("it said goodbye").1;
    assert!(left.len() == 7 && left.iter().all(|(_, ms)| (0..=sign).contains(ms)), "{left:?}");
}
