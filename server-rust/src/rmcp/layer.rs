//! Who calls rmcp's service. rmcp passes no more than the session id and the message to a session manager, so a layer
//! around the service shows the HTTP request.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use http::Request;
use http::request::Parts;
use rmcp::model::ClientJsonRpcMessage;
use tailrope_core::engine::{Engine, SessionHandle};
use tailrope_core::exchange::{Principal, Unidentified};
use tokio::task::futures::TaskLocalFuture;
use tower_layer::Layer;
use tower_service::Service;

use crate::rmcp::error::SessionsError;
use crate::rmcp::messages::parts_of;
use crate::sender::{Identity, Sender, Unnamed};

/// The path of a request that no layer has shown.
const NO_PATH: &str = "/";

tokio::task_local! {
    /// The head of the request. rmcp calls its session manager in the future that answers the request. Only to close a
    /// session whose loop is over, it calls from a task that it has spawned, and there is no request.
    static REQUEST: Arc<Parts>;
}

/// A tower layer around rmcp's `StreamableHttpService`, made by [`Sessions::layer`](crate::Sessions::layer).
#[derive(Clone, Copy, Debug)]
pub struct SessionsLayer(());

impl SessionsLayer {
    pub(crate) fn new() -> Self {
        Self(())
    }
}

impl<S> Layer<S> for SessionsLayer {
    type Service = WithRequest<S>;

    fn layer(&self, service: S) -> WithRequest<S> {
        WithRequest(service)
    }
}

/// A service behind a [`SessionsLayer`].
#[derive(Clone, Debug)]
pub struct WithRequest<S>(S);

impl<S: Service<Request<B>>, B> Service<Request<B>> for WithRequest<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = TaskLocalFuture<Arc<Parts>, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let shown = Arc::new(parts.clone());
        REQUEST.scope(shown, self.0.call(Request::from_parts(parts, body)))
    }
}

/// The request that a call of rmcp's is about.
pub(crate) struct Caller {
    /// None if no layer has shown it.
    pub(crate) parts: Option<Arc<Parts>>,
    /// None if it says nothing about its sender, or was not shown: then the request is nobody's.
    pub(crate) principal: Result<Option<Principal>, Unidentified>,
}

impl Caller {
    /// Whether a request is being served that a layer has shown.
    pub(crate) fn is_shown() -> bool {
        REQUEST.try_with(|_| ()).is_ok()
    }

    pub(crate) fn path(&self) -> &str {
        self.parts.as_deref().map_or(NO_PATH, |parts| parts.uri.path())
    }
}

/// Says who calls, and which server.
#[derive(Default)]
pub(crate) struct Callers {
    identity: Identity,
    unnamed: Unnamed,
    /// Whether the log has said that the layer is missing.
    has_warned: AtomicBool,
}

impl Callers {
    pub(crate) fn new(identity: Identity) -> Self {
        Self { identity, ..Self::default() }
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The caller now. A task that is spawned has none.
    pub(crate) fn now(&self, engine: &Engine) -> Caller {
        let parts = REQUEST.try_with(Arc::clone).ok();
        if parts.is_none() && (self.identity.is_set() || engine.outlives_process()) {
            self.warn_not_shown();
        }
        let principal = parts.as_deref().map_or(Ok(None), |parts| self.principal(parts, engine));
        Caller { parts, principal }
    }

    /// The caller who opens a session.
    pub(crate) fn first(&self, engine: &Engine) -> Caller {
        let caller = self.now(engine);
        if let Some(parts) = &caller.parts {
            self.unnamed.warn(&self.identity, parts, engine);
        }
        caller
    }

    /// The name of the server that is called.
    pub(crate) fn server<'a>(&'a self, caller: &Caller) -> Cow<'a, str> {
        match &caller.parts {
            Some(parts) => self.identity.server(parts),
            None => self.identity.server_name.as_deref().unwrap_or_default().into(),
        }
    }

    /// Checks that what rmcp shows of a message's request says the same of the user as the layer. If not, the layer is
    /// missing, or something inside of it authenticates. rmcp shows nothing if the message is an answer of the client.
    pub(crate) fn check(
        &self,
        engine: &Engine,
        session: &SessionHandle,
        message: &ClientJsonRpcMessage,
    ) -> Result<(), SessionsError> {
        let is_same = |parts| self.principal(parts, engine).is_ok_and(|user| session.belongs_to(user.as_ref()));
        if parts_of(message).is_none_or(is_same) {
            return Ok(());
        }
        self.warn_not_shown();
        Err(SessionsError::NotShown)
    }

    fn principal(&self, parts: &Parts, engine: &Engine) -> Result<Option<Principal>, Unidentified> {
        Sender::of(parts, &self.identity, engine).principal()
    }

    fn warn_not_shown(&self) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: "tailrope",
                "`Sessions` is not shown whose requests rmcp's service gets: put `Sessions::layer()` around the service, \
                 inside of what authenticates (in axum, add it to the router before the layer that authenticates). Until \
                 then no session belongs to a user, and a request with a credential opens none"
            );
        }
    }
}
