//! Requests that other processes relay to a session of this one.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tailrope_core::engine;
use tailrope_core::exchange::{Relayed, RelayedMethod, Terms};
use tailrope_core::protocol::Dialect;

use crate::admission::{Admission, header_pairs, named_fault};
use crate::waiters::calling;

/// A request that another process relayed. When it is dropped and was not settled, it is refused.
#[pyclass(frozen, module = "tailrope._native")]
pub(crate) struct Posted {
    pub(crate) posted: engine::Posted,
    pub(crate) dialect: &'static Dialect,
}

#[pymethods]
impl Posted {
    /// `POST` or `DELETE`.
    #[getter]
    fn method(&self) -> &'static str {
        self.posted.relayed().method().as_str()
    }

    /// The headers that travelled, as ASGI has them.
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        asgi_headers(py, self.posted.relayed().headers())
    }

    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.posted.relayed().body())
    }

    /// What the other process's `Session.relay` was given.
    #[getter]
    fn auth_json(&self) -> Option<&str> {
        self.posted.relayed().auth()
    }

    /// Examines it as `Session.admit` does a request that comes here. None where it is refused, and settled.
    fn admit(&self, py: Python<'_>, json_response: bool) -> PyResult<Option<Admission>> {
        let terms = Terms { json_response, ..Terms::default() };
        Ok(calling(py, || self.posted.admit(&terms))?.map(Admission))
    }

    /// Puts the requests of a call in flight. False where they are refused, and settled: then nothing is dispatched.
    fn begin(&self, py: Python<'_>, admission: &Admission) -> PyResult<bool> {
        calling(py, || self.posted.begin(&admission.0))
    }

    /// The SDK has been given a message that gets no answer.
    fn done(&self, py: Python<'_>) -> PyResult<()> {
        calling(py, || self.posted.done())
    }

    /// It is not taken: see the core's `Fault`.
    fn refuse(&self, py: Python<'_>, fault: &str, text: &str) -> PyResult<()> {
        let refusal = named_fault(fault, text)?.refusal(self.dialect);
        calling(py, || self.posted.refuse(&refusal))
    }
}

/// What may travel of a request: see `Session.relay`.
pub(crate) fn relayed(
    method: RelayedMethod,
    headers: &Bound<'_, PyAny>,
    body: &[u8],
    more: &[String],
    auth_json: Option<&str>,
    dropped: Vec<String>,
) -> PyResult<Relayed> {
    let pairs = header_pairs(headers)?;
    let headers: Vec<_> =
        pairs.iter().map(|(name, value)| (latin1(name.as_bytes()), latin1(value.as_bytes()))).collect();
    let headers = headers.iter().map(|(name, value)| (&**name, &**value));
    let more: Vec<&str> = more.iter().map(|name| &**name).collect();
    Ok(Relayed::new(method, bytes::Bytes::copy_from_slice(body), headers, &more, auth_json).without(dropped))
}

/// The headers that travelled, as ASGI has them.
pub(crate) fn asgi_headers<'py, 'a>(
    py: Python<'py>,
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    let bytes = |text: &str| PyBytes::new(py, &from_latin1(text));
    headers.into_iter().map(|(name, value)| (bytes(name), bytes(value))).collect()
}

/// The bytes of a header as text, which loses none of them.
pub(crate) fn latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

/// The same back. What is no such text comes from a host that knows headers as text.
fn from_latin1(text: &str) -> Vec<u8> {
    text.chars().map(u8::try_from).collect::<Result<_, _>>().unwrap_or_else(|_| text.as_bytes().to_vec())
}
