//! An HTTP request as the core sees it.

use napi::bindgen_prelude::Either;
use napi_derive::napi;
use tailrope_core::engine::Engine;
use tailrope_core::exchange::{self, Action, Principal, Unidentified};
use tailrope_core::protocol::{self, Dialect};

/// A body: text, or bytes.
pub(crate) type JsBody<'a> = Either<String, &'a [u8]>;

/// What is known of the sender of a request: see the core's `Requester`. Of `credentials`, each name is followed by its value.
#[napi(object, object_to_js = false)]
pub struct Requester {
    pub named: Option<String>,
    pub log_user: Option<String>,
    pub user_json: Option<String>,
    pub credentials: Vec<String>,
}

impl Requester {
    /// What `with` makes of it, as the core has it.
    pub(crate) fn read<T>(requester: Option<&Self>, with: impl FnOnce(exchange::Requester<'_>) -> T) -> T {
        let Some(Self { named, log_user, user_json, credentials }) = requester else {
            return with(exchange::Requester::default());
        };
        let pairs: Vec<(&str, &str)> = credentials.chunks_exact(2).map(|pair| (&*pair[0], &*pair[1])).collect();
        let (named, log_user, user_json) = (named.as_deref(), log_user.as_deref(), user_json.as_deref());
        with(exchange::Requester { named, user_json, log_user, credentials: &pairs })
    }

    pub(crate) fn principal(requester: Option<&Self>, engine: &Engine) -> Result<Option<Principal>, Unidentified> {
        Self::read(requester, |requester| engine.principal_of(&requester))
    }
}

/// The parts of a request's head that count. They cross as one text, since each property of an object costs more than what it
/// says: a line for each, and a NUL for what is absent. No header has either.
pub(crate) fn head_of(text: &str) -> protocol::Head<'_> {
    let mut parts = text.splitn(6, '\n').map(|part| (part != "\0").then_some(part));
    let mut next = || parts.next().flatten();
    protocol::Head {
        method: next().unwrap_or_default(),
        accept: next(),
        content_type: next(),
        protocol_version: next(),
        session_id: next(),
        last_event_id: next(),
    }
}

pub(crate) fn body_bytes<'a>(body: &'a JsBody<'_>) -> &'a [u8] {
    match body {
        Either::A(text) => text.as_bytes(),
        Either::B(bytes) => bytes,
    }
}

/// A request that may enter its session.
#[napi]
pub struct Admission(pub(crate) exchange::Admission);

// One number instead of a getter for each fact: a crossing costs more than what it asks for.
const LISTEN: u32 = 1;
const RESUME: u32 = 2;
const DELETE: u32 = 3;
const MESSAGE: u32 = 4;
const CALL: u32 = 5;
const IS_INITIALIZE: u32 = 8;
const CANCELS: u32 = 16;
const ANSWERS: u32 = 32;
const REWRITTEN: u32 = 64;

impl Admission {
    /// Whether it is one request, or several, and nothing beside them, which the handlers are given as they came.
    pub(crate) fn is_plain_call(&self) -> bool {
        self.facts() == CALL
    }
}

pub(crate) fn facts_of(admission: &exchange::Admission) -> u32 {
    let action = match admission.action() {
        Action::Call => CALL,
        Action::Message => MESSAGE,
        Action::Listen => LISTEN,
        Action::Resume => RESUME,
        Action::Delete => DELETE,
    };
    action
        | if admission.initialize().is_some() { IS_INITIALIZE } else { 0 }
        | if admission.cancelled().next().is_some() { CANCELS } else { 0 }
        | if admission.has_answers() { ANSWERS } else { 0 }
        | if admission.rewritten().is_some() { REWRITTEN } else { 0 }
        | u32::from(admission.status().unwrap_or_default()) << 8
}

#[napi]
impl Admission {
    /// What the request does: its action in the lowest three bits (1 listen, 2 resume, 3 delete, 4 message:
    /// notifications and answers only, 5 call), 8 when it opens a session, 16 when it cancels requests, 32 when it answers
    /// requests of the server, 64 when the handlers are given something else in the place of the body. From the ninth bit on the status of the answer to a message or a deletion, which is empty.
    #[napi(getter)]
    pub fn facts(&self) -> u32 {
        facts_of(&self.0)
    }

    /// What the handlers are given in the place of the body, where that differs: a session that was adopted knows its server's
    /// requests by other ids than its client. Empty where there is nothing for the handlers.
    #[napi(getter)]
    pub fn rewritten(&self) -> Option<String> {
        self.0.rewritten().map(|body| String::from_utf8_lossy(body).into_owned())
    }
}

/// The answer to a request that may not.
#[napi]
pub struct Refusal {
    pub(crate) of: protocol::Refusal,
    body: String,
}

impl Refusal {
    pub(crate) fn new(refusal: &protocol::Refusal, dialect: &Dialect) -> Self {
        Self { of: refusal.clone(), body: String::from_utf8_lossy(&refusal.body(dialect)).into_owned() }
    }
}

#[napi]
impl Refusal {
    #[napi(getter)]
    pub fn status(&self) -> u16 {
        self.of.status
    }

    /// The body, as `application/json`.
    #[napi(getter)]
    pub fn body(&self) -> &str {
        &self.body
    }

    #[napi(getter)]
    pub fn allow(&self) -> Option<&'static str> {
        self.of.allow
    }

    #[napi(getter)]
    pub fn message(&self) -> &str {
        &self.of.message
    }

    /// The value of `Retry-After`, where the answer has it.
    #[napi(getter)]
    pub fn retry_after_s(&self) -> Option<u32> {
        self.of.retry_after_s()
    }
}
