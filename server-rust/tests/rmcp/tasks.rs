//! Long calls of 2026-07-28 behind our own service: with rmcp's tools, and no help of theirs.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use rmcp::ServerHandler;
use serde_json::{Value, json};
use tailrope_core::store::{Limits, MemoryStore};
use tailrope_server::store::EventStore;
use tailrope_server::{Drain, Engine, Options, Pace, ResponseBody, RmcpServer, ServiceConfig, TailropeService};
use tokio::time::timeout;
use tower_service::Service as _;

use crate::lab::{Gates, PATIENCE, Steps};
use crate::shared::Place;

type Service = TailropeService<RmcpServer<Steps>>;

/// Calls become tasks at once, but for the time in which a refusal is awaited.
pub(crate) fn options() -> Options {
    let mut options = Options { task_after_ms: 0, ..Options::default() };
    options.paces.set("slower", Pace { task_after_ms: Some(60_000), ..Pace::default() }).unwrap();
    options
}

pub(crate) fn service(options: Options, config: ServiceConfig) -> (Service, Gates) {
    let gates = Gates::default();
    let tools = Steps::new(&gates);
    (TailropeService::new(move || Ok(tools.clone()), Engine::new(options), config), gates)
}

fn meta(declares: bool) -> Value {
    let extensions = if declares { json!({"io.modelcontextprotocol/tasks": {}}) } else { json!({}) };
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}, "extensions": extensions},
    })
}

/// A request of a user.
pub(crate) async fn post<H: ServerHandler>(
    service: &TailropeService<RmcpServer<H>>,
    user: &str,
    (method, mut params): (&str, Value),
    declares: bool,
) -> Response<ResponseBody> {
    params["_meta"] = meta(declares);
    let name = params["name"].as_str().or_else(|| params["taskId"].as_str()).map(str::to_owned);
    let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
    let request = Request::post("/mcp").header("host", "localhost").header("content-type", "application/json");
    let request = request.header("accept", "application/json, text/event-stream");
    let request = request.header("mcp-protocol-version", "2026-07-28").header("mcp-method", method);
    let request = request.header("authorization", format!("Bearer {user}"));
    let request = match name {
        Some(name) => request.header("mcp-name", name),
        None => request,
    };
    let request = request.body(Full::new(Bytes::from(body.to_string()))).unwrap();
    timeout(PATIENCE, service.clone().call(request)).await.expect("an answer begins").unwrap()
}

pub(crate) async fn rest(answer: Response<ResponseBody>) -> String {
    let body = timeout(PATIENCE, answer.into_body().collect()).await.expect("it ends").unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

/// The status and body of an answer.
async fn ask(service: &Service, request: (&str, Value)) -> (u16, Value) {
    let answer = post(service, "alice", request, true).await;
    let status = answer.status().as_u16();
    let text = rest(answer).await;
    (status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}")))
}

pub(crate) fn steps(steps: &[&str]) -> (&'static str, Value) {
    ("tools/call", json!({"name": "steps", "arguments": {"steps": steps}}))
}

async fn task(service: &Service, of: &[&str]) -> String {
    let (status, answer) = ask(service, steps(of)).await;
    assert_eq!((status, &answer["result"]["resultType"]), (200, &json!("task")), "{answer}");
    answer["result"]["taskId"].as_str().unwrap().to_owned()
}

async fn get(service: &Service, task: &str) -> Value {
    let (status, answer) = ask(service, ("tasks/get", json!({"taskId": task}))).await;
    assert_eq!(status, 200, "{answer}");
    answer["result"].clone()
}

async fn becomes(service: &Service, task: &str, status: &str) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let stands = get(service, task).await;
        if stands["status"] == status {
            return stands;
        }
        assert!(Instant::now() < deadline, "{status}: {stands}");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn t_02_the_extension_is_announced_and_a_long_call_is_a_task() {
    let (service, gates) = service(options(), ServiceConfig::default());
    let (_, discovered) = ask(&service, ("server/discover", json!({}))).await;
    assert_eq!(discovered["result"]["capabilities"]["extensions"], json!({"io.modelcontextprotocol/tasks": {}}));
    let task = task(&service, &["emit 2", "gate later"]).await;
    let working = becomes(&service, &task, "working").await;
    assert!(working["statusMessage"].is_string(), "T-11: {working}");
    gates.open("later");
    let done = becomes(&service, &task, "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], "done");
}

#[tokio::test]
async fn t_03_a_quick_call_is_answered_as_a_call() {
    let options = Options { task_after_ms: 60_000, ..Options::default() };
    for json_response in [false, true] {
        let (service, _) = service(options.clone(), ServiceConfig::default().json_response(json_response));
        let (status, answer) = ask(&service, steps(&[])).await;
        assert_eq!((status, &answer["result"]["content"][0]["text"]), (200, &json!("done")), "{answer}");
        let listed = rest(post(&service, "alice", ("tools/list", json!({})), true).await).await;
        assert!(listed.contains(r#""tools":["#), "{listed}");
    }
}

#[tokio::test]
async fn t_05_who_does_not_declare_is_steered_and_has_no_tasks() {
    let (service, _) = service(options(), ServiceConfig::default());
    let task = task(&service, &["gate later"]).await;
    for (request, code) in [
        (steps(&[]), -32022),
        (("tasks/get", json!({"taskId": task})), -32021),
        (("tasks/cancel", json!({"taskId": task})), -32021),
    ] {
        let answer = post(&service, "alice", request, false).await;
        assert_eq!(answer.status(), 400);
        let answer: Value = serde_json::from_str(&rest(answer).await).unwrap();
        assert_eq!(answer["error"]["code"], code, "{answer}");
    }
}

#[tokio::test]
async fn t_27_another_user_is_answered_as_for_an_unknown_task() {
    let (service, _) = service(options(), ServiceConfig::default());
    let task = task(&service, &["gate later"]).await;
    let unknown = format!("tailrope-{}", "A".repeat(32));
    for method in ["tasks/get", "tasks/cancel"] {
        let mut answers = Vec::new();
        for id in [&task, &unknown] {
            let answer = post(&service, "bob", (method, json!({"taskId": id})), true).await;
            answers.push((answer.status(), format!("{:?}", answer.headers()), rest(answer).await));
        }
        assert_eq!(answers[0], answers[1]);
        assert_eq!(answers[0].0, 400);
    }
    becomes(&service, &task, "working").await;
}

#[tokio::test]
async fn t_22_a_cancelled_task_ends_its_run() {
    let (service, gates) = service(options(), ServiceConfig::default());
    let task = task(&service, &["gate later"]).await;
    let (status, answer) = ask(&service, ("tasks/cancel", json!({"taskId": task}))).await;
    assert_eq!((status, &answer["result"]), (200, &json!({"resultType": "complete"})));
    assert_eq!(get(&service, &task).await["status"], "cancelled");
    // Its tool waits at the gate no more: the next one to come passes it.
    assert!(service.drain(Drain::default().within_ms(60_000)).await);
    gates.open("later");
}

#[tokio::test]
async fn a_client_that_goes_before_there_is_a_task_cancels_its_call() {
    let options = Options { task_after_ms: 60_000, ..Options::default() };
    let (service, _) = service(options, ServiceConfig::default());
    let call = post(&service, "alice", steps(&["gate never"]), true);
    assert!(timeout(std::time::Duration::from_millis(200), call).await.is_err(), "it is decided later");
    assert!(service.drain(Drain::default().within_ms(60_000)).await, "nothing runs");
    assert_eq!(service.engine().stats().tasks_created, 0);
}

#[tokio::test]
async fn a_task_is_asked_for_at_another_process_and_fails_with_its_own() {
    let store: Arc<dyn EventStore> = Arc::new(MemoryStore::new(Limits::default()));
    let both = [(); 2].map(|()| {
        let options = Options { store: Some(Arc::clone(&store)), ..options() };
        service(options, ServiceConfig::default())
    });
    let task = task(&both[0].0, &["gate later"]).await;
    becomes(&both[1].0, &task, "working").await;
    both[0].1.open("later");
    let done = becomes(&both[1].0, &task, "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], "done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_runs_whichever_process_has_its_last_answer() {
    let place = Place::new("rounds");
    let [owner, other] = [(); 2].map(|()| {
        let options = Options { store: Some(place.store()), ..options() };
        service(options, ServiceConfig::default()).0
    });
    let task = task(&owner, &["ask"]).await;
    let asked = becomes(&other, &task, "input_required").await;
    let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    let answer = json!({"action": "accept", "content": {"name": "Ann"}});
    let (status, _) = ask(&other, ("tasks/update", json!({"taskId": task, "inputResponses": {key: answer}}))).await;
    assert_eq!(status, 200);
    let done = becomes(&other, &task, "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], "done");
}

#[tokio::test]
async fn a_drain_waits_for_tasks() {
    let (service, gates) = service(options(), ServiceConfig::default());
    let task = task(&service, &["gate later"]).await;
    let mut drain = std::pin::pin!(service.drain(Drain::default().within_ms(60_000)));
    assert!(timeout(std::time::Duration::from_millis(100), &mut drain).await.is_err(), "a task runs");
    gates.open("later");
    assert!(drain.await);
    assert_eq!(get(&service, &task).await["status"], "completed");
}
