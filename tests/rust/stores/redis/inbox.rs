//! The inboxes of the Redis store: what they cost the server, and what is left when it or an owner fails.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tailrope_core::Ms;
use tailrope_core::store::contract::{Caller, Log};
use tailrope_core::store::{
    Attach, Epoch, EventStore, Hold, Limits, MAX_INBOX_MESSAGES, Mail, Message, SessionRecord, StoreError,
    StoreOptions, Usage,
};

use super::server::{self, Hints, Kind, Server, fresh, keys, place, say, watcher};
use crate::kit::events::{sized, terminal};
use crate::kit::eventually::eventually;
use crate::stores::postgres::proxy::Proxy;

fn at(address: &str) -> Arc<dyn EventStore> {
    server::at(address, &StoreOptions::default())
}

/// A session with an owner at this store object.
fn owner(store: &dyn EventStore) -> Caller<'_> {
    let owner = Caller::new(store, Ms(0));
    owner.hold("s", SessionRecord::default());
    owner
}

fn bodies(mail: &[Mail]) -> Vec<&[u8]> {
    mail.iter().map(|mail| &mail.message.body[..]).collect()
}

/// Who comes after the first owner of the session.
fn heir(store: &dyn EventStore) -> Caller<'_> {
    let heir = Caller::new(store, Ms(0)).with(Epoch { number: 2, salt: 2 });
    let hold = Hold { epoch: heir.epoch, seen: Some(Epoch { number: 1, salt: 7 }), record: None };
    heir.try_hold("s", &hold).expect("it can be taken over");
    heir
}

/// The bytes that the server counts for the session, and the key of that.
fn counted(server: &Server) -> (u64, String) {
    let key = server.say(&["KEYS", "tailrope:{*}:s:s"]).remove(0);
    let bytes = server.say(&["HGET", &key, "b"]);
    (bytes.first().map_or(0, |bytes| bytes.parse().expect("a number")), key)
}

#[test]
fn each_operation_is_one_run_of_the_script_and_a_post_tells_the_owner_alone() {
    let server = Server::start(&[]);
    let (a, b, c) = (at(&server.address("")), at(&server.address("")), at(&server.address("")));
    let (owner, poster, another) = (owner(&*a), Caller::new(&*b, Ms(0)), Caller::new(&*c, Ms(0)));
    let hints = [&a, &b, &c].map(|store| {
        let hints = Arc::new(Hints::default());
        store.watch(&"s".into(), &watcher(&hints));
        eventually("it listens", || hints.count() > 0);
        hints
    });
    let step = |step: &mut dyn FnMut()| {
        let before = (server.runs(), server.calls("publish"));
        step();
        (server.runs() - before.0, server.calls("publish") - before.1)
    };
    let (mut answered, withdrawn, own) = (Log::new("s", 1), Log::new("s", 2), Log::new("s", 3));
    another.post(&Log::new("s", 4), b"other").expect("it waits");
    // Who posts without being counted as a reader is told of the answer all the same.
    let message = Some(Message { about: Bytes::new(), body: Bytes::from_static(b"message") });
    let post = Attach { stream: Some(answered.key.nonce), message, ..Attach::default() };
    assert_eq!(step(&mut || drop(poster.attach("s", &post))), (1, 1));
    assert_eq!(step(&mut || drop(poster.post(&withdrawn, b"message"))), (1, 1));
    assert_eq!(step(&mut || drop(owner.post(&own, b"message"))), (1, 0), "the owner's own process knows");
    eventually("the owner is told", || hints[0].posts() == 3);
    assert_eq!(step(&mut || assert_eq!(poster.withdraw(&withdrawn, b"end"), Ok(true))), (1, 0));
    assert_eq!(step(&mut || assert_eq!(owner.take("s", 0).map(|mail| mail.len()), Ok(3))), (1, 0));
    let told = hints[1].count();
    assert_eq!(step(&mut || owner.push(&mut answered, &[sized(1), terminal()])), (1, 1));
    eventually("the poster is told of its answer", || hints[1].count() > told);
    let seen = [1, 2].map(|at| (hints[at].posts(), hints[at].count() > 1));
    assert_eq!(seen, [(0, true), (0, false)], "nobody else is told of messages, or of their answers");
}

#[test]
fn o4_a_post_and_a_take_whose_answers_were_lost_are_done_once() {
    let server = Server::start(&[]);
    let proxy = Proxy::new(server.place().parse().expect("a host and a port"));
    let options = StoreOptions { owner_lost_ms: 3_600_000, ..StoreOptions::default() };
    let store = server::at(&format!("redis://127.0.0.1:{}?timeout_ms=60000", proxy.port), &options);
    let owner = owner(&*store);
    let (posted, mut appended) = (Log::new("s", 1), owner.open("s", 2));
    let (large, body) = (sized(5_000), vec![b'x'; 5_000]);
    proxy.lose_answer();
    owner.post(&posted, &body).expect("it waits");
    assert!(proxy.has_lost_answer());
    proxy.set_silent(true);
    let mail = std::thread::scope(|scope| {
        scope.spawn(|| owner.log(&posted));
        std::thread::sleep(Duration::from_millis(100));
        // What is asked while this one is under way goes together.
        scope.spawn(|| owner.push(&mut appended, std::slice::from_ref(&large)));
        let taking = scope.spawn(|| owner.take("s", 0));
        std::thread::sleep(Duration::from_millis(100));
        proxy.lose_answer();
        proxy.set_silent(false);
        taking.join().expect("it has an answer").expect("it is the owner")
    });
    assert!(proxy.has_lost_answer());
    assert_eq!(bodies(&mail), [&body[..]], "rule 14");
    assert_eq!(owner.take("s", mail[0].number), Ok(Vec::new()), "rule 14");
    assert_eq!(owner.withdraw(&posted, b"late"), Ok(false), "rule 14: it has begun");
    appended.assert_stored(&owner, 0, "rule 10");
}

#[test]
fn a_server_that_was_restarted_has_the_messages_that_it_saved() {
    let mut server = Server::start(&[]);
    let store = at(&server.address(""));
    let caller = owner(&*store);
    let logs = [1, 2, 3].map(|number| Log::new("s", number));
    for (log, body) in logs.iter().zip([&b"begun"[..], b"waits", b"lost"]) {
        caller.post(log, body).expect("it waits");
        if body == b"begun" {
            assert_eq!(caller.take("s", 0).map(|mail| mail.len()), Ok(1));
        } else if body == b"waits" {
            server.say(&["SAVE"]);
        }
    }
    assert_eq!(caller.take("s", 0).map(|mail| mail.len()), Ok(3));
    server.kill();
    server.again();
    // It knows no better than that the second waits.
    assert_eq!(caller.withdraw(&logs[2], b"end"), Err(StoreError::Gone));
    let mail = heir(&*store).take("s", 0).expect("it is the owner");
    assert_eq!(bodies(&mail), [b"waits"]);
}

#[test]
fn messages_count_while_they_are_kept_and_their_logs_are_the_owners_once_they_are_taken() {
    let server = Server::start(&[]);
    let (a, b) = (at(&server.address("")), at(&server.address("")));
    let (owner, poster) = (owner(&*a), Caller::new(&*b, Ms(0)));
    let logs = [1, 2, 3].map(|number| Log::new("s", number));
    let without = |bodies: u64| counted(&server).0 - bodies;
    for log in &logs {
        poster.post(log, &[b'x'; 5_000]).expect("it waits");
    }
    assert!((1_800..2_500).contains(&without(15_000)), "{:?}", counted(&server));
    assert_eq!((a.usage(), b.usage()), (Usage { sessions: 1, ..Usage::default() }, Usage::default()));
    poster.withdraw(&logs[0], b"end").expect("it waits");
    assert!((1_800..2_500).contains(&without(10_000)), "{:?}", counted(&server));
    let mail = owner.take("s", 0).expect("it is the owner");
    assert!((1_800..2_500).contains(&without(10_000)), "it is told again: {:?}", counted(&server));
    let usage = a.usage();
    assert!(usage.streams == 2 && usage.bytes < 2_500, "{usage:?}");
    assert_eq!(owner.take("s", mail[0].number).map(|mail| mail.len()), Ok(1));
    assert!((1_800..2_500).contains(&without(5_000)), "{:?}", counted(&server));
    let heir = heir(&*b);
    assert!((1_800..2_500).contains(&without(0)), "what had begun is the heir's to end: {:?}", counted(&server));
    for log in &logs {
        b.drop_stream(&log.key, heir.epoch);
    }
    heir.attach("", &Attach::default());
    assert_eq!(counted(&server).0, 0);
}

#[test]
fn a_message_whose_log_is_gone_is_not_told_and_its_name_is_free() {
    let server = Server::start(&[]);
    let store = at(&server.address(""));
    let caller = owner(&*store);
    let logs: Vec<Log> = (0..70).map(|number| Log::new("s", number)).collect();
    for log in &logs {
        caller.post(log, b"first").expect("it waits");
    }
    // As many as are told at once, and one more.
    let (gone, left) = logs.split_at(65);
    for log in gone {
        let keys = server.say(&["KEYS", &format!("tailrope:*:m:{}:s", log.key.nonce.hex())]);
        assert_eq!(server.say(&["DEL", &keys[0]]), ["1"]);
    }
    assert_eq!(caller.withdraw(&gone[0], b"end"), Err(StoreError::Gone));
    for (log, body) in [(&gone[1], &b"again"[..]), (&gone[2], b"other")] {
        caller.post(log, body).expect("it waits");
    }
    let mail = caller.take("s", 0).expect("it is the owner");
    let told: Vec<_> = mail.iter().map(|mail| mail.nonce).collect();
    let want: Vec<_> = left.iter().chain(&gone[1..3]).map(|log| log.key.nonce).collect();
    assert_eq!(told, want);
    assert_eq!(bodies(&mail[5..]), [&b"again"[..], b"other"]);
    let last = mail.last().map_or(0, |mail| mail.number);
    assert_eq!(caller.take("s", last), Ok(Vec::new()));
    assert_eq!(server.say(&["KEYS", "tailrope:*:x:s"]), [""; 0], "nothing is left of the inbox");
    assert_eq!(server.say(&["HMGET", &counted(&server).1, "w", "W"]), ["0", "0"]);
    // The server may evict the inbox, too, and not the rest.
    for number in 100..100 + MAX_INBOX_MESSAGES as u64 {
        caller.post(&Log::new("s", number), b"evicted").expect("it waits");
    }
    let keys = server.say(&["KEYS", "tailrope:*:x:s"]);
    assert_eq!(server.say(&["DEL", &keys[0]]), ["1"]);
    assert_eq!(caller.take("s", last), Ok(Vec::new()));
    let log = Log::new("s", 99);
    caller.post(&log, b"next").expect("there is room again");
    assert_eq!(caller.take("s", last).map(|mail| bodies(&mail).concat()), Ok(b"next".to_vec()));
    assert_eq!(caller.withdraw(&Log::new("s", 100), b"end"), Ok(true), "an answer that nobody will give ends");
}

#[test]
fn everything_of_an_inbox_expires_and_what_was_taken_is_kept_for_its_owner() {
    let address = fresh(Kind::Alone);
    let (server, namespace) = (place(&address), address.rsplit('=').next().unwrap());
    let limits = Limits { max_age_ms: 1_000, ..Limits::default() };
    let store = server::at(&address, &StoreOptions { limits, owner_lost_ms: 200, ..StoreOptions::default() });
    let owner = owner(&*store);
    let [begun, withdrawn] = [1, 2].map(|number| Log::new("s", number));
    for log in [&begun, &withdrawn] {
        owner.post(log, b"message").expect("it waits");
    }
    owner.withdraw(&withdrawn, b"end").expect("it waits");
    assert_eq!(owner.take("s", 0).map(|mail| mail.len()), Ok(1));
    for key in keys(&server, namespace) {
        let left: i64 = say(&server, &["PTTL", &key])[0].parse().unwrap();
        assert!(left != -1, "{key} would stay for ever");
    }
    let key = keys(&server, namespace).into_iter().find(|key| key.contains(&begun.key.nonce.hex())).unwrap();
    let left = || say(&server, &["PTTL", &key])[0].parse::<i64>().unwrap();
    for _ in 0..2 {
        say(&server, &["PEXPIRE", &key, "86400000"]);
        eventually("the owner keeps the log", || (0..86_000_000).contains(&left()));
    }
}

#[test]
fn o16_the_name_of_a_session_that_had_several_owners_is_free_after_its_time() {
    const AGE_MS: u64 = 2_000;
    let address = fresh(Kind::Alone);
    let (server, namespace) = (place(&address), address.rsplit('=').next().unwrap());
    let limits = Limits { max_age_ms: AGE_MS, ..Limits::default() };
    let store = server::at(&address, &StoreOptions { limits, ..StoreOptions::default() });
    let first = owner(&*store);
    first.post(&Log::new("s", 1), b"message").expect("it waits");
    let heir = heir(&*store);
    let since = Instant::now();
    store.drop_session("s", heir.epoch);
    let again = Hold { epoch: first.epoch, seen: None, record: Some(SessionRecord::default()) };
    assert_eq!(first.try_hold("s", &again), Err(StoreError::Gone), "O16");
    let left = keys(&server, namespace).into_iter().filter(|key| key.contains('{')).count();
    assert_eq!(left, 2, "its name, and the owner's sign of life");
    eventually("the name is free", || first.try_hold("s", &again) != Err(StoreError::Gone));
    assert!(since.elapsed() >= Duration::from_millis(AGE_MS), "{:?}", since.elapsed());
    assert_eq!(first.take("s", 0), Ok(Vec::new()), "rule 8");
}

#[test]
fn a_server_whose_memory_is_full_refuses_a_message_and_withdraws_one() {
    let server = Server::start(&["--maxmemory", "100mb", "--maxmemory-policy", "noeviction"]);
    let store = at(&server.address(""));
    let caller = owner(&*store);
    let [waits, withdrawn, refused] = [1, 2, 3].map(|number| Log::new("s", number));
    for log in [&waits, &withdrawn] {
        caller.post(log, b"message").expect("it waits");
    }
    server.say(&["CONFIG", "SET", "maxmemory", "1mb"]);
    let error = caller.post(&refused, b"message").expect_err("there is no room");
    assert!(matches!(&error, StoreError::Failed(text) if text.contains("memory is full")), "{error:?}");
    assert_eq!(caller.log(&refused), None, "nothing of it is there");
    assert_eq!(caller.withdraw(&withdrawn, b"end"), Ok(true));
    server.say(&["CONFIG", "SET", "maxmemory", "100mb"]);
    assert_eq!(caller.take("s", 0).map(|mail| bodies(&mail).len()), Ok(1));
    caller.post(&refused, b"message").expect("it waits now");
}

#[test]
fn a_full_inbox_is_a_session_over_its_bytes_and_takes_no_running_log() {
    let limits = Limits { max_bytes_per_session: 20_000, ..Limits::default() };
    let store = server::at(&fresh(Kind::Alone), &StoreOptions { limits, ..StoreOptions::default() });
    let caller = owner(&*store);
    let (mut ended, mut running) = (caller.open("s", 5_000), caller.open("s", 5_001));
    caller.push(&mut ended, &[sized(100), terminal()]);
    caller.push(&mut running, &[sized(100)]);
    for number in 0..MAX_INBOX_MESSAGES as u64 {
        caller.post(&Log::new("s", number), &[b'x'; 100]).expect("it waits");
    }
    let message = Some(Message { about: Bytes::new(), body: Bytes::new() });
    let more = Attach { stream: Some(Log::new("s", 6_000).key.nonce), message, ..Attach::default() };
    assert_eq!(caller.try_attach("s", &more), Err(StoreError::InboxFull { max: MAX_INBOX_MESSAGES }));
    assert_eq!(caller.log(&ended), None, "I11: the finished one goes first");
    running.assert_stored(&caller, 0, "I11: the newest event of another one stays");
    let mut taken = 0;
    while let Some(last) = caller.take("s", taken).expect("it is the owner").last() {
        taken = last.number;
    }
    assert_eq!(taken, MAX_INBOX_MESSAGES as u64);
}
