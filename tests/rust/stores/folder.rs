//! The store of examples/rust/folder_store.rs, put through every rule.
#![cfg(unix)]

#[path = "../../../examples/rust/folder_store/mod.rs"]
mod folder_store;

use std::fs;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tailrope_core::Ms;
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::contract::{
    Caller, Log, check, check_released, check_retention, check_settle, check_shared, check_size, progress,
};
use tailrope_core::store::{Epoch, EventStore, Hold, Limits, Queued, SessionRecord, StoreError, Watch, session_name};

use folder_store::Folder;

use crate::kit::folder::Folder as Place;

/// No question of time: a disk may stand still for many seconds.
const OPERATION_MS: u64 = 60_000;

fn start(place: &Place, limits: Limits, owner_lost_ms: u64) -> Arc<dyn EventStore> {
    let folder = Folder::open(&place.path("store"), limits, owner_lost_ms).expect("a folder can be opened");
    Arc::new(Queued::start(folder, &limits, 4, OPERATION_MS).expect("threads start"))
}

#[test]
fn it_keeps_every_rule() {
    let places = Mutex::new(Vec::new());
    check(&|| {
        let place = Place::new();
        let store = start(&place, Limits::default(), 5_000);
        places.lock().unwrap().push(place);
        store
    });
}

#[test]
fn i6_it_keeps_a_log_for_as_long_as_its_pace_says() {
    let places = Mutex::new(Vec::new());
    let make = |retention_ms| {
        let place = Place::new();
        let store = start(&place, Limits { retention_ms, ..Limits::default() }, 5_000);
        places.lock().unwrap().push(place);
        store
    };
    check_retention(&make, &|_, _| ());
}

#[test]
fn its_processes_keep_every_rule() {
    let places = Mutex::new(Vec::new());
    check_shared(&|| {
        let place = Place::new();
        let stores = [(); 2].map(|()| start(&place, Limits::default(), 5_000));
        places.lock().unwrap().push(place);
        stores.into()
    });
}

#[test]
fn o16_what_was_let_go_of_and_nobody_takes_over_goes_in_the_end() {
    let place = Place::new();
    let limits = Limits { max_age_ms: 1_000, ..Limits::default() };
    let sleep = |ms| thread::sleep(Duration::from_millis(ms));
    check_released(&|| [(); 2].map(|()| start(&place, limits, 5_000)).into(), 1_000, &sleep);
}

#[test]
fn it_refuses_an_event_that_is_too_large() {
    let place = Place::new();
    check_size(&*start(&place, Limits { max_event_bytes: 100, ..Limits::default() }, 5_000));
}

#[test]
fn it_keeps_a_question_until_it_is_settled() {
    let place = Place::new();
    check_settle(&*start(&place, Limits { max_events_per_stream: 4, ..Limits::default() }, 5_000));
}

#[test]
fn a_full_folder_forgets_what_ended_and_nothing_that_runs() {
    let place = Place::new();
    let store = start(&place, Limits { max_bytes: 20_000, ..Limits::default() }, 5_000);
    let caller = Caller::new(&*store, Ms(0));
    let event = progress(&"x".repeat(7_000));
    let mut ended = caller.open("one", 1);
    caller.push(&mut ended, std::slice::from_ref(&event));
    caller.finish(&ended, b"end").expect("it takes its end");
    let mut running = caller.open("another", 2);
    caller.push(&mut running, std::slice::from_ref(&event));
    assert!(caller.log(&ended).is_some(), "there is room for both");
    caller.push(&mut running, std::slice::from_ref(&event));
    assert!(caller.log(&ended).is_none(), "its room was needed");
    assert_eq!(caller.append(&running, 3, &[event]), Err(StoreError::Full { max: 20_000 }));
    let refused = caller.post(&Log::new("another", 3), &[b'x'; 7_000]);
    assert_eq!(refused, Err(StoreError::Full { max: 20_000 }), "there is no room for a message either");
    assert_eq!(caller.take("another", 0), Ok(Vec::new()), "rule 7");
    running.assert_stored(&caller, 0, "rule 7");
}

#[test]
fn a_session_whose_owner_is_gone_is_forgotten() {
    let place = Place::new();
    let limits = Limits { max_age_ms: 1, ..Limits::default() };
    let gone = start(&place, limits, 40);
    Caller::new(&*gone, Ms(0)).open("gone", 1);
    drop(gone);
    let store = start(&place, limits, 40);
    let caller = Caller::new(&*store, Ms(0));
    caller.hold("kept", SessionRecord::default());
    caller.assert_usage("I11", |usage| (usage.sessions, usage.streams) == (1, 0));
    assert!(caller.session("kept", None).is_some() && caller.session("gone", None).is_none());
}

#[test]
fn the_name_of_a_session_that_had_several_owners_is_free_again_some_time_after_its_end() {
    let place = Place::new();
    let store = start(&place, Limits { max_age_ms: 100, ..Limits::default() }, 40);
    let caller = Caller::new(&*store, Ms(0));
    caller.hold("s", SessionRecord::default());
    let heir = caller.with(Epoch { number: 2, salt: 9 });
    let hold = Hold { epoch: heir.epoch, seen: Some(caller.epoch), record: None };
    assert_eq!(heir.try_hold("s", &hold), Ok(Vec::new()));
    store.drop_session("s", heir.epoch);
    let again = Hold { epoch: caller.epoch, seen: None, record: Some(SessionRecord::default()) };
    let deadline = Instant::now() + Duration::from_secs(60);
    while caller.try_hold("s", &again) != Ok(Vec::new()) {
        assert!(Instant::now() < deadline, "rule 8: max_age_ms is long over");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(fs::read_dir(place.path("store").join("ended")).expect("it is there").count(), 0, "I11");
}

#[test]
fn an_owner_that_looks_away_is_told_of_a_message() {
    let place = Place::new();
    let stores = [(); 2].map(|()| start(&place, Limits::default(), 5_000));
    let [owner, other] = stores.each_ref().map(|store| Caller::new(&**store, Ms(0)));
    owner.hold("s", SessionRecord::default());
    let (posted, told) = mpsc::channel();
    let watches: Vec<Arc<dyn Watch>> = (0..2).map(|at| Arc::new(Hints(at, posted.clone())) as _).collect();
    for (store, watch) in stores.iter().zip(&watches) {
        store.watch(&"s".into(), &Arc::downgrade(watch));
    }
    other.post(&Log::new("s", 1), b"message").expect("it waits");
    assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(0), "rule 13: the owner's store object is told");
    assert_eq!(owner.take("s", 0).map(|mail| mail.len()), Ok(1));
}

/// Says which one was told of a message.
struct Hints(usize, mpsc::Sender<usize>);

impl Watch for Hints {
    fn changed(&self, _: StreamNonce) {}

    fn posted(&self) {
        let _ = self.1.send(self.0);
    }

    fn all_changed(&self) {}
}

#[test]
fn a_file_that_cannot_be_read_harms_its_session_alone() {
    let place = Place::new();
    let store = start(&place, Limits::default(), 5_000);
    let caller = Caller::new(&*store, Ms(0));
    let broken = caller.open("broken", 1);
    fs::write(place.path("store").join("sessions").join(&*session_name("broken")), "1\n{").expect("it is written");
    let outcome = caller.append(&broken, 1, &[progress("a")]);
    assert!(matches!(outcome, Err(StoreError::Failed(_))), "{outcome:?}");
    let mut whole = caller.open("whole", 2);
    caller.push(&mut whole, &[progress("b")]);
    whole.assert_stored(&caller, 0, "I9");
}
