//! What an owner knows and says of readers in another process: closes and holds reach them (O9), and they are a sign of
//! their client (O8).

use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::kit::common::{Bench, NEW, call, id, listen, notify, read_now, respond, resume};
use crate::kit::fleet::Fleet;
use crate::kit::folder::Folder;
use crate::kit::processes::{
    PATIENCE, begun, ended, events, find_known, has, open_session, process, read_until, wait_for_a_takeover,
};
use crate::kit::relaying::{find, initialized, open, relay, serve, tool_call};
use serde_json::json;
use tailrope_core::engine::{Clock, Options};
use tailrope_core::stream::CloseReason;

#[test]
fn o9_a_close_at_the_owner_closes_the_reader_in_another_process() {
    let folder = Folder::new();
    let (here, there) = (process(&folder, 0), process(&folder, 50_000));
    let session = open_session(&here, "s", NEW);
    let first = call(&session, 1);
    notify(&session, 1, "a").unwrap();
    let cursor = read_until(&here, &first, has(1)).last_id();
    let seen = find_known(&there);
    let reader = resume(&seen, &cursor);
    read_until(&there, &reader, begun);
    wait_for_a_takeover(&here, 1);
    // What was sent before the close comes before it, what is sent after it with the next connection.
    notify(&session, 1, "b").unwrap();
    assert!(session.close_connection(&id(1), Some(70), Some(0)));
    notify(&session, 1, "c").unwrap();
    let closed = read_until(&there, &reader, ended);
    assert_eq!((events(&closed)[0].clone(), closed.end), (json!({"event": 2, "is": "b"}), Some(CloseReason::Asked)));
    assert!(closed.text.ends_with("retry: 70\n\n"), "it is told when to come back: {}", closed.text);
    // With the hold, whoever comes is sent away, as at the owner.
    let mut cursor = closed.last_id();
    for _ in 0..2 {
        let polled = read_until(&there, &resume(&seen, &cursor), ended);
        assert_eq!(polled.frames()[0]["retry_ms"], json!(70), "{}", polled.text);
        assert_eq!(polled.end, Some(CloseReason::Polled));
        cursor = polled.last_id();
    }
    respond(&session, 1).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let last = loop {
        let polled = read_until(&there, &resume(&seen, &cursor), ended);
        cursor = polled.ids().pop().unwrap_or(cursor);
        if polled.end == Some(CloseReason::Complete) {
            break polled;
        }
        assert!(Instant::now() < deadline, "the response comes with a poll");
    };
    assert_eq!(events(&last).pop(), Some(json!({"event": 4, "is": {"result": 1}})), "I6");
}

#[test]
fn o9_a_hold_of_the_owner_ends_connections_in_another_process_after_its_time() {
    let folder = Folder::new();
    let (here, there) = (process(&folder, 0), process(&folder, 0));
    let session = open_session(&here, "s", NEW);
    let first = call(&session, 1);
    notify(&session, 1, "a").unwrap();
    assert!(session.close_connection(&id(1), None, Some(5_000)));
    let cursor = read_until(&here, &first, ended).last_id();
    let seen = find_known(&there);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (asked, reader) = (there.clock.now(), resume(&seen, &cursor));
        read_until(&there, &reader, begun);
        there.advance(4_000);
        assert_eq!(read_now(&reader).end, None, "it is held");
        there.advance(2_000);
        if read_now(&reader).end == Some(CloseReason::Polled) {
            break assert!(there.clock.now().since(asked) >= 5_000);
        }
        // The owner did not wait until the store knew of the hold.
        assert!(Instant::now() < deadline, "the hold is obeyed");
    }
}

#[test]
fn o9_a_close_of_the_standalone_stream_at_the_owner_closes_its_listener_in_another_process() {
    let folder = Folder::new();
    let (here, there) = (process(&folder, 0), process(&folder, 0));
    let session = open_session(&here, "s", NEW);
    let first = listen(&session);
    read_until(&here, &first, begun);
    let reader = listen(&find_known(&there));
    read_until(&there, &reader, begun);
    wait_for_a_takeover(&here, 1);
    assert!(session.close_standalone(Some(90), None));
    let closed = read_until(&there, &reader, ended);
    assert_eq!(closed.end, Some(CloseReason::Asked));
    assert!(closed.text.ends_with("retry: 90\n\n"), "{}", closed.text);
}

#[test]
fn o8_a_reader_in_another_process_is_a_sign_of_its_client() {
    let folder = Folder::new();
    let (here, there) = (process(&folder, 0), process(&folder, 0));
    let session = open_session(&here, "s", NEW);
    let first = call(&session, 1);
    notify(&session, 1, "a").unwrap();
    let cursor = read_until(&here, &first, has(1)).last_id();
    drop(first);
    let (max_detached_ms, seen) = (here.engine.options().max_detached_ms, find_known(&there));
    for polls in 1..=3 {
        here.clock.advance(max_detached_ms - 1_000);
        read_until(&there, &resume(&seen, &cursor), begun);
        wait_for_a_takeover(&here, polls);
        assert_eq!(session.idle_in_ms(), Some(max_detached_ms), "its call goes on");
    }
}

/// Time passes. Returns how often a host is told that a session is idle.
fn idle_in(fleet: &Fleet, ms: u64) -> usize {
    let tick = |bench: &Bench| {
        bench.clock.advance(250);
        bench.engine.tick().len()
    };
    let all = (0..ms / 250).map(|_| {
        fleet.settle();
        fleet.benches.iter().map(tick).sum::<usize>()
    });
    all.sum()
}

#[test]
fn o8_a_silent_connection_in_another_process_keeps_a_session_and_its_call() {
    let options = Options { max_detached_ms: 60_000, session_idle_ms: 40_000, ..Options::default() };
    let fleet = Fleet::with(2, options);
    let owner = open(&fleet, NEW);
    let seen = find(&fleet, 1);
    let calls = relay(&seen, &tool_call(1));
    fleet.settle();
    assert_eq!(serve(&owner), ["tools/call 1"]);
    let before = fleet.usage().streams;
    assert_eq!(idle_in(&fleet, 90_000), 0, "its client waits at the other process");
    assert_eq!(fleet.usage().streams, before, "nothing is left of the signs");
    assert_eq!(serve(&owner), Vec::<String>::new(), "they are not for the host");
    drop(calls);
    assert_ne!(idle_in(&fleet, 80_000), 0, "without it the session is idle");
}

#[test]
fn o8_a_session_is_not_idle_before_it_is_looked_whether_others_have_its_client() {
    let options = Options { max_detached_ms: 60_000, session_idle_ms: 40_000, ..Options::default() };
    let fleet = Fleet::with(2, options);
    let owner = open(&fleet, NEW);
    drop(call(&owner, 1));
    // No hint comes through, and the rare look is far away.
    fleet.nodes[0].is_deaf.store(true, Ordering::SeqCst);
    drop(relay(&find(&fleet, 1), &initialized()));
    assert_eq!(idle_in(&fleet, 75_000), 0, "a message waited for it");
    assert_eq!(serve(&owner), ["notifications/initialized"]);
    assert_ne!(idle_in(&fleet, 75_000), 0, "nothing came any more");
}
