//! The MCP endpoint in each of its flavours.

use std::sync::Arc;

use axum::Router;
use axum::http::request::Parts;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::Value;
use tailrope_server::{Drain, Engine, Identity, RmcpServer, ServiceConfig, Sessions, TailropeService};
use tokio_util::sync::CancellationToken;

use crate::options::Options;
use crate::tools::{Lab, Tools};

const PATH: &str = "/mcp";

/// What authentication left, if the header `x-test-user` is believed.
fn left(parts: &Parts) -> Option<Value> {
    serde_json::from_slice(parts.headers.get("x-test-user")?.as_bytes()).ok()
}

/// What is served, and how it ends.
#[derive(Clone)]
pub(crate) struct Serving {
    over: CancellationToken,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    Stock,
    Rmcp(Arc<Sessions>),
    Tower(TailropeService<RmcpServer<Tools>>),
}

/// What the header `x-test-name` says.
fn named(parts: &Parts) -> Option<String> {
    parts.headers.get("x-test-name").and_then(|name| name.to_str().ok()).map(str::to_owned)
}

impl Serving {
    /// The endpoint of a flavour, at this port.
    pub(crate) fn new(
        flavor: &str,
        port: u16,
        options: &Options,
        engine: Option<&Engine>,
        lab: &Arc<Lab>,
    ) -> Result<(Self, Router), String> {
        let over = CancellationToken::new();
        let mut config = StreamableHttpServerConfig::default().with_cancellation_token(over.clone());
        if flavor == "rmcp" {
            // Its events would come before ours.
            config = config.with_sse_retry(None);
        }
        if !options.guard {
            config = config.disable_allowed_hosts();
        }
        if let Some(size) = options.max_request_body_size {
            config = config.with_max_request_body_bytes(size);
        }
        let tools = Tools(Arc::clone(lab));
        let factory = move || Ok(tools.clone());
        // The router hides the path.
        let mut identity = Identity::default().server_name(PATH);
        if options.own_auth {
            identity = identity.principal(named).user(left);
        }
        let (router, kind) = match (flavor, engine) {
            ("stock", _) => {
                let manager: Arc<LocalSessionManager> = LocalSessionManager::default().into();
                (Router::new().nest_service(PATH, StreamableHttpService::new(factory, manager, config)), Kind::Stock)
            }
            ("tower", Some(engine)) => {
                let mut config = ServiceConfig::default()
                    .prefer_resumable(options.prefers_resumable())
                    .json_response(options.json_response)
                    .relayed_headers(options.relayed_headers())
                    .identity(identity);
                if options.guard {
                    let hosts = [format!("127.0.0.1:{port}")];
                    config = config.allowed_hosts(hosts).allowed_origins(["http://127.0.0.1"]);
                }
                if let Some(size) = options.max_request_body_size {
                    config = config.max_body_bytes(size);
                }
                let service = TailropeService::new(factory, engine.clone(), config);
                (Router::new().nest_service(PATH, service.clone()), Kind::Tower(service))
            }
            ("rmcp", Some(engine)) => {
                let sessions = Sessions::new(engine.clone()).with_identity(identity).with_adoption(factory.clone());
                let sessions = Arc::new(sessions);
                let service = StreamableHttpService::new(factory, Arc::clone(&sessions), config);
                (Router::new().nest_service(PATH, service), Kind::Rmcp(sessions))
            }
            _ => return Err(format!("there is no flavour {flavor:?}")),
        };
        Ok((Self { over, kind }, router))
    }

    /// Lets go of every connection.
    pub(crate) async fn drain(&self, options: &Value) {
        let number = |name: &str| options[name].as_u64();
        let mut drain = Drain::default();
        drain.retry_ms = number("retry_ms").and_then(|ms| ms.try_into().ok());
        drain.spread_ms = number("spread_ms").and_then(|ms| ms.try_into().ok());
        drain.within_ms = number("within_ms");
        match &self.kind {
            Kind::Stock => {}
            Kind::Rmcp(sessions) => drop(sessions.drain(drain).await),
            Kind::Tower(service) => drop(service.drain(drain).await),
        }
    }

    /// Ends what is left.
    pub(crate) fn end(&self) {
        self.over.cancel();
    }
}
