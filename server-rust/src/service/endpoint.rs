//! One HTTP exchange after the other.

use std::borrow::Cow;
use std::fmt::Display;
use std::io;
use std::pin::pin;
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use http::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderName, ORIGIN};
use http::request::Parts;
use http::{Method, Request, Response};
use http_body::Body;
use http_body_util::{BodyExt as _, Full};
use tailrope_core::engine::{Connection, Engine, SessionHandle};
use tailrope_core::exchange::{self, Action, Admission, Allowed, AnswerHead, Fault, Relayed, RelayedMethod, Terms};
use tailrope_core::protocol::{Dialect, Head, Refusal, Revision};
use tailrope_core::store::SessionId;

use crate::adopting::{self, Adopt};
use crate::hearing::Ears;
use crate::host::{Host, new_id};
use crate::pages::Pages;
use crate::sender::{Sender, text};
use crate::service::answer::{self, ResponseBody};
use crate::service::hosts::Hosts;
use crate::service::{Application, Begun, Handlers, SESSION_ID, ServiceConfig};
use crate::signal::Signal;
use crate::table::Table;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");

type Answer = Response<ResponseBody>;

/// An endpoint and its sessions.
pub(crate) struct Endpoint<A: Application> {
    application: A,
    engine: Engine,
    config: ServiceConfig,
    hosts: Hosts,
    pub(crate) host: Arc<Host>,
    table: Table<A::Session>,
}

/// Why a body was not read.
enum Unread {
    TooLarge,
    /// Its sender left in the middle of it (F-22).
    Gone,
}

async fn read<B>(body: B, max_bytes: usize) -> Result<Bytes, Unread>
where
    B: Body,
    B::Error: Display,
{
    let mut body = pin!(body);
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(mut data) = frame.map_err(|_| Unread::Gone)?.into_data() else { continue };
        if bytes.len() + data.remaining() > max_bytes {
            return Err(Unread::TooLarge);
        }
        while data.has_remaining() {
            let chunk = data.chunk();
            bytes.extend_from_slice(chunk);
            let length = chunk.len();
            data.advance(length);
        }
    }
    Ok(bytes.into())
}

fn header(parts: &Parts, name: HeaderName) -> Option<Cow<'_, str>> {
    parts.headers.get(name).map(text)
}

/// What a client takes. Several lines are one list (RFC 9110, 5.3).
fn accepted(parts: &Parts) -> Option<Cow<'_, str>> {
    parts.headers.get_all(ACCEPT).iter().map(text).reduce(|before, next| format!("{before}, {next}").into())
}

impl<A: Application> Endpoint<A> {
    pub(crate) fn new(application: A, engine: Engine, config: ServiceConfig) -> Self {
        let host = Host::new(engine.clone());
        let hosts = Hosts::new(&config.allowed_hosts);
        Self { application, engine, config, hosts, host, table: Table::throwing_out() }
    }

    pub(crate) async fn serve<B>(self: &Arc<Self>, request: Request<B>) -> Answer
    where
        B: Body,
        B::Error: Display,
    {
        let (parts, body) = request.into_parts();
        let id = header(&parts, SESSION_ID).unwrap_or_default().into_owned();
        self.answer(parts, body, &id).await.unwrap_or_else(|refusal| answer::refused(&refusal, &Dialect::NEUTRAL, &id))
    }

    async fn answer<B>(self: &Arc<Self>, parts: Parts, body: B, id: &str) -> Result<Answer, Refusal>
    where
        B: Body,
        B::Error: Display,
    {
        let host = header(&parts, HOST).or_else(|| parts.uri.authority().map(|authority| authority.as_str().into()));
        let refusal = |fault: Fault<'_>| fault.refusal(&Dialect::NEUTRAL);
        if !self.hosts.serve(host.as_deref().unwrap_or_default()) {
            return Err(refusal(Fault::ForeignHost(host.as_deref().unwrap_or("null"))));
        }
        let origins: Vec<&str> = self.config.allowed_origins.iter().map(|origin| &**origin).collect();
        let allowed = Allowed { hosts: &[], origins: &origins };
        let origin = header(&parts, ORIGIN);
        allowed.check(None, origin.as_deref()).map_err(refusal)?;
        let max_bytes = if parts.method == Method::POST { self.config.max_body_bytes } else { 0 };
        let body = match read(body, max_bytes).await {
            Ok(body) => body,
            Err(Unread::TooLarge) if max_bytes == 0 => Bytes::new(),
            Err(Unread::TooLarge) => return Err(Fault::BodyTooLarge(&max_bytes.to_string()).refusal(&Dialect::NEUTRAL)),
            // Nobody is there to read it.
            Err(Unread::Gone) => return Err(Fault::NotOpened.refusal(&Dialect::NEUTRAL)),
        };
        if let Some(answer) = self.of_modern_revision(&parts, &body, id).await {
            return answer;
        }
        if id.is_empty() && parts.method == Method::POST {
            return Box::pin(self.open(parts, body)).await;
        }
        match self.table.here(id) {
            Some(handlers) => self.exchange(&*handlers, parts, body).await,
            // Seldom, and large: each request would have room for it otherwise.
            None => Box::pin(self.elsewhere(id, parts, body)).await,
        }
    }

    /// The answer to a request of a revision that cannot resume.
    async fn of_modern_revision(&self, parts: &Parts, body: &Bytes, id: &str) -> Option<Result<Answer, Refusal>> {
        let requested = header(parts, PROTOCOL_VERSION).filter(|_| parts.method == Method::POST && id.is_empty())?;
        let is_modern = |revision: Revision| !revision.rules().resumable;
        if !Revision::parse(&requested).is_some_and(is_modern) {
            return None;
        }
        if self.config.prefer_resumable {
            return Some(Err(self.engine.steer(body, &requested)));
        }
        self.engine.left_to_sdk(&requested);
        let served = self.application.serve_modern(Request::from_parts(parts.clone(), Full::new(body.clone())))?;
        Some(Ok(served.await))
    }

    /// Opens a session, if that is what the request asks for.
    async fn open(&self, parts: Parts, body: Bytes) -> Result<Answer, Refusal> {
        let id = new_id();
        let ears = Arc::new(Ears::default());
        let principal = self.sender(&parts).principal();
        let closing = |_| Dialect::NEUTRAL.wording.closing();
        let name = SessionId::new(self.server(&parts), &id);
        let session = self
            .engine
            .open_session(name, principal.as_deref(), &Dialect::NEUTRAL, ears.clone(), 0)
            .map_err(closing)?;
        let opened = self.first(&id, &session, &ears, parts, &body).await;
        if opened.is_err() {
            session.end();
            self.table.remove(&id);
        }
        self.host.arm_for_engine();
        opened
    }

    async fn first(
        &self,
        id: &str,
        session: &SessionHandle,
        ears: &Ears,
        parts: Parts,
        body: &Bytes,
    ) -> Result<Answer, Refusal> {
        // Before anything is made for it.
        let admission = self.admit(session, &parts, body)?;
        let handlers = self.begin(session, ears).map_err(|error| {
            tracing::error!(target: "tailrope", %error, "a session was not opened: the server's factory failed");
            Fault::Internal.refusal_of(&Dialect::NEUTRAL, body)
        })?;
        let message = handlers.read(parts, body, true);
        let message = message.map_err(|why| Fault::InvalidMessage(&why).refusal_of(&Dialect::NEUTRAL, body))?;
        self.table.insert(Arc::clone(&handlers));
        let pages = self.opened(|signal| session.open(&admission, self.config.json_response, signal, 0))?;
        if self.engine.outlives_process() {
            session.accept_posted();
        }
        handlers.call(message);
        Ok(answer::call(pages, id).await)
    }

    /// What names the server that this request is for.
    fn server<'a>(&'a self, parts: &'a Parts) -> &'a str {
        self.config.identity.server_name.as_deref().unwrap_or_else(|| parts.uri.path())
    }

    fn sender<'a>(&self, parts: &'a Parts) -> Sender<'a> {
        Sender::of(parts, &self.config.identity)
    }

    fn admit(&self, session: &SessionHandle, parts: &Parts, body: &[u8]) -> Result<Admission, Refusal> {
        let names = [CONTENT_TYPE, PROTOCOL_VERSION, SESSION_ID, LAST_EVENT_ID];
        let [content_type, protocol_version, session_id, last_event_id] = names.map(|name| header(parts, name));
        let accept = accepted(parts);
        let head = Head {
            method: parts.method.as_str(),
            accept: accept.as_deref(),
            content_type: content_type.as_deref(),
            protocol_version: protocol_version.as_deref(),
            session_id: session_id.as_deref(),
            last_event_id: last_event_id.as_deref(),
        };
        let terms = self.terms();
        self.sender(parts).ask(|asker| session.admit(&exchange::Request { head, asker, body }, &terms))
    }

    fn terms(&self) -> Terms<'static> {
        Terms { json_response: self.config.json_response, ..Terms::default() }
    }

    fn opened(&self, open: impl FnOnce(Arc<Signal>) -> Result<Connection, Refusal>) -> Result<Pages, Refusal> {
        let signal = Signal::new();
        let connection = open(Arc::clone(&signal))?;
        Ok(Pages::new(connection, signal, &self.host))
    }

    /// One exchange of a session that is served here.
    async fn exchange(&self, handlers: &A::Session, parts: Parts, body: Bytes) -> Result<Answer, Refusal> {
        let session = handlers.session();
        let id = session.id();
        let admission = self.admit(session, &parts, &body)?;
        let given = admission.rewritten().unwrap_or(&body);
        let status = AnswerHead { status: admission.status().unwrap_or(200), ..AnswerHead::EMPTY };
        let read = |parts: Parts| {
            let invalid = |why: String| Fault::InvalidMessage(&why).refusal_of(&Dialect::NEUTRAL, &body);
            handlers.read(parts, given, admission.action() == Action::Call).map_err(invalid)
        };
        match admission.action() {
            Action::Delete => session.delete(),
            // Nothing of it is for the handlers.
            Action::Message if given.is_empty() => session.received(&admission),
            Action::Message => {
                handlers.room().await;
                let message = read(parts)?;
                if !handlers.take(&admission, message) {
                    return Err(Dialect::NEUTRAL.wording.session_ended());
                }
            }
            Action::Call => {
                handlers.room().await;
                let message = read(parts)?;
                let pages = self.opened(|signal| session.open(&admission, self.config.json_response, signal, 0))?;
                // Where the session has just ended, the stream has its end.
                handlers.call(message);
                return Ok(answer::call(pages, id).await);
            }
            Action::Listen | Action::Resume => {
                let pages = self.opened(|signal| session.open(&admission, self.config.json_response, signal, 0))?;
                return Ok(answer::connection(pages, id).await);
            }
        }
        Ok(answer::empty(&status, id))
    }

    /// A request for a session that is not served here.
    async fn elsewhere(self: &Arc<Self>, id: &str, parts: Parts, body: Bytes) -> Result<Answer, Refusal> {
        let unknown = || Fault::SessionUnknown.refusal(&Dialect::NEUTRAL);
        if id.is_empty() {
            return Err(Fault::NotInitialize.refusal(&Dialect::NEUTRAL));
        }
        if !self.engine.outlives_process() {
            return Err(unknown());
        }
        let last_event_id = header(&parts, LAST_EVENT_ID).filter(|_| parts.method == Method::GET);
        let principal = self.sender(&parts).principal();
        let name = SessionId::new(self.server(&parts), id);
        let found = self.host.look_up(name, principal.as_deref(), last_event_id.as_deref()).await;
        let session = found.map_err(|error| {
            tracing::warn!(target: "tailrope", %error, "a session cannot be looked up");
            Fault::SessionNotTold.refusal(&Dialect::NEUTRAL)
        })?;
        let session = session.ok_or_else(unknown)?;
        if parts.method != Method::GET
            && !session.is_elsewhere()
            && let Some(handlers) = self.table.adopted(&session).await
        {
            return self.exchange(&*handlers, parts, body).await;
        }
        let opened = self.admit(&session, &parts, &body).and_then(|admission| {
            if parts.method != Method::GET {
                adopting::offer(self, &session);
            }
            self.opened(|signal| match RelayedMethod::parse(parts.method.as_str()) {
                None => session.open(&admission, self.config.json_response, signal, 0),
                Some(method) => {
                    let headers: Vec<_> =
                        parts.headers.iter().map(|(name, value)| (name.as_str(), text(value))).collect();
                    let headers = headers.iter().map(|(name, value)| (*name, &**value));
                    let more: Vec<&str> = self.config.relayed_headers.iter().map(|name| &**name).collect();
                    let relayed = Relayed::new(method, body.clone(), headers, &more, None);
                    match self.config.json_response {
                        true => session.relay_json(&admission, relayed, signal, 0),
                        false => session.relay(&admission, relayed, signal, 0),
                    }
                }
            })
        });
        match opened {
            Ok(pages) => Ok(answer::connection(pages, id).await),
            Err(refusal) => {
                session.let_go();
                Err(refusal)
            }
        }
    }
}

impl<A: Application> Adopt for Endpoint<A> {
    type Session = A::Session;

    fn host(&self) -> &Arc<Host> {
        &self.host
    }

    fn begin(&self, session: &SessionHandle, ears: &Ears) -> io::Result<Arc<A::Session>> {
        let begun = Begun { session: session.clone(), ears, host: &self.host, terms: self.terms() };
        self.application.begin(&begun)
    }

    fn table(&self) -> &Table<A::Session> {
        &self.table
    }
}
