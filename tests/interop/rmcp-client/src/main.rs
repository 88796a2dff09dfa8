//! The unmodified `rmcp` client, driven by a test: `tailrope-interop-rmcp-client [--tasks] [--line]`.
//!
//! With `--tasks` it speaks 2026-07-28 and follows tasks.
//!
//! Orders come on stdin and what the client shows its user goes to stdout, one JSON object in a line; `driver.py`
//! beside this crate says which there are. Nothing is configured but the address, and with `--line` the HTTP client.

// Logging left the newest revision, which this client does not speak here.
#![allow(deprecated)]

mod tasks;

use std::collections::HashMap;
use std::io::BufRead;
use std::sync::{Arc, Mutex};

use rmcp::model::{
    CallToolRequestParams, ClientConfig, ClientRequest, CustomRequest, LoggingMessageNotificationParam,
    ProgressNotificationParam, ProgressToken, ProtocolVersion, Request,
};
use rmcp::service::{NotificationContext, Peer, PeerRequestOptions};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, ClientLifecycleMode, ClientServiceExt, RoleClient};
use serde_json::{Value, json};
use tailrope_client::{Options, Resumable};
use tokio::sync::mpsc;

/// The calls by the tokens that the client gave them.
type Calls = Arc<Mutex<HashMap<ProgressToken, String>>>;

fn show(line: &Value) {
    println!("{line}");
}

/// What the program was started with.
#[derive(Clone, Copy)]
struct Way {
    has_line: bool,
    has_tasks: bool,
}

struct Shown {
    calls: Calls,
    way: Way,
}

// Both methods print before they return their future: the client runs the futures on tasks of their own.
impl ClientHandler for Shown {
    fn get_info(&self) -> ClientConfig {
        if self.way.has_tasks { tasks::config() } else { ClientConfig::default() }
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let call = self.calls.lock().unwrap().get(&params.progress_token).cloned();
        show(&json!({"call": call, "progress": params.progress as u64}));
    }

    async fn on_logging_message(&self, params: LoggingMessageNotificationParam, _: NotificationContext<RoleClient>) {
        show(&json!({"log": params.data}));
    }
}

/// The request that an order asks for: a call of the tool `script`, or any method.
fn request(order: &Value) -> ClientRequest {
    if let Some(method) = order["method"].as_str() {
        return ClientRequest::CustomRequest(CustomRequest::new(method, None));
    }
    let arguments = json!({"steps": order["steps"]});
    let params =
        CallToolRequestParams::new("script").with_arguments(arguments.as_object().cloned().unwrap_or_default());
    ClientRequest::CallToolRequest(Request::new(params))
}

async fn ask(client: &Peer<RoleClient>, calls: &Calls, name: &str, order: &Value) -> Value {
    if order.get("tool").is_some() {
        return match tasks::call(client, order).await {
            Ok(result) => answer_of(name, &result),
            Err(fault) => json!({"call": name, "error": fault.to_string()}),
        };
    }
    let handle = match client.send_cancellable_request(request(order), PeerRequestOptions::no_options()).await {
        Ok(handle) => handle,
        Err(fault) => return json!({"call": name, "error": fault.to_string()}),
    };
    calls.lock().unwrap().insert(handle.progress_token.clone(), name.to_owned());
    match handle.await_response().await {
        Ok(result) => answer_of(name, &serde_json::to_value(result).unwrap_or_default()),
        Err(fault) => json!({"call": name, "error": fault.to_string()}),
    }
}

fn answer_of(name: &str, result: &Value) -> Value {
    let kind = if result["isError"] == true { "error" } else { "result" };
    json!({"call": name, kind: result["content"][0]["text"]})
}

/// Standard input has no asynchronous face that is worth its features.
fn orders() -> mpsc::UnboundedReceiver<Value> {
    let (send, receive) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let Ok(order) = serde_json::from_str(&line) else { break };
            if send.send(order).is_err() {
                break;
            }
        }
    });
    receive
}

/// One client, until an order closes it.
async fn drive(
    url: String,
    way: Way,
    orders: &mut mpsc::UnboundedReceiver<Value>,
) -> Result<(), Box<dyn std::error::Error>> {
    let calls = Calls::default();
    let shown = Shown { calls: Arc::clone(&calls), way };
    let lifecycle = if way.has_tasks {
        ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] }
    } else {
        ClientLifecycleMode::Initialize
    };
    let mut client = if way.has_line {
        let http = Resumable::new(reqwest::Client::new(), Options::default())?
            .statuses(|error: &reqwest::Error| error.status().map(|status| status.as_u16()));
        let config = StreamableHttpClientTransportConfig::with_uri(url);
        shown.serve_with_lifecycle(StreamableHttpClientTransport::with_client(http, config), lifecycle).await?
    } else {
        shown.serve_with_lifecycle(StreamableHttpClientTransport::from_uri(url), lifecycle).await?
    };
    let revision = client.peer().peer_info().map(|info| info.protocol_version.to_string());
    show(&json!({"connected": revision}));
    while let Some(order) = orders.recv().await {
        let Some(name) = order["call"].as_str().map(str::to_owned) else { break };
        let (peer, calls) = (client.peer().clone(), Arc::clone(&calls));
        tokio::spawn(async move { show(&ask(&peer, &calls, &name, &order).await) });
    }
    client.close().await?;
    show(&json!({"closed": true}));
    Ok(())
}

async fn run(way: Way) -> Result<(), Box<dyn std::error::Error>> {
    let mut orders = orders();
    while let Some(order) = orders.recv().await {
        let url = order["connect"].as_str().ok_or("the first order is to connect")?.to_owned();
        drive(url, way, &mut orders).await?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let has = |wanted: &str| std::env::args().any(|option| option == wanted);
    let way = Way { has_line: has("--line"), has_tasks: has("--tasks") };
    // One thread: the client starts a task for each notification, and only here do they run in the order of arrival.
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(run(way))
}
