//! Requests that come to a process which does not have their session: they are relayed to the one that has it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use tailrope_core::engine::Options;
use tailrope_core::exchange::{Principal, RelayedMethod, Terms};
use tailrope_core::protocol::{Dialect, RequestId};
use tailrope_core::store::{MAX_INBOX_MESSAGES, MAX_TAKEN};
use tailrope_core::stream::{CloseReason, Drain};

use crate::kit::adopting::admit;
use crate::kit::common::{Bell, NEW, OLD, ask, call, id, notify, read_now, respond, resume};
use crate::kit::fleet::Fleet;
use crate::kit::processes::events;
use crate::kit::relaying::{
    ALICE, cancellation, find, find_as, find_speaking, held, initialized, open, open_as, pass, read, relay,
    relay_delete, relay_json, serve, tool_call,
};

#[test]
fn a_call_runs_where_its_session_is_and_is_answered_where_it_came() {
    for revision in [NEW, OLD] {
        let fleet = Fleet::new(2);
        let session = open(&fleet, revision);
        let there = find(&fleet, 1);
        assert!(there.is_elsewhere() && !session.is_elsewhere());
        let connection = relay(&there, &tool_call(1));
        fleet.settle();
        assert_eq!(serve(&session), ["tools/call 1"]);
        notify(&session, 1, "a").unwrap();
        let begun = read(&fleet, &connection);
        assert_eq!((begun.status, begun.content_type), (Some(200), Some("text/event-stream")));
        assert_eq!(begun.frames()[0].get("priming").is_some(), revision == NEW, "I5: {}", begun.text);
        assert_eq!(events(&begun), [json!({"event": 1, "is": "a"})]);
        respond(&session, 1).unwrap();
        let rest = read(&fleet, &connection);
        assert_eq!(
            (events(&rest), rest.end),
            (vec![json!({"event": 2, "is": {"result": 1}})], Some(CloseReason::Complete))
        );
        drop((connection, there));
        assert_eq!((held(&fleet, 1), session.in_flight()), ((0, 0), 0), "I11");
    }
}

#[test]
fn a_host_is_woken_for_what_is_relayed_and_gets_what_handlers_may_read() {
    let fleet = Fleet::new(2);
    let bell = Arc::new(Bell::default());
    let principal = ALICE.principal().unwrap();
    let engine = &fleet.benches[0].engine;
    let session =
        engine.open_session("s", principal.as_ref(), &Dialect::MCP_PYTHON_2, Arc::clone(&bell) as _, 7).unwrap();
    session.accept_posted();
    session.assume_revision(NEW);
    let connection = relay(&find(&fleet, 1), &tool_call(1));
    let rung = bell.0.load(Ordering::SeqCst);
    fleet.settle();
    assert!(bell.0.load(Ordering::SeqCst) > rung);
    let [posted] = &session.take_posted()[..] else { panic!("one request was relayed") };
    let relayed = posted.relayed();
    assert_eq!(relayed.method(), RelayedMethod::Post);
    assert_eq!(serde_json::from_slice::<Value>(relayed.body()).unwrap(), tool_call(1));
    let accept = ("accept", "application/json, text/event-stream");
    assert_eq!(relayed.headers().collect::<Vec<_>>(), [accept, ("user-agent", "a client")]);
    assert_eq!(
        (relayed.auth(), relayed.principal()),
        (Some(r#"{"client_id":"c"}"#), principal.as_ref().map(Principal::identity))
    );
    assert!(session.take_posted().is_empty(), "it is told once");
    assert!(posted.begin(&posted.admit(&Terms::default()).unwrap()));
    assert!(!posted.begin(&posted.admit(&Terms::default()).unwrap()), "it begins once");
    respond(&session, 1).unwrap();
    assert_eq!(read(&fleet, &connection).end, Some(CloseReason::Complete));
}

#[test]
fn a_request_can_be_relayed_for_as_long_as_its_call_runs() {
    let fleet = Fleet::with(2, Options { owner_lost_ms: 2_000, ..Options::default() });
    let session = open(&fleet, NEW);
    let connection = relay(&find(&fleet, 1), &tool_call(1));
    fleet.settle();
    serve(&session);
    let mut got = read(&fleet, &connection);
    // Nothing comes of a handler for a while.
    pass(&fleet, 30_000);
    got.text.push_str(&read(&fleet, &connection).text);
    assert_eq!((events(&got), got.end), (vec![], None), "{}", got.text);
    respond(&session, 1).unwrap();
    assert_eq!(events(&read(&fleet, &connection)), [json!({"event": 1, "is": {"result": 1}})]);
}

#[test]
fn a_notification_is_accepted_once_it_is_stored_and_leaves_nothing() {
    let fleet = Fleet::new(2);
    let session = open(&fleet, NEW);
    let streams = fleet.usage().streams;
    let connection = relay(&find(&fleet, 1), &initialized());
    let answered = read_now(&connection);
    // As the Python SDK answers, whose session it is.
    let head = (Some(202), Some("application/json"));
    assert_eq!(((answered.status, answered.content_type), answered.text.as_str()), (head, ""));
    assert_eq!(answered.end, Some(CloseReason::Complete));
    assert_eq!(fleet.usage().streams, streams + 1);
    fleet.settle();
    assert_eq!(serve(&session), ["notifications/initialized"]);
    assert_eq!(fleet.usage().streams, streams, "nothing of it stays");
    drop(connection);
    assert_eq!(held(&fleet, 1), (0, 0), "I11");
}

#[test]
fn i11_what_a_busy_host_does_not_take_waits_in_the_inbox_which_has_a_bound() {
    let fleet = Fleet::new(2);
    let session = open(&fleet, NEW);
    let there = find(&fleet, 1);
    let post = |_| {
        let answered = read_now(&relay(&there, &initialized()));
        fleet.settle();
        (answered.status, answered.text)
    };
    let answers: Vec<_> = (0..2_000).map(post).collect();
    let accepted = answers.iter().filter(|(status, _)| *status == Some(202)).count();
    assert_eq!(accepted, MAX_INBOX_MESSAGES + MAX_TAKEN);
    assert!(answers[accepted..].iter().all(|(status, text)| *status == Some(503) && text.contains("too much waits")));
    // All that was accepted comes, in time.
    assert_eq!(serve(&session).len(), accepted);
    assert_eq!(read_now(&relay(&there, &initialized())).status, Some(202), "there is room again");
}

#[test]
fn messages_begin_in_the_order_in_which_they_came() {
    let fleet = Fleet::new(3);
    let session = open(&fleet, NEW);
    let (one, two) = (find(&fleet, 1), find(&fleet, 2));
    // More than a store tells at once, and one hint for all.
    fleet.nodes[0].is_deaf.store(true, Ordering::SeqCst);
    let connections: Vec<_> = (0..150).map(|at| relay(if at % 2 == 0 { &one } else { &two }, &tool_call(at))).collect();
    fleet.settle();
    fleet.nodes[0].is_deaf.store(false, Ordering::SeqCst);
    fleet.disturb();
    let want: Vec<String> = (0..150).map(|at| format!("tools/call {at}")).collect();
    assert_eq!(serve(&session), want);
    drop(connections);
}

#[test]
fn an_answer_to_a_question_reaches_the_process_that_asked() {
    let fleet = Fleet::new(3);
    let session = open(&fleet, NEW);
    let connection = relay(&find(&fleet, 1), &tool_call(1));
    fleet.settle();
    serve(&session);
    ask(&session, 1, "q").unwrap();
    assert_eq!(events(&read(&fleet, &connection)), [json!({"event": 1, "is": "roots/list"})]);
    let answer = json!({"jsonrpc": "2.0", "id": "q", "result": {"roots": []}});
    assert_eq!(read_now(&relay(&find(&fleet, 2), &answer)).status, Some(202));
    fleet.settle();
    assert_eq!(serve(&session), [r#"answer "q""#]);
    respond(&session, 1).unwrap();
    assert_eq!(read(&fleet, &connection).end, Some(CloseReason::Complete));
}

#[test]
fn a_cancellation_ends_a_call_that_came_elsewhere() {
    let fleet = Fleet::new(3);
    let session = open_as(&fleet, NEW, &Dialect::MCP_PYTHON_1);
    session.accept_posted();
    let connection = relay(&find(&fleet, 1), &tool_call(1));
    fleet.settle();
    serve(&session);
    assert_eq!(read_now(&relay(&find(&fleet, 2), &cancellation(1))).status, Some(202));
    fleet.settle();
    assert_eq!(serve(&session), ["notifications/cancelled"]);
    let answered = read(&fleet, &connection);
    assert_eq!(events(&answered), [json!({"tombstone": {"error": -32800, "id": 1}})]);
    assert_eq!(answered.end, Some(CloseReason::Complete));
}

#[test]
fn o22_a_cancellation_that_overtakes_its_request_is_remembered_for_a_while() {
    for (waits_ms, is_cancelled) in [(29_000, true), (30_000, false)] {
        let fleet = Fleet::new(3);
        let session = open(&fleet, NEW);
        relay(&find(&fleet, 2), &cancellation(1));
        fleet.settle();
        serve(&session);
        pass(&fleet, waits_ms);
        let connection = relay(&find(&fleet, 1), &tool_call(1));
        fleet.settle();
        assert_eq!(serve(&session).is_empty(), is_cancelled, "after {waits_ms} ms");
        let tombstone = json!({"tombstone": {"error": -32800, "id": 1}});
        assert_eq!(events(&read(&fleet, &connection)), if is_cancelled { vec![tombstone] } else { vec![] });
        if is_cancelled {
            relay(&find(&fleet, 1), &tool_call(1));
            fleet.settle();
            assert_eq!(serve(&session), ["tools/call 1"], "it counts once");
        }
    }
}

#[test]
fn a_delete_is_answered_when_the_session_is_gone() {
    let fleet = Fleet::new(2);
    let session = open(&fleet, NEW);
    let connection = relay_delete(&find(&fleet, 1));
    let before = read(&fleet, &connection);
    assert_eq!((before.status, before.end), (None, None));
    assert_eq!(serve(&session), ["DELETE"]);
    let answered = read(&fleet, &connection);
    assert_eq!((answered.status, answered.content_type, answered.text.as_str()), (Some(200), None, ""));
    assert_eq!(answered.end, Some(CloseReason::Complete));
    drop(connection);
    assert!(find_as(&fleet, 1, ALICE).is_none());
    assert_eq!((held(&fleet, 0), held(&fleet, 1), fleet.usage().streams), ((0, 0), (0, 0), 0));
}

/// Also where its host, which goes away, ends the session once more.
#[test]
fn o17_a_delete_in_a_drain_leaves_the_session_to_nobody() {
    for is_relayed in [true, false] {
        let fleet = Fleet::new(2);
        let session = open(&fleet, NEW);
        let running = call(&session, 1);
        fleet.settle();
        fleet.benches[0].engine.drain(Drain::after(100));
        assert!(session.is_handing_over());
        if is_relayed {
            let connection = relay_delete(&find(&fleet, 1));
            fleet.settle();
            assert_eq!(serve(&session), ["DELETE"]);
            assert_eq!(read(&fleet, &connection).status, Some(200));
        } else {
            session.delete();
        }
        session.end();
        session.release();
        assert_eq!(admit(&session, &tool_call(2)).unwrap_err().status, 404);
        fleet.settle();
        drop(running);
        assert!(find_as(&fleet, 1, ALICE).is_none());
        assert_eq!((held(&fleet, 0), held(&fleet, 1), fleet.usage().streams), ((0, 0), (0, 0), 0));
    }
}

#[test]
fn a_delete_that_is_heard_of_late_is_looked_for() {
    let fleet = Fleet::new(2);
    let session = open(&fleet, NEW);
    let connection = relay_delete(&find(&fleet, 1));
    fleet.nodes[1].is_deaf.store(true, Ordering::SeqCst);
    fleet.settle();
    serve(&session);
    pass(&fleet, 500);
    assert_eq!(read_now(&connection).status, Some(200));
}

#[test]
fn a_client_of_a_relayed_call_goes_on_at_any_process() {
    let fleet = Fleet::new(3);
    let session = open(&fleet, NEW);
    let first = relay(&find(&fleet, 1), &tool_call(1));
    fleet.settle();
    serve(&session);
    notify(&session, 1, "a").unwrap();
    let cursor = read(&fleet, &first).last_id();
    drop(first);
    notify(&session, 1, "b").unwrap();
    let second = resume(&find(&fleet, 2), &cursor);
    let got = read(&fleet, &second);
    assert_eq!(events(&got), [json!({"event": 2, "is": "b"})], "I3, I12");
    let third = resume(&session, &got.last_id());
    respond(&session, 1).unwrap();
    assert_eq!(events(&read(&fleet, &third)), [json!({"event": 3, "is": {"result": 1}})]);
    assert_eq!(read(&fleet, &second).end, Some(CloseReason::Superseded), "I4");
}

#[test]
fn o9_the_owner_closes_the_connection_of_a_relayed_call() {
    let fleet = Fleet::new(3);
    let session = open(&fleet, NEW);
    let connection = relay(&find(&fleet, 1), &tool_call(1));
    fleet.settle();
    serve(&session);
    let mut got = read(&fleet, &connection);
    assert!(session.close_connection(&id(1), Some(7), Some(0)));
    let closed = read(&fleet, &connection);
    got.text.push_str(&closed.text);
    assert_eq!(closed.end, Some(CloseReason::Asked));
    assert!(got.text.contains("retry: 7\n"), "{}", got.text);
    // It is polled from now on.
    let poll = read(&fleet, &resume(&find(&fleet, 2), &got.last_id()));
    assert_eq!(poll.end, Some(CloseReason::Polled));
    respond(&session, 1).unwrap();
    let last = read(&fleet, &resume(&find(&fleet, 1), &poll.last_id()));
    assert_eq!(events(&last), [json!({"event": 1, "is": {"result": 1}})]);
}

#[test]
fn o3_a_client_may_come_back_before_its_call_has_begun() {
    let fleet = Fleet::new(3);
    let session = open(&fleet, NEW);
    let first = relay(&find(&fleet, 1), &tool_call(1));
    fleet.nodes[0].is_deaf.store(true, Ordering::SeqCst);
    let cursor = read(&fleet, &first).last_id();
    drop(first);
    let elsewhere = resume(&find(&fleet, 2), &cursor);
    let waiting = read(&fleet, &elsewhere);
    assert_eq!((events(&waiting), waiting.end), (vec![], None));
    // Where its session is, which has not heard of it.
    let here = resume(&session, &cursor);
    let mut got = read(&fleet, &here);
    assert_eq!((got.status, events(&got), got.end), (Some(200), vec![], None));
    assert_eq!(serve(&session), ["tools/call 1"], "whoever comes back tells of it");
    respond(&session, 1).unwrap();
    pass(&fleet, 500);
    got.text.push_str(&read(&fleet, &here).text);
    assert_eq!(events(&got), [json!({"event": 1, "is": {"result": 1}})]);
}

#[test]
fn i12_a_connection_that_is_lost_cancels_nothing() {
    let fleet = Fleet::new(2);
    let session = open(&fleet, NEW);
    for (number, has_begun) in [(1, false), (2, true)] {
        let connection = relay(&find(&fleet, 1), &tool_call(number));
        if has_begun {
            fleet.settle();
            serve(&session);
        }
        drop(connection);
        fleet.settle();
        let begun = serve(&session);
        assert_eq!(begun.len(), usize::from(!has_begun));
        assert_eq!(session.find_request(&id(number)), Some(id(number)));
        respond(&session, number).unwrap();
    }
    pass(&fleet, 11_000);
    assert_eq!((held(&fleet, 1), session.in_flight()), ((0, 0), 0), "I11");
}

#[test]
fn a_batch_is_relayed_as_one() {
    let fleet = Fleet::new(2);
    let session = open_as(&fleet, NEW, &Dialect::MCP_TYPESCRIPT_2);
    session.accept_posted();
    let there = find_speaking(&fleet, 1, &Dialect::MCP_TYPESCRIPT_2);
    let connection = relay(&there, &json!([tool_call(1), initialized(), tool_call(2)]));
    fleet.settle();
    assert_eq!(serve(&session), ["tools/call 1, notifications/initialized, tools/call 2"]);
    respond(&session, 2).unwrap();
    respond(&session, 1).unwrap();
    let want = [json!({"event": 1, "is": {"result": 2}}), json!({"event": 2, "is": {"result": 1}})];
    assert_eq!(events(&read(&fleet, &connection)), want);
}

#[test]
fn an_answer_in_json_is_gathered_from_the_stream() {
    for bodies in [tool_call(1), json!([tool_call(1), initialized(), tool_call(2)])] {
        let is_batch = bodies.is_array();
        let fleet = Fleet::new(2);
        let session = open_as(&fleet, NEW, &Dialect::MCP_TYPESCRIPT_2);
        session.accept_posted();
        let connection = relay_json(&find_speaking(&fleet, 1, &Dialect::MCP_TYPESCRIPT_2), &bodies);
        fleet.settle();
        serve(&session);
        // More than a page.
        for _ in 0..20 {
            notify(&session, 1, &"x".repeat(8 << 10)).unwrap();
        }
        let waiting = read(&fleet, &connection);
        assert_eq!((waiting.status, waiting.text.as_str(), waiting.end), (None, "", None));
        if is_batch {
            respond(&session, 2).unwrap();
            assert_eq!(read(&fleet, &connection).status, None);
        }
        respond(&session, 1).unwrap();
        let answered = read(&fleet, &connection);
        assert_eq!((answered.status, answered.content_type), (Some(200), Some("application/json")));
        let one = |id: i64| json!({"jsonrpc": "2.0", "id": id, "result": {}});
        let want = if is_batch { json!([one(1), one(2)]) } else { one(1) };
        assert_eq!(serde_json::from_str::<Value>(&answered.text).unwrap(), want);
        assert_eq!(answered.end, Some(CloseReason::Complete));
        drop(connection);
        assert_eq!(held(&fleet, 1), (0, 0), "I11");
    }
}

#[test]
fn an_answer_in_json_that_does_not_come_is_refused() {
    let owner_lost_ms = 2_000;
    for drains in [true, false] {
        let fleet = Fleet::with(2, Options { owner_lost_ms, ..Options::default() });
        let session = open(&fleet, NEW);
        fleet.nodes[0].is_deaf.store(!drains, Ordering::SeqCst);
        let connection = relay_json(&find(&fleet, 1), &tool_call(1));
        fleet.settle();
        assert_eq!(serve(&session).len(), usize::from(drains));
        if drains {
            fleet.benches[1].engine.drain(Drain::after(100));
        } else {
            pass(&fleet, owner_lost_ms + 500);
        }
        let answered = read(&fleet, &connection);
        // What runs must not be asked for again as if it did not.
        let status = if drains { 504 } else { 503 };
        assert_eq!((answered.status, answered.content_type), (Some(status), Some("application/json")));
        assert!(serde_json::from_str::<Value>(&answered.text).unwrap()["error"].is_object());
        assert_eq!(answered.end, Some(CloseReason::Complete));
    }
    let fleet = Fleet::new(2);
    let session = open(&fleet, NEW);
    let connection = relay_json(&find(&fleet, 1), &tool_call(1));
    fleet.settle();
    drop(session.take_posted());
    let answered = read(&fleet, &connection);
    assert_eq!((answered.status, answered.content_type), (Some(200), Some("application/json")));
    assert_eq!(serde_json::from_str::<Value>(&answered.text).unwrap()["id"], 1, "its error is its answer");
}

#[test]
fn f44_a_process_that_drains_relays_and_sends_its_clients_elsewhere() {
    let fleet = Fleet::new(3);
    let session = open(&fleet, NEW);
    let there = find(&fleet, 1);
    fleet.benches[1].engine.drain(Drain::after(100));
    let first = read(&fleet, &relay(&there, &tool_call(1)));
    assert_eq!(first.end, Some(CloseReason::Drain));
    assert_eq!(serve(&session), ["tools/call 1"]);
    let second = resume(&find(&fleet, 2), &first.last_id());
    respond(&session, 1).unwrap();
    assert_eq!(events(&read(&fleet, &second)), [json!({"event": 1, "is": {"result": 1}})]);
}

#[test]
fn a_session_that_is_here_by_now_relays_nothing() {
    let fleet = Fleet::new(1);
    let session = open(&fleet, NEW);
    let refused = crate::kit::relaying::try_relay(&session, &tool_call(1)).expect_err("it is here");
    assert_eq!((refused.status, refused.retry_after_s()), (503, Some(1)));
    assert_eq!(session.find_request(&RequestId::integer(1)), None);
}
