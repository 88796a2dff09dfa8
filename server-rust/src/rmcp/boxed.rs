//! A handler whose futures are boxed.

use std::borrow::Cow;

use rmcp::model::{ClientNotification, ClientRequest, ErrorData, ProtocolVersion, ServerConfig, ServerResult};
use rmcp::service::{NotificationContext, RequestContext, Service};
use rmcp::{RoleServer, ServerHandler};

use crate::rmcp::catch_panic::{answered, caught};

/// Boxes the futures of a handler, and answers for its panics. The futures are large, and rmcp spawns a task for each:
/// without the box, the whole future would be moved several times. rmcp lets no [`ServerHandler`] box the whole of a
/// request.
pub(crate) struct Boxed<S>(pub(crate) S);

impl<S: ServerHandler> Service<RoleServer> for Boxed<S> {
    fn handle_request(
        &self,
        request: ClientRequest,
        mut context: RequestContext<RoleServer>,
    ) -> impl Future<Output = Result<ServerResult, ErrorData>> + Send + '_ {
        Box::pin(answered(caught(&mut context), self.0.handle_request(request, context)))
    }

    fn handle_notification(
        &self,
        notification: ClientNotification,
        context: NotificationContext<RoleServer>,
    ) -> impl Future<Output = Result<(), ErrorData>> + Send + '_ {
        Box::pin(self.0.handle_notification(notification, context))
    }

    fn get_info(&self) -> ServerConfig {
        Service::get_info(&self.0)
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Service::supported_protocol_versions(&self.0)
    }
}
