//! The Rust server that the conformance suite asks: `tailrope-conformance-server [--flavor tower|rmcp|tasks] [--transport tailrope|stock]`.
//! Listens on a free port of the loopback, prints `READY PORT`, and ends when its standard input does. What it offers is in
//! everything.json; here is only what a tool does beyond its fixed result.

// Logging and sampling left the newest revision.
#![allow(deprecated)]

mod tasks;

use std::collections::HashMap;
use std::error::Error;
use std::io::{Read as _, Write as _};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Router;
use axum::serve::ListenerExt as _;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestParams, CompleteResult, CompletionInfo,
    ContentBlock, CustomRequest, ErrorCode, GetPromptRequestParams, GetPromptResponse, GetPromptResult,
    ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, LoggingLevel,
    LoggingMessageNotification, LoggingMessageNotificationParam, PaginatedRequestParams, ProgressNotificationParam,
    ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, ServerCapabilities, ServerConfig,
    ServerNotification, ServerRequest, SetLevelRequestParams, SubscribeRequestParams, UnsubscribeRequestParams,
};
use rmcp::service::{RequestContext, ServiceError};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tailrope_server::{Close, Engine, Options, ResumableContext as _, ServiceConfig, Sessions, TailropeService};
use tokio::net::TcpListener;

type Context = RequestContext<RoleServer>;
type Outcome<T> = Result<T, ErrorData>;

const PATH: &str = "/mcp";
const PAUSE: Duration = Duration::from_millis(50);

static EVERYTHING: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("everything.json")).expect("everything.json is JSON"));

#[derive(Clone)]
struct Everything;

fn read<T: DeserializeOwned>(value: Value) -> Outcome<T> {
    serde_json::from_value(value).map_err(|error| ErrorData::internal_error(error.to_string(), None))
}

fn unsent(error: ServiceError) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

fn entries(kind: &str) -> impl Iterator<Item = &'static Value> {
    EVERYTHING[kind].as_array().into_iter().flatten()
}

/// All of a kind, as lists have them.
fn listed<T: DeserializeOwned>(kind: &str, key: &str) -> Outcome<Vec<T>> {
    entries(kind).map(|entry| read(entry[key].clone())).collect()
}

fn known(kind: &str, key: &str, name: &str, value: &str) -> Option<&'static Value> {
    entries(kind).find(|entry| entry[key][name] == value)
}

/// Asks the client, on the stream of the call.
async fn ask(context: &Context, method: &str, params: Value) -> Outcome<Value> {
    let request = ServerRequest::CustomRequest(CustomRequest::new(method, Some(params)));
    let answer = context.peer.send_request(request).await.map_err(unsent)?;
    serde_json::to_value(answer).map_err(|error| ErrorData::internal_error(error.to_string(), None))
}

/// What the tool's entry orders. Notifications and questions belong to the call, and go where its answer goes.
async fn act(entry: &Value, arguments: &Value, context: &Context) -> Outcome<String> {
    for line in entry["logs"].as_array().into_iter().flatten() {
        let params = LoggingMessageNotificationParam::new(LoggingLevel::Info, line.clone());
        let log = ServerNotification::LoggingMessageNotification(LoggingMessageNotification::new(params));
        context.peer.send_notification(context.related(log)).await.map_err(unsent)?;
        tokio::time::sleep(PAUSE).await;
    }
    for done in entry["progress"].as_array().into_iter().flatten() {
        if let Some(token) = context.meta.get_progress_token() {
            let progress = ProgressNotificationParam::new(token, done.as_f64().unwrap_or_default()).with_total(100.0);
            context.peer.notify_progress(progress).await.map_err(unsent)?;
        }
        tokio::time::sleep(PAUSE).await;
    }
    if entry["closes"] == true {
        context.close_sse_stream(Close::default());
        tokio::time::sleep(2 * PAUSE).await;
    }
    if entry["samples"] == true {
        let content = json!({ "type": "text", "text": arguments["prompt"] });
        let params = json!({ "messages": [{ "role": "user", "content": content }], "maxTokens": 100 });
        let answer = ask(context, "sampling/createMessage", params).await?;
        let content =
            answer["content"].as_array().and_then(|parts| parts.first()).unwrap_or_else(|| &answer["content"]);
        return Ok(format!("LLM response: {}", content["text"].as_str().unwrap_or_default()));
    }
    if let Some(elicits) = entry.get("elicits") {
        let message = elicits.get("message").unwrap_or_else(|| &arguments["message"]);
        let params = json!({ "mode": "form", "message": message, "requestedSchema": elicits["requestedSchema"] });
        let answer = ask(context, "elicitation/create", params).await?;
        let action = answer["action"].as_str().unwrap_or_default();
        return Ok(format!("User response: action={action}, content={}", answer["content"]));
    }
    Ok("done".to_owned())
}

/// A message with the arguments where it names them.
fn filled(value: &Value, arguments: &Value) -> Value {
    match value {
        Value::String(text) => {
            let fill = |text: String, (name, with): (&String, &Value)| {
                text.replace(&format!("{{{name}}}"), with.as_str().unwrap_or_default())
            };
            arguments.as_object().into_iter().flatten().fold(text.clone(), fill).into()
        }
        Value::Object(parts) => parts.iter().map(|(key, part)| (key.clone(), filled(part, arguments))).collect(),
        other => other.clone(),
    }
}

impl ServerHandler for Everything {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_prompts()
            .enable_completions()
            .enable_logging()
            .build();
        ServerConfig::new(capabilities)
    }

    async fn list_tools(&self, _: Option<PaginatedRequestParams>, _: Context) -> Outcome<ListToolsResult> {
        Ok(ListToolsResult::with_all_items(listed("tools", "tool")?))
    }

    async fn call_tool(&self, request: CallToolRequestParams, context: Context) -> Outcome<CallToolResponse> {
        let entry = known("tools", "tool", "name", &request.name)
            .ok_or_else(|| ErrorData::invalid_params(format!("no tool {}", request.name), None))?;
        if let Some(result) = entry.get("result") {
            return Ok(read::<CallToolResult>(result.clone())?.into());
        }
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let text = act(entry, &arguments, &context).await?;
        Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
    }

    async fn list_resources(&self, _: Option<PaginatedRequestParams>, _: Context) -> Outcome<ListResourcesResult> {
        Ok(ListResourcesResult::with_all_items(listed("resources", "resource")?))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Outcome<ListResourceTemplatesResult> {
        Ok(ListResourceTemplatesResult::with_all_items(read(EVERYTHING["templates"].clone())?))
    }

    async fn read_resource(&self, request: ReadResourceRequestParams, _: Context) -> Outcome<ReadResourceResponse> {
        let uri = &*request.uri;
        let id = uri.strip_prefix("test://template/").and_then(|rest| rest.strip_suffix("/data"));
        let mut contents = if let Some(id) = id {
            let data = json!({ "id": id, "templateTest": true, "data": format!("Data for ID: {id}") });
            json!({ "mimeType": "application/json", "text": data.to_string() })
        } else {
            let entry = known("resources", "resource", "uri", uri)
                .ok_or_else(|| ErrorData::new(ErrorCode(-32002), format!("no resource {uri}"), None))?;
            let mut contents = entry["contents"].clone();
            contents["mimeType"] = entry["resource"]["mimeType"].clone();
            contents
        };
        contents["uri"] = uri.into();
        Ok(ReadResourceResult::new(vec![read(contents)?]).into())
    }

    async fn subscribe(&self, _: SubscribeRequestParams, _: Context) -> Outcome<()> {
        Ok(())
    }

    async fn unsubscribe(&self, _: UnsubscribeRequestParams, _: Context) -> Outcome<()> {
        Ok(())
    }

    async fn list_prompts(&self, _: Option<PaginatedRequestParams>, _: Context) -> Outcome<ListPromptsResult> {
        Ok(ListPromptsResult::with_all_items(listed("prompts", "prompt")?))
    }

    async fn get_prompt(&self, request: GetPromptRequestParams, _: Context) -> Outcome<GetPromptResponse> {
        let entry = known("prompts", "prompt", "name", &request.name)
            .ok_or_else(|| ErrorData::invalid_params(format!("no prompt {}", request.name), None))?;
        let arguments = serde_json::to_value(request.arguments).unwrap_or_default();
        let messages = entry["messages"].as_array().into_iter().flatten();
        let messages = messages.map(|message| read(filled(message, &arguments))).collect::<Outcome<_>>()?;
        Ok(GetPromptResult::new(messages).into())
    }

    async fn complete(&self, request: CompleteRequestParams, _: Context) -> Outcome<CompleteResult> {
        let begun = |value: &&str| value.starts_with(&*request.argument.value);
        let values = entries("completions").filter_map(Value::as_str).filter(begun).map(str::to_owned).collect();
        let values = CompletionInfo::with_all_values(values).map_err(|why| ErrorData::internal_error(why, None))?;
        Ok(CompleteResult::new(values))
    }

    async fn set_level(&self, _: SetLevelRequestParams, _: Context) -> Outcome<()> {
        Ok(())
    }
}

fn router(flavor: &str, is_stock: bool, port: u16) -> Router {
    let host = format!("127.0.0.1:{port}");
    let config = StreamableHttpServerConfig::default()
        .with_allowed_hosts([host.clone()])
        .with_allowed_origins([format!("http://{host}")]);
    let engine = || Engine::new(Options::default());
    match flavor {
        _ if is_stock => {
            let manager = Arc::<LocalSessionManager>::default();
            Router::new().nest_service(PATH, StreamableHttpService::new(|| Ok(Everything), manager, config))
        }
        "rmcp" => {
            // Its events would come before ours.
            let config = config.with_sse_retry(None);
            let manager = Arc::new(Sessions::new(engine()));
            let service = StreamableHttpService::new(|| Ok(Everything), manager, config);
            Router::new().nest_service(PATH, service).layer(Sessions::layer())
        }
        _ => {
            let mut config = ServiceConfig::default();
            config.allowed_hosts = vec![host.clone()];
            config.allowed_origins = vec![format!("http://{host}")];
            match flavor {
                "tasks" => Router::new().nest_service(PATH, tasks::service(config)),
                _ => Router::new().nest_service(PATH, TailropeService::new(|| Ok(Everything), engine(), config)),
            }
        }
    }
}

async fn serve(arguments: &HashMap<String, String>) -> Result<(), Box<dyn Error>> {
    let argument = |name: &str, default: &'static str| arguments.get(name).map_or(default, |value| value);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let router = router(argument("flavor", "tower"), argument("transport", "tailrope") == "stock", port);
    let mut out = std::io::stdout();
    writeln!(out, "READY {port}")?;
    out.flush()?;
    let listener = listener.tap_io(|socket| {
        // Otherwise each small event would wait for the acknowledgement of the one before.
        let _ = socket.set_nodelay(true);
    });
    Ok(axum::serve(listener, router).await?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = HashMap::new();
    let mut words = std::env::args().skip(1);
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        arguments.insert(name.trim_start_matches('-').to_owned(), value);
    }
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(serve(&arguments))
}
