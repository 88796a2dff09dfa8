//! An application behind a front, and clients that speak HTTP by hand or with hyper.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tailrope_server::front::{AppAddress, Front, FrontOptions};
use tailrope_server::{Call, Close, Engine, Handler, JsonRpcServer, Options, RpcError, ServiceConfig, TailropeService};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Two cores that stand still for many seconds are normal.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The handlers of the sessions.
pub(crate) struct Tools(mpsc::UnboundedSender<String>);

impl Handler for Tools {
    async fn call(&self, call: Call) -> Result<Value, RpcError> {
        match call.method() {
            "initialize" => Ok(json!({
                "protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": { "name": "test", "version": "1" },
            })),
            "ping" => Ok(json!({})),
            "count" => {
                for n in 0..3 {
                    call.notify("told", json!({ "n": n })).await?;
                }
                Ok(json!("counted"))
            }
            "poll" => {
                call.close_sse_stream(Close::default().retry_ms(7).hold_ms(0));
                for n in 0..3 {
                    call.notify("told", json!({ "n": n })).await?;
                }
                Ok(json!("polled"))
            }
            "announce" => {
                call.notify_session("announced", json!({})).await?;
                Ok(json!("done"))
            }
            "ask" => call.ask("name", json!({})).await,
            "wait" => {
                call.notify("waits", json!({})).await?;
                std::future::pending().await
            }
            // Who is seen to ask.
            "headers" => {
                let names = call.parts().headers.keys().map(|name| json!(name.as_str()));
                Ok(Value::Array(names.collect()))
            }
            other => Err(RpcError::method_not_found(other)),
        }
    }

    fn notified(&self, _session_id: &str, method: &str, _params: Value) {
        let _ = self.0.send(method.to_owned());
    }

    fn ended(&self, _session_id: &str) {
        let _ = self.0.send("ended".to_owned());
    }
}

pub(crate) type Service = TailropeService<JsonRpcServer<Tools>>;

/// An application on a Unix socket, behind a front.
pub(crate) struct Site {
    pub(crate) engine: Engine,
    pub(crate) service: Service,
    pub(crate) front: Arc<Front>,
    /// What the handlers were told.
    pub(crate) told: mpsc::UnboundedReceiver<String>,
    /// The requests that came to the application: method, a space, and the target.
    pub(crate) proxied: mpsc::UnboundedReceiver<String>,
    app: JoinHandle<()>,
    folder: PathBuf,
}

/// What may differ.
pub(crate) struct Settings {
    pub(crate) engine: Options,
    pub(crate) service: ServiceConfig,
    pub(crate) front: Box<dyn FnOnce(&mut FrontOptions)>,
    /// What the application has beside the sessions.
    pub(crate) routes: Router,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            engine: Options::default(),
            service: ServiceConfig::default(),
            front: Box::new(|_| {}),
            routes: Router::new(),
        }
    }
}

/// A folder of its own for the socket: paths of sockets are short.
pub(crate) fn folder() -> PathBuf {
    let mut number = [0; 8];
    getrandom::fill(&mut number).unwrap();
    let folder = std::env::temp_dir().join(format!("front-{:016x}", u64::from_ne_bytes(number)));
    std::fs::create_dir(&folder).unwrap();
    folder
}

impl Site {
    pub(crate) fn new() -> Self {
        Self::with(Settings::default())
    }

    pub(crate) fn with(settings: Settings) -> Self {
        let Settings { engine, service, front, routes } = settings;
        let ((telling, told), (noting, proxied)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let engine = Engine::new(engine);
        let service = TailropeService::json_rpc(Tools(telling), engine.clone(), service);
        let folder = folder();
        let socket = folder.join("app");
        let listener = UnixListener::bind(&socket).unwrap();
        let noted = axum::middleware::from_fn(move |request: axum::extract::Request, next: axum::middleware::Next| {
            let _ = noting.send(format!("{} {}", request.method(), request.uri()));
            next.run(request)
        });
        let app = routes.route_service("/mcp", service.clone()).layer(noted);
        let app = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        let mut options = FrontOptions::new(AppAddress::Unix(socket));
        options.addresses.push("127.0.0.1:0".parse().unwrap());
        front(&mut options);
        let front = service.behind(options, None).unwrap();
        Self { engine, service, front, told, proxied, app, folder }
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.front.addresses()[0]).await.unwrap()
    }

    pub(crate) async fn client(&self) -> Client {
        Client::on(self.connect().await).await
    }

    /// Asks on a connection of its own, and reads the whole answer.
    pub(crate) async fn ask(&self, method: &str, headers: &[(&str, &str)], body: Value) -> Response<String> {
        let mut answer = self.client().await.begin(method, headers, body).await;
        let text = until(&mut answer, "\0").await;
        answer.map(|_| text)
    }

    /// Where the application listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("app")
    }

    /// Asks the application itself, on its own socket: what it answers without a front.
    pub(crate) async fn ask_app(&self, method: &str, headers: &[(&str, &str)], body: Value) -> Response<String> {
        let socket = UnixStream::connect(self.socket()).await.unwrap();
        let mut answer = Client::on(socket).await.begin(method, headers, body).await;
        let text = until(&mut answer, "\0").await;
        answer.map(|_| text)
    }

    /// Sends these bytes, and reads until the connection closes.
    pub(crate) async fn raw(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut socket = self.connect().await;
        socket.write_all(bytes.as_ref()).await.unwrap();
        read_to_end(&mut socket).await
    }

    /// Opens a session, and forgets what the application has seen of it.
    pub(crate) async fn open(&mut self) -> String {
        let answer = self.ask("POST", &[], hello()).await;
        assert_eq!(answer.status(), 200, "{}", answer.body());
        assert_eq!(self.proxied.recv().await.unwrap(), "POST /mcp");
        answer.headers()["mcp-session-id"].to_str().unwrap().to_owned()
    }

    /// What came to the application since the last look.
    pub(crate) fn seen_by_app(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.proxied.try_recv().ok()).collect()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.app.abort();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A connection of a client.
pub(crate) struct Client {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// An answer. Its connection ends when this is dropped.
pub(crate) type Answer = Response<(Incoming, Client)>;

impl Client {
    pub(crate) async fn on(socket: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        let (sender, connection) = handshake(TokioIo::new(socket)).await.unwrap();
        Self { sender, driver: tokio::spawn(async move { drop(connection.await) }) }
    }

    pub(crate) async fn begin(self, method: &str, headers: &[(&str, &str)], body: Value) -> Answer {
        self.send(method, headers, body).await.unwrap()
    }

    /// Asks in the session `session`.
    pub(crate) async fn try_begin(self, body: Value) -> hyper::Result<Answer> {
        self.send("POST", &[("mcp-session-id", "session")], body).await
    }

    async fn send(mut self, method: &str, headers: &[(&str, &str)], body: Value) -> hyper::Result<Answer> {
        let mut request = Request::builder().method(method).uri("/mcp").header("host", "localhost");
        request =
            request.header("accept", "application/json, text/event-stream").header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let request = request.body(Full::new(bytes)).unwrap();
        let answer = timeout(PATIENCE, self.sender.send_request(request)).await.expect("an answer begins")?;
        Ok(answer.map(|body| (body, self)))
    }
}

/// Reads an answer until it has said this, or to its end.
pub(crate) async fn until(answer: &mut Answer, said: &str) -> String {
    let mut text = String::new();
    while !text.contains(said) {
        let frame = timeout(PATIENCE, answer.body_mut().0.frame()).await.expect("the answer goes on");
        let Some(frame) = frame else { break };
        text += std::str::from_utf8(&frame.unwrap().into_data().unwrap()).unwrap();
    }
    text
}

pub(crate) fn request(id: u64, method: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method })
}

/// The first request of a session.
pub(crate) fn hello() -> Value {
    json!({
        "jsonrpc": "2.0", "id": 0, "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" },
        },
    })
}

pub(crate) fn last_id(events: &str) -> &str {
    events.lines().filter_map(|line| line.strip_prefix("id: ")).next_back().expect("an event with an id")
}

/// The numbers that were told.
pub(crate) fn numbers(events: &str) -> Vec<u64> {
    events.lines().filter_map(|line| line.split(r#""n":"#).nth(1)?.split(['}', ',']).next()?.parse().ok()).collect()
}

/// Reads until the connection closes.
pub(crate) async fn read_to_end(socket: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset is an end, too.
    let _ = timeout(PATIENCE, socket.read_to_end(&mut bytes)).await.expect("the connection closes");
    String::from_utf8(bytes).unwrap()
}

/// Reads until this has come.
pub(crate) async fn read_until(socket: &mut TcpStream, said: &str) -> String {
    let mut text = String::new();
    while !text.contains(said) {
        let mut bytes = [0; 1024];
        let n = timeout(PATIENCE, socket.read(&mut bytes)).await.expect("more comes").unwrap();
        assert_ne!(n, 0, "the connection closed after {text:?}");
        text += std::str::from_utf8(&bytes[..n]).unwrap();
    }
    text
}

/// Waits until this is so.
pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let waits = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(PATIENCE, waits).await.unwrap_or_else(|_| panic!("{what} did not come"));
}
