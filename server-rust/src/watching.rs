//! What operators ask over HTTP: whether the process serves, and what it counted.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use tailrope_core::engine::{EXPOSITION_TYPE, Engine, Health, Stats};
use tower_service::Service;

type Answer = Response<Full<Bytes>>;

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

    fn answer(&self) -> Answer {
        let health = Health::of_all(self.0.iter().map(Engine::health));
        let status = StatusCode::from_u16(health.http_status()).unwrap_or_default();
        answer(status, "application/json", health.to_json())
    }
}

/// Answers Prometheus with what these engines did and hold: [`Stats::exposition`], with the id of this process. A tower
/// service, for `axum::Router::route_service`.
///
/// ```
/// use tailrope_server::{Engine, Metrics, Options};
///
/// let engine = Engine::new(Options::default());
/// let metrics = Metrics::of([engine.clone()]);
/// # let _ = metrics;
/// ```
#[derive(Clone, Debug)]
pub struct Metrics(Vec<Engine>);

impl Metrics {
    /// For these engines together.
    pub fn of(engines: impl IntoIterator<Item = Engine>) -> Self {
        Self(engines.into_iter().collect())
    }

    fn answer(&self) -> Answer {
        let text = Stats::of_all(&self.0).exposition(&std::process::id().to_string());
        answer(StatusCode::OK, EXPOSITION_TYPE, text)
    }
}

fn answer(status: StatusCode, content_type: &'static str, body: String) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

macro_rules! service {
    ($name:ident) => {
        impl<B> Service<Request<B>> for $name {
            type Response = Answer;
            type Error = Infallible;
            type Future = Ready<Result<Answer, Infallible>>;

            fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
                Poll::Ready(Ok(()))
            }

            fn call(&mut self, _: Request<B>) -> Self::Future {
                ready(Ok(self.answer()))
            }
        }
    };
}

service!(Readyz);
service!(Metrics);
