//! What waits for a host: here its requests are taken by the test, or never.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::routing::any;
use http_body_util::BodyExt as _;
use serde_json::Value;
use tailrope_core::engine::{SessionHandle, Wake};
use tailrope_core::protocol::Dialect;
use tailrope_core::store::SessionId;
use tailrope_server::front::{AppAddress, Arrival, Front, FrontOptions, FrontTerms};
use tailrope_server::{Engine, Options};
use tokio::net::{TcpStream, UnixListener};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

use crate::kit::{Answer, Client, folder, request, until};

/// Tells its test of each wake-up.
struct Told(mpsc::UnboundedSender<u64>);

impl Wake for Told {
    fn wake(&self, key: u64) {
        let _ = self.0.send(key);
    }
}

/// A front, a session that was handed over, and an application that says what it is asked.
struct Hand {
    front: Front,
    session: SessionHandle,
    woken: mpsc::UnboundedReceiver<u64>,
    app: JoinHandle<()>,
    folder: std::path::PathBuf,
}

impl Drop for Hand {
    fn drop(&mut self) {
        self.app.abort();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Hand {
    fn new(max_waiting: usize) -> Self {
        let engine = Engine::new(Options::default());
        let (telling, woken) = mpsc::unbounded_channel();
        let folder = folder();
        let listener = UnixListener::bind(folder.join("app")).unwrap();
        let saying = any(|request: Request| async {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            format!("{} {}", parts.method, std::str::from_utf8(&body).unwrap())
        });
        let routes = Router::new().fallback(saying);
        let app = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        let mut options = FrontOptions::new(AppAddress::Unix(folder.join("app")));
        options.addresses.push("127.0.0.1:0".parse().unwrap());
        options.max_waiting = max_waiting;
        let front = Front::start(engine.clone(), options, Arc::new(Told(telling)), 7).unwrap();
        let name = SessionId::new("/mcp", "session");
        let session =
            engine.open_session(name, None, &Dialect::NEUTRAL, Arc::new(tailrope_core::engine::NoWake), 0).unwrap();
        front.serve(&session, FrontTerms::new("/mcp"));
        Self { front, session, woken, app, folder }
    }

    async fn begin(&self, method: &str, body: Value) -> Answer {
        let socket = TcpStream::connect(self.front.addresses()[0]).await.unwrap();
        Client::on(socket).await.begin(method, &[("mcp-session-id", "session")], body).await
    }

    async fn ask(&self, body: Value) -> (u16, String) {
        let mut answer = self.begin("POST", body).await;
        let text = until(&mut answer, "\0").await;
        (answer.status().as_u16(), text)
    }

    /// The next arrival.
    async fn next(&mut self) -> Arrival {
        assert_eq!(self.woken.recv().await, Some(7));
        let mut arrivals = self.front.take();
        assert_eq!(arrivals.len(), 1);
        arrivals.remove(0)
    }
}

fn notification() -> Value {
    serde_json::json!({ "jsonrpc": "2.0", "method": "notifications/told" })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_host_drops_or_declines_the_application_answers() {
    let mut hand = Hand::new(10);
    for declines in [true, false] {
        for body in [request(1, "ping"), notification()] {
            let (front, expected) = (hand.front.addresses()[0], (200, format!("POST {body}")));
            let asking = tokio::spawn(async move {
                let client = Client::on(TcpStream::connect(front).await.unwrap()).await;
                let mut answer = client.begin("POST", &[("mcp-session-id", "session")], body).await;
                (answer.status().as_u16(), until(&mut answer, "\0").await)
            });
            match hand.next().await {
                Arrival::Call(call) if declines => call.decline(),
                Arrival::Message(message) if declines => message.decline(),
                other => drop(other),
            }
            assert_eq!(asking.await.unwrap(), expected);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_a_full_inbox_refuses_and_a_host_that_never_takes_blocks_nobody_else() {
    let mut hand = Hand::new(2);
    let address = hand.front.addresses()[0];
    let mut asking = JoinSet::new();
    for n in 0..3 {
        asking.spawn(async move {
            let client = Client::on(TcpStream::connect(address).await.unwrap()).await;
            let mut answer = client.begin("POST", &[("mcp-session-id", "session")], request(n, "ping")).await;
            let text = until(&mut answer, "\0").await;
            assert!(text.contains(&format!(r#""id":{n}"#)), "{text}");
            (answer.status().as_u16(), answer.headers().contains_key("retry-after"))
        });
    }
    assert_eq!(asking.join_next().await.unwrap().unwrap(), (503, true), "of three that come, two wait");
    // A poll, and what is the application's anyway.
    let mut listening = hand.begin("GET", Value::Null).await;
    assert_eq!(listening.status(), 200);
    assert_eq!(hand.begin("DELETE", Value::Null).await.status(), 200);
    assert_eq!(hand.woken.recv().await, Some(7));
    assert!(hand.woken.try_recv().is_err(), "it is woken once");
    hand.session.end();
    until(&mut listening, "\0").await;
    let arrivals = hand.front.take();
    assert_eq!(arrivals.len(), 2);
    for arrival in arrivals {
        let Arrival::Call(call) = arrival else { panic!("{arrival:?}") };
        assert!(!call.open(), "the session has ended");
    }
    assert_eq!(asking.join_all().await, [(200, false); 2], "the application answers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_sees_what_came() {
    let mut hand = Hand::new(10);
    let socket = TcpStream::connect(hand.front.addresses()[0]).await.unwrap();
    let own = socket.local_addr().unwrap();
    let headers = [("mcp-session-id", "session"), ("x-tailrope-peer", "8.8.8.8:1 https"), ("x-other", "1")];
    let client = Client::on(socket).await;
    let asking = tokio::spawn(async move { client.begin("POST", &headers, notification()).await.status().as_u16() });
    let Arrival::Message(message) = hand.next().await else { panic!("it is a message") };
    assert_eq!((message.session().id(), message.peer()), ("session", own));
    assert_eq!(**message.body(), *notification().to_string().as_bytes());
    assert_eq!(message.parts().uri, "/mcp");
    assert_eq!(message.parts().headers["x-other"], "1");
    assert!(!message.parts().headers.contains_key("x-tailrope-peer"));
    message.accept();
    assert_eq!(asking.await.unwrap(), 202);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_front_that_closes_declines_what_waits() {
    let mut hand = Hand::new(10);
    let client = Client::on(TcpStream::connect(hand.front.addresses()[0]).await.unwrap()).await;
    let asking = tokio::spawn(async move { client.try_begin(request(1, "ping")).await.is_err() });
    assert_eq!(hand.woken.recv().await, Some(7));
    hand.front.close(0);
    assert!(asking.await.unwrap(), "the connection is cut");
    assert!(hand.front.take().is_empty());
    // A host may still hold some.
    assert_eq!(hand.session.in_flight(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_ended_is_the_applications() {
    let hand = Hand::new(10);
    hand.session.end();
    assert_eq!(hand.ask(request(1, "ping")).await.0, 200);
    assert!(hand.front.take().is_empty());
}
