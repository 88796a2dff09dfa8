//! What a handler can ask of the stream of its request.

use std::sync::Arc;
use std::thread;

use rmcp::model::{GetExtensions as _, ServerNotification};
use rmcp::service::OriginatingRequestId;

use crate::close::{Close, delay};
use crate::rmcp::messages::Context;
use crate::rmcp::served::Running;

/// The stream of a request, in the extensions that its handler gets.
#[derive(Clone)]
pub(crate) struct Control {
    running: Arc<Running>,
    /// A panic in which this is dropped is one of the handler, which nobody catches.
    is_guard: bool,
}

impl Control {
    pub(crate) fn new(running: Running) -> Self {
        Self { running: Arc::new(running), is_guard: true }
    }

    /// Panics of the handler are caught from now on. So this may be dropped in any panic, for example in that of a task
    /// of the handler.
    pub(crate) fn disarm(&mut self) -> Arc<Running> {
        self.is_guard = false;
        Arc::clone(&self.running)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if self.is_guard && thread::panicking() {
            self.running.answer_for_panic();
        }
    }
}

/// What handlers can ask of the stream of their request, if [`Sessions`](crate::Sessions) or
/// [`TailropeService`](crate::TailropeService) serves it.
///
/// ```
/// use rmcp::{RoleServer, model::CallToolResult, service::RequestContext};
/// use tailrope_server::{Close, ResumableContext as _};
///
/// async fn nightly_build(ctx: RequestContext<RoleServer>) -> CallToolResult {
///     // It takes an hour: the client asks again each minute, and no connection is kept for it.
///     ctx.close_sse_stream(Close::default().retry_ms(60_000).hold_ms(0));
///     // ...
///     CallToolResult::success(vec![])
/// }
/// ```
pub trait ResumableContext {
    /// Closes the connection that the client waits on (SEP-1699). The call goes on, and the client comes back for what is
    /// sent meanwhile.
    ///
    /// Returns whether the stream can be polled. If the client could not come back, nothing is closed and the result is
    /// false. That is so if its session negotiated a revision before 2025-11-25, if the request has its end already,
    /// and if another session manager serves it.
    fn close_sse_stream(&self, close: Close) -> bool;

    /// Closes the connection of the session's standalone stream, in the same way.
    fn close_standalone_sse_stream(&self, close: Close) -> bool;

    /// Makes a notification go out on the stream of this request. Without it, progress goes there, too, but every other
    /// notification goes to the standalone stream, which the client may not have opened.
    #[must_use]
    fn related(&self, notification: ServerNotification) -> ServerNotification;
}

impl ResumableContext for Context {
    fn close_sse_stream(&self, close: Close) -> bool {
        let control = self.extensions.get::<Control>();
        control.is_some_and(|Control { running, .. }| {
            running.session.close_connection(&running.request, delay(close.retry_ms), close.hold_ms)
        })
    }

    fn close_standalone_sse_stream(&self, close: Close) -> bool {
        let control = self.extensions.get::<Control>();
        control.is_some_and(|Control { running, .. }| {
            running.session.close_standalone(delay(close.retry_ms), close.hold_ms)
        })
    }

    fn related(&self, mut notification: ServerNotification) -> ServerNotification {
        notification.extensions_mut().insert(OriginatingRequestId(self.id.clone()));
        notification
    }
}
