//! Tools of rmcp behind our own service.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use rmcp::model::{InitializeRequestParams, InitializeResult};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};
use tailrope_server::{Drain, Engine, ResponseBody, RmcpServer, ServiceConfig, TailropeService};
use tokio::time::timeout;
use tower_service::Service as _;

use crate::lab::{Gates, PATIENCE, Steps, hello};
use crate::quick;
use crate::shared::{Place, ask};

type Service = TailropeService<RmcpServer<Steps>>;

fn service(config: ServiceConfig) -> (Service, Gates) {
    let gates = Gates::default();
    let tools = Steps::new(&gates);
    (TailropeService::new(move || Ok(tools.clone()), Engine::new(quick()), config), gates)
}

fn call(id: u32, steps: &[&str]) -> Value {
    let params = json!({ "name": "steps", "arguments": { "steps": steps }, "_meta": { "progressToken": id } });
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })
}

async fn open(service: &Service) -> Option<String> {
    let answer = ask(service.clone(), None, hello()).await;
    let id = answer.headers()["mcp-session-id"].to_str().unwrap().to_owned();
    let told = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    assert_eq!(ask(service.clone(), Some(id.clone()), told).await.status(), 202);
    Some(id)
}

#[tokio::test]
async fn i13_a_tool_that_panics_is_answered_for_and_its_tasks_are_not() {
    let (service, _) = service(ServiceConfig::default());
    let id = open(&service).await;
    let fallen = ask(service.clone(), id.clone(), call(1, &["task", "fall"])).await;
    assert!(fallen.body().contains("-32603"), "a task of the tool goes on: {}", fallen.body());
    let fallen = ask(service.clone(), id.clone(), call(2, &["fall alone"])).await;
    assert!(fallen.body().contains("-32603"), "the tool has let its context go: {}", fallen.body());
    let done = ask(service, id, call(3, &["fallen task"])).await;
    assert!(done.body().contains("done"), "the tool has an answer of its own: {}", done.body());
}

/// A call of revision 2026-07-28.
async fn modern(service: &Service, steps: &[&str]) -> Response<ResponseBody> {
    let mut call = call(1, steps);
    call["params"]["_meta"] = json!({
        "progressToken": 1,
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let request = Request::post("/").header("host", "localhost").header("content-type", "application/json");
    let request = request.header("accept", "application/json, text/event-stream");
    let request = request.header("mcp-protocol-version", "2026-07-28");
    let request = request.header("mcp-method", "tools/call").header("mcp-name", "steps");
    let request = request.body(Full::new(Bytes::from(call.to_string()))).unwrap();
    timeout(PATIENCE, service.clone().call(request)).await.expect("an answer begins").unwrap()
}

#[tokio::test]
async fn i13_a_tool_that_panics_is_answered_for_without_a_session_too() {
    let (service, _) = service(ServiceConfig::default().prefer_resumable(false));
    let fallen = rest(modern(&service, &["emit 1", "fall"]).await).await;
    assert!(fallen.contains("-32603"), "{fallen}");
}

async fn rest(answer: Response<ResponseBody>) -> String {
    let body = timeout(PATIENCE, answer.into_body().collect()).await.expect("it ends").unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test]
async fn requests_without_a_session_are_answered_as_the_others_are() {
    let (as_events, _) = service(ServiceConfig::default().prefer_resumable(false));
    let answer = modern(&as_events, &["emit 1"]).await;
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    assert!(rest(answer).await.contains("done"));
    let (as_json, _) = service(ServiceConfig::default().prefer_resumable(false).json_response(true));
    let answer = modern(&as_json, &[]).await;
    assert_eq!(answer.headers()["content-type"], "application/json");
    assert!(rest(answer).await.contains("done"));
}

#[tokio::test]
async fn a_drain_waits_for_requests_without_a_session() {
    let (service, gates) = service(ServiceConfig::default().prefer_resumable(false));
    let first = modern(&service, &["emit 1", "gate later"]).await;
    let mut drain = std::pin::pin!(service.drain(Drain::default().within_ms(60_000)));
    assert!(timeout(Duration::from_millis(100), &mut drain).await.is_err(), "a call runs");
    gates.open("later");
    assert!(rest(first).await.contains("done"), "and has its end");
    drain.await;
}

#[tokio::test]
async fn a_drain_ends_requests_without_a_session_that_do_not_end() {
    let (service, _) = service(ServiceConfig::default().prefer_resumable(false));
    let endless = modern(&service, &["emit 1", "gate never"]).await;
    assert!(!service.drain(Drain::default().within_ms(0)).await, "something was left");
    assert!(!rest(endless).await.contains("done"));
    assert!(rest(modern(&service, &[]).await).await.contains("done"), "what comes later is still served");
    assert!(service.drain(Drain::default().within_ms(0)).await);
}

/// A server that takes no client.
#[derive(Clone)]
struct Closed;

impl ServerHandler for Closed {
    async fn initialize(
        &self,
        _request: InitializeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        Err(ErrorData::invalid_params("closed today", None))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_refused_gets_to_know_why_with_every_store() {
    let place = Place::new("refused");
    for engine in [Engine::new(quick()), place.engine()] {
        let service = TailropeService::new(|| Ok(Closed), engine.clone(), ServiceConfig::default());
        let refused = ask(service.clone(), None, hello()).await;
        assert!(refused.body().contains("closed today"), "{}", refused.body());
        let id = refused.headers()["mcp-session-id"].to_str().unwrap().to_owned();
        let answered = async || ask(service.clone(), Some(id.clone()), call(1, &[])).await.status() == 404;
        timeout(PATIENCE, async { while !answered().await {} }).await.expect("the session is over");
        let gone = async {
            while engine.stats().sessions > 0 {
                tokio::task::yield_now().await
            }
        };
        timeout(PATIENCE, gone).await.expect("nothing of it is left");
    }
}
