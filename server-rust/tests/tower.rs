//! Our service without an SDK, asked as tower asks it.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tailrope_server::{
    Call, Close, Engine, Handler, JsonRpcServer, Options, ResponseBody, RpcError, ServiceConfig, TailropeService,
};
use tokio::time::timeout;
use tower_service::Service as _;

/// Two cores that stand still for many seconds are normal.
const PATIENCE: Duration = Duration::from_secs(60);

struct Tools;

impl Handler for Tools {
    async fn call(&self, call: Call) -> Result<Value, RpcError> {
        match call.method() {
            "initialize" => Ok(json!({
                "protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": { "name": "test", "version": "1" },
            })),
            // Whatever is polled comes once its client asks for it.
            "poll" => {
                assert!(call.close_sse_stream(Close::default().retry_ms(7).hold_ms(0)));
                for n in 0..3 {
                    call.notify("told", json!({ "n": n })).await.unwrap();
                }
                Ok(json!("polled"))
            }
            "ask" => call.ask("name", json!({})).await,
            "wait" => std::future::pending().await,
            other => Err(RpcError::method_not_found(other)),
        }
    }
}

type Server = TailropeService<JsonRpcServer<Tools>>;

fn server(config: ServiceConfig) -> Server {
    TailropeService::json_rpc(Tools, Engine::new(Options::default()), config)
}

async fn begin(server: &Server, method: &str, headers: &[(&str, &str)], body: Value) -> Response<ResponseBody> {
    let mut request = Request::builder().method(method).uri("/").header("host", "localhost");
    request =
        request.header("accept", "application/json, text/event-stream").header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::from(body.to_string()))).unwrap();
    timeout(PATIENCE, server.clone().call(request)).await.expect("an answer begins").unwrap()
}

/// Reads an answer until it has said this, or to its end.
async fn until(answer: &mut Response<ResponseBody>, said: &str) -> String {
    let mut text = String::new();
    while !text.contains(said) {
        let frame = timeout(PATIENCE, answer.body_mut().frame()).await.expect("the answer goes on");
        let Some(frame) = frame else { break };
        text += std::str::from_utf8(&frame.unwrap().into_data().unwrap()).unwrap();
    }
    text
}

async fn ask(server: &Server, method: &str, headers: &[(&str, &str)], body: Value) -> Response<String> {
    let mut answer = begin(server, method, headers, body).await;
    let text = until(&mut answer, "\0").await;
    answer.map(|_| text)
}

async fn open(server: &Server, more: &[(&str, &str)]) -> String {
    let hello = json!({
        "jsonrpc": "2.0", "id": 0, "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" },
        },
    });
    let answer = ask(server, "POST", more, hello).await;
    assert_eq!(answer.status(), 200, "{}", answer.body());
    answer.headers()["mcp-session-id"].to_str().unwrap().to_owned()
}

fn last_id(events: &str) -> &str {
    events.lines().filter_map(|line| line.strip_prefix("id: ")).next_back().expect("an event with an id")
}

#[tokio::test]
async fn i3_a_polled_call_is_read_to_its_end_without_an_sdk() {
    let server = server(ServiceConfig::default());
    let id = open(&server, &[]).await;
    let session = [("mcp-session-id", &*id)];
    let first = ask(&server, "POST", &session, json!({ "jsonrpc": "2.0", "id": 1, "method": "poll" })).await;
    assert!(first.body().starts_with("id: ") && first.body().contains("retry: 7\n"), "{}", first.body());
    let mut events = first.body().clone();
    while !events.contains("polled") {
        let headers = [session[0], ("last-event-id", last_id(&events))];
        let next = ask(&server, "GET", &headers, Value::Null).await;
        assert_eq!(next.status(), 200);
        events += next.body();
    }
    let told: Vec<_> = events.lines().filter_map(|line| line.split(r#""n":"#).nth(1)?.chars().next()).collect();
    assert_eq!(told, ['0', '1', '2']);
    let headers = [session[0], ("last-event-id", last_id(&events))];
    assert_eq!(ask(&server, "GET", &headers, Value::Null).await.status(), 204, "there is nothing to come back for");
}

#[tokio::test]
async fn a_question_is_answered_by_another_request() {
    let server = server(ServiceConfig::default());
    let id = open(&server, &[]).await;
    let session = [("mcp-session-id", &*id)];
    let mut call = begin(&server, "POST", &session, json!({ "jsonrpc": "2.0", "id": 1, "method": "ask" })).await;
    until(&mut call, r#""method":"name""#).await;
    let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": { "name": "Ada" } });
    let taken = ask(&server, "POST", &session, answer).await;
    assert_eq!(taken.status(), 202, "{}", taken.body());
    let rest = until(&mut call, "\0").await;
    assert!(rest.contains(r#""result":{"name":"Ada"}"#), "{rest}");
}

#[tokio::test]
async fn i13_a_cancelled_request_gets_its_end() {
    let server = server(ServiceConfig::default());
    let id = open(&server, &[]).await;
    let session = [("mcp-session-id", &*id)];
    let mut call = begin(&server, "POST", &session, json!({ "jsonrpc": "2.0", "id": 1, "method": "wait" })).await;
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } });
    assert_eq!(ask(&server, "POST", &session, cancel).await.status(), 202);
    let rest = until(&mut call, "\0").await;
    assert!(rest.contains("-32800"), "{rest}");
}

#[tokio::test]
async fn i7_a_session_is_found_by_its_own_user_alone() {
    let config = ServiceConfig::default();
    let config = config.with_principal(|parts| Some(parts.headers.get("x-user")?.to_str().ok()?.to_owned()));
    let server = server(config);
    let id = open(&server, &[("x-user", "alice")]).await;
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "nothing" });
    for method in ["POST", "GET", "DELETE"] {
        let foreign = ask(&server, method, &[("mcp-session-id", &id), ("x-user", "mallory")], ping.clone()).await;
        let unknown = ask(&server, method, &[("mcp-session-id", "0"), ("x-user", "mallory")], ping.clone()).await;
        assert_eq!((foreign.status(), foreign.body()), (unknown.status(), unknown.body()), "{method}");
        assert_eq!(foreign.status(), 404);
    }
    let own = ask(&server, "POST", &[("mcp-session-id", &id), ("x-user", "alice")], ping).await;
    assert!(own.body().contains("-32601"), "{}", own.body());
}

#[tokio::test]
async fn what_is_refused_has_the_status_that_says_so() {
    let mut config = ServiceConfig::default();
    (config.max_body_bytes, config.allowed_hosts) = (200, vec!["localhost".to_owned()]);
    let server = server(config);
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "poll" });
    let large = json!({ "jsonrpc": "2.0", "id": 1, "method": "poll", "params": { "text": "x".repeat(300) } });
    assert_eq!(ask(&server, "POST", &[], large).await.status(), 413);
    assert_eq!(ask(&server, "POST", &[], call.clone()).await.status(), 400, "no session");
    assert_eq!(ask(&server, "POST", &[("mcp-session-id", "0")], call.clone()).await.status(), 404);
    assert_eq!(ask(&server, "PUT", &[("mcp-session-id", "0")], call.clone()).await.status(), 404);
    let steered = ask(&server, "POST", &[("mcp-protocol-version", "2026-07-28")], call).await;
    assert_eq!(steered.status(), 400);
    assert!(steered.body().contains("-32022"), "{}", steered.body());
}

#[tokio::test]
async fn a_deleted_session_is_gone() {
    let server = server(ServiceConfig::default());
    let id = open(&server, &[]).await;
    assert_eq!(ask(&server, "DELETE", &[("mcp-session-id", &id)], Value::Null).await.status(), 200);
    assert_eq!(ask(&server, "DELETE", &[("mcp-session-id", &id)], Value::Null).await.status(), 404);
}
