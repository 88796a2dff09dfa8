//! The Redis store when its server is slow, gone, set back, full, read-only, or another one than before (I9).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tailrope_core::Ms;
use tailrope_core::engine::{Condition, Engine, Options};
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::contract::{Caller, Log, progress};
use tailrope_core::store::{
    Answer, Append, Complete, EventStore, Operation, Outcome, ReadLimit, SessionRecord, StoreError, StoreOptions,
    StreamKey, Ticket,
};
use tailrope_core::stream::{Chain, EventKind, StoredEvent};

use super::server::{self, Hints, Kind, Server, follow, fresh, place, say, watcher};
use crate::kit::events::{positions, question, sized, terminal};
use crate::kit::eventually::{PATIENCE, eventually};
use crate::stores::postgres::proxy::Proxy;

fn at(address: &str) -> Arc<dyn EventStore> {
    server::at(address, &StoreOptions::default())
}

const EVERYTHING: ReadLimit = ReadLimit { up_to: 1_000_000, events: 1_000, bytes: 1 << 20 };

#[test]
fn a_server_that_was_restarted_empty_has_no_logs_and_takes_new_ones() {
    let mut server = Server::start(&[]);
    let store = at(&server.address(""));
    let caller = Caller::new(&*store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(10), question()]);
    let hints = Arc::new(Hints::default());
    store.watch(&log.key.session, &watcher(&hints));
    eventually("it listens", || hints.count() > 0);
    let before = hints.count();
    server.kill();
    server.again();
    assert_eq!(caller.append(&log, 3, &[sized(10)]), Err(StoreError::Gone), "never in silence");
    assert_eq!(caller.read(&log, 0, EVERYTHING), Err(StoreError::Gone));
    assert_eq!((caller.log(&log), caller.session("s", None)), (None, None));
    eventually("those who wait for a log that is gone are told to look", || hints.count() > before);
    let mut log = caller.open("s", 2);
    caller.push(&mut log, &[sized(10)]);
    log.assert_stored(&caller, 0, "I9");
    let other = at(&server.address(""));
    let owner = Caller::new(&*other, Ms(0)).log(&log).unwrap().page.owner;
    assert!(owner.is_some_and(|owner| owner.unseen_ms < 10_000), "the owner gives signs here, too: {owner:?}");
}

#[test]
fn a_server_that_is_away_or_stands_still_is_known_to_be_until_it_is_back() {
    let mut server = Server::start(&[]);
    let store = at(&server.address("?timeout_ms=2000"));
    let engine = Engine::new(Options { store: Some(Arc::clone(&store)), ..Options::default() });
    let is_away = || engine.health().store_away_ms.is_some();
    let up = || engine.stats().store_up;
    assert_eq!((engine.health().status(), up()), (Condition::Ok, 1));
    server.kill();
    eventually("it is known to be away, with nobody who asks it for anything", is_away);
    assert_eq!((engine.health().status(), engine.health().http_status(), up()), (Condition::Degraded, 200, 0));
    eventually("it is away for so long that calls are refused", || engine.health().is_refusing);
    assert_eq!((engine.health().status(), engine.health().http_status()), (Condition::Unavailable, 503));
    server.again();
    eventually("it is back", || engine.health().status() == Condition::Ok && up() == 1);
    server.signal("STOP");
    eventually("it stands still", is_away);
    server.signal("CONT");
    eventually("it goes on", || engine.health().status() == Condition::Ok);
}

#[test]
fn a_server_that_was_set_back_is_recognised() {
    let mut server = Server::start(&[]);
    let store = at(&server.address(""));
    let caller = Caller::new(&*store, Ms(0));
    let mut set_back = caller.open("s", 1);
    let mut unchanged = caller.open("t", 2);
    caller.push(&mut set_back, &[sized(10), sized(11)]);
    caller.push(&mut unchanged, &[sized(10)]);
    server.say(&["SAVE"]);
    caller.push(&mut set_back, &[sized(12), sized(13)]);
    server.kill();
    server.again();
    assert_eq!(caller.append(&set_back, 5, &[sized(14)]), Err(StoreError::RolledBack), "never a silent skip");
    assert_eq!(caller.log(&set_back).map(|log| log.page.page.head), Some(2), "and what it has is told");
    caller.push(&mut unchanged, &[sized(20)]);
    unchanged.assert_stored(&caller, 0, "I9");
    // It goes on at another place, and the history from before is not continued there.
    let mut forked = set_back.clone();
    forked.events.truncate(2);
    caller.push(&mut forked, &[sized(99), sized(98)]);
    assert_eq!(caller.append(&set_back, 5, &[sized(14)]), Err(StoreError::RolledBack), "I3: another history");
    assert_eq!(caller.finish(&set_back, b"end"), Ok(()), "I13: it ends all the same");
    forked.assert_stored(&caller, 0, "I9");
}

#[test]
fn connections_that_are_cut_in_the_middle_of_appends_lose_nothing_and_repeat_nothing() {
    let server = Server::start(&[]);
    let store = at(&server.address("?timeout_ms=60000"));
    let (over, stored) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let cut = scope.spawn(|| {
            let mut cuts = 0;
            while !over.load(Ordering::SeqCst) {
                let seen = stored.load(Ordering::SeqCst);
                server.say(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                cuts += 1;
                std::thread::sleep(Duration::from_millis(7));
                // Where connections take longer to make than they live, nothing would ever get through.
                while stored.load(Ordering::SeqCst) == seen && !over.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            cuts
        });
        let writers: Vec<_> = (0..8)
            .map(|number| {
                let (store, stored) = (&store, &stored);
                scope.spawn(move || {
                    let caller = Caller::new(&**store, Ms(0));
                    let mut log = caller.open(&format!("s{}", number % 3), number);
                    for event in 0..150 {
                        caller.push(&mut log, &[progress(&format!("{number} {event}")), sized(event)]);
                        stored.fetch_add(1, Ordering::SeqCst);
                    }
                    log
                })
            })
            .collect();
        let logs: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        // Before anything is judged: who cuts connections does so until then.
        over.store(true, Ordering::SeqCst);
        let logs: Vec<Log> = logs.into_iter().map(Result::unwrap).collect();
        assert!(cut.join().unwrap() > 10);
        let caller = Caller::new(&*store, Ms(0));
        for log in logs {
            log.assert_stored(&caller, 0, "I3");
        }
    });
}

#[test]
fn a_server_that_pauses_is_waited_for_and_nobody_waits_for_the_store() {
    let server = Server::start(&[]);
    let store = at(&server.address("?timeout_ms=60000"));
    let caller = Caller::new(&*store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(10)]);
    server.signal("STOP");
    std::thread::scope(|scope| {
        let mut slow = log.clone();
        let store = &store;
        let writing = scope.spawn(move || {
            Caller::new(&**store, Ms(0)).push(&mut slow, &[sized(20)]);
            slow
        });
        // These return although the server does nothing.
        for seq in 100..1_000 {
            store.settle(&log.key, caller.epoch, seq);
            store.usage();
        }
        assert!(!writing.is_finished());
        server.signal("CONT");
        writing.join().unwrap().assert_stored(&caller, 0, "I2");
    });
}

#[test]
fn a_server_that_is_slow_with_everything_is_not_asked_for_it_twice() {
    const SESSIONS: u64 = 40;
    let server = Server::start(&[]);
    let proxy = Proxy::new(server.place().parse().expect("a host and a port"));
    let store = at(&format!("redis://127.0.0.1:{}?timeout_ms=1600", proxy.port));
    let caller = Caller::new(&*store, Ms(0));
    let mut logs: Vec<Log> = (0..SESSIONS).map(|number| caller.open(&format!("s {number}"), number)).collect();
    // The last answer comes after more than half of the time, which is when a server counts as silent.
    let is_asked_once = |logs: &mut [Log]| {
        let before = server.runs();
        proxy.set_pace(Duration::from_micros(700));
        std::thread::scope(|scope| {
            for log in logs {
                let store = &store;
                scope.spawn(move || {
                    let caller = Caller::new(&**store, Ms(0));
                    let event = sized(10);
                    // One that takes longer than the store waits is asked for again, as the engine does.
                    while let Err(error) = caller.append(log, log.head() + 1, std::slice::from_ref(&event)) {
                        assert!(matches!(error, StoreError::TimedOut { .. } | StoreError::Failed(_)), "{error}");
                    }
                    log.events.push(event);
                });
            }
        });
        proxy.set_pace(Duration::ZERO);
        server.runs() - before == SESSIONS
    };
    // A machine that stands still makes any server a silent one.
    assert!((0..5).any(|_| is_asked_once(&mut logs)), "what is late comes, and need not be sent again");
    for log in &logs {
        log.assert_stored(&caller, 0, "I3");
    }
}

/// Collects outcomes by number.
struct Inbox(Mutex<Sender<(u64, Outcome)>>);

impl Complete for Inbox {
    fn complete(&self, ticket: &Ticket, outcome: Outcome) {
        let _ = self.0.lock().unwrap().send((ticket.number, outcome));
    }
}

#[test]
fn a_server_that_stands_still_fails_operations_in_their_time_and_the_queue_has_a_bound() {
    let server = Server::start(&[]);
    // The first that wait are to wait until the last has come.
    let store = at(&server.address("?timeout_ms=6000"));
    let caller = Caller::new(&*store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(10)]);
    server.signal("STOP");
    let refused = caller.once().append(&log, 2, &[sized(20)]);
    assert!(matches!(refused, Err(StoreError::TimedOut { .. })), "whether it is stored is not known: {refused:?}");
    assert!(matches!(caller.read(&log, 0, EVERYTHING), Err(StoreError::Failed(_))));
    // More than may wait: what is too much is refused at once.
    let (answers, came) = channel();
    let inbox: Arc<dyn Complete> = Arc::new(Inbox(Mutex::new(answers)));
    let frame: Arc<[u8]> = vec![b'x'; 1 << 20].into();
    let mut waiting = 0;
    for number in 0..200 {
        let key = StreamKey { session: "big".into(), nonce: StreamNonce([number as u8; 12]) };
        let ticket = Ticket { to: Arc::downgrade(&inbox), nonce: key.nonce, operation: Operation::Append, number };
        let event = StoredEvent { seq: 1, kind: EventKind::Progress, tag: 0, frame: Arc::clone(&frame) };
        let append = Append { events: vec![event], ..Log::new("big", number).append(1, &[]) };
        match store.append(Ms(0), &key, caller.epoch, &append, &ticket) {
            Answer::Later => waiting += 1,
            Answer::Now(Err(StoreError::Failed(text))) => assert!(text.contains("wait already"), "{text}"),
            other => panic!("{other:?}"),
        }
    }
    assert!((32..100).contains(&waiting), "{waiting}");
    for _ in 0..waiting {
        came.recv_timeout(PATIENCE).expect("each has its answer");
    }
    server.signal("CONT");
    eventually("it works again", || caller.read(&log, 0, EVERYTHING).is_ok());
    // The one whose answer nobody knew: its position is taken, or free.
    let head = caller.log(&log).unwrap().page.page.head;
    assert!(head == 1 || head == 2, "{head}");
    if head == 2 {
        log.events.push(sized(20));
    }
    caller.push(&mut log, &[sized(30)]);
    log.assert_stored(&caller, 0, "I3");
}

#[test]
fn a_server_that_takes_no_writes_for_a_while_is_tried_until_the_time_is_over() {
    let server = Server::start(&[]);
    let nobody = Server::start(&[]);
    let store = at(&server.address("?timeout_ms=60000"));
    let caller = Caller::new(&*store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(10)]);
    let writable = ["REPLICAOF", "NO", "ONE"];
    // A replica of nobody who answers keeps what it has.
    let read_only = ["REPLICAOF", "127.0.0.1", &nobody.port.to_string()];
    nobody.signal("STOP");
    server.say(&read_only);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let refused = || server.say(&["INFO", "errorstats"]).concat().contains("READONLY");
            eventually("it is tried", refused);
            server.say(&writable);
        });
        caller.push(&mut log, &[sized(20)]);
    });
    let hasty = at(&server.address("?timeout_ms=1000"));
    let caller = Caller::new(&*hasty, Ms(0));
    let mut log = caller.open("t", 2);
    caller.push(&mut log, &[sized(10)]);
    server.say(&read_only);
    let since = Instant::now();
    let refused = caller.once().append(&log, 2, &[sized(30)]);
    assert!(matches!(&refused, Err(StoreError::TimedOut { .. })), "it may be written some time: {refused:?}");
    assert!(since.elapsed() >= Duration::from_millis(900), "{:?}", since.elapsed());
    server.say(&writable);
    caller.push(&mut log, &[sized(30)]);
    log.assert_stored(&caller, 0, "I9");
}

#[test]
fn o10_all_is_in_doubt_where_connections_were_made_anew_though_the_line_of_hints_held() {
    let server = Server::start(&[]);
    let store = at(&server.address(""));
    let hints = Arc::new(Hints::default());
    store.watch(&"s".into(), &watcher(&hints));
    eventually("it listens", || hints.count() > 0);
    let heard = hints.count();
    // Subscriptions are of another type.
    server.say(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    eventually("it is in doubt", || hints.count() > heard);
}

#[test]
fn what_a_full_server_refused_to_forget_is_forgotten_later() {
    let server = Server::start(&["--maxmemory", "100mb", "--maxmemory-policy", "noeviction"]);
    let store = at(&server.address(""));
    let caller = Caller::new(&*store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(10)]);
    server.say(&["CONFIG", "SET", "maxmemory", "1mb"]);
    let refused = || server.say(&["INFO", "errorstats"]).concat().contains("OOM");
    eventually("it takes nothing", || {
        let _ = caller.once().append(&Log::new("s", 2), 1, &[sized(1)]);
        refused()
    });
    store.release("s", caller.epoch);
    // Behind it in the same session: it was tried, and refused.
    let behind = caller.append(&Log::new("s", 3), 1, &[sized(1)]);
    assert!(matches!(&behind, Err(StoreError::Failed(_))), "{behind:?}");
    server.say(&["CONFIG", "SET", "maxmemory", "100mb"]);
    let other = at(&server.address(""));
    let other = Caller::new(&*other, Ms(0));
    let unseen_ms = || other.read(&log, 0, EVERYTHING).ok()?.owner.map(|owner| owner.unseen_ms);
    eventually("it is let go", || unseen_ms() == Some(u64::MAX));
}

#[test]
fn a_server_whose_memory_is_full_fails_the_event_and_answers_readers() {
    let server = Server::start(&["--maxmemory", "3mb", "--maxmemory-policy", "noeviction"]);
    let store = at(&server.address(""));
    let caller = Caller::new(&*store, Ms(0));
    let mut log = caller.open("s", 1);
    let refused = loop {
        match caller.append(&log, log.head() + 1, &[sized(50_000)]) {
            Ok(()) => log.events.push(sized(50_000)),
            Err(error) => break error,
        }
        assert!(log.head() < 200);
    };
    assert!(matches!(&refused, StoreError::Failed(text) if text.contains("memory is full")), "{refused:?}");
    log.assert_stored(&caller, 0, "rule 7");
    // What it holds goes up and down with its connections: now it is full for the smallest event, too.
    server.say(&["CONFIG", "SET", "maxmemory", "1mb"]);
    let other = Log::new("s", 2);
    let refused = caller.append(&other, 1, &[sized(1)]);
    assert!(matches!(&refused, Err(StoreError::Failed(text)) if text.contains("memory is full")), "{refused:?}");
    assert_eq!(caller.log(&other), None, "nothing of it is there");
    let refuses = || caller.append(&other, 1, &[sized(1)]).is_err() && store.refused_ms().is_some();
    eventually("it is known to refuse", refuses);
    assert_eq!(store.away_ms(), None, "and is there");
    server.say(&["CONFIG", "SET", "maxmemory", "100mb"]);
    caller.push(&mut log, &[sized(50_000)]);
    assert_eq!(store.refused_ms(), None);
    log.assert_stored(&caller, 0, "I9");
}

#[test]
fn events_that_the_server_evicted_are_a_gap_and_never_a_fresh_log() {
    let address = fresh(Kind::Alone);
    let (server, namespace) = (place(&address), address.rsplit('=').next().unwrap());
    let store = at(&address);
    let caller = Caller::new(&*store, Ms(0));
    let evict = |log: &Log| {
        let pattern = format!("{namespace}:*:e:{}:*", log.key.nonce.hex());
        let keys = say(&server, &["KEYS", &pattern]);
        assert_eq!(say(&server, &["DEL", &keys[0]]), ["1"]);
    };
    for read_first in [true, false] {
        let mut log = caller.open("s", u64::from(read_first));
        caller.push(&mut log, &[sized(1), question(), sized(2)]);
        evict(&log);
        if read_first {
            let page = caller.read(&log, 0, EVERYTHING).unwrap().page;
            assert_eq!((page.head, page.low, page.events.len()), (3, 4, 0), "I8: it is announced");
            assert_eq!(caller.read(&log, 3, EVERYTHING).unwrap().page.tag_at, Some(log_tag(&log)), "the head is known");
        } else {
            let page = caller.log(&log).unwrap().page.page;
            assert_eq!((page.head, page.low), (3, 4), "I8");
        }
        caller.push(&mut log, &[sized(3)]);
        assert_eq!(positions(&caller, &log, 0), [4]);
        evict(&log);
        caller.push(&mut log, &[sized(4)]);
        assert_eq!(positions(&caller, &log, 0), [5]);
        assert_eq!(caller.read(&log, 0, EVERYTHING).unwrap().page.low, 5);
    }
}

#[test]
fn what_the_server_evicted_the_record_of_is_gone_and_begins_anew() {
    let address = fresh(Kind::Alone);
    let (server, namespace) = (place(&address), address.rsplit('=').next().unwrap());
    let store = at(&address);
    let caller = Caller::new(&*store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(1), question()]);
    let keys = say(&server, &["KEYS", &format!("{namespace}:*:m:*")]);
    assert_eq!(say(&server, &["DEL", &keys[0]]), ["1"]);
    assert_eq!(caller.append(&log, 3, &[sized(1)]), Err(StoreError::Gone), "never in silence");
    log.events.clear();
    caller.push(&mut log, &[sized(2), sized(3)]);
    log.assert_stored(&caller, 0, "nothing of what was before is in it");
    let keys = say(&server, &["KEYS", &format!("{namespace}:*:s:*")]);
    assert_eq!(say(&server, &["DEL", &keys[0]]), ["1"]);
    assert_eq!(caller.append(&log, 3, &[sized(1)]), Err(StoreError::Gone), "a session goes as a whole");
    assert_eq!(caller.read(&log, 0, EVERYTHING), Err(StoreError::Gone));
    caller.hold("s", SessionRecord::default());
    assert_eq!(caller.log(&log), None, "and begins anew");
}

fn log_tag(log: &Log) -> u32 {
    let chain = Chain::start(&log.key.nonce.0);
    log.events.iter().fold(chain, |chain, (_, payload)| chain.then(payload, None)).tag()
}

#[test]
fn scripts_that_the_server_forgot_are_given_to_it_again() {
    let server = Server::start(&[]);
    let store = at(&server.address(""));
    let caller = Caller::new(&*store, Ms(0));
    let mut log = caller.open("s", 1);
    for number in 0..20 {
        server.say(&["SCRIPT", "FLUSH"]);
        caller.push(&mut log, &[sized(number)]);
    }
    log.assert_stored(&caller, 0, "I9");
}

#[test]
fn hints_come_again_after_the_subscription_was_cut() {
    let server = Server::start(&[]);
    let (a, b) = (at(&server.address("")), at(&server.address("")));
    let caller = Caller::new(&*a, Ms(0));
    let mut log = caller.open("s", 1);
    let hints = Arc::new(Hints::default());
    b.watch(&log.key.session, &watcher(&hints));
    eventually("it listens", || hints.count() > 0);
    follow(&Caller::new(&*b, Ms(0)), &log);
    for _ in 0..5 {
        let before = hints.count();
        server.say(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        eventually("what was missed is not known: look", || hints.count() > before);
        let before = hints.count();
        caller.push(&mut log, &[sized(10)]);
        eventually("it hears again", || hints.count() > before);
    }
}

#[test]
fn what_is_written_is_written_also_where_nobody_may_be_told() {
    let server = Server::start(&[]);
    let (a, b) = (at(&server.address("")), at(&server.address("")));
    let caller = Caller::new(&*a, Ms(0));
    let mut log = caller.open("s", 1);
    assert_eq!(server.say(&["ACL", "SETUSER", "default", "resetchannels"]), ["OK"]);
    let reader = Caller::new(&*b, Ms(0));
    follow(&reader, &log);
    caller.push(&mut log, &[sized(10)]);
    log.assert_stored(&reader, 0, "I1");
    assert_eq!(server.refusals(":n:"), 2, "a reader, and an event");
}

#[test]
fn what_was_called_off_is_not_done() {
    let server = Server::start(&[]);
    let store = at(&server.address("?timeout_ms=60000"));
    let caller = Caller::new(&*store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(1)]);
    server.signal("STOP");
    let (answers, came) = channel();
    let inbox: Arc<dyn Complete> = Arc::new(Inbox(Mutex::new(answers)));
    let ticket = |number, operation| Ticket { to: Arc::downgrade(&inbox), nonce: log.key.nonce, operation, number };
    // The first is under way; what waits behind it can be called off.
    assert!(matches!(store.read(&log.key, 0, EVERYTHING, &ticket(1, Operation::Look(0))), Answer::Later));
    std::thread::sleep(Duration::from_millis(100));
    let append = log.append(2, &[progress("late")]);
    assert!(matches!(
        store.append(Ms(0), &log.key, caller.epoch, &append, &ticket(2, Operation::Append)),
        Answer::Later
    ));
    store.abandon(&log.key, &ticket(2, Operation::Append));
    server.signal("CONT");
    let (number, outcome) = came.recv_timeout(PATIENCE).expect("the first is answered");
    assert!(number == 1 && matches!(outcome, Outcome::Page(Ok(_))), "{number} {outcome:?}");
    caller.push(&mut log, &[sized(2)]);
    log.assert_stored(&caller, 0, "rule 10");
}

#[test]
fn appends_whose_answer_was_lost_are_known_again_also_where_the_last_ends_the_log() {
    let server = Server::start(&[]);
    let proxy = Proxy::new(server.place().parse().expect("a host and a port"));
    let store = at(&format!("redis://127.0.0.1:{}?timeout_ms=60000", proxy.port));
    let caller = Caller::new(&*store, Ms(0));
    let mut log = caller.open("s", 1);
    let (answers, came) = channel();
    let inbox: Arc<dyn Complete> = Arc::new(Inbox(Mutex::new(answers)));
    let ticket = |number, operation| Ticket { to: Arc::downgrade(&inbox), nonce: log.key.nonce, operation, number };
    let (large, last) = (sized(5_000), terminal());
    let first = log.append(1, std::slice::from_ref(&large));
    let mut longer = log.clone();
    longer.events.push(large);
    let second = longer.append(2, std::slice::from_ref(&last));
    longer.events.push(last);
    proxy.set_silent(true);
    // What is asked while this one is under way goes together.
    assert!(matches!(store.read(&log.key, 0, EVERYTHING, &ticket(0, Operation::Look(0))), Answer::Later));
    std::thread::sleep(Duration::from_millis(100));
    for (number, append) in [(1, first), (2, second)] {
        assert!(matches!(
            store.append(Ms(0), &log.key, caller.epoch, &append, &ticket(number, Operation::Append)),
            Answer::Later
        ));
    }
    proxy.lose_answer();
    proxy.set_silent(false);
    for _ in 0..3 {
        let (number, outcome) = came.recv_timeout(PATIENCE).expect("each has its answer");
        assert!(matches!(outcome, Outcome::Page(Ok(_)) | Outcome::Done(Ok(()))), "{number}: {outcome:?}");
    }
    assert!(proxy.has_lost_answer());
    log = longer;
    log.assert_stored(&caller, 0, "rule 10");
}

#[test]
fn a_store_that_is_closed_while_its_server_stands_still_ends_in_time() {
    let server = Server::start(&[]);
    let store = at(&server.address("?timeout_ms=2000"));
    let caller = Caller::new(&*store, Ms(0));
    let log = caller.open("s", 1);
    server.signal("STOP");
    store.settle(&log.key, caller.epoch, 7);
    let (closed, is_closed) = channel();
    std::thread::spawn(move || {
        drop(store);
        closed.send(()).unwrap();
    });
    is_closed.recv_timeout(PATIENCE).expect("closing does not wait for ever");
    server.signal("CONT");
}

#[test]
fn i9_no_error_says_where_the_server_is_or_who_we_are_there() {
    let server = Server::start(&["--requirepass", "secret"]);
    let store = at(&format!("redis://:secret@{}?timeout_ms=500", server.place()));
    let caller = Caller::new(&*store, Ms(0));
    let log = caller.open("s", 1);
    drop(server);
    let error = caller.once().append(&log, 1, &[sized(1)]).expect_err("it is gone").to_string();
    assert!(!error.contains("secret") && !error.contains("127.0.0.1"), "{error}");
}
