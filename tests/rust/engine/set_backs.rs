//! What an engine knows of a store that was set back, or could not tell for a while: it is asked again, and believed.

use std::sync::atomic::Ordering;

use serde_json::json;
use tailrope_core::engine::{Connection, Options, SessionHandle};
use tailrope_core::protocol::EventId;
use tailrope_core::store::{Epoch, session_name};
use tailrope_core::stream::CloseReason;

use crate::kit::adopting::{begin as begin_session, go_on, offer};
use crate::kit::common::{NEW, call, id, notify, read_now, respond, resume};
use crate::kit::fleet::Fleet;
use crate::kit::processes::events;
use crate::kit::relaying::{find, held, initialized, open, pass, read, relay, relay_delete, serve, tool_call};

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

/// A call with a reader at another process, whose log the store loses as a whole.
fn lost(fleet: &Fleet) -> (SessionHandle, Connection) {
    let session = open(fleet, NEW);
    let cursor = begin(fleet, &session);
    let there = resume(&find(fleet, 1), &cursor);
    read(fleet, &there);
    let Some(EventId::Position(cursor)) = EventId::parse(&cursor) else { unreachable!("it is of an event") };
    fleet.lose_log("s", cursor.nonce);
    (session, there)
}

#[test]
fn i13_a_reader_elsewhere_waits_for_the_owner_of_a_log_that_is_gone() {
    for is_heard_first in [false, true] {
        let fleet = fleet();
        let (session, there) = lost(&fleet);
        if is_heard_first {
            fleet.nodes[0].fails.store(true, Ordering::SeqCst);
            fleet.disturb();
            pass(&fleet, 8_000);
            fleet.nodes[0].fails.store(false, Ordering::SeqCst);
        } else {
            fleet.benches[1].advance(1_000);
            fleet.disturb();
        }
        assert_eq!(read_now(&there).end, None, "the owner writes it again: {is_heard_first}");
        pass(&fleet, 2_000);
        respond(&session, 1).unwrap();
        assert_eq!(events(&read(&fleet, &there)), [json!({"event": 2, "is": {"result": 1}})]);
    }
}

#[test]
fn i8_a_reader_elsewhere_of_a_log_that_stays_away_gets_an_end() {
    let unknown = [json!({"tombstone": {"error": -32603, "id": 1}})];
    let fleet = fleet();
    let (_session, there) = lost(&fleet);
    fleet.nodes[0].fails.store(true, Ordering::SeqCst);
    fleet.disturb();
    pass(&fleet, 11_000);
    assert_eq!(events(&read_now(&there)), unknown, "store_wait_ms");
    let fleet = self::fleet();
    let session = open(&fleet, NEW);
    let there = resume(&find(&fleet, 1), &begin(&fleet, &session));
    read(&fleet, &there);
    session.delete();
    pass(&fleet, 2_000);
    assert_eq!(events(&read_now(&there)), unknown, "nothing says that the store was set back");
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

/// A session that the second process has adopted, with a call there where its client is after the first event, and the epoch of
/// the owner that is gone.
fn adopted(fleet: &Fleet) -> (SessionHandle, String, Epoch) {
    let session = begin_session(fleet, NEW);
    let before = fleet.epoch("s");
    call(&session, 7);
    notify(&session, 7, "a").unwrap();
    [&fleet.nodes[0].is_deaf, &fleet.nodes[0].fails].iter().for_each(|flag| flag.store(true, Ordering::SeqCst));
    fleet.lose(0);
    let (view, _) = offer(fleet, 1);
    drop(relay(&view, &initialized()));
    let (owner, _) = go_on(&view, NEW);
    fleet.settle();
    assert!(fleet.epoch("s").number > before.number);
    let cursor = begin(fleet, &owner);
    (owner, cursor, before)
}

#[test]
fn o1_an_owner_whose_hold_the_store_lost_has_its_session_again() {
    type Finds = fn(&Fleet, &SessionHandle, &str);
    let ways: [(&str, Finds); 3] = [
        ("it is told", |fleet, _, _| fleet.disturb()),
        ("it writes", |_, owner, _| assert!(notify(owner, 1, "b").is_ok())),
        ("somebody reads", |fleet, owner, cursor| drop(read(fleet, &resume(owner, cursor)))),
    ];
    for (way, finds) in ways {
        let fleet = Fleet::with(3, Options { owner_lost_ms: LOST_MS, ..Options::default() });
        let (owner, cursor, before) = adopted(&fleet);
        let epoch = fleet.epoch("s");
        fleet.forget_owner(0, "s", before);
        finds(&fleet, &owner, &cursor);
        pass(&fleet, 1_000);
        assert_eq!(fleet.epoch("s"), epoch, "{way}");
        respond(&owner, 1).unwrap();
        let reader = resume(&find(&fleet, 2), &cursor);
        let got = read(&fleet, &reader);
        assert_eq!(events(&got).last().unwrap()["is"], json!({"result": 1}), "{way}: {}", got.text);
        let stats = fleet.benches[1].engine.stats();
        assert_eq!((stats.sessions_taken_over, stats.logs_lost, owner.has_ended()), (0, 0, false), "{way}");
    }
}

#[test]
fn o1_an_owner_that_the_store_forgot_takes_what_came_for_it() {
    let fleet = Fleet::with(3, Options { owner_lost_ms: LOST_MS, ..Options::default() });
    let (owner, _, before) = adopted(&fleet);
    fleet.nodes[1].is_deaf.store(true, Ordering::SeqCst);
    let connection = relay(&find(&fleet, 2), &tool_call(2));
    fleet.settle();
    fleet.forget_owner(0, "s", before);
    // It looks without a hint. When it does is rounded up.
    fleet.benches[1].advance(300_000 + 500);
    assert_eq!(serve(&owner), [""; 0], "it is not its owner's");
    (0..2).for_each(|_| fleet.benches[1].advance(500));
    assert_eq!(serve(&owner), ["tools/call 2"]);
    respond(&owner, 2).unwrap();
    let got = read(&fleet, &connection);
    assert_eq!(events(&got), [json!({"event": 1, "is": {"result": 2}})], "{}", got.text);
}

#[test]
fn o1_an_owner_that_the_store_forgot_yields_to_one_that_came_since() {
    let ways: [fn(&Fleet, &SessionHandle); 2] = [|fleet, _| fleet.disturb(), |_, owner| drop(notify(owner, 1, "b"))];
    for way in ways {
        let fleet = Fleet::with(3, Options { owner_lost_ms: LOST_MS, ..Options::default() });
        let (owner, _, before) = adopted(&fleet);
        let number = fleet.epoch("s").number;
        fleet.forget_owner(0, "s", before);
        fleet.take_over(2, "s");
        let epoch = fleet.epoch("s");
        assert_eq!(epoch.number, number, "two have drawn one number");
        way(&fleet, &owner);
        pass(&fleet, 1_000);
        assert_eq!((fleet.epoch("s"), owner.has_ended()), (epoch, true));
        assert_eq!(fleet.benches[1].engine.stats().sessions_taken_over, 1);
    }
}

#[test]
fn o1_a_process_that_has_nothing_of_a_session_leaves_it_again_where_the_store_forgot_that() {
    let fleet = Fleet::with(3, Options { owner_lost_ms: LOST_MS, ..Options::default() });
    let session = begin_session(&fleet, NEW);
    let cursor = begin(&fleet, &session);
    [&fleet.nodes[0].is_deaf, &fleet.nodes[0].fails].iter().for_each(|flag| flag.store(true, Ordering::SeqCst));
    fleet.lose(0);
    let heir = resume(&find(&fleet, 1), &cursor);
    assert!(read(&fleet, &heir).end.is_some(), "I13");
    drop(heir);
    assert_eq!(held(&fleet, 1), (0, 0), "I11");
    fleet.forget_release(&session_name("s"));
    fleet.disturb();
    let (view, _) = offer(&fleet, 2);
    let waiting = relay(&view, &tool_call(2));
    assert_eq!(go_on(&view, NEW).1, ["tools/call 2"]);
    drop(waiting);
}

#[test]
fn o1_what_the_store_lost_of_a_sessions_record_is_written_again() {
    let fleet = fleet();
    let session = open(&fleet, NEW);
    let cursor = begin(&fleet, &session);
    let found = fleet.record("s");
    fleet.forget_record("s");
    assert_ne!(fleet.record("s"), found);
    fleet.disturb();
    assert_eq!(fleet.record("s"), found);
    respond(&session, 1).unwrap();
    let there = resume(&find(&fleet, 1), &cursor);
    assert_eq!(events(&read(&fleet, &there)), [json!({"event": 2, "is": {"result": 1}})]);
}
