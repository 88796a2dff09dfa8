//! The client's half of a stream: see `tailrope_core::client`, which decides everything.

use std::collections::HashMap;

use napi::bindgen_prelude::{BufferSlice, Either, Env, Null};
use napi_derive::napi;
use tailrope_core::Ms;
use tailrope_core::client::{
    self, Failure, Input, Message, Opening, Options, Posted, ResumableStream, Step, Token, failure_payloads,
};
use tailrope_core::protocol::{RequestId, sse};

use crate::admission::JsBody;
use crate::connection::text_or_bytes;
use crate::convert::{Result, camel_case, invalid, number, spelled, whole};

/// How streams come back: the options of `tailrope_core::client::Options`, in camel case.
#[napi]
pub struct ClientOptions {
    pub(crate) options: Options,
}

#[napi]
impl ClientOptions {
    /// What is not named keeps its default; `null` is "never" or "any number" where there is such a thing.
    #[napi(constructor)]
    pub fn new(options: HashMap<String, Either<f64, Null>>) -> Result<Self> {
        let mut chosen = Options::default();
        for (name, value) in options {
            set_option(&mut chosen, &name, if let Either::A(value) = value { Some(value) } else { None })?;
        }
        let fault =
            |error: client::OptionsError| invalid(format!("{} must be {}", camel_case(error.name), error.range));
        Ok(Self { options: chosen.checked().map_err(fault)? })
    }
}

fn set_option(options: &mut Options, name: &str, value: Option<f64>) -> Result<()> {
    let negative = || invalid(format!("{name} must be a whole number that is not negative"));
    let number = |value| whole(value).ok_or_else(negative);
    match (name, value) {
        ("giveUpAfterMs", value) => options.give_up_after_ms = value.map(number).transpose()?,
        ("maxAttempts", value) => {
            let number = value.map(number).transpose()?;
            options.max_attempts = number.map(|number| u32::try_from(number).unwrap_or(u32::MAX));
        }
        ("maxSilenceMs", value) => options.max_silence_ms = value.map(number).transpose()?,
        ("initialDelayMs", Some(value)) => options.initial_delay_ms = number(value)?,
        ("maxDelayMs", Some(value)) => options.max_delay_ms = number(value)?,
        ("growth", Some(value)) => options.growth = value,
        ("jitter", Some(value)) => options.jitter = value,
        ("maxEventBytes", Some(value)) => {
            options.max_event_bytes = usize::try_from(number(value)?).unwrap_or(usize::MAX)
        }
        ("initialDelayMs" | "maxDelayMs" | "growth" | "jitter" | "maxEventBytes", None) => {
            return Err(invalid(format!("{name} must be a number")));
        }
        _ => return Err(invalid(format!("unknown option {name}"))),
    }
    Ok(())
}

/// What a POST's body means for streams.
#[napi(object, object_from_js = false)]
pub struct ClientPosted {
    /// The ids of its requests, as a JSON array; absent where it has none.
    pub requests: Option<String>,
    /// The ids of requests that it cancels, each as JSON text; absent where it has none.
    pub cancelled: Option<Vec<String>>,
}

/// One thing to be done.
#[napi(object, object_from_js = false)]
pub struct ClientStep {
    /// `connect`, `opened`, `gap`, `cursorLost`, `disconnect`, `finished` or `failed`.
    pub kind: &'static str,
    /// Of `connect`, where there is one.
    pub last_event_id: Option<String>,
    /// Of `gap`.
    pub first: Option<f64>,
    /// Of `gap`.
    pub count: Option<f64>,
    /// Of `failed`: the failure's code, and its text.
    pub code: Option<&'static str>,
    pub message: Option<String>,
}

impl ClientStep {
    fn of(kind: &'static str) -> Self {
        Self { kind, last_event_id: None, first: None, count: None, code: None, message: None }
    }
}

/// What an input asks for.
#[napi(object, object_from_js = false)]
pub struct ClientSteps<'env> {
    /// Events for the client, without ids.
    pub frames: Option<Either<String, BufferSlice<'env>>>,
    /// The same as JSON texts, where these are wanted. Events of types of their own are not among them.
    pub messages: Option<Vec<String>>,
    /// The rest, in order, after what is delivered.
    pub steps: Vec<ClientStep>,
}

/// One stream. Times are whole milliseconds on a monotonic clock, `jitter` is 32 random bits.
#[napi]
pub struct ClientStream {
    stream: ResumableStream,
    steps: Vec<Step>,
    failure: Option<Failure>,
    wants_messages: bool,
    session_id: Option<String>,
    protocol_version: Option<String>,
}

impl ClientStream {
    fn open(opening: Opening, options: &ClientOptions, wants_messages: bool, now: f64) -> Self {
        let mut steps = Vec::new();
        let stream = ResumableStream::new(time(now), opening, options.options.clone(), &mut steps);
        Self { stream, steps, failure: None, wants_messages, session_id: None, protocol_version: None }
    }

    fn handle<'env>(
        &mut self,
        env: &'env Env,
        now: f64,
        jitter: u32,
        input: Input<'_>,
    ) -> Result<Option<ClientSteps<'env>>> {
        self.stream.handle(time(now), jitter, input, &mut self.steps);
        self.take(env)
    }

    fn take<'env>(&mut self, env: &'env Env) -> Result<Option<ClientSteps<'env>>> {
        if self.steps.is_empty() {
            return Ok(None);
        }
        let (mut frames, mut messages, mut steps) = (Vec::new(), Vec::new(), Vec::new());
        for step in self.steps.drain(..) {
            match step {
                Step::Deliver(message) if !self.wants_messages => message.write_frame(&mut frames),
                Step::Deliver(Message { event: None, data }) => messages.push(data),
                Step::Deliver(_) => {}
                Step::Connect { last_event_id } => {
                    steps.push(ClientStep { last_event_id, ..ClientStep::of("connect") });
                }
                Step::Opened => steps.push(ClientStep::of("opened")),
                Step::Gap { first, count } => steps.push(ClientStep {
                    first: Some(number(first)),
                    count: Some(number(count)),
                    ..ClientStep::of("gap")
                }),
                Step::CursorLost => steps.push(ClientStep::of("cursorLost")),
                Step::Disconnect => steps.push(ClientStep::of("disconnect")),
                Step::Finished => steps.push(ClientStep::of("finished")),
                Step::Failed(failure) => {
                    let (code, message) = (Some(failure.code().as_str()), Some(spelled(failure.to_string())));
                    steps.push(ClientStep { code, message, ..ClientStep::of("failed") });
                    self.failure = Some(failure);
                }
            }
        }
        let frames = if frames.is_empty() { None } else { Some(text_or_bytes(env, frames)?) };
        let messages = (!messages.is_empty()).then_some(messages);
        Ok(Some(ClientSteps { frames, messages, steps }))
    }
}

#[napi]
impl ClientStream {
    /// Whether the answer to a request with this head may be a stream.
    #[napi]
    pub fn takes_request(method: String, accept: Option<String>, protocol_version: Option<String>) -> bool {
        client::takes_request(&method, accept.as_deref(), protocol_version.as_deref())
    }

    /// Whether the answer to a POST with requests is the beginning of a stream.
    #[napi]
    pub fn takes_answer(status: u16, content_type: Option<String>) -> bool {
        client::takes_answer(status, content_type.as_deref())
    }

    /// What the body of a POST means for streams.
    #[napi(catch_unwind)]
    pub fn classify(body: JsBody<'_>) -> ClientPosted {
        let Posted { requests, cancelled } = Posted::read(match &body {
            Either::A(text) => text.as_bytes(),
            Either::B(bytes) => bytes,
        });
        ClientPosted {
            requests: (!requests.is_empty()).then(|| ids(&requests)),
            cancelled: (!cancelled.is_empty()).then(|| cancelled.iter().map(RequestId::to_json).collect()),
        }
    }

    /// What a refused POST means: a `failed` step.
    #[napi]
    pub fn refused(status: u16) -> ClientStep {
        let failure = client::refused(status);
        ClientStep {
            code: Some(failure.code().as_str()),
            message: Some(spelled(failure.to_string())),
            ..ClientStep::of("failed")
        }
    }

    /// A POST with these requests, a JSON array of ids, was answered with an event stream.
    #[napi(factory, catch_unwind)]
    pub fn posted(requests: String, options: &ClientOptions, wants_messages: bool, now: f64) -> Result<Self> {
        let requests =
            RequestId::decode_all(requests.as_bytes()).ok_or_else(|| invalid("not a list of request ids"))?;
        Ok(Self::open(Opening::Posted(requests), options, wants_messages, now))
    }

    /// A GET without a cursor.
    #[napi(factory, catch_unwind)]
    pub fn standalone(options: &ClientOptions, wants_messages: bool, now: f64) -> Self {
        Self::open(Opening::Standalone, options, wants_messages, now)
    }

    /// A GET with somebody else's cursor.
    #[napi(factory, catch_unwind)]
    pub fn continued(cursor: String, options: &ClientOptions, wants_messages: bool, now: f64) -> Self {
        Self::open(Opening::Continued(cursor), options, wants_messages, now)
    }

    /// What a token tells of.
    #[napi(factory, catch_unwind)]
    pub fn saved(token: String, options: &ClientOptions, wants_messages: bool, now: f64) -> Result<Self> {
        let token = Token::parse(&token).map_err(|error| invalid(error.to_string()))?;
        let (session_id, protocol_version) = (token.session_id.clone(), token.protocol_version.clone());
        let stream = Self::open(Opening::Saved(token), options, wants_messages, now);
        Ok(Self { session_id, protocol_version, ..stream })
    }

    /// What is to be done first.
    #[napi(catch_unwind)]
    pub fn start<'env>(&mut self, env: &'env Env) -> Result<Option<ClientSteps<'env>>> {
        self.take(env)
    }

    /// The head of the answer to a `connect`.
    #[napi(catch_unwind)]
    pub fn head<'env>(
        &mut self,
        env: &'env Env,
        now: f64,
        jitter: u32,
        status: u16,
        content_type: Option<String>,
        retry_after_ms: Option<f64>,
    ) -> Result<Option<ClientSteps<'env>>> {
        // What is no number of milliseconds is as good as none.
        let retry_after_ms = retry_after_ms.map(|ms| ms as u64);
        self.handle(env, now, jitter, Input::Head { status, content_type: content_type.as_deref(), retry_after_ms })
    }

    /// Bytes of the body.
    #[napi(catch_unwind)]
    pub fn bytes<'env>(
        &mut self,
        env: &'env Env,
        now: f64,
        jitter: u32,
        bytes: &[u8],
    ) -> Result<Option<ClientSteps<'env>>> {
        self.handle(env, now, jitter, Input::Bytes(bytes))
    }

    /// The body ended in good order.
    #[napi(catch_unwind)]
    pub fn end<'env>(&mut self, env: &'env Env, now: f64, jitter: u32) -> Result<Option<ClientSteps<'env>>> {
        self.handle(env, now, jitter, Input::End)
    }

    /// The connection broke, or could not be made.
    #[napi(catch_unwind)]
    pub fn broken<'env>(&mut self, env: &'env Env, now: f64, jitter: u32) -> Result<Option<ClientSteps<'env>>> {
        self.handle(env, now, jitter, Input::Broken)
    }

    /// Nobody waits for this request any more; its id is JSON text.
    #[napi(catch_unwind)]
    pub fn cancelled<'env>(
        &mut self,
        env: &'env Env,
        now: f64,
        jitter: u32,
        request: String,
    ) -> Result<Option<ClientSteps<'env>>> {
        let request = RequestId::from_json(&request).ok_or_else(|| invalid("not a request id"))?;
        self.handle(env, now, jitter, Input::Cancelled(request))
    }

    /// Nobody waits for the stream any more.
    #[napi(catch_unwind)]
    pub fn abort<'env>(&mut self, env: &'env Env, now: f64, jitter: u32) -> Result<Option<ClientSteps<'env>>> {
        self.handle(env, now, jitter, Input::Abort)
    }

    /// The host cannot go on: it ends the stream as one that nothing comes of any more.
    #[napi(catch_unwind)]
    pub fn abandon<'env>(&mut self, env: &'env Env, now: f64, jitter: u32) -> Result<Option<ClientSteps<'env>>> {
        if !self.stream.is_done() {
            let attempts = self.stream.attempts();
            self.stream.handle(time(now), jitter, Input::Abort, &mut self.steps);
            self.steps.push(Step::Failed(Failure::GaveUp { attempts, for_ms: 0 }));
        }
        self.take(env)
    }

    /// Time has passed.
    #[napi(catch_unwind)]
    pub fn tick<'env>(&mut self, env: &'env Env, now: f64, jitter: u32) -> Result<Option<ClientSteps<'env>>> {
        self.handle(env, now, jitter, Input::Tick)
    }

    /// When to `tick`; infinite for never.
    #[napi(getter)]
    pub fn deadline(&self) -> f64 {
        let deadline = self.stream.deadline();
        if deadline == Ms::NEVER { f64::INFINITY } else { number(deadline.0) }
    }

    /// The last event id; empty when there is none.
    #[napi(getter)]
    pub fn cursor(&self) -> &str {
        self.stream.cursor()
    }

    /// The reconnection time that the stream told.
    #[napi(getter)]
    pub fn retry_ms(&self) -> Option<f64> {
        self.stream.retry_ms().map(number)
    }

    /// Tries in a row that brought nothing.
    #[napi(getter)]
    pub fn attempts(&self) -> u32 {
        self.stream.attempts()
    }

    /// Requests without an answer, as a JSON array of ids.
    #[napi(getter)]
    pub fn requests(&self) -> String {
        ids(self.stream.requests())
    }

    /// Whether nothing will come of it any more.
    #[napi(getter)]
    pub fn is_done(&self) -> bool {
        self.stream.is_done()
    }

    /// The session that the token names.
    #[napi(getter)]
    pub fn session_id(&self) -> Option<&str> {
        self.session_id.as_deref()
    }

    /// The revision that the token names.
    #[napi(getter)]
    pub fn protocol_version(&self) -> Option<&str> {
        self.protocol_version.as_deref()
    }

    /// What it takes to continue the stream elsewhere; absent while it has no cursor, or is done.
    #[napi(catch_unwind)]
    pub fn token(&self, session_id: Option<String>, protocol_version: Option<String>) -> Option<String> {
        let token = self.stream.token()?;
        Some(Token { session_id, protocol_version, ..token }.to_string())
    }

    /// The error response of each request that has no other, once the stream has failed.
    #[napi(catch_unwind)]
    pub fn failure_frames<'env>(&self, env: &'env Env) -> Result<Option<Either<String, BufferSlice<'env>>>> {
        let mut frames = Vec::new();
        if let Some(failure) = &self.failure {
            for payload in failure_payloads(self.stream.requests(), failure) {
                sse::write_anonymous(&mut frames, payload.as_bytes());
            }
        }
        if frames.is_empty() { Ok(None) } else { text_or_bytes(env, frames).map(Some) }
    }
}

pub(crate) fn time(now: f64) -> Ms {
    Ms(now as u64)
}

fn ids(ids: &[RequestId]) -> String {
    // Made of strings.
    String::from_utf8(RequestId::encode_all(ids)).unwrap_or_default()
}
