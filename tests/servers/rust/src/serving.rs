//! The MCP endpoint in each of its flavours.

use std::convert::Infallible;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::http::request::Parts;
use axum::response::IntoResponse;
use rmcp::transport::streamable_http_server::session::store::EventStore;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::{Value, json};
use tailrope_server::front::{AppAddress, Front, FrontOptions};
use tailrope_server::{Drain, Engine, Identity, RmcpServer, ServiceConfig, Sessions, TailropeService};
use tokio_util::sync::CancellationToken;
use tower_service::Service;

use crate::options::Options;
use crate::plain_store::PlainStore;
use crate::stock::Stock;
use crate::tools::{Lab, Tools};

const PATH: &str = "/mcp";

/// The service at its path, or at every path.
fn routed<S>(options: &Options, service: S) -> Router
where
    S: Service<Request<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Response: IntoResponse,
    S::Future: Send + 'static,
{
    if options.any_path { Router::new().fallback_service(service) } else { Router::new().nest_service(PATH, service) }
}

/// What authentication left, if the header `x-test-user` is believed.
fn left(parts: &Parts) -> Option<Value> {
    serde_json::from_slice(parts.headers.get("x-test-user")?.as_bytes()).ok()
}

/// What is served, and how it ends.
#[derive(Clone)]
pub(crate) enum Serving {
    Stock(Option<Arc<PlainStore>>, CancellationToken),
    Rmcp(Arc<Sessions>),
    Tower(TailropeService<RmcpServer<Tools>>),
}

/// What verification of the token leaves; the servers of the other languages have the same users.
fn verified(parts: &Parts) -> Option<Value> {
    let user = match parts.headers.get("authorization")?.to_str().ok()? {
        "Bearer alice-token" | "Bearer alice-second-token" => "alice",
        "Bearer bob-token" => "bob",
        _ => return None,
    };
    Some(json!({ "clientId": user, "sub": user }))
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
        let mut config = StreamableHttpServerConfig::default();
        let retry = Duration::from_millis(options.retry_ms.into());
        // Its events would come before ours.
        config = config.with_sse_retry(if engine.is_some() { None } else { Some(retry) });
        if !options.guard {
            config = config.disable_allowed_hosts();
        }
        if let Some(size) = options.max_request_body_size {
            config = config.with_max_request_body_bytes(size);
        }
        let tools = Tools(Arc::clone(lab));
        let factory = move || Ok(tools.clone());
        // The router hides the path, unless there is none.
        let mut identity = if options.any_path { Identity::default() } else { Identity::default().server_name(PATH) };
        if options.own_auth {
            identity = identity.principal(named).user(left);
        } else if options.auth {
            identity = identity.user(verified);
        }
        Ok(match (flavor, engine) {
            (_, None) => {
                let has_store = flavor != "rmcp-cache";
                let store = has_store.then(|| Arc::new(PlainStore::new(options.cap)));
                let as_rmcp = store.clone().map(|store| -> Arc<dyn EventStore> { store });
                let stock = Arc::new(Stock::new(as_rmcp, retry, options.idle()));
                let over = CancellationToken::new();
                let service = StreamableHttpService::new(factory, stock, config.with_cancellation_token(over.clone()));
                (Self::Stock(store, over), Router::new().nest_service(PATH, service))
            }
            ("tower" | "tower-front", Some(engine)) => {
                let mut config = ServiceConfig::default()
                    .prefer_resumable(options.prefers_resumable())
                    .json_response(options.json_response)
                    .relayed_headers(options.relayed_headers())
                    .identity(identity);
                config = match options.guard {
                    true => {
                        let hosts = [format!("127.0.0.1:{port}")];
                        config.allowed_hosts(hosts).allowed_origins(["http://127.0.0.1"])
                    }
                    false => config.any_host(),
                };
                if let Some(size) = options.max_request_body_size {
                    config = config.max_body_bytes(size);
                }
                let service = TailropeService::new(factory, engine.clone(), config);
                (Self::Tower(service.clone()), routed(options, service))
            }
            ("rmcp", Some(engine)) => {
                let sessions = Sessions::new(engine.clone()).with_identity(identity).with_adoption(factory.clone());
                let sessions = Arc::new(sessions);
                let service = StreamableHttpService::new(factory, Arc::clone(&sessions), config);
                (Self::Rmcp(sessions), routed(options, service).layer(Sessions::layer()))
            }
            _ => return Err(format!("there is no flavour {flavor:?}")),
        })
    }

    /// Puts a front before an application on this socket, which has the service inside.
    pub(crate) fn front(&self, listener: TcpListener, app: &Path, options: &Options) -> Result<Arc<Front>, String> {
        let Self::Tower(service) = self else { return Err("only our service goes behind a front".to_owned()) };
        let mut front = FrontOptions::new(AppAddress::Unix(app.to_owned()));
        front.listeners.push(listener);
        service.behind(front, (!options.any_path).then_some(PATH)).map_err(|error| error.to_string())
    }

    /// Lets go of every connection.
    pub(crate) async fn drain(&self, options: &Value) {
        let number = |name: &str| options[name].as_u64();
        let mut drain = Drain::default();
        drain.retry_ms = number("retry_ms");
        drain.spread_ms = number("spread_ms");
        drain.within_ms = number("within_ms");
        match self {
            Self::Stock(_, over) => over.cancel(),
            Self::Rmcp(sessions) => drop(sessions.drain(drain).await),
            Self::Tower(service) => drop(service.drain(drain).await),
        }
    }

    /// The store of rmcp's own session manager.
    pub(crate) fn plain_store(&self) -> Option<&PlainStore> {
        match self {
            Self::Stock(store, _) => store.as_deref(),
            Self::Rmcp(_) | Self::Tower(_) => None,
        }
    }
}
