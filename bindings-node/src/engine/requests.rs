//! Requests: how sessions, calls and what is about tasks begin, and what is refused.

use napi::bindgen_prelude::{Either, Env};
use napi_derive::napi;
use tailrope_core::engine::{CallOptions, EngineError, SynthesizedEnd, end_payload};
use tailrope_core::exchange::{self, Allowed, Fault, IDENTITY_HEADERS, Member};
use tailrope_core::protocol::{Context, Dialect, Operation, admit_with_versions};
use tailrope_core::store::SessionId;
use tailrope_core::task::{self, CallHeaders, TaskHead};

use super::Engine;
use crate::admission::{Admission, JsBody, Refusal, Requester, body_bytes, head_of};
use crate::convert::{JsRequestId, Result, dialect, invalid, request_id, to_js_error};
use crate::look_up::LookUp;
use crate::session::{Session, Travelling};
use crate::tasks::{self, Announced, DIALECT, Routed, TaskCall, TaskQuery, TaskRequest, TaskSubscription};

#[napi]
impl Engine {
    /// Examines a request to a transport that has no session yet: an `Admission` of the `initialize`
    /// that opens it, or the `Refusal` to answer with.
    #[allow(clippy::too_many_arguments, reason = "what the host knows of the request, in one crossing")]
    #[napi(catch_unwind)]
    pub fn admit(
        &self,
        env: &Env,
        head: String,
        requester: Option<Requester>,
        body: JsBody<'_>,
        json_response: bool,
        sdk_major: u32,
        versions: Vec<String>,
    ) -> Result<Either<Admission, Refusal>> {
        let dialect = dialect(sdk_major)?;
        let versions: Vec<&str> = versions.iter().map(String::as_str).collect();
        let context = Context { session_id: "", json_response };
        let body = body_bytes(&body);
        if Requester::principal(requester.as_ref(), &self.engine).is_err() {
            self.waiters.flush(env);
            return Ok(Either::B(Refusal::new(&Fault::Unidentified.refusal_of(dialect, body), dialect)));
        }
        let head = head_of(&head);
        Ok(match admit_with_versions(&head, body, &context, dialect, &versions) {
            Ok(operation) => Either::A(Admission(exchange::Admission::new(operation, &head, body))),
            Err(refusal) => Either::B(Refusal::new(&refusal, dialect)),
        })
    }

    /// Opens a session of this server, which belongs to the requester: see the core's `SessionId`. `sdk_major` is the SDK line whose
    /// answers are given, `versions` are the values of the version header that are served. `retry_ms` is the session's own, where the
    /// host has one. For the new one another session of the requester may have to end, which `tick` then tells; fails when none
    /// is idle.
    #[allow(clippy::too_many_arguments, reason = "what the host knows of the session, in one crossing")]
    #[napi(catch_unwind)]
    pub fn open_session(
        &self,
        env: &Env,
        id: String,
        server: String,
        requester: Option<Requester>,
        sdk_major: u32,
        versions: Vec<String>,
        retry_ms: Option<u32>,
    ) -> Result<Session> {
        let dialect = dialect(sdk_major)?;
        let key = self.waiters.key();
        let principal = Requester::principal(requester.as_ref(), &self.engine);
        let principal = principal.map_err(|_| invalid("nobody can tell whose session it is".to_owned()))?;
        let principal = principal.as_ref();
        let open = |id: &str| {
            let session = SessionId::new(&server, id);
            self.engine.open_session(session, principal, dialect, self.waiters.wake(), u64::from(key))
        };
        // The host's ids are unique within a transport only; two of them with one id stay apart.
        let opened = match open(&id) {
            Err(EngineError::SessionExists) => open(&format!("{id} {key}")),
            opened => opened,
        };
        let opened = opened.and_then(|handle| match handle.take_place() {
            Ok(()) => Ok(handle),
            Err(error) => {
                handle.end();
                Err(error)
            }
        });
        self.waiters.flush(env);
        let handle = opened.map_err(|error| to_js_error(&error))?;
        if let Some(retry_ms) = retry_ms {
            handle.set_retry_ms(retry_ms);
        }
        Ok(Session::new(handle, id, dialect, versions, key, &self.waiters))
    }

    /// Looks up a session of this server that lives in another process, or lived in one, for its requester, and the stream that a GET is to go
    /// on with. The key of the `LookUp` is woken when it can be taken. None where nobody can tell whose request it is.
    #[allow(clippy::too_many_arguments, reason = "what the host knows of the request, in one crossing")]
    #[napi(catch_unwind)]
    pub fn look_up_session(
        &self,
        env: &Env,
        id: String,
        head: String,
        server: String,
        requester: Option<Requester>,
        sdk_major: u32,
        versions: Vec<String>,
    ) -> Result<Option<LookUp>> {
        let dialect = dialect(sdk_major)?;
        let Ok(principal) = Requester::principal(requester.as_ref(), &self.engine) else {
            self.waiters.flush(env);
            return Ok(None);
        };
        let served: Vec<&str> = versions.iter().map(String::as_str).collect();
        let context = Context { session_id: &id, json_response: false };
        // A reader that is going to be refused takes the stream from nobody.
        let last_event_id = match admit_with_versions(&head_of(&head), b"", &context, dialect, &served) {
            Ok(Operation::Resume(last_event_id)) => Some(last_event_id),
            _ => None,
        };
        let key = self.waiters.key();
        let wake = self.waiters.wake();
        let (principal, last) = (principal.as_ref(), last_event_id.as_deref());
        let looked_up =
            self.engine.look_up_session(SessionId::new(&server, &id), principal, last, dialect, wake, u64::from(key));
        self.waiters.flush(env);
        let look_up = looked_up.map_err(|error| to_js_error(&error))?;
        Ok(Some(LookUp::new(look_up, id, dialect, versions, key, &self.waiters)))
    }

    /// The refusal of a request that names a session that there is not: it is counted, and has a line.
    #[napi(catch_unwind)]
    pub fn unknown_session(
        &self,
        id: String,
        head: String,
        server: String,
        requester: Option<Requester>,
        sdk_major: u32,
    ) -> Result<Refusal> {
        let dialect = dialect(sdk_major)?;
        let refusal = Requester::read(requester.as_ref(), |requester| {
            let request = exchange::Request { head: head_of(&head), requester, ..exchange::Request::default() };
            self.engine.unknown_session(SessionId::new(&server, &id), &request, dialect)
        });
        Ok(Refusal::new(&refusal, dialect))
    }

    /// The answer to a POST of a revision without resumption, of which `body` was read: see the core's `Engine::steer`.
    #[napi(catch_unwind)]
    pub fn steer(&self, body: JsBody<'_>, requested: String) -> Refusal {
        // Which SDK it is makes no difference to it.
        Refusal::new(&self.engine.steer(body_bytes(&body), &requested), &Dialect::MCP_TYPESCRIPT_2)
    }

    /// Notes that such a request is left to the SDK.
    #[napi(catch_unwind)]
    pub fn note_unresumable(&self, env: &Env, requested: String) {
        self.engine.note_unresumable(&requested);
        self.waiters.flush(env);
    }

    /// What becomes of a POST with this version header. `steers` says whether clients are steered, `stands_aside` whether the
    /// server makes tasks itself. Nothing for what is no message of a revision that is known.
    #[napi(catch_unwind)]
    pub fn route_post(
        &self,
        version: Option<String>,
        body: JsBody<'_>,
        steers: bool,
        stands_aside: bool,
    ) -> Option<Routed> {
        let posted = task::Posted::read(version.as_deref(), body_bytes(&body))?;
        posted.revision?;
        Some(Routed::new(self.engine.route_post(&posted, steers, stands_aside), posted))
    }

    /// Takes a call that the SDK is given now, and that may become a task: see the core's `Engine::open_call`. Nothing where it
    /// cannot: it is no request, or nobody can tell whose it is. Of `headers`, each name is followed by its value: only those count
    /// whose names begin with `param_headers`.
    #[napi(catch_unwind)]
    #[allow(clippy::too_many_arguments, reason = "what the host knows of the request, in one crossing")]
    pub fn open_call(
        &self,
        env: &Env,
        server: String,
        requester: Option<Requester>,
        body: JsBody<'_>,
        tool: Option<String>,
        takes_streams: bool,
        headers: Vec<String>,
    ) -> Option<TaskCall> {
        let headers = CallHeaders::of(headers.chunks_exact(2).map(|pair| (&*pair[0], &*pair[1])));
        let key = self.waiters.key();
        let opened = Requester::read(requester.as_ref(), |requester| {
            let (server, tool, sdk) = (&*server, tool.as_deref(), DIALECT.sdk);
            let options = CallOptions { server, tool, takes_streams, headers, requester, sdk };
            self.engine.open_call(body_bytes(&body), &options, self.waiters.wake(), u64::from(key))
        });
        self.waiters.flush(env);
        opened.ok().flatten().map(|call| TaskCall::new(call, key, &self.engine, &self.waiters))
    }

    /// Reads a request about a task: a `TaskRequest`, or the `Refusal` to answer with. `mcp_method` and `mcp_name` are the headers of
    /// these names.
    #[napi(catch_unwind)]
    pub fn read_task_request(
        head: String,
        mcp_method: Option<String>,
        mcp_name: Option<String>,
        body: JsBody<'_>,
        json_response: bool,
    ) -> Either<TaskRequest, Refusal> {
        // Headers that came more than once are one value here, which agrees with no body.
        let methods: Vec<&str> = mcp_method.iter().map(String::as_str).collect();
        let names: Vec<&str> = mcp_name.iter().map(String::as_str).collect();
        let head = TaskHead { head: head_of(&head), methods: &methods, names: &names, has_two_versions: false };
        match task::read_request(&head, body_bytes(&body), json_response, DIALECT) {
            Ok(request) => Either::A(TaskRequest(request)),
            Err(refusal) => Either::B(Refusal::new(&refusal, DIALECT)),
        }
    }

    /// Asks about a task of this server. What may travel of the request is given as to `Session.relay`. Nothing where
    /// nobody can tell whose request it is.
    #[napi(catch_unwind)]
    pub fn ask_task(
        &self,
        env: &Env,
        request: &TaskRequest,
        server: String,
        requester: Option<Requester>,
        body: JsBody<'_>,
        travelling: Option<Travelling>,
    ) -> Result<Option<TaskQuery>> {
        let relayed = travelling.map(|travelling| travelling.relayed(body_bytes(&body))).transpose()?;
        let principal = Requester::principal(requester.as_ref(), &self.engine);
        let query = principal.ok().map(|principal| {
            TaskQuery::new(&self.engine, &server, request, principal.as_ref(), relayed, &self.waiters)
        });
        self.waiters.flush(env);
        Ok(query)
    }

    /// Takes a `subscriptions/listen` that names tasks of this server, and that the SDK is given now: a `TaskSubscription`, or the
    /// `Refusal` to answer with. Nothing where nobody can tell whose it is.
    #[napi(catch_unwind)]
    pub fn subscribe_to_tasks(
        &self,
        env: &Env,
        server: String,
        requester: Option<Requester>,
        body: JsBody<'_>,
    ) -> Option<Either<TaskSubscription, Refusal>> {
        let principal = Requester::principal(requester.as_ref(), &self.engine).ok()?;
        let body = body_bytes(&body);
        TaskSubscription::open(env, &self.engine, &server, body, principal.as_ref(), &self.waiters)
    }

    /// What the name of a header begins with that repeats an argument of a call.
    #[napi]
    pub fn param_headers() -> &'static str {
        task::PARAM_HEADERS
    }

    /// Whether a header belongs to a message, and not to the request that brings it: see the core's `is_of_message`.
    #[napi]
    pub fn is_of_message(name: String) -> bool {
        task::is_of_message(&name)
    }

    /// Has the server's answer to `server/discover`, of this content type, announce tasks, unless the server does.
    #[napi(catch_unwind)]
    pub fn announce(content_type: Option<String>, answer: &[u8]) -> Announced {
        tasks::announce(content_type.as_deref(), answer)
    }

    /// The answer to a request that has to declare that its client takes tasks.
    #[napi(catch_unwind)]
    pub fn missing_capability(body: JsBody<'_>) -> Refusal {
        Refusal::new(&task::missing_capability().naming_request(body_bytes(&body)), DIALECT)
    }

    /// The answer to a request that the host does not take: see the core's `Fault`. With a `body` it names its request.
    #[napi]
    pub fn refusal(sdk_major: u32, fault: String, text: Option<String>, body: Option<JsBody<'_>>) -> Result<Refusal> {
        let dialect = dialect(sdk_major)?;
        let text = text.unwrap_or_default();
        let Some(fault) = Fault::named(&fault, &text) else {
            return Err(invalid(format!("there is no fault {fault:?}")));
        };
        let refusal = match &body {
            Some(body) => fault.refusal_of(dialect, body_bytes(body)),
            None => fault.refusal(dialect),
        };
        Ok(Refusal::new(&refusal, dialect))
    }

    /// The answer to a request from a host or an origin that is not among the allowed ones; none where it is served.
    #[napi]
    pub fn forbidden(
        sdk_major: u32,
        allowed_hosts: Vec<String>,
        allowed_origins: Vec<String>,
        host: Option<String>,
        origin: Option<String>,
    ) -> Result<Option<Refusal>> {
        let dialect = dialect(sdk_major)?;
        let hosts: Vec<&str> = allowed_hosts.iter().map(String::as_str).collect();
        let origins: Vec<&str> = allowed_origins.iter().map(String::as_str).collect();
        let checked = Allowed { hosts: &hosts, origins: &origins }.check(host.as_deref(), origin.as_deref());
        Ok(checked.err().map(|fault| Refusal::new(&fault.refusal(dialect), dialect)))
    }

    /// The error that stands for a response that is no JSON.
    #[napi]
    pub fn unwritable(request: JsRequestId) -> Result<String> {
        let end = end_payload(&request_id(request)?, SynthesizedEnd::Unwritable);
        Ok(String::from_utf8_lossy(&end).into_owned())
    }

    /// A request is answered with this refusal: it is counted, once.
    #[napi]
    pub fn refused(&self, refusal: &Refusal) {
        self.engine.refused(&refusal.of);
    }

    /// The headers that say who sends a request.
    #[napi]
    pub fn identity_headers() -> Vec<&'static str> {
        IDENTITY_HEADERS.to_vec()
    }

    /// Whether a member of this name counts of what authentication left of a user: it names or places the user, or has such
    /// members in it.
    #[napi]
    pub fn is_user_member(name: String) -> bool {
        Member::named(&name).is_some()
    }

    /// Whether what authentication left names a user: see the core's `names_user`.
    #[napi]
    pub fn names_user(user_json: String) -> bool {
        exchange::names_user(&user_json)
    }

    /// The name of the server that a request is for: see the core's `server_name`.
    #[napi]
    pub fn server_name(target: String, routed: Option<String>) -> String {
        exchange::server_name(&target, routed.as_deref())
    }
}
