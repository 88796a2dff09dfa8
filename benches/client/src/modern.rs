//! Clients of revision 2026-07-28 that take tasks: what a call costs that ends before it would be one, and what a poll costs.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::http::{Connection, Result};
use crate::measure::{Settings, Tally, side_by_side};
use crate::session::{IDLE_REUSE, next_id};

const REVISION: &str = "2026-07-28";
const EXTENSION: &str = "io.modelcontextprotocol/tasks";
/// Requests of each client that are not counted: with 16 clients, V8 has compiled what they run.
const WARM_REQUESTS: usize = 200;
/// The call that is polled ends long after the measurement.
const LIVING_S: u32 = 600;

/// One client. There are no sessions.
struct Client {
    port: u16,
    connection: Option<(Connection, Instant)>,
}

impl Client {
    fn new(port: u16) -> Self {
        Self { port, connection: None }
    }

    /// The result of one request.
    async fn ask(&mut self, method: &str, name: Option<&str>, mut params: Value) -> Result<Value> {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": REVISION,
            "io.modelcontextprotocol/clientInfo": {"name": "tailrope-bench-client", "version": "0"},
            "io.modelcontextprotocol/clientCapabilities": {"extensions": {EXTENSION: {}}},
        });
        let body = json!({"jsonrpc": "2.0", "id": next_id(), "method": method, "params": params}).to_string();
        let name = name.map(|name| format!("mcp-name: {name}\r\n")).unwrap_or_default();
        let request = format!(
            "POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{}\r\naccept: application/json, text/event-stream\r\n\
             content-type: application/json\r\nmcp-protocol-version: {REVISION}\r\nmcp-method: {method}\r\n{name}\
             content-length: {}\r\n\r\n{body}",
            self.port,
            body.len()
        );
        let mut connection = match self.connection.take() {
            Some((connection, used)) if used.elapsed() < IDLE_REUSE => connection,
            _ => Connection::open(self.port).await?,
        };
        let head = connection.request(request.as_bytes()).await?;
        let mut text = Vec::new();
        while connection.read_body(&mut text).await? {}
        if connection.is_reusable() {
            self.connection = Some((connection, Instant::now()));
        }
        if head.status != 200 || head.event_stream {
            return Err(format!("{method} is answered {}: {}", head.status, String::from_utf8_lossy(&text)).into());
        }
        let mut answer: Value = serde_json::from_slice(&text)?;
        Ok(answer["result"].take())
    }

    async fn echo(&mut self) -> Result<()> {
        let text = format!("hello {}", next_id());
        let result = self.ask("tools/call", Some("echo"), json!({"name": "echo", "arguments": {"text": text}})).await?;
        if result["content"][0]["text"] == text.as_str() { Ok(()) } else { Err(format!("echo gave {result}").into()) }
    }

    async fn list(&mut self) -> Result<()> {
        let result = self.ask("tools/list", None, json!({})).await?;
        if result["tools"].is_array() { Ok(()) } else { Err(format!("tools/list gave {result}").into()) }
    }

    async fn poll(&mut self, task: &str) -> Result<()> {
        let result = self.ask("tasks/get", Some(task), json!({"taskId": task})).await?;
        if result["status"] == "working" { Ok(()) } else { Err(format!("a poll gave {result}").into()) }
    }

    /// A task that lives on; none where the server makes none.
    async fn task(&mut self) -> Result<Option<String>> {
        let discovered = self.ask("server/discover", None, json!({})).await?;
        if discovered["capabilities"]["extensions"].get(EXTENSION).is_none() {
            return Ok(None);
        }
        let call = json!({"name": "wait", "arguments": {"seconds": LIVING_S}});
        let result = self.ask("tools/call", Some("wait"), call).await?;
        let id = result["taskId"].as_str().ok_or_else(|| format!("wait gave {result}"))?;
        // Its progress is stored.
        sleep(Duration::from_millis(300)).await;
        Ok(Some(id.to_owned()))
    }
}

/// What a client asks again and again.
enum Asked {
    Echo,
    List,
    Poll(String),
}

impl Asked {
    async fn once(&self, client: &mut Client) -> Result<()> {
        match self {
            Self::Echo => client.echo().await,
            Self::List => client.list().await,
            Self::Poll(task) => client.poll(task).await,
        }
    }
}

async fn measured(set: Settings, measure: &str, asked: Vec<Asked>) -> Result<Value> {
    let mut clients = Vec::new();
    for asked in asked {
        let mut client = Client::new(set.port);
        for _ in 0..WARM_REQUESTS {
            asked.once(&mut client).await?;
        }
        clients.push((client, asked));
    }
    side_by_side(set, measure, clients, |(mut client, asked), until| async move {
        let mut tally = Tally::default();
        while Instant::now() < until && tally.faults < 10 {
            let start = Instant::now();
            match asked.once(&mut client).await {
                Ok(()) => tally.took.push(start.elapsed()),
                Err(e) => tally.fault(e.to_string()),
            }
        }
        tally
    })
    .await
}

/// Calls that end before they would be tasks.
pub(crate) async fn quick(set: Settings, clients: usize) -> Result<Value> {
    measured(set, "quick", (0..clients).map(|_| Asked::Echo).collect()).await
}

/// Polls of tasks that run, one for each client; where there are none, lists of tools.
pub(crate) async fn polls(set: Settings, clients: usize) -> Result<Value> {
    let mut asked = Vec::new();
    for _ in 0..clients {
        asked.push(Client::new(set.port).task().await?.map_or(Asked::List, Asked::Poll));
    }
    measured(set, "polls", asked).await
}
