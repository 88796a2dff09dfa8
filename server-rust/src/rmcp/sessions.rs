//! rmcp's `SessionManager` over the engine.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_core::Stream;
use rmcp::ServerHandler;
use rmcp::model::{ClientJsonRpcMessage, JsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_server::session::{ServerSseMessage, SessionId, SessionManager};
use tailrope_core::engine::{Engine, EngineError, SessionHandle};
use tailrope_core::exchange::{Admission, Fault, Relayed, RelayedMethod, Terms, Unidentified};
use tailrope_core::protocol::{Dialect, Head, Operation};
use tailrope_core::store;
use tokio::task::yield_now;

use crate::adopting::{self, Adopt};
use crate::close::Drain;
use crate::hearing::Ears;
use crate::host::{Host, new_id};
use crate::pages::Pages;
use crate::rmcp::error::SessionsError;
use crate::rmcp::events::EventStream;
use crate::rmcp::layer::{Caller, Callers, SessionsLayer};
use crate::rmcp::messages::{admitted, json, parts_of};
use crate::rmcp::served::Served;
use crate::rmcp::transport::{Ended, SessionTransport, serve};
use crate::sender::Identity;
use crate::service::{Begun, relayed};
use crate::table::Table;

/// The id of the priming event that rmcp's service itself writes before a standalone stream and before the answer to
/// `initialize`. A client that resumes with it has nothing of the stream yet.
const RMCP_START: &str = "0";

/// The sessions of rmcp's `StreamableHttpService`, with streams that outlive their connections: any client that resumes gets
/// exactly what it has not got yet.
///
/// ```no_run
/// # use rmcp::ServerHandler;
/// # #[derive(Clone)] struct Tools;
/// # impl ServerHandler for Tools {}
/// use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
/// use tailrope_server::{CatchPanic, Engine, Options, Sessions};
///
/// let engine = Engine::new(Options::default());
/// let service = StreamableHttpService::new(
///     || Ok(CatchPanic(Tools)), // rmcp sends no answer if a handler panics
///     Sessions::new(engine).into(), // was: LocalSessionManager::default().into()
///     StreamableHttpServerConfig::default(),
/// );
/// // The layer shows the sessions whose request it is, and for which server.
/// let app = axum::Router::new().nest_service("/mcp", service).layer(Sessions::layer());
/// # let _: axum::Router = app;
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
/// - It runs the handlers, so wrap each in [`CatchPanic`](crate::CatchPanic). Without that, a panic of a handler is
///   noticed only by a `RequestContext` that is dropped in it: if the handler has none, its request gets no answer, and a
///   task that panics with a clone of the context counts as the handler.
/// - It answers each DELETE with 202, also one for a session that does not exist.
/// - It serves revision 2026-07-28 without sessions: none of those requests comes here.
pub struct Sessions {
    host: Arc<Host>,
    callers: Callers,
    table: Arc<Table<Served>>,
    ended: Arc<Ended>,
    adopter: Option<Arc<Adopter>>,
}

/// Where a session is served.
enum Place {
    Here(Arc<Served>),
    Elsewhere(SessionHandle),
}

impl Place {
    fn session(&self) -> &SessionHandle {
        match self {
            Self::Here(served) => &served.session,
            Self::Elsewhere(session) => session,
        }
    }
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

    fn begin(&self, session: &SessionHandle, ears: &Ears, path: &str) -> io::Result<Arc<Served>> {
        let served = served(session.clone(), ears, &self.host, &self.table, path);
        tokio::spawn((self.begin)(&served)?);
        Ok(served)
    }

    fn table(&self) -> &Table<Served> {
        &self.table
    }
}

fn served(
    session: SessionHandle,
    ears: &Ears,
    host: &Arc<Host>,
    table: &Arc<Table<Served>>,
    path: &str,
) -> Arc<Served> {
    // rmcp writes the comments.
    session.set_keep_alive_ms(0);
    let begun = Begun { session, ears, host, table, path, terms: Terms::default() };
    Served::new(&begun, Some(Arc::default()))
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("engine", &self.host.engine).finish_non_exhaustive()
    }
}

impl Sessions {
    /// Sessions of this engine.
    pub fn new(engine: Engine) -> Self {
        let host = Host::new(engine);
        let (table, ended) = (Table::new(), Arc::default());
        Self { host, callers: Callers::default(), table, ended, adopter: None }
    }

    /// The layer that shows sessions the HTTP requests, which rmcp's service does not: so a session is found only by
    /// requests of its own user, to its own server. One layer serves any number of services.
    ///
    /// What authenticates has to be outside of the layer. In axum a layer that is added later is further outside:
    ///
    /// ```no_run
    /// # use axum::{Router, extract::Request, middleware::{Next, from_fn}, response::Response};
    /// # async fn authenticate(request: Request, next: Next) -> Response { next.run(request).await }
    /// # fn f(app: Router) -> Router {
    /// use tailrope_server::Sessions;
    ///
    /// app.layer(Sessions::layer()).layer(from_fn(authenticate))
    /// # }
    /// ```
    ///
    /// Around a router, the layer sees the whole path of a request, also with `nest_service`.
    ///
    /// A request that the layer does not show is nobody's. So without the layer no session belongs to a user: a request
    /// with a credential opens none, and is answered with 500. One WARNING says so.
    pub fn layer() -> SessionsLayer {
        SessionsLayer::new()
    }

    /// Says whose the sessions are. This needs the [`layer`](Self::layer).
    #[must_use]
    pub fn with_identity(self, identity: Identity) -> Self {
        Self { callers: Callers::new(identity), ..self }
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

    /// Looks up a session of the caller's at the server that the request is for, and the stream of `last_event_id` with
    /// it. All other sessions are unknown (I7). A session that is not served here is one of another process, or was
    /// adopted here a moment ago.
    async fn look_up(&self, caller: &Caller, id: &str, last_event_id: Option<&str>) -> Result<Place, SessionsError> {
        let server = self.callers.server(caller);
        let name = store::SessionId::new(&server, id);
        let principal = caller.principal.as_ref().map_err(|_| SessionsError::UnknownSession)?.as_ref();
        if let Some(served) = self.table.of_server(name, self.callers.identity()) {
            return match served.session.check_principal(principal) {
                Ok(()) => Ok(Place::Here(served)),
                Err(refusal) if refusal.status == 404 => Err(SessionsError::UnknownSession),
                Err(refusal) => Err(refusal.into()),
            };
        }
        let session = self.host.look_up(name, principal, last_event_id).await?;
        session.map(Place::Elsewhere).ok_or(SessionsError::UnknownSession)
    }

    async fn read(&self, id: &SessionId, last_event_id: Option<&str>) -> Result<EventStream, SessionsError> {
        let last_event_id = last_event_id.filter(|last_event_id| *last_event_id != RMCP_START);
        let place = self.look_up(&self.callers.now(&self.host.engine), id, last_event_id).await?;
        let session = place.session();
        let opened = Pages::open(&self.host, |signal| match last_event_id {
            Some(last_event_id) => session.resume(last_event_id, None, signal, 0),
            None => session.listen(signal, 0),
        });
        if opened.is_err() {
            session.let_go();
        }
        let recent = match &place {
            Place::Here(served) => served.recent.clone(),
            Place::Elsewhere(_) => None,
        };
        Ok(EventStream::new(opened?, recent))
    }

    /// Where the session of this message is served.
    async fn place(
        &self,
        caller: &Caller,
        id: &SessionId,
        message: &ClientJsonRpcMessage,
    ) -> Result<Place, SessionsError> {
        let place = self.look_up(caller, id, None).await?;
        self.callers.check(&self.host.engine, place.session(), message).inspect_err(|_| place.session().let_go())?;
        if let Place::Elsewhere(session) = &place
            && self.adopter.is_some()
            && !session.is_elsewhere()
            && let Some(served) = self.table.adopted(session).await
        {
            return Ok(Place::Here(served));
        }
        Ok(place)
    }

    /// Relays a message to the process that has this session. The answer is a stream of that process.
    async fn relay(
        &self,
        caller: &Caller,
        session: &SessionHandle,
        message: &ClientJsonRpcMessage,
        admission: &Admission,
    ) -> Result<EventStream, SessionsError> {
        let parts = caller.parts.as_deref().or_else(|| parts_of(message));
        self.pass(caller, session, admission, relayed(RelayedMethod::Post, json(message), parts, &[])).await
    }

    /// Passes a request on to the process that has this session, or had it.
    async fn pass(
        &self,
        caller: &Caller,
        session: &SessionHandle,
        admission: &Admission,
        relayed: Relayed,
    ) -> Result<EventStream, SessionsError> {
        if let Some(adopter) = &self.adopter {
            adopting::offer(adopter, session, caller.path());
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
        let (id, ears): (SessionId, _) = (new_id().into(), Arc::new(Ears::default()));
        let engine = &self.host.engine;
        let caller = self.callers.first(engine);
        let server = self.callers.server(&caller);
        let name = store::SessionId::new(&server, &id);
        let unidentified = |_: &Unidentified| SessionsError::Refused(Fault::Unidentified.refusal(&Dialect::NEUTRAL));
        let principal = caller.principal.as_ref().map_err(unidentified)?.as_ref();
        let session = engine.open_session(name, principal, &Dialect::NEUTRAL, ears.clone(), 0)?;
        let served = served(session, &ears, &self.host, &self.table, caller.path());
        self.table.insert(Arc::clone(&served));
        self.host.arm_for_engine();
        Ok((id, SessionTransport::new(served, &self.ended)))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, SessionsError> {
        let served = self.table.here(id).ok_or(SessionsError::UnknownSession)?;
        let session = &served.session;
        self.callers.check(&self.host.engine, session, &message).inspect_err(|_| session.end())?;
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
        match self.look_up(&self.callers.now(&self.host.engine), id, None).await {
            Ok(place) => {
                place.session().let_go();
                Ok(true)
            }
            Err(SessionsError::UnknownSession) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), SessionsError> {
        // rmcp's service closes a session itself when its loop is over, and serves no request then.
        if !Caller::is_shown() && self.ended.remove(id) {
            return Ok(());
        }
        // A DELETE.
        let caller = self.callers.now(&self.host.engine);
        match self.look_up(&caller, id, None).await {
            Err(SessionsError::UnknownSession) => {}
            Err(error) => return Err(error),
            // rmcp's loop ends with the session.
            Ok(Place::Here(served)) => served.session.delete(),
            Ok(Place::Elsewhere(session)) if !session.is_elsewhere() => {
                // The session was adopted here a moment ago, and has no handlers yet.
                session.delete();
                self.table.tell();
            }
            Ok(Place::Elsewhere(session)) => {
                let head = Head { method: RelayedMethod::Delete.as_str(), ..Head::default() };
                let admission = Admission::new(Operation::Delete, &head, &[]);
                let relayed = relayed(RelayedMethod::Delete, Bytes::new(), caller.parts.as_deref(), &[]);
                self.pass(&caller, &session, &admission, relayed).await?;
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
        let caller = self.callers.now(&self.host.engine);
        let served = match self.place(&caller, id, &message).await? {
            Place::Here(served) => served,
            Place::Elsewhere(session) => return self.relay(&caller, &session, &message, &admission).await,
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
        let caller = self.callers.now(&self.host.engine);
        let served = match self.place(&caller, id, &message).await? {
            Place::Here(served) => served,
            Place::Elsewhere(session) => return self.relay(&caller, &session, &message, &admission).await.map(drop),
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
