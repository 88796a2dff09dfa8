//! The tools of the benchmarks. Everything but what serves them is the same for all flavours.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ProgressNotificationParam, ProgressToken,
    ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tailrope_server::Close;

use crate::stock;

/// How many `emit` calls this process has run to their end.
static EMITS: AtomicU64 = AtomicU64::new(0);

#[derive(Clone)]
pub(crate) struct Tools;

#[derive(Deserialize)]
struct Echo {
    text: String,
}

#[derive(Deserialize)]
struct Emit {
    n: u64,
    bytes: usize,
}

#[derive(Deserialize)]
struct Poll {
    before: u64,
    after: u64,
}

#[derive(Deserialize)]
struct Wait {
    seconds: f64,
}

fn arguments<T: DeserializeOwned>(request: CallToolRequestParams) -> Result<T, ErrorData> {
    let arguments = Value::Object(request.arguments.unwrap_or_default());
    serde_json::from_value(arguments).map_err(|error| ErrorData::invalid_params(error.to_string(), None))
}

/// What a call reports.
struct Report<'a> {
    context: &'a RequestContext<RoleServer>,
    token: ProgressToken,
    total: u64,
    message: Option<String>,
}

impl<'a> Report<'a> {
    fn new(context: &'a RequestContext<RoleServer>, total: u64) -> Result<Self, ErrorData> {
        let token = context.meta.get_progress_token();
        let token = token.ok_or_else(|| ErrorData::invalid_params("a call without a progress token", None))?;
        Ok(Self { context, token, total, message: None })
    }

    async fn tell(&self, n: u64) -> Result<(), ErrorData> {
        #[allow(clippy::cast_precision_loss, reason = "no call counts so far")]
        let (n, total) = (n as f64, self.total as f64);
        let mut progress = ProgressNotificationParam::new(self.token.clone(), n).with_total(total);
        progress.message.clone_from(&self.message);
        let told = self.context.peer.notify_progress(progress).await;
        told.map_err(|error| ErrorData::internal_error(error.to_string(), None))
    }
}

async fn emit(Emit { n, bytes }: Emit, context: &RequestContext<RoleServer>) -> Result<String, ErrorData> {
    let report = Report { message: Some("x".repeat(bytes)), ..Report::new(context, n)? };
    for i in 1..=n {
        report.tell(i).await?;
    }
    EMITS.fetch_add(1, Ordering::Relaxed);
    Ok(n.to_string())
}

async fn poll(Poll { before, after }: Poll, context: &RequestContext<RoleServer>) -> Result<String, ErrorData> {
    let report = Report::new(context, before + after)?;
    for i in 1..=before {
        report.tell(i).await?;
    }
    stock::close(context, Close::default()).await;
    for i in before + 1..=before + after {
        report.tell(i).await?;
    }
    Ok("done".to_owned())
}

/// For connections that are open while nothing happens.
async fn wait(Wait { seconds }: Wait, context: &RequestContext<RoleServer>) -> Result<String, ErrorData> {
    Report::new(context, 1)?.tell(1).await?;
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    Ok("done".to_owned())
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let text = match &*request.name {
            "echo" => arguments::<Echo>(request)?.text,
            "emit" => emit(arguments(request)?, &context).await?,
            "poll" => poll(arguments(request)?, &context).await?,
            "wait" => wait(arguments(request)?, &context).await?,
            "completed" => EMITS.load(Ordering::Relaxed).to_string(),
            other => return Err(ErrorData::invalid_params(format!("there is no tool {other:?}"), None)),
        };
        Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
    }
}
