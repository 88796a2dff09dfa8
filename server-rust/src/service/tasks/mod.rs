//! Requests of revision 2026-07-28: long calls become tasks, made below the application. The engine decides, this gives the
//! application its requests and carries bytes.
//!
//! | module | what it does |
//! |---|---|
//! | `run` | gives the application a call, and reads its answer |
//! | `call` | does what the engine says of a call |
//! | `reply` | what the client of a call is answered |
//! | `subscription` | puts what becomes of tasks between the events of the application |

mod call;
mod reply;
mod run;
mod subscription;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use tailrope_core::engine::{CallOptions, TaskAnswer};
use tailrope_core::exchange::{Fault, Principal, RelayedMethod};
use tailrope_core::protocol::{Dialect, Refusal, Revision};
use tailrope_core::task::{
    Announcement, Ask, CallHeaders, Declared, Posted, Route, RunReader, TaskHead, TaskRequest, announce,
    missing_capability, read_request,
};
use tokio::task::JoinHandle;

use self::call::Caller;
use self::run::with_message;
use self::subscription::interleaved;
use super::answer::ResponseBody;
use super::endpoint::Endpoint;
use super::headers::Headers;
use super::{Application, relayed};
use crate::sender::text;
use crate::signal::Signal;

type Answer = Response<ResponseBody>;

const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// What asks the application for its capabilities, when nobody has.
const DISCOVER: &str = r#"{"jsonrpc":"2.0","id":0,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"tailrope","version":"0"},"io.modelcontextprotocol/clientCapabilities":{}}}}"#;

/// What an endpoint knows of tasks.
#[derive(Default)]
pub(super) struct Tasks {
    /// Whether the application makes tasks itself, once it has said so.
    stands_aside: OnceLock<bool>,
    /// The heads of the requests that are being answered, by their keys: a round of a call runs in the context of one.
    contexts: Mutex<HashMap<u64, Parts>>,
}

/// A key of a request. No other endpoint has the same: a task may be asked about at one and run at another.
fn next_key() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Tasks {
    fn contexts(&self) -> MutexGuard<'_, HashMap<u64, Parts>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes whether the application makes tasks itself. An answer that cannot say so is no answer.
    fn note(&self, announcement: &Announcement) -> bool {
        let is_by_host = *announcement == Announcement::ByHost;
        if *announcement != Announcement::Unchanged {
            let _ = self.stands_aside.set(is_by_host);
        }
        is_by_host
    }
}

/// The head of a request stays known while this is there.
struct Known<'a> {
    tasks: &'a Tasks,
    key: u64,
}

impl Drop for Known<'_> {
    fn drop(&mut self) {
        self.tasks.contexts().remove(&self.key);
    }
}

/// The revision of a POST without a session, if nothing can be resumed in it.
pub(super) fn modern_revision<'a>(headers: &'a Headers<'_>) -> Option<&'a str> {
    let requested = headers.protocol_version.as_deref()?;
    let is_modern = |revision: Revision| !revision.rules().resumable;
    Revision::parse(requested).is_some_and(is_modern).then_some(requested)
}

impl<A: Application> Endpoint<A> {
    /// The answer to a POST of a revision that cannot resume. None if the application does not serve that revision.
    pub(super) async fn modern(self: &Arc<Self>, parts: Parts, body: Bytes) -> Option<Result<Answer, Refusal>> {
        let requested = Headers::of(&parts.headers).protocol_version.unwrap_or_default().into_owned();
        let posted = Posted::read(Some(&requested), &body);
        let declares = posted.as_ref().is_some_and(|posted| posted.declared != Declared::No);
        let concerns_tasks =
            |posted: &Posted| posted.method != "server/discover" && (declares || posted.is_about_task());
        let stands_aside = match posted.as_ref().is_some_and(concerns_tasks) {
            true => self.stands_aside(&parts).await,
            false => self.tasks.stands_aside.get().copied().unwrap_or_default(),
        };
        let engine = &self.host.engine;
        let route = match &posted {
            Some(posted) => engine.route_post(posted, self.config.prefer_resumable, stands_aside),
            None if self.config.prefer_resumable => Route::Steer,
            None => Route::Pass,
        };
        match route {
            Route::Steer => Some(Err(engine.steer(&body, &requested))),
            Route::Undeclared => Some(Err(missing_capability().naming_request(&body))),
            Route::Listen => self.listen(parts, body).await,
            Route::Pass => {
                if !declares {
                    engine.note_unresumable(&requested);
                }
                Some(Ok(self.pass(parts, body)?.await))
            }
            Route::Discover => self.discover(parts, body).await.map(Ok),
            Route::Task => Some(self.about_task(&parts, &body).await),
            Route::Call => self.call(parts, body, posted.and_then(|posted| posted.tool)).await,
        }
    }

    fn pass(&self, parts: Parts, body: Bytes) -> Option<super::Served> {
        let guest = self.host.engine.guest();
        self.application.serve_modern(Request::from_parts(parts, Full::new(body)), guest)
    }

    /// Whether the application makes tasks itself. It is asked until it has said so, in the context of this request.
    async fn stands_aside(&self, parts: &Parts) -> bool {
        if let Some(known) = self.tasks.stands_aside.get() {
            return *known;
        }
        let header = |name: &str, value: &str| (name.into(), value.into());
        let of_message = [header("content-type", "application/json"), header("mcp-method", "server/discover")];
        match self.pass(with_message(parts.clone(), &of_message), Bytes::from_static(DISCOVER.as_bytes())) {
            Some(served) => self.tasks.note(&announced(served.await).await.1),
            None => true,
        }
    }

    /// The application's answer to `server/discover`, with the extension.
    async fn discover(&self, parts: Parts, body: Bytes) -> Option<Answer> {
        let guest = self.host.engine.guest();
        let (answer, announcement) = announced(self.pass(parts, body)?.await).await;
        self.tasks.note(&announcement);
        let (mut head, bytes) = answer.into_parts();
        let body = match announcement {
            Announcement::Added(added) => {
                head.headers.remove(CONTENT_LENGTH);
                head.headers.insert(CONTENT_TYPE, JSON);
                added
            }
            Announcement::ByHost | Announcement::Unchanged => bytes,
        };
        Some(Response::from_parts(head, ResponseBody::other(Full::new(body), guest)))
    }

    /// The principal of a request's sender.
    fn principal(&self, parts: &Parts, body: &[u8]) -> Result<Option<Principal>, Refusal> {
        let unidentified = |_| Fault::Unidentified.refusal_of(&Dialect::NEUTRAL, body);
        self.sender(parts).principal().map_err(unidentified)
    }

    /// Runs a call that may become a task.
    async fn call(
        self: &Arc<Self>,
        parts: Parts,
        body: Bytes,
        tool: Option<String>,
    ) -> Option<Result<Answer, Refusal>> {
        let server = self.server(&parts).into_owned();
        let takes_streams = !self.config.json_response;
        let headers = CallHeaders::of(parts.headers.iter().map(|(name, value)| (name.as_str(), text(value))));
        let signal = Signal::new();
        let opened = self.sender(&parts).ask(|requester| {
            let (server, tool, sdk) = (&*server, tool.as_deref(), Dialect::NEUTRAL.sdk);
            let options = CallOptions { server, tool, takes_streams, headers, requester, sdk };
            self.host.engine.open_call(&body, &options, Arc::clone(&signal) as _, 0)
        });
        let call = match opened {
            Ok(Some(call)) => call,
            Ok(None) => return Some(Ok(self.pass(parts, body)?.await)),
            Err(_) => return Some(Err(Fault::Unidentified.refusal_of(&Dialect::NEUTRAL, &body))),
        };
        self.host.arm_for_engine();
        let (caller, replies) = Caller::new(self, call, signal, parts);
        tokio::spawn(caller.serve(true));
        Some(replies.answer(&self.host.engine).await)
    }

    /// Passes a subscription on, and puts what becomes of the tasks that it names into the answer.
    async fn listen(&self, parts: Parts, body: Bytes) -> Option<Result<Answer, Refusal>> {
        let principal = match self.principal(&parts, &body) {
            Ok(principal) => principal,
            Err(refusal) => return Some(Err(refusal)),
        };
        let (server, signal) = (self.server(&parts).into_owned(), Signal::new());
        let wake = Arc::clone(&signal) as _;
        let subscription = match self.host.engine.subscribe_to_tasks(&server, &body, principal.as_ref(), wake, 0) {
            Ok(subscription) => subscription,
            Err(refusal) => return Some(Err(refusal)),
        };
        self.host.arm_for_engine();
        let answer = self.pass(parts, body)?.await;
        Some(Ok(match subscription {
            Some(subscription) => interleaved(answer, subscription, signal, &self.host),
            None => answer,
        }))
    }

    /// Answers a request about a task.
    async fn about_task(self: &Arc<Self>, parts: &Parts, body: &Bytes) -> Result<Answer, Refusal> {
        let request = self.read_request(parts, body)?;
        let principal = self.principal(parts, body)?;
        let is_get = request.ask == Ask::Get;
        let relayed =
            (!is_get).then(|| relayed(RelayedMethod::Post, body.clone(), Some(parts), &self.config.relayed_headers));
        let known = Known { tasks: &self.tasks, key: next_key() };
        if !is_get {
            self.tasks.contexts().insert(known.key, parts.clone());
        }
        let (signal, server) = (Signal::new(), self.server(parts));
        let wake = Arc::clone(&signal) as _;
        let mut served: Option<(JoinHandle<()>, Arc<Signal>)> = None;
        let query = self.host.engine.ask_task(&server, request, principal.as_ref(), relayed, wake, known.key);
        loop {
            self.host.arm_for_engine();
            match query.take() {
                Some(TaskAnswer::Body(body)) => return Ok(json(StatusCode::OK, body)),
                Some(TaskAnswer::Refused(refusal)) => return Err(refusal),
                Some(TaskAnswer::Serve(call)) => {
                    // Its wake is this request's, which may be over before the call is. So it passes wake-ups on.
                    let (mut caller, _) = Caller::new(self, call, Arc::clone(&signal), parts.clone());
                    let passed = Signal::new();
                    caller.pass_wakes_to(&passed);
                    served = Some((tokio::spawn(caller.serve(false)), passed));
                }
                None => match &mut served {
                    None => signal.woken().await,
                    Some((serving, passed)) => tokio::select! {
                        () = passed.woken() => {}
                        _ = serving => served = None,
                    },
                },
            }
        }
    }

    fn read_request(&self, parts: &Parts, body: &[u8]) -> Result<TaskRequest, Refusal> {
        let headers = Headers::of(&parts.headers);
        let (methods, names) = (values(&parts.headers, &METHOD), values(&parts.headers, &NAME));
        let [methods, names] = [&methods, &names].map(|values| values.iter().map(|value| &**value).collect::<Vec<_>>());
        let has_two_versions = parts.headers.get_all(VERSION).iter().count() > 1;
        let head = TaskHead { head: headers.head(parts), methods: &methods, names: &names, has_two_versions };
        read_request(&head, body, self.config.json_response, &Dialect::NEUTRAL)
    }
}

fn values<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Vec<std::borrow::Cow<'a, str>> {
    headers.get_all(name).iter().map(text).collect()
}

fn json(status: StatusCode, body: Bytes) -> Answer {
    let mut answer = Response::new(ResponseBody::whole(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, JSON);
    answer
}

/// The whole of an answer to `server/discover`, and what it says of tasks.
async fn announced(answer: Answer) -> (Response<Bytes>, Announcement) {
    let (head, body) = answer.into_parts();
    let bytes = body.collect().await.map(|collected| collected.to_bytes()).unwrap_or_default();
    let content_type = head.headers.get(CONTENT_TYPE).map(text);
    let mut reader = RunReader::new(0, head.status.as_u16(), content_type.as_deref());
    let inputs = reader.data(&bytes).into_iter().chain(reader.end());
    let announcement =
        inputs.into_iter().find_map(run::message).map_or(Announcement::Unchanged, |message| announce(&message));
    (Response::from_parts(head, bytes), announcement)
}
