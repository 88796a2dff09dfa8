//! What is kept with a session's record of what its client told for the rest of it, so that another process can go on with it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use serde_json::{Value, json};
use tailrope_core::Ms;
use tailrope_core::engine::{Connection, NoWake, Options, OutgoingMessage, SessionHandle};
use tailrope_core::exchange::Action;
use tailrope_core::protocol::{Dialect, Refusal};
use tailrope_core::session::{Handshake, MAX_HANDSHAKE_BYTES};
use tailrope_core::store::contract::Caller;
use tailrope_core::store::{EventStore, MemoryStore, session_name};

use crate::kit::adopting::admit;
use crate::kit::common::{Bench, id};
use crate::kit::fleet::Fleet;
use crate::kit::relaying::{ALICE, find, identity, initialized, read, relay, serve, tool_call};

fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}})
}

fn level(id: i64) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "logging/setLevel", "params": {"level": "debug"}})
}

fn subscribe(id: i64, uri: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "resources/subscribe", "params": {"uri": uri}})
}

fn unsubscribe(id: i64, uri: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "resources/unsubscribe", "params": {"uri": uri}})
}

fn open(bench: &Bench) -> SessionHandle {
    let principal = ALICE.principal().unwrap();
    let dialect = &Dialect::MCP_PYTHON_2;
    let session = bench.engine.open_session("s", principal.as_ref(), dialect, Arc::new(NoWake), 0).expect("it is new");
    session.accept_posted();
    session
}

/// A POST to the process that has the session. Its host gives it to the handlers.
fn post(session: &SessionHandle, body: &Value, json_response: bool) -> Result<Option<Connection>, Refusal> {
    let admission = admit(session, body)?;
    if admission.action() == Action::Call {
        return session.open(&admission, json_response, Arc::new(NoWake), 0).map(Some);
    }
    session.received(&admission);
    session.dispatched(&admission);
    Ok(None)
}

fn answer(session: &SessionHandle, number: i64) {
    let result = json!({"protocolVersion": "2025-11-25", "capabilities": {}});
    let answer = json!({"jsonrpc": "2.0", "id": number, "result": result}).to_string();
    session.send(OutgoingMessage::response(&id(number), answer.as_bytes())).expect("it is taken");
}

fn call(session: &SessionHandle, body: &Value) {
    let connection = post(session, body, false).expect("it is admitted");
    answer(session, body["id"].as_i64().expect("it is a request"));
    drop(connection);
}

fn note(store: &dyn EventStore) -> Bytes {
    let known = Caller::new(store, Ms(0)).session(&session_name("s"), identity(ALICE).as_deref());
    known.expect("it is known").note
}

fn replay(store: &dyn EventStore) -> Vec<Value> {
    let handshake = Handshake::decode(&note(store)).expect("the engine wrote it");
    handshake.replay().iter().map(|text| serde_json::from_slice(text).expect("it is JSON")).collect()
}

#[test]
fn what_a_client_told_for_the_rest_of_its_session_is_kept_with_the_record() {
    for json_response in [false, true] {
        let fleet = Fleet::new(1);
        let session = open(&fleet.benches[0]);
        let connection = post(&session, &initialize(), json_response).expect("it is admitted");
        answer(&session, 0);
        drop(connection);
        let store = &*fleet.nodes[0];
        assert_eq!(replay(store), [initialize()], "with the record's first version");
        post(&session, &initialized(), false).expect("it is admitted");
        assert_eq!(replay(store), [initialize(), initialized()]);
        for body in [level(1), subscribe(2, "a"), subscribe(3, "b"), unsubscribe(4, "a"), tool_call(5), level(6)] {
            call(&session, &body);
        }
        assert_eq!(replay(store), [initialize(), initialized(), level(6), subscribe(3, "b")]);
        session.set_retry_ms(7);
        assert_eq!(replay(store).len(), 4, "another change of the record leaves it as it is");
    }
}

#[test]
fn what_is_relayed_counts_when_its_owner_begins_it_and_what_is_refused_does_not() {
    let fleet = Fleet::new(2);
    let session = open(&fleet.benches[0]);
    call(&session, &initialize());
    let elsewhere = find(&fleet, 1);
    let answers = [initialized(), level(1), subscribe(2, "a")].map(|body| relay(&elsewhere, &body));
    fleet.settle();
    let store = &*fleet.nodes[1];
    assert_eq!(replay(store), [initialize()], "its owner has not taken it");
    assert_eq!(serve(&session), ["notifications/initialized", "logging/setLevel 1", "resources/subscribe 2"]);
    let told = [initialize(), initialized(), level(1), subscribe(2, "a")];
    assert_eq!(replay(store), told);
    // Requests with these ids are in flight.
    assert_eq!(post(&session, &level(2), false).err().map(|refusal| refusal.status), Some(400));
    let again = relay(&elsewhere, &unsubscribe(1, "a"));
    fleet.settle();
    assert_eq!(serve(&session), [""; 0]);
    assert!(read(&fleet, &again).text.contains("error"), "it is refused");
    assert_eq!(replay(store), told);
    drop(answers);
}

#[test]
fn a_store_that_goes_with_its_process_is_given_nothing() {
    let memory = Arc::new(MemoryStore::new(Options::default().limits));
    let bench = Bench::new(Options { store: Some(Arc::clone(&memory) as _), ..Options::default() });
    let session = open(&bench);
    call(&session, &initialize());
    post(&session, &initialized(), false).expect("it is admitted");
    assert_eq!(note(&*memory), Bytes::new());
}

#[test]
fn i11_nothing_is_kept_of_a_client_that_tells_more_than_is_kept() {
    let fleet = Fleet::new(1);
    let session = open(&fleet.benches[0]);
    call(&session, &initialize());
    call(&session, &subscribe(1, &"x".repeat(MAX_HANDSHAKE_BYTES / 2)));
    let store = &*fleet.nodes[0];
    assert_eq!(replay(store).len(), 2);
    call(&session, &subscribe(2, &"y".repeat(MAX_HANDSHAKE_BYTES / 2)));
    assert_eq!(note(store), Bytes::new(), "what heard only some of it would not be the same");
    call(&session, &unsubscribe(3, "x"));
    post(&session, &initialized(), false).expect("it is admitted");
    assert_eq!(note(store), Bytes::new());
}

#[test]
fn what_says_the_same_again_is_not_written_again() {
    let fleet = Fleet::new(1);
    let session = open(&fleet.benches[0]);
    call(&session, &initialize());
    post(&session, &initialized(), false).expect("it is admitted");
    call(&session, &subscribe(1, "a"));
    let before = fleet.nodes[0].holds.load(Ordering::SeqCst);
    post(&session, &initialized(), false).expect("it is admitted");
    for body in [subscribe(2, "a"), unsubscribe(3, "b"), tool_call(4)] {
        call(&session, &body);
    }
    assert_eq!(fleet.nodes[0].holds.load(Ordering::SeqCst), before);
}
