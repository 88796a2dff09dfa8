//! Who sends a request, and to which server.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::request::Parts;
use http::{HeaderName, HeaderValue};
use serde_json::Value;
use tailrope_core::engine::Engine;
use tailrope_core::exchange::{Principal, Requester, Unidentified, server_name};

/// A user's own function, called with the head of a request.
type Told<T> = Arc<dyn Fn(&Parts) -> Option<T> + Send + Sync>;

/// Says whose a session is: which server has it, and which user has opened it. A request to another server, or from
/// another user, does not find the session (docs/security.md).
///
/// ```
/// use tailrope_server::{Identity, ServiceConfig};
///
/// let identity = Identity::default().server_name("/mcp").principal(|parts| {
///     // What middleware in front of the endpoint has found out.
///     parts.extensions.get::<String>().cloned()
/// });
/// let config = ServiceConfig::default().identity(identity);
/// # let _ = config;
/// ```
#[derive(Clone, Default)]
pub struct Identity {
    pub(crate) server_name: Option<String>,
    named: Option<Told<String>>,
    user: Option<Told<Value>>,
    log_user: Option<Told<String>>,
}

/// Names of users must not get into a log.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

impl Identity {
    /// Names the server, in case several servers share an event store. All processes of one server have to give the
    /// same name, for example its path.
    #[must_use]
    pub fn server_name(self, server_name: impl Into<String>) -> Self {
        Self { server_name: Some(server_name.into()), ..self }
    }

    /// Names the user of a request, by the request's head. Without a name, what [`user`](Self::user) gives says who the
    /// user is, and otherwise the credentials in the request's headers do.
    #[must_use]
    pub fn principal(self, named: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { named: Some(Arc::new(named)), ..self }
    }

    /// Gives what authentication in front of the endpoint has left about the user, for example in the request's
    /// extensions: a name, or an object of claims. Only those count that name the user, or say where the name is valid
    /// (docs/security.md).
    #[must_use]
    pub fn user(self, user: impl Fn(&Parts) -> Option<Value> + Send + Sync + 'static) -> Self {
        Self { user: Some(Arc::new(user)), ..self }
    }

    /// Names the user of a request in the log. Without it the name of [`principal`](Self::principal) stands there. A name that
    /// holds a credential of the request is left out.
    #[must_use]
    pub fn log_user(self, name: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { log_user: Some(Arc::new(name)), ..self }
    }

    /// The name of the server that a request is for.
    pub(crate) fn server<'a>(&'a self, parts: &Parts) -> Cow<'a, str> {
        match &self.server_name {
            Some(name) => name.into(),
            None => server_name(parts.uri.path(), None).into(),
        }
    }

    /// Whether it says anything.
    #[cfg(feature = "rmcp")]
    pub(crate) fn is_set(&self) -> bool {
        self.server_name.is_some() || self.asks()
    }

    /// Whether the user's own functions say whose a request is.
    #[cfg(any(feature = "front", feature = "rmcp"))]
    pub(crate) fn asks(&self) -> bool {
        self.named.is_some() || self.user.is_some()
    }
}

/// Whether the log has said that the path may be no name.
#[derive(Default)]
pub(crate) struct Unnamed(AtomicBool);

impl Unnamed {
    /// Warns once that the path may be no name: a router in front of the endpoint may have taken the rest of it away. Then
    /// other servers that share the store have the same name, and serve the sessions of this one.
    pub(crate) fn warn(&self, identity: &Identity, parts: &Parts, engine: &Engine) {
        let is_unnamed = identity.server_name.is_none() && matches!(parts.uri.path(), "" | "/");
        if is_unnamed && engine.outlives_process() && !self.0.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: "tailrope",
                "the path of this server is /. If another server shares its event store, or a router hides a part of the \
                 path (axum's nest_service), give each server a name: Identity::server_name"
            );
        }
    }
}

/// The text of a header. A value that is not ASCII is read as Latin-1, so that the header is never taken for absent.
pub(crate) fn text(value: &HeaderValue) -> Cow<'_, str> {
    match value.to_str() {
        Ok(text) => text.into(),
        Err(_) => value.as_bytes().iter().map(|byte| char::from(*byte)).collect(),
    }
}

/// What a request says about its sender.
pub(crate) struct Sender<'a> {
    engine: &'a Engine,
    named: Option<String>,
    log_user: Option<String>,
    user_json: Option<String>,
    credentials: Vec<(&'a str, Cow<'a, str>)>,
}

impl<'a> Sender<'a> {
    pub(crate) fn of(parts: &'a Parts, identity: &Identity, engine: &'a Engine) -> Self {
        // One pass over the request's headers: looking up each name takes longer.
        let credential = |(name, value): (&'a HeaderName, &'a HeaderValue)| {
            let counts = engine.options().is_identity_header(name.as_str());
            counts.then(|| (name.as_str(), text(value)))
        };
        Self {
            engine,
            named: identity.named.as_ref().and_then(|named| named(parts)),
            log_user: identity.log_user.as_ref().and_then(|named| named(parts)),
            user_json: identity.user.as_ref().and_then(|user| user(parts)).map(|user| user.to_string()),
            credentials: parts.headers.iter().filter_map(credential).collect(),
        }
    }

    /// Calls `with` with what the engine has to know about the sender.
    pub(crate) fn ask<T>(&self, with: impl FnOnce(Requester<'_>) -> T) -> T {
        let credentials: Vec<(&str, &str)> = self.credentials.iter().map(|(name, value)| (*name, &**value)).collect();
        let (named, user_json) = (self.named.as_deref(), self.user_json.as_deref());
        with(Requester { named, user_json, log_user: self.log_user.as_deref(), credentials: &credentials })
    }

    /// The principal; none if the request says nothing about its sender.
    ///
    /// # Errors
    /// [`Unidentified`]: the request has to be refused.
    pub(crate) fn principal(&self) -> Result<Option<Principal>, Unidentified> {
        self.ask(|requester| self.engine.principal_of(&requester))
    }
}
