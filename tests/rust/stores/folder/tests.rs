use tailrope_core::store::contract::{Caller, check, check_settle, check_shared, check_size, progress};
use tailrope_core::store::{EventStore, Queued, SessionRecord};

use super::*;
use crate::kit::folder::Folder as Place;

fn start(place: &Place, limits: Limits, owner_lost_ms: u64) -> Arc<dyn EventStore> {
    let folder = Folder::open(&place.path("store"), limits, owner_lost_ms).expect("a folder can be opened");
    Arc::new(Queued::start(folder, &limits, 4, 5_000).expect("threads start"))
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
