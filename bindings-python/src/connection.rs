//! One HTTP answer.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tailrope_core::engine::{self, CloseReason, Poll};

use crate::waiters::{Key, calling};

/// A connection of a stream. Its writer polls it, writes what it gets, and waits for its key.
#[pyclass(frozen, module = "tailrope._native")]
pub(crate) struct Connection {
    pub(crate) connection: engine::Connection,
    pub(crate) key: Key,
}

type Polled<'py> =
    (u16, Option<&'static str>, bool, Option<Bound<'py, PyBytes>>, Option<&'static str>, u64, Option<u32>);

#[pymethods]
impl Connection {
    /// What the loop's waiters know it as.
    #[getter]
    fn key(&self) -> u64 {
        self.key.number
    }

    /// What to write next, at most about `max_bytes`: `(status, content_type, names_session, data, end, wait_ms,
    /// retry_after_s)`.
    ///
    /// `status` is 0 while the store has not said how the answer starts. `data` is None when there is
    /// nothing to write. `end` names the reason when the connection ends after the data. `wait_ms` is
    /// when the engine has to be ticked at the latest. `retry_after_s` belongs to the status.
    fn poll<'py>(&self, py: Python<'py>, max_bytes: usize) -> PyResult<Polled<'py>> {
        let poll = calling(py, || self.connection.poll(max_bytes))?;
        let data = if poll.is_empty() { None } else { Some(join(py, &poll)?) };
        let (status, content_type, names_session, retry_after_s) = poll.head.map_or((0, None, true, None), |head| {
            (head.status, head.content_type, head.names_session, head.retry_after_s())
        });
        let wait_ms = self.connection.wait_ms(&poll);
        let end = poll.end.map(CloseReason::as_str);
        Ok((status, content_type, names_session, data, end, wait_ms, retry_after_s))
    }

    /// The peer is gone.
    fn lost(&self, py: Python<'_>) -> PyResult<()> {
        calling(py, || self.connection.lost())
    }
}

/// The chunks as one `bytes`: the one copy between the store and the socket.
fn join<'py>(py: Python<'py>, poll: &Poll) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, poll.len(), |mut out| {
        for chunk in &poll.chunks {
            let bytes = chunk.as_ref();
            let (head, rest) = out.split_at_mut(bytes.len());
            head.copy_from_slice(bytes);
            out = rest;
        }
        Ok(())
    })
}
