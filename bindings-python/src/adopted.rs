//! Sessions whose owner is gone, and that the host here goes on with.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tailrope_core::engine::{self, OfferWake, SessionHandle, WeakSession};
use tailrope_core::protocol::Dialect;

use crate::admission::named_fault;
use crate::session::Session;
use crate::waiters::{Key, Waiters, calling};

/// The host adopts a session of another process, should that be gone. Holds nothing of the session.
#[pyclass(frozen, module = "tailrope._native")]
pub(crate) struct Offer {
    session: WeakSession,
    dialect: &'static Dialect,
    key: Key,
    is_over: Arc<AtomicBool>,
}

impl Offer {
    pub(crate) fn new(
        py: Python<'_>,
        session: &SessionHandle,
        dialect: &'static Dialect,
        waiters: &Waiters,
    ) -> PyResult<Self> {
        let (key, wake) = waiters.shared.key();
        let (wake, is_over) = OfferWake::new(wake, key.number);
        calling(py, || session.offer_adoption(Arc::new(wake), key.number))?;
        Ok(Self { session: session.downgrade(), dialect, key, is_over })
    }
}

#[pymethods]
impl Offer {
    /// What the loop's waiters know it as. They are told when `take` has something, or `is_over` has changed.
    #[getter]
    fn key(&self) -> u64 {
        self.key.number
    }

    /// Whether it counts no more: the session is not looked at here any longer, or there is a later offer.
    #[getter]
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// The session, once, where it is this process's from now on. `waiters` are those of `Engine.open_session`.
    fn take(&self, py: Python<'_>, waiters: &Waiters) -> PyResult<Option<Adopted>> {
        let (key, wake) = waiters.shared.key();
        let number = key.number;
        let take = || self.session.upgrade().and_then(|session| session.take_adopted(wake, number));
        let Some(adopted) = calling(py, take)? else { return Ok(None) };
        let (handle, dialect) = (adopted.session().clone(), self.dialect);
        // Its record says whose it is.
        let session = Session { handle, dialect, key: Some(key), is_claimed: AtomicBool::new(true) };
        Ok(Some(Adopted { session: Py::new(py, session)?, adopted, dialect }))
    }
}

/// A session that is this process's, and whose server has yet to go on with it.
#[pyclass(frozen, module = "tailrope._native")]
pub(crate) struct Adopted {
    adopted: engine::Adopted,
    session: Py<Session>,
    dialect: &'static Dialect,
}

#[pymethods]
impl Adopted {
    /// The session, as one that was opened here.
    #[getter]
    fn session(&self, py: Python<'_>) -> Py<Session> {
        self.session.clone_ref(py)
    }

    #[getter]
    fn session_id(&self) -> &str {
        self.adopted.session().id()
    }

    /// What the log calls the session.
    #[getter]
    fn name(&self) -> &str {
        self.adopted.session().name()
    }

    /// The messages that the server is given first, in this order. Their answers go nowhere.
    #[getter]
    fn replay<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        self.adopted.replay().iter().map(|body| PyBytes::new(py, body)).collect()
    }

    /// The server cannot go on with the session: it is released, and this is the answer to what waits. See the core's
    /// `Fault`.
    fn refuse(&self, py: Python<'_>, fault: &str, text: &str) -> PyResult<()> {
        let refusal = named_fault(fault, text)?.refusal(self.dialect);
        calling(py, || self.adopted.refuse(&refusal))
    }
}
