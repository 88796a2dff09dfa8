//! Two processes over one store.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use rmcp::model::ClientJsonRpcMessage;
use rmcp::serve_server;
use rmcp::transport::streamable_http_server::session::SessionManager as _;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::{Value, json};
use tailrope_server::store::{EventStore, StoreOptions, open};
use tailrope_server::{
    Call, Drain, Engine, Handler, Identity, Options, RpcError, ServiceConfig, Sessions, TailropeService,
};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;
use tower_service::Service;

use crate::lab::{PATIENCE, Server, counts, hello, result};
use crate::quick;

/// A file that goes with the test.
pub(crate) struct Place(PathBuf);

impl Place {
    pub(crate) fn new(name: &str) -> Self {
        let place = std::env::temp_dir().join(format!("tailrope-server-{}-{name}", std::process::id()));
        // A process of the same id that was killed has left it.
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(&place).unwrap();
        Self(place)
    }

    fn server(&self) -> Server {
        Server::of(self.sessions().into())
    }

    pub(crate) fn sessions(&self) -> Sessions {
        Sessions::new(self.engine())
    }

    pub(crate) fn engine(&self) -> Engine {
        Engine::new(Options { store: Some(self.store()), ..quick() })
    }

    pub(crate) fn store(&self) -> Arc<dyn EventStore> {
        let address = format!("sqlite:{}", self.0.join("events.db").display());
        open(&address, &StoreOptions::default()).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i3_a_stream_is_resumed_at_another_process() {
    let place = Place::new("resumed");
    let (owner, other) = (place.server(), place.server());
    let peer = owner.open("").await;
    let mut first = peer.call(1, &["emit 2", "gate later", "emit 2"]).await;
    let before = counts(&first.some(2).await);
    let mut second = peer.at(&other).resume(first.last_id()).await;
    owner.gates.open("later");
    let rest = second.rest().await;
    assert_eq!([before, counts(&rest)].concat(), [1, 2, 3, 4]);
    assert_eq!(result(rest.last().unwrap()), "done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_comes_to_another_process_is_relayed() {
    let place = Place::new("relayed");
    let (owner, other) = (place.server(), place.server());
    let peer = owner.open("").await;
    let elsewhere = peer.at(&other);
    let answer = elsewhere.call(1, &["emit 3"]).await.rest().await;
    assert_eq!(counts(&answer), [1, 2, 3]);
    assert_eq!(result(answer.last().unwrap()), "done");
    let ping = serde_json::json!({ "jsonrpc": "2.0", "method": "notifications/roots/list_changed" });
    assert_eq!(elsewhere.post(ping).await.status(), 202);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_a_message_that_is_none_leaves_nothing_of_the_session_of_another_process() {
    let place = Place::new("none");
    let (owner, sessions) = (place.server(), place.sessions());
    let engine = sessions.engine().clone();
    let other = Server::of(sessions.into());
    let peer = owner.open("").await;
    // rmcp takes it for an answer, and the engine does not.
    let answer = json!({ "jsonrpc": "2.0", "id": 7, "result": 5 });
    assert_eq!(peer.at(&other).post(answer).await.status(), 500);
    assert_eq!(engine.stats().sessions, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_whose_process_is_gone_goes_on_at_another() {
    let place = Place::new("adopted");
    let sessions = Arc::new(place.sessions());
    let (owner, adopting) = (Server::of(Arc::clone(&sessions)), place.sessions());
    let engine = adopting.engine().clone();
    let heir = Server::heir(adopting);
    let peer = owner.open("").await;
    let mut before = peer.call(1, &["emit 2"]).await;
    assert_eq!(counts(&before.rest().await), [1, 2]);
    assert!(sessions.drain(Drain::default()).await, "nothing runs any more");
    let there = peer.at(&heir);
    let answer = there.call(2, &["emit 3", "close"]).await.rest().await;
    // The new handler knows which revision was negotiated: the connection was closed.
    assert_eq!((counts(&answer), engine.stats().sessions_adopted), (vec![1, 2, 3], 1));
    assert_eq!(result(there.call(3, &[]).await.rest().await.last().unwrap()), "done");
    assert_eq!(
        counts(&there.resume(&before.ids[0]).await.rest().await),
        [1, 2],
        "what was there before stays readable"
    );
    assert_eq!(there.delete().await.status(), 202);
    assert_eq!(there.call(4, &[]).await.status(), 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_deleted_from_another_process() {
    let place = Place::new("deleted");
    let (owner, other) = (place.server(), place.server());
    let peer = owner.open("").await;
    assert_eq!(peer.at(&other).delete().await.status(), 202);
    assert_eq!(peer.call(1, &[]).await.status(), 404);
    assert_eq!(peer.at(&other).delete().await.status(), 202, "rmcp's word for any session");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o7_servers_of_one_store_find_no_sessions_of_each_other() {
    let place = Place::new("named");
    let named = |name: &str| {
        let identity = Identity::default().server_name(name);
        Server::of(place.sessions().with_identity(identity).into())
    };
    let (public, admin, other) = (named("public"), named("admin"), named("public"));
    let peer = public.open("").await;
    assert_eq!(peer.at(&admin).call(1, &[]).await.status(), 404);
    assert_eq!(peer.at(&admin).listen().await.status(), 404);
    let answer = peer.at(&other).call(1, &["emit 1"]).await.rest().await;
    assert_eq!(result(answer.last().unwrap()), "done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_nobody_has_is_404_everywhere() {
    let place = Place::new("unknown");
    let server = place.server();
    let mut peer = server.open("").await;
    peer.id = "0123456789abcdef".to_owned();
    assert_eq!(peer.call(1, &[]).await.status(), 404);
    assert_eq!(peer.listen().await.status(), 404);
}

/// What `initialize` is answered with.
fn welcome() -> Value {
    json!({
        "protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": { "name": "test", "version": "1" },
    })
}

/// Posts a message to a service, and gives all of the answer.
pub(crate) async fn ask<S, B>(at: S, id: Option<String>, body: Value) -> Response<String>
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = Infallible>,
    B: http_body::Body<Data = Bytes, Error: std::fmt::Debug>,
{
    ask_at(at, "/", id, body).await
}

pub(crate) async fn ask_at<S, B>(at: S, path: &str, id: Option<String>, body: Value) -> Response<String>
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = Infallible>,
    B: http_body::Body<Data = Bytes, Error: std::fmt::Debug>,
{
    let request = Request::post(path).header("content-type", "application/json");
    let request = request.header("accept", "application/json, text/event-stream");
    let request = id.into_iter().fold(request, |request, id| request.header("mcp-session-id", id));
    exchange(at, request, body.to_string()).await
}

/// Comes back to a stream of a session.
async fn resume<S, B>(at: S, id: String, cursor: &str) -> Response<String>
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = Infallible>,
    B: http_body::Body<Data = Bytes, Error: std::fmt::Debug>,
{
    let request = Request::get("/").header("accept", "text/event-stream").header("last-event-id", cursor);
    exchange(at, request.header("mcp-session-id", id), String::new()).await
}

/// A whole exchange with a service.
async fn exchange<S, B>(mut at: S, request: http::request::Builder, body: String) -> Response<String>
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = Infallible>,
    B: http_body::Body<Data = Bytes, Error: std::fmt::Debug>,
{
    let request = request.header("host", "localhost").body(Full::new(Bytes::from(body))).unwrap();
    let answer = timeout(PATIENCE, at.call(request)).await.expect("an answer begins").unwrap();
    let (head, body) = answer.into_parts();
    let body = timeout(PATIENCE, body.collect()).await.expect("it ends").unwrap().to_bytes();
    Response::from_parts(head, String::from_utf8(body.to_vec()).unwrap())
}

/// Without an SDK: it tells where it hears of notifications.
struct Hearing(mpsc::UnboundedSender<String>);

impl Handler for Hearing {
    async fn call(&self, _call: Call) -> Result<Value, RpcError> {
        Ok(welcome())
    }

    fn notified(&self, _session_id: &str, method: &str, _params: Value) {
        // As user code may: it needs a runtime.
        drop(tokio::spawn(async {}));
        let thread = std::thread::current();
        self.0.send(format!("{method} on {}", thread.name().unwrap_or_default())).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_process_relays_is_heard_on_the_runtime_of_its_session() {
    let place = Place::new("heard");
    let (told, mut heard) = mpsc::unbounded_channel();
    let service = || {
        let config = ServiceConfig::default().identity(Identity::default().server_name("hearing"));
        TailropeService::json_rpc(Hearing(told.clone()), place.engine(), config)
    };
    let (owner, other) = (service(), service());
    let answer = ask(owner.clone(), None, hello()).await;
    let id = Some(answer.headers()["mcp-session-id"].to_str().unwrap().to_owned());
    for n in 0..5 {
        let sent = json!({ "jsonrpc": "2.0", "method": format!("notifications/{n}") });
        assert_eq!(ask(other.clone(), id.clone(), sent).await.status(), 202);
        let told = timeout(PATIENCE, heard.recv()).await.expect("it is heard").unwrap();
        assert!(told.starts_with(&format!("notifications/{n} on ")), "in the order in which it came: {told}");
        assert!(!told.contains("tailrope-"), "not on a thread of the store: {told}");
    }
}

/// Without an SDK: it tells what it sees of requests.
struct Looking(mpsc::UnboundedSender<String>);

impl Handler for Looking {
    async fn call(&self, call: Call) -> Result<Value, RpcError> {
        let (parts, id) = (call.parts(), call.parts().headers.get("mcp-session-id"));
        let is_named = id.is_some_and(|id| *id == *call.session_id());
        self.0.send(format!("{} {} {} {is_named}", call.method(), parts.method, parts.uri)).unwrap();
        Ok(welcome())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_see_path_and_session_of_requests_that_came_elsewhere_or_earlier() {
    let place = Place::new("seen");
    let service = || {
        let (told, seen) = mpsc::unbounded_channel();
        (TailropeService::json_rpc(Looking(told), place.engine(), ServiceConfig::default()), seen)
    };
    let ((owner, mut at_owner), (other, mut at_other)) = (service(), service());
    let seen = async |at: &mut mpsc::UnboundedReceiver<String>| timeout(PATIENCE, at.recv()).await.unwrap().unwrap();
    let answer = ask_at(owner.clone(), "/mcp", None, hello()).await;
    assert_eq!(seen(&mut at_owner).await, "initialize POST /mcp false", "as it came");
    let id = Some(answer.headers()["mcp-session-id"].to_str().unwrap().to_owned());
    let look = |n| json!({ "jsonrpc": "2.0", "id": n, "method": "look" });
    ask_at(other.clone(), "/mcp", id.clone(), look(1)).await;
    assert_eq!(seen(&mut at_owner).await, "look POST /mcp true", "relayed");
    assert!(owner.drain(Drain::default()).await);
    ask_at(other, "/mcp", id, look(2)).await;
    assert_eq!(seen(&mut at_other).await, "initialize POST /mcp true", "told again");
    assert_eq!(seen(&mut at_other).await, "look POST /mcp true");
}

/// Without an SDK: it takes as many clients as are allowed.
struct Choosy(AtomicUsize);

impl Handler for Choosy {
    async fn call(&self, call: Call) -> Result<Value, RpcError> {
        if call.method() == "initialize" && self.0.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_err() {
            return Err(RpcError::new(-32602, "closed today"));
        }
        Ok(welcome())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_refuses_initialize_gets_no_call_of_that_client() {
    let place = Place::new("choosy");
    let service = |clients| {
        TailropeService::json_rpc(Choosy(AtomicUsize::new(clients)), place.engine(), ServiceConfig::default())
    };
    let (closed, open, heir) = (service(0), service(1), service(0));
    let refused = ask(closed.clone(), None, hello()).await;
    assert!(refused.body().contains("closed today"), "the store has it: {}", refused.body());
    let answer = ask(open.clone(), None, hello()).await;
    let id = Some(answer.headers()["mcp-session-id"].to_str().unwrap().to_owned());
    let again = ask(open.clone(), id.clone(), hello()).await;
    assert!(again.body().contains("closed today"), "{}", again.body());
    let look = |n| json!({ "jsonrpc": "2.0", "id": n, "method": "look" });
    let called = ask(open.clone(), id.clone(), look(1)).await;
    assert!(called.body().contains("result"), "a second initialize ends nothing: {}", called.body());
    assert!(open.drain(Drain::default()).await);
    let called = ask(heir.clone(), id.clone(), look(2)).await;
    assert!(!called.body().contains("result"), "the heir has refused the client: {}", called.body());
    let called = ask(open, id, look(3)).await;
    assert!(!called.body().contains("result"), "it takes no further client, either: {}", called.body());
}

#[derive(Clone)]
struct Plain;

impl rmcp::ServerHandler for Plain {}

/// A factory that says when it is asked, and then waits until it may go on.
struct Slow {
    asked: std::sync::mpsc::Receiver<()>,
    may_go_on: std::sync::mpsc::Sender<()>,
}

impl Slow {
    fn new() -> (Self, impl Fn() -> std::io::Result<Plain> + Send + Sync + 'static) {
        let (told, asked) = std::sync::mpsc::channel();
        let (may_go_on, waits) = std::sync::mpsc::channel::<()>();
        let waits = std::sync::Mutex::new(waits);
        let make = move || {
            told.send(()).unwrap();
            waits.lock().unwrap().recv_timeout(PATIENCE).expect("it may go on");
            Ok(Plain)
        };
        (Self { asked, may_go_on }, make)
    }

    /// Asks for a session that its owner has let go of, twice: the second time while its handlers are made.
    async fn ask_twice<S, B>(self, owner: S, heir: S, drained: impl Future<Output = bool>)
    where
        S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
        B: http_body::Body<Data = Bytes, Error: std::fmt::Debug> + Send + 'static,
    {
        let answer = ask(owner.clone(), None, hello()).await;
        let id = Some(answer.headers()["mcp-session-id"].to_str().unwrap().to_owned());
        let told = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        assert_eq!(ask(owner, id.clone(), told).await.status(), 202);
        assert!(drained.await);
        let ping = |n| json!({ "jsonrpc": "2.0", "id": n, "method": "ping" });
        let first = tokio::spawn(ask(heir.clone(), id.clone(), ping(1)));
        let asked = self.asked;
        tokio::task::spawn_blocking(move || asked.recv_timeout(PATIENCE).expect("it is adopted")).await.unwrap();
        let second = tokio::spawn(ask(heir, id, ping(2)));
        // Long enough for an answer that does not wait. A later one is as right.
        for _ in 0..30 {
            tokio::time::sleep(Duration::from_millis(if second.is_finished() { 0 } else { 10 })).await;
        }
        self.may_go_on.send(()).unwrap();
        for (n, answer) in [(1, first), (2, second)] {
            let answer = answer.await.unwrap();
            let body = answer.body();
            assert_eq!(answer.status(), 200, "{n}: {body}");
            assert!(body.contains(&format!(r#""id":{n}"#)), "{body}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn o6_requests_that_come_while_a_session_is_adopted_here_wait_for_its_handlers() {
    let place = Place::new("waiting");
    let config = || ServiceConfig::default().identity(Identity::default().server_name("waiting"));
    let owner = TailropeService::new(|| Ok(Plain), place.engine(), config());
    let (slow, make) = Slow::new();
    let heir = TailropeService::new(make, place.engine(), config());
    slow.ask_twice(owner.clone(), heir, owner.drain(Drain::default())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn o6_requests_that_come_while_rmcp_s_service_adopts_a_session_wait_for_its_handlers() {
    let place = Place::new("waiting-rmcp");
    let service = |sessions: &Arc<Sessions>| {
        StreamableHttpService::new(|| Ok(Plain), Arc::clone(sessions), StreamableHttpServerConfig::default())
    };
    let (slow, make) = Slow::new();
    let (owner, heir) = (Arc::new(place.sessions()), Arc::new(place.sessions().with_adoption(make)));
    slow.ask_twice(service(&owner), service(&heir), owner.drain(Drain::default())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o6_rmcp_s_late_end_of_a_session_does_not_end_the_one_that_goes_on_here() {
    let place = Place::new("late-end");
    let sessions = place.sessions().with_adoption(|| Ok(Plain));
    let message = |message: Value| serde_json::from_value::<ClientJsonRpcMessage>(message).unwrap();
    let (id, transport) = sessions.create_session().await.unwrap();
    let serving = tokio::spawn(async { serve_server(Plain, transport).await.unwrap().waiting().await });
    sessions.initialize_session(&id, message(hello())).await.unwrap();
    let told = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    sessions.accept_message(&id, message(told)).await.unwrap();
    assert!(sessions.drain(Drain::default()).await, "nothing runs");
    timeout(PATIENCE, serving).await.expect("the loop ends").unwrap().unwrap();
    let ping = async |n: u32| {
        let ping = message(json!({ "jsonrpc": "2.0", "id": n, "method": "ping" }));
        timeout(PATIENCE, sessions.create_stream(&id, ping).await.unwrap().count()).await.expect("it has its end")
    };
    assert!(ping(1).await > 0, "it goes on here");
    sessions.close_session(&id).await.unwrap();
    assert!(ping(2).await > 0);
    sessions.close_session(&id).await.unwrap();
    assert!(!sessions.has_session(&id).await.unwrap(), "its client has ended it");
}

/// Without an SDK: it says when a call begins, and ends it when it is let go.
struct Held {
    began: mpsc::UnboundedSender<()>,
    may_end: Arc<Notify>,
}

impl Handler for Held {
    async fn call(&self, call: Call) -> Result<Value, RpcError> {
        if call.method() == "initialize" {
            return Ok(welcome());
        }
        self.began.send(()).unwrap();
        self.may_end.notified().await;
        Ok(json!("held"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i13_a_call_that_comes_when_a_drain_is_over_is_waited_for_by_the_next_one() {
    let place = Place::new("late");
    let (began, mut begins) = mpsc::unbounded_channel();
    let may_end = Arc::<Notify>::default();
    let service = || {
        let config = ServiceConfig::default().identity(Identity::default().server_name("late"));
        TailropeService::json_rpc(Held { began: began.clone(), may_end: may_end.clone() }, place.engine(), config)
    };
    let (leaving, other) = (service(), service());
    let answer = ask(leaving.clone(), None, hello()).await;
    let id = answer.headers()["mcp-session-id"].to_str().unwrap().to_owned();
    let drain = Drain::default().within_ms(60_000);
    assert!(leaving.drain(drain).await, "nothing runs");
    let late = ask(leaving.clone(), Some(id.clone()), json!({ "jsonrpc": "2.0", "id": 1, "method": "hold" })).await;
    assert!(late.status() == 200 && !late.body().contains("held"), "it runs, and its client is sent elsewhere");
    timeout(PATIENCE, begins.recv()).await.expect("it begins");
    let mut next = std::pin::pin!(leaving.drain(drain));
    assert!(timeout(Duration::from_millis(200), &mut next).await.is_err(), "a call runs");
    may_end.notify_one();
    assert!(next.await, "and has its end");
    let cursor = late.body().lines().find_map(|line| line.strip_prefix("id: ")).unwrap();
    let rest = resume(other, id, cursor).await;
    assert!(rest.body().contains(r#""result":"held""#), "{}", rest.body());
}
