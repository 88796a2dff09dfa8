//! An HTTP request as the core sees it.

use napi::bindgen_prelude::Either;
use napi_derive::napi;
use tailrope_core::exchange;
use tailrope_core::protocol::{
    self, Body, Context, Dialect, Envelope, Kind, Operation, RequestId, Revision, admit_with_versions,
};

use crate::convert::{JsRequestId, request_id_to_js};

/// A body: text, or bytes that are none.
pub(crate) type JsBody<'a> = Either<String, &'a [u8]>;

/// What is known of the sender of a request: see the core's `Asker`. Of `credentials`, each name is followed by its value.
#[napi(object, object_to_js = false)]
pub struct Asker {
    pub named: Option<String>,
    pub user_json: Option<String>,
    pub credentials: Vec<String>,
}

impl Asker {
    pub(crate) fn principal(&self) -> Option<Box<str>> {
        let pairs = self.credentials.chunks_exact(2).map(|pair| (&*pair[0], &*pair[1]));
        let credentials: Vec<(&str, &str)> = pairs.collect();
        let (named, user_json) = (self.named.as_deref(), self.user_json.as_deref());
        exchange::Asker { named, user_json, credentials: &credentials }.principal()
    }
}

/// The parts of a request's head that count.
#[napi(object, object_to_js = false)]
pub struct Head {
    pub method: String,
    pub accept: Option<String>,
    pub content_type: Option<String>,
    pub protocol_version: Option<String>,
    pub session_id: Option<String>,
    pub last_event_id: Option<String>,
    /// Absent where nothing is known of the sender.
    pub asker: Option<Asker>,
}

impl Head {
    pub(crate) fn principal(&self) -> Option<Box<str>> {
        self.asker.as_ref().and_then(Asker::principal)
    }

    fn head(&self) -> protocol::Head<'_> {
        protocol::Head {
            method: &self.method,
            accept: self.accept.as_deref(),
            content_type: self.content_type.as_deref(),
            protocol_version: self.protocol_version.as_deref(),
            session_id: self.session_id.as_deref(),
            last_event_id: self.last_event_id.as_deref(),
        }
    }

    /// Examines the request. `session_id` is empty while the transport has no session.
    pub(crate) fn admit(
        &self,
        body: JsBody<'_>,
        session_id: &str,
        json_response: bool,
        dialect: &Dialect,
        versions: &[String],
    ) -> Either<Admission, Refusal> {
        let head = self.head();
        let revision = head.protocol_version.and_then(Revision::parse);
        let context = Context { session_id, json_response };
        let versions: Vec<&str> = versions.iter().map(String::as_str).collect();
        let body = match &body {
            Either::A(text) => text.as_bytes(),
            Either::B(bytes) => bytes,
        };
        match admit_with_versions(&head, body, &context, dialect, &versions) {
            Ok(operation) => Either::A(Admission { operation, revision }),
            Err(refusal) => Either::B(Refusal::new(&refusal, dialect)),
        }
    }
}

/// A request that may enter its session.
#[napi]
pub struct Admission {
    pub(crate) operation: Operation,
    /// The revision that the version header names, for sessions whose own is not known.
    pub(crate) revision: Option<Revision>,
}

impl Admission {
    pub(crate) fn envelopes(&self) -> &[Envelope] {
        match &self.operation {
            Operation::Post(body) => body.envelopes(),
            _ => &[],
        }
    }

    pub(crate) fn initialize(&self) -> Option<&Envelope> {
        match &self.operation {
            Operation::Post(Body::Single(envelope)) if envelope.is_initialize() => Some(envelope),
            _ => None,
        }
    }

    pub(crate) fn requests(&self) -> Vec<RequestId> {
        let requests = self.envelopes().iter().filter(|envelope| envelope.kind == Kind::Request);
        requests.filter_map(|envelope| envelope.id.clone()).collect()
    }
}

// One number instead of a getter for each fact: a crossing costs more than what it asks for.
const LISTEN: u32 = 1;
const RESUME: u32 = 2;
const DELETE: u32 = 3;
const MESSAGE: u32 = 4;
const REQUEST: u32 = 5;
const IS_INITIALIZE: u32 = 8;
const CANCELS: u32 = 16;
const ANSWERS: u32 = 32;

#[napi]
impl Admission {
    /// What the request does: `operation` in the lowest three bits (1 listen, 2 resume, 3 delete,
    /// 4 message: notifications and answers only, 5 request), 8 when it opens a session, 16 when
    /// `cancelledRequests` names any, 32 when it answers requests of the server.
    #[napi(getter)]
    pub fn facts(&self) -> u32 {
        let operation = match &self.operation {
            Operation::Post(body) if body.has_request() => REQUEST,
            Operation::Post(_) => MESSAGE,
            Operation::Listen => LISTEN,
            Operation::Resume(_) => RESUME,
            Operation::Delete => DELETE,
        };
        let envelopes = self.envelopes();
        let answers = envelopes.iter().any(|envelope| matches!(envelope.kind, Kind::Response | Kind::ErrorResponse));
        let cancels = envelopes.iter().any(|envelope| envelope.fields.cancelled_request.is_some());
        operation
            | if self.initialize().is_some() { IS_INITIALIZE } else { 0 }
            | if cancels { CANCELS } else { 0 }
            | if answers { ANSWERS } else { 0 }
    }

    /// The requests that the `notifications/cancelled` of the body name.
    #[napi(getter)]
    pub fn cancelled_requests(&self) -> Vec<JsRequestId> {
        let cancelled = self.envelopes().iter().filter_map(|envelope| envelope.fields.cancelled_request.as_ref());
        cancelled.map(request_id_to_js).collect()
    }
}

/// The answer to a request that may not.
#[napi]
pub struct Refusal {
    status: u16,
    body: String,
    allow: Option<&'static str>,
    message: String,
}

impl Refusal {
    pub(crate) fn new(refusal: &protocol::Refusal, dialect: &Dialect) -> Self {
        Self {
            status: refusal.status,
            body: String::from_utf8_lossy(&refusal.body(dialect)).into_owned(),
            allow: refusal.allow,
            message: refusal.message.clone(),
        }
    }
}

#[napi]
impl Refusal {
    #[napi(getter)]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The body, as `application/json`.
    #[napi(getter)]
    pub fn body(&self) -> &str {
        &self.body
    }

    #[napi(getter)]
    pub fn allow(&self) -> Option<&'static str> {
        self.allow
    }

    #[napi(getter)]
    pub fn message(&self) -> &str {
        &self.message
    }
}
