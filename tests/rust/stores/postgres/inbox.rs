//! The inboxes of sessions in the PostgreSQL store: what they take of the server, when it fails, and what is left of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tailrope_core::Ms;
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::contract::{Caller, Log};
use tailrope_core::store::{Epoch, EventStore, Hold, Limits, Mail, SessionRecord, StoreError, StoreOptions};

use super::bell::Bell;
use super::database::{Administrator, Database, Namespaces, at, namespace, told, with_clock};
use super::faults::behind_proxy;
use super::proxy::Proxy;
use crate::kit::eventually::eventually;

fn nonces(mail: &[Mail]) -> Vec<StreamNonce> {
    mail.iter().map(|mail| mail.nonce).collect()
}

/// The same store without the network that can fail.
fn direct(address: &str) -> String {
    format!("{}?namespace={}", told("TAILROPE_TEST_POSTGRES"), namespace(address))
}

/// No sign of life, and no housekeeping, falls into the test.
fn rarely() -> StoreOptions {
    StoreOptions { owner_lost_ms: 3_600_000, ..StoreOptions::default() }
}

/// Asks for what has one answer for one request; nothing else passes after it. Where the store asks for something else at that
/// moment, the request that passes may be that, and the attempt says nothing.
fn ask_in_one_round_trip(proxy: &Proxy, what: &str, caller: &Caller<'_>, ask: &dyn Fn() -> bool) {
    let again = Hold { epoch: caller.epoch, seen: None, record: Some(SessionRecord::default()) };
    let has_answer = (0..5).any(|_| {
        // There is a connection for it, and what was to be told is told.
        proxy.let_pass(u64::MAX);
        eventually("the server answers", || caller.try_hold("mine", &again).is_ok());
        std::thread::sleep(Duration::from_millis(50));
        proxy.let_pass(1);
        ask()
    });
    assert!(has_answer, "{what} takes more than one answer of the server");
}

#[test]
fn a_post_a_take_and_a_withdrawal_take_one_round_trip_each() {
    let namespaces = Namespaces::direct();
    let (proxy, address) = behind_proxy(&namespaces, "connections=1&listen=off&timeout_ms=2000");
    let (store, other) = (at(&address, &rarely()), at(&direct(&address), &rarely()));
    let (caller, elsewhere) = (Caller::new(&store, Ms(0)), Caller::new(&other, Ms(0)));
    elsewhere.hold("other's", SessionRecord::default());
    let numbers = AtomicU64::new(0);
    let next = |session| Log::new(session, numbers.fetch_add(1, Ordering::SeqCst));
    ask_in_one_round_trip(&proxy, "a post", &caller, &|| caller.post(&next("other's"), b"message").is_ok());
    ask_in_one_round_trip(&proxy, "a take", &caller, &|| {
        elsewhere.post(&next("mine"), b"message").expect("it waits");
        caller.take("mine", u64::from(u32::MAX)).is_ok_and(|mail| !mail.is_empty())
    });
    ask_in_one_round_trip(&proxy, "a withdrawal", &caller, &|| {
        let log = next("other's");
        elsewhere.post(&log, b"message").expect("it waits");
        caller.withdraw(&log, b"end") == Ok(true)
    });
    proxy.let_pass(u64::MAX);
}

#[test]
fn a_post_is_one_transaction() {
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    let [owner, other] = [(); 2].map(|()| at(&address, &StoreOptions::default()));
    Caller::new(&owner, Ms(0)).hold("s", SessionRecord::default());
    Caller::new(&other, Ms(0)).post(&Log::new("s", 1), b"message").expect("it waits");
    let (server, name) = (Administrator::new(), namespace(&address));
    let written_by = format!(
        "SELECT count(DISTINCT of::text) FROM (SELECT xmin AS of FROM {name}.session UNION ALL SELECT xmin FROM {name}.stream
         UNION ALL SELECT xmin FROM {name}.event UNION ALL SELECT xmin FROM {name}.message) AS written"
    );
    assert_eq!(server.number(&written_by), 1);
}

#[test]
fn a_message_that_was_committed_unheard_waits_once_and_its_owner_is_told() {
    let namespaces = Namespaces::direct();
    let (proxy, address) = behind_proxy(&namespaces, "connections=1&listen=off");
    let (owner, other) = (at(&direct(&address), &rarely()), at(&address, &StoreOptions::default()));
    let (caller, elsewhere) = (Caller::new(&owner, Ms(0)), Caller::new(&other, Ms(0)));
    caller.hold("s", SessionRecord::default());
    let logs: Vec<Log> = (0..5).map(|number| Log::new("s", number)).collect();
    let bell = Bell::watching(&owner, &logs[0]);
    for log in &logs {
        let posts = bell.posts();
        proxy.lose_answer();
        elsewhere.post(log, &[b'x'; 5_000]).expect("it waits");
        assert!(proxy.has_lost_answer(), "the fault took place");
        eventually("rule 13: a message is told", || bell.posts() > posts);
    }
    let mail = caller.take("s", 0).expect("it is the owner");
    assert_eq!(nonces(&mail), logs.iter().map(|log| log.key.nonce).collect::<Vec<_>>(), "rule 14");
}

#[test]
fn a_message_whose_process_ended_before_it_told_is_seen_with_a_sign_of_life() {
    let namespaces = Namespaces::direct();
    let (proxy, address) = behind_proxy(&namespaces, "connections=1&listen=off&timeout_ms=2000");
    let (owner, other) = (at(&direct(&address), &StoreOptions::default()), at(&address, &rarely()));
    let (caller, elsewhere) = (Caller::new(&owner, Ms(0)), Caller::new(&other, Ms(0)));
    caller.hold("s", SessionRecord::default());
    let bell = Bell::watching(&owner, &Log::new("s", 1));
    ask_in_one_round_trip(&proxy, "a post", &elsewhere, &|| elsewhere.post(&Log::new("s", 1), b"message").is_ok());
    proxy.set_refuses(true);
    proxy.cut();
    eventually("rule 13: a message is told", || bell.posts() > 0);
}

#[test]
fn backends_that_are_ended_amid_posts_and_takes_lose_and_repeat_nothing() {
    const MESSAGES: u64 = 150;
    let database = Database::new();
    let address = database.address("&timeout_ms=60000");
    let [owner, other] = [(); 2].map(|()| at(&address, &StoreOptions::default()));
    let caller = Caller::new(&owner, Ms(0));
    caller.hold("s", SessionRecord::default());
    let logs: Vec<Log> = (0..MESSAGES).map(|number| Log::new("s", number)).collect();
    let (is_over, taken) = (AtomicBool::new(false), AtomicU64::new(0));
    let mail = std::thread::scope(|scope| {
        scope.spawn(|| {
            let caller = Caller::new(&other, Ms(0));
            logs.iter().for_each(|log| drop(caller.post(log, b"message").expect("it waits")));
        });
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                let seen = taken.load(Ordering::SeqCst);
                database.end_connections();
                std::thread::sleep(Duration::from_millis(40));
                // Where connections take longer to make than they live, nothing would ever get through.
                while taken.load(Ordering::SeqCst) == seen && !is_over.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        let taking = scope.spawn(|| {
            let mut all: Vec<Mail> = Vec::new();
            while all.len() < logs.len() {
                let last = all.last().map_or(0, |mail| mail.number);
                all.extend(caller.take("s", last).expect("it is the owner"));
                taken.fetch_add(1, Ordering::SeqCst);
            }
            all
        });
        let mail = taking.join();
        // Before anything is judged: who ends connections does so until then.
        is_over.store(true, Ordering::SeqCst);
        mail.unwrap()
    });
    assert_eq!(nonces(&mail), logs.iter().map(|log| log.key.nonce).collect::<Vec<_>>(), "rule 14");
    let last = mail.last().map_or(0, |mail| mail.number);
    assert_eq!(caller.take("s", last), Ok(Vec::new()), "rule 14");
    assert_eq!(database.inside().number("SELECT count(*) FROM store.message"), 0, "I11");
}

#[test]
fn an_owner_that_gets_no_notifications_sees_its_messages() {
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    let owner = at(&format!("{address}&listen=off"), &rarely());
    let other = at(&address, &StoreOptions::default());
    let (caller, elsewhere) = (Caller::new(&owner, Ms(0)), Caller::new(&other, Ms(0)));
    caller.hold("s", SessionRecord::default());
    let bell = Bell::watching(&owner, &Log::new("s", 0));
    let read_here = Bell::watching(&other, &Log::new("s", 0));
    let mut last = 0;
    for number in 0..5 {
        let posts = bell.posts();
        elsewhere.post(&Log::new("s", number), b"message").expect("it waits");
        eventually("rule 13: a message is told", || bell.posts() > posts);
        // In turns one waits behind others, and alone.
        if number % 2 == 0 {
            last = caller.take("s", last).expect("it is the owner").last().expect("it waits").number;
        }
    }
    assert_eq!(read_here.posts(), 0, "only the owner's store object is told");
}

// What is left of them

#[test]
fn messages_go_with_a_session_that_was_left_and_the_names_of_ended_ones_are_free_in_time() {
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    let (options, time) = with_clock(Limits { max_age_ms: 60_000, ..Limits::default() });
    let (owner, other) = (at(&address, &options), at(&address, &options));
    let (caller, elsewhere) = (Caller::new(&owner, Ms(0)), Caller::new(&other, Ms(0)));
    let (server, name) = (Administrator::new(), namespace(&address));
    let rows = |table: &str| server.number(&format!("SELECT count(*) FROM {name}.{table}"));
    for session in ["left", "ended", "short"] {
        caller.hold(session, SessionRecord::default());
        elsewhere.post(&Log::new(session, 1), b"message").expect("it waits");
    }
    elsewhere.post(&Log::new("ended", 2), b"message").expect("it waits");
    assert_eq!(rows("message"), 4);
    let heir = elsewhere.with(Epoch { number: 2, salt: 9 });
    let hold = Hold { epoch: heir.epoch, seen: Some(caller.epoch), record: None };
    assert_eq!(heir.try_hold("ended", &hold), Ok(Vec::new()), "rule 14: nothing has begun");
    other.drop_session("ended", heir.epoch);
    owner.drop_session("short", caller.epoch);
    assert_eq!(heir.session("ended", None), None, "rule 11");
    assert_eq!(caller.session("short", None), None, "rule 11");
    assert_eq!((rows("message"), rows("ended")), (1, 1), "rule 8: the name of one that had one owner is free");
    let again = Hold { epoch: caller.epoch, seen: None, record: Some(SessionRecord::default()) };
    time.fetch_add(59_999, Ordering::SeqCst);
    assert_eq!(caller.try_hold("ended", &again), Err(StoreError::Gone), "rule 8");
    drop(owner);
    time.fetch_add(1, Ordering::SeqCst);
    other.sweep(Ms(0));
    eventually("I11: the name goes", || rows("ended") == 0);
    assert_eq!(elsewhere.try_hold("ended", &again), Ok(Vec::new()), "rule 8: in time it may be begun");
    assert_eq!(elsewhere.take("ended", 0), Ok(Vec::new()), "rule 8");
    other.drop_session("ended", again.epoch);
    time.fetch_add(60_001, Ordering::SeqCst);
    other.sweep(Ms(0));
    eventually("a session that was left goes in time", || elsewhere.session("left", None).is_none());
    elsewhere.assert_usage("F-54", |usage| usage.streams == 0 && usage.sessions == 0 && usage.bytes == 0);
    eventually("F-54: nothing is left", || ["event", "trash", "stream", "session", "message"].map(rows) == [0; 5]);
}

#[test]
fn a_large_message_comes_as_it_was_and_is_counted_while_it_is_kept() {
    let namespaces = Namespaces::direct();
    let store = at(&namespaces.address(), &StoreOptions::default());
    let caller = Caller::new(&store, Ms(0));
    let body: Arc<[u8]> = (0..6_u32 << 20).map(|at| (at % 251) as u8).collect();
    caller.hold("s", SessionRecord::default());
    caller.post(&Log::new("s", 1), &body).expect("it waits");
    let held = store.usage().bytes;
    assert!(held > body.len() as u64, "I11: {held}");
    let mail = caller.take("s", 0).expect("it is the owner");
    assert!(mail.len() == 1 && *mail[0].message.body == *body, "rule 14");
    assert_eq!(caller.take("s", mail[0].number), Ok(Vec::new()));
    caller.assert_usage("I11", |usage| usage.bytes < 10_000 && usage.streams == 1);
}
