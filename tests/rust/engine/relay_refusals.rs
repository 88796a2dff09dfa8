//! Requests that are relayed and that an owner, its host or its inbox does not take.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use serde_json::json;
use tailrope_core::engine::Options;
use tailrope_core::exchange::{RelayedMethod, Terms};
use tailrope_core::protocol::{Dialect, Refusal, RequestId, StreamNonce};
use tailrope_core::store::{Attach, EventStore, MAX_INBOX_MESSAGES, Message, ReadLimit, session_name};
use tailrope_core::stream::{Chain, Drain, Seq};

use super::relay_faults::{LOST_MS, fleet, not_begun, only_event};
use crate::kit::common::{NEW, OLD, call, read_now, respond};
use crate::kit::fleet::{Fleet, nobody};
use crate::kit::relaying::{
    ALICE, BOB, find, find_as, held, identity, initialized, open, open_as, pass, read, relay, relay_delete, relayed,
    serve, tool_call,
};

#[test]
fn i7_a_session_of_another_user_is_not_there_for_who_relays() {
    let fleet = fleet(2);
    let session = open(&fleet, NEW);
    assert!(find_as(&fleet, 1, BOB).is_none());
    // Somebody who can write to the store says that he is alice.
    let body = relayed(RelayedMethod::Post, &tool_call(1)).from_principal(identity(BOB).as_deref()).encode();
    let nonce = forge(&fleet, &[RequestId::integer(1)], body, StreamNonce([7; 12]));
    fleet.settle();
    assert_eq!(serve(&session), [""; 0], "O19");
    assert!(end_of(&fleet, nonce).contains("Session not found"));
    assert_eq!(fleet.benches[0].engine.stats().requests_foreign, 1);
}

/// A message that no engine wrote.
fn forge(fleet: &Fleet, requests: &[RequestId], body: Bytes, nonce: StreamNonce) -> StreamNonce {
    let message = Message { about: RequestId::encode_all(requests).into(), body };
    let attach = Attach {
        stream: Some(nonce),
        principal: identity(ALICE),
        tag: Some(Chain::start(&nonce.0).tag()),
        message: Some(message),
        ..Attach::default()
    };
    fleet.post(1, &session_name("s"), &attach);
    nonce
}

/// The end of a log that is not in it.
fn end_of(fleet: &Fleet, nonce: StreamNonce) -> String {
    let limit = ReadLimit { up_to: Seq::MAX, events: 0, bytes: 0 };
    let key = tailrope_core::store::StreamKey { session: session_name("s"), nonce };
    match fleet.nodes[1].read(&key, 0, limit, &nobody()) {
        tailrope_core::store::Answer::Now(Ok(page)) => {
            String::from_utf8(page.tail.unwrap_or_default().to_vec()).expect("it is JSON")
        }
        other => panic!("the log is there: {other:?}"),
    }
}

#[test]
fn o22_what_cannot_be_read_gets_an_end() {
    let fleet = fleet(2);
    let session = open(&fleet, NEW);
    let good = relayed(RelayedMethod::Post, &tool_call(1)).from_principal(identity(ALICE).as_deref());
    let newer = [&[9], &good.encode()[1..]].concat();
    let lie = relayed(RelayedMethod::Post, &initialized()).from_principal(identity(ALICE).as_deref()).encode();
    let other = relayed(RelayedMethod::Post, &tool_call(2)).from_principal(identity(ALICE).as_deref()).encode();
    let bodies = [Bytes::from(newer), Bytes::new(), Bytes::from_static(b"\x01\x07"), lie, other];
    for (at, body) in (0..).zip(bodies) {
        let nonce = forge(&fleet, &[RequestId::integer(1)], body, StreamNonce([at; 12]));
        fleet.settle();
        assert_eq!(serve(&session).len(), usize::from(at == 3), "a notification in the place of a call");
        let end = end_of(&fleet, nonce);
        assert!(end.contains(r#""id":1,"error":{"code":-32603"#), "{end}");
    }
}

#[test]
fn o4_a_copy_that_comes_after_its_log_went_does_not_begin() {
    let fleet = fleet(2);
    let session = open(&fleet, NEW);
    let there = find(&fleet, 1);
    relay(&there, &initialized());
    fleet.settle();
    assert_eq!(serve(&session).len(), 1);
    let streams = fleet.usage().streams;
    let (name, post) = fleet.posts().pop().unwrap();
    fleet.post(1, &name, &post);
    assert_eq!(fleet.usage().streams, streams + 1, "its log was gone");
    fleet.settle();
    assert_eq!((serve(&session), fleet.usage().streams), (vec![], streams));
    // The same of a call, whose log retention took.
    let connection = relay(&there, &tool_call(1));
    fleet.settle();
    serve(&session);
    respond(&session, 1).unwrap();
    read(&fleet, &connection);
    let (name, post) = fleet.posts().pop().unwrap();
    pass(&fleet, 11 * 60 * 1_000);
    fleet.post(1, &name, &post);
    fleet.settle();
    assert_eq!(serve(&session), [""; 0]);
    assert!(end_of(&fleet, post.stream.unwrap()).contains("no longer available"));
}

#[test]
fn f08_an_id_in_flight_is_refused_without_harm_to_the_first() {
    let fleet = fleet(2);
    let session = open(&fleet, NEW);
    let there = find(&fleet, 1);
    let direct = call(&session, 1);
    let first = relay(&there, &tool_call(2));
    fleet.settle();
    serve(&session);
    // A proxy has sent them again.
    let copies = [1, 2].map(|number| relay(&there, &tool_call(number)));
    fleet.settle();
    assert_eq!(serve(&session), [""; 0]);
    for copy in &copies {
        let refused = only_event(&read(&fleet, copy));
        assert_eq!(refused["tombstone"], json!({"error": -32600, "id": null}), "O5: no error names a call that runs");
    }
    for (number, connection) in [(1, &direct), (2, &first)] {
        respond(&session, number).unwrap();
        assert_eq!(only_event(&read(&fleet, connection)), json!({"event": 1, "is": {"result": number}}));
    }
}

#[test]
fn i11_a_session_takes_only_so_many_requests() {
    let options = Options { owner_lost_ms: LOST_MS, max_requests_per_session: 1, ..Options::default() };
    let fleet = Fleet::with(2, options);
    let session = open(&fleet, NEW);
    let there = find(&fleet, 1);
    let (_first, second) = (relay(&there, &tool_call(1)), relay(&there, &tool_call(2)));
    fleet.settle();
    assert_eq!(serve(&session), ["tools/call 1"]);
    assert_eq!(only_event(&read(&fleet, &second)), not_begun(2));
}

/// Its client cannot be told to come back for the answer, so it asks again.
#[test]
fn f44_a_call_of_an_old_session_that_reaches_a_draining_owner_does_not_begin() {
    let fleet = fleet(2);
    let session = open(&fleet, OLD);
    let connection = relay(&find(&fleet, 1), &tool_call(1));
    fleet.settle();
    fleet.benches[0].engine.drain(Drain::after(100));
    assert_eq!((serve(&session), session.in_flight()), (vec![], 0));
    let answered = read(&fleet, &connection);
    assert_eq!(only_event(&answered), not_begun(1));
    assert!(answered.text.contains("the server is closing"), "{}", answered.text);
}

#[test]
fn a_host_that_takes_nothing_from_others_lets_nobody_wait() {
    let fleet = fleet(2);
    let session = open_as(&fleet, NEW, &Dialect::MCP_PYTHON_2);
    let there = find(&fleet, 1);
    let (one, delete) = (relay(&there, &tool_call(1)), relay_delete(&there));
    let answered = read(&fleet, &one);
    assert_eq!(only_event(&answered), not_begun(1));
    assert!(answered.text.contains("takes no requests from other processes"), "{}", answered.text);
    pass(&fleet, 250);
    assert_eq!(read_now(&delete).status, Some(503));
    assert_eq!((session.take_posted().len(), session.has_ended()), (0, false));
}

#[test]
fn what_a_host_refuses_or_forgets_gets_an_end() {
    let fleet = fleet(2);
    let session = open(&fleet, NEW);
    let there = find(&fleet, 1);
    let connections = [1, 2].map(|number| relay(&there, &tool_call(number)));
    fleet.settle();
    let mut posted = session.take_posted();
    drop(posted.pop());
    posted[0].refuse(&Refusal::new(400, -32602, "it is not so"));
    assert!(!posted[0].begin(&posted[0].admit(&Terms::default()).unwrap()), "it has its end");
    let [refused, forgotten] = connections.each_ref().map(|connection| read(&fleet, connection));
    assert_eq!(only_event(&refused), json!({"tombstone": {"error": -32602, "id": 1}}));
    assert!(refused.text.contains("it is not so"));
    assert_eq!(only_event(&forgotten), not_begun(2));
    assert_eq!(session.in_flight(), 0);
}

#[test]
fn what_is_not_admitted_gets_the_words_of_admission() {
    let fleet = fleet(2);
    let session = open_as(&fleet, NEW, &Dialect::MCP_TYPESCRIPT_2);
    session.accept_posted();
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}});
    let connection = relay(&find(&fleet, 1), &body);
    fleet.settle();
    assert_eq!(serve(&session), [""; 0], "one initialize is enough for it");
    let answered = read(&fleet, &connection);
    assert_eq!(only_event(&answered), json!({"tombstone": {"error": -32600, "id": 1}}));
}

#[test]
fn a_full_inbox_is_told_at_once() {
    let fleet = fleet(2);
    let session = open(&fleet, NEW);
    fleet.nodes[0].is_deaf.store(true, Ordering::SeqCst);
    let there = find(&fleet, 1);
    for _ in 0..MAX_INBOX_MESSAGES {
        assert_eq!(read_now(&relay(&there, &initialized())).status, Some(202));
    }
    fleet.settle();
    for body in [initialized(), tool_call(1)] {
        let connection = relay(&find(&fleet, 1), &body);
        let poll = connection.poll(1 << 10);
        let head = poll.head.unwrap();
        assert_eq!((head.status, head.retry_after_s(), head.is_refusal), (503, Some(1), true));
        assert!(poll.text().contains(r#""id":null"#), "O5: it names no request: {}", poll.text());
    }
    drop(there);
    assert_eq!(held(&fleet, 1), (0, 0));
    fleet.nodes[0].is_deaf.store(false, Ordering::SeqCst);
    relay(&find(&fleet, 1), &initialized());
    fleet.disturb();
    assert_eq!(serve(&session).len(), MAX_INBOX_MESSAGES);
}
