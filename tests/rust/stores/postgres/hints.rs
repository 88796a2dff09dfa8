//! What the PostgreSQL store tells of logs that other processes write.

use std::sync::Arc;

use tailrope_core::Ms;
use tailrope_core::store::contract::{Caller, Log};
use tailrope_core::store::{EventStore, StoreOptions};

use super::bell::{Bell, hint_times};
use super::database::{Database, Namespaces, at};
use crate::kit::events::sized;

#[test]
fn a_hint_follows_each_event() {
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    let (writing, reading) = (at(&address, &StoreOptions::default()), at(&address, &StoreOptions::default()));
    hint_times(&writing, &reading, 20);
}

#[test]
fn a_reader_is_told_after_its_notifications_were_interrupted() {
    let database = Database::new();
    let address = database.address("");
    let (writing, reading) = (at(&address, &StoreOptions::default()), at(&address, &StoreOptions::default()));
    let caller = Caller::new(&writing, Ms(0));
    let mut log = caller.open("s", 1);
    let bell = Arc::new(Bell::default());
    bell.watching(&reading, &log);
    for _ in 0..5 {
        caller.push(&mut log, &[sized(10)]);
        bell.settle();
        let seen = bell.rings();
        database.end_connections();
        caller.push(&mut log, &[sized(10)]);
        bell.wait(seen);
    }
    log.assert_stored(&Caller::new(&reading, Ms(0)), 0, "I3");
}

#[test]
fn hints_for_very_many_logs_all_come() {
    const LOGS: u64 = 1_500;
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    let (writing, reading) = (at(&address, &StoreOptions::default()), at(&address, &StoreOptions::default()));
    let caller = Caller::new(&writing, Ms(0));
    let mut logs: Vec<Log> = (0..LOGS).map(|number| caller.open(&format!("s {}", number % 10), number)).collect();
    let bells: Vec<Arc<Bell>> = logs
        .iter()
        .map(|log| {
            let bell = Arc::new(Bell::default());
            bell.watching(&reading, log);
            bell
        })
        .collect();
    bells.iter().for_each(|bell| bell.wait(0));
    bells[0].settle();
    let seen: Vec<u64> = bells.iter().map(|bell| bell.rings()).collect();
    std::thread::scope(|scope| {
        for logs in logs.chunks_mut(100) {
            let writing = &writing;
            scope.spawn(move || {
                let caller = Caller::new(writing, Ms(0));
                logs.iter_mut().for_each(|log| caller.push(log, &[sized(10)]));
            });
        }
    });
    for (bell, seen) in bells.iter().zip(seen) {
        bell.wait(seen);
    }
    // A session that goes is told for each of its logs.
    let seen: Vec<u64> = bells.iter().map(|bell| bell.rings()).collect();
    writing.drop_session("s 3", caller.epoch);
    for number in (3..LOGS as usize).step_by(10) {
        bells[number].wait(seen[number]);
    }
}
