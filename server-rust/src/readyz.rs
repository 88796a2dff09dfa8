//! Whether the process serves, for load balancers.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use tailrope_core::engine::{Engine, Health};
use tower_service::Service;

/// Answers load balancers: 200 while these engines serve, 503 while requests should go elsewhere, with the
/// [health](Health) as JSON. A tower service, for `axum::Router::route_service`.
///
/// ```
/// use tailrope_server::{Engine, Options, Readyz};
///
/// let engine = Engine::new(Options::default());
/// let readyz = Readyz::of([engine.clone()]);
/// # let _ = readyz;
/// ```
#[derive(Clone, Debug)]
pub struct Readyz(Vec<Engine>);

impl Readyz {
    /// For these engines together.
    pub fn of(engines: impl IntoIterator<Item = Engine>) -> Self {
        Self(engines.into_iter().collect())
    }
}

impl<B> Service<Request<B>> for Readyz {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        let health = Health::of_all(self.0.iter().map(Engine::health));
        let mut response = Response::new(Full::new(health.to_json().into()));
        *response.status_mut() = StatusCode::from_u16(health.http_status()).unwrap_or_default();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        ready(Ok(response))
    }
}
