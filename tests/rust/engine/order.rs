//! Readers whose store answers late, in any order, or not at all: which of them is the newest, and where each begins.

use std::sync::Arc;

use crate::kit::any_order::{AnyOrder, is_attach, process_in_any_order};
use crate::kit::common::{Bench, NEW, broadcast, call, listen, notify, read_now, respond, resume};
use crate::kit::fleet::Fleet;
use crate::kit::folder::Folder;
use crate::kit::processes::{begun, ended, events, find_known, has, open_session, process, read_until};
use crate::kit::relaying::{ALICE, find, open, read};
use serde_json::json;
use tailrope_core::engine::{Connection, LookUp, NoWake, SessionHandle};
use tailrope_core::exchange::Principal;
use tailrope_core::protocol::Dialect;
use tailrope_core::store::Operation;
use tailrope_core::stream::{CloseReason, Drain};

fn is_look(operation: &Operation) -> bool {
    matches!(operation, Operation::Look(_))
}

/// A call with one event whose connection broke: the session where it is written, and a cursor before the event.
fn interrupted_call(here: &Bench) -> (SessionHandle, String) {
    let session = open_session(here, "s", NEW);
    let first = call(&session, 1);
    let cursor = read_until(here, &first, begun).ids().remove(0);
    first.lost();
    notify(&session, 1, "a").unwrap();
    // Others find it: what a reader gets is stored.
    let reader = resume(&session, &cursor);
    read_until(here, &reader, has(1));
    reader.lost();
    (session, cursor)
}

fn look_up(bench: &Bench, cursor: Option<&str>) -> LookUp {
    bench
        .engine
        .look_up_session("s", Some(&Principal::named("alice")), cursor, &Dialect::MCP_PYTHON_2, Arc::new(NoWake), 0)
        .unwrap()
}

fn found(look_up: &LookUp) -> SessionHandle {
    look_up.take().expect("the store has told").unwrap().expect("it is alice's")
}

/// Time passes, and nothing comes here that is not the first bytes.
fn gets_nothing(bench: &Bench, connection: &Connection) {
    for _ in 0..20 {
        bench.advance(20);
        let answered = read_now(connection);
        assert_eq!((events(&answered), answered.end), (vec![], None));
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// The connection has ended without an event.
fn was_fenced(bench: &Bench, connection: &Connection) {
    let answered = read_until(bench, connection, ended);
    assert_eq!((events(&answered), answered.end), (vec![], Some(CloseReason::Superseded)), "I4");
}

/// Two resumes of one stream that were told their position while the store could not tell. It was asked again: the
/// answers wait, in the order in which they came.
fn two_that_were_told(here: &Bench, there: &Bench, store: &AnyOrder) -> (SessionHandle, [Connection; 2]) {
    let (session, cursor) = interrupted_call(here);
    let seen = find_known(there);
    store.hold(is_attach);
    let both = [resume(&seen, &cursor), resume(&seen, &cursor)];
    store.wait_for(there, 2);
    store.fail_all(there);
    assert!(events(&read_until(there, &both[1], begun)).is_empty(), "it is told its own position");
    notify(&session, 1, "b").unwrap();
    store.wait_for(there, 1);
    (session, both)
}

#[test]
fn i4_a_reader_whose_session_was_looked_up_for_longer_is_no_newer() {
    let folder = Folder::new();
    let here = process(&folder, 0);
    let (there, store) = process_in_any_order(&folder);
    let (session, cursor) = interrupted_call(&here);
    find_known(&there).let_go();
    store.hold(is_attach);
    let (older, newer) = (look_up(&there, Some(&cursor)), look_up(&there, Some(&cursor)));
    store.wait_for(&there, 2);
    store.let_go();
    store.answer(1);
    let second = resume(&found(&newer), &cursor);
    assert_eq!(events(&read_until(&there, &second, has(1))), [json!({"event": 1, "is": "a"})]);
    store.answer(0);
    let handle = found(&older);
    let first = resume(&handle, &cursor);
    was_fenced(&there, &first);
    notify(&session, 1, "b").unwrap();
    assert_eq!(events(&read_until(&there, &second, has(1))), [json!({"event": 2, "is": "b"})]);
    // Only the first of a look-up came when that began.
    let third = resume(&handle, &cursor);
    assert_eq!(events(&read_until(&there, &third, has(2))).len(), 2);
    was_fenced(&there, &second);
}

#[test]
fn i4_a_listener_whose_session_was_looked_up_for_longer_is_no_newer() {
    let folder = Folder::new();
    let here = process(&folder, 0);
    let (there, store) = process_in_any_order(&folder);
    let session = open_session(&here, "s", NEW);
    broadcast(&session, "a").unwrap();
    find_known(&there).let_go();
    store.hold(is_attach);
    let (older, newer) = (look_up(&there, None), look_up(&there, None));
    store.wait_for(&there, 2);
    store.let_go();
    store.answer(1);
    let second = listen(&found(&newer));
    assert_eq!(events(&read_until(&there, &second, has(1))), [json!({"event": 1, "is": "a"})]);
    store.answer(0);
    was_fenced(&there, &listen(&found(&older)));
    broadcast(&session, "b").unwrap();
    assert_eq!(events(&read_until(&there, &second, has(1))), [json!({"event": 2, "is": "b"})]);
}

#[test]
fn i4_a_reader_that_was_counted_while_its_session_was_looked_up_keeps_the_stream() {
    let folder = Folder::new();
    let here = process(&folder, 0);
    let (there, store) = process_in_any_order(&folder);
    let (session, cursor) = interrupted_call(&here);
    store.hold(is_attach);
    let (older, newer) = (look_up(&there, Some(&cursor)), look_up(&there, Some(&cursor)));
    store.wait_for(&there, 2);
    store.hold(is_look);
    store.answer(0);
    let first = resume(&found(&older), &cursor);
    // The look tells of the newer reader, which is here, too.
    store.wait_for(&there, 2);
    store.answer(0);
    let second = resume(&found(&newer), &cursor);
    was_fenced(&there, &first);
    store.let_go();
    store.answer_all();
    respond(&session, 1).unwrap();
    assert_eq!(read_until(&there, &second, ended).end, Some(CloseReason::Complete));
}

#[test]
fn i4_a_reader_that_is_looked_up_once_more_is_no_newer() {
    let folder = Folder::new();
    let here = process(&folder, 0);
    let (there, store) = process_in_any_order(&folder);
    let (session, cursor) = interrupted_call(&here);
    let seen = find_known(&there);
    store.hold(is_attach);
    let first = resume(&seen, &cursor);
    store.fail_all(&there);
    let second = resume(&seen, &cursor);
    // The older one is counted once more, behind the newer one.
    store.wait_for(&there, 2);
    store.let_go();
    store.answer(0);
    assert_eq!(events(&read_until(&there, &second, has(1))), [json!({"event": 1, "is": "a"})]);
    // The log is looked at meanwhile.
    gets_nothing(&there, &second);
    was_fenced(&there, &first);
    respond(&session, 1).unwrap();
    assert_eq!(read_until(&there, &second, ended).end, Some(CloseReason::Complete));
}

#[test]
fn i4_the_newer_of_two_readers_that_were_told_their_position_has_the_stream() {
    let folder = Folder::new();
    let here = process(&folder, 0);
    let (there, store) = process_in_any_order(&folder);
    let (_session, [first, second]) = two_that_were_told(&here, &there, &store);
    was_fenced(&there, &first);
    store.let_go();
    store.answer_all();
    let all = [json!({"event": 1, "is": "a"}), json!({"event": 2, "is": "b"})];
    assert_eq!(events(&read_until(&there, &second, has(2))), all);
}

#[test]
fn i2_a_listener_begins_where_its_first_id_says() {
    let folder = Folder::new();
    let here = process(&folder, 0);
    let (there, store) = process_in_any_order(&folder);
    let session = open_session(&here, "s", NEW);
    let seen = find_known(&there);
    let first = listen(&seen);
    broadcast(&session, "a").unwrap();
    assert_eq!(events(&read_until(&there, &first, has(1))), [json!({"event": 1, "is": "a"})]);
    store.hold(|operation| is_attach(operation) || is_look(operation));
    // Nothing that was asked before is under way any more.
    store.fail_all(&there);
    let second = listen(&seen);
    store.fail_all(&there);
    let told = read_until(&there, &second, begun);
    assert_eq!((told.frames().len(), events(&told).len()), (1, 0), "the store cannot tell: {told:?}");
    store.let_go();
    broadcast(&session, "b").unwrap();
    let rest = read_until(&there, &second, has(2));
    assert_eq!(events(&rest), [json!({"event": 1, "is": "a"}), json!({"event": 2, "is": "b"})]);
    let again = resume(&seen, &told.last_id());
    assert_eq!(events(&read_until(&there, &again, has(2))), events(&rest), "the id means the same to a resume");
}

#[test]
fn f44_i4_a_reader_that_was_looked_up_before_a_drain_is_sent_away_without_an_event() {
    let fleet = Fleet::new(3);
    let session = open(&fleet, NEW);
    let first = call(&session, 1);
    notify(&session, 1, "a").unwrap();
    let cursor = read(&fleet, &first).ids().remove(0);
    first.lost();
    let (draining, principal) = (&fleet.benches[1].engine, ALICE.principal().unwrap());
    let wake = Arc::new(NoWake);
    let before =
        draining.look_up_session("s", principal.as_ref(), Some(&cursor), &Dialect::MCP_PYTHON_2, wake, 0).unwrap();
    draining.drain(Drain::after(100));
    // Its client has gone on elsewhere meanwhile.
    let newer = resume(&find(&fleet, 2), &cursor);
    assert_eq!(events(&read(&fleet, &newer)), [json!({"event": 1, "is": "a"})]);
    let older = read(&fleet, &resume(&found(&before), &cursor));
    assert!(older.frames()[0]["priming"].is_number(), "I5: {}", older.text);
    assert_eq!((events(&older), older.end), (vec![], Some(CloseReason::Drain)));
    notify(&session, 1, "b").unwrap();
    assert_eq!(events(&read(&fleet, &newer)), [json!({"event": 2, "is": "b"})]);
}
