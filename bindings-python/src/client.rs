//! The client's half of a stream. When to connect, what to deliver and when to give up is decided in the core; the
//! Python half makes the connections.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyList, PyTuple};
use tailrope_core::Ms;
use tailrope_core::client::{
    Failure, Input, Opening, Options, Posted, ResumableStream, Step, Token, failure_payloads, refused,
};
use tailrope_core::client::{takes_answer, takes_request};
use tailrope_core::protocol::{RequestId, sse};

use crate::convert::{self, raised, request_id, request_id_to_py};
use crate::panics::caught;

/// How streams come back: the options of the core, checked.
#[pyclass(frozen, module = "tailrope._native")]
pub(crate) struct ClientOptions {
    pub(crate) options: Options,
}

#[pymethods]
impl ClientOptions {
    /// What is not named keeps its default. Raises ValueError that names what is unknown or out of its range.
    #[new]
    #[pyo3(signature = (**given))]
    fn new(given: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut options = Options::default();
        for (name, value) in given.into_iter().flatten() {
            set(&mut options, &name.extract::<String>()?, &value)?;
        }
        options.checked().map(|options| Self { options }).map_err(|error| PyValueError::new_err(error.to_string()))
    }
}

fn set(options: &mut Options, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    match name {
        "initial_delay_ms" => options.initial_delay_ms = whole(name, value)?,
        "max_delay_ms" => options.max_delay_ms = whole(name, value)?,
        "growth" => options.growth = fraction(name, value)?,
        "jitter" => options.jitter = fraction(name, value)?,
        "give_up_after_ms" => options.give_up_after_ms = optional(name, value)?,
        "max_attempts" => {
            // More tries than that are any number.
            options.max_attempts = optional(name, value)?.map(|number| u32::try_from(number).unwrap_or(u32::MAX));
        }
        "max_silence_ms" => options.max_silence_ms = optional(name, value)?,
        "max_event_bytes" => options.max_event_bytes = usize::try_from(whole(name, value)?).unwrap_or(usize::MAX),
        other => return Err(PyValueError::new_err(format!("unknown option {other}"))),
    }
    Ok(())
}

fn whole(name: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let invalid = || PyValueError::new_err(format!("{name} has to be a whole number that is not negative"));
    convert::whole(value).ok_or_else(invalid)
}

fn optional(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    if value.is_none() { Ok(None) } else { whole(name, value).map(Some) }
}

fn fraction(name: &str, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    let number = if value.is_instance_of::<PyBool>() { None } else { value.extract().ok() };
    number.ok_or_else(|| PyValueError::new_err(format!("{name} has to be a number")))
}

/// One stream at its client. Each input returns what is to be done: SSE frames for the reader, and steps in order.
#[pyclass(module = "tailrope._native")]
pub(crate) struct ClientStream {
    stream: ResumableStream,
    /// Messages come as steps instead of in frames.
    texts: bool,
    steps: Vec<Step>,
    failure: Option<Failure>,
    session_id: Option<String>,
    protocol_version: Option<String>,
}

type Done<'py> = (Bound<'py, PyBytes>, Bound<'py, PyList>);

impl ClientStream {
    fn new(opening: Opening, options: &ClientOptions, now: u64, texts: bool) -> Self {
        let mut steps = Vec::new();
        let stream = ResumableStream::new(Ms(now), opening, options.options.clone(), &mut steps);
        Self { stream, texts, steps, failure: None, session_id: None, protocol_version: None }
    }

    fn handle<'py>(&mut self, py: Python<'py>, now: u64, jitter: u32, input: Input<'_>) -> PyResult<Done<'py>> {
        caught(|| self.stream.handle(Ms(now), jitter, input, &mut self.steps))?;
        self.done(py)
    }

    fn done<'py>(&mut self, py: Python<'py>) -> PyResult<Done<'py>> {
        let (mut frames, list) = (Vec::new(), PyList::empty(py));
        for step in self.steps.drain(..) {
            match step {
                Step::Deliver(message) if !self.texts => message.write_frame(&mut frames),
                Step::Deliver(message) => list.append(("deliver", message.data, message.event))?,
                Step::Connect { last_event_id } => list.append(("connect", last_event_id))?,
                Step::Gap { first, count } => list.append(("gap", first, count))?,
                Step::Failed(failure) => {
                    list.append(("failed", failure.code().as_str(), failure.to_string()))?;
                    self.failure = Some(failure);
                }
                Step::Opened => list.append(("opened",))?,
                Step::CursorLost => list.append(("cursor_lost",))?,
                Step::Disconnect => list.append(("disconnect",))?,
                Step::Finished => list.append(("finished",))?,
            }
        }
        Ok((PyBytes::new(py, &frames), list))
    }
}

#[pymethods]
impl ClientStream {
    /// The stream of a POST that was answered with an event stream. `requests` is the JSON array that `classify` gave.
    #[staticmethod]
    fn posted(requests: &str, options: &ClientOptions, now: u64, texts: bool) -> PyResult<Self> {
        let requests = RequestId::decode_all(requests.as_bytes())
            .ok_or_else(|| PyValueError::new_err("requests has to be a JSON array of request ids"))?;
        Ok(Self::new(Opening::Posted(requests), options, now, texts))
    }

    /// A stream that begins with a GET without a cursor.
    #[staticmethod]
    fn standalone(options: &ClientOptions, now: u64, texts: bool) -> Self {
        Self::new(Opening::Standalone, options, now, texts)
    }

    /// A stream that begins with a GET with somebody's cursor.
    #[staticmethod]
    fn continued(cursor: &str, options: &ClientOptions, now: u64, texts: bool) -> Self {
        Self::new(Opening::Continued(cursor.to_owned()), options, now, texts)
    }

    /// A stream that was saved as a token. Raises ValueError for what is no token.
    #[staticmethod]
    fn saved(token: &str, options: &ClientOptions, now: u64, texts: bool) -> PyResult<Self> {
        let token = Token::parse(token).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let (session_id, protocol_version) = (token.session_id.clone(), token.protocol_version.clone());
        let stream = Self::new(Opening::Saved(token), options, now, texts);
        Ok(Self { session_id, protocol_version, ..stream })
    }

    /// What is to be done first.
    fn start<'py>(&mut self, py: Python<'py>) -> PyResult<Done<'py>> {
        self.done(py)
    }

    /// The head of the answer to a connect.
    fn head<'py>(
        &mut self,
        py: Python<'py>,
        status: u16,
        content_type: Option<&str>,
        retry_after_ms: Option<u64>,
        now: u64,
        jitter: u32,
    ) -> PyResult<Done<'py>> {
        self.handle(py, now, jitter, Input::Head { status, content_type, retry_after_ms })
    }

    /// Bytes of the body. None at all say that somebody reads again: a reader that was away is no silence.
    fn bytes<'py>(&mut self, py: Python<'py>, bytes: &[u8], now: u64, jitter: u32) -> PyResult<Done<'py>> {
        self.handle(py, now, jitter, Input::Bytes(bytes))
    }

    /// The body ended in good order.
    fn end<'py>(&mut self, py: Python<'py>, now: u64, jitter: u32) -> PyResult<Done<'py>> {
        self.handle(py, now, jitter, Input::End)
    }

    /// The connection broke, or could not be made.
    fn broken<'py>(&mut self, py: Python<'py>, now: u64, jitter: u32) -> PyResult<Done<'py>> {
        self.handle(py, now, jitter, Input::Broken)
    }

    /// Nobody waits for this request any more.
    fn cancelled<'py>(
        &mut self,
        py: Python<'py>,
        request: &Bound<'_, PyAny>,
        now: u64,
        jitter: u32,
    ) -> PyResult<Done<'py>> {
        self.handle(py, now, jitter, Input::Cancelled(request_id(request)?))
    }

    /// Nobody waits for the stream any more.
    fn abort<'py>(&mut self, py: Python<'py>, now: u64, jitter: u32) -> PyResult<Done<'py>> {
        self.handle(py, now, jitter, Input::Abort)
    }

    /// Time has passed.
    fn tick<'py>(&mut self, py: Python<'py>, now: u64, jitter: u32) -> PyResult<Done<'py>> {
        self.handle(py, now, jitter, Input::Tick)
    }

    /// The host cannot go on: it ends the stream as one that nothing comes of any more.
    fn abandon<'py>(&mut self, py: Python<'py>, now: u64, jitter: u32) -> PyResult<Done<'py>> {
        if !self.stream.is_done() {
            let failure = Failure::GaveUp { attempts: self.stream.attempts(), for_ms: 0 };
            self.stream.handle(Ms(now), jitter, Input::Abort, &mut self.steps);
            self.steps.push(Step::Failed(failure));
        }
        self.done(py)
    }

    /// When to tick; None is never.
    #[getter]
    fn deadline(&self) -> Option<u64> {
        let deadline = self.stream.deadline();
        (deadline != Ms::NEVER).then_some(deadline.0)
    }

    /// The last event id, empty while there is none.
    #[getter]
    fn cursor(&self) -> &str {
        self.stream.cursor()
    }

    /// The reconnection time that the stream told.
    #[getter]
    fn retry_ms(&self) -> Option<u64> {
        self.stream.retry_ms()
    }

    /// Tries in a row that brought nothing.
    #[getter]
    fn attempts(&self) -> u32 {
        self.stream.attempts()
    }

    /// Requests without an answer.
    #[getter]
    fn requests<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let ids: PyResult<Vec<_>> = self.stream.requests().iter().map(|id| request_id_to_py(py, id)).collect();
        PyTuple::new(py, ids?)
    }

    /// Whether nothing will come of it any more.
    #[getter]
    fn is_done(&self) -> bool {
        self.stream.is_done()
    }

    /// The session that a token named.
    #[getter]
    fn session_id(&self) -> Option<&str> {
        self.session_id.as_deref()
    }

    /// The revision that a token named.
    #[getter]
    fn protocol_version(&self) -> Option<&str> {
        self.protocol_version.as_deref()
    }

    /// The text with which another process continues the stream; None while it has no cursor, or is done.
    fn token(&self, session_id: Option<String>, protocol_version: Option<String>) -> Option<String> {
        self.stream.token().map(|token| Token { session_id, protocol_version, ..token }.to_string())
    }

    /// After `failed`: the error responses of the requests that get no other.
    fn failure_frames<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let mut frames = Vec::new();
        if let Some(failure) = &self.failure {
            for payload in failure_payloads(self.stream.requests(), failure) {
                sse::write_anonymous(&mut frames, payload.as_bytes());
            }
        }
        PyBytes::new(py, &frames)
    }
}

/// What the body of a POST means for streams: its requests as a JSON array, None without any, and the requests that
/// it cancels.
#[pyfunction]
pub(crate) fn classify<'py>(py: Python<'py>, body: &[u8]) -> PyResult<(Option<String>, Bound<'py, PyList>)> {
    let Posted { requests, cancelled } = caught(|| Posted::read(body))?;
    let texts: Vec<String> = requests.iter().map(RequestId::to_json).collect();
    let cancelled: PyResult<Vec<_>> = cancelled.iter().map(|id| request_id_to_py(py, id)).collect();
    Ok(((!texts.is_empty()).then(|| format!("[{}]", texts.join(","))), PyList::new(py, cancelled?)?))
}

/// Whether the answer to a request may be a stream that can be resumed.
#[pyfunction]
pub(crate) fn client_takes_request(method: &str, accept: Option<&str>, protocol_version: Option<&str>) -> bool {
    takes_request(method, accept, protocol_version)
}

/// Whether the answer to a POST with requests is the beginning of a stream.
#[pyfunction]
pub(crate) fn client_takes_answer(status: u16, content_type: Option<&str>) -> bool {
    takes_answer(status, content_type)
}

/// What a refused POST means, as an exception with its code.
#[pyfunction]
pub(crate) fn client_refusal(status: u16) -> PyErr {
    let failure = refused(status);
    raised(failure.to_string(), failure.code(), Some(status))
}
