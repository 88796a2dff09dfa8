//! rmcp's service in front of our sessions, asked as HTTP asks it.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, InputRequiredResult,
    ProgressNotificationParam, ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};
use tailrope_core::protocol::{Decoder, Item};
use tailrope_server::{CatchPanic, Close, Engine, Options, ResumableContext as _, Sessions};
use tokio::sync::Notify;
use tokio::time::timeout;
use tower_layer::Layer as _;
use tower_service::Service as _;

/// Two cores that stand still for many seconds are normal.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What tools wait for. A gate that was opened stays open for one.
#[derive(Clone, Default)]
pub(crate) struct Gates(Arc<Mutex<HashMap<String, Arc<Notify>>>>);

impl Gates {
    fn of(&self, name: &str) -> Arc<Notify> {
        Arc::clone(self.0.lock().unwrap().entry(name.to_owned()).or_default())
    }

    pub(crate) fn open(&self, name: &str) {
        self.of(name).notify_one();
    }
}

/// A server whose one tool does what its steps say: `emit N [BYTES]`, `close`, `gate NAME`, `poll`, `path`, `fall`, `fall alone`
/// (as a tool that takes no context), `task` (a task of the tool's has its context and goes on), `fallen task` (such a task panics),
/// `ask` (it wants the call again, with an answer).
#[derive(Clone)]
pub(crate) struct Steps(Gates);

impl Steps {
    pub(crate) fn new(gates: &Gates) -> Self {
        Self(gates.clone())
    }
}

impl ServerHandler for Steps {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let mut sent = 0.0;
        let arguments = Value::from(request.arguments.clone().unwrap_or_default());
        let mut said = String::new();
        for step in arguments["steps"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let words: Vec<&str> = step.split(' ').collect();
            match words[..] {
                ["emit", count, ref size @ ..] => {
                    let text = "x".repeat(size.first().map_or(0, |size| size.parse().unwrap()));
                    for _ in 0..count.parse::<u32>().unwrap() {
                        sent += 1.0;
                        let token = context.meta.get_progress_token().unwrap();
                        let progress = ProgressNotificationParam::new(token, sent).with_message(text.clone());
                        context.peer.notify_progress(progress).await.unwrap();
                    }
                }
                ["close"] => said += &format!("{} ", context.close_sse_stream(Close::default())),
                ["poll"] => said += &format!("{} ", context.close_sse_stream(Close::default().retry_ms(7).hold_ms(0))),
                ["path"] => said += &format!("{} ", context.extensions.get::<Parts>().unwrap().uri.path()),
                ["fall"] => panic!("as a tool may"),
                ["fall", "alone"] => {
                    drop(context);
                    panic!("as a tool may");
                }
                ["task"] => {
                    let held = context.clone();
                    drop(tokio::spawn(async move {
                        std::future::pending::<()>().await;
                        drop(held);
                    }));
                }
                ["fallen", "task"] => {
                    let held = context.clone();
                    let fallen = tokio::spawn(async move {
                        let _held = held;
                        panic!("as a task may");
                    });
                    fallen.await.unwrap_err();
                }
                ["gate", name] => self.0.of(name).notified().await,
                ["ask"] if request.input_responses.is_none() => return Ok(CallToolResponse::InputRequired(question())),
                ["ask"] => {}
                _ => panic!("there is no step {step:?}"),
            }
        }
        Ok(CallToolResult::success(vec![ContentBlock::text(said + "done")]).into())
    }
}

fn question() -> InputRequiredResult {
    let schema = json!({ "type": "object", "properties": { "name": { "type": "string" } } });
    let params = json!({ "mode": "form", "message": "name?", "requestedSchema": schema });
    let requests = json!({ "name": { "method": "elicitation/create", "params": params } });
    serde_json::from_value(json!({ "resultType": "input_required", "inputRequests": requests })).unwrap()
}

/// The first request of a session of revision 2025-11-25.
pub(crate) fn hello() -> Value {
    json!({
        "jsonrpc": "2.0", "id": 0, "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" },
        },
    })
}

/// A server process, as its clients see it.
pub(crate) struct Server<H: ServerHandler = Steps> {
    service: StreamableHttpService<H, Sessions>,
    pub(crate) gates: Gates,
    path: &'static str,
    has_layer: bool,
}

impl Server {
    pub(crate) fn new(options: Options) -> Self {
        Self::of(Sessions::new(Engine::new(options)).into())
    }

    /// One that goes on with sessions of others.
    pub(crate) fn heir(sessions: Sessions) -> Self {
        let gates = Gates::default();
        let tools = Steps(gates.clone());
        Self::with(gates, sessions.with_adoption(move || Ok(tools.clone())).into(), |tools| tools)
    }

    pub(crate) fn of(sessions: Arc<Sessions>) -> Self {
        Self::with(Gates::default(), sessions, |tools| tools)
    }
}

impl Server<CatchPanic<Steps>> {
    pub(crate) fn that_catches_panics() -> Self {
        Self::with(Gates::default(), Sessions::new(Engine::new(Options::default())).into(), CatchPanic)
    }
}

impl<H: ServerHandler> Server<H> {
    fn with(gates: Gates, sessions: Arc<Sessions>, wrap: fn(Steps) -> H) -> Self {
        let tools = Steps(gates.clone());
        let make = move || Ok(wrap(tools.clone()));
        let service = StreamableHttpService::new(make, sessions, StreamableHttpServerConfig::default());
        Self { service, gates, path: "/mcp", has_layer: true }
    }

    pub(crate) fn at(self, path: &'static str) -> Self {
        Self { path, ..self }
    }

    pub(crate) fn without_layer(self) -> Self {
        Self { has_layer: false, ..self }
    }

    pub(crate) async fn ask(&self, method: &str, headers: &[(&str, &str)], body: String) -> Answer {
        let mut request = Request::builder().method(method).uri(self.path).header("host", "localhost");
        request = request.header("accept", "application/json, text/event-stream");
        request = request.header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        let answered = async {
            match self.has_layer {
                true => Sessions::layer().layer(self.service.clone()).call(request).await.unwrap(),
                false => self.service.handle(request).await,
            }
        };
        let response = timeout(PATIENCE, answered).await.expect("an answer begins");
        Answer { response, decoder: Decoder::new(usize::MAX), ids: Vec::new() }
    }

    /// A session of revision 2025-11-25.
    pub(crate) async fn open(&self, user: &str) -> Peer<'_, H> {
        let mut answer = self.ask("POST", &[("authorization", user)], hello().to_string()).await;
        let id = answer.response.headers()["mcp-session-id"].to_str().unwrap().to_owned();
        assert_eq!(answer.rest().await.len(), 1);
        let peer = Peer { server: self, id, user: user.to_owned() };
        let told = peer.post(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        assert_eq!(told.status(), 202);
        peer
    }
}

/// A session, as its client has it.
pub(crate) struct Peer<'a, H: ServerHandler = Steps> {
    pub(crate) server: &'a Server<H>,
    pub(crate) id: String,
    pub(crate) user: String,
}

impl<'a, H: ServerHandler> Peer<'a, H> {
    /// The same session at another process.
    pub(crate) fn at<'b>(&self, server: &'b Server<H>) -> Peer<'b, H> {
        Peer { server, id: self.id.clone(), user: self.user.clone() }
    }

    async fn ask(&self, method: &str, more: &[(&str, &str)], body: String) -> Answer {
        let own = [("mcp-session-id", &*self.id), ("mcp-protocol-version", "2025-11-25")];
        let user = ("authorization", &*self.user);
        let user = if self.user.is_empty() { None } else { Some(user) };
        let headers: Vec<_> = own.into_iter().chain(user).chain(more.iter().copied()).collect();
        self.server.ask(method, &headers, body).await
    }

    pub(crate) async fn post(&self, message: Value) -> Answer {
        self.ask("POST", &[], message.to_string()).await
    }

    pub(crate) async fn call(&self, id: u32, steps: &[&str]) -> Answer {
        let params = json!({ "name": "steps", "arguments": { "steps": steps }, "_meta": { "progressToken": id } });
        self.post(json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })).await
    }

    pub(crate) async fn resume(&self, last_event_id: &str) -> Answer {
        self.ask("GET", &[("last-event-id", last_event_id)], String::new()).await
    }

    pub(crate) async fn listen(&self) -> Answer {
        self.ask("GET", &[], String::new()).await
    }

    pub(crate) async fn delete(&self) -> Answer {
        self.ask("DELETE", &[], String::new()).await
    }
}

/// One answer, which may be a stream.
pub(crate) struct Answer {
    response: Response<BoxBody<Bytes, Infallible>>,
    decoder: Decoder,
    pub(crate) ids: Vec<String>,
}

impl Answer {
    pub(crate) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// All that the client gets.
    pub(crate) async fn whole(self) -> (u16, HeaderMap, Bytes) {
        let (head, body) = self.response.into_parts();
        let body = timeout(PATIENCE, body.collect()).await.expect("it ends").unwrap().to_bytes();
        (head.status.as_u16(), head.headers, body)
    }

    pub(crate) fn retry_ms(&self) -> Option<u64> {
        self.decoder.retry_ms()
    }

    /// The id that a client would resume with.
    pub(crate) fn last_id(&self) -> &str {
        self.ids.last().expect("an event with an id")
    }

    /// The next message; none at the end. What has only an id is noted.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            match self.decoder.next().unwrap() {
                Some(Item::Event(event)) => {
                    self.ids.extend(event.id);
                    if !event.data.is_empty() {
                        return Some(serde_json::from_str(&event.data).unwrap());
                    }
                }
                Some(Item::Cursor(id)) => self.ids.push(id),
                Some(_) => {}
                None => {
                    let frame = timeout(PATIENCE, self.response.body_mut().frame()).await.expect("a stream goes on");
                    let Ok(data) = frame?.unwrap().into_data() else { continue };
                    self.decoder.push(&data);
                }
            }
        }
    }

    pub(crate) async fn some(&mut self, count: usize) -> Vec<Value> {
        let mut messages = Vec::new();
        while messages.len() < count {
            messages.push(self.next().await.expect("more messages"));
        }
        messages
    }

    pub(crate) async fn rest(&mut self) -> Vec<Value> {
        let mut messages = Vec::new();
        while let Some(message) = self.next().await {
            messages.push(message);
        }
        messages
    }
}

/// The progress that messages tell.
pub(crate) fn counts(messages: &[Value]) -> Vec<u64> {
    messages.iter().filter_map(|message| message["params"]["progress"].as_f64()).map(|n| n as u64).collect()
}

/// The text of a call's result.
pub(crate) fn result(message: &Value) -> &str {
    message["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no result: {message}"))
}
