//! Answers: how they start, and what they carry.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use tailrope_core::engine::{self, Chunk};
use tailrope_core::exchange::AnswerHead;
use tailrope_core::protocol::{Dialect, Refusal};

use crate::pages::Pages;
use crate::service::SESSION_ID;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The body of an answer: known as a whole, or the events of a stream as they come.
pub struct ResponseBody(Kind);

enum Kind {
    Whole(Option<Bytes>),
    Stream { first: Option<Bytes>, pages: Option<Box<Pages>> },
    Other(Pin<Box<dyn Body<Data = Bytes, Error = Infallible> + Send>>),
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

    /// What somebody else answers.
    pub(crate) fn other(body: impl Body<Data = Bytes, Error = Infallible> + Send + 'static) -> Self {
        Self(Kind::Other(Box::pin(body)))
    }
}

/// All that is ready leaves as one.
fn joined(chunks: Vec<Chunk>) -> Bytes {
    let mut chunks = chunks;
    match chunks.len() {
        1 => match chunks.remove(0) {
            Chunk::Own(bytes) => bytes.into(),
            Chunk::Shared(bytes) => Bytes::from_owner(bytes),
        },
        _ => {
            let mut bytes = Vec::with_capacity(chunks.iter().map(|chunk| chunk.as_ref().len()).sum());
            chunks.iter().for_each(|chunk| bytes.extend_from_slice(chunk.as_ref()));
            bytes.into()
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = match &mut self.0 {
            Kind::Whole(bytes) => bytes.take(),
            Kind::Other(body) => return body.as_mut().poll_frame(cx),
            Kind::Stream { first, .. } if first.is_some() => first.take(),
            Kind::Stream { pages, .. } => match pages {
                None => None,
                Some(open) => {
                    let page = ready!(open.poll(cx));
                    if page.end.is_some() {
                        *pages = None;
                    }
                    Some(joined(page.chunks)).filter(|bytes| !bytes.is_empty())
                }
            },
        };
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole(bytes) => bytes.is_none(),
            Kind::Stream { first, pages } => first.is_none() && pages.is_none(),
            Kind::Other(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Kind::Stream { first, pages: None } => {
                SizeHint::with_exact(first.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Kind::Stream { .. } => SizeHint::default(),
            Kind::Other(body) => body.size_hint(),
        }
    }
}

fn answer(head: &AnswerHead, session_id: &str, body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(head.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    if let Some(content_type) = head.content_type {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    if head.content_type == AnswerHead::EVENT_STREAM.content_type {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
        // Proxies that buffer would hold events back (W-030).
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    }
    if let Some(id) = Some(session_id).filter(|id| head.names_session && !id.is_empty())
        && let Ok(id) = HeaderValue::from_str(id)
    {
        headers.insert(SESSION_ID, id);
    }
    if let Some(retry_after_s) = head.retry_after_s() {
        headers.insert(RETRY_AFTER, retry_after_s.into());
    }
    response
}

/// The answer to a request that opens no connection.
pub(crate) fn empty(head: &AnswerHead, session_id: &str) -> Response<ResponseBody> {
    answer(head, session_id, ResponseBody(Kind::Whole(None)))
}

/// The answer to a request that is not taken.
pub(crate) fn refused(refusal: &Refusal, dialect: &Dialect, session_id: &str) -> Response<ResponseBody> {
    let head = AnswerHead::refused(refusal, dialect);
    let mut response = answer(&head, session_id, ResponseBody::whole(refusal.body(dialect)));
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    if let Some(allow) = refusal.allow {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    }
    response
}

/// The answer that a connection carries. Waits for its first bytes, so that the head leaves with them.
pub(crate) async fn connection(mut pages: Pages, session_id: &str) -> Response<ResponseBody> {
    let engine::Poll { head, chunks, end, .. } = pages.next().await;
    // The first page has it.
    let head = head.unwrap_or(AnswerHead::EMPTY);
    let first = Some(joined(chunks)).filter(|bytes| !bytes.is_empty());
    let pages = if end.is_some() { None } else { Some(Box::new(pages)) };
    answer(&head, session_id, ResponseBody(Kind::Stream { first, pages }))
}
