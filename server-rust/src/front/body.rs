//! Bodies on their way through the front.

use std::error::Error;
use std::fmt;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::task::JoinHandle;
use tokio::time::{Sleep, sleep};

use super::proxy::PEER;
use crate::service::ResponseBody;
use crate::service::reading::BoxError;

/// The client sent nothing for too long, in the middle of a body.
#[derive(Debug)]
pub(super) struct TooSlow;

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the client sent nothing for body_timeout_ms in the middle of a body")
    }
}

impl Error for TooSlow {}

/// The body of a client's request: what was read of it, and what is still to come.
pub(super) struct RequestBody {
    read: Bytes,
    rest: Option<Incoming>,
    patience: Duration,
    /// None while nobody waits.
    timer: Option<Pin<Box<Sleep>>>,
}

impl RequestBody {
    pub(super) fn new(rest: Incoming, patience: Duration) -> Self {
        Self { read: Bytes::new(), rest: Some(rest), patience, timer: None }
    }

    /// A body that was read to its end.
    pub(super) fn whole(read: Bytes) -> Self {
        Self { read, rest: None, patience: Duration::ZERO, timer: None }
    }

    /// Puts back what was read.
    pub(super) fn put_back(&mut self, read: Bytes) {
        self.read = read;
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if !this.read.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut this.read)))));
        }
        let Some(rest) = &mut this.rest else { return Poll::Ready(None) };
        if let Poll::Ready(frame) = pin!(rest).poll_frame(cx) {
            this.timer = None;
            return Poll::Ready(frame.map(|frame| {
                let mut frame = frame?;
                if let Some(trailers) = frame.trailers_mut() {
                    // Some servers take trailers for headers.
                    trailers.remove(PEER);
                }
                Ok(frame)
            }));
        }
        let timer = this.timer.get_or_insert_with(|| Box::pin(sleep(this.patience)));
        ready!(timer.as_mut().poll(cx));
        this.timer = None;
        Poll::Ready(Some(Err(TooSlow.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_empty() && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.read.len() as u64;
        let rest = self.rest.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + read);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + read);
        }
        hint
    }
}

/// The task that drives a connection to the application. The connection ends when this is dropped.
pub(super) struct Driver(pub(super) JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The body of an answer.
pub(super) enum AnswerBody {
    /// The front's own.
    Own(ResponseBody),
    /// One of the application, as it comes.
    App { body: Incoming, _driver: Driver },
}

impl AnswerBody {
    pub(super) fn empty() -> Self {
        Self::Own(ResponseBody::default())
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Own(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Self::App { body, .. } => Pin::new(body).poll_frame(cx).map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(body) => body.is_end_stream(),
            Self::App { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(body) => body.size_hint(),
            Self::App { body, .. } => body.size_hint(),
        }
    }
}
