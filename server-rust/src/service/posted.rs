//! Requests that other processes relay to a session of this process. Its handlers get them as if they had come here.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Uri};
use tailrope_core::engine::{Posted, SessionHandle};
use tailrope_core::exchange::{Action, Fault, Relayed, RelayedMethod, Terms};
use tailrope_core::protocol::Dialect;
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use crate::sender::text;
use crate::service::{Handlers, SESSION_ID};

/// How the requests that were relayed to a session are served: in the order in which they came, and on the runtime of
/// its other requests, because a wake-up may come on any thread.
pub struct Posts {
    runtime: Handle,
    turn: Mutex<()>,
    terms: Terms<'static>,
    path: Box<str>,
}

impl Posts {
    /// For a session that is opened on the current runtime, by a request to this path.
    pub(crate) fn new(terms: Terms<'static>, path: &str) -> Self {
        Self { runtime: Handle::current(), turn: Mutex::default(), terms, path: path.into() }
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}

/// Serves the requests that were relayed to a session, if there are any.
pub(crate) fn serve_posted(handlers: &Arc<impl Handlers>) {
    if handlers.session().has_posted() {
        let served = Arc::clone(handlers);
        handlers.posts().runtime.spawn(async move {
            let _turn = served.posts().turn.lock().await;
            for posted in served.session().take_posted() {
                serve(&*served, served.session(), &served.posts().terms, &posted);
            }
        });
    }
}

fn serve(handlers: &impl Handlers, session: &SessionHandle, terms: &Terms<'_>, posted: &Posted) {
    let Some(admission) = posted.admit(terms) else { return };
    if admission.action() == Action::Delete {
        return session.delete();
    }
    let relayed = posted.relayed();
    if admission.is_for_nobody() {
        session.received(&admission);
        return posted.done();
    }
    let is_call = admission.action() == Action::Call;
    let parts = parts(handlers, relayed.headers());
    let message = match handlers.read_admitted(parts, &admission, relayed.body()) {
        Ok(message) => message,
        Err(why) => return posted.refuse(&Fault::InvalidMessage(&why).refusal(&Dialect::NEUTRAL)),
    };
    if !is_call {
        handlers.take(&admission, message);
        posted.done();
    } else if posted.begin(&admission) {
        handlers.call(message);
    }
}

/// What is relayed of a request to the process that has its session: also the headers in `more`. `parts` is its head, if
/// it is known.
pub(crate) fn relayed(method: RelayedMethod, body: Bytes, parts: Option<&Parts>, more: &[String]) -> Relayed {
    let headers = parts.into_iter().flat_map(|parts| &parts.headers);
    let headers: Vec<_> = headers.map(|(name, value)| (name.as_str(), text(value))).collect();
    let more: Vec<&str> = more.iter().map(|name| &**name).collect();
    Relayed::new(method, body, headers.iter().map(|(name, value)| (*name, &**value)), &more, None)
}

/// What handlers see of a request that did not come to this process, or not now: the path of the request that opened
/// the session here, the session id, and these headers.
pub(crate) fn parts<'a>(handlers: &impl Handlers, headers: impl IntoIterator<Item = (&'a str, &'a str)>) -> Parts {
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::try_from(&*handlers.posts().path).unwrap_or_default();
    let own = [(SESSION_ID, handlers.session().id()), (CONTENT_TYPE, "application/json")];
    let others = headers.into_iter().filter_map(|(name, value)| Some((HeaderName::try_from(name).ok()?, value)));
    for (name, value) in others.chain(own) {
        if let Ok(value) = HeaderValue::try_from(value) {
            request.headers_mut().append(name, value);
        }
    }
    request.into_parts().0
}
