//! What rmcp's loop of one session reads and writes.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::serve_server;
use rmcp::transport::Transport;
use rmcp::transport::streamable_http_server::session::SessionId;
use rmcp::{RoleServer, ServerHandler};
use tailrope_core::engine::EngineError;

use crate::outcomes::Outcomes;
use crate::rmcp::boxed::Boxed;
use crate::rmcp::served::Served;

/// Serves a session with this handler, until the session ends.
pub(crate) fn serve<S: ServerHandler>(handler: S, served: &Arc<Served>) -> impl Future<Output = ()> + Send + use<S> {
    let transport = SessionTransport { served: Arc::clone(served), ended: None };
    async move {
        // The future of the handshake is larger than everything that a session needs after it, so it is boxed.
        let begun = Box::pin(serve_server(Boxed(handler), transport)).await;
        match begun {
            // When this is over, the session has ended, or ends with its transport.
            Ok(running) => drop(running.waiting().await),
            Err(error) => tracing::debug!(target: "tailrope", %error, "a session did not get to its first request"),
        }
    }
}

/// The transport of one session: what is sent goes into the logs of the engine.
#[derive(Debug)]
pub struct SessionTransport {
    served: Arc<Served>,
    /// Set if rmcp's own service runs the loop.
    ended: Option<Arc<Ended>>,
}

/// The sessions whose loop has ended, and which rmcp's service has yet to close.
#[derive(Debug, Default)]
pub(crate) struct Ended(Mutex<HashSet<SessionId>>);

impl Ended {
    fn insert(&self, id: &str) {
        self.lock().insert(id.into());
    }

    /// Whether this close comes from rmcp's service itself, after the loop of the session. Every other close is a DELETE
    /// of the client. If both come together, either may be taken for the other.
    pub(crate) fn remove(&self, id: &SessionId) -> bool {
        self.lock().remove(id)
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<SessionId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionTransport {
    /// The transport of a session whose loop rmcp's own service runs.
    pub(crate) fn new(served: Arc<Served>, ended: &Arc<Ended>) -> Self {
        Self { served, ended: Some(Arc::clone(ended)) }
    }

    fn leave(&self) {
        // A panic ends the task that would close the session.
        if self.served.leave()
            && !thread::panicking()
            && let Some(ended) = &self.ended
        {
            ended.insert(self.served.session.id());
        }
    }
}

impl Transport<RoleServer> for SessionTransport {
    type Error = EngineError;

    fn send(
        &mut self,
        message: ServerJsonRpcMessage,
    ) -> impl Future<Output = Result<(), EngineError>> + Send + 'static {
        // Sent here, not in the future: rmcp polls the futures of several messages in any order.
        let sent = self.served.send(message);
        let at_once = Outcomes::at_once(&sent);
        // Boxed because it is rare and large: rmcp spawns a task for each message, which would have room for it.
        let waits = at_once.is_none().then(|| {
            let served = Arc::clone(&self.served);
            Box::pin(async move { served.finish(sent).await })
        });
        async move {
            match waits {
                Some(waits) => waits.await,
                None => at_once.unwrap_or(Ok(())),
            }
        }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        self.served.inbox.take().await
    }

    async fn close(&mut self) -> Result<(), EngineError> {
        self.leave();
        Ok(())
    }
}

impl Drop for SessionTransport {
    fn drop(&mut self) {
        self.leave();
    }
}
