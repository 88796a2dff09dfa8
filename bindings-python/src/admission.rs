//! An HTTP request as the core sees it.

use pyo3::exceptions::{PyLookupError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use tailrope_core::engine::{Options, SynthesizedEnd, end_payload, nameless_end};
use tailrope_core::exchange::{self, Action, Fault, Member, Requester};
use tailrope_core::protocol::{self, Dialect, Revision};

use crate::convert::request_id;
use crate::posted::latin1;

/// The parts of a request's head that count, from ASGI's list of raw headers.
#[derive(Default)]
pub(crate) struct Headers<'a> {
    accept: Option<&'a str>,
    content_type: Option<&'a str>,
    protocol_version: Option<&'a str>,
    session_id: Option<&'a str>,
    last_event_id: Option<&'a str>,
    credentials: Vec<(&'a str, String)>,
}

impl<'a> Headers<'a> {
    /// `pairs` are the cast items of the header list, kept alive by the caller.
    pub(crate) fn read(pairs: &'a [(Bound<'_, PyBytes>, Bound<'_, PyBytes>)], options: &Options) -> Self {
        let mut headers = Self::default();
        for (name, value) in pairs {
            let slot = match name.as_bytes() {
                b"accept" => &mut headers.accept,
                b"content-type" => &mut headers.content_type,
                b"mcp-protocol-version" => &mut headers.protocol_version,
                b"mcp-session-id" => &mut headers.session_id,
                b"last-event-id" => &mut headers.last_event_id,
                name => {
                    if let Ok(name) = std::str::from_utf8(name)
                        && options.is_identity_header(name)
                    {
                        headers.credentials.push((name, latin1(value.as_bytes())));
                    }
                    continue;
                }
            };
            slot.get_or_insert(text(value));
        }
        headers
    }

    /// Calls `with` with what the engine has to know about the sender.
    pub(crate) fn ask<T>(
        &self,
        user_json: Option<&str>,
        named: Option<&str>,
        log_user: Option<&str>,
        with: impl FnOnce(&Requester<'_>) -> T,
    ) -> T {
        let credentials: Vec<(&str, &str)> = self.credentials.iter().map(|(name, value)| (*name, &**value)).collect();
        with(&Requester { named, user_json, log_user, credentials: &credentials })
    }

    pub(crate) fn head(&self, method: &'a str) -> protocol::Head<'a> {
        protocol::Head {
            method,
            accept: self.accept,
            content_type: self.content_type,
            protocol_version: self.protocol_version,
            session_id: self.session_id,
            last_event_id: self.last_event_id,
        }
    }
}

/// A value as text. Bytes that are no text match nothing that is asked for.
pub(crate) fn text<'a>(value: &'a Bound<'_, PyBytes>) -> &'a str {
    std::str::from_utf8(value.as_bytes()).unwrap_or("\u{fffd}")
}

/// Casts ASGI's headers: an iterable of two `bytes` each.
pub(crate) fn header_pairs<'py>(
    headers: &Bound<'py, PyAny>,
) -> PyResult<Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
    let pair = |item: Bound<'py, PyAny>| -> PyResult<_> {
        if let Ok(tuple) = item.cast::<PyTuple>()
            && tuple.len() == 2
        {
            return Ok((tuple.get_item(0)?.cast_into()?, tuple.get_item(1)?.cast_into()?));
        }
        Ok((part(&item, 0)?.cast_into()?, part(&item, 1)?.cast_into()?))
    };
    if let Ok(list) = headers.cast::<PyList>() {
        return list.iter().map(pair).collect();
    }
    headers.try_iter()?.map(|item| pair(item?)).collect()
}

/// The name or the value of a header that is no tuple of two.
fn part<'py>(header: &Bound<'py, PyAny>, place: usize) -> PyResult<Bound<'py, PyAny>> {
    header.get_item(place).map_err(|error| match error.is_instance_of::<PyLookupError>(header.py()) {
        true => PyTypeError::new_err("a header is a name and a value"),
        false => error,
    })
}

/// A request that may enter its session.
#[pyclass(frozen, module = "tailrope._native")]
pub(crate) struct Admission(pub(crate) exchange::Admission);

#[pymethods]
impl Admission {
    /// `call`, `message` (notifications and answers only), `listen`, `resume` or `delete`.
    #[getter]
    fn action(&self) -> &'static str {
        match self.0.action() {
            Action::Call => "call",
            Action::Message => "message",
            Action::Listen => "listen",
            Action::Resume => "resume",
            Action::Delete => "delete",
        }
    }

    /// What the handlers are given in the place of the body, where that differs: a session that was adopted knows its server's
    /// requests by other ids than its client. Empty where there is nothing for the handlers.
    #[getter]
    fn rewritten(&self) -> Option<&[u8]> {
        self.0.rewritten().map(|body| &**body)
    }

    /// The status of the answer to `message` and `delete`, which is empty; 0 for what opens a connection.
    #[getter]
    fn status(&self) -> u16 {
        self.0.status().unwrap_or_default()
    }
}

/// The answer to a request that may not.
#[pyclass(frozen, module = "tailrope._native")]
pub(crate) struct Refusal {
    #[pyo3(get)]
    status: u16,
    body: Vec<u8>,
    #[pyo3(get)]
    names_session: bool,
    #[pyo3(get)]
    allow: Option<&'static str>,
    #[pyo3(get)]
    message: String,
    #[pyo3(get)]
    retry_after_s: Option<u32>,
}

impl Refusal {
    pub(crate) fn new(refusal: &protocol::Refusal, dialect: &Dialect) -> Self {
        Self {
            status: refusal.status,
            body: refusal.body(dialect),
            names_session: refusal.names_session(dialect),
            allow: refusal.allow,
            message: refusal.message.clone(),
            retry_after_s: refusal.retry_after_s(),
        }
    }
}

pub(crate) fn named_fault<'a>(fault: &str, text: &'a str) -> PyResult<Fault<'a>> {
    Fault::named(fault, text).ok_or_else(|| PyValueError::new_err(format!("there is no fault {fault:?}")))
}

/// Whether a member of this name counts of what authentication left of a user: it names or places the user, or has such
/// members in it.
#[pyfunction]
pub(crate) fn is_user_member(name: &str) -> bool {
    Member::named(name).is_some()
}

/// Whether what authentication left names a user: see the core's `names_user`.
#[pyfunction]
pub(crate) fn names_user(user_json: &str) -> bool {
    exchange::names_user(user_json)
}

/// The name of the server that a request is for, by what ASGI says of it: see the core's `asgi_server_name`.
#[pyfunction]
pub(crate) fn server_name(raw_path: Option<&[u8]>, path: &str, root_path: &str) -> String {
    exchange::asgi_server_name(raw_path, path, root_path)
}

/// The error that stands for a response that is no JSON.
#[pyfunction]
pub(crate) fn unwritable<'py>(py: Python<'py>, request: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyBytes>> {
    let end = SynthesizedEnd::Unwritable;
    let payload = match request.map(request_id).transpose()? {
        Some(request) => end_payload(&request, end),
        None => nameless_end(end),
    };
    Ok(PyBytes::new(py, &payload))
}

/// Whether sessions of this revision can be resumed; false for one that is not known.
#[pyfunction]
pub(crate) fn is_resumable(revision: &str) -> bool {
    Revision::parse(revision).is_some_and(|revision| revision.rules().resumable)
}

/// What the core reads a body as, as JSON: see `inspect` there. Only in builds for tests.
#[cfg(feature = "testing")]
#[pyfunction]
pub(crate) fn inspect_body(sdk_major: u8, body: &[u8]) -> PyResult<String> {
    Ok(protocol::inspect::inspect(body, crate::convert::dialect(sdk_major)?).to_string())
}

#[pymethods]
impl Refusal {
    /// The body, as `application/json`.
    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.body)
    }
}
