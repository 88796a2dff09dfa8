//! Alice's session at the first process of a fleet, requests for it at others, and a host that takes what is relayed.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tailrope_core::engine::{Connection, NoWake, SessionHandle};
use tailrope_core::exchange::{Action, Admission, Relayed, RelayedMethod, Request, Requester, Terms};
use tailrope_core::protocol::{Dialect, Head, Operation, Refusal, Revision, jsonrpc};

use crate::kit::common::{Answered, Bench, read_now};
use crate::kit::fleet::Fleet;

pub(crate) const ALICE: Requester<'static> =
    Requester { named: Some("alice"), user_json: None, log_user: None, credentials: &[] };
pub(crate) const BOB: Requester<'static> =
    Requester { named: Some("bob"), user_json: None, log_user: None, credentials: &[] };

fn open_at(bench: &Bench, revision: Revision, dialect: &'static Dialect) -> SessionHandle {
    let principal = ALICE.principal().unwrap();
    let opened = bench.engine.open_session("s", principal.as_ref(), dialect, Arc::new(NoWake), 0);
    let session = opened.expect("it is the first");
    session.assume_revision(revision);
    session
}

pub(crate) fn open_as(fleet: &Fleet, revision: Revision, dialect: &'static Dialect) -> SessionHandle {
    open_at(&fleet.benches[0], revision, dialect)
}

/// The session in a process by itself.
pub(crate) fn open_in(bench: &Bench, revision: Revision) -> SessionHandle {
    let session = open_at(bench, revision, &Dialect::MCP_PYTHON_2);
    session.accept_posted();
    session
}

/// The session, whose host takes what is relayed.
pub(crate) fn open(fleet: &Fleet, revision: Revision) -> SessionHandle {
    let session = open_as(fleet, revision, &Dialect::MCP_PYTHON_2);
    session.accept_posted();
    session
}

/// What a store knows a user as.
pub(crate) fn identity(requester: Requester<'_>) -> Option<Box<str>> {
    requester.principal().unwrap().map(|principal| principal.identity().into())
}

/// The session as another process finds it.
pub(crate) fn find_as(fleet: &Fleet, index: usize, requester: Requester<'_>) -> Option<SessionHandle> {
    find_with(fleet, index, "s", requester, &Dialect::MCP_PYTHON_2)
}

pub(crate) fn find_speaking(fleet: &Fleet, index: usize, dialect: &'static Dialect) -> SessionHandle {
    find_with(fleet, index, "s", ALICE, dialect).expect("it is alice's")
}

pub(crate) fn find_named(fleet: &Fleet, index: usize, id: &str) -> SessionHandle {
    find_with(fleet, index, id, ALICE, &Dialect::MCP_PYTHON_2).expect("it is alice's")
}

fn find_with(
    fleet: &Fleet,
    index: usize,
    id: &str,
    requester: Requester<'_>,
    dialect: &'static Dialect,
) -> Option<SessionHandle> {
    let principal = requester.principal().unwrap();
    let engine = &fleet.benches[index].engine;
    let found = engine.look_up_session(id, principal.as_ref(), None, dialect, Arc::new(NoWake), 0).unwrap();
    found.take().expect("the store answers at once").expect("the store works")
}

pub(crate) fn find(fleet: &Fleet, index: usize) -> SessionHandle {
    find_as(fleet, index, ALICE).expect("it is alice's")
}

fn request<'a>(session: &'a SessionHandle, method: &'a str, body: &'a [u8]) -> Request<'a> {
    let head = Head {
        method,
        accept: Some("application/json, text/event-stream"),
        content_type: Some("application/json"),
        protocol_version: Some("2025-11-25"),
        session_id: Some(session.id()),
        last_event_id: None,
    };
    Request { head, requester: ALICE, body, ..Request::default() }
}

const HEADERS: [(&str, &str); 3] =
    [("Accept", "application/json, text/event-stream"), ("User-Agent", "a client"), ("Authorization", "Bearer secret")];

/// A POST of this body, as the session took it.
pub(crate) fn admitted(body: &str) -> Admission {
    let read = jsonrpc::read(body.as_bytes()).expect("it is a message");
    Admission::new(Operation::Post(read), &Head::default(), body.as_bytes())
}

/// The client gives a sign.
pub(crate) fn sign(session: &SessionHandle) {
    session.received(&admitted(r#"{"jsonrpc":"2.0","method":"notifications/message"}"#));
}

pub(crate) fn relayed(method: RelayedMethod, body: &Value) -> Relayed {
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    Relayed::new(method, body, HEADERS, &[], Some(r#"{"client_id":"c"}"#))
}

pub(crate) fn try_relay(session: &SessionHandle, body: &Value) -> Result<Connection, Refusal> {
    relay_by(session, RelayedMethod::Post, body)
}

/// As [`relay`], with an answer in JSON.
pub(crate) fn relay_json(session: &SessionHandle, body: &Value) -> Connection {
    let relayed = relayed(RelayedMethod::Post, body);
    let admission =
        session.admit(&request(session, "POST", relayed.body()), &Terms::default()).expect("it is admitted");
    session.relay_json(&admission, relayed.clone(), Arc::new(NoWake), 0).expect("the session is elsewhere")
}

pub(crate) fn relay_by(session: &SessionHandle, method: RelayedMethod, body: &Value) -> Result<Connection, Refusal> {
    let relayed = relayed(method, body);
    let admission = session.admit(&request(session, method.as_str(), relayed.body()), &Terms::default())?;
    session.relay(&admission, relayed.clone(), Arc::new(NoWake), 0)
}

pub(crate) fn relay(session: &SessionHandle, body: &Value) -> Connection {
    relay_by(session, RelayedMethod::Post, body).expect("it is admitted")
}

pub(crate) fn relay_delete(session: &SessionHandle) -> Connection {
    relay_by(session, RelayedMethod::Delete, &Value::Null).expect("it is admitted")
}

pub(crate) fn tool_call(id: i64) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "t"}})
}

pub(crate) fn initialized() -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/initialized"})
}

pub(crate) fn cancellation(id: i64) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})
}

/// The host takes what was relayed, and says what it has dispatched.
pub(crate) fn serve(session: &SessionHandle) -> Vec<String> {
    let mut dispatched = Vec::new();
    // While it begins some, more may come.
    for posted in std::iter::from_fn(|| Some(session.take_posted()).filter(|posted| !posted.is_empty())).flatten() {
        let Some(admission) = posted.admit(&Terms::default()) else { continue };
        match admission.action() {
            Action::Call if posted.begin(&admission) => dispatched.push(methods(&admission)),
            Action::Call => {}
            Action::Delete => {
                dispatched.push("DELETE".to_owned());
                session.delete();
            }
            _ => {
                session.received(&admission);
                if admission.rewritten().is_none_or(|body| !body.is_empty()) {
                    dispatched.push(methods(&admission));
                }
                session.dispatched(&admission);
                posted.done();
            }
        }
    }
    dispatched
}

fn methods(admission: &Admission) -> String {
    let names = admission.envelopes().iter().map(|envelope| {
        let id = envelope.id.as_ref().map(|id| format!(" {}", id.to_json())).unwrap_or_default();
        format!("{}{id}", envelope.method.as_deref().unwrap_or("answer"))
    });
    names.collect::<Vec<_>>().join(", ")
}

/// What a connection has after everything that is under way, and the time that first bytes may wait.
pub(crate) fn read(fleet: &Fleet, connection: &Connection) -> Answered {
    fleet.advance(20);
    read_now(connection)
}

/// Time passes, as the hosts of the fleet let it.
pub(crate) fn pass(fleet: &Fleet, ms: u64) {
    for _ in 0..ms / 250 {
        fleet.advance(250);
    }
}

/// What is left of the session and of its logs here.
pub(crate) fn held(fleet: &Fleet, index: usize) -> (u64, u64) {
    let stats = fleet.benches[index].engine.stats();
    (stats.sessions, stats.connections)
}
