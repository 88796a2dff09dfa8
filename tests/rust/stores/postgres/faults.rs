//! The PostgreSQL store when its server, the network or other processes fail.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tailrope_core::Ms;
use tailrope_core::store::contract::{Caller, Log, progress};
use tailrope_core::store::{Append, Epoch, EventStore, Hold, ReadLimit, StoreError, StoreOptions};
use tailrope_core::stream::Paced;

use super::bell::Bell;
use super::database::{Administrator, Database, Namespaces, at, namespace, told};
use super::owners::unseen_ms;
use super::proxy::Proxy;
use crate::kit::events::{question, sized};
use crate::kit::eventually::{PATIENCE, eventually};

const EVERYTHING: ReadLimit = ReadLimit { up_to: 1_000_000, events: 1_000_000, bytes: 1 << 30 };

/// A store behind a network that can fail.
pub(super) fn behind_proxy(namespaces: &Namespaces, options: &str) -> (Proxy, String) {
    let direct = told("TAILROPE_TEST_POSTGRES");
    let (_, place) = direct.rsplit_once('@').expect("it has a user");
    let place = place.split('/').next().expect("it has a place");
    let to: SocketAddr = place.parse().expect("a host and a port");
    let proxy = Proxy::new(to);
    let address = namespaces.address().replace(place, &format!("127.0.0.1:{}", proxy.port));
    (proxy, format!("{address}&{options}"))
}

/// Text that an error must not have.
fn assert_discreet(error: &StoreError) {
    let text = format!("{error} {error:?}");
    for secret in ["p@ss", "p%40ss", "127.0.0.1", "events\"", "payload"] {
        assert!(!text.contains(secret), "I9: {text}");
    }
}

// Faults of the server

#[test]
fn an_append_that_was_committed_unheard_is_stored_once() {
    let namespaces = Namespaces::direct();
    let (proxy, address) = behind_proxy(&namespaces, "connections=1&listen=off");
    let store = at(&address, &StoreOptions::default());
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    for round in 0..10 {
        proxy.lose_answer();
        caller.push(&mut log, &[sized(5_000), sized(round)]);
        assert!(proxy.has_lost_answer(), "the fault took place");
    }
    log.assert_stored(&caller, 0, "I3, after a lost answer");
    caller.assert_usage("I11", |usage| usage.events == 20);
    let mut whole = Log::new("s", 2);
    let events = [sized(5_000)];
    proxy.lose_answer();
    let paced = Paced { retry_ms: Some(700), ..Paced::default() };
    let append = Append { end: Some("end".into()), paced: Some(paced), ..whole.append(1, &events) };
    caller.write(&whole, &append).expect("it is stored");
    assert!(proxy.has_lost_answer(), "the fault took place");
    whole.events.extend(events);
    whole.assert_stored(&caller, 0, "I3, after a lost answer");
    let found = caller.log(&whole).expect("it is there");
    assert_eq!((found.page.tail.as_deref(), found.page.paced), (Some(&b"end"[..]), paced));
}

#[test]
fn f58_an_append_of_which_nothing_was_heard_is_not_said_to_have_failed() {
    let namespaces = Namespaces::direct();
    let (proxy, address) =
        behind_proxy(&namespaces, "connections=1&listen=off&timeout_ms=6000&connect_timeout_ms=6000");
    let store = at(&address, &StoreOptions::default());
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(10)]);
    // The answer is lost, and nobody can be asked again.
    proxy.lose_answer();
    proxy.set_refuses(true);
    let unheard = caller.once().append(&log, 2, &[sized(5_000)]).expect_err("nothing is heard");
    assert!(proxy.has_lost_answer(), "the fault took place");
    assert!(matches!(unheard, StoreError::TimedOut { .. }), "whether it is stored is not known: {unheard}");
    proxy.set_refuses(false);
    // It is stored: rule 10.
    eventually("it is reached again", || caller.append(&log, 2, &[sized(1)]) == Err(StoreError::OutOfOrder));
    assert_eq!(caller.log(&log).map(|log| log.page.page.head), Some(2));
}

#[test]
fn backends_that_are_ended_amid_appends_lose_and_repeat_nothing() {
    const EVENTS: usize = 150;
    let database = Database::new();
    let store = at(&database.address("&timeout_ms=60000"), &StoreOptions::default());
    let (is_over, stored) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8)
            .map(|number| {
                let (store, stored) = (&store, &stored);
                scope.spawn(move || {
                    let caller = Caller::new(store, Ms(0));
                    let mut log = caller.open(&format!("session {number}"), number);
                    for event in 0..EVENTS {
                        caller.push(&mut log, &[progress(&format!("{number} {event}"))]);
                        stored.fetch_add(1, Ordering::SeqCst);
                    }
                    log
                })
            })
            .collect();
        let killer = scope.spawn(|| {
            let mut ended = 0;
            while !is_over.load(Ordering::SeqCst) {
                let seen = stored.load(Ordering::SeqCst);
                ended += database.end_connections();
                std::thread::sleep(Duration::from_millis(40));
                // Where connections take longer to make than they live, nothing would ever get through.
                while stored.load(Ordering::SeqCst) == seen && !is_over.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            ended
        });
        let logs: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        // Before anything is judged: who ends connections does so until then.
        is_over.store(true, Ordering::SeqCst);
        let logs: Vec<Log> = logs.into_iter().map(Result::unwrap).collect();
        assert!(killer.join().unwrap() > 10, "connections were ended");
        let caller = Caller::new(&store, Ms(0));
        for log in &logs {
            log.assert_stored(&caller, 0, "I3, after pg_terminate_backend");
        }
        caller.assert_usage("I11", |usage| usage.events == 8 * EVENTS as u64);
    });
}

#[test]
fn a_server_that_is_gone_fails_what_is_asked_and_is_used_again_when_it_is_back() {
    let namespaces = Namespaces::direct();
    let (proxy, address) = behind_proxy(&namespaces, "timeout_ms=6000&connect_timeout_ms=6000");
    let store = at(&address, &StoreOptions::default());
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(10)]);
    // A short while is waited for.
    proxy.set_refuses(true);
    proxy.cut();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            proxy.set_refuses(false);
        });
        caller.push(&mut log, &[sized(11)]);
    });
    // A longer one is not.
    proxy.set_refuses(true);
    proxy.cut();
    let asked = Instant::now();
    let asking = || Caller::new(&store, Ms(0)).once();
    std::thread::scope(|scope| {
        let append = || asking().append(&log, 3, &[sized(12)]).expect_err("nobody is there");
        let appends: Vec<_> = (0..20).map(|_| scope.spawn(append)).collect();
        let read = scope.spawn(|| asking().read(&log, 0, EVERYTHING).expect_err("nobody is there"));
        let end = scope.spawn(|| asking().finish(&log, b"end").expect_err("whoever asked is told, and asks again"));
        for write in appends.into_iter().chain([end]) {
            let error = write.join().unwrap();
            assert!(matches!(error, StoreError::TimedOut { .. }), "rule 10: {error}");
        }
        let error = read.join().unwrap();
        assert!(matches!(error, StoreError::Failed(_)), "{error}");
        assert_discreet(&error);
    });
    assert!(asked.elapsed() < PATIENCE, "they wait together");
    // What has no answer is done when the server is back.
    store.release("s", caller.epoch);
    proxy.set_refuses(false);
    eventually("F-58", || caller.read(&log, 0, EVERYTHING).is_ok());
    assert_eq!(caller.finish(&log, b"end"), Ok(()));
    assert!(caller.log(&log).is_some_and(|log| log.page.owner.is_some()), "it is released");
    let mut other = caller.open("t", 2);
    caller.push(&mut other, &[sized(1)]);
    log.assert_stored(&caller, 0, "I3");
}

#[test]
fn a_server_that_says_nothing_hangs_nobody() {
    let namespaces = Namespaces::direct();
    let (proxy, address) = behind_proxy(&namespaces, "timeout_ms=3000&connect_timeout_ms=3000");
    let store = at(&address, &StoreOptions::default());
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(10)]);
    proxy.set_silent(true);
    let asked = Instant::now();
    let error = caller.once().append(&log, 2, &[sized(10)]).expect_err("nobody answers");
    assert!(matches!(error, StoreError::TimedOut { .. }), "whether it is stored is not known: {error}");
    assert!(caller.read(&log, 0, EVERYTHING).is_err());
    assert!(asked.elapsed() < PATIENCE, "I9");
    proxy.set_silent(false);
    // Whether the append is done or not, asking again tells (rule 10).
    eventually("rule 10", || caller.append(&log, 2, &[sized(10)]) == Ok(()));
    log.events.push(sized(10));
    let mut more = caller.open("s", 2);
    caller.push(&mut more, &[sized(1)]);
    eventually("F-58", || caller.read(&more, 0, EVERYTHING).is_ok());
    more.assert_stored(&caller, 0, "F-58");
    log.assert_stored(&caller, 0, "rule 10");
    let closing = Instant::now();
    proxy.set_silent(true);
    drop(store);
    assert!(closing.elapsed() < PATIENCE, "closing waits a bounded time");
    proxy.set_silent(false);
}

#[test]
fn a_server_that_cannot_be_written_harms_the_events_of_that_while() {
    let database = Database::new();
    let store = at(&database.address("&timeout_ms=4000"), &StoreOptions::default());
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(10)]);
    database.administrator.run(&format!("ALTER DATABASE {} SET default_transaction_read_only = on", database.name));
    database.see_connections_end();
    // As after a failover, when another server is to be written soon.
    let error = caller.once().append(&log, 2, &[sized(10)]).expect_err("it is read-only");
    assert!(matches!(error, StoreError::TimedOut { .. }), "it is tried as long as it may take: {error}");
    log.assert_stored(&caller, 0, "what is stored can be read");
    database.administrator.run(&format!("ALTER DATABASE {} RESET default_transaction_read_only", database.name));
    let at_once = || caller.append(&log, 2, &[sized(20)]);
    eventually("F-58", || at_once().is_ok());
    log.events.push(sized(20));
    log.assert_stored(&caller, 0, "F-58");
}

#[test]
fn refused_signs_of_life_harm_no_read() {
    let database = Database::new();
    // Sixteen signs of life in 10 ms, as long as they are refused.
    let options = StoreOptions { owner_lost_ms: 40, ..StoreOptions::default() };
    let store = at(&database.address("&timeout_ms=4000"), &options);
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(10)]);
    database.administrator.run(&format!("ALTER DATABASE {} SET default_transaction_read_only = on", database.name));
    database.see_connections_end();
    eventually("it sees the refusals", || store.is_cut_off());
    for _ in 0..200 {
        log.assert_stored(&caller, 0, "F-58");
    }
}

#[test]
fn a_full_disk_fails_the_events_that_found_it_full() {
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    let store = at(&address, &StoreOptions::default());
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(10)]);
    let server = Administrator::new();
    server.run(&refuse_events(namespace(&address), "TRUE", "53100"));
    let usage = store.usage();
    let error = caller.append(&log, 2, &[sized(10)]).expect_err("the disk is full");
    assert!(error.to_string().contains("disk is full (53100)"), "{error}");
    assert_discreet(&error);
    assert_eq!(store.usage(), usage, "rule 7");
    let refuses = || caller.append(&log, 2, &[sized(10)]).is_err() && store.refused_ms().is_some();
    eventually("it is known to refuse", refuses);
    server.run(&format!("DROP TRIGGER refuse ON {}.event", namespace(&address)));
    eventually("F-58", || caller.append(&log, 2, &[sized(20)]).is_ok());
    assert_eq!(store.refused_ms(), None);
    log.events.push(sized(20));
    log.assert_stored(&caller, 0, "F-58");
}

/// A trigger that fails events as a server in trouble would.
fn refuse_events(namespace: &str, which: &str, code: &str) -> String {
    format!(
        "CREATE FUNCTION {namespace}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF {which} THEN RAISE EXCEPTION 'payload %', new.frame USING ERRCODE = '{code}'; END IF;
             RETURN new;
         END $$;
         CREATE TRIGGER refuse BEFORE INSERT ON {namespace}.event FOR EACH ROW EXECUTE FUNCTION {namespace}.refuse()"
    )
}

#[test]
fn an_event_that_the_server_refuses_harms_no_other_of_its_transaction() {
    let namespaces = Namespaces::direct();
    // One connection: what comes together is one transaction.
    let address = format!("{}&connections=1", namespaces.address());
    let store = at(&address, &StoreOptions::default());
    let mut logs: Vec<Log> = (0..16).map(|number| Caller::new(&store, Ms(0)).open("s", number)).collect();
    let server = Administrator::new();
    server.run(&refuse_events(namespace(&address), "octet_length(new.frame) = 666", "22000"));
    for round in 0..10 {
        std::thread::scope(|scope| {
            for (number, log) in logs.iter_mut().enumerate() {
                let store = &store;
                scope.spawn(move || {
                    let caller = Caller::new(store, Ms(0));
                    if number % 5 == 0 {
                        let error = caller.append(log, log.head() + 1, &[sized(666)]).expect_err("it is refused");
                        assert!(matches!(error, StoreError::Failed(_)), "{error}");
                        assert_discreet(&error);
                    } else {
                        caller.push(log, &[sized(round)]);
                    }
                });
            }
        });
    }
    let caller = Caller::new(&store, Ms(0));
    for log in &logs {
        log.assert_stored(&caller, 0, "I9");
    }
    caller.assert_usage("rule 7", |usage| usage.events == 12 * 10);
}

#[test]
fn a_lock_of_somebody_else_stops_its_log_alone_and_not_for_ever() {
    let namespaces = Namespaces::direct();
    let address = format!("{}&connections=1&timeout_ms=12000", namespaces.address());
    let store = at(&address, &StoreOptions::default());
    let caller = Caller::new(&store, Ms(0));
    let mut locked = caller.open("s", 1);
    let mut free = caller.open("t", 2);
    let somebody = Administrator::new();
    somebody.run(&format!("BEGIN; UPDATE {}.session SET retry_ms = 1 WHERE id = 1", namespace(&address)));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| Caller::new(&store, Ms(0)).append(&locked, 1, &[sized(10)]));
        Administrator::new().see_waiting(namespace(&address));
        // Nobody who asks waits for the store.
        for seq in 1..1_000 {
            store.settle(&free.key, caller.epoch, seq);
            store.usage();
        }
        assert!(!waiting.is_finished());
        for _ in 0..5 {
            caller.push(&mut free, &[sized(10)]);
        }
        let error = waiting.join().unwrap().expect_err("it is locked");
        assert!(error.to_string().contains("locked (55P03)"), "{error}");
    });
    somebody.run("ROLLBACK");
    caller.push(&mut locked, &[sized(20)]);
    locked.assert_stored(&caller, 0, "F-58");
    free.assert_stored(&caller, 0, "F-58");
}

#[test]
fn a_server_that_hangs_at_every_write_is_waited_for_twice_and_not_by_each_write() {
    const WRITES: u64 = 40;
    let namespaces = Namespaces::direct();
    // One connection: what comes together is one transaction.
    let address = format!("{}&connections=1&timeout_ms=500", namespaces.address());
    let store = at(&address, &StoreOptions::default());
    let logs: Vec<Log> = (0..=WRITES).map(|number| Caller::new(&store, Ms(0)).open("s", number)).collect();
    let (server, names) = (Administrator::new(), namespace(&address));
    // As a synchronous replica does that is not there. A sequence counts what is rolled back, too.
    server.run(&format!(
        "CREATE TABLE {names}.hung (); CREATE SEQUENCE {names}.tries;
         CREATE FUNCTION {names}.hang() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF EXISTS (SELECT FROM {names}.hung) THEN
                 PERFORM nextval('{names}.tries'); PERFORM pg_sleep(3600);
             END IF;
             RETURN new;
         END $$;
         CREATE TRIGGER hang BEFORE INSERT ON {names}.event FOR EACH ROW EXECUTE FUNCTION {names}.hang();
         CREATE TRIGGER hang BEFORE UPDATE ON {names}.session FOR EACH ROW EXECUTE FUNCTION {names}.hang();
         INSERT INTO {names}.hung DEFAULT VALUES"
    ));
    let tries = || server.number(&format!("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {names}.tries"));
    let append = |log: &Log| Caller::new(&store, Ms(0)).once().append(log, 1, &[sized(10)]);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| append(&logs[0]));
        eventually("it hangs", || tries() > 0);
        let others: Vec<_> = logs[1..].iter().map(|log| scope.spawn(|| append(log))).collect();
        for refused in std::iter::once(first).chain(others).map(|asking| asking.join().unwrap()) {
            assert!(
                matches!(refused, Err(StoreError::TimedOut { .. })),
                "whether it is stored is not known: {refused:?}"
            );
        }
    });
    let tries = tries();
    assert!(tries < (WRITES / 2).cast_signed(), "{tries} transactions were waited for");
    server.run(&format!("DELETE FROM {names}.hung"));
    let caller = Caller::new(&store, Ms(0));
    for mut log in logs {
        assert_eq!(append(&log), Ok(()), "rule 10");
        log.events.push(sized(10));
        log.assert_stored(&caller, 0, "rule 10");
    }
}

#[test]
fn a_question_of_no_session_is_answered_behind_everything() {
    let namespaces = Namespaces::direct();
    let address = format!("{}&connections=4", namespaces.address());
    let store = at(&address, &StoreOptions::default());
    let caller = Caller::new(&store, Ms(0));
    for number in 0..8 {
        let mut log = caller.open(&format!("s {number}"), 1);
        caller.push(&mut log, &[question()]);
        let somebody = Administrator::new();
        somebody.run(&format!("BEGIN; UPDATE {}.session SET retry_ms = 1", namespace(&address)));
        store.settle(&log.key, caller.epoch, 1);
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| Caller::new(&store, Ms(0)).session("", None));
            std::thread::sleep(Duration::from_millis(150));
            assert!(!asking.is_finished(), "rule 11: it is not written");
            somebody.run("ROLLBACK");
            assert_eq!(asking.join().unwrap(), None, "rule 11");
        });
        let written = format!("SELECT count(*) FROM {}.event WHERE kind = 2 AND NOT pinned", namespace(&address));
        assert_eq!(Administrator::new().number(&written), i64::from(number) + 1, "rule 11");
    }
}

#[test]
fn a_server_with_too_many_connections_is_used_as_soon_as_there_is_room() {
    let database = Database::new();
    // Superusers are not counted.
    let name = &database.name;
    database
        .administrator
        .run(&format!("CREATE ROLE {name} LOGIN PASSWORD 'p@ss'; GRANT ALL ON DATABASE {name} TO {name}"));
    let (_, place) = database
        .address("&timeout_ms=1000")
        .split_once('@')
        .map(|(user, place)| (user.to_owned(), place.to_owned()))
        .unwrap();
    let address = format!("postgres://{name}:p%40ss@{place}");
    let store = at(&address, &StoreOptions::default());
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(10)]);
    database.administrator.run(&format!("ALTER DATABASE {name} CONNECTION LIMIT 0"));
    database.see_connections_end();
    let error = caller.once().append(&log, 2, &[sized(10)]).expect_err("there is no room");
    assert!(matches!(error, StoreError::TimedOut { .. }), "there may be some time: {error}");
    eventually("I9", || {
        let error = caller.read(&log, 0, EVERYTHING).expect_err("there is no room");
        error.to_string().contains("too many connections (53300)")
    });
    let refused =
        tailrope_stores::postgres::open(&address, &StoreOptions::default()).err().map(|error| error.to_string());
    assert!(
        refused.as_deref().is_some_and(|text| text.contains("too many connections") && !text.contains("ss@")),
        "{refused:?}"
    );
    database.administrator.run(&format!("ALTER DATABASE {name} CONNECTION LIMIT -1"));
    eventually("F-58", || caller.append(&log, 2, &[sized(10)]).is_ok());
    log.events.push(sized(10));
    eventually("F-58", || caller.read(&log, 0, EVERYTHING).is_ok());
    log.assert_stored(&caller, 0, "F-58");
    drop(store);
    drop(database);
}

// Other processes

/// A process of this binary.
fn start(test: &str, variables: &[(&str, &str)]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &in_this_module(test), "--ignored", "--nocapture", "--test-threads=1"])
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this binary runs")
}

/// What the harness calls a test of this module.
fn in_this_module(test: &str) -> String {
    let (_crate, module) = module_path!().split_once("::").expect("it is a module of the program");
    format!("{module}::{test}")
}

fn variable(name: &str) -> Option<String> {
    std::env::var(format!("TAILROPE_TEST_OF_{name}")).ok()
}

#[test]
#[ignore = "it is the process that other tests here start, and kill"]
fn write_as_a_process() {
    let (Some(address), Some(session), Some(events)) = (variable("ADDRESS"), variable("SESSION"), variable("EVENTS"))
    else {
        return;
    };
    let options = StoreOptions { owner_lost_ms: 1_000, ..StoreOptions::default() };
    let store = at(&address, &options);
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open(&session, 1);
    for seq in 1..=events.parse().unwrap() {
        caller.push(&mut log, &[progress(&format!("{session} {seq}"))]);
        let line = format!("\nstored {seq}\n");
        std::io::Write::write_all(&mut std::io::stdout(), line.as_bytes()).unwrap();
    }
}

fn written(session: &str, head: u64) -> Log {
    let mut log = Log::new(session, 1);
    log.events = (1..=head).map(|seq| progress(&format!("{session} {seq}"))).collect();
    log
}

#[test]
fn processes_that_start_at_once_on_an_empty_database_share_one_store() {
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    let mut processes: Vec<Child> = (0..6)
        .map(|number| {
            let session = format!("process {number}");
            start(
                "write_as_a_process",
                &[
                    ("TAILROPE_TEST_OF_ADDRESS", &address),
                    ("TAILROPE_TEST_OF_SESSION", &session),
                    ("TAILROPE_TEST_OF_EVENTS", "50"),
                ],
            )
        })
        .collect();
    for process in &mut processes {
        assert!(process.wait().unwrap().success());
    }
    let store = at(&address, &StoreOptions::default());
    let caller = Caller::new(&store, Ms(0));
    for number in 0..6 {
        written(&format!("process {number}"), 50).assert_stored(&caller, 0, "I2, six processes");
    }
}

#[test]
fn what_was_acknowledged_survives_a_kill_and_its_reader_ends_the_log() {
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    let variables = [
        ("TAILROPE_TEST_OF_ADDRESS", &*address),
        ("TAILROPE_TEST_OF_SESSION", "s"),
        ("TAILROPE_TEST_OF_EVENTS", "9999999"),
    ];
    let mut process = start("write_as_a_process", &variables);
    let lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut stored = lines.filter_map(|line| line.strip_prefix("stored ").map(|seq| seq.parse::<u64>().unwrap()));
    let acknowledged = stored.find(|seq| *seq >= 40).expect("it writes until it is killed");
    let store = at(&address, &StoreOptions { owner_lost_ms: 2_000, ..StoreOptions::default() });
    let caller = Caller::new(&store, Ms(0));
    let log = Log::new("s", 1);
    assert!(unseen_ms(&caller, &log) < 2_000);
    process.kill().unwrap();
    process.wait().unwrap();
    eventually("its owner counts as gone", || unseen_ms(&caller, &log) >= 2_000);
    let head = caller.log(&log).unwrap().page.page.head;
    assert!(head >= acknowledged, "I1: {head} of {acknowledged}");
    let log = written("s", head);
    log.assert_stored(&caller, 0, "I1, after kill -9");
    let heir = caller.with(Epoch { number: 2, salt: 8 });
    let running = heir.try_hold("s", &Hold { epoch: heir.epoch, seen: Some(caller.epoch), record: None });
    assert_eq!(running.map(|logs| logs.iter().map(|log| log.head).collect()), Ok(vec![head]));
    assert_eq!(heir.finish(&log, b"lost"), Ok(()), "I13");
    let page = heir.log(&log).unwrap().page;
    assert_eq!((page.is_finished, page.tail.as_deref(), page.owner), (true, Some(&b"lost"[..]), None), "I13");
}

#[test]
fn o10_a_store_that_does_not_listen_is_in_doubt_after_its_connections_were_cut() {
    let namespaces = Namespaces::direct();
    let (proxy, address) = behind_proxy(&namespaces, "listen=off");
    let store = at(&address, &StoreOptions { owner_lost_ms: 1_000, ..StoreOptions::default() });
    let log = Caller::new(&store, Ms(0)).open("s", 1);
    let bell = Bell::watching(&store, &log);
    let beats = format!("SELECT beat FROM {}.owner", namespace(&address));
    let administrator = Administrator::new();
    let beats_twice_from = |seen: i64| eventually("it gives signs", || administrator.number(&beats) > seen + 1);
    beats_twice_from(administrator.number(&beats));
    assert_eq!(bell.alls(), 0, "nothing happened");
    proxy.cut();
    eventually("owners are to compare what they have", || bell.alls() == 1);
    beats_twice_from(administrator.number(&beats));
    assert_eq!(bell.alls(), 1, "once");
}
