//! Serves the HTTP exchanges of an endpoint.

use std::borrow::Cow;
use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;

use bytes::Bytes;
use http::header::{HOST, HeaderValue, ORIGIN};
use http::request::Parts;
use http::uri::Authority;
use http::{Method, Request, Response};
use http_body::Body;
use tailrope_core::engine::{Engine, SessionHandle};
use tailrope_core::exchange::{self, Action, Admission, Allowed, AnswerHead, Fault, RelayedMethod, Terms};
use tailrope_core::protocol::{Dialect, Refusal};
use tailrope_core::store::SessionId;

use crate::adopting::{self, Adopt};
use crate::close::Drain;
use crate::hearing::Ears;
use crate::host::{Host, new_id};
use crate::pages::Pages;
use crate::sender::{Sender, Unnamed, text};
use crate::service::answer::{self, ResponseBody};
#[cfg(feature = "front")]
use crate::service::behind::Behind;
use crate::service::headers::Headers;
use crate::service::hosts::Hosts;
use crate::service::reading::{self, BoxError, Unread};
use crate::service::tasks::{Tasks, modern_revision};
use crate::service::{Application, Begun, Handlers, SESSION_ID, ServiceConfig, relayed};
use crate::table::Table;

type Answer = Response<ResponseBody>;

/// An endpoint and its sessions.
pub(crate) struct Endpoint<A: Application> {
    pub(super) application: A,
    pub(super) config: ServiceConfig,
    hosts: Hosts,
    pub(super) tasks: Tasks,
    pub(crate) host: Arc<Host>,
    table: Arc<Table<A::Session>>,
    unnamed: Unnamed,
    #[cfg(feature = "front")]
    pub(super) behind: Behind,
}

/// Whether the request has a message for the handlers.
fn needs_room(admission: &Admission) -> bool {
    match admission.action() {
        Action::Call => true,
        Action::Message => !admission.is_for_nobody(),
        Action::Listen | Action::Resume | Action::Delete => false,
    }
}

/// How a request is answered, once its body is read.
enum Next<'a> {
    /// By its session. The handlers have been given the message already.
    Reply(Reply),
    /// After something else. Boxed because it is rare and large: otherwise the future of every request would have room
    /// for it.
    Later(Pin<Box<dyn Future<Output = Result<Answer, Refusal>> + Send + 'a>>),
}

/// How a session answers.
enum Reply {
    Empty(AnswerHead),
    /// With the stream of a call that has just begun.
    Call(Pages),
    Stream(Pages),
}

impl Reply {
    async fn answer(self, session_id: Option<&HeaderValue>) -> Answer {
        match self {
            Self::Empty(head) => answer::empty(&head, session_id),
            Self::Call(pages) => answer::call(pages, session_id).await,
            Self::Stream(pages) => answer::connection(pages, session_id).await,
        }
    }
}

impl<A: Application> Endpoint<A> {
    pub(crate) fn new(application: A, engine: Engine, config: ServiceConfig) -> Self {
        let host = Host::new(engine);
        let hosts = Hosts::new(&config.allowed_hosts);
        Self {
            application,
            config,
            hosts,
            tasks: Tasks::default(),
            host,
            table: Table::new(),
            unnamed: Unnamed::default(),
            #[cfg(feature = "front")]
            behind: Behind::default(),
        }
    }

    pub(crate) async fn serve<B>(self: Arc<Self>, request: Request<B>) -> Result<Answer, Infallible>
    where
        B: Body,
        B::Error: Into<BoxError>,
    {
        let (parts, body) = request.into_parts();
        let session_id = parts.headers.get(SESSION_ID).cloned();
        let id = session_id.as_ref().map(text).unwrap_or_default();
        let next = match self.body(&parts, body).await {
            Ok(body) => self.next(&id, parts, body),
            Err(refusal) => Err(refusal),
        };
        let answer = match next {
            Ok(Next::Reply(reply)) => Ok(reply.answer(session_id.as_ref()).await),
            Ok(Next::Later(answer)) => answer.await,
            Err(refusal) => Err(refusal),
        };
        Ok(answer.unwrap_or_else(|refusal| {
            self.host.engine.refused(&refusal);
            answer::refused(&refusal, &Dialect::NEUTRAL, session_id.as_ref())
        }))
    }

    pub(crate) async fn drain(&self, drain: Drain) -> bool {
        let is_over = self.host.drain(drain).await;
        self.application.end_modern();
        is_over
    }

    /// Checks `Host`, `Origin` and the method, and reads the body of a POST.
    async fn body<B>(&self, parts: &Parts, body: B) -> Result<Bytes, Refusal>
    where
        B: Body,
        B::Error: Into<BoxError>,
    {
        self.check_names(parts)?;
        if parts.method != Method::POST {
            let is_served = parts.method == Method::GET || parts.method == Method::DELETE;
            return if is_served { Ok(Bytes::new()) } else { Err(Dialect::NEUTRAL.wording.method_not_allowed()) };
        }
        let max_bytes = self.config.max_body_bytes;
        reading::read(pin!(body), max_bytes).await.map_err(|unread| match unread {
            Unread::TooLarge(_) => Fault::BodyTooLarge(&max_bytes.to_string()).refusal(&Dialect::NEUTRAL),
            Unread::Failed(error) => {
                tracing::debug!(target: "tailrope", error, "the body of a request was not read to its end");
                Fault::NotOpened.refusal(&Dialect::NEUTRAL)
            }
        })
    }

    /// Checks that the request came by a name of this server, and from a page that may use the server.
    fn check_names(&self, parts: &Parts) -> Result<(), Refusal> {
        let refusal = |fault: Fault<'_>| fault.refusal(&Dialect::NEUTRAL);
        let host = parts.headers.get(HOST).map(text);
        let host = host.as_deref().or_else(|| parts.uri.authority().map(Authority::as_str));
        if !self.hosts.serve(host.unwrap_or_default()) {
            return Err(refusal(Fault::ForeignHost(host.unwrap_or("null"))));
        }
        let Some(origin) = parts.headers.get(ORIGIN).map(text) else { return Ok(()) };
        let origins: Vec<&str> = self.config.allowed_origins.iter().map(|origin| &**origin).collect();
        Allowed { hosts: &[], origins: &origins }.check(None, Some(&origin)).map_err(refusal)
    }

    fn next<'a>(self: &'a Arc<Self>, id: &'a str, parts: Parts, body: Bytes) -> Result<Next<'a>, Refusal> {
        let headers = Headers::of(&parts.headers);
        if id.is_empty() && parts.method == Method::POST {
            if modern_revision(&headers).is_some() {
                return Ok(Next::Later(Box::pin(self.modern_or_open(parts, body))));
            }
            return Ok(Next::Later(Box::pin(self.open(parts, body))));
        }
        let server = self.server(&parts);
        let named = SessionId::new(&server, id);
        let Some(handlers) = self.table.of_server(named, &self.config.identity) else {
            return Ok(Next::Later(Box::pin(self.elsewhere(id, parts, body))));
        };
        let admission = self.admit(handlers.session(), &parts, &headers, &body)?;
        if needs_room(&admission) && !handlers.has_room() {
            return Ok(Next::Later(Box::pin(self.wait(handlers, admission, parts, body))));
        }
        let reply = self.reply(&*handlers, &admission, parts, &body)?;
        Ok(Next::Reply(reply))
    }

    async fn modern_or_open(self: &Arc<Self>, parts: Parts, body: Bytes) -> Result<Answer, Refusal> {
        match self.modern(parts.clone(), body.clone()).await {
            Some(answer) => answer,
            None => self.open(parts, body).await,
        }
    }

    /// Opens a session, if that is what the request asks for.
    async fn open(&self, parts: Parts, body: Bytes) -> Result<Answer, Refusal> {
        let id = new_id();
        let ears = Arc::new(Ears::default());
        let unidentified = |_| Fault::Unidentified.refusal_of(&Dialect::NEUTRAL, &body);
        let principal = self.sender(&parts).principal().map_err(unidentified)?;
        let closing = |_| Dialect::NEUTRAL.wording.closing();
        self.unnamed.warn(&self.config.identity, &parts, &self.host.engine);
        let server = self.server(&parts);
        let name = SessionId::new(&server, &id);
        let session = self
            .host
            .engine
            .open_session(name, principal.as_ref(), &Dialect::NEUTRAL, ears.clone(), 0)
            .map_err(closing)?;
        let opened = self.first(&id, &session, &ears, parts, &body).await;
        if opened.is_err() {
            session.end();
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
        // Before any handlers are made for the session.
        let admission = self.admit(session, &parts, &Headers::of(&parts.headers), body)?;
        let handlers = self.begin(session, ears, parts.uri.path()).map_err(|error| {
            tracing::error!(target: "tailrope", %error, "a session was not opened: the server's factory failed");
            Fault::Internal.refusal_of(&Dialect::NEUTRAL, body)
        })?;
        let message = handlers.read_admitted(parts, &admission, body);
        let message = message.map_err(|why| Fault::InvalidMessage(&why).refusal_of(&Dialect::NEUTRAL, body))?;
        self.table.insert(Arc::clone(&handlers));
        let pages = Pages::open(&self.host, |signal| session.open(&admission, self.config.json_response, signal, 0))?;
        if self.host.engine.outlives_process() {
            session.accept_posted();
        }
        handlers.open(message);
        Ok(answer::call(pages, HeaderValue::from_str(id).ok().as_ref()).await)
    }

    /// The name of the server that this request is for.
    pub(super) fn server<'a>(&'a self, parts: &Parts) -> Cow<'a, str> {
        self.config.identity.server(parts)
    }

    pub(super) fn sender<'a>(&'a self, parts: &'a Parts) -> Sender<'a> {
        Sender::of(parts, &self.config.identity, &self.host.engine)
    }

    fn admit(
        &self,
        session: &SessionHandle,
        parts: &Parts,
        headers: &Headers<'_>,
        body: &[u8],
    ) -> Result<Admission, Refusal> {
        let server = self.server(parts);
        let (head, terms) = (headers.head(parts), self.terms());
        self.sender(parts)
            .ask(|requester| session.admit(&exchange::Request { head, requester, server: Some(&server), body }, &terms))
    }

    fn terms(&self) -> Terms<'static> {
        Terms { json_response: self.config.json_response, ..Terms::default() }
    }

    /// Answers a request of a session that is served here. Waits first until the handlers have room for its message.
    async fn wait(
        &self,
        handlers: Arc<A::Session>,
        admission: Admission,
        parts: Parts,
        body: Bytes,
    ) -> Result<Answer, Refusal> {
        if needs_room(&admission) {
            handlers.room().await;
        }
        let session_id = parts.headers.get(SESSION_ID).cloned();
        let reply = self.reply(&*handlers, &admission, parts, &body)?;
        Ok(reply.answer(session_id.as_ref()).await)
    }

    /// Gives the handlers the message of the request, if it has one for them. Returns what is answered.
    fn reply(
        &self,
        handlers: &A::Session,
        admission: &Admission,
        parts: Parts,
        body: &Bytes,
    ) -> Result<Reply, Refusal> {
        let session = handlers.session();
        let read = |parts: Parts| {
            let invalid = |why: String| Fault::InvalidMessage(&why).refusal_of(&Dialect::NEUTRAL, body);
            handlers.read_admitted(parts, admission, body).map_err(invalid)
        };
        let open = || Pages::open(&self.host, |signal| session.open(admission, self.config.json_response, signal, 0));
        match admission.action() {
            Action::Delete => {
                session.delete();
                return Ok(Reply::Empty(AnswerHead::EMPTY));
            }
            Action::Message if admission.is_for_nobody() => session.received(admission),
            Action::Message => {
                if !handlers.take(admission, read(parts)?) {
                    return Err(Dialect::NEUTRAL.wording.session_ended());
                }
            }
            Action::Call => {
                let message = read(parts)?;
                let pages = open()?;
                // If the session has just ended, nobody takes the message, and the stream has its end already.
                handlers.call(message);
                return Ok(Reply::Call(pages));
            }
            Action::Listen | Action::Resume => return open().map(Reply::Stream),
        }
        Ok(Reply::Empty(AnswerHead::accepted(&Dialect::NEUTRAL)))
    }

    /// Answers a request for a session that is not served here.
    async fn elsewhere(self: &Arc<Self>, id: &str, parts: Parts, body: Bytes) -> Result<Answer, Refusal> {
        if id.is_empty() {
            return Err(Fault::NotInitialize.refusal(&Dialect::NEUTRAL));
        }
        let headers = Headers::of(&parts.headers);
        let server = self.server(&parts);
        let name = SessionId::new(&server, id);
        let unknown = || {
            self.sender(&parts).ask(|requester| {
                let (head, server) = (headers.head(&parts), Some(&*server));
                let request = exchange::Request { head, requester, server, body: &body };
                self.host.engine.unknown_session(name, &request, &Dialect::NEUTRAL)
            })
        };
        if !self.host.engine.outlives_process() {
            return Err(unknown());
        }
        let last_event_id = headers.last_event_id.as_deref().filter(|_| parts.method == Method::GET);
        let principal = self.sender(&parts).principal().map_err(|_| unknown())?;
        let found = self.host.look_up(name, principal.as_ref(), last_event_id).await;
        let session = found.map_err(|error| {
            tracing::warn!(target: "tailrope", %error, "a session cannot be looked up");
            Fault::SessionUnread.refusal(&Dialect::NEUTRAL)
        })?;
        let session = session.ok_or_else(unknown)?;
        if parts.method != Method::GET
            && !session.is_elsewhere()
            && let Some(handlers) = self.table.adopted(&session).await
        {
            let admission = self.admit(handlers.session(), &parts, &headers, &body)?;
            return self.wait(handlers, admission, parts, body).await;
        }
        let opened = self.admit(&session, &parts, &headers, &body).and_then(|admission| {
            if parts.method != Method::GET {
                adopting::offer(self, &session, parts.uri.path());
            }
            Pages::open(&self.host, |signal| match RelayedMethod::parse(parts.method.as_str()) {
                None => session.open(&admission, self.config.json_response, signal, 0),
                Some(method) => {
                    let relayed = relayed(method, body.clone(), Some(&parts), &self.config.relayed_headers);
                    match self.config.json_response {
                        true => session.relay_json(&admission, relayed, signal, 0),
                        false => session.relay(&admission, relayed, signal, 0),
                    }
                }
            })
        });
        match opened {
            Ok(pages) => Ok(answer::connection(pages, parts.headers.get(SESSION_ID)).await),
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

    fn begin(&self, session: &SessionHandle, ears: &Ears, path: &str) -> io::Result<Arc<A::Session>> {
        let (session, terms) = (session.clone(), self.terms());
        let begun = Begun { session, ears, host: &self.host, table: &self.table, path, terms };
        let handlers = self.application.begin(&begun)?;
        #[cfg(feature = "front")]
        self.behind.hand_over(self, handlers.session(), path);
        Ok(handlers)
    }

    fn table(&self) -> &Table<A::Session> {
        &self.table
    }
}
