//! rmcp's own session manager, and how a tool closes its connection there: by the number of its HTTP request, which rmcp tells no
//! handler, so that it is told here.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, stream};
use rmcp::RoleServer;
use rmcp::model::{ClientJsonRpcMessage, GetExtensions as _, JsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionHandle, LocalSessionManager, LocalSessionManagerError, SessionTransport,
};
use rmcp::transport::streamable_http_server::session::store::EventStore;
use rmcp::transport::streamable_http_server::session::{RestoreOutcome, ServerSseMessage, SessionId, SessionManager};
use tailrope_server::{Close, ResumableContext as _};

type Context = RequestContext<RoleServer>;
type Outcome<T> = Result<T, LocalSessionManagerError>;

/// rmcp's, which does everything but the telling.
pub(crate) struct Stock {
    manager: LocalSessionManager,
    retry: Duration,
}

/// What a handler finds in its request's extensions.
#[derive(Clone)]
struct Closer {
    session: LocalSessionHandle,
    number: u64,
    retry: Duration,
}

impl Closer {
    fn retry(&self, how: Close) -> Duration {
        how.retry_ms.map_or(self.retry, Duration::from_millis)
    }
}

impl Stock {
    /// With an event store, or with the 16 messages of each stream that it keeps itself.
    pub(crate) fn new(store: Option<Arc<dyn EventStore>>, retry: Duration, idle: Option<Duration>) -> Self {
        let mut manager = LocalSessionManager::default();
        if let Some(store) = store {
            manager = manager.with_event_store(store);
        }
        manager.session_config.sse_retry = Some(retry);
        manager.session_config.keep_alive = idle.or(manager.session_config.keep_alive);
        Self { manager, retry }
    }

    async fn handle(&self, id: &SessionId) -> Outcome<LocalSessionHandle> {
        let handle = self.manager.sessions.read().await.get(id).cloned();
        handle.ok_or_else(|| LocalSessionManagerError::SessionNotFound(Arc::clone(id)))
    }
}

impl SessionManager for Stock {
    type Error = LocalSessionManagerError;
    type Transport = SessionTransport;

    async fn create_session(&self) -> Outcome<(SessionId, SessionTransport)> {
        self.manager.create_session().await
    }

    async fn initialize_session(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Outcome<ServerJsonRpcMessage> {
        self.manager.initialize_session(id, message).await
    }

    async fn has_session(&self, id: &SessionId) -> Outcome<bool> {
        self.manager.has_session(id).await
    }

    async fn close_session(&self, id: &SessionId) -> Outcome<()> {
        self.manager.close_session(id).await
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        mut message: ClientJsonRpcMessage,
    ) -> Outcome<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static> {
        // As rmcp's does it.
        let session = self.handle(id).await?;
        let mut opened = session.establish_request_wise_channel().await?;
        if let (JsonRpcMessage::Request(request), Some(number)) = (&mut message, opened.http_request_id) {
            let closer = Closer { session: session.clone(), number, retry: self.retry };
            request.request.extensions_mut().insert(closer);
        }
        session.push_message(message, opened.http_request_id).await?;
        Ok(stream::poll_fn(move |cx| opened.inner.poll_recv(cx)))
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Outcome<()> {
        self.manager.accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Outcome<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static> {
        self.manager.create_standalone_stream(id).await
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Outcome<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static> {
        self.manager.resume(id, last_event_id).await
    }

    async fn restore_session(&self, id: SessionId) -> Outcome<RestoreOutcome<SessionTransport>> {
        self.manager.restore_session(id).await
    }

    fn event_store(&self) -> Option<Arc<dyn EventStore>> {
        self.manager.event_store()
    }
}

/// Closes the connection of a call, under any session manager. Whether it can be polled.
pub(crate) async fn close(context: &Context, how: Close) -> bool {
    let Some(closer) = context.extensions.get::<Closer>() else { return context.close_sse_stream(how) };
    closer.session.close_sse_stream(closer.number, Some(closer.retry(how))).await.is_ok()
}

/// Closes the connection of the standalone stream, likewise.
pub(crate) async fn close_standalone(context: &Context, how: Close) -> bool {
    let Some(closer) = context.extensions.get::<Closer>() else { return context.close_standalone_sse_stream(how) };
    closer.session.close_standalone_sse_stream(Some(closer.retry(how))).await.is_ok()
}
