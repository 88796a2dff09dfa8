//! What `examples/rust` shows, over sockets and with our client.

#[path = "../../examples/rust/axum_rmcp.rs"]
mod axum_rmcp;

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt as _;
use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};
use tailrope_client::{Event, HttpClient, Options, Posted};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(60);

/// Posts a message, and gives what came for it.
async fn post(client: &HttpClient, headers: &HeaderMap, message: Value) -> Vec<Value> {
    let Posted::Events(mut events) = client.post(headers, message.to_string().into()).await.unwrap() else {
        return Vec::new();
    };
    let mut messages = Vec::new();
    while let Some(event) = timeout(PATIENCE, events.next()).await.unwrap() {
        match event {
            Event::Message { data, .. } => messages.push(serde_json::from_str(&data).unwrap()),
            Event::Opened => {}
            other => panic!("{other:?}"),
        }
    }
    messages
}

/// Opens a session, and gives its id: the client leaves sessions to its user.
async fn open(address: SocketAddr) -> HeaderValue {
    let hello = json!({
        "jsonrpc": "2.0", "id": 0, "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" },
        },
    });
    let (hello, mut socket) = (hello.to_string(), TcpStream::connect(address).await.unwrap());
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n",
        hello.len()
    );
    socket.write_all((head + &hello).as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, socket.read_to_string(&mut answer)).await.unwrap().unwrap();
    let id = answer.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).expect("a session");
    HeaderValue::from_str(id).unwrap()
}

#[tokio::test]
async fn axum_with_rmcp_in_one_changed_line() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(axum_rmcp::serve(listener));
    let client = HttpClient::http(format!("http://{address}/mcp").parse().unwrap(), Options::default()).unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("mcp-session-id", open(address).await);
    headers.insert("mcp-protocol-version", HeaderValue::from_static("2025-11-25"));
    post(&client, &headers, json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
    let call = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": "build", "arguments": {}, "_meta": { "progressToken": "p" } },
    });
    let messages = post(&client, &headers, call).await;
    let progress: Vec<_> = messages.iter().filter_map(|message| message["params"]["progress"].as_f64()).collect();
    assert_eq!(progress, [1.0, 2.0, 3.0, 4.0, 5.0], "nothing is lost and nothing comes twice");
    assert_eq!(messages.last().unwrap()["result"]["content"][0]["text"], "built");
    server.abort();
}
