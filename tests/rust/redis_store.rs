//! The Redis store: the contract of all stores on every kind of server, its bounds, its expiry, its addresses.
//!
//! The servers are real: `tests/services/with redis redis-cluster redis-sentinel redis-tls -- cargo test ...`.

mod events;
mod folder;
mod redis_servers;

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use events::{positions, question, sized, terminal};
use redis_servers::{Kind, Server, address, fresh, keys, place, say};
use tailrope_core::Ms;
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::contract::{Caller, Log, check, check_shared, progress};
use tailrope_core::store::{
    EventStore, Limits, ReadLimit, SessionRecord, StoreError, StoreOptions, Watch, Watcher, open,
};

fn at(address: &str, options: &StoreOptions) -> Arc<dyn EventStore> {
    open(address, options).unwrap_or_else(|error| panic!("{error}"))
}

fn limited(limits: Limits) -> Arc<dyn EventStore> {
    at(&fresh(Kind::Alone), &StoreOptions { limits, ..StoreOptions::default() })
}

fn eventually(what: &str, is_true: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_true() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn keeps_the_contract(kind: Kind) {
    check(&|| at(&fresh(kind), &StoreOptions::default()));
}

fn keeps_the_rules_between_processes(kind: Kind) {
    check_shared(&|| {
        let place = fresh(kind);
        (at(&place, &StoreOptions::default()), at(&place, &StoreOptions::default()))
    });
}

#[test]
fn it_keeps_the_contract() {
    keeps_the_contract(Kind::Alone);
}

#[test]
fn it_keeps_the_rules_between_processes() {
    keeps_the_rules_between_processes(Kind::Alone);
}

#[test]
fn it_keeps_the_contract_in_a_cluster() {
    keeps_the_contract(Kind::Cluster);
}

#[test]
fn it_keeps_the_rules_between_processes_in_a_cluster() {
    keeps_the_rules_between_processes(Kind::Cluster);
}

#[test]
fn it_keeps_the_contract_where_sentinels_say_who_is_in_charge() {
    keeps_the_contract(Kind::Sentinel);
    keeps_the_rules_between_processes(Kind::Sentinel);
}

#[test]
fn it_keeps_the_contract_through_tls() {
    keeps_the_contract(Kind::Tls);
    keeps_the_rules_between_processes(Kind::Tls);
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
    assert_eq!(caller.record(&log).map(|record| (record.low, record.head)), Some((8, 12)));
    assert_eq!((store.usage().events, store.usage().trimmed), (5, 7));
    let tag_at = |after| caller.read(&log, after, ReadLimit { up_to: 12, events: 1, bytes: 1 }).unwrap().tag_at;
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
    let store = limited(Limits { max_event_bytes: 100, ..Limits::default() });
    let caller = Caller::new(&*store, Ms(0));
    let mut log = caller.open("s", 1);
    let refused = caller.append(&log, 1, &[sized(10), sized(101)]);
    assert_eq!(refused, Err(StoreError::TooLarge { bytes: 101, max: 100 }));
    caller.push(&mut log, &[sized(100)]);
}

#[test]
fn an_unanswered_question_outlives_the_events_around_it() {
    let store = limited(Limits { max_events_per_stream: 4, ..Limits::default() });
    let caller = Caller::new(&*store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(1), question(), sized(1), question()]);
    store.settle(&log.key, 4);
    for _ in 0..6 {
        caller.push(&mut log, &[sized(1)]);
    }
    assert_eq!(positions(&caller, &log, 0), [2, 8, 9, 10]);
    assert_eq!(caller.record(&log).map(|record| record.low), Some(8));
    assert_eq!(positions(&caller, &log, 2), [8, 9, 10]);
    store.settle(&log.key, 2);
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
    let kept: Vec<bool> = finished.iter().map(|log| caller.record(log).is_some()).collect();
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
        store.put_session(Ms(0), &session, &SessionRecord::default());
        caller.push(&mut log, &[sized(500), question()]);
        match number % 4 {
            0 => caller.push(&mut log, &[terminal()]),
            1 => store.finish(Ms(0), &log.key, Bytes::from_static(b"end")),
            2 => store.drop_stream(&log.key),
            _ => {}
        }
    }
    assert!(keys(&place(&address), namespace).len() > 100);
    for number in 0..7 {
        store.drop_session(&format!("session {number}"));
    }
    caller.assert_usage("F-54", |usage| (usage.sessions, usage.streams, usage.events, usage.bytes) == (0, 0, 0, 0));
    let left = keys(&place(&address), namespace);
    assert!(left.len() == 1 && left[0].contains(":o:"), "its sign of life is left: {left:?}");
    drop(store);
    assert_eq!(keys(&place(&address), namespace), [""; 0], "nothing is left");
}

// Expiry

#[test]
fn sessions_that_nobody_ever_ends_leave_nothing_behind() {
    let address = fresh(Kind::Alone);
    let (server, namespace) = (place(&address), address.rsplit('=').next().unwrap());
    let limits = Limits { retention_ms: 300, max_age_ms: 1_500, ..Limits::default() };
    let store = at(&address, &StoreOptions { limits, owner_lost_ms: 200, ..StoreOptions::default() });
    let caller = Caller::new(&*store, Ms(0));
    // What these limits keep a session's last key for, and two seconds.
    let life = Duration::from_secs(7);
    let (began, mut opened, mut number, mut keys_each) = (Instant::now(), VecDeque::new(), 0, 0);
    while began.elapsed() < life * 2 {
        let next = Instant::now() + Duration::from_millis(40);
        for _ in 0..20 {
            number += 1;
            let session = format!("short {number}");
            opened.push_back(Instant::now());
            let mut log = caller.open(&session, number);
            store.put_session(Ms(0), &session, &SessionRecord::default());
            caller.push(&mut log, &[sized(50), question(), terminal()]);
            if number == 1 {
                keys_each = keys(&server, namespace).len();
            }
        }
        while opened.front().is_some_and(|since| since.elapsed() > life) {
            opened.pop_front();
        }
        let may_be = opened.len();
        let (held, streams) = (keys(&server, namespace).len(), store.usage().streams);
        assert!(held <= keys_each * may_be && streams <= may_be as u64, "{held} keys, {streams} streams: {may_be}");
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    assert!(number as usize > opened.len() * 4 / 3, "many had time to go: {} of {number}", opened.len());
    for key in keys(&server, namespace) {
        let left: i64 = say(&server, &["PTTL", &key])[0].parse().unwrap();
        assert!(left != -1, "{key} would stay for ever");
    }
    eventually("all of it goes", || keys(&server, namespace).len() <= 1 && store.usage().streams == 0);
}

#[test]
fn what_runs_is_kept_while_its_owner_is_there_and_goes_after_it() {
    let address = fresh(Kind::Alone);
    let (server, namespace) = (place(&address), address.rsplit('=').next().unwrap());
    let limits = Limits { max_age_ms: 4_000, retention_ms: 500, ..Limits::default() };
    let options = StoreOptions { limits, owner_lost_ms: 400, ..StoreOptions::default() };
    let store = at(&address, &options);
    let caller = Caller::new(&*store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(10), question()]);
    // Longer than its keys live without it.
    std::thread::sleep(Duration::from_secs(11));
    log.assert_stored(&caller, 0, "I11");
    caller.push(&mut log, &[sized(10)]);
    assert_eq!(caller.record(&log).map(|record| record.low), Some(3), "what is old goes when there is something new");
    assert_eq!(positions(&caller, &log, 0), [2, 3], "but for the question");
    drop(store);
    let other = at(&address, &options);
    let caller = Caller::new(&*other, Ms(0));
    assert_eq!(caller.record(&log).unwrap().owner_unseen_ms, Some(u64::MAX), "it said goodbye");
    eventually("its log goes", || caller.record(&log).is_none());
    drop(other);
    eventually("all of it goes", || keys(&server, namespace).is_empty());
}

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
        found = caller.record(&log).is_some();
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

// Owners

#[test]
fn i13_the_log_of_an_owner_that_is_gone_is_ended_by_others() {
    let address = fresh(Kind::Alone);
    let options = StoreOptions { owner_lost_ms: 5_000, ..StoreOptions::default() };
    let (owner, other) = (at(&address, &options), at(&address, &options));
    let writes = Caller::new(&*owner, Ms(0));
    let reads = Caller::new(&*other, Ms(0));
    let mut log = writes.open("s", 1);
    writes.push(&mut log, &[sized(10), question()]);
    owner.set_retry(&log.key, 700);
    let known = SessionRecord { principal: Some("alice".into()), retry_ms: 9, ..SessionRecord::default() };
    owner.put_session(Ms(0), "s", &known);
    writes.record(&log);
    assert!(reads.session("s").is_some_and(|record| record.unseen_ms < 5_000));
    std::thread::sleep(Duration::from_millis(6_000));
    assert!(reads.record(&log).unwrap().owner_unseen_ms.is_some_and(|ms| ms < 5_000), "it gives signs");
    drop(owner);
    let record = reads.record(&log).unwrap();
    assert_eq!((record.retry_ms, record.finished, record.owner_unseen_ms), (Some(700), false, Some(u64::MAX)));
    let session = reads.session("s").unwrap();
    assert_eq!((session.principal, session.retry_ms, session.unseen_ms), (known.principal, 9, u64::MAX));
    log.assert_stored(&reads, 0, "I1");
    assert_eq!(reads.append(&log, 3, &[sized(1)]), Err(StoreError::Fenced));
    other.finish(Ms(0), &log.key, Bytes::from_static(b"gone"));
    let record = reads.record(&log).unwrap();
    assert_eq!((record.finished, record.tail.as_deref()), (true, Some(&b"gone"[..])));
    assert_eq!(reads.append(&log, 3, &[sized(1)]), Err(StoreError::Gone));
}

// Wake-ups

#[derive(Default)]
struct Hints {
    last: Mutex<Option<Instant>>,
    came: Condvar,
}

impl Watch for Hints {
    fn changed(&self, _nonce: StreamNonce) {
        *self.last.lock().unwrap() = Some(Instant::now());
        self.came.notify_all();
    }
}

impl Hints {
    /// When a hint came; at most 20 seconds are waited.
    fn wait(&self) -> Instant {
        let last = self.last.lock().unwrap();
        let (mut last, _) = self.came.wait_timeout_while(last, Duration::from_secs(20), |last| last.is_none()).unwrap();
        last.take().expect("rule 13: a hint comes")
    }

    fn forget(&self) {
        *self.last.lock().unwrap() = None;
    }
}

fn watcher(hints: &Arc<Hints>) -> Watcher {
    let hints: Arc<dyn Watch> = Arc::clone(hints) as Arc<dyn Watch>;
    Arc::downgrade(&hints)
}

fn hints_come_soon(kind: Kind) {
    let address = fresh(kind);
    let (a, b) = (at(&address, &StoreOptions::default()), at(&address, &StoreOptions::default()));
    let caller = Caller::new(&*a, Ms(0));
    let mut logs: Vec<Log> = (0..10).map(|number| caller.open(&format!("s{number}"), number)).collect();
    let hints: Vec<Arc<Hints>> = logs.iter().map(|_| Arc::default()).collect();
    for (log, hints) in logs.iter().zip(&hints) {
        b.watch(&log.key, &watcher(hints));
        hints.wait();
    }
    let mut took = Vec::new();
    for round in 0..60 {
        for (log, hints) in logs.iter_mut().zip(&hints) {
            hints.forget();
            let since = Instant::now();
            caller.push(log, &[progress(&format!("{round}"))]);
            took.push(hints.wait().saturating_duration_since(since));
        }
    }
    took.sort_unstable();
    // How soon exactly is for a benchmark to say. Without hints it would be a second.
    let median = took[took.len() / 2];
    assert!(median < Duration::from_millis(100), "half of the hints come within {median:?}");
    let own = Arc::new(Hints::default());
    a.watch(&logs[0].key, &watcher(&own));
    own.wait();
    caller.push(&mut logs[0], &[progress("own")]);
    hints[0].wait();
    assert!(own.last.lock().unwrap().is_none(), "what was done here needs no hint");
}

#[test]
fn hints_of_other_processes_come_soon() {
    hints_come_soon(Kind::Alone);
}

#[test]
fn hints_of_other_processes_come_soon_in_a_cluster() {
    hints_come_soon(Kind::Cluster);
}

// Addresses

fn refusal(address: &str) -> String {
    let error = open(address, &StoreOptions::default()).err();
    error.unwrap_or_else(|| panic!("{address} is opened")).to_string()
}

#[test]
fn an_address_that_cannot_be_used_is_refused_with_what_was_tried_and_nothing_secret() {
    let nobody = "redis://me:secret@127.0.0.1:1/0?connect_timeout_ms=300";
    let since = Instant::now();
    let text = refusal(nobody);
    assert!(since.elapsed() < Duration::from_secs(10));
    assert!(text.contains("\"redis://127.0.0.1:1\"") && text.contains("cannot be reached"), "{text}");
    let (alone, tls) = (place(&address(Kind::Alone)), variable_place());
    let ca = redis_servers::variable("TAILROPE_TEST_REDIS_TLS_CA");
    let cluster = place(&address(Kind::Cluster));
    let sentinel = place(&address(Kind::Sentinel));
    for (address, what) in [
        (format!("redis://me:secret@{alone}?color=secret"), "the options are namespace, "),
        (format!("redis://me:secret@{alone}?connect_timeout_ms=300"), "user or password"),
        (format!("rediss://me:secret@{alone}?connect_timeout_ms=300&ca={ca}"), "TLS"),
        (format!("rediss://me:secret@{tls}?ca={ca}"), "user or password"),
        (format!("rediss://me:secret@{tls}?connect_timeout_ms=300"), "authority that is not trusted"),
        (format!("rediss://me:secret@{tls}?ca=/no/such/file"), "certificates"),
        (format!("redis://me:secret@{tls}?connect_timeout_ms=300"), ""),
        (format!("redis+cluster://{alone}"), "cluster"),
        (format!("redis://{cluster}"), "redis+cluster://"),
        (format!("redis://{sentinel}"), "redis+sentinel://"),
        (format!("redis+sentinel://{sentinel}/other?connect_timeout_ms=300"), "no service called"),
        ("redis:here".to_owned(), "two slashes"),
    ] {
        let text = refusal(&address);
        assert!(text.contains(what) && !text.contains("secret"), "{address}: {text}");
    }
}

fn variable_place() -> String {
    let address = redis_servers::variable("TAILROPE_TEST_REDIS_TLS");
    address.rsplit('@').next().unwrap_or_default().to_owned()
}

#[test]
fn namespaces_share_a_server_and_no_log() {
    let (one, two) = (fresh(Kind::Alone), fresh(Kind::Alone));
    let stores = [&one, &two].map(|address| at(address, &StoreOptions::default()));
    let callers = [&stores[0], &stores[1]].map(|store| Caller::new(&**store, Ms(0)));
    let mut log = callers[0].open("s", 1);
    callers[0].push(&mut log, &[sized(10)]);
    stores[0].put_session(Ms(0), "s", &SessionRecord::default());
    callers[0].record(&log);
    assert!(callers[1].record(&log).is_none() && callers[1].session("s").is_none(), "I7");
    stores[1].drop_session("s");
    callers[1].record(&log);
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
