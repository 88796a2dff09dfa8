//! The Redis store where several servers are one, behind TLS, and over a time: a cluster, sentinels, sessions that come and go.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tailrope_core::Ms;
use tailrope_core::store::contract::{Caller, check};
use tailrope_core::store::{Limits, StoreError, StoreOptions};

use super::server::{
    self, Hints, Kind, Server, address, at, follow, fresh, hints_come, keeps_the_contract,
    keeps_the_rules_between_processes, keys, place, refusal, say, variable, watcher,
};
use crate::kit::events::{question, sized, terminal};
use crate::kit::eventually::{PATIENCE, eventually};

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

#[test]
fn a_server_that_asks_for_a_certificate_gets_ours() {
    let ca = variable("TAILROPE_TEST_REDIS_TLS_CA");
    let of = |name: &str| ca.replace("ca.pem", name);
    let port = server::free_port().to_string();
    let (certificate, key) = (of("server.pem"), of("server.key"));
    let files = ["--tls-ca-cert-file", &ca, "--tls-cert-file", &certificate, "--tls-key-file", &key];
    let _server = Server::start(&[&["--tls-port", &port, "--tls-auth-clients", "yes"], &files[..]].concat());
    let address = format!("rediss://localhost:{port}?ca={ca}&connect_timeout_ms=1000");
    check(&|| {
        let (cert, key) = (of("client.pem"), of("client.key"));
        let number = fresh(Kind::Alone).rsplit('=').next().unwrap().to_owned();
        at(&format!("{address}&cert={cert}&key={key}&namespace={number}"), &StoreOptions::default())
    });
    let error = refusal(&address);
    assert!(error.contains("certificate of ours") || error.contains("broke"), "{error}");
}

#[test]
fn o11_hints_of_other_processes_come_soon() {
    for kind in [Kind::Alone, Kind::Cluster] {
        // How soon exactly is for a benchmark to say. Without hints it would be a second.
        let median = hints_come(kind);
        assert!(median < Duration::from_millis(100), "half of the hints come within {median:?}");
    }
}

#[test]
fn a_failover_of_sentinels_is_followed() {
    let address = fresh(Kind::Sentinel);
    let (a, b) = (at(&address, &StoreOptions::default()), at(&address, &StoreOptions::default()));
    let caller = Caller::new(&*a, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(10)]);
    let hints = Arc::new(Hints::default());
    b.watch(&log.key.session, &watcher(&hints));
    eventually("it listens", || hints.count() > 0);
    follow(&Caller::new(&*b, Ms(0)), &log);
    let sentinel = place(&server::address(Kind::Sentinel));
    let primary = || say(&sentinel, &["SENTINEL", "get-master-addr-by-name", "tailrope"]).join(":");
    let before = primary();
    // What the replica does not have yet would be lost with the old primary.
    say(&before, &["WAIT", "1", "5000"]);
    assert_eq!(say(&sentinel, &["SENTINEL", "FAILOVER", "tailrope"]), ["OK"]);
    let (since, mut is_lost) = (Instant::now(), false);
    while !is_lost && (primary() == before || since.elapsed() < Duration::from_secs(4)) {
        assert!(since.elapsed() < Duration::from_secs(40), "there is another primary");
        let asked = Instant::now();
        match caller.append(&log, log.head() + 1, &[sized(20)]) {
            Ok(()) => log.events.push(sized(20)),
            // The old primary took events after it had been given up: that is told, and not skipped.
            Err(StoreError::RolledBack) => is_lost = true,
            Err(error) => panic!("{error} after {:?}", asked.elapsed()),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let reader = Caller::new(&*b, Ms(0));
    let head = reader.log(&log).unwrap().page.page.head;
    assert!(is_lost == (head < log.head()), "{head} of {}", log.head());
    log.events.truncate(head as usize);
    log.assert_stored(&reader, 0, "I3");
    let heard = hints.count();
    caller.push(&mut log, &[sized(30)]);
    eventually("hints come from the new primary", || hints.count() > heard);
    log.assert_stored(&reader, 0, "I3");
}

#[test]
fn a_sentinel_that_does_not_answer_delays_nobody() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, port) = (fresh(Kind::Sentinel), silent.local_addr().unwrap().port());
    let both = address.replacen("://", &format!("://127.0.0.1:{port},"), 1);
    let (told, opened) = std::sync::mpsc::channel();
    // It would be waited for for an hour.
    std::thread::spawn(move || told.send(at(&format!("{both}&connect_timeout_ms=3600000"), &StoreOptions::default())));
    let store = opened.recv_timeout(PATIENCE).expect("the other one says who is in charge");
    let caller = Caller::new(&*store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(10)]);
    log.assert_stored(&caller, 0, "I1");
}

#[test]
fn slots_that_move_to_another_server_of_the_cluster_are_followed() {
    let address = fresh(Kind::Cluster);
    let (a, b) = (at(&address, &StoreOptions::default()), at(&address, &StoreOptions::default()));
    let servers: Vec<String> = {
        let list = address.rsplit("://").next().unwrap().split('?').next().unwrap();
        list.split(',').map(str::to_owned).collect()
    };
    let id = |server: &str| say(server, &["CLUSTER", "MYID"]).remove(0);
    let caller = Caller::new(&*a, Ms(0));
    // A slot of its own: what other tests have in it would not be moved.
    let mut log = caller.open("that moves", 1);
    caller.push(&mut log, &[sized(10)]);
    let hints = Arc::new(Hints::default());
    b.watch(&log.key.session, &watcher(&hints));
    eventually("it listens", || hints.count() > 0);
    follow(&Caller::new(&*b, Ms(0)), &log);
    let namespace = address.rsplit('=').next().unwrap();
    let of_session = |server: &str| say(server, &["KEYS", &format!("{namespace}:{{*}}:*")]);
    let from = servers.iter().find(|server| !of_session(server).is_empty()).expect("some server has it");
    let to = servers.iter().find(|server| *server != from).unwrap();
    let slot = say(from, &["CLUSTER", "KEYSLOT", &of_session(from)[0]]).remove(0);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(say(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]), ["OK"]);
            assert_eq!(say(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]), ["OK"]);
            let (host, port) = to.split_once(':').unwrap();
            for key in of_session(from) {
                say(from, &["MIGRATE", host, port, &key, "0", "5000"]);
                std::thread::sleep(Duration::from_millis(50));
            }
            for server in [to, from] {
                assert_eq!(say(server, &["CLUSTER", "SETSLOT", &slot, "NODE", &id(to)]), ["OK"]);
            }
            std::thread::sleep(Duration::from_millis(300));
            over.store(true, Ordering::SeqCst);
        });
        while !over.load(Ordering::SeqCst) {
            caller.push(&mut log, &[sized(20)]);
        }
        moving.join().unwrap();
    });
    assert!(of_session(from).is_empty() && !of_session(to).is_empty(), "it has moved");
    log.assert_stored(&Caller::new(&*b, Ms(0)), 0, "I3");
    eventually("hints come from the other server", || {
        let heard = hints.count();
        follow(&caller, &log);
        std::thread::sleep(Duration::from_millis(100));
        hints.count() > heard
    });
}

#[test]
fn an_address_of_another_kind_of_server_is_refused_with_what_was_tried_and_nothing_secret() {
    let (alone, cluster) = (place(&address(Kind::Alone)), place(&address(Kind::Cluster)));
    let sentinel = place(&address(Kind::Sentinel));
    let ca = variable("TAILROPE_TEST_REDIS_TLS_CA");
    let tls = variable("TAILROPE_TEST_REDIS_TLS");
    let tls = tls.rsplit('@').next().unwrap();
    for (address, what) in [
        (format!("rediss://me:secret@{alone}?connect_timeout_ms=300&ca={ca}"), "TLS"),
        (format!("rediss://me:secret@{tls}?ca={ca}"), "user or password"),
        (format!("rediss://me:secret@{tls}?connect_timeout_ms=3000"), "authority that is not trusted"),
        (format!("rediss://me:secret@{tls}?ca=/no/such/file"), "ca: the file with the authorities"),
        (format!("rediss://me:secret@{tls}?ca={ca}&cert={ca}&key={ca}"), "cert and key: the file with our key"),
        (format!("redis://me:secret@{tls}?connect_timeout_ms=300"), ""),
        (format!("redis://{cluster}"), "redis+cluster://"),
        (format!("redis://{sentinel}"), "redis+sentinel://"),
        (format!("redis+sentinel://{sentinel}/other?connect_timeout_ms=3000"), "no service called"),
    ] {
        let text = refusal(&address);
        assert!(text.contains(what) && !text.contains("secret"), "{address}: {text}");
    }
}

#[test]
fn sessions_that_were_let_go_and_nobody_takes_over_leave_nothing_behind() {
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
            caller.push(&mut log, &[sized(50), question(), terminal()]);
            store.release(&session, caller.epoch);
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
    eventually("all of it goes", || keys(&server, namespace).len() <= 2 && store.usage().streams == 0);
}
