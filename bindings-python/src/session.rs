//! One session.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tailrope_core::engine::{OutgoingKind, OutgoingMessage, Sent, SessionHandle};
use tailrope_core::exchange::{Action, Pause, RelayedMethod, Request, Requester, Terms};
use tailrope_core::protocol::{self, Dialect};
use tailrope_core::store::{self, HostReplay, HostRequest};

use crate::admission::{Admission, Headers, Refusal, header_pairs};
use crate::adopted::Offer;
use crate::connection::Connection;
use crate::convert::{milliseconds, payload, request_id, to_py_err};
use crate::posted::{Posted, relayed};
use crate::telemetry::{CallSpan, call_span};
use crate::waiters::{Key, Waiters, calling};

/// An open session.
#[pyclass(frozen, weakref, module = "tailrope._native")]
pub(crate) struct Session {
    pub(crate) handle: SessionHandle,
    pub(crate) dialect: &'static Dialect,
    pub(crate) key: Option<Key>,
    /// Whether the session has the principal that it belongs to.
    pub(crate) is_claimed: AtomicBool,
}

/// The event loop is to turn.
const YIELD: i64 = -1;

/// Number, stream, payload, last event id.
type HostOperation<'py> = (u64, Option<String>, Option<Bound<'py, PyBytes>>, Option<String>);

/// A position of an event in the host's own store: its id, and its message unless it is a priming.
type Replayed = (Option<String>, Option<Vec<u8>>);

impl Session {
    fn answer<T>(&self, result: Result<T, protocol::Refusal>) -> Result<T, Refusal> {
        result.map_err(|refusal| Refusal::new(&refusal, self.dialect))
    }
}

fn either<'py, T>(py: Python<'py>, result: Result<T, Refusal>) -> PyResult<Bound<'py, PyAny>>
where
    T: pyo3::PyClass + Into<PyClassInitializer<T>>,
{
    match result {
        Ok(value) => Ok(Bound::new(py, value)?.into_any()),
        Err(refusal) => Ok(Bound::new(py, refusal)?.into_any()),
    }
}

#[pymethods]
impl Session {
    /// What the loop's waiters know the session as.
    #[getter]
    fn key(&self) -> u64 {
        self.key.as_ref().map_or(0, |key| key.number)
    }

    /// What stores, the log and `Engine.tick` know the session as.
    #[getter]
    fn name(&self) -> &str {
        self.handle.name()
    }

    /// Examines an HTTP request: an `Admission`, or the `Refusal` to answer with. The first one says whose session it is:
    /// `user_json`, `named` and `log_user` are those of the core's `Requester`, `server` is the server that it is for. The first admission takes the session's place among those of
    /// the engine; for it another one may have to end, which `Engine.tick` then tells.
    #[expect(clippy::too_many_arguments, reason = "one crossing for each request")]
    fn admit<'py>(
        &self,
        py: Python<'py>,
        method: &str,
        headers: &Bound<'py, PyAny>,
        body: &[u8],
        json_response: bool,
        server: &str,
        user_json: Option<&str>,
        named: Option<&str>,
        log_user: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let pairs = header_pairs(headers)?;
        let headers = Headers::read(&pairs, self.handle.options());
        let terms = Terms { json_response, ..Terms::default() };
        let admit = |requester: &Requester<'_>| {
            if !self.is_claimed.load(Ordering::Relaxed) {
                self.handle.claim(requester)?;
                self.is_claimed.store(true, Ordering::Relaxed);
            }
            let (head, server) = (headers.head(method), Some(server));
            self.handle.admit(&Request { head, requester: *requester, server, body }, &terms)
        };
        let admitted = calling(py, || headers.ask(user_json, named, log_user, admit))?;
        either(py, self.answer(admitted.map(Admission)))
    }

    /// Opens the connection that an admitted request asks for: a `Connection`, or a `Refusal`.
    fn open<'py>(
        &self,
        py: Python<'py>,
        admission: &Admission,
        waiters: &Waiters,
        json_response: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        if matches!(admission.0.action(), Action::Message | Action::Delete) {
            return Err(PyValueError::new_err("the request opens no connection"));
        }
        let (key, wake) = waiters.shared.key();
        let opened = calling(py, || self.handle.open(&admission.0, json_response, wake, key.number))?;
        either(py, self.answer(opened.map(|connection| Connection { connection, key })))
    }

    /// Whether another process has the session: it is read here, and what else comes for it is relayed.
    #[getter]
    fn is_elsewhere(&self) -> bool {
        self.handle.is_elsewhere()
    }

    /// Relays an admitted POST or DELETE to the process that has the session: a `Connection`, which is the answer, or a
    /// `Refusal`. `more` names further headers that travel. `auth_json` is what its handlers are to know of the sender: see
    /// `Posted.auth_json`. Credentials are removed from it. `dropped` names what of the request is not relayed.
    #[expect(clippy::too_many_arguments, reason = "one crossing for each request")]
    fn relay<'py>(
        &self,
        py: Python<'py>,
        admission: &Admission,
        method: &str,
        headers: &Bound<'py, PyAny>,
        body: &[u8],
        more: Vec<String>,
        auth_json: Option<&str>,
        dropped: Vec<String>,
        json_response: bool,
        waiters: &Waiters,
    ) -> PyResult<Bound<'py, PyAny>> {
        let method = RelayedMethod::parse(method)
            .ok_or_else(|| PyValueError::new_err(format!("a request with the method {method:?} is not relayed")))?;
        let relayed = relayed(method, headers, body, &more, auth_json, dropped)?;
        let (key, wake) = waiters.shared.key();
        let answer = calling(py, || match json_response {
            true => self.handle.relay_json(&admission.0, relayed, wake, key.number),
            false => self.handle.relay(&admission.0, relayed, wake, key.number),
        })?;
        either(py, self.answer(answer.map(|connection| Connection { connection, key })))
    }

    /// The host adopts the session of another process, should a message come for it when that is gone.
    fn offer_adoption(&self, py: Python<'_>, waiters: &Waiters) -> PyResult<Offer> {
        Offer::new(py, &self.handle, self.dialect, waiters)
    }

    /// The host takes what other processes relay to the session, from now on: see `take_posted`.
    fn accept_posted(&self, py: Python<'_>) -> PyResult<()> {
        calling(py, || self.handle.accept_posted())
    }

    /// What other processes relayed to the session, in the order in which it came. The session's key is told of it.
    fn take_posted(&self, py: Python<'_>) -> PyResult<Vec<Posted>> {
        let posted = calling(py, || self.handle.take_posted())?;
        Ok(posted.into_iter().map(|posted| Posted { posted, dialect: self.dialect }).collect())
    }

    /// Notes what the client sent that is not a request.
    fn received(&self, py: Python<'_>, admission: &Admission) -> PyResult<()> {
        calling(py, || self.handle.received(&admission.0))
    }

    /// The SDK has been given the messages of the request: what these cancel gets its end, where the SDK says nothing.
    fn dispatched(&self, py: Python<'_>, admission: &Admission) -> PyResult<()> {
        calling(py, || self.handle.dispatched(&admission.0))
    }

    /// Sends a notification. `related` is the request that it belongs to; None sends it on the
    /// standalone stream. `since_ms` is how long ago the sender last let the event loop turn.
    ///
    /// Returns None when it is stored, and -1 where the sender then lets the event loop turn; otherwise the number of
    /// its late outcome.
    #[pyo3(signature = (related, payload_json, since_ms, /))]
    fn notify(
        &self,
        py: Python<'_>,
        related: Option<&Bound<'_, PyAny>>,
        payload_json: &Bound<'_, PyAny>,
        since_ms: u64,
    ) -> PyResult<Option<i64>> {
        self.send(py, OutgoingKind::Notification, None, related, payload_json, since_ms)
    }

    /// Sends a response. Never raises for the store: the engine answers for a response that was not
    /// stored.
    #[pyo3(signature = (id, payload_json, /))]
    fn respond(
        &self,
        py: Python<'_>,
        id: Option<&Bound<'_, PyAny>>,
        payload_json: &Bound<'_, PyAny>,
    ) -> PyResult<Option<i64>> {
        self.send(py, OutgoingKind::Response, id, None, payload_json, 0)
    }

    /// Sends a request to the client. Otherwise as `notify`.
    #[pyo3(signature = (id, related, payload_json, since_ms, /))]
    fn ask(
        &self,
        py: Python<'_>,
        id: &Bound<'_, PyAny>,
        related: Option<&Bound<'_, PyAny>>,
        payload_json: &Bound<'_, PyAny>,
        since_ms: u64,
    ) -> PyResult<Option<i64>> {
        self.send(py, OutgoingKind::Request, Some(id), related, payload_json, since_ms)
    }

    /// Late outcomes: `(number, None or the error)`.
    fn take_outcomes<'py>(&self, py: Python<'py>) -> PyResult<Vec<(u64, Option<Py<PyAny>>)>> {
        let outcomes = calling(py, || self.handle.take_outcomes())?;
        let value = |error| to_py_err(&error).into_value(py).into_any();
        Ok(outcomes.into_iter().map(|(number, result)| (number, result.err().map(value))).collect())
    }

    /// What the host's own store has to do: `(number, stream, payload, last_event_id)`. With a stream:
    /// store the payload, or the priming position when it is None. Otherwise: replay after the id.
    fn take_operations<'py>(&self, py: Python<'py>) -> PyResult<Vec<HostOperation<'py>>> {
        let bytes = |payload: bytes::Bytes| PyBytes::new(py, &payload);
        let operations = calling(py, || self.handle.take_operations())?.into_iter();
        let tuple = |operation: store::HostOperation| match operation.request {
            HostRequest::Store { stream, payload } => (operation.number, Some(stream), payload.map(bytes), None),
            HostRequest::Replay { last_event_id } => (operation.number, None, None, Some(last_event_id)),
        };
        Ok(operations.map(tuple).collect())
    }

    /// The host's own store stored the event and gave it this id.
    fn stored(&self, py: Python<'_>, number: u64, event_id: &str) -> PyResult<()> {
        calling(py, || self.handle.stored(number, event_id))
    }

    /// The host's own store did not store the event. `what` is for the server's log.
    fn not_stored(&self, py: Python<'_>, number: u64, what: String) -> PyResult<()> {
        calling(py, || self.handle.not_stored(number, what))
    }

    /// What the host's own store replayed.
    fn replayed(&self, py: Python<'_>, number: u64, stream: Option<String>, events: Vec<Replayed>) -> PyResult<()> {
        let event = |(id, payload): Replayed| (id.map(Into::into), payload.map(Into::into));
        let replay = HostReplay { stream, events: events.into_iter().map(event).collect() };
        calling(py, || self.handle.replayed(number, Ok(replay)))
    }

    /// The host's own store did not replay. `what` is for the server's log.
    fn not_replayed(&self, py: Python<'_>, number: u64, what: String) -> PyResult<()> {
        calling(py, || self.handle.replayed(number, Err(what)))
    }

    /// Whether connections of this session may be closed early and polled.
    #[getter]
    fn can_poll(&self) -> bool {
        self.handle.revision().is_some_and(|revision| revision.rules().early_close)
    }

    /// Closes the connection of a request's stream. Returns whether the request can be polled.
    fn close_connection(
        &self,
        py: Python<'_>,
        request: &Bound<'_, PyAny>,
        retry_ms: Option<&Bound<'_, PyAny>>,
        hold_ms: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let request = request_id(request)?;
        let (retry_ms, hold_ms) = pauses(retry_ms, hold_ms)?;
        let closed = calling(py, || self.handle.close_connection(&request, retry_ms, hold_ms))?;
        Ok(closed)
    }

    /// Closes the connection of the standalone stream, likewise.
    fn close_standalone(
        &self,
        py: Python<'_>,
        retry_ms: Option<&Bound<'_, PyAny>>,
        hold_ms: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let (retry_ms, hold_ms) = pauses(retry_ms, hold_ms)?;
        let closed = calling(py, || self.handle.close_standalone(retry_ms, hold_ms))?;
        Ok(closed)
    }

    /// The request will get no response: it gets its end now. False when it has one.
    fn cancelled(&self, py: Python<'_>, request: &Bound<'_, PyAny>) -> PyResult<bool> {
        let request = request_id(request)?;
        let ended = calling(py, || self.handle.cancelled(&request))?;
        Ok(ended)
    }

    /// What the span of a request in flight is to say. None where nothing observes.
    fn call_span<'py>(&self, py: Python<'py>, request: &Bound<'_, PyAny>) -> PyResult<Option<CallSpan<'py>>> {
        let request = request_id(request)?;
        call_span(py, calling(py, || self.handle.call_span(&request))?)
    }

    /// The span of a request in flight has this place in its trace.
    fn trace_call(&self, py: Python<'_>, request: &Bound<'_, PyAny>, trace: &str) -> PyResult<()> {
        let request = request_id(request)?;
        calling(py, || self.handle.trace_call(&request, trace))
    }

    /// After how long without anything the session is idle; None is never.
    fn set_idle_ms(&self, idle_ms: Option<u64>) {
        self.handle.set_idle_ms(idle_ms.unwrap_or_default());
    }

    /// Milliseconds until the session counts as idle; None while something holds it.
    fn idle_in_ms(&self) -> Option<u64> {
        self.handle.idle_in_ms()
    }

    /// Requests without a response.
    #[getter]
    fn in_flight(&self) -> usize {
        self.handle.in_flight()
    }

    /// Whether the session has ended.
    #[getter]
    fn has_ended(&self) -> bool {
        self.handle.has_ended()
    }

    /// No connection was opened of a session that was looked up: it is forgotten, unless others read it here.
    fn let_go(&self) {
        self.handle.let_go();
    }

    /// Closes every connection of the session, now and from now on, and leaves it to other processes when nothing runs in it.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        calling(py, || self.handle.drain())
    }

    /// Whether a drain has yet to leave the session to other processes.
    #[getter]
    fn is_handing_over(&self) -> bool {
        self.handle.is_handing_over()
    }

    /// The host stops serving the session: as `end`, but what a store that outlives the process has of it can still be
    /// read there.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        calling(py, || self.handle.release())
    }

    /// The client ends its session: as `end`, but in a drain, too, it goes on nowhere.
    fn delete(&self, py: Python<'_>) -> PyResult<()> {
        calling(py, || self.handle.delete())
    }

    /// Ends the session: requests in flight get an error, connections close, logs are freed.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        calling(py, || self.handle.end())
    }
}

impl Session {
    fn send(
        &self,
        py: Python<'_>,
        kind: OutgoingKind,
        id: Option<&Bound<'_, PyAny>>,
        related: Option<&Bound<'_, PyAny>>,
        payload_json: &Bound<'_, PyAny>,
        since_ms: u64,
    ) -> PyResult<Option<i64>> {
        let id = id.map(request_id).transpose()?;
        let related = related.map(request_id).transpose()?;
        let payload = bytes::Bytes::copy_from_slice(payload(payload_json)?);
        let message = OutgoingMessage { kind, id: id.as_ref(), related: related.as_ref(), payload };
        let sent = calling(py, || self.handle.send_in_turn(message, since_ms))?;
        match sent {
            Ok((Sent::Pending(number), _)) => Ok(Some(number.cast_signed())),
            Ok((_, Pause::Yield)) => Ok(Some(YIELD)),
            Ok((_, Pause::None)) => Ok(None),
            Err(error) => Err(to_py_err(&error)),
        }
    }
}

/// How a connection is closed: the `retry` of its client, and how long connections that resume stay open.
fn pauses(
    retry_ms: Option<&Bound<'_, PyAny>>,
    hold_ms: Option<&Bound<'_, PyAny>>,
) -> PyResult<(Option<u32>, Option<u64>)> {
    Ok((milliseconds("retry_ms", retry_ms)?, milliseconds("hold_ms", hold_ms)?.map(u64::from)))
}
