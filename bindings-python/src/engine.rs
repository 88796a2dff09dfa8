//! The engine.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tailrope_core::engine::{self, NoWake, Options};
use tailrope_core::protocol::jsonrpc;
use tailrope_core::store::HostStore;

use crate::convert::{dialect, request_id_to_py, to_py_err};
use crate::session::Session;
use crate::waiters::{Waiters, flush};

/// An engine with its event store.
#[pyclass(frozen, module = "tailrope._native")]
pub(crate) struct Engine {
    engine: engine::Engine,
}

#[pymethods]
impl Engine {
    /// An engine with these options; what is not named keeps its default. Options are whole numbers
    /// that are not negative; unknown names raise ValueError.
    ///
    /// With `host_store` the events go to a store of the host: see `Session.take_operations`.
    #[new]
    #[pyo3(signature = (host_store=false, **options))]
    fn new(host_store: bool, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut chosen = Options::default();
        for (name, value) in options.into_iter().flatten() {
            set_option(&mut chosen, &name.extract::<String>()?, &value)?;
        }
        if host_store {
            chosen.store = Some(Arc::new(HostStore::new(chosen.limits)));
        }
        Ok(Self { engine: engine::Engine::new(chosen) })
    }

    /// Opens a session. `sdk_major` is the major version of the `mcp` package whose answers are given.
    /// `retry_ms` is the session's own, where the host has one.
    /// `waiters` are told, with the session's key, when a late outcome or an operation of the host's
    /// own store is there.
    fn open_session(
        &self,
        py: Python<'_>,
        id: &str,
        sdk_major: u8,
        retry_ms: Option<u32>,
        waiters: Option<&Waiters>,
    ) -> PyResult<Session> {
        let dialect = dialect(sdk_major)?;
        let (key, wake) = match waiters.map(|waiters| waiters.shared.key()) {
            Some((key, wake)) => (Some(key), wake),
            None => (None, Arc::new(NoWake) as _),
        };
        let number = key.as_ref().map_or(0, |key| key.number);
        let opened = self.engine.open_session(id, None, dialect, wake, number);
        flush(py);
        match opened {
            Ok(handle) => {
                if let Some(retry_ms) = retry_ms {
                    handle.set_retry_ms(retry_ms);
                }
                Ok(Session { handle, dialect, key })
            }
            Err(error) => Err(to_py_err(py, &error)),
        }
    }

    /// Does what time asks for.
    fn tick(&self, py: Python<'_>) {
        self.engine.tick();
        flush(py);
    }

    /// Whether no session is open: then there is nothing to tick for.
    fn is_idle(&self) -> bool {
        self.engine.is_idle()
    }

    /// Milliseconds until `tick` is due.
    fn due_in_ms(&self) -> u64 {
        self.engine.due_in_ms()
    }

    /// Closes every connection with `retry_ms`, now and from now on.
    fn drain(&self, py: Python<'_>, retry_ms: u32) {
        self.engine.drain(retry_ms);
        flush(py);
    }

    /// Ends every session; nothing is taken afterwards.
    fn close(&self, py: Python<'_>) {
        self.engine.close();
        flush(py);
    }

    /// To be called in the child of a fork.
    fn mark_forked(&self) {
        self.engine.mark_forked();
    }

    /// What the engine did and holds: counts by name.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = PyDict::new(py);
        for (name, value) in self.engine.stats().entries() {
            stats.set_item(name, value)?;
        }
        Ok(stats)
    }

    /// The options in force, by name.
    fn options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Options { pacing, limits, max_sessions, max_detached_ms, store_timeout_ms, warn_event_bytes, .. } =
            self.engine.options();
        let options = PyDict::new(py);
        options.set_item("retry_ms", pacing.retry_ms)?;
        options.set_item("keep_alive_ms", pacing.keep_alive_ms)?;
        options.set_item("max_connection_ms", pacing.max_connection_ms)?;
        options.set_item("max_connection_bytes", pacing.max_connection_bytes)?;
        options.set_item("store_wait_ms", pacing.store_wait_ms)?;
        options.set_item("store_timeout_ms", *store_timeout_ms)?;
        options.set_item("max_events_per_stream", limits.max_events_per_stream)?;
        options.set_item("max_bytes_per_stream", limits.max_bytes_per_stream)?;
        options.set_item("max_bytes_per_session", limits.max_bytes_per_session)?;
        options.set_item("max_bytes", limits.max_bytes)?;
        options.set_item("max_event_bytes", limits.max_event_bytes)?;
        options.set_item("retention_ms", limits.retention_ms)?;
        options.set_item("max_age_ms", limits.max_age_ms)?;
        options.set_item("max_sessions", max_sessions)?;
        options.set_item("max_detached_ms", max_detached_ms)?;
        options.set_item("warn_event_bytes", warn_event_bytes)?;
        Ok(options)
    }
}

fn set_option(options: &mut Options, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    let invalid = |_| PyValueError::new_err(format!("{name} must be a whole number that is not negative"));
    let number = value.extract::<u64>().map_err(invalid)?;
    // Zero means "off" where there is something to switch off; a bound of nothing would serve nobody.
    let may_be_zero = ["keep_alive_ms", "max_connection_ms", "max_connection_bytes", "store_wait_ms", "retry_ms"];
    if number == 0 && !may_be_zero.contains(&name) {
        return Err(PyValueError::new_err(format!("{name} must be at least 1")));
    }
    let size = usize::try_from(number).unwrap_or(usize::MAX);
    let small = u32::try_from(number);
    match name {
        "retry_ms" => options.pacing.retry_ms = small.map_err(|_| PyValueError::new_err("retry_ms is too large"))?,
        "keep_alive_ms" => options.pacing.keep_alive_ms = number,
        "max_connection_ms" => options.pacing.max_connection_ms = number,
        "max_connection_bytes" => options.pacing.max_connection_bytes = number,
        "store_wait_ms" => options.pacing.store_wait_ms = number,
        "store_timeout_ms" => options.store_timeout_ms = number,
        "max_events_per_stream" => options.limits.max_events_per_stream = size,
        "max_bytes_per_stream" => options.limits.max_bytes_per_stream = size,
        "max_bytes_per_session" => options.limits.max_bytes_per_session = size,
        "max_bytes" => options.limits.max_bytes = size,
        "max_event_bytes" => options.limits.max_event_bytes = size,
        "retention_ms" => options.limits.retention_ms = number,
        "max_age_ms" => options.limits.max_age_ms = number,
        "max_sessions" => options.max_sessions = size,
        "max_detached_ms" => options.max_detached_ms = number,
        "warn_event_bytes" => options.warn_event_bytes = size,
        _ => return Err(PyValueError::new_err(format!("unknown option {name}"))),
    }
    Ok(())
}

/// The id of the single request in a body; None when there is none.
#[pyfunction]
pub(crate) fn envelope_id<'py>(py: Python<'py>, body: &[u8]) -> PyResult<Option<Bound<'py, PyAny>>> {
    match jsonrpc::read(body) {
        Ok(jsonrpc::Body::Single(envelope)) => envelope.id.as_ref().map(|id| request_id_to_py(py, id)).transpose(),
        _ => Ok(None),
    }
}
