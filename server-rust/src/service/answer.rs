//! Answers: how they start, and what they carry.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use tailrope_core::engine::{self, Guest};
use tailrope_core::exchange::AnswerHead;
use tailrope_core::protocol::{Dialect, Refusal};

use crate::pages::Pages;
use crate::service::SESSION_ID;
use crate::service::unwritten::{TooLong, Unwritten};
use crate::source::Source;

const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
/// How many headers a stream of events has.
const HEADERS: usize = 4;

/// The body of an answer: known as a whole, or the events of a stream as they come.
///
/// If the engine has a `max_connection_ms`, a reader that takes nothing for that long is cut off: the body ends with
/// [`Stalled`]. Such a reader is recognised by the frames that the HTTP server has not dropped yet. There are four of
/// them at most, of up to 64 KiB each.
pub struct ResponseBody(Kind);

/// The reader took nothing for as long as a connection may last (the option `max_connection_ms`). What was not sent can
/// still be resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stalled;

impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader took nothing for max_connection_ms, so its connection is cut off")
    }
}

impl Error for Stalled {}

enum Kind {
    Whole(Option<Bytes>),
    Stream(Box<Events>),
    Other { body: Pin<Box<dyn Body<Data = Bytes, Error = Infallible> + Send + Sync>>, _guest: Guest },
}

/// What a connection carries.
struct Events {
    source: Source,
    /// An event stream has no length: middleware may change it.
    has_length: bool,
    /// None if a connection may last for ever.
    unwritten: Option<Box<Unwritten>>,
}

impl Events {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Stalled>>> {
        let Self { source, unwritten, .. } = self;
        let Some(counted) = unwritten else { return source.poll_bytes(cx).map(|bytes| bytes.map(Ok)) };
        loop {
            match ready!(counted.poll_part(cx)) {
                Ok(Some(part)) => return Poll::Ready(Some(Ok(part))),
                Ok(None) => match ready!(source.poll_bytes(cx)) {
                    Some(bytes) => counted.push(bytes),
                    None if counted.is_taken() => return Poll::Ready(None),
                    None => return Poll::Pending,
                },
                Err(TooLong) => {
                    // Dropping the old source tells the engine that the connection is gone.
                    (*source, *unwritten) = (Source::over(), None);
                    return Poll::Ready(Some(Err(Stalled)));
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        self.source.is_over() && self.unwritten.as_ref().is_none_or(|unwritten| unwritten.is_taken())
    }

    /// The size of what is left, if it is known and may be told.
    fn size(&self) -> Option<usize> {
        if !self.has_length {
            return None;
        }
        match &self.unwritten {
            // Without a size, the HTTP server goes on asking until everything is written.
            Some(_) => self.is_over().then_some(0),
            None => self.source.size(),
        }
    }
}

impl fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseBody")
    }
}

impl ResponseBody {
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self(Kind::Whole(Some(bytes.into()).filter(|bytes: &Bytes| !bytes.is_empty())))
    }

    /// An answer that another service has made. `guest` is dropped with it.
    pub(crate) fn other(
        body: impl Body<Data = Bytes, Error = Infallible> + Send + Sync + 'static,
        guest: Guest,
    ) -> Self {
        Self(Kind::Other { body: Box::pin(body), _guest: guest })
    }
}

/// Empty: what middleware answers with when it does not ask the service.
impl Default for ResponseBody {
    fn default() -> Self {
        Self(Kind::Whole(None))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Stalled;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Stalled>>> {
        let bytes = match &mut self.0 {
            Kind::Whole(bytes) => bytes.take().map(Ok),
            Kind::Stream(events) => ready!(events.poll(cx)),
            Kind::Other { body, .. } => {
                let frame = ready!(body.as_mut().poll_frame(cx));
                return Poll::Ready(frame.map(|frame| frame.map_err(|never| match never {})));
            }
        };
        Poll::Ready(bytes.map(|bytes| bytes.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole(bytes) => bytes.is_none(),
            Kind::Stream(events) => events.is_over(),
            Kind::Other { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        let size = match &self.0 {
            Kind::Whole(bytes) => Some(bytes.as_ref().map_or(0, Bytes::len)),
            Kind::Stream(events) => events.size(),
            Kind::Other { body, .. } => return body.size_hint(),
        };
        size.map_or_else(SizeHint::default, |size| SizeHint::with_exact(size as u64))
    }
}

fn answer(head: &AnswerHead, session_id: Option<&HeaderValue>, body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(head.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.reserve(HEADERS);
    if let Some(content_type) = head.content_type {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    if head.content_type == AnswerHead::EVENT_STREAM.content_type {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
        // Proxies that buffer would hold events back (W-030).
        headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    }
    if let Some(id) = session_id.filter(|id| head.names_session && !id.is_empty()) {
        headers.insert(SESSION_ID, id.clone());
    }
    if let Some(retry_after_s) = head.retry_after_s() {
        headers.insert(RETRY_AFTER, retry_after_s.into());
    }
    response
}

/// The answer to a request that opens no connection.
pub(crate) fn empty(head: &AnswerHead, session_id: Option<&HeaderValue>) -> Response<ResponseBody> {
    answer(head, session_id, ResponseBody::default())
}

/// The answer to a request that is not taken.
pub(crate) fn refused(
    refusal: &Refusal,
    dialect: &Dialect,
    session_id: Option<&HeaderValue>,
) -> Response<ResponseBody> {
    let head = AnswerHead::refused(refusal, dialect);
    let mut response = answer(&head, session_id, ResponseBody::whole(refusal.body(dialect)));
    if let Some(allow) = refusal.allow {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    }
    response
}

/// The answer to a call. Lets the handler begin first: then what the handler sends at once goes together with the first
/// event, into the log and to the client.
pub(crate) async fn call(pages: Pages, session_id: Option<&HeaderValue>) -> Response<ResponseBody> {
    tokio::task::yield_now().await;
    connection(pages, session_id).await
}

/// The answer that a connection carries. Waits for the first bytes, so that the head leaves with them.
pub(crate) async fn connection(mut pages: Pages, session_id: Option<&HeaderValue>) -> Response<ResponseBody> {
    let engine::Poll { head, chunks, end, .. } = pages.next().await;
    // The first page has the head.
    let head = head.unwrap_or(AnswerHead::EMPTY);
    let unwritten = pages.patience().map(|patience| Box::new(Unwritten::new(patience)));
    let source = Source::new(chunks, end.is_none().then_some(pages));
    let has_length = head.content_type != AnswerHead::EVENT_STREAM.content_type;
    answer(&head, session_id, ResponseBody(Kind::Stream(Box::new(Events { source, has_length, unwritten }))))
}
