//! What `examples/rust` shows, over sockets and with our client.

#[path = "../../examples/rust/axum_rmcp.rs"]
mod axum_rmcp;
#[path = "../../examples/rust/hyper_json_rpc.rs"]
mod hyper_json_rpc;
#[cfg(unix)]
#[path = "../../examples/rust/own_store.rs"]
mod own_store;
#[path = "../../examples/rust/rmcp_client.rs"]
mod rmcp_client;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};
use tailrope_client::{Event, HttpClient, Options, Posted};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(60);

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A session, as its client has it.
struct Peer {
    client: HttpClient,
    headers: HeaderMap,
}

impl Peer {
    fn new(address: SocketAddr, headers: HeaderMap) -> Self {
        let url = format!("http://{address}/mcp").parse().unwrap();
        Self { client: HttpClient::http(url, Options::default()).unwrap(), headers }
    }

    async fn open(address: SocketAddr) -> Self {
        let mut peer = Self::new(address, HeaderMap::new());
        let hello = json!({
            "jsonrpc": "2.0", "id": 0, "method": "initialize",
            "params": {
                "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" },
            },
        });
        let (head, messages) = peer.post(hello).await;
        assert_eq!(messages.len(), 1);
        peer.headers.insert("mcp-session-id", head["mcp-session-id"].clone());
        peer.headers.insert("mcp-protocol-version", HeaderValue::from_static("2025-11-25"));
        peer.post(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        peer
    }

    /// Posts a message, and gives what came for it.
    async fn post(&self, message: Value) -> (HeaderMap, Vec<Value>) {
        let answer = match self.client.post(&self.headers, message.to_string().into()).await.unwrap() {
            Posted::Events(answer) => answer,
            Posted::Answer(answer) => return (answer.headers().clone(), Vec::new()),
        };
        let (head, mut events) = answer.into_parts();
        let mut messages = Vec::new();
        while let Some(event) = timeout(PATIENCE, events.next()).await.unwrap() {
            match event {
                Event::Message { data, .. } => messages.push(serde_json::from_str(&data).unwrap()),
                Event::Opened => {}
                other => panic!("{other:?}"),
            }
        }
        (head.headers, messages)
    }

    /// Calls the tool `build`, and gives its progress and its text.
    async fn build(&self, id: u32) -> (Vec<f64>, String) {
        let call = json!({
            "jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": { "name": "build", "arguments": {}, "_meta": { "progressToken": "p" } },
        });
        let (_, messages) = self.post(call).await;
        let progress = messages.iter().filter_map(|message| message["params"]["progress"].as_f64()).collect();
        let text = messages.last().unwrap()["result"]["content"][0]["text"].as_str().unwrap().to_owned();
        (progress, text)
    }
}

/// Nothing is lost and nothing comes twice.
fn whole() -> (Vec<f64>, String) {
    (vec![1.0, 2.0, 3.0, 4.0, 5.0], "built".to_owned())
}

#[tokio::test]
async fn axum_with_rmcp_in_one_changed_line() {
    let (listener, address) = listen().await;
    let server = tokio::spawn(axum_rmcp::serve(listener));
    assert_eq!(Peer::open(address).await.build(1).await, whole());
    server.abort();
}

#[tokio::test]
async fn hyper_without_an_sdk() {
    let (listener, address) = listen().await;
    let server = tokio::spawn(hyper_json_rpc::serve(listener));
    let peer = Peer::open(address).await;
    let (_, listed) = peer.post(json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" })).await;
    assert_eq!(listed[0]["result"]["tools"][0]["name"], "build");
    assert_eq!(peer.build(2).await, whole());
    server.abort();
}

#[tokio::test]
async fn a_client_of_rmcps_with_one_line() {
    let (listener, address) = listen().await;
    let server = tokio::spawn(axum_rmcp::serve(listener));
    let progress = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&progress);
    let url = format!("http://{address}/mcp");
    let told = rmcp_client::build(&url, move |progress| seen.lock().unwrap().push(progress));
    let told = timeout(PATIENCE, told).await.expect("the call ends").unwrap();
    // rmcp tells each of them on a task of its own.
    let mut progress = progress.lock().unwrap().clone();
    progress.sort_by(f64::total_cmp);
    assert_eq!((progress, told), whole());
    server.abort();
}

#[cfg(unix)]
#[tokio::test]
async fn a_store_of_ones_own_keeps_a_session_over_a_restart() {
    let folder = std::env::temp_dir().join(format!("tailrope-own-store-{}", std::process::id()));
    let mut known = HeaderMap::new();
    for id in [1, 2] {
        let (listener, address) = listen().await;
        let (stop, stopped) = oneshot::channel::<()>();
        let place = folder.clone();
        let serving = async move { own_store::serve(listener, &place, async { drop(stopped.await) }).await };
        let server = tokio::spawn(serving);
        let peer = if id == 1 { Peer::open(address).await } else { Peer::new(address, known.clone()) };
        assert_eq!(peer.build(id).await.1, "built", "the second process goes on with the session of the first");
        known = peer.headers.clone();
        drop(peer);
        stop.send(()).unwrap();
        timeout(PATIENCE, server).await.expect("the server ends").unwrap().unwrap();
    }
    // Threads of the store may be at work in it.
    let _ = std::fs::remove_dir_all(folder);
}
