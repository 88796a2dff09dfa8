//! The engine.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tailrope_core::engine::{self, CallOptions, Health, NoWake, Stats};
use tailrope_core::exchange::Requester;
use tailrope_core::exchange::{Principal, RelayedMethod, Request};
use tailrope_core::protocol::{Context, Dialect, Operation, admit};
use tailrope_core::store::{HostStore, SessionId};
use tailrope_core::task::{self, CallHeaders, TaskHead};

use crate::admission::{Headers, Refusal, header_pairs, named_fault, text};
use crate::convert::{dialect, to_py_err};
use crate::hook_log::HookLog;
use crate::look_up::LookUp;
use crate::options::{engine_options, to_dict};
use crate::posted::latin1;
use crate::posted::relayed;
use crate::session::Session;
use crate::store::{Store, flush};
use crate::tasks::{DIALECT, Routed, TaskCall, TaskQuery, TaskRequest, TaskSubscription, routed};
use crate::telemetry::Telemetry;
use crate::waiters::{Waiters, calling};

/// What an engine knows of its health: see the core's `Health`.
type HealthParts = (Option<u64>, Option<u64>, bool, bool, u64, bool);

/// The HTTP status for a load balancer, and what it is told, as JSON, of the engines of the process.
#[pyfunction]
pub(crate) fn health_json(engines: Vec<HealthParts>) -> (u16, String) {
    let of_one = |(store_away_ms, store_refused_ms, is_refusing, is_draining, waiting_bytes, is_behind)| Health {
        store_away_ms,
        store_refused_ms,
        is_refusing,
        is_draining,
        waiting_bytes,
        is_behind,
    };
    let health = Health::of_all(engines.into_iter().map(of_one));
    (health.http_status(), health.to_json())
}

/// What the engines of the process did and hold: counts by name.
#[pyfunction]
pub(crate) fn stats_of<'py>(py: Python<'py>, engines: Vec<Py<Engine>>) -> PyResult<Bound<'py, PyDict>> {
    let stats = PyDict::new(py);
    for (counter, value) in all(&engines).entries() {
        stats.set_item(counter.name, value)?;
    }
    Ok(stats)
}

/// The same for Prometheus, and the content type of that. `process` is how it tells this process from others.
#[pyfunction]
pub(crate) fn exposition(engines: Vec<Py<Engine>>, process: &str) -> (&'static str, String) {
    (engine::EXPOSITION_TYPE, all(&engines).exposition(process))
}

fn all(engines: &[Py<Engine>]) -> Stats {
    Stats::of_all(engines.iter().map(|engine| &engine.get().engine))
}

/// The answer to a request for the live page of these engines: status, headers and body. See the core's `live_answer`.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "how PyO3 gives a list of objects")]
pub(crate) fn live_answer(
    py: Python<'_>,
    method: &str,
    query: &str,
    engines: Vec<PyRef<'_, Engine>>,
) -> (u16, Vec<(&'static str, String)>, String) {
    let engines: Vec<engine::Engine> = engines.iter().map(|one| one.engine.clone()).collect();
    // A snapshot of many sessions takes a while.
    let answer = py.detach(|| {
        engine::live_answer(method, Some(query), || engines.iter().filter_map(|one| one.live_snapshot()).collect())
    });
    (answer.status, answer.headers, answer.body)
}

/// An engine with its event store.
#[pyclass(frozen, module = "tailrope._native")]
pub(crate) struct Engine {
    pub(crate) engine: engine::Engine,
}

#[pymethods]
impl Engine {
    /// An engine with these options; what is not named keeps its default. Options are whole numbers that are not negative,
    /// except `on_store_failure` and `pace`; unknown names raise ValueError.
    ///
    /// With `host_store` the events go to a store of the host: see `Session.take_operations`. Otherwise to
    /// `store`, whose own options then count, or to the process's memory.
    #[new]
    #[pyo3(signature = (host_store=false, store=None, **options))]
    fn new(
        py: Python<'_>,
        host_store: bool,
        store: Option<&Store>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let mut chosen = engine_options(options)?;
        chosen.observer = Some(Arc::new(Telemetry));
        if let Some(store) = store {
            (chosen.limits, chosen.owner_lost_ms) = (store.options.limits, store.options.owner_lost_ms);
            chosen.store = Some(store.here(py)?);
        } else if host_store {
            chosen.store = Some(Arc::new(HostStore::new(chosen.limits)));
        }
        Ok(Self { engine: engine::Engine::new(chosen) })
    }

    /// Opens a session of this server: see the core's `SessionId`. `sdk_major` is the major version of the `mcp` package whose answers are given.
    /// `retry_ms` is the session's own, where the host has one. `idle_ms` is its idle time; None is never.
    /// `waiters` are told, with the session's key, when a late outcome or an operation of the host's
    /// own store is there.
    #[expect(clippy::too_many_arguments, reason = "what the host knows of the session, and where outcomes go")]
    fn open_session(
        &self,
        py: Python<'_>,
        id: &str,
        server: &str,
        sdk_major: u8,
        retry_ms: Option<u32>,
        idle_ms: Option<u64>,
        waiters: Option<&Waiters>,
    ) -> PyResult<Session> {
        let dialect = dialect(sdk_major)?;
        let (key, wake) = match waiters.map(|waiters| waiters.shared.key()) {
            Some((key, wake)) => (Some(key), wake),
            None => (None, Arc::new(NoWake) as _),
        };
        let number = key.as_ref().map_or(0, |key| key.number);
        let opened = calling(py, || self.engine.open_session(SessionId::new(server, id), None, dialect, wake, number))?;
        match opened {
            Ok(handle) => {
                if let Some(retry_ms) = retry_ms {
                    handle.set_retry_ms(retry_ms);
                }
                handle.set_idle_ms(idle_ms.unwrap_or_default());
                Ok(Session { handle, dialect, key, is_claimed: AtomicBool::new(false) })
            }
            Err(error) => Err(to_py_err(&error)),
        }
    }

    /// Looks up a session of this server that this engine has not opened, for a request with this method, these headers and its
    /// principal: see `Session.admit`. For a GET also the stream that it is to go on with.
    /// `waiters` are told, with the look_up's key, when its outcome is there; it may be there at once. None where nobody can
    /// tell whose request it is.
    #[expect(clippy::too_many_arguments, reason = "what is known of the request, and where the outcome goes")]
    fn look_up_session(
        &self,
        py: Python<'_>,
        id: &str,
        server: &str,
        method: &str,
        headers: &Bound<'_, PyAny>,
        user_json: Option<&str>,
        named: Option<&str>,
        sdk_major: u8,
        waiters: &Waiters,
    ) -> PyResult<Option<LookUp>> {
        let dialect = dialect(sdk_major)?;
        let Some(principal) = self.principal(py, headers, user_json, named)? else { return Ok(None) };
        let pairs = header_pairs(headers)?;
        let headers = Headers::read(&pairs, self.engine.options());
        let context = Context { session_id: id, json_response: false };
        // A reader that is going to be refused takes the stream from nobody.
        let last_event_id = match admit(&headers.head(method), b"", &context, dialect) {
            Ok(Operation::Resume(last_event_id)) => Some(last_event_id),
            _ => None,
        };
        let (key, wake) = waiters.shared.key();
        let (session, last) = (SessionId::new(server, id), last_event_id.as_deref());
        let principal = principal.as_ref();
        match calling(py, || self.engine.look_up_session(session, principal, last, dialect, wake, key.number))? {
            Ok(look_up) => Ok(Some(LookUp { look_up, dialect, key })),
            Err(error) => Err(to_py_err(&error)),
        }
    }

    /// The SDK answers that there is no such session: that is counted, and has a line, with what is known of the request as for
    /// `Session.admit`.
    #[expect(clippy::too_many_arguments, reason = "what is known of the request")]
    fn unknown_session(
        &self,
        py: Python<'_>,
        id: &str,
        server: &str,
        method: &str,
        headers: &Bound<'_, PyAny>,
        user_json: Option<&str>,
        named: Option<&str>,
        log_user: Option<&str>,
        sdk_major: u8,
    ) -> PyResult<()> {
        let dialect = dialect(sdk_major)?;
        let pairs = header_pairs(headers)?;
        let headers = Headers::read(&pairs, self.engine.options());
        let tell = |requester: &Requester<'_>| {
            let request = Request { head: headers.head(method), requester: *requester, ..Request::default() };
            self.engine.unknown_session(SessionId::new(server, id), &request, dialect);
        };
        calling(py, || headers.ask(user_json, named, log_user, tell))
    }

    /// The answer to a POST of a revision without resumption, of which `body` was read: see the core's `Engine::steer`.
    fn steer(&self, py: Python<'_>, body: &[u8], requested: &str) -> PyResult<Refusal> {
        // Which SDK it is makes no difference to it.
        let refusal = calling(py, || self.engine.steer(body, requested))?;
        Ok(Refusal::new(&refusal, &Dialect::MCP_PYTHON_2))
    }

    /// Notes that such a request is left to the SDK.
    fn note_unresumable(&self, py: Python<'_>, requested: &str) -> PyResult<()> {
        calling(py, || self.engine.note_unresumable(requested))
    }

    /// What becomes of a POST with this version header: `(route, tool, declares)`. `steers` says whether clients are steered,
    /// `stands_aside` whether the server makes tasks itself. None for what is no message of a revision that is known.
    fn route_post(
        &self,
        py: Python<'_>,
        version: &str,
        body: &[u8],
        steers: bool,
        stands_aside: bool,
    ) -> PyResult<Option<Routed>> {
        calling(py, || {
            let posted = task::Posted::read(Some(version), body).filter(|posted| posted.revision.is_some())?;
            Some(routed(self.engine.route_post(&posted, steers, stands_aside), posted))
        })
    }

    /// Takes a call of this server that the SDK is given now, and that may become a task: see the core's `Engine::open_call`.
    /// None where it cannot: it is no request, or nobody can tell whose it is.
    #[expect(clippy::too_many_arguments, reason = "what is known of the request, and where steps go")]
    fn open_call(
        &self,
        py: Python<'_>,
        body: &[u8],
        server: &str,
        tool: Option<&str>,
        takes_streams: bool,
        headers: &Bound<'_, PyAny>,
        user_json: Option<&str>,
        named: Option<&str>,
        log_user: Option<&str>,
        waiters: &Waiters,
    ) -> PyResult<Option<TaskCall>> {
        let (key, wake) = waiters.shared.key();
        let pairs = header_pairs(headers)?;
        let of_call = CallHeaders::of(pairs.iter().map(|(name, value)| (text(name), latin1(value.as_bytes()))));
        let headers = Headers::read(&pairs, self.engine.options());
        let open = |requester: &Requester<'_>| {
            let (requester, sdk) = (*requester, DIALECT.sdk);
            let options = CallOptions { server, tool, takes_streams, headers: of_call, requester, sdk };
            self.engine.open_call(body, &options, wake, key.number)
        };
        let call = calling(py, || headers.ask(user_json, named, log_user, open))?;
        Ok(call.ok().flatten().map(|call| TaskCall::new(call, Arc::new(key))))
    }

    /// Reads a request about a task: a `TaskRequest`, or the `Refusal` to answer with.
    fn read_task_request<'py>(
        &self,
        py: Python<'py>,
        method: &str,
        headers: &Bound<'py, PyAny>,
        body: &[u8],
        json_response: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let pairs = header_pairs(headers)?;
        let all = |wanted: &[u8]| -> Vec<&str> {
            let named = pairs.iter().filter(|(name, _)| name.as_bytes() == wanted);
            named.map(|(_, value)| text(value)).collect()
        };
        let (methods, names) = (all(b"mcp-method"), all(b"mcp-name"));
        let head = TaskHead {
            head: Headers::read(&pairs, self.engine.options()).head(method),
            methods: &methods,
            names: &names,
            has_two_versions: all(b"mcp-protocol-version").len() > 1,
        };
        match calling(py, || task::read_request(&head, body, json_response, DIALECT))? {
            Ok(request) => Ok(Bound::new(py, TaskRequest(request))?.into_any()),
            Err(refusal) => Ok(Bound::new(py, Refusal::new(&refusal, DIALECT))?.into_any()),
        }
    }

    /// Asks about a task of this server. What may travel of the request is given as to `Session.relay`. None where nobody can
    /// tell whose request it is.
    #[expect(clippy::too_many_arguments, reason = "what is known of the request, and where answers go")]
    fn ask_task(
        &self,
        py: Python<'_>,
        request: &TaskRequest,
        server: &str,
        body: &[u8],
        headers: &Bound<'_, PyAny>,
        user_json: Option<&str>,
        named: Option<&str>,
        more: Vec<String>,
        auth_json: Option<&str>,
        dropped: Vec<String>,
        waiters: &Waiters,
    ) -> PyResult<Option<TaskQuery>> {
        let Some(principal) = self.principal(py, headers, user_json, named)? else { return Ok(None) };
        let relayed = relayed(RelayedMethod::Post, headers, body, &more, auth_json, dropped)?;
        let (key, wake) = waiters.shared.key();
        let (request, number) = (request.0.clone(), key.number);
        let ask = || self.engine.ask_task(server, request, principal.as_ref(), Some(relayed), wake, number);
        let query = calling(py, ask)?;
        Ok(Some(TaskQuery { query, key: Arc::new(key) }))
    }

    /// Takes a `subscriptions/listen` that names tasks of this server, and that the SDK is given now: a `TaskSubscription`, or the
    /// `Refusal` to answer with. None where it cannot: nobody can tell whose it is.
    #[expect(clippy::too_many_arguments, reason = "what is known of the request, and who is woken")]
    fn subscribe_to_tasks<'py>(
        &self,
        py: Python<'py>,
        server: &str,
        body: &[u8],
        headers: &Bound<'_, PyAny>,
        user_json: Option<&str>,
        named: Option<&str>,
        waiters: &Waiters,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(principal) = self.principal(py, headers, user_json, named)? else { return Ok(None) };
        let (key, wake) = waiters.shared.key();
        let number = key.number;
        Ok(match calling(py, || self.engine.subscribe_to_tasks(server, body, principal.as_ref(), wake, number))? {
            Ok(None) => None,
            Ok(Some(subscription)) => {
                Some(Bound::new(py, TaskSubscription { subscription, key: Arc::new(key) })?.into_any())
            }
            Err(refusal) => Some(Bound::new(py, Refusal::new(&refusal, DIALECT))?.into_any()),
        })
    }

    /// A log for an SDK's own transport, in this engine's store.
    fn hook_log(&self) -> HookLog {
        HookLog { log: self.engine.hook_log() }
    }

    /// Does what time asks for. Returns the names of the sessions that are idle, for the host to end them, and of those that
    /// have ended by themselves: for newer ones, or because another process took them over.
    fn tick(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let idle = calling(py, || self.engine.tick())?;
        Ok(idle.iter().map(|session| session.name().to_owned()).collect())
    }

    /// Whether no session is open: then there is nothing to tick for.
    fn is_idle(&self) -> bool {
        self.engine.is_idle()
    }

    /// Whether loops have to be woken by a `Signal`, too: see `Waiters.open_signal`.
    fn answers_elsewhere(&self) -> bool {
        self.engine.answers_elsewhere()
    }

    /// Whether the store is there for other processes, and after this one.
    fn outlives_process(&self) -> bool {
        self.engine.outlives_process()
    }

    /// Milliseconds until `tick` is due.
    fn due_in_ms(&self) -> u64 {
        self.engine.due_in_ms()
    }

    /// Closes every connection, now and from now on, and leaves sessions to other processes as nothing runs in them.
    fn drain(&self, py: Python<'_>, retry_ms: Option<u32>, spread_ms: Option<u32>) -> PyResult<()> {
        calling(py, || self.engine.drain(self.engine.drain_of(retry_ms, spread_ms)))
    }

    /// Whether a drain left nothing, once it is over.
    fn drained(&self, py: Python<'_>, within_ms: Option<u64>) -> PyResult<Option<bool>> {
        calling(py, || self.engine.drained(within_ms))
    }

    /// Logs what a drain has come to.
    fn tell_drained(&self, py: Python<'_>) -> PyResult<()> {
        calling(py, || self.engine.tell_drained())
    }

    /// The process ends, and every session with it; nothing is taken afterwards. What a store that outlives
    /// the process has of them stays there for their clients, and what it was given is written.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        if !self.engine.outlives_process() {
            return calling(py, || self.engine.close());
        }
        calling(py, || self.engine.release())?;
        self.flush(py);
        Ok(())
    }

    /// Waits until a store that outlives the process has written what it was given.
    fn flush(&self, py: Python<'_>) {
        if let Some(store) = &self.engine.options().store
            && self.engine.outlives_process()
            && !self.engine.is_forked()
        {
            flush(py, store);
            crate::log::flush(py);
        }
    }

    /// To be called in the child of a fork.
    fn mark_forked(&self) {
        self.engine.mark_forked();
    }

    /// After what time, in milliseconds, a reader that takes nothing is cut off.
    fn patience_ms(&self) -> Option<u64> {
        self.engine.options().patience_ms()
    }

    /// Whether the engine can serve: for `health_json`.
    fn health(&self) -> HealthParts {
        let Health { store_away_ms, store_refused_ms, is_refusing, is_draining, waiting_bytes, is_behind } =
            self.engine.health();
        (store_away_ms, store_refused_ms, is_refusing, is_draining, waiting_bytes, is_behind)
    }

    /// The answer to a request that the host does not take: see the core's `Fault`. It is counted.
    fn refusal(&self, sdk_major: u8, fault: &str, text: &str) -> PyResult<Refusal> {
        let dialect = dialect(sdk_major)?;
        let refusal = named_fault(fault, text)?.refusal(dialect);
        self.engine.refused(&refusal);
        Ok(Refusal::new(&refusal, dialect))
    }

    /// The options in force, by name.
    fn options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        to_dict(py, self.engine.options())
    }
}

impl Engine {
    /// Whose request it is. None where nobody can tell.
    #[expect(clippy::option_option, reason = "a request without credentials is nobody's")]
    fn principal(
        &self,
        py: Python<'_>,
        headers: &Bound<'_, PyAny>,
        user_json: Option<&str>,
        named: Option<&str>,
    ) -> PyResult<Option<Option<Principal>>> {
        let pairs = header_pairs(headers)?;
        let headers = Headers::read(&pairs, self.engine.options());
        Ok(calling(py, || headers.ask(user_json, named, None, |requester| self.engine.principal_of(requester)))?.ok())
    }
}
