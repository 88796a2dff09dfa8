//! What rmcp's loop of one session reads and writes.

use std::sync::Arc;

use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::serve_server;
use rmcp::transport::Transport;
use rmcp::{RoleServer, ServerHandler};
use tailrope_core::engine::EngineError;

use crate::outcomes::Outcomes;
use crate::rmcp::boxed::Boxed;
use crate::rmcp::served::Served;

/// Serves a session with this handler, until the session ends.
pub(crate) fn serve<S: ServerHandler>(handler: S, served: &Arc<Served>) -> impl Future<Output = ()> + Send + use<S> {
    let transport = SessionTransport(Arc::clone(served));
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
pub struct SessionTransport(pub(crate) Arc<Served>);

impl Transport<RoleServer> for SessionTransport {
    type Error = EngineError;

    fn send(
        &mut self,
        message: ServerJsonRpcMessage,
    ) -> impl Future<Output = Result<(), EngineError>> + Send + 'static {
        // Sent here, not in the future: rmcp polls the futures of several messages in any order.
        let sent = self.0.send(message);
        let at_once = Outcomes::at_once(&sent);
        // Boxed because it is rare and large: rmcp spawns a task for each message, and each would have room for it.
        let waits = at_once.is_none().then(|| {
            let served = Arc::clone(&self.0);
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
        self.0.inbox.take().await
    }

    async fn close(&mut self) -> Result<(), EngineError> {
        self.0.leave();
        Ok(())
    }
}

impl Drop for SessionTransport {
    fn drop(&mut self) {
        self.0.leave();
    }
}
