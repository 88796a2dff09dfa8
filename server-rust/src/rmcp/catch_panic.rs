//! Handlers that panic.

use std::borrow::Cow;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use rmcp::model::*;
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext};
use rmcp::{RoleServer, ServerHandler};

use crate::panics;
use crate::rmcp::context::Control;
use crate::rmcp::messages::Context;
use crate::rmcp::served::Running;

/// A handler whose panics are answered: the request gets the error -32603.
///
/// rmcp sends no answer for a handler that panics, so its client would wait for ever. Wrap the handler where rmcp's own
/// service runs it; [`TailropeService`](crate::TailropeService) and [`Sessions::with_adoption`](crate::Sessions::with_adoption)
/// wrap it themselves.
///
/// ```no_run
/// # use rmcp::ServerHandler;
/// # #[derive(Clone)] struct Tools;
/// # impl ServerHandler for Tools {}
/// use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
/// use tailrope_server::{CatchPanic, Engine, Options, Sessions};
///
/// let sessions = Sessions::new(Engine::new(Options::default()));
/// let config = StreamableHttpServerConfig::default();
/// let service = StreamableHttpService::new(|| Ok(CatchPanic(Tools)), sessions.into(), config);
/// # let _ = service;
/// ```
///
/// It does nothing where a panic aborts the process (`panic = "abort"`).
#[derive(Clone, Copy, Debug, Default)]
pub struct CatchPanic<S>(pub S);

/// From now on, panics of the request's handler are caught. Returns what the log says of the request; none if another
/// session manager serves it.
pub(crate) fn caught(context: &mut Context) -> Option<Arc<Running>> {
    context.extensions.get_mut::<Control>().map(Control::disarm)
}

/// Answers for a handler that panics.
pub(crate) async fn answered<T>(
    running: Option<Arc<Running>>,
    answer: impl Future<Output = Result<T, ErrorData>>,
) -> Result<T, ErrorData> {
    let mut answer = pin!(answer);
    poll_fn(|cx| {
        catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(cx))).unwrap_or_else(|_| {
            panics::log(running.as_ref().map(|running| running.session.name()));
            Poll::Ready(Err(ErrorData::internal_error(panics::MESSAGE, None)))
        })
    })
    .await
}

/// Requests, whose panics are answered.
macro_rules! requests {
    ($($name:ident($($argument:ident: $type:ty)?) -> $result:ty;)*) => {$(
        async fn $name(
            &self,
            $($argument: $type,)?
            mut context: RequestContext<RoleServer>,
        ) -> Result<$result, ErrorData> {
            // In the block, so that it is caught also where the method panics before it returns a future.
            answered(caught(&mut context), async move { self.0.$name($($argument,)? context).await }).await
        }
    )*};
}

/// Notifications. Nobody waits for an answer, so nothing is caught.
macro_rules! notifications {
    ($($name:ident($($argument:ident: $type:ty)?);)*) => {$(
        async fn $name(&self, $($argument: $type,)? context: NotificationContext<RoleServer>) {
            self.0.$name($($argument,)? context).await
        }
    )*};
}

/// What rmcp asks without a context.
macro_rules! questions {
    ($($name:ident($($argument:ident: $type:ty)?) -> $result:ty;)*) => {$(
        fn $name(&self, $($argument: $type)?) -> $result {
            self.0.$name($($argument)?)
        }
    )*};
}

// A method that is not here would be rmcp's default one instead of the handler's own.
#[deny(clippy::missing_trait_methods)]
#[allow(deprecated, reason = "clients of earlier revisions still ask for it")]
impl<S: ServerHandler> ServerHandler for CatchPanic<S> {
    requests! {
        ping() -> ();
        initialize(request: InitializeRequestParams) -> InitializeResult;
        discover() -> DiscoverResult;
        complete(request: CompleteRequestParams) -> CompleteResult;
        set_level(request: SetLevelRequestParams) -> ();
        get_prompt(request: GetPromptRequestParams) -> GetPromptResponse;
        list_prompts(request: Option<PaginatedRequestParams>) -> ListPromptsResult;
        list_resources(request: Option<PaginatedRequestParams>) -> ListResourcesResult;
        list_resource_templates(request: Option<PaginatedRequestParams>) -> ListResourceTemplatesResult;
        read_resource(request: ReadResourceRequestParams) -> ReadResourceResponse;
        read_resource_directory(request: ReadResourceDirectoryRequestParams) -> ReadResourceDirectoryResult;
        subscribe(request: SubscribeRequestParams) -> ();
        unsubscribe(request: UnsubscribeRequestParams) -> ();
        call_tool(request: CallToolRequestParams) -> CallToolResponse;
        list_tools(request: Option<PaginatedRequestParams>) -> ListToolsResult;
        on_custom_request(request: CustomRequest) -> CustomResult;
        get_task(request: GetTaskParams) -> GetTaskResult;
        update_task(request: UpdateTaskParams) -> ();
        cancel_task(request: CancelTaskParams) -> ();
        list_skills(request: Option<PaginatedRequestParams>) -> ListSkillsResult;
        get_skill(request: GetSkillRequestParams) -> GetSkillResult;
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        // Of revision 2026-07-28 alone, which has no sessions.
        answered(None, async move { self.0.listen(context).await }).await
    }

    notifications! {
        on_cancelled(notification: CancelledNotificationParam);
        on_progress(notification: ProgressNotificationParam);
        on_initialized();
        on_roots_list_changed();
        on_custom_notification(notification: CustomNotification);
    }

    questions! {
        get_info() -> ServerConfig;
        get_tool(name: &str) -> Option<Tool>;
        negotiate_initialize(request: &InitializeRequestParams) -> Result<InitializeResult, ErrorData>;
        supported_protocol_versions() -> Cow<'static, [ProtocolVersion]>;
        accepted_subscription_filter(requested: &SubscriptionFilter) -> Option<SubscriptionFilter>;
    }
}
