//! Our service without an SDK, asked as tower asks it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tailrope_core::Ms;
use tailrope_core::engine::Clock;
use tailrope_server::{
    Call, Close, Drain, Engine, Handler, Identity, JsonRpcServer, Options, ResponseBody, RpcError, ServiceConfig,
    TailropeService,
};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpSocket;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tower_service::Service as _;

/// Two cores that stand still for many seconds are normal.
const PATIENCE: Duration = Duration::from_secs(60);

/// More than sockets take, for a client that keeps its own.
const FLOOD: u64 = 100;

struct Tools;

impl Handler for Tools {
    async fn call(&self, call: Call) -> Result<Value, RpcError> {
        match call.method() {
            "initialize" => Ok(welcome()),
            // Whatever is polled comes once its client asks for it.
            "poll" => {
                assert!(call.close_sse_stream(Close::default().retry_ms(7).hold_ms(0)));
                for n in 0..3 {
                    call.notify("told", json!({ "n": n })).await.unwrap();
                }
                Ok(json!("polled"))
            }
            "flood" => {
                let text = "x".repeat(60_000);
                for n in 0..FLOOD {
                    call.notify("told", json!({ "n": n, "text": text })).await.unwrap();
                }
                Ok(json!("flooded"))
            }
            "trickle" => {
                for n in 0..4 {
                    call.notify("told", json!({ "n": n, "text": "" })).await.unwrap();
                    for _ in 0..10 {
                        tokio::task::yield_now().await;
                    }
                }
                std::future::pending().await
            }
            "ask" => call.ask("name", json!({})).await,
            "fall" => panic!("as a handler may"),
            "wait" => std::future::pending().await,
            other => Err(RpcError::method_not_found(other)),
        }
    }
}

type Server<H = Tools> = TailropeService<JsonRpcServer<H>>;

fn server(config: ServiceConfig) -> Server {
    TailropeService::json_rpc(Tools, Engine::new(Options::default()), config)
}

/// tokio's time, which tests may let pass.
struct TokioClock(Instant);

impl Clock for TokioClock {
    fn now(&self) -> Ms {
        Ms(self.0.elapsed().as_millis().try_into().unwrap())
    }

    fn unix_ms(&self) -> u64 {
        self.now().0
    }
}

/// One whose connections last for so long.
fn aging(max_connection_ms: u64) -> (Engine, Server) {
    let mut options = Options { clock: Some(Arc::new(TokioClock(Instant::now()))), ..Options::default() };
    options.pacing.max_connection_ms = max_connection_ms;
    let engine = Engine::new(options);
    (engine.clone(), TailropeService::json_rpc(Tools, engine, ServiceConfig::default()))
}

/// The numbers that were told, and the last id, as far as events are whole.
fn told(events: &str) -> (Vec<u64>, &str) {
    let whole = events.rsplit_once("\n\n").map_or("", |(whole, _)| whole);
    let number = |line: &str| line.split(r#""n":"#).nth(1)?.split(',').next()?.parse().ok();
    (whole.lines().filter_map(number).collect(), last_id(whole))
}

async fn begin<H: Handler>(
    server: &Server<H>,
    method: &str,
    headers: &[(&str, &str)],
    body: Value,
) -> Response<ResponseBody> {
    begin_at(server, method, "/", headers, body).await
}

async fn begin_at<H: Handler>(
    server: &Server<H>,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Value,
) -> Response<ResponseBody> {
    let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
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

async fn ask<H: Handler>(server: &Server<H>, method: &str, headers: &[(&str, &str)], body: Value) -> Response<String> {
    let mut answer = begin(server, method, headers, body).await;
    let text = until(&mut answer, "\0").await;
    answer.map(|_| text)
}

/// What `initialize` is answered with.
fn welcome() -> Value {
    json!({
        "protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": { "name": "test", "version": "1" },
    })
}

/// The first request of a session.
fn hello() -> Value {
    json!({
        "jsonrpc": "2.0", "id": 0, "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" },
        },
    })
}

async fn open<H: Handler>(server: &Server<H>, more: &[(&str, &str)]) -> String {
    let answer = ask(server, "POST", more, hello()).await;
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
    let named = |parts: &http::request::Parts| Some(parts.headers.get("x-user")?.to_str().ok()?.to_owned());
    let server = server(ServiceConfig::default().identity(Identity::default().principal(named)));
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
async fn i7_a_session_is_found_at_its_own_path_alone() {
    let server = server(ServiceConfig::default());
    let at = async |path: &str, method: &str, id: &str| {
        let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "nothing" });
        begin_at(&server, method, path, &[("mcp-session-id", id)], ping).await.status().as_u16()
    };
    let opened = begin_at(&server, "POST", "/admin", &[], hello()).await;
    let id = opened.headers()["mcp-session-id"].to_str().unwrap();
    for method in ["POST", "GET", "DELETE"] {
        for path in ["/public", "/admin/", "//admin", "/%61dmin", "/ADMIN"] {
            assert_eq!(at(path, method, id).await, 404, "{method} {path}");
        }
    }
    assert_eq!((at("/admin", "POST", id).await, at("/admin", "DELETE", id).await), (200, 200));
}

/// Tells what it hears of sessions.
struct Keeping(mpsc::UnboundedSender<String>);

impl Handler for Keeping {
    async fn call(&self, call: Call) -> Result<Value, RpcError> {
        match call.method() {
            "initialize" if call.params()["clientInfo"]["name"] == "stranger" => {
                Err(RpcError::new(-32602, "a stranger"))
            }
            "initialize" => Ok(welcome()),
            _ => Ok(json!(call.session_id())),
        }
    }

    fn notified(&self, session_id: &str, method: &str, _params: Value) {
        self.0.send(format!("{method} in {session_id}")).unwrap();
    }

    fn ended(&self, session_id: &str) {
        self.0.send(format!("the end of {session_id}")).unwrap();
    }
}

fn keeping() -> (Engine, Server<Keeping>, mpsc::UnboundedReceiver<String>) {
    let ((told, heard), engine) = (mpsc::unbounded_channel(), Engine::new(Options::default()));
    (engine.clone(), TailropeService::json_rpc(Keeping(told), engine, ServiceConfig::default()), heard)
}

#[tokio::test]
async fn handlers_know_their_session_and_hear_of_its_end_once() {
    let (_, server, mut heard) = keeping();
    let id = open(&server, &[]).await;
    let session = [("mcp-session-id", &*id)];
    let called = ask(&server, "POST", &session, json!({ "jsonrpc": "2.0", "id": 1, "method": "whose" })).await;
    assert!(called.body().contains(&format!(r#""result":"{id}""#)), "{}", called.body());
    ask(&server, "POST", &session, json!({ "jsonrpc": "2.0", "method": "notifications/told" })).await;
    ask(&server, "DELETE", &session, Value::Null).await;
    for expected in [format!("notifications/told in {id}"), format!("the end of {id}")] {
        assert_eq!(timeout(PATIENCE, heard.recv()).await.expect("it is heard"), Some(expected));
    }
    drop(server);
    assert_eq!(timeout(PATIENCE, heard.recv()).await.expect("nothing holds the handler"), None);
}

#[tokio::test]
async fn a_session_whose_initialize_is_refused_is_over() {
    let (engine, server, mut heard) = keeping();
    let mut stranger = hello();
    stranger["params"]["clientInfo"]["name"] = "stranger".into();
    let refused = ask(&server, "POST", &[], stranger).await;
    assert!(refused.status() == 200 && refused.body().contains("a stranger"), "{}", refused.body());
    let id = refused.headers()["mcp-session-id"].to_str().unwrap();
    assert_eq!(timeout(PATIENCE, heard.recv()).await.expect("it is heard"), Some(format!("the end of {id}")));
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "whose" });
    assert_eq!(ask(&server, "POST", &[("mcp-session-id", id)], call).await.status(), 404);
    assert_eq!(engine.stats().sessions, 0);
}

#[tokio::test]
async fn the_service_goes_with_middleware() {
    fn as_layers_need_it<B: http_body::Body + Default + Send + Sync>() -> B {
        B::default()
    }
    assert!(http_body::Body::is_end_stream(&as_layers_need_it::<ResponseBody>()));
    // A bound of a layer in front of the service.
    let request = Request::post("/").header("host", "localhost");
    let request = request.body(Limited::new(Full::new(Bytes::from(hello().to_string())), 10)).unwrap();
    assert_eq!(server(ServiceConfig::default()).call(request).await.unwrap().status(), 413);
}

#[tokio::test]
async fn what_is_refused_has_the_status_that_says_so() {
    let server = server(ServiceConfig::default().max_body_bytes(200).allowed_hosts(["localhost"]));
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "poll" });
    let large = json!({ "jsonrpc": "2.0", "id": 1, "method": "poll", "params": { "text": "x".repeat(300) } });
    assert_eq!(ask(&server, "POST", &[], large).await.status(), 413);
    assert_eq!(ask(&server, "POST", &[], call.clone()).await.status(), 400, "no session");
    assert_eq!(ask(&server, "POST", &[("mcp-session-id", "0")], call.clone()).await.status(), 404);
    for session in [&[][..], &[("mcp-session-id", "0")]] {
        for method in ["OPTIONS", "HEAD", "PUT"] {
            let other = ask(&server, method, session, call.clone()).await;
            assert_eq!(other.status(), 405, "{method}");
            assert_eq!(other.headers()["allow"], "GET, POST, DELETE");
        }
    }
    let steered = ask(&server, "POST", &[("mcp-protocol-version", "2026-07-28")], call).await;
    assert_eq!(steered.status(), 400);
    assert!(steered.body().contains("-32022"), "{}", steered.body());
}

#[tokio::test]
async fn names_in_host_are_those_of_the_machine_until_others_are_allowed() {
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    let status = async |config: ServiceConfig, host: &str| {
        let mut request = Request::post("/").body(Full::new(Bytes::from(ping.to_string()))).unwrap();
        request.headers_mut().insert("host", host.parse().unwrap());
        timeout(PATIENCE, server(config).call(request)).await.expect("an answer begins").unwrap().status()
    };
    for host in ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000"] {
        assert_ne!(status(ServiceConfig::default(), host).await, 403, "{host}");
    }
    for host in ["evil.example", "evil.example:8000", "localhost.evil.example", "[::2]", "a b"] {
        assert_eq!(status(ServiceConfig::default(), host).await, 403, "{host}");
        assert_ne!(status(ServiceConfig::default().any_host(), host).await, 403, "{host}");
    }
    let named = ServiceConfig::default().allowed_hosts(["mcp.example:443"]);
    assert_ne!(status(named.clone(), "mcp.example:443").await, 403);
    assert_eq!(status(named.clone(), "mcp.example:80").await, 403);
    assert_eq!(status(named, "localhost").await, 403);
}

#[tokio::test]
async fn accepted_types_on_several_lines_are_one_list() {
    let server = server(ServiceConfig::default());
    let id = open(&server, &[]).await;
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "nothing" }).to_string();
    let request = Request::post("/").header("host", "localhost").header("content-type", "application/json");
    let request = request.header("mcp-session-id", &id).header("mcp-protocol-version", "2025-11-25");
    let request = request.header("accept", "application/json").header("accept", "text/event-stream");
    let request = request.body(Full::new(Bytes::from(body))).unwrap();
    let answer = timeout(PATIENCE, server.clone().call(request)).await.expect("an answer begins").unwrap();
    assert_eq!(answer.status(), 200);
}

#[tokio::test]
async fn i13_a_request_whose_handler_panics_gets_its_end() {
    let server = server(ServiceConfig::default());
    let id = open(&server, &[]).await;
    let session = [("mcp-session-id", &*id)];
    for _ in 0..2 {
        // Twice with one id: nothing of the first is left.
        let fallen = ask(&server, "POST", &session, json!({ "jsonrpc": "2.0", "id": 1, "method": "fall" })).await;
        assert!(fallen.body().contains("-32603") && fallen.body().contains(r#""id":1"#), "{}", fallen.body());
    }
}

#[test]
fn a_request_at_the_end_of_a_runtime_is_not_stuck() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let handle = runtime.handle().clone();
    drop(runtime);
    let (told, is_over) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _in_it = handle.enter();
        let request = Request::post("/").header("host", "localhost").header("content-type", "application/json");
        let request = request.header("accept", "application/json, text/event-stream");
        let request = request.body(Full::new(Bytes::from(hello().to_string()))).unwrap();
        let mut answer = std::pin::pin!(server(ServiceConfig::default()).call(request));
        let _ = answer.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
        told.send(()).unwrap();
    });
    is_over.recv_timeout(PATIENCE).expect("the request lets go of its thread");
}

#[tokio::test]
async fn a_deleted_session_is_gone() {
    let server = server(ServiceConfig::default());
    let id = open(&server, &[]).await;
    assert_eq!(ask(&server, "DELETE", &[("mcp-session-id", &id)], Value::Null).await.status(), 200);
    assert_eq!(ask(&server, "DELETE", &[("mcp-session-id", &id)], Value::Null).await.status(), 404);
}

#[tokio::test(start_paused = true)]
async fn i11_a_reader_that_takes_nothing_is_cut_off_and_comes_back_for_the_rest() {
    let (engine, server) = aging(30_000);
    let id = open(&server, &[]).await;
    let session = [("mcp-session-id", &*id)];
    let mut call = begin(&server, "POST", &session, json!({ "jsonrpc": "2.0", "id": 1, "method": "flood" })).await;
    let mut kept = Vec::new();
    loop {
        let frame = timeout(PATIENCE, call.body_mut().frame()).await.expect("it does not wait for ever");
        match frame.expect("an end is not told before all is taken") {
            Ok(frame) => kept.push(frame.into_data().unwrap()),
            Err(stalled) => break assert!(stalled.to_string().contains("max_connection_ms")),
        }
    }
    assert!(kept.iter().map(Bytes::len).sum::<usize>() <= 4 * (64 << 10), "I10");
    assert_eq!(engine.stats().connections, 0);
    assert!(call.body_mut().frame().await.is_none());
    let mut events = String::from_utf8(kept.concat()).unwrap();
    let mut numbers = Vec::new();
    loop {
        let (more, cursor) = told(&events);
        numbers.extend(more);
        if events.contains("flooded") {
            break;
        }
        let next = ask(&server, "GET", &[session[0], ("last-event-id", cursor)], Value::Null).await;
        assert_eq!(next.status(), 200);
        events = next.into_body();
    }
    assert_eq!(numbers, (0..FLOOD).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn drains_wait_for_as_long_as_the_first_one_may() {
    let (_, server) = aging(0);
    let id = open(&server, &[]).await;
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "flood" });
    let _never_read = begin(&server, "POST", &[("mcp-session-id", &id)], call).await;
    let (begun, drain) = (Instant::now(), Drain::default().within_ms(3_000));
    for _ in 0..3 {
        assert!(!server.drain(drain).await, "a connection is open");
        assert!((3_000..3_500).contains(&begun.elapsed().as_millis()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_takes_what_it_is_given_is_never_cut_off() {
    let (_, server) = aging(30_000);
    let id = open(&server, &[]).await;
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "flood" });
    let answer = ask(&server, "POST", &[("mcp-session-id", &id)], call).await;
    assert_eq!(told(answer.body()).0, (0..FLOOD).collect::<Vec<_>>());
    assert!(answer.body().contains("flooded"));
}

#[tokio::test(start_paused = true)]
async fn events_that_follow_each_other_closely_leave_in_one_write() {
    let server = server(ServiceConfig::default());
    let id = open(&server, &[]).await;
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "trickle" });
    let mut answer = begin(&server, "POST", &[("mcp-session-id", &id)], call).await;
    for numbers in [vec![0], vec![1, 2, 3]] {
        let frame = timeout(PATIENCE, answer.body_mut().frame()).await.expect("the answer goes on");
        let written = frame.unwrap().unwrap().into_data().unwrap();
        assert_eq!(told(std::str::from_utf8(&written).unwrap()).0, numbers);
    }
}

#[tokio::test]
async fn f_57_a_socket_that_takes_nothing_is_closed() {
    let (engine, server) = aging(300);
    let id = open(&server, &[]).await;
    // Small buffers: the system takes little, and the server waits for the reader.
    let listening = TcpSocket::new_v4().unwrap();
    listening.set_send_buffer_size(4_096).unwrap();
    listening.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = listening.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut stalled = socket.connect(address).await.unwrap();
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"flood"}"#;
    let request = format!(
        "POST / HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: {id}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n{call}",
        call.len()
    );
    stalled.write_all(request.as_bytes()).await.unwrap();
    let (socket, _) = listener.accept().await.unwrap();
    let serving = http1::Builder::new().serve_connection(TokioIo::new(socket), TowerToHyperService::new(server));
    let ended = timeout(PATIENCE, serving).await.expect("hyper closes the socket");
    assert!(ended.unwrap_err().is_user(), "the body ends it");
    assert_eq!((engine.stats().connections_opened, engine.stats().connections), (2, 0));
}
