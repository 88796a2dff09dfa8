//! A tower service that speaks MCP Streamable HTTP: the engine decides, this carries bytes.

pub(crate) mod answer;
mod application;
#[cfg(feature = "front")]
mod behind;
mod endpoint;
pub(crate) mod headers;
mod hosts;
mod posted;
pub(crate) mod reading;
mod tasks;
mod unwritten;

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderName, Request, Response};
use tailrope_core::engine::Engine;
use tower_service::Service;

pub use answer::{ResponseBody, Stalled};
pub(crate) use application::{Application, Begun, Handlers, Served};
use endpoint::Endpoint;
pub(crate) use posted::{Posts, parts, relayed, serve_posted};
use reading::BoxError;

use crate::close::Drain;
use crate::sender::Identity;

pub(crate) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");

/// What can be set on a [`TailropeService`]. Pacing, bounds and the store are the engine's [`Options`](crate::Options).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServiceConfig {
    /// Names in `Host` that are served. If the list is empty, any name is served. A name without a port is served on
    /// any port. By default these are the names of the machine itself, `localhost`, `127.0.0.1` and `::1`: otherwise a
    /// foreign web page could reach the server by a name of its own (DNS rebinding). If your clients use other names,
    /// list them.
    pub allowed_hosts: Vec<String>,
    /// Values of `Origin` that are served. If the list is empty, any value is served. A request without `Origin` does
    /// not come from a web page, and is always served.
    pub allowed_origins: Vec<String>,
    /// How many bytes the body of a POST may have, 4 MiB by default. A larger body is answered with 413.
    pub max_body_bytes: usize,
    /// Revision 2026-07-28 cannot resume. Clients that speak it and take tasks (SEP-2663) are served in it, and their long
    /// calls become tasks. If this is set, as by default, all others get an answer that makes them fall back to 2025-11-25.
    /// Otherwise their requests are served without sessions, if the server has a way to do so.
    pub prefer_resumable: bool,
    /// Requests are answered with one JSON body. Such an answer is not stored, so a client cannot come back for it.
    pub json_response: bool,
    /// Further headers that go along when a request is relayed to the process that has its session. Headers with a
    /// credential never do.
    pub relayed_headers: Vec<String>,
    /// Whose the sessions are. If you give the server no name, the path of the request is its name. Behind a router
    /// that hides a part of the path, as axum's `nest_service` does, only the rest of the path is left. So give names
    /// to servers that are mounted in this way and share an event store.
    pub identity: Identity,
}

impl Default for ServiceConfig {
    fn default() -> Self {
        Self {
            allowed_hosts: ["localhost", "127.0.0.1", "::1"].map(Into::into).into(),
            allowed_origins: Vec::new(),
            max_body_bytes: 4 << 20,
            prefer_resumable: true,
            json_response: false,
            relayed_headers: Vec::new(),
            identity: Identity::default(),
        }
    }
}

impl ServiceConfig {
    /// Serves only requests to these names.
    #[must_use]
    pub fn allowed_hosts<T: Into<String>>(self, hosts: impl IntoIterator<Item = T>) -> Self {
        Self { allowed_hosts: hosts.into_iter().map(Into::into).collect(), ..self }
    }

    /// Serves requests to any name. Use this if something in front of the server checks the name.
    #[must_use]
    pub fn any_host(self) -> Self {
        Self { allowed_hosts: Vec::new(), ..self }
    }

    /// Serves only these values of `Origin`, and requests without `Origin`.
    #[must_use]
    pub fn allowed_origins<T: Into<String>>(self, origins: impl IntoIterator<Item = T>) -> Self {
        Self { allowed_origins: origins.into_iter().map(Into::into).collect(), ..self }
    }

    /// Takes bodies of `max_body_bytes` bytes at most.
    #[must_use]
    pub fn max_body_bytes(self, max_body_bytes: usize) -> Self {
        Self { max_body_bytes, ..self }
    }

    /// Whether clients are made to fall back from 2026-07-28.
    #[must_use]
    pub fn prefer_resumable(self, prefer_resumable: bool) -> Self {
        Self { prefer_resumable, ..self }
    }

    /// Whether requests are answered with one JSON body.
    #[must_use]
    pub fn json_response(self, json_response: bool) -> Self {
        Self { json_response, ..self }
    }

    /// Relays these headers to other processes, too.
    #[must_use]
    pub fn relayed_headers<T: Into<String>>(self, names: impl IntoIterator<Item = T>) -> Self {
        Self { relayed_headers: names.into_iter().map(Into::into).collect(), ..self }
    }

    /// Says whose the sessions are.
    #[must_use]
    pub fn identity(self, identity: Identity) -> Self {
        Self { identity, ..self }
    }
}

/// A service for one MCP endpoint, for axum, hyper and anything else that takes tower services. Cheap to clone; all
/// clones are one endpoint.
///
/// The engine decides the whole exchange: what is admitted, which status a refusal has, whose session it is, priming,
/// comments, gaps and resumption. Messages are encoded once. Everything that is ready leaves in one write. Events that
/// come less than a millisecond after a write are collected and leave together when the millisecond is over.
pub struct TailropeService<A: Application>(Arc<Endpoint<A>>);

impl<A: Application> Clone for TailropeService<A> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<A: Application> fmt::Debug for TailropeService<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TailropeService").finish_non_exhaustive()
    }
}

impl<A: Application> TailropeService<A> {
    pub(crate) fn of(application: A, engine: Engine, config: ServiceConfig) -> Self {
        Self(Arc::new(Endpoint::new(application, engine, config)))
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.0.host.engine
    }

    /// Closes every connection because the process is going away, and waits for the calls whose result another process
    /// could deliver. Clients come back, to this process or to another one with the same store.
    ///
    /// Returns whether nothing is left. Requests that come later are still served. So drain once more when the HTTP
    /// server has stopped: that waits for their calls, too.
    ///
    /// ```no_run
    /// # use tailrope_server::{Drain, Handler, JsonRpcServer, TailropeService};
    /// # async fn serve<H: Handler>(
    /// #     listener: tokio::net::TcpListener, app: axum::Router, service: TailropeService<JsonRpcServer<H>>,
    /// # ) -> std::io::Result<()> {
    /// let draining = service.clone();
    /// let stop = async move {
    ///     let _ = tokio::signal::ctrl_c().await;
    ///     draining.drain(Drain::default()).await;
    /// };
    /// axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    /// service.drain(Drain::default()).await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Requests of revision 2026-07-28, if any are served, have no session that could go on. They are waited for as long
    /// as calls, and then ended: a subscription would never end by itself.
    pub async fn drain(&self, drain: Drain) -> bool {
        self.0.drain(drain).await
    }
}

impl<A, B> Service<Request<B>> for TailropeService<A>
where
    A: Application,
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Always ready: a request for which there is no room gets an HTTP answer that says so.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        Box::pin(Arc::clone(&self.0).serve(request))
    }
}
