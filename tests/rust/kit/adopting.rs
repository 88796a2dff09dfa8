//! A session that its client has opened at the first process of a fleet, and hosts that adopt it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tailrope_core::engine::{Adopted, Connection, NoWake, OutgoingMessage, Sent, SessionHandle, Wake};
use tailrope_core::exchange::{Action, Admission, Request, Terms};
use tailrope_core::protocol::{Dialect, Head, Refusal, RequestId, Revision};

use crate::kit::common::id as number;
use crate::kit::fleet::Fleet;
use crate::kit::relaying::{ALICE, find_named, initialized, serve};

pub(crate) fn initialize(revision: Revision) -> Value {
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": revision.as_str()}})
}

/// A POST comes to the process that has the session.
pub(crate) fn admit(session: &SessionHandle, body: &Value) -> Result<Admission, Refusal> {
    let body = body.to_string();
    let head = Head {
        method: "POST",
        accept: Some("application/json, text/event-stream"),
        content_type: Some("application/json"),
        session_id: Some(session.id()),
        ..Head::default()
    };
    session.admit(&Request { head, requester: ALICE, body: body.as_bytes(), ..Request::default() }, &Terms::default())
}

/// A POST to the process that has the session. Its host gives it to the handlers.
pub(crate) fn post(session: &SessionHandle, body: &Value) -> Result<Option<Connection>, Refusal> {
    let admission = admit(session, body)?;
    if admission.action() == Action::Call {
        return session.open(&admission, false, Arc::new(NoWake), 0).map(Some);
    }
    session.received(&admission);
    Ok(None)
}

/// A server object answers an `initialize`.
pub(crate) fn welcome(session: &SessionHandle, request: &RequestId, revision: Revision) -> Sent {
    let (id, revision) = (request.to_json(), revision.as_str());
    let result = format!(r#"{{"protocolVersion":"{revision}","capabilities":{{}}}}"#);
    let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
    session.send(OutgoingMessage::response(request, answer.as_bytes())).expect("it is taken")
}

/// Alice's session at the first process, as its client has opened it.
pub(crate) fn begin(fleet: &Fleet, revision: Revision) -> SessionHandle {
    begin_as(fleet, "s", revision)
}

pub(crate) fn begin_as(fleet: &Fleet, id: &str, revision: Revision) -> SessionHandle {
    let principal = ALICE.principal().unwrap();
    let (engine, dialect) = (&fleet.benches[0].engine, &Dialect::MCP_PYTHON_2);
    let session = engine.open_session(id, principal.as_ref(), dialect, Arc::new(NoWake), 0).expect("it is new");
    session.accept_posted();
    let connection = post(&session, &initialize(revision)).expect("it is admitted");
    welcome(&session, &number(0), revision);
    drop(connection);
    post(&session, &initialized()).expect("it is admitted");
    session
}

/// A host that adopts, and how often it was told to.
#[derive(Default)]
pub(crate) struct Adopter(AtomicU64);

impl Wake for Adopter {
    fn wake(&self, _: u64) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Adopter {
    pub(crate) fn told(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// The session as a process finds it whose host adopts it.
pub(crate) fn offer(fleet: &Fleet, index: usize) -> (SessionHandle, Arc<Adopter>) {
    offer_as(fleet, index, "s")
}

pub(crate) fn offer_as(fleet: &Fleet, index: usize, id: &str) -> (SessionHandle, Arc<Adopter>) {
    let (view, adopter) = (find_named(fleet, index, id), Arc::new(Adopter::default()));
    view.offer_adoption(Arc::clone(&adopter) as _, 0);
    (view, adopter)
}

pub(crate) fn take(view: &SessionHandle) -> Option<Adopted> {
    view.take_adopted(Arc::new(NoWake), 0)
}

/// What the server object is told first.
pub(crate) fn replay(adopted: &Adopted) -> Vec<Value> {
    adopted.replay().iter().map(|text| serde_json::from_slice(text).expect("it is JSON")).collect()
}

/// The host takes the session, builds its server object, and serves what waits.
pub(crate) fn go_on(view: &SessionHandle, revision: Revision) -> (SessionHandle, Vec<String>) {
    let adopted = take(view).expect("it is adopted");
    for message in replay(&adopted) {
        if let Some(request) = message["id"].as_i64() {
            assert_eq!(welcome(adopted.session(), &number(request), revision), Sent::Dropped);
        }
    }
    assert_eq!(serve(adopted.session()), [""; 0], "nothing before its host is ready");
    adopted.session().accept_posted();
    (adopted.session().clone(), serve(adopted.session()))
}
