//! What rmcp's loop of one session reads and writes.

use std::sync::Arc;

use rmcp::RoleServer;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::Transport;
use tailrope_core::engine::EngineError;

use crate::rmcp::served::Served;

/// The transport of one session: what is sent goes into the logs of the engine.
#[derive(Debug)]
pub struct SessionTransport(pub(crate) Arc<Served>);

impl Transport<RoleServer> for SessionTransport {
    type Error = EngineError;

    fn send(
        &mut self,
        message: ServerJsonRpcMessage,
    ) -> impl Future<Output = Result<(), EngineError>> + Send + 'static {
        // At once, as rmcp polls the futures of several messages in any order.
        let served = Arc::clone(&self.0);
        let sent = served.send(message);
        async move { served.finish(sent).await }
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
