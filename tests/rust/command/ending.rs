//! `tailrope end` where the session's process lives: it ends the session on its side, and its client is told so.

use std::time::Duration;

use serde_json::json;
use tailrope_core::engine::Options;
use tailrope_core::store::{StoreOptions, session_name};
use tailrope_stores::open;

use super::running::{fresh, json as shown_as_json, run};
use crate::kit::common::{Bench, NEW, call, notify};
use crate::kit::folder::Folder;
use crate::kit::processes::{ended, has, open_session, read_until};

fn ends_a_session_that_is_served(address: &str, is_busy: bool) {
    let options = StoreOptions { owner_lost_ms: 4_000, ..StoreOptions::default() };
    let store = Some(open(address, &options).expect("it opens"));
    let here = Bench::new(Options { store, owner_lost_ms: options.owner_lost_ms, ..Options::default() });
    // A name that was ended stays taken.
    let id = if is_busy { "busy" } else { "silent" };
    let session = open_session(&here, id, NEW);
    let connections = [1, 2].map(|number| {
        let connection = call(&session, number);
        notify(&session, number, "a").expect("it is sent");
        read_until(&here, &connection, has(1));
        connection
    });
    let name = session_name(id);
    let shown = shown_as_json(&["show", address, &name]);
    assert_eq!(
        (&shown["session"]["owner"]["state"], &shown["session"]["revision"]),
        (&"lives".into(), &NEW.as_str().into())
    );
    let told = std::thread::scope(|scope| {
        let ending = scope.spawn(|| run(&["end", address, &name, "--yes"]));
        // One call is silent. What the other one sends may be refused before the owner hears of anything.
        let busy = is_busy.then(|| {
            let session = session.clone();
            scope.spawn(move || {
                while notify(&session, 2, "b").is_ok() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            })
        });
        for (number, connection) in (1..).zip(&connections) {
            let last = read_until(&here, connection, ended);
            assert_eq!(last.frames().last(), Some(&json!({"tombstone": {"error": -32603, "id": number}})));
            let says = "The session ended before the request completed";
            assert!(last.text.contains(says), "it is not taken for a session that a store lost: {}", last.text);
        }
        busy.into_iter().for_each(|busy| busy.join().expect("it ends"));
        ending.join().expect("it ends")
    });
    assert_eq!(told.0, 0, "{told:?}");
    let stats = here.engine.stats();
    let count = |name| stats.entries().find(|(counter, _)| counter.name == name).map(|(_, value)| value);
    assert_eq!(count("calls_session_ended"), Some(2), "an operator ended it, and no owner was lost");
    assert_eq!(["calls_owner_gone", "sessions_taken_over"].map(count), [Some(0), Some(0)]);
    assert!(session.has_ended());
    assert_eq!(shown_as_json(&["sessions", address])["total"], 0);
}

#[test]
fn a_session_that_is_served_ends_in_its_process_too() {
    let folder = Folder::new();
    let file = format!("sqlite:{}", folder.path("a.db").display());
    let addresses = [file, fresh("TAILROPE_TEST_REDIS"), fresh("TAILROPE_TEST_POSTGRES")];
    std::thread::scope(|scope| {
        let all = addresses.map(|address| {
            scope.spawn(move || {
                for is_busy in [false, true] {
                    ends_a_session_that_is_served(&address, is_busy);
                }
            })
        });
        all.into_iter().for_each(|one| one.join().expect("it ends"));
    });
}
