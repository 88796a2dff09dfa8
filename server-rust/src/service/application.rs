//! What serves the messages of sessions.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body_util::Full;
use tailrope_core::engine::{Guest, SessionHandle};
use tailrope_core::exchange::{Admission, Terms};
use tailrope_core::protocol::Envelope;
use tailrope_core::protocol::jsonrpc::{self, Body};

use crate::hearing::Ears;
use crate::host::Host;
use crate::service::{Posts, ResponseBody};
use crate::table::Table;

const ONE_MESSAGE: &str = "a body has to be one message: batches are not served";

/// A session that has just been opened, for its handlers.
pub struct Begun<'a, S> {
    pub(crate) session: SessionHandle,
    pub(crate) ears: &'a Ears,
    pub(crate) host: &'a Arc<Host>,
    /// Where the handlers will be found. They take themselves out when their session has ended.
    pub(crate) table: &'a Arc<Table<S>>,
    /// The path of the request that opened the session here.
    pub(crate) path: &'a str,
    /// The terms for requests that other processes relay to the session.
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
    fn begin(&self, begun: &Begun<'_, Self::Session>) -> std::io::Result<Arc<Self::Session>>;

    /// Serves a request of revision 2026-07-28. None if the application cannot. Drops `guest` when it is over.
    fn serve_modern(&self, _request: Request<Full<Bytes>>, _guest: Guest) -> Option<Served> {
        None
    }

    /// Ends the requests of revision 2026-07-28 that run.
    fn end_modern(&self) {}
}

/// The handlers of one session. Nothing here waits except [`room`](Self::room).
pub trait Handlers: Send + Sync + 'static {
    /// A message, as the handlers take it.
    type Message: Send;

    /// The session that the handlers serve.
    fn session(&self) -> &SessionHandle;

    /// What serves the requests that other processes relay to the session.
    fn posts(&self) -> &Posts;

    /// Reads a message. `envelope` is what the engine has read of it in `body`; `parts` is the head of the HTTP request
    /// that brought it.
    ///
    /// # Errors
    /// What is wrong with it.
    fn read(&self, parts: Parts, envelope: &Envelope, body: &[u8]) -> Result<Self::Message, String>;

    /// Reads the message of an admitted body, with the ids that the handlers know.
    ///
    /// # Errors
    /// What is wrong with it.
    fn read_admitted(&self, parts: Parts, admission: &Admission, body: &[u8]) -> Result<Self::Message, String> {
        match (admission.rewritten(), admission.envelopes()) {
            (Some(given), _) => self.read_body(parts, given),
            (None, [envelope]) => self.read(parts, envelope, body),
            (None, _) => Err(ONE_MESSAGE.to_owned()),
        }
    }

    /// Reads the message of a body.
    ///
    /// # Errors
    /// What is wrong with it.
    fn read_body(&self, parts: Parts, body: &[u8]) -> Result<Self::Message, String> {
        match jsonrpc::read(body).map_err(|error| error.to_string())? {
            Body::Single(envelope) => self.read(parts, &envelope, body),
            Body::Batch(_) => Err(ONE_MESSAGE.to_owned()),
        }
    }

    /// Whether another message can be taken (I11).
    fn has_room(&self) -> bool;

    /// Waits until another message can be taken.
    fn room(&self) -> impl Future<Output = ()> + Send;

    /// Takes a request that is in flight. Returns whether it was taken.
    fn call(&self, message: Self::Message) -> bool;

    /// Takes the `initialize` that opened the session.
    fn open(&self, message: Self::Message) {
        self.call(message);
    }

    /// Takes a message that the client has sent to the session's handlers before these. Its answer goes nowhere.
    fn replay(&self, message: Self::Message);

    /// Takes a message that has no answer. Returns false if the session has ended.
    fn take(&self, admission: &Admission, message: Self::Message) -> bool;
}
