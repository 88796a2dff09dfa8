//! What serves the messages of sessions.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body_util::Full;
use tailrope_core::engine::SessionHandle;
use tailrope_core::exchange::{Admission, Terms};

use crate::hearing::Ears;
use crate::host::Host;
use crate::service::{Posts, ResponseBody};

/// A session that has just been opened, for its handlers.
pub struct Begun<'a> {
    pub(crate) session: SessionHandle,
    pub(crate) ears: &'a Ears,
    pub(crate) host: &'a Arc<Host>,
    /// For what other processes relay to the session.
    pub(crate) terms: Terms<'static>,
}

pub(crate) type Served = Pin<Box<dyn Future<Output = Response<ResponseBody>> + Send>>;

/// A server: it makes the handlers of each session.
pub trait Application: Send + Sync + 'static {
    /// The handlers of one session.
    type Session: Handlers;

    /// A session has begun.
    ///
    /// # Errors
    /// The user's factory failed.
    fn begin(&self, begun: &Begun<'_>) -> std::io::Result<Arc<Self::Session>>;

    /// Serves a request of 2026-07-28, where it can. `served` is what to answer.
    fn serve_modern(&self, _request: Request<Full<Bytes>>) -> Option<Served> {
        None
    }
}

/// The handlers of one session. Nothing here waits but for room.
pub trait Handlers: Send + Sync + 'static {
    /// A message as they take it.
    type Message: Send;

    /// Their session.
    fn session(&self) -> &SessionHandle;

    /// Where they serve what other processes relay to it.
    fn posts(&self) -> &Posts;

    /// Reads a message, of which it is known whether it is a request. `parts` are the head of the HTTP request that brought it.
    ///
    /// # Errors
    /// What is wrong with it.
    fn read(&self, parts: Parts, body: &[u8], is_request: bool) -> Result<Self::Message, String>;

    /// Waits until another message can be taken (I11).
    fn room(&self) -> impl Future<Output = ()> + Send;

    /// Takes a request that is in flight.
    fn call(&self, message: Self::Message) -> bool;

    /// Takes what the client has told to the session's handlers before these: their answers go nowhere.
    fn replay(&self, message: Self::Message);

    /// Takes a message that has no answer.
    fn take(&self, admission: &Admission, message: Self::Message) -> bool;
}
