//! The tools of the benchmarks. Everything but what serves them is the same for all flavours.

use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::Deserialize;
use serde_json::Value;

use crate::load::{self, Report, read};

#[derive(Clone)]
pub(crate) struct Tools;

#[derive(Deserialize)]
struct Echo {
    text: String,
}

#[derive(Deserialize)]
struct Wait {
    seconds: f64,
}

/// For connections that are open while nothing happens.
async fn wait(arguments: &Value, context: &RequestContext<RoleServer>) -> Result<String, ErrorData> {
    let Wait { seconds } = read(arguments)?;
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
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let text = match &*request.name {
            "echo" => read::<Echo>(&arguments)?.text,
            "emit" => load::emit(&arguments, &context).await?,
            "poll" => load::poll(&arguments, &context).await?,
            "wait" => wait(&arguments, &context).await?,
            "completed" => load::completed(),
            other => return Err(ErrorData::invalid_params(format!("there is no tool {other:?}"), None)),
        };
        Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
    }
}
