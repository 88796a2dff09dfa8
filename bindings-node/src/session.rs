//! One session.

use std::rc::Rc;

use bytes::Bytes;
use napi::bindgen_prelude::{Either, Either3, Env, Function};
use napi_derive::napi;
use tailrope_core::engine::{self, OutgoingKind, OutgoingMessage, Sent, SessionHandle};
use tailrope_core::exchange::{Action, Pause, Relayed, RelayedMethod, Request, Terms};
use tailrope_core::protocol::{self, Dialect};
use tailrope_core::store::{HostReplay, HostRequest};

use crate::admission::{Admission, JsBody, Refusal, Requester, body_bytes, head_of};
use crate::adopted::Offer;
use crate::connection::Connection;
use crate::convert::{JsRequestId, Result, internal, invalid, number, payload, request_id, spelled, to_js_error};
use crate::posted::Posted;
use crate::telemetry::{CallSpan, call_span};
use crate::waiters::Waiters;

/// The sender lets the event loop turn.
const YIELD: f64 = -1.0;

/// An open session.
#[napi]
pub struct Session {
    handle: SessionHandle,
    id: String,
    dialect: &'static Dialect,
    versions: Vec<String>,
    key: u32,
    waiters: Rc<Waiters>,
}

/// What travels of a request beside its body. Of `headers`, each name is followed by its value; which of them travel the core
/// says, and `more` names others. `auth_json` is what the SDK knows of the sender: credentials are removed from it. `dropped`
/// names what of it is no JSON.
#[napi(object, object_to_js = false)]
pub struct Travelling {
    pub method: String,
    pub headers: Vec<String>,
    pub more: Vec<String>,
    pub auth_json: Option<String>,
    pub dropped: Vec<String>,
}

impl Travelling {
    /// With the body.
    pub(crate) fn relayed(self, body: &[u8]) -> Result<Relayed> {
        let Self { method, headers, more, auth_json, dropped } = self;
        let Some(method) = RelayedMethod::parse(&method) else {
            return Err(invalid(format!("a {method} is not relayed")));
        };
        let pairs = headers.chunks_exact(2).map(|pair| (&*pair[0], &*pair[1]));
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        let body = Bytes::copy_from_slice(body);
        Ok(Relayed::new(method, body, pairs, &more, auth_json.as_deref()).without(dropped))
    }
}

/// The late outcome of a message.
#[napi(object, object_from_js = false)]
pub struct Outcome {
    pub number: f64,
    /// Why it was not stored; absent when it was.
    pub code: Option<&'static str>,
    pub message: Option<String>,
}

/// What the host's own store has to do. With a stream: store the payload, or the priming position
/// when there is none. Otherwise: replay after the id.
#[napi(object, object_from_js = false)]
pub struct HostOperation {
    pub number: f64,
    pub stream: Option<String>,
    pub payload: Option<String>,
    pub last_event_id: Option<String>,
}

/// A position of an event in the host's own store: its id, and its message unless it is a priming.
#[napi(object, object_to_js = false)]
pub struct Replayed {
    pub id: Option<String>,
    pub payload: Option<String>,
}

impl Session {
    pub(crate) fn new(
        handle: SessionHandle,
        id: String,
        dialect: &'static Dialect,
        versions: Vec<String>,
        key: u32,
        waiters: &Rc<Waiters>,
    ) -> Self {
        Self { handle, id, dialect, versions, key, waiters: Rc::clone(waiters) }
    }

    pub(crate) fn handle(&self) -> &SessionHandle {
        &self.handle
    }

    /// Has `with` examine a request on the session's terms.
    pub(crate) fn on_terms<T>(&self, json_response: bool, with: impl FnOnce(&Terms<'_>) -> T) -> T {
        let versions: Vec<&str> = self.versions.iter().map(String::as_str).collect();
        with(&Terms { session_id: Some(&self.id), json_response, versions: Some(&versions) })
    }

    fn opened(
        &self,
        env: &Env,
        key: u32,
        opened: std::result::Result<engine::Connection, protocol::Refusal>,
    ) -> Either<Connection, Refusal> {
        self.waiters.flush(env);
        match opened {
            Ok(connection) => Either::A(Connection::new(connection, key, &self.waiters)),
            Err(refusal) => Either::B(Refusal::new(&refusal, self.dialect)),
        }
    }
}

#[napi]
impl Session {
    /// What the waiters know the session as.
    #[napi(getter)]
    pub fn key(&self) -> u32 {
        self.key
    }

    /// Gives the session's streams another longest silence than the engine's, in milliseconds; 0 is any.
    #[napi(catch_unwind)]
    pub fn set_keep_alive_ms(&self, keep_alive_ms: u32) {
        self.handle.set_keep_alive_ms(u64::from(keep_alive_ms));
    }

    /// Examines an HTTP request: an `Admission`, or the `Refusal` to answer with.
    #[napi(catch_unwind)]
    pub fn admit(
        &self,
        env: &Env,
        head: String,
        server: Option<String>,
        requester: Option<Requester>,
        body: JsBody<'_>,
        json_response: bool,
    ) -> Either<Admission, Refusal> {
        let (head, server, body) = (head_of(&head), server.as_deref(), body_bytes(&body));
        let admitted = self.on_terms(json_response, |terms| {
            Requester::read(requester.as_ref(), |requester| {
                self.handle.admit(&Request { head, requester, server, body }, terms)
            })
        });
        match admitted {
            Ok(admission) => Either::A(Admission(admission)),
            Err(refusal) => {
                self.waiters.flush(env);
                Either::B(Refusal::new(&refusal, self.dialect))
            }
        }
    }

    /// Examines an HTTP request, and opens the connection that it asks for: a `Connection`, or a `Refusal`. An `Admission` where the
    /// host has something to do first: for what asks for no connection, for a call that is more than requests, and for a call that
    /// `opens_call` does not open, which is asked when the call is admitted.
    #[allow(clippy::too_many_arguments, reason = "what the host knows of the request, in one crossing")]
    #[napi(catch_unwind)]
    pub fn enter(
        &self,
        env: &Env,
        head: String,
        server: Option<String>,
        requester: Option<Requester>,
        body: JsBody<'_>,
        json_response: bool,
        opens_call: Function<'_, (), bool>,
    ) -> Result<Either3<Connection, Admission, Refusal>> {
        let admission = match self.admit(env, head, server, requester, body, json_response) {
            Either::A(admission) => admission,
            Either::B(refusal) => return Ok(Either3::C(refusal)),
        };
        let is_reader = match admission.0.action() {
            Action::Listen | Action::Resume => true,
            Action::Call => false,
            _ => return Ok(Either3::B(admission)),
        };
        let opens = is_reader || admission.is_plain_call() && opens_call.call(()).map_err(internal)?;
        if !opens {
            return Ok(Either3::B(admission));
        }
        Ok(match self.open(env, &admission, json_response && !is_reader)? {
            Either::A(connection) => Either3::A(connection),
            Either::B(refusal) => Either3::C(refusal),
        })
    }

    /// Opens the connection that an admitted request asks for: a `Connection`, or a `Refusal`.
    #[napi(catch_unwind)]
    pub fn open(&self, env: &Env, admission: &Admission, json_response: bool) -> Result<Either<Connection, Refusal>> {
        if matches!(admission.0.action(), Action::Message | Action::Delete) {
            return Err(invalid("the request opens no connection"));
        }
        let key = self.waiters.key();
        let opened = self.handle.open(&admission.0, json_response, self.waiters.wake(), u64::from(key));
        Ok(self.opened(env, key, opened))
    }

    /// Whether another process has the session: here it serves readers, and relays what else comes for it.
    #[napi(getter)]
    pub fn is_elsewhere(&self) -> bool {
        self.handle.is_elsewhere()
    }

    /// Relays an admitted POST or DELETE to the process that has the session: the `Connection` is the answer, or a `Refusal`.
    /// With `json_response` a call is answered with JSON.
    #[napi(catch_unwind)]
    pub fn relay(
        &self,
        env: &Env,
        admission: &Admission,
        body: JsBody<'_>,
        travelling: Travelling,
        json_response: bool,
    ) -> Result<Either<Connection, Refusal>> {
        let relayed = travelling.relayed(body_bytes(&body))?;
        let key = self.waiters.key();
        let relay = if json_response { SessionHandle::relay_json } else { SessionHandle::relay };
        let opened = relay(&self.handle, &admission.0, relayed, self.waiters.wake(), u64::from(key));
        Ok(self.opened(env, key, opened))
    }

    /// Adopts the session here, should a request be relayed to it when its owner is gone. The last offer for a session counts.
    /// What this wakes is told by the next call, when the host waits for the offer.
    #[napi(catch_unwind)]
    pub fn offer_adoption(&self) -> Offer {
        Offer::new(&self.handle, &self.id, self.dialect, &self.versions, &self.waiters)
    }

    /// From now on `takePosted` is called whenever the session's key is woken.
    #[napi(catch_unwind)]
    pub fn accept_posted(&self, env: &Env) {
        self.handle.accept_posted();
        self.waiters.flush(env);
    }

    /// What other processes relayed to the session, in the order in which it came.
    #[napi(catch_unwind)]
    pub fn take_posted(&self, env: &Env) -> Vec<Posted> {
        let taken = self.handle.take_posted().into_iter();
        let posted = taken.map(|posted| Posted::new(posted, self.dialect, &self.waiters)).collect();
        self.waiters.flush(env);
        posted
    }

    /// The SDK has been given the messages of the request: what these cancel gets its end.
    #[napi(catch_unwind)]
    pub fn dispatched(&self, env: &Env, admission: &Admission) {
        self.handle.dispatched(&admission.0);
        self.waiters.flush(env);
    }

    /// Notes what the client sent that is not a request.
    #[napi(catch_unwind)]
    pub fn received(&self, env: &Env, admission: &Admission) {
        self.handle.received(&admission.0);
        self.waiters.flush(env);
    }

    /// Sends a notification. `related` is the request that it belongs to; without one it goes to the
    /// standalone stream. `since_ms` is how long the event loop has not turned, as far as the sender knows.
    ///
    /// Returns nothing when it is stored, and -1 where the sender then lets the event loop turn; otherwise the number of its
    /// late outcome.
    #[napi(catch_unwind)]
    pub fn notify(
        &self,
        env: &Env,
        related: Option<JsRequestId>,
        payload_json: String,
        since_ms: u32,
    ) -> Result<Option<f64>> {
        self.send(env, OutgoingKind::Notification, None, related, payload_json, u64::from(since_ms))
    }

    /// Sends a response. Never throws for the store: the engine answers for a response that was not
    /// stored.
    #[napi(catch_unwind)]
    pub fn respond(&self, env: &Env, id: JsRequestId, payload_json: String) -> Result<Option<f64>> {
        self.send(env, OutgoingKind::Response, Some(id), None, payload_json, 0)
    }

    /// Sends a request to the client. Otherwise as `notify`.
    #[napi(catch_unwind)]
    pub fn ask(
        &self,
        env: &Env,
        id: JsRequestId,
        related: Option<JsRequestId>,
        payload_json: String,
        since_ms: u32,
    ) -> Result<Option<f64>> {
        self.send(env, OutgoingKind::Request, Some(id), related, payload_json, u64::from(since_ms))
    }

    /// Late outcomes.
    #[napi]
    pub fn take_outcomes(&self) -> Vec<Outcome> {
        let outcome = |(number_of, result): engine::SendOutcome| {
            let error = result.err();
            Outcome {
                number: number(number_of),
                code: error.as_ref().map(|error| error.code().as_str()),
                message: error.map(|error| spelled(error.to_string())),
            }
        };
        self.handle.take_outcomes().into_iter().map(outcome).collect()
    }

    /// What the host's own store has to do.
    #[napi]
    pub fn take_operations(&self) -> Vec<HostOperation> {
        let text = |payload: Bytes| String::from_utf8_lossy(&payload).into_owned();
        let operations = self.handle.take_operations().into_iter();
        let operation = |operation: tailrope_core::store::HostOperation| {
            let number = number(operation.number);
            match operation.request {
                HostRequest::Store { stream, payload } => {
                    HostOperation { number, stream: Some(stream), payload: payload.map(text), last_event_id: None }
                }
                HostRequest::Replay { last_event_id } => {
                    HostOperation { number, stream: None, payload: None, last_event_id: Some(last_event_id) }
                }
            }
        };
        operations.map(operation).collect()
    }

    /// The host's own store stored the event and gave it this id.
    #[napi(catch_unwind)]
    pub fn stored(&self, env: &Env, number: f64, event_id: String) {
        self.handle.stored(number as u64, &event_id);
        self.waiters.flush(env);
    }

    /// The host's own store did not store the event. `what` is for the server's log.
    #[napi(catch_unwind)]
    pub fn not_stored(&self, env: &Env, number: f64, what: String) {
        self.handle.not_stored(number as u64, what);
        self.waiters.flush(env);
    }

    /// What the host's own store replayed.
    #[napi(catch_unwind)]
    pub fn replayed(&self, env: &Env, number: f64, stream: Option<String>, events: Vec<Replayed>) {
        let event = |event: Replayed| (event.id.map(Into::into), event.payload.map(payload));
        let replay = HostReplay { stream, events: events.into_iter().map(event).collect() };
        self.handle.replayed(number as u64, Ok(replay));
        self.waiters.flush(env);
    }

    /// The host's own store did not replay. `what` is for the server's log.
    #[napi(catch_unwind)]
    pub fn not_replayed(&self, env: &Env, number: f64, what: String) {
        self.handle.replayed(number as u64, Err(what));
        self.waiters.flush(env);
    }

    /// Whether connections of this session may be closed early and polled.
    #[napi(getter)]
    pub fn can_poll(&self) -> bool {
        self.handle.revision().is_some_and(|revision| revision.rules().early_close)
    }

    /// Closes the connection of a request's stream. Returns whether the request can be polled.
    #[napi(catch_unwind)]
    pub fn close_connection(
        &self,
        env: &Env,
        request: JsRequestId,
        retry_ms: Option<u32>,
        hold_ms: Option<u32>,
    ) -> Result<bool> {
        let closed = self.handle.close_connection(&request_id(request)?, retry_ms, hold_ms.map(u64::from));
        self.waiters.flush(env);
        Ok(closed)
    }

    /// Closes the connection of the standalone stream, likewise.
    #[napi(catch_unwind)]
    pub fn close_standalone(&self, env: &Env, retry_ms: Option<u32>, hold_ms: Option<u32>) -> bool {
        let closed = self.handle.close_standalone(retry_ms, hold_ms.map(u64::from));
        self.waiters.flush(env);
        closed
    }

    /// The request will get no response: it gets its end now. False when it has one.
    #[napi(catch_unwind)]
    pub fn cancelled(&self, env: &Env, request: JsRequestId) -> Result<bool> {
        let ended = self.handle.cancelled(&request_id(request)?);
        self.waiters.flush(env);
        Ok(ended)
    }

    /// What the span of a request in flight is to say; nothing where nobody observes.
    #[napi(catch_unwind)]
    pub fn call_span(&self, request: JsRequestId) -> Result<Option<CallSpan>> {
        Ok(self.handle.call_span(&request_id(request)?).map(call_span))
    }

    /// The span of a request in flight has this place in its trace.
    #[napi(catch_unwind)]
    pub fn trace_call(&self, request: JsRequestId, trace: String) -> Result<()> {
        self.handle.trace_call(&request_id(request)?, &trace);
        Ok(())
    }

    /// What stores, the log and `Engine.tick` know the session as.
    #[napi(getter)]
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Requests without a response.
    #[napi(getter)]
    pub fn in_flight(&self) -> u32 {
        u32::try_from(self.handle.in_flight()).unwrap_or(u32::MAX)
    }

    /// Whether the session has ended.
    #[napi(getter)]
    pub fn has_ended(&self) -> bool {
        self.handle.has_ended()
    }

    /// Lets go of a session that lives elsewhere, unless somebody reads it here or relays to it.
    #[napi(catch_unwind)]
    pub fn let_go(&self) {
        self.handle.let_go();
    }

    /// The client ends its session: as `end`, but in a drain, too, it goes on nowhere.
    #[napi(catch_unwind)]
    pub fn delete(&self, env: &Env) {
        self.handle.delete();
        self.waiters.flush(env);
    }

    /// The host stops serving the session: as `end`, but what a store that outlives the process has of it stays there.
    #[napi(catch_unwind)]
    pub fn release(&self, env: &Env) {
        self.handle.release();
        self.waiters.flush(env);
    }

    /// Ends the session: requests in flight get an error, connections close, logs are freed.
    #[napi(catch_unwind)]
    pub fn end(&self, env: &Env) {
        self.handle.end();
        self.waiters.flush(env);
    }
}

impl Session {
    fn send(
        &self,
        env: &Env,
        kind: OutgoingKind,
        id: Option<JsRequestId>,
        related: Option<JsRequestId>,
        payload_json: String,
        since_ms: u64,
    ) -> Result<Option<f64>> {
        let id = id.map(request_id).transpose()?;
        let related = related.map(request_id).transpose()?;
        let payload = payload(payload_json);
        let message = OutgoingMessage { kind, id: id.as_ref(), related: related.as_ref(), payload };
        let sent = self.handle.send_in_turn(message, since_ms);
        self.waiters.flush(env);
        match sent {
            Ok((Sent::Pending(number_of), _)) => Ok(Some(number(number_of))),
            Ok((_, Pause::None)) => Ok(None),
            Ok((_, Pause::Yield)) => Ok(Some(YIELD)),
            Err(error) => Err(to_js_error(&error)),
        }
    }
}
