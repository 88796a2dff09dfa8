//! The listener in front of the app, which serves what needs no interpreter.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use tailrope_server::front::{self, AppAddress, Asked, FrontOptions, FrontTerms};

use crate::admission::Admission;
use crate::engine::Engine;
use crate::session::Session;
use crate::waiters::{Key, Waiters, calling};

#[cfg(unix)]
type Descriptor = std::os::fd::RawFd;
#[cfg(windows)]
type Descriptor = std::os::windows::io::RawSocket;

/// A running listener. `waiters` are told, with its key, when there is something to take.
#[pyclass(frozen, module = "tailrope._native")]
pub(crate) struct Front {
    front: front::Front,
    key: Key,
}

#[pymethods]
impl Front {
    /// `listeners` are descriptors of sockets that listen; they belong to the front from now on. `app` is where the app
    /// listens: the path of a Unix socket, or an address with its port.
    #[new]
    fn new(engine: &Engine, waiters: &Waiters, listeners: Vec<Descriptor>, app: &str) -> PyResult<Self> {
        let listeners = listeners.into_iter().map(owned).collect();
        let mut options = FrontOptions::new(app_address(app)?);
        options.listeners = listeners;
        let (key, wake) = waiters.shared.key();
        let front = front::Front::start(engine.engine.clone(), options, wake, key.number)?;
        Ok(Self { front, key })
    }

    #[getter]
    fn key(&self) -> u64 {
        self.key.number
    }

    /// Serves the plain requests of a session from now on: those for this path and one of these hosts and origins, where
    /// these are not None, and of one of these versions, where the SDK gives requests of others to something else.
    #[expect(clippy::too_many_arguments, reason = "the terms of a session")]
    fn serve(
        &self,
        py: Python<'_>,
        session: &Session,
        path: String,
        json_response: bool,
        versions: Option<Vec<String>>,
        hosts: Option<Vec<String>>,
        origins: Option<Vec<String>>,
        max_body_bytes: usize,
    ) -> PyResult<()> {
        let mut terms = FrontTerms::new(path);
        terms.json_response = json_response;
        terms.versions = versions;
        terms.allowed_hosts = hosts;
        terms.allowed_origins = origins;
        terms.max_body_bytes = max_body_bytes;
        calling(py, || self.front.serve(&session.handle, terms))
    }

    /// What waits for the host, in the order in which it came.
    fn take(&self, py: Python<'_>) -> PyResult<Vec<Arrival>> {
        Ok(calling(py, || self.front.take())?.into_iter().map(Arrival::new).collect())
    }

    /// Accepts nothing more. Answers that run go on.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        calling(py, || self.front.stop())
    }

    /// Stops, waits until no answer runs, and cuts those that still do when the time is over.
    fn close(&self, py: Python<'_>, within_ms: u64) -> PyResult<()> {
        py.detach(|| self.front.close(within_ms));
        calling(py, || ())
    }
}

fn owned(descriptor: Descriptor) -> TcpListener {
    #[cfg(unix)]
    use std::os::fd::FromRawFd as FromRaw;
    #[cfg(windows)]
    use std::os::windows::io::FromRawSocket as FromRaw;

    // SAFETY: the caller has detached it from its own object, so nobody else closes it.
    unsafe {
        #[cfg(unix)]
        return <TcpListener as FromRaw>::from_raw_fd(descriptor);
        #[cfg(windows)]
        return <TcpListener as FromRaw>::from_raw_socket(descriptor);
    }
}

fn app_address(app: &str) -> PyResult<AppAddress> {
    if let Ok(address) = app.parse::<SocketAddr>() {
        return Ok(AppAddress::Tcp(address));
    }
    #[cfg(unix)]
    return Ok(AppAddress::Unix(PathBuf::from(app)));
    #[cfg(not(unix))]
    Err(PyValueError::new_err("the app listens at an address with a port"))
}

/// What a front has for its host. When it is dropped and was not settled, the app gets it.
#[pyclass(frozen, module = "tailrope._native")]
pub(crate) struct Arrival(Mutex<Option<front::Arrival>>, Arc<str>);

impl Arrival {
    fn new(arrival: front::Arrival) -> Self {
        let session = match &arrival {
            front::Arrival::Call(call) => call.session().name(),
            front::Arrival::Message(message) => message.session().name(),
            front::Arrival::Idle(session) => session.name(),
        };
        let session = Arc::from(session);
        Self(Mutex::new(Some(arrival)), session)
    }

    fn asked<T>(&self, read: impl FnOnce(&Asked) -> T) -> PyResult<T> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(front::Arrival::Call(call)) => Ok(read(call)),
            Some(front::Arrival::Message(message)) => Ok(read(message)),
            _ => Err(PyValueError::new_err("it is settled, or no request")),
        }
    }

    fn settle(&self) -> Option<front::Arrival> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Address and port of a client.
type Address = (String, u16);

#[pymethods]
impl Arrival {
    /// What `Engine.tick` knows the session as.
    #[getter]
    fn session_name(&self) -> &str {
        &self.1
    }

    /// Whether it is no request: the engine says that the session is idle.
    #[getter]
    fn is_idle(&self) -> bool {
        matches!(*self.0.lock().unwrap_or_else(PoisonError::into_inner), Some(front::Arrival::Idle(_)))
    }

    /// `(admission, query_string, headers, http_version, client, body)`, as ASGI has them. The body is as the handlers are
    /// to take it.
    #[expect(clippy::type_complexity, reason = "one crossing for each request")]
    fn read<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Admission, Bound<'py, PyBytes>, Bound<'py, PyList>, &'static str, Address, Bound<'py, PyBytes>)>
    {
        self.asked(|asked| {
            let parts = asked.parts();
            let bytes = |bytes: &[u8]| PyBytes::new(py, bytes);
            let headers = parts.headers.iter();
            let headers = headers.map(|(name, value)| (bytes(name.as_str().as_bytes()), bytes(value.as_bytes())));
            let headers = PyList::new(py, headers.collect::<Vec<_>>())?;
            let http_version = if parts.version == http::Version::HTTP_10 { "1.0" } else { "1.1" };
            Ok((
                Admission(asked.admission().clone()),
                bytes(parts.uri.query().unwrap_or_default().as_bytes()),
                headers,
                http_version,
                (asked.peer().ip().to_string(), asked.peer().port()),
                bytes(asked.body()),
            ))
        })?
    }

    /// Puts the requests of a call in flight, and opens the connection that answers it. False where the app answers it:
    /// then nothing is dispatched.
    fn begin(&self, py: Python<'_>, admission: &Admission) -> PyResult<bool> {
        // The front has its own.
        let _ = admission;
        let Some(front::Arrival::Call(call)) = self.settle() else { return Ok(false) };
        calling(py, || call.open())
    }

    /// The SDK has been given a message that gets no answer.
    fn done(&self, py: Python<'_>) -> PyResult<()> {
        let Some(front::Arrival::Message(message)) = self.settle() else { return Ok(()) };
        calling(py, || message.accept())
    }

    /// It is not taken here: the app gets it, and says why.
    fn refuse(&self, py: Python<'_>, fault: &str, text: &str) -> PyResult<()> {
        let _ = (fault, text);
        let arrival = self.settle();
        calling(py, || drop(arrival))
    }
}
