//! One MCP session of revision 2025-11-25, on as few TCP connections as its answers allow.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::check::{self, Call};
use crate::http::{Connection, Head, Result};
use crate::sse::Events;

const REVISION: &str = "2025-11-25";
/// Below the 5 s after which uvicorn closes an idle connection, so that a request never meets its end.
pub(crate) const IDLE_REUSE: Duration = Duration::from_secs(2);

/// Above the time of the slowest emit on the slowest server.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Ids are unique over all sessions: stock stores name a stream by the request id alone.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

pub(crate) fn set_first_id(id: u64) {
    NEXT_ID.store(id, Ordering::Relaxed);
}

pub(crate) fn next_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// How reading of a stream ended.
#[derive(PartialEq)]
pub(crate) enum End {
    Closed,
    Response,
}

pub(crate) struct Session {
    port: u16,
    headers: String,
    connection: Option<(Connection, Instant)>,
}

impl Session {
    pub(crate) async fn open(port: u16) -> Result<Self> {
        let mut session = Self { port, headers: String::new(), connection: None };
        session.initialize().await?;
        Ok(session)
    }

    /// Open a session on the TCP connection of another one, so that a count of sessions is not one of connections.
    pub(crate) async fn open_beside(&mut self) -> Result<Self> {
        let mut session = Self { port: self.port, headers: String::new(), connection: self.connection.take() };
        session.initialize().await?;
        self.connection = session.connection.take();
        Ok(session)
    }

    /// The same session, asked for at another process.
    pub(crate) fn at(&self, port: u16) -> Self {
        Self { port, headers: self.headers.clone(), connection: None }
    }

    async fn initialize(&mut self) -> Result<()> {
        let params = json!({"protocolVersion": REVISION, "capabilities": {},
            "clientInfo": {"name": "tailrope-bench-client", "version": "0"}});
        let message = json!({"jsonrpc": "2.0", "id": next_id(), "method": "initialize", "params": params});
        let (mut connection, head) = self.post(&message).await?;
        let id = head.session_id.ok_or("initialize gave no session id")?;
        let mut events = Events::default();
        read(&mut connection, &mut events).await?;
        let answer: Value = serde_json::from_slice(events.events.last().map_or(b"", |event| events.data(event)))?;
        if answer["result"]["protocolVersion"] != REVISION {
            return Err(format!("initialize answered {answer}").into());
        }
        self.keep(connection, &mut events).await?;
        self.headers = format!("mcp-session-id: {id}\r\nmcp-protocol-version: {REVISION}\r\n");
        let (mut connection, _) = self.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await?;
        while connection.read_body(&mut events.text).await? {}
        self.keep(connection, &mut events).await
    }

    /// Close this session at the server.
    pub(crate) async fn delete(mut self) -> Result<()> {
        let request = format!("DELETE /mcp HTTP/1.1\r\nhost: 127.0.0.1:{}\r\n{}\r\n", self.port, self.headers);
        self.connection().await?.request(request.as_bytes()).await?;
        Ok(())
    }

    /// Call `echo`, `completed` and the like: one POST, answered on its own connection.
    pub(crate) async fn call(&mut self, id: u64, name: &str, arguments: Value) -> Result<Events> {
        let mut events = Events::default();
        self.call_into(&mut events, id, name, arguments).await?;
        Ok(events)
    }

    /// The same, into memory that the caller has made ready.
    pub(crate) async fn call_into(&mut self, events: &mut Events, id: u64, name: &str, arguments: Value) -> Result<()> {
        let answer = async {
            let mut connection = self.start(id, name, arguments).await?;
            if read(&mut connection, events).await? != End::Response {
                return Err(format!("{name}: the server closed the stream before the response").into());
            }
            self.keep(connection, events).await
        };
        timeout(CALL_TIMEOUT, answer).await.map_err(|_| format!("{name}: no end of the stream"))?
    }

    /// Call a tool and check all it sends.
    pub(crate) async fn checked_call(&mut self, name: &str, arguments: Value, call: &Call) -> Result<()> {
        let events = self.call(call.id, name, arguments).await?;
        check::check(call, &[&events])
    }

    /// Send the POST of a call; its stream is read by the caller.
    pub(crate) async fn start(&mut self, id: u64, name: &str, arguments: Value) -> Result<Connection> {
        let params = json!({"name": name, "arguments": arguments, "_meta": {"progressToken": id}});
        let message = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        let (connection, head) = self.post(&message).await?;
        if head.status != 200 || !head.event_stream {
            return Err(format!("{name} answered {}", head.status).into());
        }
        Ok(connection)
    }

    /// Open the standalone stream, or with a cursor resume the stream it belongs to.
    pub(crate) async fn get(&mut self, cursor: Option<&[u8]>) -> Result<Connection> {
        let cursor = match cursor {
            Some(id) => format!("last-event-id: {}\r\n", std::str::from_utf8(id)?),
            None => String::new(),
        };
        let request = format!(
            "GET /mcp HTTP/1.1\r\nhost: 127.0.0.1:{}\r\naccept: text/event-stream\r\n{}{cursor}\r\n",
            self.port, self.headers
        );
        let mut connection = self.connection().await?;
        let head = connection.request(request.as_bytes()).await?;
        if head.status != 200 || !head.event_stream {
            return Err(format!("GET answered {}", head.status).into());
        }
        Ok(connection)
    }

    /// Keep a connection for the next request after reading its answer to the end.
    pub(crate) async fn keep(&mut self, mut connection: Connection, events: &mut Events) -> Result<()> {
        while connection.read_body(&mut events.text).await? {}
        events.advance()?;
        if connection.is_reusable() {
            self.connection = Some((connection, Instant::now()));
        }
        Ok(())
    }

    async fn post(&mut self, message: &Value) -> Result<(Connection, Head)> {
        let body = message.to_string();
        let request = format!(
            "POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{}\r\naccept: application/json, text/event-stream\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n{}\r\n{body}",
            self.port,
            body.len(),
            self.headers
        );
        let mut connection = self.connection().await?;
        let head = connection.request(request.as_bytes()).await?;
        if !(200..300).contains(&head.status) {
            let mut text = Vec::new();
            while connection.read_body(&mut text).await? {}
            return Err(format!("POST answered {}: {}", head.status, String::from_utf8_lossy(&text)).into());
        }
        Ok((connection, head))
    }

    async fn connection(&mut self) -> Result<Connection> {
        match self.connection.take() {
            Some((connection, used)) if used.elapsed() < IDLE_REUSE => Ok(connection),
            _ => Connection::open(self.port).await,
        }
    }
}

/// Read events until the response, or until the server ends the body.
pub(crate) async fn read(connection: &mut Connection, events: &mut Events) -> Result<End> {
    loop {
        let open = connection.read_body(&mut events.text).await?;
        if events.advance()? {
            return Ok(End::Response);
        }
        if !open {
            return Ok(End::Closed);
        }
    }
}
