//! One MCP session as a client has it, and one call over all its connections, as a correct client makes them.

mod run;

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tailrope_core::protocol::Revision;

use crate::wire::{Endpoint, Exchange, NoAnswer};
pub(crate) use run::Run;

pub(crate) const NEWEST: Revision = Revision::V2025_11_25;
pub(crate) const OLDER: Revision = Revision::V2025_06_18;
/// Has no resumption.
pub(crate) const MODERN: Revision = Revision::V2026_07_28;
pub(crate) const CLIENT: &str = "tailrope-probe";

/// Which stream was read, as far as that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stream {
    Request(u64),
    Standalone,
}

/// Request ids are given, never counted here: two sessions use the same ones on purpose.
pub(crate) struct Session {
    endpoint: Rc<Endpoint>,
    timeout: Duration,
    /// Tells the progress of this session from that of another.
    pub(crate) name: &'static str,
    id: RefCell<Option<String>>,
    revision: RefCell<Option<String>>,
    /// Every stream that was read, for what its events' ids say.
    streams: RefCell<Vec<(Stream, Rc<Exchange>)>>,
    opened: RefCell<Vec<Rc<Exchange>>>,
}

impl Session {
    pub(crate) fn new(endpoint: Rc<Endpoint>, timeout: Duration, name: &'static str) -> Self {
        let (id, revision) = (RefCell::default(), RefCell::default());
        Self { endpoint, timeout, name, id, revision, streams: RefCell::default(), opened: RefCell::default() }
    }

    /// With these, whether the server gave them or not.
    pub(crate) fn pretending(self, id: Option<String>, revision: Option<String>) -> Self {
        Self { id: RefCell::new(id), revision: RefCell::new(revision), ..self }
    }

    pub(crate) fn id(&self) -> Option<String> {
        self.id.borrow().clone()
    }

    pub(crate) fn revision(&self) -> Option<String> {
        self.revision.borrow().clone()
    }

    pub(crate) fn is_of(&self, revision: Revision) -> bool {
        self.revision.borrow().as_deref() == Some(revision.as_str())
    }

    /// The revision as it is said in a report.
    pub(crate) fn shown_revision(&self) -> String {
        self.revision().unwrap_or_else(|| "none".to_owned())
    }

    fn headers(&self) -> Vec<(&'static str, String)> {
        let given = [("mcp-session-id", self.id()), ("mcp-protocol-version", self.revision())];
        given.into_iter().filter_map(|(name, value)| value.map(|value| (name, value))).collect()
    }

    pub(crate) async fn post(&self, message: Value, within: Duration) -> Result<Rc<Exchange>, NoAnswer> {
        let mut headers = self.headers();
        headers.push(("accept", "application/json, text/event-stream".to_owned()));
        headers.push(("content-type", "application/json".to_owned()));
        if self.is_of(MODERN) {
            headers.push(("mcp-method", message["method"].as_str().unwrap_or_default().to_owned()));
            let params = &message["params"];
            let name = params["name"].as_str().or_else(|| params["taskId"].as_str());
            headers.extend(name.map(|name| ("mcp-name", name.to_owned())));
        }
        let exchange = self.endpoint.send(Method::POST, &headers, Some(message.to_string()), within).await?;
        Ok(self.record(exchange, message["id"].as_u64().map(Stream::Request)))
    }

    pub(crate) async fn request(&self, id: u64, method: &str) -> Result<Rc<Exchange>, NoAnswer> {
        self.post(json!({"jsonrpc": "2.0", "id": id, "method": method}), self.timeout).await
    }

    pub(crate) async fn request_with(&self, id: u64, method: &str, params: Value) -> Result<Rc<Exchange>, NoAnswer> {
        self.post(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}), self.timeout).await
    }

    /// The stream is the one that the cursor is of, where that is known.
    pub(crate) async fn get(&self, cursor: Option<&str>, stream: Option<Stream>) -> Result<Rc<Exchange>, NoAnswer> {
        let mut headers = self.headers();
        headers.push(("accept", "text/event-stream".to_owned()));
        if let Some(cursor) = cursor {
            headers.push(("last-event-id", cursor.to_owned()));
        }
        Ok(self.record(self.endpoint.send(Method::GET, &headers, None, self.timeout).await?, stream))
    }

    pub(crate) async fn delete(&self) -> Result<Rc<Exchange>, NoAnswer> {
        Ok(self.record(self.endpoint.send(Method::DELETE, &self.headers(), None, self.timeout).await?, None))
    }

    fn record(&self, exchange: Rc<Exchange>, stream: Option<Stream>) -> Rc<Exchange> {
        self.opened.borrow_mut().push(Rc::clone(&exchange));
        if let Some(stream) = stream {
            self.streams.borrow_mut().push((stream, Rc::clone(&exchange)));
        }
        exchange
    }

    /// Initializes, as far as the answer allows it: without a result there is no revision afterwards.
    pub(crate) async fn open(&self, revision: Revision) -> Result<Rc<Exchange>, NoAnswer> {
        let params = json!({
            "protocolVersion": revision.as_str(),
            "capabilities": {},
            "clientInfo": {"name": CLIENT, "version": "1"},
        });
        let exchange = self.request_with(0, "initialize", params).await?;
        exchange.answered(self.timeout).await;
        let message = exchange.json();
        if let (200, Some(revision)) =
            (exchange.status, message.get("result").and_then(|it| it["protocolVersion"].as_str()))
        {
            self.id.replace(exchange.header("mcp-session-id").map(str::to_owned));
            self.revision.replace(Some(revision.to_owned()));
        }
        Ok(exchange)
    }

    pub(crate) async fn notify(&self, method: &str) -> Result<Rc<Exchange>, NoAnswer> {
        let exchange = self.post(json!({"jsonrpc": "2.0", "method": method}), self.timeout).await?;
        exchange.over(self.timeout).await;
        Ok(exchange)
    }

    pub(crate) fn cut(&self) {
        for exchange in self.opened.borrow().iter() {
            exchange.cut();
        }
    }

    /// What was read of which stream, one connection after the other.
    pub(crate) fn read(&self) -> Vec<(Stream, Rc<Exchange>)> {
        self.streams.borrow().clone()
    }

    pub(crate) fn given_ids(&self) -> HashSet<String> {
        let read = self.read();
        read.iter()
            .flat_map(|(_, it)| it.blocks().iter().filter_map(|block| block.id.clone()).collect::<Vec<_>>())
            .collect()
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }
}
