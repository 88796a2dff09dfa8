//! When the PostgreSQL store takes the owner of a log for gone, and when not: what it saw counts, and no clock.

use std::sync::atomic::Ordering;

use tailrope_core::Ms;
use tailrope_core::store::contract::{Caller, Log};
use tailrope_core::store::{EventStore, Limits, SessionRecord, StoreError, StoreOptions};

use super::database::{Administrator, Namespaces, at, eventually, namespace, told, with_clock};
use super::faults::behind_proxy;
use crate::kit::events::{sized, terminal};

fn lost_after(owner_lost_ms: u64) -> StoreOptions {
    StoreOptions { owner_lost_ms, ..StoreOptions::default() }
}

/// The same store without the network that can fail.
fn direct(address: &str) -> String {
    format!("{}?namespace={}", told("TAILROPE_TEST_POSTGRES"), namespace(address))
}

fn unseen_ms(caller: &Caller<'_>, log: &Log) -> u64 {
    caller.record(log).and_then(|record| record.owner_unseen_ms).expect("it is another's")
}

#[test]
fn an_owner_that_did_not_reach_the_server_for_a_minute_ends_its_streams_itself() {
    let namespaces = Namespaces::direct();
    let (proxy, address) = behind_proxy(&namespaces, "listen=off");
    let (options, time) = with_clock(Limits::default());
    let often = StoreOptions { owner_lost_ms: 200, ..options.clone() };
    let (owner, other) = (at(&address, &often), at(&direct(&address), &options));
    let (writer, reader) = (Caller::new(&owner, Ms(0)), Caller::new(&other, Ms(0)));
    let mut log = writer.open("s", 1);
    unseen_ms(&reader, &log);
    proxy.set_refuses(true);
    proxy.cut();
    time.fetch_add(60_000, Ordering::SeqCst);
    // As when the server was away for everybody, and others reach it first.
    let unseen = unseen_ms(&reader, &log);
    assert!(unseen < options.owner_lost_ms, "R-S5: {unseen}");
    assert_eq!(reader.finish(&log, b"lost"), Err(StoreError::Fenced), "R-S5");
    proxy.set_refuses(false);
    eventually("its beat comes", || unseen_ms(&reader, &log) == 0);
    writer.push(&mut log, &[sized(1), terminal()]);
}

#[test]
fn no_clock_and_no_bound_takes_anything_from_an_owner_that_lives() {
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    let (options, time) = with_clock(Limits { max_age_ms: 1, ..Limits::default() });
    let [owner, other] = [(); 2].map(|()| at(&address, &options));
    let (writer, reader) = (Caller::new(&owner, Ms(0)), Caller::new(&other, Ms(0)));
    let mut log = writer.open("s", 1);
    owner.put_session(Ms(0), "s", &SessionRecord::default());
    writer.push(&mut log, &[sized(1)]);
    time.fetch_add(365 * 86_400_000, Ordering::SeqCst);
    other.sweep(Ms(0));
    let session = reader.session("s").expect("R-S4: its owner is there");
    let looks = [unseen_ms(&reader, &log), session.unseen_ms];
    assert!(looks.iter().all(|unseen_ms| *unseen_ms < options.owner_lost_ms), "R-S5: {looks:?}");
    assert_eq!(reader.finish(&log, b"lost"), Err(StoreError::Fenced), "R-S5");
    writer.push(&mut log, &[sized(1)]);
}

#[test]
fn an_owner_that_the_server_has_no_row_of_is_not_taken_for_gone() {
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    // A minute between two beats of the first; the other is as hasty as can be.
    let (owner, hasty) = (at(&address, &lost_after(240_000)), at(&address, &lost_after(1)));
    let reader = Caller::new(&hasty, Ms(0));
    let log = Caller::new(&owner, Ms(0)).open("s", 1);
    let (server, owners) = (Administrator::new(), format!("{}.owner", namespace(&address)));
    let id = server.number(&format!("SELECT owner FROM {}.stream", namespace(&address)));
    eventually("its first beat came", || server.number(&format!("SELECT beat FROM {owners} WHERE id = {id}")) > 0);
    server.run(&format!("DELETE FROM {owners} WHERE id = {id}"));
    assert_eq!([(); 5].map(|()| unseen_ms(&reader, &log)), [0; 5]);
    assert_eq!(reader.finish(&log, b"lost"), Err(StoreError::Fenced));
}

#[test]
fn an_owner_that_gave_a_sign_since_others_looked_is_not_gone() {
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    let (owner, hasty) = (at(&address, &lost_after(240_000)), at(&address, &lost_after(1)));
    let reader = Caller::new(&hasty, Ms(0));
    let log = Caller::new(&owner, Ms(0)).open("s", 1);
    let (server, owners) = (Administrator::new(), format!("{}.owner", namespace(&address)));
    eventually("it is lost", || {
        // When it is known to be gone, nobody looks by itself any more.
        let is_known =
            server.number(&format!("SELECT count(*) FROM {owners} WHERE gone IS NOT NULL AND beat > 0")) == 1;
        unseen_ms(&reader, &log) > 0 && is_known
    });
    server.run(&format!("UPDATE {owners} SET beat = beat + 1 WHERE gone IS NOT NULL"));
    assert_eq!(reader.finish(&log, b"lost"), Err(StoreError::Fenced));
    eventually("it is lost", || unseen_ms(&reader, &log) > 0);
    assert_eq!(reader.finish(&log, b"lost"), Ok(()), "I13");
}

#[test]
fn an_owner_that_stood_still_leaves_nothing_in_the_end_and_may_come_back() {
    let namespaces = Namespaces::direct();
    let (proxy, address) = behind_proxy(&namespaces, "listen=off");
    let (options, time) = with_clock(Limits { max_age_ms: 60_000, ..Limits::default() });
    let options = StoreOptions { owner_lost_ms: 100, ..options };
    let (owner, other) = (at(&address, &options), at(&direct(&address), &options));
    let (writer, reader) = (Caller::new(&owner, Ms(0)), Caller::new(&other, Ms(0)));
    let log = writer.open("s", 1);
    owner.put_session(Ms(0), "s", &SessionRecord::default());
    eventually("it is stored", || reader.session("s").is_some());
    proxy.set_refuses(true);
    proxy.cut();
    let (server, owners) = (Administrator::new(), format!("{}.owner", namespace(&address)));
    let count = |which: &str| server.number(&format!("SELECT count(*) FROM {owners} WHERE {which}"));
    eventually("it is seen to stand still", || count("gone IS NOT NULL") == 1);
    time.fetch_add(60_000, Ordering::SeqCst);
    other.sweep(Ms(0));
    assert!(reader.session("s").is_some() && reader.record(&log).is_some(), "its sessions are kept for a while");
    time.fetch_add(1, Ordering::SeqCst);
    other.sweep(Ms(0));
    assert_eq!((reader.session("s"), reader.record(&log)), (None, None));
    assert_eq!(count("true"), 1);
    reader.assert_usage("F-54", |usage| usage.streams == 0 && usage.sessions == 0 && usage.bytes == 0);
    proxy.set_refuses(false);
    eventually("R-S4: its beat writes its row again", || count("true") == 2);
    unseen_ms(&reader, &writer.open("t", 2));
}
