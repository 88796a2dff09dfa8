//! Calls that may become tasks, and requests about tasks.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use napi::bindgen_prelude::{BufferSlice, Either, Either3, Env};
use napi_derive::napi;
use tailrope_core::engine::{self, CallStep, Context};
use tailrope_core::exchange::{Principal, Relayed};
use tailrope_core::protocol::{Dialect, sse};
use tailrope_core::task::{self, Announcement, Ask, Declared, Input, Reply, Route, RunReader};

use crate::admission::{JsBody, Refusal, body_bytes};
use crate::connection::text_or_bytes;
use crate::convert::{Result, number, payload};
use crate::telemetry::{CallSpan, call_span};
use crate::waiters::Waiters;

/// The dialect of the SDK that knows the revision of tasks.
pub(crate) const DIALECT: &Dialect = &Dialect::MCP_TYPESCRIPT_2;

/// What becomes of a POST: see the core's `Route`.
#[napi(object, object_from_js = false)]
pub struct Routed {
    pub route: &'static str,
    /// The tool that it calls.
    pub tool: Option<String>,
    /// Whether it declares that its client takes tasks.
    pub takes_tasks: bool,
}

impl Routed {
    pub(crate) fn new(route: Route, posted: task::Posted) -> Self {
        Self { route: route.as_str(), tool: posted.tool, takes_tasks: posted.declared == Declared::Yes }
    }
}

/// What the server's answer to `server/discover` says of tasks.
#[napi(object, object_from_js = false)]
pub struct Announced {
    /// The server makes tasks itself. Absent where its answer cannot say so.
    pub by_host: Option<bool>,
    /// The answer with the extension, where that was added.
    pub body: Option<String>,
}

/// Adds the extension to the server's answer to `server/discover`, which has this content type.
pub(crate) fn announce(content_type: Option<&str>, answer: &[u8]) -> Announced {
    let mut reader = RunReader::new(0, 200, content_type);
    let mut inputs = reader.data(answer);
    inputs.extend(reader.end());
    let messages = inputs.into_iter().filter_map(|input| match input {
        Input::Message { message, .. } => Some(message),
        _ => None,
    });
    match messages.last().map_or(Announcement::Unchanged, |message| task::announce(&message)) {
        Announcement::Added(body) => {
            Announced { by_host: Some(false), body: Some(String::from_utf8_lossy(&body).into_owned()) }
        }
        Announcement::ByHost => Announced { by_host: Some(true), body: None },
        Announcement::Unchanged => Announced { by_host: None, body: None },
    }
}

/// A request about a task that is in order.
#[napi]
pub struct TaskRequest(pub(crate) task::TaskRequest);

#[napi]
impl TaskRequest {
    /// Whether it may have to go to another process.
    #[napi(getter)]
    pub fn may_travel(&self) -> bool {
        self.0.ask != Ask::Get
    }

    /// The answer where nobody can tell whose request it is: as for a task that is not there.
    #[napi]
    pub fn unknown(&self) -> Refusal {
        Refusal::new(&task::unknown_task(&self.0.request), DIALECT)
    }
}

/// What travelled of a request that came to another process: its headers, each name in lower case and followed by its value, and
/// what the SDK knew of its sender.
#[napi(object, object_from_js = false)]
pub struct Travelled {
    pub headers: Vec<String>,
    pub auth_json: Option<String>,
}

/// What the host has to do for a call: see the core's `CallStep`.
#[napi(object, object_from_js = false)]
pub struct TaskStep<'env> {
    /// `body`, `begin`, `write` and `end` give the client something. Those of the core have its names.
    pub kind: &'static str,
    /// The HTTP status of a `body`.
    pub status: Option<u16>,
    /// What is written, the call of a `start`, or the result of an `answer`.
    pub data: Option<Either<String, BufferSlice<'env>>>,
    pub run: Option<u32>,
    pub ask: Option<f64>,
    /// The context of a `start`: the request about the task with this key, or one that came to another process. Without both it is
    /// that of the call.
    pub request: Option<u32>,
    pub travelled: Option<Travelled>,
    /// All headers of the message of a `start`: each name is followed by its value.
    pub headers: Option<Vec<String>>,
}

/// In the place of a time: nothing is left to do.
const IS_OVER: f64 = -1.0;

/// A call that the SDK is given once, or several times, and that may become a task.
#[napi]
pub struct TaskCall {
    call: engine::TaskCall,
    key: u32,
    readers: RefCell<HashMap<u32, RunReader>>,
    engine: engine::Engine,
    waiters: Rc<Waiters>,
}

impl TaskCall {
    pub(crate) fn new(call: engine::TaskCall, key: u32, engine: &engine::Engine, waiters: &Rc<Waiters>) -> Self {
        Self { call, key, readers: RefCell::default(), engine: engine.clone(), waiters: Rc::clone(waiters) }
    }

    fn input(&self, env: &Env, inputs: impl IntoIterator<Item = Input>) {
        inputs.into_iter().for_each(|input| self.call.input(input));
        self.waiters.flush(env);
    }
}

#[napi]
impl TaskCall {
    /// What the waiters know it as. It is woken when there are steps to do, and when it is over.
    #[napi(getter)]
    pub fn key(&self) -> u32 {
        self.key
    }

    /// What the SDK is given at first.
    #[napi(getter)]
    pub fn body(&self) -> String {
        String::from_utf8_lossy(self.call.body()).into_owned()
    }

    /// What the span of the call is to say; nothing where nobody observes.
    #[napi(catch_unwind)]
    pub fn span(&self) -> Option<CallSpan> {
        self.call.span().map(call_span)
    }

    /// The SDK's answer to a run begins. Whether it is a body that may have to be passed on as it is.
    #[napi(catch_unwind)]
    pub fn begin(&self, run: u32, status: u16, content_type: Option<String>) -> bool {
        let reader = RunReader::new(run, status, content_type.as_deref());
        let is_body = reader.is_body();
        self.readers.borrow_mut().insert(run, reader);
        is_body
    }

    /// The whole of it, where that is there at once.
    #[napi(catch_unwind)]
    pub fn answered(&self, env: &Env, run: u32, status: u16, content_type: Option<String>, body: JsBody<'_>) {
        let mut reader = RunReader::new(run, status, content_type.as_deref());
        let mut inputs = reader.data(body_bytes(&body));
        inputs.extend(reader.end());
        self.input(env, inputs);
    }

    /// The next bytes of it.
    #[napi(catch_unwind)]
    pub fn data(&self, env: &Env, run: u32, chunk: &[u8]) {
        let inputs = self.readers.borrow_mut().get_mut(&run).map(|reader| reader.data(chunk)).unwrap_or_default();
        self.input(env, inputs);
    }

    /// Nothing more comes of a run.
    #[napi(catch_unwind)]
    pub fn ended(&self, env: &Env, run: u32) {
        let reader = self.readers.borrow_mut().remove(&run);
        match reader {
            Some(reader) => self.input(env, reader.end()),
            None => self.input(env, [Input::RunEnded { run }]),
        }
    }

    /// The handler asks its client: a JSON-RPC request.
    #[napi(catch_unwind)]
    pub fn question(&self, env: &Env, ask: u32, request_json: String) {
        self.input(env, [Input::Question { ask: u64::from(ask), request: payload(request_json) }]);
    }

    /// The handler does not wait for the answer any more.
    #[napi(catch_unwind)]
    pub fn withdrawn(&self, env: &Env, ask: u32) {
        self.input(env, [Input::Withdrawn { ask: u64::from(ask) }]);
    }

    /// The client of the call closed its connection.
    #[napi(catch_unwind)]
    pub fn client_gone(&self, env: &Env) {
        self.input(env, [Input::ClientGone]);
    }

    /// What is to be done now, in order. To be asked again until there is nothing.
    ///
    /// A list, which costs less than an object. First in how many milliseconds the engine has to be ticked at the latest; -1 if
    /// nothing is left to do. Then the steps.
    #[napi(catch_unwind)]
    pub fn take_steps<'env>(&self, env: &'env Env) -> Result<Vec<Either<f64, TaskStep<'env>>>> {
        let steps = self.call.take_steps();
        let is_over = steps.is_empty() && self.call.is_over();
        let mut taken = vec![Either::A(if is_over { IS_OVER } else { number(self.engine.due_in_ms()) })];
        for step in steps {
            taken.push(Either::B(to_step(env, step)?));
        }
        self.waiters.flush(env);
        Ok(taken)
    }

    /// The host serves it no more.
    #[napi(catch_unwind)]
    pub fn leave(&self, env: &Env) {
        self.call.leave();
        self.waiters.flush(env);
    }
}

fn to_step(env: &Env, step: CallStep) -> Result<TaskStep<'_>> {
    let plain = |kind| TaskStep {
        kind,
        status: None,
        data: None,
        run: None,
        ask: None,
        request: None,
        travelled: None,
        headers: None,
    };
    let with = |kind, data: &[u8]| -> Result<TaskStep<'_>> {
        Ok(TaskStep { data: Some(text_or_bytes(env, data.to_vec())?), ..plain(kind) })
    };
    Ok(match step {
        CallStep::Reply(Reply::Body { status, body }) => TaskStep { status: Some(status), ..with("body", &body)? },
        CallStep::Reply(Reply::Begin) => plain("begin"),
        CallStep::Reply(Reply::Event(message)) => {
            let mut frame = Vec::new();
            sse::write_anonymous(&mut frame, &message);
            with("write", &frame)?
        }
        CallStep::Reply(Reply::Comment) => with("write", sse::KEEP_ALIVE)?,
        CallStep::Reply(Reply::End) => plain("end"),
        CallStep::PassOn => plain("passOn"),
        CallStep::Unlink => plain("unlink"),
        CallStep::Disconnect { run } => TaskStep { run: Some(run), ..plain("disconnect") },
        CallStep::Kill { run } => TaskStep { run: Some(run), ..plain("kill") },
        CallStep::Start { run, context, call, headers } => {
            let (request, travelled) = match context {
                Context::Call => (None, None),
                Context::Request(key) => (u32::try_from(key).ok(), None),
                Context::Relayed(relayed) => (None, Some(travelled(&relayed))),
            };
            let headers = headers.into_iter().flat_map(|(name, value)| [name.into(), value.into()]).collect();
            // It is parsed, and not written.
            let call = Either::A(String::from_utf8_lossy(&call).into_owned());
            TaskStep { run: Some(run), request, travelled, headers: Some(headers), data: Some(call), ..plain("start") }
        }
        CallStep::Answer { ask, result } => {
            let result = Either::A(String::from_utf8_lossy(&result).into_owned());
            TaskStep { ask: Some(number(ask)), data: Some(result), ..plain("answer") }
        }
        CallStep::Refuse { ask } => TaskStep { ask: Some(number(ask)), ..plain("refuse") },
    })
}

fn travelled(relayed: &Relayed) -> Travelled {
    Travelled {
        headers: relayed.headers().flat_map(|(name, value)| [name.to_owned(), value.to_owned()]).collect(),
        auth_json: relayed.auth().map(str::to_owned),
    }
}

/// A request about a task.
#[napi]
pub struct TaskQuery {
    query: engine::TaskQuery,
    key: u32,
    engine: engine::Engine,
    waiters: Rc<Waiters>,
}

impl TaskQuery {
    pub(crate) fn new(
        engine: &engine::Engine,
        server: &str,
        request: &TaskRequest,
        principal: Option<&Principal>,
        relayed: Option<Relayed>,
        waiters: &Rc<Waiters>,
    ) -> Self {
        let key = waiters.key();
        let request = request.0.clone();
        let query = engine.ask_task(server, request, principal, relayed, waiters.wake(), u64::from(key));
        Self { query, key, engine: engine.clone(), waiters: Rc::clone(waiters) }
    }
}

#[napi]
impl TaskQuery {
    /// What the waiters know it as, also the call that is to be served because of it.
    #[napi(getter)]
    pub fn key(&self) -> u32 {
        self.key
    }

    /// The next answer: the body, or a `Refusal`; or a `TaskCall` that the host serves from now on, and the answer follows.
    /// Nothing where there is none yet.
    #[napi(catch_unwind)]
    pub fn take(&self, env: &Env) -> Option<Either3<String, Refusal, TaskCall>> {
        let answer = self.query.take();
        self.waiters.flush(env);
        answer.map(|answer| match answer {
            engine::TaskAnswer::Body(body) => Either3::A(String::from_utf8_lossy(&body).into_owned()),
            engine::TaskAnswer::Refused(refusal) => Either3::B(Refusal::new(&refusal, DIALECT)),
            engine::TaskAnswer::Serve(call) => Either3::C(TaskCall::new(call, self.key, &self.engine, &self.waiters)),
        })
    }
}

/// A `subscriptions/listen` that names tasks, and that the SDK is given.
#[napi]
pub struct TaskSubscription {
    subscription: engine::TaskSubscription,
    key: u32,
    waiters: Rc<Waiters>,
}

impl TaskSubscription {
    pub(crate) fn open(
        env: &Env,
        engine: &engine::Engine,
        server: &str,
        body: &[u8],
        principal: Option<&Principal>,
        waiters: &Rc<Waiters>,
    ) -> Option<Either<Self, Refusal>> {
        let key = waiters.key();
        let opened = engine.subscribe_to_tasks(server, body, principal, waiters.wake(), u64::from(key));
        waiters.flush(env);
        match opened {
            Ok(opened) => opened.map(|subscription| Either::A(Self { subscription, key, waiters: Rc::clone(waiters) })),
            Err(refusal) => Some(Either::B(Refusal::new(&refusal, DIALECT))),
        }
    }
}

#[napi]
impl TaskSubscription {
    /// What the waiters know it as. It is woken when there may be more.
    #[napi(getter)]
    pub fn key(&self) -> u32 {
        self.key
    }

    /// The SDK's answer begins. False where it is for the client as it is.
    #[napi(catch_unwind)]
    pub fn begin(&self, content_type: Option<String>) -> bool {
        self.subscription.begin(content_type.as_deref())
    }

    /// Whether the next bytes of the SDK's stream are wanted now.
    #[napi(getter)]
    pub fn takes(&self) -> bool {
        self.subscription.takes()
    }

    /// The next bytes of the SDK's stream.
    #[napi(catch_unwind)]
    pub fn push(&self, chunk: &[u8]) {
        self.subscription.push(chunk);
    }

    /// The SDK's stream is over.
    #[napi(catch_unwind)]
    pub fn end(&self) {
        self.subscription.end();
    }

    /// The next bytes for the client. Nothing until something happens; to be asked again until then.
    #[napi(catch_unwind)]
    pub fn next<'env>(&self, env: &'env Env) -> Result<Option<Either<String, BufferSlice<'env>>>> {
        let bytes = self.subscription.next();
        self.waiters.flush(env);
        bytes.map(|bytes| text_or_bytes(env, bytes.to_vec())).transpose()
    }

    /// Whether nothing follows.
    #[napi(getter)]
    pub fn is_over(&self) -> bool {
        self.subscription.is_over()
    }

    /// The host stops.
    #[napi(catch_unwind)]
    pub fn drain(&self, env: &Env) {
        self.subscription.drain();
        self.waiters.flush(env);
    }

    /// The client has left.
    #[napi(catch_unwind)]
    pub fn leave(&self) {
        self.subscription.leave();
    }
}
