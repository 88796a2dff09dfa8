//! The messages of an SDK's own transport in our stores.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tailrope_core::engine::{self, EngineError, HookReplay, Wake};
use tailrope_core::store::{EventKind, StoreError};

use crate::convert::{payload, to_py_err};
use crate::waiters::{Key, Waiters, calling};

/// A log by the names that an SDK gives its streams, in scopes.
#[pyclass(frozen, module = "tailrope._native")]
pub(crate) struct HookLog {
    pub(crate) log: engine::HookLog,
}

type Outcome = Arc<Mutex<Option<Result<Answer, StoreError>>>>;

enum Answer {
    Stored(String),
    Replayed(Option<HookReplay>),
}

/// An operation of a log. Its key is woken when it has its outcome.
#[pyclass(frozen, module = "tailrope._native")]
pub(crate) struct Pending {
    outcome: Outcome,
    key: Key,
}

/// A new operation, and what takes its outcome, on any thread.
fn pending(waiters: &Waiters) -> (Pending, impl FnOnce(Result<Answer, StoreError>) + Send + 'static) {
    let (key, wake): (Key, Arc<dyn Wake>) = waiters.shared.key();
    let (number, outcome) = (key.number, Outcome::default());
    let told = Arc::clone(&outcome);
    let tell = move |result| {
        if let Err(error) = &result {
            tracing::warn!(target: "tailrope", %error, "event store failed the SDK's transport");
        }
        *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        wake.wake(number);
    };
    (Pending { outcome, key }, tell)
}

#[pymethods]
impl HookLog {
    /// Stores a message of a stream: a `notification`, a `request` or a `response`. An empty payload is a
    /// position without a message, as primings are.
    fn store(
        &self,
        py: Python<'_>,
        waiters: &Waiters,
        scope: &str,
        stream: &str,
        kind: &str,
        payload_json: &Bound<'_, PyAny>,
    ) -> PyResult<Pending> {
        let kind = match kind {
            "notification" => EventKind::Progress,
            "request" => EventKind::Question,
            "response" => EventKind::Terminal,
            other => return Err(PyValueError::new_err(format!("no kind of message: {other}"))),
        };
        let bytes = bytes::Bytes::copy_from_slice(payload(payload_json)?);
        let (pending, tell) = pending(waiters);
        let done = Box::new(move |result: Result<String, StoreError>| tell(result.map(Answer::Stored)));
        calling(py, || self.log.store(scope, stream, kind, bytes, done))?;
        Ok(pending)
    }

    /// Asks for what a scope holds after an id.
    fn replay(&self, py: Python<'_>, waiters: &Waiters, scope: &str, last_event_id: &str) -> PyResult<Pending> {
        let (pending, tell) = pending(waiters);
        let done = Box::new(move |result: Result<Option<HookReplay>, StoreError>| tell(result.map(Answer::Replayed)));
        calling(py, || self.log.replay(scope, last_event_id, done))?;
        Ok(pending)
    }

    /// Forgets what a scope holds.
    fn drop_scope(&self, py: Python<'_>, scope: &str) -> PyResult<()> {
        calling(py, || self.log.drop_scope(scope))
    }
}

#[pymethods]
impl Pending {
    /// What the loop's waiters know it as.
    #[getter]
    fn key(&self) -> u64 {
        self.key.number
    }

    /// Whether the store has told, and what: the id of what was stored; or the stream that an id belongs to with
    /// the ids and messages after it, None when the id means nothing. Raises TailropeError when it failed.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<(bool, Option<Bound<'py, PyAny>>)> {
        if self.key.is_foreign() {
            // A thread of the parent may have been telling when it forked.
            return Err(to_py_err(&EngineError::Forked));
        }
        let told = self.outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
        let found = match told {
            None => return Ok((false, None)),
            // Its words say nothing of the store (I9).
            Some(Err(error)) => return Err(to_py_err(&EngineError::Store(error))),
            Some(Ok(found)) => found,
        };
        let value = match found {
            Answer::Stored(id) => Some(id.into_pyobject(py)?.into_any()),
            Answer::Replayed(None) => None,
            Answer::Replayed(Some(HookReplay { stream, events })) => {
                let events: Vec<_> = events.into_iter().map(|(id, payload)| (id, PyBytes::new(py, &payload))).collect();
                Some((stream, events).into_pyobject(py)?.into_any())
            }
        };
        Ok((true, value))
    }
}
