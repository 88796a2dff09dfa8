//! rmcp's `SessionManager` over the engine.

use std::error::Error;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_core::Stream;
use http::request::Parts;
use rmcp::ServerHandler;
use rmcp::model::{ClientJsonRpcMessage, JsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_server::session::{ServerSseMessage, SessionId, SessionManager};
use tailrope_core::engine::{Engine, EngineError, SessionHandle};
use tailrope_core::exchange::Principal;
use tailrope_core::exchange::{Admission, Relayed, RelayedMethod, Terms};
use tailrope_core::protocol::{Dialect, EnvelopeError, Head, Operation, Refusal};
use tailrope_core::store;
use tokio::task::yield_now;

use crate::adopting::{self, Adopt};
use crate::close::Drain;
use crate::hearing::Ears;
use crate::host::{Host, new_id};
use crate::pages::Pages;
use crate::rmcp::events::EventStream;
use crate::rmcp::messages::{admitted, json, parts_of};
use crate::rmcp::served::Served;
use crate::rmcp::transport::{Left, SessionTransport, serve};
use crate::sender::{Identity, Sender};
use crate::service::Begun;
use crate::table::Table;

/// The id of the priming event that rmcp's service itself writes before a standalone stream and before the answer to
/// `initialize`. A client that resumes with it has nothing of the stream yet.
const RMCP_START: &str = "0";

/// rmcp tells a session manager no path when it opens a session.
const NO_PATH: &str = "/";

/// The sessions of rmcp's `StreamableHttpService`, with streams that outlive their connections: any client that resumes gets
/// exactly what it has not got yet.
///
/// ```no_run
/// # use rmcp::ServerHandler;
/// # #[derive(Clone)] struct Tools;
/// # impl ServerHandler for Tools {}
/// use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
/// use tailrope_server::{Engine, Options, Sessions};
///
/// let engine = Engine::new(Options::default());
/// let service = StreamableHttpService::new(
///     || Ok(Tools),
///     Sessions::new(engine).into(), // was: LocalSessionManager::default().into()
///     StreamableHttpServerConfig::default(),
/// );
/// # let _: StreamableHttpService<Tools, Sessions> = service;
/// ```
///
/// Handlers close the connection of a long call with [`ResumableContext`](crate::ResumableContext). Pacing, bounds and the event
/// store are the [`Options`](crate::Options) of the engine. The clock is a task of the tokio runtime that the requests run on.
///
/// A session manager cannot change what rmcp's service does itself:
///
/// - Its `sse_retry` (3 s by default) writes a priming event with the id `0` before ours on a standalone stream, and
///   before the answer to `initialize`. This does no harm: a client that comes back with `0` gets its standalone
///   stream. With `None`, rmcp leaves the event out.
/// - Its `sse_keep_alive` writes the comments, instead of the engine's `keep_alive_ms`. If the bounds dropped events
///   before their reader came, the comment that announces the gap cannot get through. The gap is logged, and counted in
///   [`Stats`](crate::Stats).
/// - Only rmcp's service sees what a reader takes. So a connection whose reader takes nothing is not cut off after the
///   engine's `max_connection_ms`: it stays until TCP or the HTTP server gives it up. What was not sent on it can be
///   resumed meanwhile.
/// - A resume that is not possible is answered with 200 and an empty stream, whatever the engine says. Every other
///   refusal of the engine is answered with 500.
/// - It shows a session manager the HTTP request only if that is a POST of a request or a notification. So
///   [principals](Identity::principal) are checked there. They are not checked on GET, on DELETE, and when a client
///   answers the server.
/// - It runs the handlers. A panic of a handler is noticed by a `RequestContext` that is dropped in it, so neither the
///   context nor a clone should be given to a task that may panic.
/// - It shows a session manager no path. Two servers with one `Sessions` would serve each other's sessions, so each needs
///   a `Sessions` of its own.
/// - It serves revision 2026-07-28 without sessions: none of those requests comes here.
pub struct Sessions {
    host: Arc<Host>,
    identity: Identity,
    table: Arc<Table<Served>>,
    left: Arc<Left>,
    adopter: Option<Arc<Adopter>>,
}

/// Where a session is served.
enum Place {
    Here(Arc<Served>),
    Elsewhere(SessionHandle),
}

/// Serves a session with a new handler of the user's, until the session ends.
type Begin = dyn Fn(&Arc<Served>) -> io::Result<Pin<Box<dyn Future<Output = ()> + Send>>> + Send + Sync;

/// Adopts sessions whose process is gone.
struct Adopter {
    host: Arc<Host>,
    table: Arc<Table<Served>>,
    begin: Box<Begin>,
}

impl Adopt for Adopter {
    type Session = Served;

    fn host(&self) -> &Arc<Host> {
        &self.host
    }

    fn begin(&self, session: &SessionHandle, ears: &Ears, _path: &str) -> io::Result<Arc<Served>> {
        let served = served(session.clone(), ears, &self.host, &self.table);
        tokio::spawn((self.begin)(&served)?);
        Ok(served)
    }

    fn table(&self) -> &Table<Served> {
        &self.table
    }
}

fn served(session: SessionHandle, ears: &Ears, host: &Arc<Host>, table: &Arc<Table<Served>>) -> Arc<Served> {
    // rmcp writes the comments.
    session.set_keep_alive_ms(0);
    let begun = Begun { session, ears, host, table, path: NO_PATH, terms: Terms::default() };
    Served::new(&begun, Some(Arc::default()))
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("engine", &self.host.engine).finish_non_exhaustive()
    }
}

/// What the sessions could not do. rmcp answers the client with 500, or on a resume with an empty stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionsError {
    /// There is no such session for this sender.
    UnknownSession,
    /// The engine does not take the request.
    Refused(Refusal),
    /// The engine failed.
    Engine(EngineError),
    /// The message is not one that a session takes.
    Message(EnvelopeError),
}

impl fmt::Display for SessionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownSession => f.write_str("there is no such session: it has ended, or belongs to another user"),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Engine(error) => error.fmt(f),
            Self::Message(error) => error.fmt(f),
        }
    }
}

impl Error for SessionsError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::UnknownSession => None,
            Self::Refused(refusal) => Some(refusal),
            Self::Engine(error) => Some(error),
            Self::Message(error) => Some(error),
        }
    }
}

impl From<Refusal> for SessionsError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<EngineError> for SessionsError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

impl From<EnvelopeError> for SessionsError {
    fn from(error: EnvelopeError) -> Self {
        Self::Message(error)
    }
}

impl Sessions {
    /// Sessions of this engine.
    pub fn new(engine: Engine) -> Self {
        let host = Host::new(engine);
        let (table, left) = (Table::new(), Arc::default());
        Self { host, identity: Identity::default(), table, left, adopter: None }
    }

    /// Says whose the sessions are.
    #[must_use]
    pub fn with_identity(self, identity: Identity) -> Self {
        Self { identity, ..self }
    }

    /// Adopts sessions whose process is gone: when a message of such a session's client comes, the session goes on
    /// here. `factory` makes its handler, as the factory of the service makes the others. The handler is told again
    /// what the client has told before, as far as it still holds. The event store has to be one that several processes
    /// share.
    ///
    /// ```no_run
    /// # use rmcp::ServerHandler;
    /// # #[derive(Clone)] struct Tools;
    /// # impl ServerHandler for Tools {}
    /// # fn f(engine: tailrope_server::Engine) {
    /// use tailrope_server::Sessions;
    ///
    /// let sessions = Sessions::new(engine).with_adoption(|| Ok(Tools));
    /// # }
    /// ```
    ///
    /// Without adoption, what such sessions have stored can be read here, and their calls are refused. rmcp's own way,
    /// `SessionManager::restore_session`, is not used: rmcp calls it before the message is stored anywhere, even for a
    /// mere GET, and lets a session begin again under its id although its process may still be alive. The engine takes
    /// a session over only if a message waits for a process that is gone.
    #[must_use]
    pub fn with_adoption<S: ServerHandler + Send + 'static>(
        self,
        factory: impl Fn() -> io::Result<S> + Send + Sync + 'static,
    ) -> Self {
        let begin = move |served: &Arc<Served>| Ok(Box::pin(serve(factory()?, served)) as Pin<Box<_>>);
        let (host, table) = (Arc::clone(&self.host), Arc::clone(&self.table));
        Self { adopter: Some(Arc::new(Adopter { host, table, begin: Box::new(begin) })), ..self }
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.host.engine
    }

    /// Closes every connection because the process is going away, and waits for the calls whose result another process
    /// could deliver. Clients come back, to this process or to another one with the same store.
    ///
    /// Returns whether nothing is left. Requests that come later are still served. So drain once more when the HTTP
    /// server has stopped: that waits for their calls, too. Cancel the token of rmcp's configuration after that.
    pub async fn drain(&self, drain: Drain) -> bool {
        self.host.drain(drain).await
    }

    fn named<'a>(&'a self, id: &'a str) -> store::SessionId<'a> {
        store::SessionId::new(self.identity.server_name.as_deref().unwrap_or_default(), id)
    }

    fn principal(&self, parts: &Parts) -> Result<Option<Principal>, SessionsError> {
        Sender::of(parts, &self.identity, &self.host.engine).principal().map_err(|_| SessionsError::UnknownSession)
    }

    /// Looks up a session, and the stream of `last_event_id` with it. It is a session of another process, or one that
    /// was adopted here a moment ago.
    async fn look_up(
        &self,
        id: &str,
        principal: Option<&Principal>,
        last_event_id: Option<&str>,
    ) -> Result<SessionHandle, SessionsError> {
        self.host.look_up(self.named(id), principal, last_event_id).await?.ok_or(SessionsError::UnknownSession)
    }

    async fn read(&self, id: &SessionId, last_event_id: Option<&str>) -> Result<EventStream, SessionsError> {
        let last_event_id = last_event_id.filter(|last_event_id| *last_event_id != RMCP_START);
        let here = self.table.here(id);
        let session = match &here {
            Some(served) => served.session.clone(),
            None => self.look_up(id, None, last_event_id).await?,
        };
        let opened = Pages::open(&self.host, |signal| match last_event_id {
            Some(last_event_id) => session.resume(last_event_id, None, signal, 0),
            None => session.listen(signal, 0),
        });
        if opened.is_err() {
            session.let_go();
        }
        Ok(EventStream::new(opened?, here.and_then(|served| served.recent.clone())))
    }

    /// Where the session of this message is served.
    async fn place(&self, id: &SessionId, message: &ClientJsonRpcMessage) -> Result<Place, SessionsError> {
        let principal = parts_of(message).map(|parts| self.principal(parts)).transpose()?;
        if let Some(served) = self.table.here(id) {
            // If the message is an answer of the client, rmcp shows nothing of its HTTP request, so there is nothing to
            // check.
            return if principal.is_none_or(|principal| served.session.belongs_to(principal.as_ref())) {
                Ok(Place::Here(served))
            } else {
                Err(SessionsError::UnknownSession)
            };
        }
        let principal = principal.flatten();
        let session = self.look_up(id, principal.as_ref(), None).await?;
        if self.adopter.is_some()
            && !session.is_elsewhere()
            && let Some(served) = self.table.adopted(&session).await
        {
            return Ok(Place::Here(served));
        }
        Ok(Place::Elsewhere(session))
    }

    /// Relays a message to the process that has this session. The answer is a stream of that process.
    async fn relay(
        &self,
        session: &SessionHandle,
        message: &ClientJsonRpcMessage,
        admission: &Admission,
    ) -> Result<EventStream, SessionsError> {
        let parts = parts_of(message);
        let headers = parts.map(|parts| &parts.headers).into_iter().flatten();
        let headers = headers.filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
        let relayed = Relayed::new(RelayedMethod::Post, json(message), headers, &[], None);
        self.pass(session, admission, relayed).await
    }

    /// Passes a request on to the process that has this session, or had it.
    async fn pass(
        &self,
        session: &SessionHandle,
        admission: &Admission,
        relayed: Relayed,
    ) -> Result<EventStream, SessionsError> {
        if let Some(adopter) = &self.adopter {
            adopting::offer(adopter, session, NO_PATH);
        }
        let opened = Pages::open(&self.host, |signal| session.relay(admission, relayed, signal, 0));
        if opened.is_err() {
            session.let_go();
        }
        Ok(EventStream::begun(opened?).await?)
    }
}

impl SessionManager for Sessions {
    type Error = SessionsError;
    type Transport = SessionTransport;

    async fn create_session(&self) -> Result<(SessionId, SessionTransport), SessionsError> {
        let id: SessionId = new_id().into();
        let ears = Arc::new(Ears::default());
        let session = self.host.engine.open_session(self.named(&id), None, &Dialect::NEUTRAL, ears.clone(), 0)?;
        let served = served(session, &ears, &self.host, &self.table);
        self.table.insert(Arc::clone(&served));
        self.host.arm_for_engine();
        Ok((id, SessionTransport::new(served, &self.left)))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, SessionsError> {
        let served = self.table.here(id).ok_or(SessionsError::UnknownSession)?;
        let session = &served.session;
        if let Some(parts) = parts_of(&message) {
            Sender::of(parts, &self.identity, &self.host.engine).ask(|requester| session.claim(&requester))?;
        }
        let JsonRpcMessage::Request(request) = &message else { return Err(SessionsError::UnknownSession) };
        let answer = served.initialized(request.id.clone());
        let opened = session.take_place().map_err(SessionsError::from).and_then(|()| {
            let admission = admitted(&message)?;
            // The engine counts the `initialize` as a running request until it is answered.
            Ok(Pages::open(&self.host, |signal| session.open(&admission, true, signal, 0))?)
        });
        let mut answered = opened.inspect_err(|_| session.end())?;
        self.host.arm_for_engine();
        if self.host.engine.outlives_process() {
            session.accept_posted();
        }
        served.begin(message);
        let answer = answer.await.map_err(|_| SessionsError::Engine(EngineError::SessionEnded))?;
        // The store has to have the session before the client has the answer: the client's next request may come to
        // another process.
        while answered.next().await.end.is_none() {}
        Ok(answer)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, SessionsError> {
        if self.table.here(id).is_some() {
            return Ok(true);
        }
        match self.look_up(id, None, None).await {
            Ok(session) => {
                session.let_go();
                Ok(true)
            }
            Err(SessionsError::UnknownSession) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), SessionsError> {
        if self.left.remove(id) {
            return Ok(());
        }
        match self.table.here(id) {
            // A DELETE. rmcp's loop ends with the session.
            Some(served) => served.session.delete(),
            // A DELETE for a session of another process, or for one that does not exist.
            None => {
                let session = match self.look_up(id, None, None).await {
                    Err(SessionsError::UnknownSession) => return Ok(()),
                    session => session?,
                };
                if !session.is_elsewhere() {
                    // The session was adopted here a moment ago, and has no handlers yet.
                    session.delete();
                    self.table.tell();
                    return Ok(());
                }
                let head = Head { method: RelayedMethod::Delete.as_str(), ..Head::default() };
                let admission = Admission::new(Operation::Delete, &head, &[]);
                let relayed = Relayed::new(RelayedMethod::Delete, Bytes::new(), [], &[], None);
                self.pass(&session, &admission, relayed).await?;
            }
        }
        Ok(())
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, SessionsError> {
        // Before the look-up: after it, an error would have to let go of a session of another process.
        let admission = admitted(&message)?;
        let served = match self.place(id, &message).await? {
            Place::Here(served) => served,
            Place::Elsewhere(session) => return self.relay(&session, &message, &admission).await,
        };
        // Before the request is in flight: from then on, nothing may delay it on its way to the handler.
        served.inbox.room().await;
        let pages = Pages::open(&self.host, |signal| served.session.open(&admission, false, signal, 0))?;
        // If the session has just ended, nobody takes the message, and the stream has its end already.
        served.begin(message);
        // Lets the handler begin before rmcp writes the first event: then what the handler sends at once leaves with
        // it.
        yield_now().await;
        Ok(EventStream::new(pages, served.recent.clone()))
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), SessionsError> {
        let admission = admitted(&message)?;
        let served = match self.place(id, &message).await? {
            Place::Here(served) => served,
            Place::Elsewhere(session) => return self.relay(&session, &message, &admission).await.map(drop),
        };
        served.inbox.room().await;
        if served.pass_on(&admission, message) { Ok(()) } else { Err(SessionsError::UnknownSession) }
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, SessionsError> {
        self.read(id, None).await
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, SessionsError> {
        self.read(id, Some(&last_event_id)).await
    }
}
