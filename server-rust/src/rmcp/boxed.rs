//! A handler whose futures are boxed.

use std::borrow::Cow;
use std::pin::Pin;
use std::task::{Context, Poll};

use rmcp::model::{ClientNotification, ClientRequest, ErrorData, ProtocolVersion, ServerConfig, ServerResult};
use rmcp::service::{NotificationContext, RequestContext, Service};
use rmcp::{RoleServer, ServerHandler};

use crate::rmcp::context::Control;

/// Boxes the futures of a handler. They are large, and rmcp spawns a task for each: without the box, the whole future
/// would be moved several times.
pub(crate) struct Boxed<S>(pub(crate) S);

/// The future of a request, with what answers the request if the future panics.
struct Guarded<F> {
    future: Pin<Box<F>>,
    _guard: Option<Control>,
}

impl<F: Future> Future for Guarded<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.future.as_mut().poll(cx)
    }
}

impl<S: ServerHandler> Service<RoleServer> for Boxed<S> {
    fn handle_request(
        &self,
        request: ClientRequest,
        mut context: RequestContext<RoleServer>,
    ) -> impl Future<Output = Result<ServerResult, ErrorData>> + Send + '_ {
        let guard = context.extensions.get_mut::<Control>().map(Control::take_guard);
        Guarded { future: Box::pin(self.0.handle_request(request, context)), _guard: guard }
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
