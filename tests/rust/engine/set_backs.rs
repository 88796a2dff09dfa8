//! What an engine knows of a store that was set back, or could not tell for a while: it is asked again, and believed.

use std::sync::atomic::Ordering;

use serde_json::json;
use tailrope_core::engine::{Options, SessionHandle};
use tailrope_core::stream::CloseReason;

use crate::kit::common::{NEW, call, id, notify, read_now, respond, resume};
use crate::kit::fleet::Fleet;
use crate::kit::processes::events;
use crate::kit::relaying::{find, initialized, open, pass, read, relay, relay_delete, serve};

/// As long as an owner has to begin, in milliseconds.
const LOST_MS: u64 = 2_000;

fn fleet() -> Fleet {
    Fleet::with(2, Options { owner_lost_ms: LOST_MS, ..Options::default() })
}

/// Where a client of a call is after its first event.
fn begin(fleet: &Fleet, session: &SessionHandle) -> String {
    let first = call(session, 1);
    notify(session, 1, "a").unwrap();
    read(fleet, &first).last_id()
}

#[test]
fn i4_a_reader_elsewhere_is_noticed_after_looks_that_failed() {
    let fleet = fleet();
    let session = open(&fleet, NEW);
    let cursor = begin(&fleet, &session);
    fleet.nodes[0].fails.store(true, Ordering::SeqCst);
    let here = resume(&session, &cursor);
    pass(&fleet, 2_000);
    fleet.nodes[0].fails.store(false, Ordering::SeqCst);
    assert_eq!(read_now(&here).end, None, "the stream has its reader");
    pass(&fleet, 1_000);
    let there = resume(&find(&fleet, 1), &cursor);
    read(&fleet, &there);
    assert_eq!(read_now(&here).end, Some(CloseReason::Superseded));
    assert!(session.close_connection(&id(1), Some(70), None));
    let closed = read(&fleet, &there);
    assert_eq!(closed.end, Some(CloseReason::Asked), "{}", closed.text);
}

#[test]
fn i4_a_look_that_a_hint_asked_for_and_that_failed_is_made_again() {
    let fleet = fleet();
    let session = open(&fleet, NEW);
    let cursor = begin(&fleet, &session);
    let here = resume(&session, &cursor);
    read(&fleet, &here);
    fleet.nodes[0].fails.store(true, Ordering::SeqCst);
    let there = resume(&find(&fleet, 1), &cursor);
    read(&fleet, &there);
    fleet.nodes[0].fails.store(false, Ordering::SeqCst);
    assert_eq!(read_now(&here).end, None);
    pass(&fleet, 1_000);
    assert_eq!(read_now(&here).end, Some(CloseReason::Superseded));
    respond(&session, 1).unwrap();
    assert_eq!(events(&read(&fleet, &there)), [json!({"event": 2, "is": {"result": 1}})]);
}

#[test]
fn i4_a_reader_elsewhere_is_noticed_after_the_store_lost_its_count() {
    for is_read in [true, false] {
        let fleet = fleet();
        let session = open(&fleet, NEW);
        fleet.nodes.iter().for_each(|node| node.readers_before.store(5, Ordering::SeqCst));
        let cursor = begin(&fleet, &session);
        let mut here = Some(resume(&session, &cursor));
        here.iter().for_each(|here| assert_eq!(read(&fleet, here).end, None));
        if !is_read {
            here = None;
        }
        fleet.nodes.iter().for_each(|node| node.readers_before.store(0, Ordering::SeqCst));
        fleet.disturb();
        here.iter().for_each(|here| assert_eq!(read(&fleet, here).end, None, "nobody has taken it"));
        let there = resume(&find(&fleet, 1), &cursor);
        read(&fleet, &there);
        here.iter().for_each(|here| assert_eq!(read_now(here).end, Some(CloseReason::Superseded)));
        assert!(session.close_connection(&id(1), Some(70), None));
        let closed = read(&fleet, &there);
        assert_eq!(closed.end, Some(CloseReason::Asked), "read here: {is_read}: {}", closed.text);
    }
}

#[test]
fn a_delete_that_the_store_lost_did_not_end_the_session() {
    for is_withdrawn in [true, false] {
        let fleet = fleet();
        let session = open(&fleet, NEW);
        fleet.nodes[0].is_deaf.store(true, Ordering::SeqCst);
        let connection = relay_delete(&find(&fleet, 1));
        pass(&fleet, if is_withdrawn { LOST_MS - 250 } else { 250 });
        let (_, post) = fleet.posts().pop().unwrap();
        fleet.nodes[1].fails.store(is_withdrawn, Ordering::SeqCst);
        fleet.lose_log("s", post.stream.unwrap());
        pass(&fleet, 500);
        assert_eq!(read_now(&connection).status, None, "it is not known yet");
        fleet.nodes[1].fails.store(false, Ordering::SeqCst);
        pass(&fleet, LOST_MS);
        assert_eq!(read_now(&connection).status, Some(503));
        assert!(!session.has_ended());
    }
}

#[test]
fn a_delete_whose_session_went_unheard_is_done() {
    let fleet = fleet();
    let session = open(&fleet, NEW);
    let connection = relay_delete(&find(&fleet, 1));
    fleet.settle();
    fleet.nodes[1].fails.store(true, Ordering::SeqCst);
    assert_eq!(serve(&session), ["DELETE"]);
    pass(&fleet, LOST_MS);
    assert_eq!(read_now(&connection).status, None, "it is not known yet");
    fleet.nodes[1].fails.store(false, Ordering::SeqCst);
    pass(&fleet, 1_000);
    assert_eq!(read_now(&connection).status, Some(200));
}

#[test]
fn o4_a_message_whose_number_was_given_before_is_told_where_its_take_was_lost() {
    let fleet = fleet();
    let session = open(&fleet, NEW);
    let there = find(&fleet, 1);
    fleet.nodes[0].messages_before.store(5, Ordering::SeqCst);
    relay(&there, &initialized());
    fleet.settle();
    assert_eq!(serve(&session).len(), 1);
    fleet.nodes[0].messages_before.store(0, Ordering::SeqCst);
    fleet.nodes[0].holds_takes.store(true, Ordering::SeqCst);
    relay(&there, &initialized());
    fleet.settle();
    // As long as a store may take.
    pass(&fleet, 30_000);
    fleet.nodes[0].holds_takes.store(false, Ordering::SeqCst);
    pass(&fleet, 1_000);
    assert_eq!(serve(&session), ["notifications/initialized"]);
}
