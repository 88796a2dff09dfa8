//! `tailrope end` where the session's process lives: it ends the session on its side, and its client is told so.

use tailrope_core::engine::Options;
use tailrope_core::store::{StoreOptions, session_name};
use tailrope_core::stream::CloseReason;
use tailrope_stores::open;

use super::running::{fresh, json, run};
use crate::kit::common::{Bench, NEW, call, notify};
use crate::kit::folder::Folder;
use crate::kit::processes::{ended, has, open_session, read_until};

fn ends_a_session_that_is_served(address: &str) {
    let options = StoreOptions { owner_lost_ms: 4_000, ..StoreOptions::default() };
    let store = Some(open(address, &options).expect("it opens"));
    let here = Bench::new(Options { store, owner_lost_ms: options.owner_lost_ms, ..Options::default() });
    let session = open_session(&here, "s", NEW);
    let connection = call(&session, 1);
    notify(&session, 1, "a").expect("it is sent");
    read_until(&here, &connection, has(1));
    let name = session_name("s");
    let shown = json(&["show", address, &name]);
    assert_eq!(
        (&shown["session"]["owner"]["state"], &shown["session"]["revision"]),
        (&"lives".into(), &NEW.as_str().into())
    );
    let told = std::thread::scope(|scope| {
        let ending = scope.spawn(|| run(&["end", address, &name, "--yes"]));
        let last = read_until(&here, &connection, ended);
        assert_eq!(last.end, Some(CloseReason::Ended), "it is not taken for a session that a store lost");
        ending.join().expect("it ends")
    });
    assert_eq!(told.0, 0, "{told:?}");
    assert!(session.has_ended());
    assert_eq!(json(&["sessions", address])["total"], 0);
}

#[test]
fn a_session_that_is_served_ends_in_its_process_too() {
    let folder = Folder::new();
    let file = format!("sqlite:{}", folder.path("a.db").display());
    let addresses = [file, fresh("TAILROPE_TEST_REDIS"), fresh("TAILROPE_TEST_POSTGRES")];
    std::thread::scope(|scope| {
        let all = addresses.map(|address| scope.spawn(move || ends_a_session_that_is_served(&address)));
        all.into_iter().for_each(|one| one.join().expect("it ends"));
    });
}
