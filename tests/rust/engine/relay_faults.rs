//! What becomes of requests that are relayed when their owner or the store does not do its part.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use tailrope_core::engine::Options;
use tailrope_core::exchange::{RelayedMethod, Terms};
use tailrope_core::stream::CloseReason;

use crate::kit::common::{Answered, NEW, OLD, SECRET, notify, read_now, respond, resume};
use crate::kit::fleet::Fleet;
use crate::kit::processes::events;
use crate::kit::relaying::{find, held, initialized, open, pass, read, relay, relay_delete, relayed, serve, tool_call};

/// As long as an owner has to begin, in milliseconds.
pub(super) const LOST_MS: u64 = 2_000;

pub(super) fn fleet(count: usize) -> Fleet {
    Fleet::with(count, Options { owner_lost_ms: LOST_MS, ..Options::default() })
}

/// After so long an owner has looked whether anything waits, hint or not, and has asked again where it was told that the session
/// is not its own.
const LOOK_MS: u64 = 300_000 + 1_000;

/// The answer's only frame that is no first byte or comment.
pub(super) fn only_event(answered: &Answered) -> Value {
    let events = events(answered);
    assert_eq!((events.len(), answered.end), (1, Some(CloseReason::Complete)), "{}", answered.text);
    events[0].clone()
}

pub(super) fn not_begun(id: i64) -> Value {
    json!({"tombstone": {"error": -32603, "id": id}})
}

/// Nothing of what waits, or waited, begins any more.
fn assert_nothing_begins(fleet: &Fleet, owner: &tailrope_core::engine::SessionHandle) {
    fleet.nodes.iter().for_each(|node| node.is_deaf.store(false, Ordering::SeqCst));
    fleet.disturb();
    pass(fleet, 1_000);
    assert_eq!(serve(owner), [""; 0]);
}

#[test]
fn o5_what_its_owner_does_not_begin_in_time_is_withdrawn() {
    for revision in [NEW, OLD] {
        let fleet = fleet(2);
        let session = open(&fleet, revision);
        fleet.nodes[0].is_deaf.store(true, Ordering::SeqCst);
        let connection = relay(&find(&fleet, 1), &tool_call(1));
        let mut got = read(&fleet, &connection);
        pass(&fleet, LOST_MS - 500);
        assert_eq!(read(&fleet, &connection).end, None);
        pass(&fleet, 1_000);
        let rest = read(&fleet, &connection);
        got.text.push_str(&rest.text);
        got.end = rest.end;
        assert_eq!((got.status, only_event(&got)), (Some(200), not_begun(1)));
        assert_nothing_begins(&fleet, &session);
        drop(connection);
        assert_eq!(held(&fleet, 1), (0, 0), "I11");
    }
}

#[test]
fn o5_what_was_taken_gets_no_error_however_late_it_begins() {
    let fleet = fleet(2);
    let session = open(&fleet, NEW);
    let connection = relay(&find(&fleet, 1), &tool_call(1));
    fleet.settle();
    pass(&fleet, 3 * LOST_MS);
    let mut got = read(&fleet, &connection);
    assert_eq!(serve(&session), ["tools/call 1"]);
    respond(&session, 1).unwrap();
    let rest = read(&fleet, &connection);
    got.text.push_str(&rest.text);
    assert_eq!((events(&got), rest.end), (vec![json!({"event": 1, "is": {"result": 1}})], Some(CloseReason::Complete)));
}

#[test]
fn o11_a_hint_that_was_lost_delays_a_message_and_no_more() {
    let fleet = fleet(2);
    let session = open(&fleet, NEW);
    fleet.nodes[0].is_deaf.store(true, Ordering::SeqCst);
    relay(&find(&fleet, 1), &initialized());
    fleet.settle();
    let takes = fleet.nodes[0].takes.load(Ordering::SeqCst);
    pass(&fleet, LOOK_MS);
    assert_eq!(serve(&session), ["notifications/initialized"]);
    let rare = fleet.nodes[0].takes.load(Ordering::SeqCst) - takes;
    assert!(rare <= 3, "{rare} questions");
}

#[test]
fn a_client_that_went_elsewhere_hears_that_its_call_was_withdrawn() {
    let fleet = fleet(3);
    let session = open(&fleet, NEW);
    fleet.nodes[0].is_deaf.store(true, Ordering::SeqCst);
    let first = relay(&find(&fleet, 1), &tool_call(1));
    let cursor = read(&fleet, &first).last_id();
    drop(first);
    let second = resume(&find(&fleet, 2), &cursor);
    read(&fleet, &second);
    pass(&fleet, LOST_MS + 1_500);
    assert_eq!(only_event(&read(&fleet, &second)), not_begun(1));
    assert_nothing_begins(&fleet, &session);
}

#[test]
fn a_session_without_an_owner_takes_no_requests() {
    for is_released in [true, false] {
        let fleet = fleet(2);
        let session = open(&fleet, NEW);
        let there = find(&fleet, 1);
        if is_released {
            session.release();
        } else {
            fleet.lose(0);
        }
        for (body, method) in [(tool_call(1), "POST"), (initialized(), "POST"), (Value::Null, "DELETE")] {
            let connection = if method == "POST" { relay(&there, &body) } else { relay_delete(&there) };
            let answered = read(&fleet, &connection);
            assert_eq!((answered.status, answered.end), (Some(404), Some(CloseReason::Complete)), "{body}");
        }
        if !is_released {
            assert_nothing_begins(&fleet, &session);
        }
    }
}

#[test]
fn i13_an_owner_that_is_lost_leaves_no_call_without_an_end() {
    for has_taken in [false, true] {
        let fleet = fleet(3);
        let session = open(&fleet, NEW);
        let connection = relay(&find(&fleet, 1), &tool_call(1));
        if has_taken {
            fleet.settle();
            serve(&session);
        }
        // Its process stands still from here on.
        fleet.nodes[0].is_deaf.store(true, Ordering::SeqCst);
        fleet.lose(0);
        let answered = read(&fleet, &connection);
        assert_eq!(only_event(&answered), not_begun(1), "taken: {has_taken}");
        assert!(answered.text.contains("is gone"), "{}", answered.text);
        drop(connection);
        let elsewhere = resume(&find(&fleet, 2), &answered.ids()[0]);
        assert_eq!(only_event(&read(&fleet, &elsewhere)), not_begun(1), "taken: {has_taken}");
        drop(elsewhere);
        pass(&fleet, LOST_MS + 500);
        assert_eq!((held(&fleet, 1), held(&fleet, 2)), ((0, 0), (0, 0)));
    }
}

#[test]
fn o4_a_message_whose_answer_was_lost_begins_once() {
    let fleet = fleet(2);
    let session = open(&fleet, NEW);
    let there = find(&fleet, 1);
    fleet.nodes[1].is_unheard.store(true, Ordering::SeqCst);
    let connection = relay(&there, &tool_call(1));
    pass(&fleet, 500);
    let unsure = read_now(&connection);
    assert_eq!((unsure.status, unsure.end), (None, None), "O5: nothing is said before it is known");
    assert_eq!(serve(&session), ["tools/call 1"]);
    notify(&session, 1, "a").unwrap();
    fleet.nodes[1].is_unheard.store(false, Ordering::SeqCst);
    pass(&fleet, 250);
    respond(&session, 1).unwrap();
    let got = read(&fleet, &connection);
    assert_eq!(events(&got), [json!({"event": 1, "is": "a"}), json!({"event": 2, "is": {"result": 1}})]);
    assert_eq!(serve(&session), [""; 0]);
    assert_eq!(fleet.posts().len(), 1);
}

#[test]
fn o5_a_message_without_any_answer_is_withdrawn_or_followed() {
    for begins in [true, false] {
        let fleet = fleet(2);
        let session = open(&fleet, NEW);
        let there = find(&fleet, 1);
        fleet.nodes[0].is_deaf.store(!begins, Ordering::SeqCst);
        fleet.nodes[1].is_silent.store(true, Ordering::SeqCst);
        let connection = relay(&there, &tool_call(1));
        fleet.settle();
        assert_eq!(serve(&session).len(), usize::from(begins));
        pass(&fleet, LOST_MS - 250);
        fleet.nodes[1].is_silent.store(false, Ordering::SeqCst);
        assert_eq!(read_now(&connection).status, None);
        pass(&fleet, 250);
        if begins {
            respond(&session, 1).unwrap();
            assert_eq!(only_event(&read(&fleet, &connection)), json!({"event": 1, "is": {"result": 1}}));
        } else {
            let answered = read(&fleet, &connection);
            assert_eq!((answered.status, answered.end), (Some(503), Some(CloseReason::Complete)));
            assert_nothing_begins(&fleet, &session);
        }
    }
}

#[test]
fn a_store_that_fails_is_tried_for_a_while() {
    for comes_back in [true, false] {
        let fleet = fleet(2);
        let session = open(&fleet, NEW);
        let there = find(&fleet, 1);
        fleet.nodes[1].fails.store(true, Ordering::SeqCst);
        let connection = relay(&there, &tool_call(1));
        pass(&fleet, 1_000);
        assert_eq!(read_now(&connection).status, None);
        if comes_back {
            fleet.nodes[1].fails.store(false, Ordering::SeqCst);
            pass(&fleet, 500);
            assert_eq!(serve(&session), ["tools/call 1"]);
            respond(&session, 1).unwrap();
            assert_eq!(only_event(&read(&fleet, &connection)), json!({"event": 1, "is": {"result": 1}}));
        } else {
            pass(&fleet, 3 * LOST_MS);
            let poll = connection.poll(1 << 10);
            assert_eq!(poll.head.map(|head| (head.status, head.retry_after_s())), Some((504, None)));
            assert!(!poll.text().contains(SECRET), "I9");
            fleet.nodes[1].fails.store(false, Ordering::SeqCst);
            pass(&fleet, 2_000);
            assert_nothing_begins(&fleet, &session);
        }
        drop((connection, there));
        assert_eq!(held(&fleet, 1), (0, 0), "I11");
    }
}

#[test]
fn o5_nobody_is_told_to_ask_again_for_what_may_run() {
    let fleet = fleet(2);
    let session = open(&fleet, NEW);
    fleet.nodes[1].is_unheard.store(true, Ordering::SeqCst);
    let connection = relay(&find(&fleet, 1), &tool_call(1));
    pass(&fleet, 500);
    assert_eq!(serve(&session), ["tools/call 1"]);
    fleet.nodes[1].fails.store(true, Ordering::SeqCst);
    fleet.nodes[1].is_unheard.store(false, Ordering::SeqCst);
    pass(&fleet, 3 * LOST_MS);
    let poll = connection.poll(1 << 10);
    assert_eq!(poll.head.map(|head| (head.status, head.retry_after_s())), Some((504, None)), "{}", poll.text());
    assert!(poll.text().contains("may run"), "{}", poll.text());
}

#[test]
fn o5_nobody_is_told_that_a_message_did_not_come_of_which_nothing_is_left() {
    for is_silent in [false, true] {
        let fleet = fleet(2);
        let session = open(&fleet, NEW);
        let store = &fleet.nodes[1];
        let post_has_no_answer = if is_silent { &store.is_silent } else { &store.is_unheard };
        post_has_no_answer.store(true, Ordering::SeqCst);
        let connection = relay(&find(&fleet, 1), &initialized());
        fleet.settle();
        assert_eq!(serve(&session), ["notifications/initialized"]);
        store.refuses.store(true, Ordering::SeqCst);
        post_has_no_answer.store(false, Ordering::SeqCst);
        pass(&fleet, 3 * LOST_MS);
        let poll = connection.poll(1 << 10);
        assert_eq!(poll.head.map(|head| head.status), Some(504), "silent: {is_silent}; {}", poll.text());
    }
}

#[test]
fn o5_nobody_is_told_that_a_message_did_not_come_of_which_a_second_post_is_withdrawn() {
    let fleet = fleet(2);
    let session = open(&fleet, NEW);
    fleet.nodes[1].is_unheard.store(true, Ordering::SeqCst);
    let connection = relay(&find(&fleet, 1), &initialized());
    fleet.settle();
    assert_eq!(serve(&session), ["notifications/initialized"]);
    // Its owner takes nothing more.
    fleet.nodes[0].fails.store(true, Ordering::SeqCst);
    pass(&fleet, LOST_MS + 500);
    fleet.nodes[1].is_unheard.store(false, Ordering::SeqCst);
    pass(&fleet, 3 * LOST_MS);
    let poll = connection.poll(1 << 10);
    assert_eq!(poll.head.map(|head| head.status), Some(504), "{}", poll.text());
}

#[test]
fn a_message_that_the_store_never_takes_ends_no_session() {
    let fleet = fleet(2);
    let session = open(&fleet, NEW);
    let there = find(&fleet, 1);
    fleet.nodes[1].refuses.store(true, Ordering::SeqCst);
    let connections = [relay(&there, &tool_call(1)), relay(&there, &initialized()), relay_delete(&there)];
    pass(&fleet, LOST_MS + 250);
    for connection in &connections {
        let answered = read_now(connection);
        assert_eq!((answered.status, answered.end), (Some(503), Some(CloseReason::Complete)), "no 404: it goes on");
    }
    assert!(!session.has_ended());
    assert_nothing_begins(&fleet, &session);
}

#[test]
fn a_delete_whose_owner_does_not_end_the_session_fails_in_time() {
    for is_taken in [true, false] {
        let fleet = fleet(2);
        let session = open(&fleet, NEW);
        fleet.nodes[0].is_deaf.store(!is_taken, Ordering::SeqCst);
        let connection = relay_delete(&find(&fleet, 1));
        fleet.settle();
        let posted = session.take_posted();
        assert_eq!(posted.len(), usize::from(is_taken));
        pass(&fleet, LOST_MS + 250);
        assert_eq!(read_now(&connection).status, Some(503));
        assert!(!session.has_ended());
        drop(posted);
        assert_nothing_begins(&fleet, &session);
    }
}

#[test]
fn a_delete_that_a_host_takes_for_a_message_did_not_end_the_session() {
    let fleet = fleet(2);
    let session = open(&fleet, NEW);
    let connection = relay_delete(&find(&fleet, 1));
    fleet.settle();
    session.take_posted().iter().for_each(|posted| posted.done());
    pass(&fleet, 500);
    assert_eq!((read_now(&connection).status, session.has_ended()), (Some(503), false));
}

#[test]
fn a_session_that_ends_leaves_no_request_without_an_end() {
    for is_released in [false, true] {
        let fleet = fleet(2);
        let session = open(&fleet, NEW);
        let connection = relay(&find(&fleet, 1), &tool_call(1));
        fleet.settle();
        let posted = session.take_posted();
        read(&fleet, &connection);
        if is_released {
            session.release();
        } else {
            session.end();
        }
        pass(&fleet, 1_500);
        let answered = read(&fleet, &connection);
        assert_eq!(only_event(&answered), not_begun(1), "released: {is_released}");
        assert_eq!(answered.text.contains("server is closing"), is_released, "its owner says it: {}", answered.text);
        assert!(!posted[0].begin(&posted[0].admit(&Terms::default()).unwrap_or_else(|| admission(&fleet))));
    }
}

/// Any admission.
fn admission(fleet: &Fleet) -> tailrope_core::exchange::Admission {
    let session = fleet.benches[1].session("other", NEW);
    let relayed = relayed(RelayedMethod::Delete, &Value::Null);
    let head = relayed.head("other");
    let request = tailrope_core::exchange::Request { head, ..Default::default() };
    session.admit(&request, &Terms::default()).unwrap()
}

#[test]
fn o10_taking_stock_spares_what_has_still_to_begin() {
    let fleet = fleet(2);
    let session = open(&fleet, NEW);
    let connection = relay(&find(&fleet, 1), &tool_call(1));
    fleet.settle();
    let posted = session.take_posted();
    // The store was set back, or may have been.
    fleet.disturb();
    pass(&fleet, 500);
    assert!(posted[0].begin(&posted[0].admit(&Terms::default()).unwrap()));
    respond(&session, 1).unwrap();
    assert_eq!(only_event(&read(&fleet, &connection)), json!({"event": 1, "is": {"result": 1}}));
}

#[test]
fn o10_stock_is_not_taken_while_messages_are() {
    let fleet = fleet(2);
    let session = open(&fleet, NEW);
    fleet.nodes[0].holds_takes.store(true, Ordering::SeqCst);
    let connection = relay(&find(&fleet, 1), &tool_call(1));
    fleet.settle();
    fleet.disturb();
    pass(&fleet, 500);
    fleet.nodes[0].answer_takes();
    assert_eq!(serve(&session), ["tools/call 1"]);
    fleet.settle();
    respond(&session, 1).unwrap();
    assert_eq!(only_event(&read(&fleet, &connection)), json!({"event": 1, "is": {"result": 1}}));
}

#[test]
fn o21_a_hint_that_comes_while_it_is_asked_what_waits_is_not_lost() {
    let fleet = fleet(2);
    let (session, view) = (open(&fleet, NEW), find(&fleet, 1));
    fleet.nodes[0].holds_takes.store(true, Ordering::SeqCst);
    // Nothing waits yet, and nobody has said so.
    fleet.disturb();
    let connection = relay(&view, &tool_call(1));
    fleet.settle();
    assert_eq!(serve(&session), [""; 0]);
    fleet.nodes[0].answer_takes();
    assert_eq!(serve(&session), ["tools/call 1"], "O21: it waits for no other hint, and for no time");
    drop(connection);
}

#[test]
fn o4_a_take_without_an_answer_is_asked_again_and_begins_nothing_twice() {
    let fleet = fleet(2);
    let session = open(&fleet, NEW);
    fleet.nodes[0].holds_takes.store(true, Ordering::SeqCst);
    relay(&find(&fleet, 1), &initialized());
    fleet.settle();
    // As long as a store may take.
    pass(&fleet, 30_000);
    fleet.nodes[0].holds_takes.store(false, Ordering::SeqCst);
    pass(&fleet, 1_000);
    assert_eq!(serve(&session), ["notifications/initialized"]);
    fleet.nodes[0].answer_takes();
    pass(&fleet, 1_000);
    assert_eq!(serve(&session), [""; 0], "its first answer comes late");
}

#[test]
fn o8_what_is_relayed_is_a_sign_of_the_client() {
    let fleet = fleet(2);
    let session = open(&fleet, NEW);
    let idle_ms = session.idle_in_ms().unwrap();
    pass(&fleet, 10_000);
    assert_eq!(session.idle_in_ms(), Some(idle_ms - 10_000));
    relay(&find(&fleet, 1), &initialized());
    fleet.settle();
    assert_eq!(session.idle_in_ms(), Some(idle_ms), "before the host has looked at it");
}

#[test]
fn o1_an_owner_that_was_replaced_takes_nothing() {
    let fleet = fleet(2);
    let session = open(&fleet, NEW);
    fleet.nodes[0].is_deaf.store(true, Ordering::SeqCst);
    relay(&find(&fleet, 1), &initialized());
    fleet.take_over(1, "s");
    pass(&fleet, LOOK_MS);
    assert!(session.has_ended(), "its look tells it");
    assert_eq!(session.take_posted().len(), 0);
}

#[test]
fn o1_every_owner_draws_an_epoch_that_nobody_else_draws() {
    // As after a failover that lost a takeover: two take the session over from the same owner.
    let epochs: Vec<_> = (0..2)
        .flat_map(|_| {
            let fleet = fleet(2);
            let session = open(&fleet, NEW);
            let connection = relay(&find(&fleet, 1), &tool_call(1));
            fleet.settle();
            serve(&session);
            let first = fleet.epoch("s");
            fleet.nodes[0].is_deaf.store(true, Ordering::SeqCst);
            fleet.lose(0);
            assert_eq!(only_event(&read(&fleet, &connection)), not_begun(1));
            [first, fleet.epoch("s")]
        })
        .collect();
    assert_eq!(epochs.iter().map(|epoch| epoch.number).collect::<Vec<_>>(), [1, 2, 1, 2]);
    assert_ne!(epochs[0].salt, epochs[2].salt, "of two that begin a session");
    assert_ne!(epochs[1].salt, epochs[3].salt, "of two that take it over");
}

#[test]
fn f44_a_process_that_ends_says_so_to_those_whose_request_has_not_begun() {
    let fleet = fleet(2);
    let session = open(&fleet, NEW);
    let there = find(&fleet, 1);
    fleet.nodes[0].is_deaf.store(true, Ordering::SeqCst);
    fleet.nodes[1].is_silent.store(true, Ordering::SeqCst);
    let connection = relay(&there, &tool_call(1));
    fleet.benches[1].engine.close();
    // There was no time to learn from the store whether it is taken back.
    assert_eq!(read_now(&connection).status, Some(504));
    assert_nothing_begins(&fleet, &session);
}
