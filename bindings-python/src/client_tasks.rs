//! The client's half of tasks: which requests are sent again, and how a task is followed, is decided in the core.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tailrope_core::Ms;
use tailrope_core::client::{Failure, FollowPost, FollowedCall as Call, Next, Repeats, may_repeat};

use crate::client::ClientOptions;
use crate::convert::raised;
use crate::panics::caught;

/// One request about a task, and how often it was sent in vain.
#[pyclass(module = "tailrope._native")]
pub(crate) struct ClientRepeats {
    repeats: Repeats,
}

#[pymethods]
impl ClientRepeats {
    /// Of a POST; None where it is not to be sent again.
    #[staticmethod]
    fn of(protocol_version: Option<&str>, body: &[u8], options: &ClientOptions) -> PyResult<Option<Self>> {
        let may_repeat = caught(|| may_repeat(protocol_version, body))?;
        Ok(may_repeat.then(|| Self { repeats: Repeats::new(options.options.clone()) }))
    }

    /// How long to wait before it is sent again; None where this outcome counts.
    fn after(&mut self, now: u64, jitter: u32, status: Option<u16>, retry_after_ms: Option<u64>) -> Option<u64> {
        self.repeats.after(Ms(now), jitter, status, retry_after_ms)
    }
}

/// A call of a client that knows no tasks.
#[pyclass(module = "tailrope._native")]
pub(crate) struct FollowedCall {
    call: Call,
}

type Post<'py> = (&'static str, Option<String>, Bound<'py, PyBytes>);
type Answered<'py> = (Bound<'py, PyBytes>, Option<u64>);

fn post(py: Python<'_>, post: FollowPost) -> Post<'_> {
    (post.method, post.name, PyBytes::new(py, post.body.as_bytes()))
}

fn answered(py: Python<'_>, (frames, next): (Vec<u8>, Next)) -> Answered<'_> {
    let after_ms = match next {
        Next::Poll { after_ms } => Some(after_ms),
        Next::Over => None,
    };
    (PyBytes::new(py, &frames), after_ms)
}

#[pymethods]
impl FollowedCall {
    /// Of a POST; None where it is left to its client.
    #[staticmethod]
    fn of(protocol_version: Option<&str>, body: &[u8], options: &ClientOptions) -> PyResult<Option<Self>> {
        let call = caught(|| Call::of(protocol_version, body, options.options.max_event_bytes))?;
        Ok(call.map(|call| Self { call }))
    }

    /// What is sent first: its method, its `Mcp-Name` where that is another one, and the message.
    fn first<'py>(&self, py: Python<'py>) -> Post<'py> {
        post(py, self.call.first().clone())
    }

    #[getter]
    fn has_task(&self) -> bool {
        self.call.has_task()
    }

    /// Whether the call has its answer.
    #[getter]
    fn is_over(&self) -> bool {
        self.call.is_over()
    }

    /// The whole answer to the call: whether it is a task.
    fn created(&mut self, message: &[u8]) -> PyResult<bool> {
        caught(|| self.call.created(message))
    }

    /// Bytes of a stream that answers the call: what the client reads of them. Raises TailropeError.
    fn data<'py>(&mut self, py: Python<'py>, chunk: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let frames = caught(|| self.call.bytes(chunk))?.map_err(|large| {
            let failure = Failure::TooLarge { bytes: large.size_bytes, max: large.limit_bytes };
            raised(failure.to_string(), failure.code(), None)
        })?;
        Ok(PyBytes::new(py, &frames))
    }

    /// The request that asks how the task stands.
    fn poll<'py>(&mut self, py: Python<'py>) -> Post<'py> {
        post(py, self.call.poll())
    }

    /// The pause before the next poll, in milliseconds.
    #[getter]
    fn pause_ms(&self) -> u64 {
        match self.call.pause() {
            Next::Poll { after_ms } => after_ms,
            Next::Over => 0,
        }
    }

    /// The request that ends the task; None where there is none.
    fn cancel<'py>(&mut self, py: Python<'py>) -> Option<Post<'py>> {
        self.call.cancel().map(|cancel| post(py, cancel))
    }

    /// What a request about the task was answered with: what the client reads, and the pause before the next poll; None where
    /// the call is over.
    fn answered<'py>(&mut self, py: Python<'py>, status: u16, body: &[u8]) -> PyResult<Answered<'py>> {
        let outcome = caught(|| self.call.answered(status, body))?;
        Ok(answered(py, outcome))
    }

    /// Nothing came of any try.
    fn gave_up<'py>(&mut self, py: Python<'py>, attempts: u32, for_ms: u64) -> Answered<'py> {
        answered(py, self.call.failed(&Failure::GaveUp { attempts, for_ms }))
    }
}
