//! The tools that the scenarios of tasks need, each as a user would write it.

use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::{ErrorData, ServerHandler};
use serde_json::{Map, Value, json};
use tailrope_server::{Engine, Options, Pace, RmcpServer, ServiceConfig, TailropeService};

use super::{Context, Outcome, read};

const WORKS: Duration = Duration::from_secs(1);
const NAMES: [&str; 7] = [
    "greet",
    "slow_compute",
    "failing_job",
    "protocol_error_job",
    "confirm_delete",
    "multi_input",
    "test_tool_with_task",
];

#[derive(Clone)]
pub(super) struct Tasks;

/// The suite wants tasks of some tools, also where the answer comes at once; and some tools for clients with tasks only.
pub(super) fn service(config: ServiceConfig) -> TailropeService<RmcpServer<Tasks>> {
    let mut options = Options { task_after_ms: 300, ..Options::default() };
    let at_once = Pace { task_after_ms: Some(0), ..Pace::default() };
    for name in ["slow_compute", "protocol_error_job", "confirm_delete", "multi_input"] {
        options.paces.set(name, at_once).expect("it is a name");
    }
    options.paces.set("failing_job", Pace { requires_task: true, ..at_once }).expect("it is a name");
    let required = Pace { requires_task: true, ..Pace::default() };
    options.paces.set("test_tool_with_task", required).expect("it is a name");
    // The suite's client without tasks is to be answered, not steered.
    TailropeService::new(|| Ok(Tasks), Engine::new(options), config.prefer_resumable(false))
}

fn text(text: impl Into<String>) -> CallToolResponse {
    CallToolResult::success(vec![ContentBlock::text(text)]).into()
}

/// The call is to be made again with the answers.
fn asking(keys: &[&str]) -> Outcome<CallToolResponse> {
    let question = |key: &&str| {
        let schema = json!({"type": "object", "properties": {"value": {"type": "string"}}});
        let params = json!({"mode": "form", "message": format!("{key}?"), "requestedSchema": schema});
        ((*key).to_owned(), json!({"method": "elicitation/create", "params": params}))
    };
    let asked: Map<String, Value> = keys.iter().map(question).collect();
    Ok(CallToolResponse::InputRequired(read(json!({"resultType": "input_required", "inputRequests": asked}))?))
}

impl ServerHandler for Tasks {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(&self, _: Option<PaginatedRequestParams>, _: Context) -> Outcome<ListToolsResult> {
        let schema: Arc<Map<String, Value>> = Arc::new(read(json!({"type": "object"}))?);
        let tool = |name| Tool::new(name, name, Arc::clone(&schema));
        Ok(ListToolsResult::with_all_items(NAMES.map(tool).into()))
    }

    async fn call_tool(&self, request: CallToolRequestParams, context: Context) -> Outcome<CallToolResponse> {
        let arguments = Value::from(request.arguments.unwrap_or_default());
        let has_answers = request.input_responses.is_some();
        let answers = serde_json::to_value(request.input_responses).unwrap_or_default();
        match &*request.name {
            "greet" => Ok(text(format!("Hello, {}!", arguments["name"].as_str().unwrap_or_default()))),
            "slow_compute" => {
                let seconds = arguments["seconds"].as_f64().unwrap_or_default();
                if let Some(token) = context.meta.get_progress_token() {
                    // Nobody may be there to hear of it.
                    let _ = context.peer.notify_progress(ProgressNotificationParam::new(token, 0.0)).await;
                }
                tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
                Ok(text("computed"))
            }
            "failing_job" => {
                tokio::time::sleep(WORKS).await;
                Ok(CallToolResult::error(vec![ContentBlock::text("the job has failed")]).into())
            }
            "protocol_error_job" => {
                tokio::time::sleep(WORKS).await;
                Err(ErrorData::internal_error("the job broke the protocol", None))
            }
            "confirm_delete" if !has_answers => asking(&["confirm"]),
            "multi_input" if !has_answers => asking(&["name", "confirmed"]),
            "confirm_delete" | "multi_input" => Ok(text("done")),
            "test_tool_with_task" if !has_answers => asking(&["user_name"]),
            "test_tool_with_task" => {
                tokio::time::sleep(WORKS).await;
                Ok(text(format!("Hello, {}", answers["user_name"])))
            }
            other => Err(ErrorData::invalid_params(format!("no tool {other}"), None)),
        }
    }
}
