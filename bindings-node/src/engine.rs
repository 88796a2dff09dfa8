//! The engine.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use napi::bindgen_prelude::{ClassInstance, Either, Either4, Env, Function, FunctionRef, Object};
use napi_derive::napi;
use tailrope_core::engine::{
    self, AUTO_WORD, CallOptions, EngineError, Health, NUMBER_OPTIONS, OnStoreFailure, Options, PACE_FLAGS,
    PACE_OPTIONS, Stats, SynthesizedEnd, end_payload,
};
use tailrope_core::exchange::{self, Allowed, Fault, IDENTITY_HEADERS, Member};
use tailrope_core::protocol::{Context, Dialect, Operation, admit_with_versions};
use tailrope_core::store::{HostStore, SessionId};
use tailrope_core::task::{self, CallHeaders, TaskHead};

use crate::admission::{Admission, JsBody, Refusal, Requester, body_bytes, head_of};
use crate::convert::{
    JsRequestId, PacesByName, Result, camel_case, dialect, internal, invalid, number, number_option, paces, request_id,
    to_js_error,
};
use crate::hook_log::HookLog;
use crate::log::{LogArgs, Sink};
use crate::look_up::LookUp;
use crate::session::{Session, Travelling};
use crate::store::{Store, flush};
use crate::tasks::{self, Announced, DIALECT, Routed, TaskCall, TaskQuery, TaskRequest, TaskSubscription};
use crate::telemetry::{self, Observed, Telemetry};
use crate::waiters::Waiters;

/// What an engine knows of its health: see the core's `Health`.
#[napi(object)]
pub struct HealthParts {
    pub store_away_ms: Option<f64>,
    pub store_refused_ms: Option<f64>,
    pub is_refusing: bool,
    pub is_draining: bool,
    pub waiting_bytes: f64,
    pub is_behind: bool,
}

/// As JavaScript gives several.
type Engines<'env> = Vec<ClassInstance<'env, Engine>>;

fn all(engines: &[ClassInstance<'_, Engine>]) -> Stats {
    Stats::of_all(engines.iter().map(|engine| &engine.engine))
}

/// The answer to a request: see the core's `LiveAnswer`.
#[napi(object)]
pub struct JsLiveAnswer {
    pub status: u16,
    pub headers: HashMap<String, String>,
    pub body: String,
}

/// An engine with its event store.
#[napi]
pub struct Engine {
    engine: engine::Engine,
    waiters: Rc<Waiters>,
    signal: FunctionRef<(), ()>,
}

impl Engine {
    pub(crate) fn engine(&self) -> &engine::Engine {
        &self.engine
    }

    /// Its waiters, which other threads wake from now on.
    pub(crate) fn woken_elsewhere(&self, env: &Env) -> Result<&Rc<Waiters>> {
        let signal = self.signal.borrow_back(env).map_err(internal)?;
        self.waiters.open_signal(env, &self.engine, &signal)?;
        Ok(&self.waiters)
    }
}

#[napi]
impl Engine {
    /// An engine with these options; what is not named keeps its default. Options are whole numbers
    /// that are not negative, `onStoreFailure`, and `pace`; unknown names throw.
    ///
    /// The events go to `store`, whose bounds are its own; without one to a store of the host: see
    /// `Session.takeOperations`. `resolve` is called with woken keys, `log` with a level, a line and its fields, and
    /// `signal` when `flush` has to be called.
    #[napi(constructor)]
    pub fn new(
        env: &Env,
        store: Option<&Store>,
        options: HashMap<String, Either4<f64, String, PacesByName, bool>>,
        resolve: Function<'_, Vec<u32>, ()>,
        log: Function<'_, LogArgs, ()>,
        signal: Function<'_, (), ()>,
    ) -> Result<Self> {
        let mut chosen = Options::default();
        for (name, value) in options {
            let value = match value {
                Either4::A(number) => Either::A(number),
                Either4::D(is_every) if name == "logCalls" => {
                    chosen.log_calls = is_every;
                    continue;
                }
                Either4::C(by_name) if name == "pace" => {
                    chosen.paces = paces(by_name)?;
                    continue;
                }
                Either4::B(policy) if name == "onStoreFailure" => {
                    let policy = OnStoreFailure::parse(&policy);
                    let wrong = || invalid("onStoreFailure must be 'raise' or 'drop_progress'".to_owned());
                    chosen.on_store_failure = policy.ok_or_else(wrong)?;
                    continue;
                }
                Either4::B(text) => Either::B(text),
                Either4::C(_) | Either4::D(_) => Either::A(f64::NAN),
            };
            let (option, number) = number_option(&name, &value)?;
            if store.is_some() && option.is_of_store {
                return Err(invalid(format!("unknown option {name}")));
            }
            option.set(&mut chosen, number);
        }
        chosen.store = Some(match store {
            None => Arc::new(HostStore::new(chosen.limits)),
            Some(store) => {
                chosen.limits = store.limits;
                chosen.owner_lost_ms = store.owner_lost_ms;
                Arc::clone(&store.store)
            }
        });
        chosen.observer = Some(Arc::new(Telemetry));
        let engine = engine::Engine::new(chosen);
        let waiters = Waiters::new(resolve, Sink::new(log)?)?;
        let me = Self { engine, waiters, signal: signal.create_ref().map_err(internal)? };
        if me.engine.answers_elsewhere() {
            me.woken_elsewhere(env)?;
        }
        Ok(me)
    }

    /// The engines of this process are observed from now on, and `observer` is told on this thread. Gives the bounds of the
    /// histograms, in seconds.
    #[napi]
    pub fn observe(observer: Function<'_, Observed, ()>) -> Result<Vec<f64>> {
        telemetry::observe(observer)
    }

    /// The version of this package.
    #[napi]
    pub fn version() -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    /// Whether messages may be stored later: see `Session.takeOutcomes`.
    #[napi]
    pub fn answers_elsewhere(&self) -> bool {
        self.engine.answers_elsewhere()
    }

    /// Whether sessions may live in other processes: see `lookUpSession`.
    #[napi]
    pub fn outlives_process(&self) -> bool {
        self.engine.outlives_process()
    }

    /// Tells what other threads have woken.
    #[napi(catch_unwind)]
    pub fn flush(&self, env: &Env) {
        self.waiters.flush_signalled(env);
    }

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

    /// The answer to a POST of a revision without resumption, of which `body` was read: see the core's `Engine::steer`.
    #[napi(catch_unwind)]
    pub fn steer(&self, body: JsBody<'_>, requested: String) -> Refusal {
        // Which SDK it is makes no difference to it.
        Refusal::new(&self.engine.steer(body_bytes(&body), &requested), &Dialect::MCP_TYPESCRIPT_2)
    }

    /// Notes that such a request is left to the SDK.
    #[napi(catch_unwind)]
    pub fn left_to_sdk(&self, env: &Env, requested: String) {
        self.engine.left_to_sdk(&requested);
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
    /// cannot: it is no request, or nobody can tell whose it is. Of `headers`, each name is followed by its value.
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
        let max_event_bytes = self.engine.options().limits.max_event_bytes;
        opened.ok().flatten().map(|call| TaskCall::new(call, key, max_event_bytes, &self.waiters))
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

    /// A log for an SDK's own transport, in the engine's store.
    #[napi(catch_unwind)]
    pub fn hook_log(&self) -> HookLog {
        HookLog::new(self.engine.hook_log(), &self.waiters)
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

    /// The names of the options that are numbers: those of a store, or the others.
    #[napi]
    pub fn number_options(of_store: bool) -> Vec<String> {
        let options = NUMBER_OPTIONS.iter().filter(|option| option.is_of_store == of_store);
        options.map(|option| camel_case(option.name)).collect()
    }

    /// The names of what a pace can say.
    #[napi]
    pub fn pace_options() -> Vec<String> {
        let flags = PACE_FLAGS.iter().map(|flag| flag.name);
        PACE_OPTIONS.iter().map(|option| option.name).chain(flags).map(camel_case).collect()
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

    /// Sets what is logged on this thread: `error`, `warn`, `info` or `debug`, and what is worse.
    #[napi]
    pub fn set_log_level(level: String) -> Result<()> {
        crate::log::set_level(&level)
    }

    /// Does what time asks for. Returns the names of the sessions that are idle, for the host to close them, and of those that
    /// have ended by themselves: for newer ones, or because another process took them over. None where there is no such session, and
    /// nothing is held that time would have to free: then there is nothing to tick for.
    #[napi(catch_unwind)]
    pub fn tick(&self, env: &Env) -> Option<Vec<String>> {
        let idle = self.engine.tick();
        self.waiters.flush(env);
        let is_over = idle.is_empty() && self.engine.is_idle();
        (!is_over).then(|| idle.iter().map(|session| session.name().to_owned()).collect())
    }

    /// Milliseconds until `tick` is due.
    #[napi]
    pub fn due_in_ms(&self) -> f64 {
        number(self.engine.due_in_ms())
    }

    /// Closes every connection, now and from now on, and leaves sessions to other processes as nothing runs in them.
    #[napi(catch_unwind)]
    pub fn drain(&self, env: &Env, retry_ms: Option<u32>, spread_ms: Option<u32>) {
        self.engine.drain(self.engine.drain_of(retry_ms, spread_ms));
        self.waiters.flush(env);
    }

    /// Whether a drain left nothing, once it is over.
    #[napi(catch_unwind)]
    pub fn drained(&self, env: &Env, within_ms: Option<u32>) -> Option<bool> {
        let drained = self.engine.drained(within_ms.map(u64::from));
        self.waiters.flush(env);
        drained
    }

    /// The process ends, and every session with it; nothing is taken afterwards. What a store that outlives
    /// the process has of them stays there for their clients, and what it was given is written.
    #[napi(catch_unwind)]
    pub fn leave(&self, env: &Env) {
        self.engine.close();
        if let Some(store) = &self.engine.options().store {
            flush(&**store);
        }
        self.waiters.flush(env);
    }

    /// What the engines of the thread did and hold: counts by name.
    #[napi]
    pub fn stats_of<'env>(env: &'env Env, engines: Engines<'_>) -> Result<Object<'env>> {
        let mut counts = Object::new(env).map_err(internal)?;
        for (counter, value) in all(&engines).entries() {
            counts.set(camel_case(counter.name), number(value)).map_err(internal)?;
        }
        Ok(counts)
    }

    /// The same for Prometheus. `process` is how it tells this thread from other threads and processes.
    #[napi]
    pub fn exposition(engines: Engines<'_>, process: String) -> String {
        all(&engines).exposition(&process)
    }

    /// The content type of that.
    #[napi]
    pub fn exposition_type() -> &'static str {
        engine::EXPOSITION_TYPE
    }

    /// After what time, in milliseconds, a reader that takes nothing is cut off.
    #[napi]
    pub fn patience_ms(&self) -> Option<f64> {
        self.engine.options().patience_ms().map(number)
    }

    /// Whether the engine can serve: for `healthJson`.
    #[napi]
    pub fn health(&self) -> HealthParts {
        let Health { store_away_ms, store_refused_ms, is_refusing, is_draining, waiting_bytes, is_behind } =
            self.engine.health();
        let (store_away_ms, store_refused_ms) = (store_away_ms.map(number), store_refused_ms.map(number));
        let waiting_bytes = number(waiting_bytes);
        HealthParts { store_away_ms, store_refused_ms, is_refusing, is_draining, waiting_bytes, is_behind }
    }

    /// What a load balancer is told, as JSON, of the engines of the thread. Its status is 503 if it is `unavailable`.
    #[napi]
    pub fn health_json(engines: Vec<HealthParts>) -> String {
        let whole = |number: f64| number as u64;
        let of_one = |of: HealthParts| Health {
            store_away_ms: of.store_away_ms.map(whole),
            store_refused_ms: of.store_refused_ms.map(whole),
            is_refusing: of.is_refusing,
            is_draining: of.is_draining,
            waiting_bytes: whole(of.waiting_bytes),
            is_behind: of.is_behind,
        };
        Health::of_all(engines.into_iter().map(of_one)).to_json()
    }

    /// The answer to a request for the live page of these engines. See the core's `live_answer`.
    #[napi]
    pub fn live_answer(method: String, query: Option<String>, engines: Engines<'_>) -> JsLiveAnswer {
        let snapshots = || engines.iter().filter_map(|one| one.engine.live_snapshot()).collect();
        let engine::LiveAnswer { status, headers, body } = engine::live_answer(&method, query.as_deref(), snapshots);
        let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        JsLiveAnswer { status, headers, body }
    }

    /// A request is answered with this refusal: it is counted, once.
    #[napi]
    pub fn refused(&self, refusal: &Refusal) {
        self.engine.refused(&refusal.of);
    }

    /// The options in force, by name.
    #[napi]
    pub fn options<'env>(&self, env: &'env Env) -> Result<Object<'env>> {
        let options = self.engine.options();
        let mut object = Object::new(env).map_err(internal)?;
        for option in NUMBER_OPTIONS {
            let name = camel_case(option.name);
            match option.get(options) {
                Some(value) => object.set(name, number(value)),
                None => object.set(name, AUTO_WORD),
            }
            .map_err(internal)?;
        }
        Ok(object)
    }
}
