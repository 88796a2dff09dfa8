//! A tower service that speaks MCP Streamable HTTP: the engine decides, this carries bytes.

mod answer;
mod application;
mod endpoint;
mod headers;
mod hosts;
mod posted;
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
pub(crate) use posted::{Posts, serve_posted};

use crate::close::Drain;
use crate::sender::Identity;

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");

/// What can be set on a [`TailropeService`]. Pacing, bounds and the store are the engine's [`Options`](crate::Options).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServiceConfig {
    /// Names that the server is asked by, in `Host`: any where there is none. One without a port is served on each port. By default
    /// those of the machine itself, `localhost`, `127.0.0.1` and `::1`: a page of somebody else's could reach the server by a name of its
    /// own (DNS rebinding). Name those that your clients use.
    pub allowed_hosts: Vec<String>,
    /// Values of `Origin` that are served; any where there is none. A request without one does not come from a page.
    pub allowed_origins: Vec<String>,
    /// Bytes that the body of a POST may have: 4 MiB. A larger one is answered with 413.
    pub max_body_bytes: usize,
    /// Clients that would speak 2026-07-28, which cannot resume, are answered so that they fall back to 2025-11-25. Otherwise their
    /// requests are served without sessions, where the server has a way to do so.
    pub prefer_resumable: bool,
    /// Requests are answered with one JSON body. Nothing of such an answer is stored, and nobody can come back for it.
    pub json_response: bool,
    /// Further headers that a request brings along to the process that has its session, where it came to another one. Never a
    /// credential.
    pub relayed_headers: Vec<String>,
    /// Whose the sessions are. Without a name the server is called as the path of the request, and behind a router that hides a part
    /// of that, as axum's `nest_service` does, as the rest of it: name servers that are mounted in this way and share an event store.
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
    /// Serves requests to these names alone.
    #[must_use]
    pub fn allowed_hosts<T: Into<String>>(self, hosts: impl IntoIterator<Item = T>) -> Self {
        Self { allowed_hosts: hosts.into_iter().map(Into::into).collect(), ..self }
    }

    /// Serves requests to any name, where something in front of the server looks at it.
    #[must_use]
    pub fn any_host(self) -> Self {
        Self { allowed_hosts: Vec::new(), ..self }
    }

    /// Serves these values of `Origin` alone.
    #[must_use]
    pub fn allowed_origins<T: Into<String>>(self, origins: impl IntoIterator<Item = T>) -> Self {
        Self { allowed_origins: origins.into_iter().map(Into::into).collect(), ..self }
    }

    /// Takes bodies of so many bytes at most.
    #[must_use]
    pub fn max_body_bytes(self, max_body_bytes: usize) -> Self {
        Self { max_body_bytes, ..self }
    }

    /// Whether clients fall back from 2026-07-28.
    #[must_use]
    pub fn prefer_resumable(self, prefer_resumable: bool) -> Self {
        Self { prefer_resumable, ..self }
    }

    /// Whether requests are answered with one JSON body.
    #[must_use]
    pub fn json_response(self, json_response: bool) -> Self {
        Self { json_response, ..self }
    }

    /// Lets these headers travel to other processes, too.
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

/// A service of an MCP endpoint, for axum, hyper and whatever else takes tower's services. Cheap to clone; all clones are one endpoint.
///
/// The whole exchange is the engine's: what is admitted, which status a refusal has, whose session it is, priming, comments, gaps and
/// resumption. Messages are encoded once. All that is ready leaves in one write, with what follows it within a millisecond.
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

    /// Closes every connection because the process is going away, and waits for calls whose end another
    /// process could show. Clients come back, to this process or to another one with the same store.
    ///
    /// Returns whether nothing is left. A request that comes later is served all the same: drain once more when the HTTP server has
    /// stopped, and its call is waited for, too.
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
    pub async fn drain(&self, drain: Drain) -> bool {
        self.0.host.drain(drain).await
    }
}

impl<A, B> Service<Request<B>> for TailropeService<A>
where
    A: Application,
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: fmt::Display,
{
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // A request that finds no room is answered so in HTTP.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        Box::pin(Arc::clone(&self.0).serve(request))
    }
}
