//! Sessions that live in another process, or lived in one.

use std::sync::atomic::AtomicBool;

use pyo3::prelude::*;
use tailrope_core::engine;
use tailrope_core::protocol::Dialect;

use crate::convert::to_py_err;
use crate::session::Session;
use crate::waiters::{Key, calling};

/// A session that is looked up in the event store.
#[pyclass(frozen, module = "tailrope._native")]
pub(crate) struct LookUp {
    pub(crate) look_up: engine::LookUp,
    pub(crate) dialect: &'static Dialect,
    pub(crate) key: Key,
}

#[pymethods]
impl LookUp {
    /// What the loop's waiters know it as.
    #[getter]
    fn key(&self) -> u64 {
        self.key.number
    }

    /// Whether the store has told, and the session if there is one for this principal. Raises TailropeError
    /// when the store cannot tell.
    fn take(&self, py: Python<'_>) -> PyResult<(bool, Option<Session>)> {
        match calling(py, || self.look_up.take())? {
            None => Ok((false, None)),
            Some(Ok(found)) => {
                let session = |handle| Session {
                    handle,
                    dialect: self.dialect,
                    key: None,
                    // Only its own principal finds it.
                    is_claimed: AtomicBool::new(true),
                };
                Ok((true, found.map(session)))
            }
            Some(Err(error)) => Err(to_py_err(&error)),
        }
    }
}
