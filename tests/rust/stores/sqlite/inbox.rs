//! Inboxes in the SQLite store: who is told of messages, what they cost, and what becomes of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use super::owners::{OFTEN, count_of};
use super::store::{at, commits, limited, swept};
use crate::kit::events::{sized, terminal};
use crate::kit::eventually::{PATIENCE, eventually};
use crate::kit::folder::Folder;
use tailrope_core::Ms;
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::contract::{Caller, Log};
use tailrope_core::store::{
    Attach, Epoch, EventStore, Hold, Limits, Mail, SessionRecord, StoreError, StoreOptions, Watch,
};

/// Tells that a message came, and nothing else.
struct Bell(Mutex<Sender<()>>);

impl Watch for Bell {
    fn changed(&self, _nonce: StreamNonce) {}

    fn posted(&self) {
        let _ = self.0.lock().unwrap().send(());
    }

    fn all_changed(&self) {}
}

fn bell() -> (Arc<dyn Watch>, Receiver<()>) {
    let (tell, told) = channel();
    (Arc::new(Bell(Mutex::new(tell))), told)
}

fn nonces(mail: Result<Vec<Mail>, StoreError>) -> Vec<StreamNonce> {
    mail.expect("the owner takes").into_iter().map(|mail| mail.nonce).collect()
}

/// What replaces the owner of a session.
fn heir_of(owner: &Caller<'_>) -> Hold {
    let epoch = Epoch { number: owner.epoch.number + 1, salt: 8 };
    Hold { epoch, seen: Some(owner.epoch), record: None }
}

#[test]
fn what_is_done_to_an_inbox_is_one_commit_each() {
    let folder = Folder::new();
    let file = folder.path("a.db");
    let store = at(&file, &StoreOptions::default());
    let caller = Caller::new(&store, Ms(0));
    caller.hold("s", SessionRecord::default());
    let [first, second] = [1, 2].map(|number| Log::new("s", number));
    let before = commits(&file);
    caller.post(&first, b"message").expect("it waits");
    assert_eq!(commits(&file) - before, 1, "the message, its log and its reader");
    let last = caller.take("s", 0).expect("the owner takes")[0].number;
    assert_eq!(commits(&file) - before, 2);
    caller.post(&second, b"message").expect("it waits");
    assert_eq!(caller.withdraw(&second, b"end"), Ok(true));
    assert_eq!(commits(&file) - before, 4);
    assert_eq!(caller.take("s", last), Ok(Vec::new()));
    assert_eq!(commits(&file) - before, 5, "what is done is forgotten");
    assert_eq!((caller.take("s", last), caller.withdraw(&second, b"end")), (Ok(Vec::new()), Ok(true)));
    assert_eq!(commits(&file) - before, 5, "an owner that finds nothing writes nothing");
}

#[test]
fn a_message_is_told_to_its_owner_whenever_that_begins_to_watch_and_to_nobody_else() {
    let folder = Folder::new();
    let file = folder.path("a.db");
    let options = StoreOptions::default();
    let (store, other, third) = (at(&file, &options), at(&file, &options), at(&file, &options));
    let (owner, poster) = (Caller::new(&store, Ms(0)), Caller::new(&other, Ms(0)));
    for session in ["s", "t"] {
        owner.hold(session, SessionRecord::default());
    }
    let (early, hears_early) = bell();
    let (late, hears_late) = bell();
    let (elsewhere, hears_elsewhere) = bell();
    store.watch(&"s".into(), &Arc::downgrade(&early));
    third.watch(&"s".into(), &Arc::downgrade(&elsewhere));
    for number in 0..10 {
        poster.post(&Log::new("s", number), b"message").expect("it waits");
        hears_early.recv_timeout(PATIENCE).expect("rule 13");
    }
    poster.post(&Log::new("t", 0), b"message").expect("it waits");
    // Behind it, so that it was looked at when this one is told.
    poster.post(&Log::new("s", 10), b"message").expect("it waits");
    hears_early.recv_timeout(PATIENCE).expect("rule 13");
    store.watch(&"t".into(), &Arc::downgrade(&late));
    hears_late.recv_timeout(PATIENCE).expect("what came before waits still");
    assert_eq!(hears_elsewhere.try_recv().ok(), None, "only the owner is told");
    // Who takes the session over is told of what comes from then on.
    let hold = heir_of(&owner);
    let heir = Caller::new(&third, Ms(0)).with(hold.epoch);
    heir.try_hold("s", &hold).expect("it is taken over");
    poster.post(&Log::new("s", 11), b"message").expect("it waits");
    hears_elsewhere.recv_timeout(PATIENCE).expect("rule 13");
}

#[test]
fn messages_outlive_the_stores_that_they_came_through() {
    let folder = Folder::new();
    let file = folder.path("a.db");
    let options = StoreOptions::default();
    let logs = [1, 2, 3].map(|number| Log::new("s", number));
    let epoch = {
        let (store, other) = (at(&file, &options), at(&file, &options));
        let (owner, poster) = (Caller::new(&store, Ms(0)), Caller::new(&other, Ms(0)));
        owner.hold("s", SessionRecord::default());
        for log in &logs {
            poster.post(log, b"message").expect("it waits");
        }
        assert_eq!(poster.withdraw(&logs[0], b"withdrawn"), Ok(true));
        assert_eq!(nonces(owner.take("s", 0)).len(), 2);
        owner.epoch
    };
    // It asks again: as the same owner, and then as the next one.
    let store = at(&file, &options);
    let owner = Caller::new(&store, Ms(0)).with(epoch);
    for _ in 0..2 {
        assert_eq!(nonces(owner.take("s", 0)), [logs[1].key.nonce, logs[2].key.nonce]);
    }
    assert_eq!(owner.withdraw(&logs[0], b"again"), Ok(true), "rule 14");
    let late = Log::new("s", 4);
    owner.post(&late, b"message").expect("it waits");
    drop(store);
    let store = at(&file, &options);
    let hold = heir_of(&Caller::new(&store, Ms(0)));
    let heir = Caller::new(&store, Ms(0)).with(hold.epoch);
    let running: Vec<_> = heir.try_hold("s", &hold).expect("it is there").iter().map(|log| log.nonce).collect();
    assert_eq!(running, [logs[1].key.nonce, logs[2].key.nonce], "what had begun is to be ended");
    assert_eq!(nonces(heir.take("s", 0)), [late.key.nonce], "what had not begun begins");
}

#[test]
fn messages_are_within_the_bounds_of_the_file() {
    let folder = Folder::new();
    let max = 100_000;
    let store = at(&folder.path("a.db"), &limited(Limits { max_bytes: max, ..Limits::default() }));
    let caller = Caller::new(&store, Ms(0));
    for number in 0..20 {
        let mut log = caller.open("s", number);
        caller.push(&mut log, &[sized(3_000), terminal()]);
    }
    let mut numbers = 100..;
    let mut post = |bytes| caller.post(&Log::new("s", numbers.next().unwrap()), &vec![b'x'; bytes]).map(drop);
    let mut waiting = 0;
    let refused = loop {
        match post(10_000) {
            Ok(()) => waiting += 1,
            Err(error) => break error,
        }
        caller.assert_usage("I11", |usage| usage.bytes <= max as u64);
    };
    assert_eq!(refused, StoreError::Full { max }, "I11");
    assert!(waiting > 8, "what had finished went first: {waiting}");
    assert_eq!(post(100), Ok(()), "a smaller one finds room");
    assert_eq!(post(max), Err(StoreError::Full { max }), "I11");
    let last = caller.take("s", 0).expect("it is the owner").last().expect("they wait").number;
    assert_eq!(caller.take("s", last), Ok(Vec::new()));
    assert_eq!(post(10_000), Ok(()), "what is done makes room");
    store.drop_session("s", caller.epoch);
    caller.assert_usage("F-54", |usage| (usage.sessions, usage.streams, usage.events, usage.bytes) == (0, 0, 0, 0));
}

#[test]
fn retention_takes_messages_and_then_the_names_of_what_ended() {
    let folder = Folder::new();
    let file = folder.path("a.db");
    let time = Arc::new(AtomicU64::new(1_000_000));
    let clock = Arc::clone(&time);
    let options = StoreOptions {
        limits: Limits { max_age_ms: 60_000, ..Limits::default() },
        owner_lost_ms: OFTEN,
        wall_clock: Some(Arc::new(move || clock.load(Ordering::SeqCst))),
        ..StoreOptions::default()
    };
    let store = at(&file, &options);
    let owner = Caller::new(&store, Ms(0));
    for number in 0..3 {
        owner.hold("left", SessionRecord::default());
        owner.post(&Log::new("left", number), b"message").expect("it waits");
    }
    let number = owner.take("left", 0).expect("it is the owner")[0].number;
    assert_eq!(owner.take("left", number).map(|mail| mail.len()), Ok(2));
    owner.post(&Log::new("left", 3), b"message").expect("it waits");
    let hold = heir_of(&owner);
    let heir = owner.with(hold.epoch);
    heir.try_hold("left", &hold).expect("it is there");
    store.release("left", heir.epoch);
    // Sessions of one owner, whose names are free at once, and more of several than one transaction forgets.
    owner.hold("single", SessionRecord::default());
    store.drop_session("single", owner.epoch);
    for number in 0..300 {
        let session = format!("several {number}");
        owner.hold(&session, SessionRecord::default());
        heir.try_hold(&session, &hold).expect("it is there");
        store.drop_session(&session, heir.epoch);
    }
    owner.attach("", &Attach::default());
    let again = Hold { epoch: owner.epoch, seen: None, record: Some(SessionRecord::default()) };
    assert_eq!(owner.try_hold("several 0", &again), Err(StoreError::Gone), "rule 8");
    assert_eq!(count_of(&file, "ended"), 300);
    time.fetch_add(60_000, Ordering::SeqCst);
    swept(&file);
    assert_eq!((count_of(&file, "ended"), owner.try_hold("several 0", &again)), (300, Err(StoreError::Gone)), "rule 8");
    assert_eq!(count_of(&file, "message"), 1, "it waits for whoever takes the session over");
    time.fetch_add(1, Ordering::SeqCst);
    eventually("its messages go with a session", || count_of(&file, "message") == 0);
    owner.assert_usage("F-54", |usage| (usage.sessions, usage.streams, usage.bytes) == (0, 0, 0));
    assert_eq!(owner.try_hold("several 0", &again), Ok(Vec::new()), "rule 8: its time is over");
    assert_eq!(owner.try_hold("left", &again), Err(StoreError::Gone), "rule 8: retention has ended it just now");
    eventually("names go in time", || count_of(&file, "ended WHERE name <> 'left'") == 0);
    time.fetch_add(60_001, Ordering::SeqCst);
    eventually("and the last one", || count_of(&file, "ended") == 0);
}
