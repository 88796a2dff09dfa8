//! What an owner knows and says of readers in another process: closes and holds reach them (O9), and they are a sign of
//! their client (O8).

use std::time::Instant;

use crate::kit::common::{NEW, call, id, listen, notify, read_now, respond, resume};
use crate::kit::folder::Folder;
use crate::kit::processes::{
    PATIENCE, adopt_known, begun, ended, events, has, open_session, process, read_until, wait_for_a_takeover,
};
use serde_json::json;
use tailrope_core::engine::Clock;
use tailrope_core::stream::CloseReason;

#[test]
fn o9_a_close_at_the_owner_closes_the_reader_in_another_process() {
    let folder = Folder::new();
    let (here, there) = (process(&folder, 0), process(&folder, 50_000));
    let session = open_session(&here, "s", NEW);
    let first = call(&session, 1);
    notify(&session, 1, "a").unwrap();
    let cursor = read_until(&here, &first, has(1)).last_id();
    let seen = adopt_known(&there);
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
    let seen = adopt_known(&there);
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
    let reader = listen(&adopt_known(&there));
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
    let (max_detached_ms, seen) = (here.engine.options().max_detached_ms, adopt_known(&there));
    for polls in 1..=3 {
        here.clock.advance(max_detached_ms - 1_000);
        read_until(&there, &resume(&seen, &cursor), begun);
        wait_for_a_takeover(&here, polls);
        assert_eq!(session.idle_in_ms(), Some(max_detached_ms), "its call goes on");
    }
}
