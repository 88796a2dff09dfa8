//! The live page, for operators.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::HeaderName;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use tailrope_core::engine::{Engine, LiveAnswer, live_answer};
use tower_service::Service;

/// Answers operators: a page that shows the sessions, calls, connections and tasks of these engines while they run. No payload is
/// on it, but who calls what: put it behind your own authentication. A tower service, for `axum::Router::route_service`.
///
/// ```
/// use tailrope_server::{Engine, Live, Options};
///
/// let engine = Engine::new(Options::default());
/// let live = Live::of([engine.clone()]);
/// # let _ = live;
/// ```
#[derive(Clone, Debug)]
pub struct Live(Vec<Engine>);

impl Live {
    /// For these engines together.
    pub fn of(engines: impl IntoIterator<Item = Engine>) -> Self {
        Self(engines.into_iter().collect())
    }
}

impl<B> Service<Request<B>> for Live {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let snapshots = || self.0.iter().filter_map(Engine::live_snapshot).collect();
        let LiveAnswer { status, headers, body } =
            live_answer(request.method().as_str(), request.uri().query(), snapshots);
        let mut response = Response::new(Full::new(body.into()));
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
        for (name, value) in headers {
            if let Ok(value) = HeaderValue::try_from(value) {
                response.headers_mut().insert(HeaderName::from_static(name), value);
            }
        }
        ready(Ok(response))
    }
}

#[cfg(test)]
mod tests {
    use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
    use http::{HeaderMap, Method};
    use http_body::Body as _;
    use tailrope_core::engine::Options;

    use super::*;

    fn asked(live: &mut Live, method: Method, uri: &str) -> (u16, HeaderMap, u64) {
        let request = Request::builder().method(method).uri(uri).body(()).unwrap();
        let (parts, body) = live.call(request).into_inner().unwrap().into_parts();
        (parts.status.as_u16(), parts.headers, body.size_hint().exact().unwrap())
    }

    #[test]
    fn the_page_and_its_snapshots_are_answered_at_one_address() {
        let engine = Engine::new(Options::default());
        let mut live = Live::of([engine.clone()]);
        let (status, headers, page) = asked(&mut live, Method::GET, "/live");
        assert_eq!((status, &headers[CONTENT_TYPE]), (200, &HeaderValue::from_static("text/html; charset=utf-8")));
        assert!(headers[CONTENT_SECURITY_POLICY].to_str().unwrap().starts_with("default-src 'none'; "));
        let (status, headers, snapshot) = asked(&mut live, Method::GET, "/live?snapshot=1");
        assert_eq!((status, &headers[CONTENT_TYPE]), (200, &HeaderValue::from_static("application/json")));
        assert!(page > 10_000 && (500..10_000).contains(&snapshot), "{page} {snapshot}");
        assert_eq!(asked(&mut live, Method::POST, "/live").0, 405);
        engine.close();
        assert_eq!(asked(&mut live, Method::GET, "/live?snapshot").2, r#"{"engines":[]}"#.len() as u64);
    }
}
