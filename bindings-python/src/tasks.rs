//! Calls that may become tasks, and requests about tasks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tailrope_core::engine::{self, CallStep, Context};
use tailrope_core::exchange;
use tailrope_core::protocol::{Dialect, sse};
use tailrope_core::task::{self, Announcement, Ask, Declared, Input, Reply, Route, RunReader};

use crate::admission::Refusal;
use crate::convert::payload;
use crate::panics::caught;
use crate::posted::asgi_headers;
use crate::telemetry::{CallSpan, call_span};
use crate::waiters::{Key, calling};

/// The dialect of the SDKs that know the revision of tasks.
pub(crate) const DIALECT: &Dialect = &Dialect::MCP_PYTHON_2;

/// What becomes of a POST, the tool that it calls, and whether it declares that its client takes tasks.
pub(crate) type Routed = (&'static str, Option<String>, bool);

pub(crate) fn routed(route: Route, posted: task::Posted) -> Routed {
    (route.as_str(), posted.tool, posted.declared == Declared::Yes)
}

/// What the server's answer to `server/discover` becomes: the answer with the extension (`added`), or `by_host` where the server
/// makes tasks itself, or `unchanged`.
#[pyfunction]
pub(crate) fn announce<'py>(py: Python<'py>, answer: &[u8]) -> PyResult<(&'static str, Option<Bound<'py, PyBytes>>)> {
    Ok(match caught(|| task::announce(answer))? {
        Announcement::Added(answer) => ("added", Some(PyBytes::new(py, &answer))),
        Announcement::ByHost => ("by_host", None),
        Announcement::Unchanged => ("unchanged", None),
    })
}

/// The answer to a request that has to declare that its client takes tasks.
#[pyfunction]
pub(crate) fn missing_capability(body: &[u8]) -> PyResult<Refusal> {
    let refusal = caught(|| task::missing_capability().naming_request(body))?;
    Ok(Refusal::new(&refusal, DIALECT))
}

/// A request about a task that is in order.
#[pyclass(frozen, module = "tailrope._native")]
pub(crate) struct TaskRequest(pub(crate) task::TaskRequest);

#[pymethods]
impl TaskRequest {
    /// Whether it may have to go to another process.
    #[getter]
    fn may_travel(&self) -> bool {
        self.0.ask != Ask::Get
    }

    /// The answer where nobody can tell whose request it is: as for a task that is not there.
    fn unknown(&self) -> Refusal {
        Refusal::new(&task::unknown_task(&self.0.request), DIALECT)
    }
}

/// What travelled of a request that came to another process.
#[pyclass(frozen, module = "tailrope._native")]
pub(crate) struct Relayed(exchange::Relayed);

#[pymethods]
impl Relayed {
    /// The headers, as ASGI has them.
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        asgi_headers(py, self.0.headers())
    }

    /// What the other process's `Engine.ask_task` was given.
    #[getter]
    fn auth_json(&self) -> Option<&str> {
        self.0.auth()
    }
}

/// What the host has to do: what, the number that goes with it, bytes, and of a run that starts its context and the headers of its
/// message.
type Step<'py> = (&'static str, u64, Bound<'py, PyBytes>, Option<(Option<Bound<'py, PyAny>>, Headers<'py>)>);
type Headers<'py> = Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>;

/// A call that the SDK is given once, or several times, and that may become a task.
#[pyclass(frozen, module = "tailrope._native")]
pub(crate) struct TaskCall {
    call: engine::TaskCall,
    key: Arc<Key>,
    readers: Mutex<HashMap<u32, RunReader>>,
}

impl TaskCall {
    pub(crate) fn new(call: engine::TaskCall, key: Arc<Key>) -> Self {
        Self { call, key, readers: Mutex::default() }
    }

    fn readers(&self) -> MutexGuard<'_, HashMap<u32, RunReader>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn input(&self, py: Python<'_>, inputs: impl IntoIterator<Item = Input>) -> PyResult<()> {
        calling(py, || inputs.into_iter().for_each(|input| self.call.input(input)))
    }
}

#[pymethods]
impl TaskCall {
    /// What the loop's waiters know it as. They are told when there are steps to do, and when it is over.
    #[getter]
    fn key(&self) -> u64 {
        self.key.number
    }

    /// What the SDK is given at first.
    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.call.body())
    }

    /// The SDK's answer to a run begins. Whether it is a body that may have to be passed on as it is.
    fn begin(&self, run: u32, status: u16, content_type: Option<&str>) -> bool {
        let reader = RunReader::new(run, status, content_type);
        let is_body = reader.is_body();
        self.readers().insert(run, reader);
        is_body
    }

    /// The next bytes of it.
    fn data(&self, py: Python<'_>, run: u32, chunk: &[u8]) -> PyResult<()> {
        calling(py, || {
            let inputs = self.readers().get_mut(&run).map(|reader| reader.data(chunk)).unwrap_or_default();
            inputs.into_iter().for_each(|input| self.call.input(input));
        })
    }

    /// Nothing more comes of a run.
    fn ended(&self, py: Python<'_>, run: u32) -> PyResult<()> {
        let reader = self.readers().remove(&run);
        calling(py, || {
            let inputs = reader.map_or_else(|| vec![Input::RunEnded { run }], RunReader::end);
            inputs.into_iter().for_each(|input| self.call.input(input));
        })
    }

    /// The SDK raised in the place of an answer.
    fn raised(&self, py: Python<'_>, run: u32) -> PyResult<()> {
        self.readers().remove(&run);
        self.input(py, [Input::NotJsonRpc { run, status: 500 }, Input::RunEnded { run }])
    }

    /// The handler asks its client: a JSON-RPC request.
    fn question(&self, py: Python<'_>, ask: u64, request_json: &Bound<'_, PyAny>) -> PyResult<()> {
        let request = bytes::Bytes::copy_from_slice(payload(request_json)?);
        self.input(py, [Input::Question { ask, request }])
    }

    /// The handler does not wait for the answer any more.
    fn withdrawn(&self, py: Python<'_>, ask: u64) -> PyResult<()> {
        self.input(py, [Input::Withdrawn { ask }])
    }

    /// The client of the call closed its connection.
    fn client_gone(&self, py: Python<'_>) -> PyResult<()> {
        self.input(py, [Input::ClientGone])
    }

    /// What is to be done now, in order. To be asked again until there is nothing.
    fn take_steps<'py>(&self, py: Python<'py>) -> PyResult<Vec<Step<'py>>> {
        calling(py, || self.call.take_steps())?.into_iter().map(|step| to_step(py, step)).collect()
    }

    /// What the span of the call is to say. None where nothing observes.
    fn span<'py>(&self, py: Python<'py>) -> PyResult<Option<CallSpan<'py>>> {
        call_span(py, calling(py, || self.call.span())?)
    }

    /// Whether nothing is left to do.
    #[getter]
    fn is_over(&self) -> bool {
        self.call.is_over()
    }

    /// Whether a drain waits for the call.
    #[getter]
    fn is_handing_over(&self) -> bool {
        self.call.is_handing_over()
    }

    /// The host stops: once the task waits for its client alone, other processes go on with it.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        calling(py, || self.call.drain())
    }

    /// The host serves it no more.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        calling(py, || self.call.leave())
    }
}

fn to_step(py: Python<'_>, step: CallStep) -> PyResult<Step<'_>> {
    let bytes = |data: &[u8]| PyBytes::new(py, data);
    let none = || bytes(b"");
    Ok(match step {
        CallStep::Reply(Reply::Body { status, body }) => ("body", status.into(), bytes(&body), None),
        CallStep::Reply(Reply::Begin) => ("begin", 0, none(), None),
        CallStep::Reply(Reply::Event(message)) => {
            let mut frame = Vec::new();
            sse::write_anonymous(&mut frame, &message);
            ("write", 0, bytes(&frame), None)
        }
        CallStep::Reply(Reply::Comment) => {
            let mut frame = Vec::new();
            sse::write_keep_alive(&mut frame);
            ("write", 0, bytes(&frame), None)
        }
        CallStep::Reply(Reply::End) => ("end", 0, none(), None),
        CallStep::PassOn => ("pass_on", 0, none(), None),
        CallStep::Unlink => ("unlink", 0, none(), None),
        CallStep::Disconnect { run } => ("disconnect", run.into(), none(), None),
        CallStep::Kill { run } => ("kill", run.into(), none(), None),
        CallStep::Start { run, context, call, headers } => {
            let context = match context {
                Context::Call => None,
                Context::Request(key) => Some(key.into_pyobject(py)?.into_any()),
                Context::Relayed(relayed) => Some(Bound::new(py, Relayed(relayed))?.into_any()),
            };
            let headers = asgi_headers(py, headers.iter().map(|(name, value)| (&**name, &**value)));
            ("start", run.into(), bytes(&call), Some((context, headers)))
        }
        CallStep::Answer { ask, result } => ("answer", ask, bytes(&result), None),
        CallStep::Refuse { ask } => ("refuse", ask, none(), None),
    })
}

/// A `subscriptions/listen` that names tasks, and that the SDK is given.
#[pyclass(frozen, module = "tailrope._native")]
pub(crate) struct TaskSubscription {
    pub(crate) subscription: engine::TaskSubscription,
    pub(crate) key: Arc<Key>,
}

#[pymethods]
impl TaskSubscription {
    /// What the loop's waiters know it as. They are told when there may be more.
    #[getter]
    fn key(&self) -> u64 {
        self.key.number
    }

    /// The SDK's answer begins. False where it is for the client as it is.
    fn begin(&self, py: Python<'_>, content_type: Option<&str>) -> PyResult<bool> {
        calling(py, || self.subscription.begin(content_type))
    }

    /// Whether the next bytes of the SDK's stream are wanted now.
    #[getter]
    fn takes(&self) -> bool {
        self.subscription.takes()
    }

    /// The next bytes of the SDK's stream.
    fn push(&self, py: Python<'_>, chunk: &[u8]) -> PyResult<()> {
        calling(py, || self.subscription.push(chunk))
    }

    /// The SDK's stream is over.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        calling(py, || self.subscription.end())
    }

    /// The next bytes for the client. None until something happens; to be asked again until then.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(calling(py, || self.subscription.next())?.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// Whether nothing follows.
    #[getter]
    fn is_over(&self) -> bool {
        self.subscription.is_over()
    }

    /// The host stops.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        calling(py, || self.subscription.drain())
    }

    /// The client has left.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        calling(py, || self.subscription.leave())
    }
}

/// A request about a task.
#[pyclass(frozen, module = "tailrope._native")]
pub(crate) struct TaskQuery {
    pub(crate) query: engine::TaskQuery,
    pub(crate) key: Arc<Key>,
}

#[pymethods]
impl TaskQuery {
    /// What the loop's waiters know it as, also the call that is to be served because of it.
    #[getter]
    fn key(&self) -> u64 {
        self.key.number
    }

    /// The next answer: the body, or a `Refusal`; or a `TaskCall` that the host serves from now on, and the answer follows. None
    /// where there is nothing yet.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(answer) = calling(py, || self.query.take())? else { return Ok(None) };
        Ok(Some(match answer {
            engine::TaskAnswer::Body(body) => PyBytes::new(py, &body).into_any(),
            engine::TaskAnswer::Refused(refusal) => Bound::new(py, Refusal::new(&refusal, DIALECT))?.into_any(),
            engine::TaskAnswer::Serve(call) => {
                let call = TaskCall::new(call, Arc::clone(&self.key));
                Bound::new(py, call)?.into_any()
            }
        }))
    }
}

/// Whether a header belongs to a message, and not to the request that brings it: see the core's `is_of_message`.
#[pyfunction]
pub(crate) fn is_of_message(name: &[u8]) -> bool {
    std::str::from_utf8(name).is_ok_and(task::is_of_message)
}
