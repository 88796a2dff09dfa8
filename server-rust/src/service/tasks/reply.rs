//! What the client of a call is answered: a response as the application made it, one JSON body, or a stream of events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::Full;
use tailrope_core::engine::Engine;
use tailrope_core::exchange::Fault;
use tailrope_core::protocol::{Dialect, Refusal, sse};
use tailrope_core::task::Reply;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::{Answer, json};
use crate::service::answer::ResponseBody;

/// Parts of an answer that wait for a slow client. With more, it is cut off.
const MAX_WAITING: usize = 1_024;

/// A part of an answer.
pub(super) enum Part {
    Reply(Reply),
    PassOn(Response<Bytes>),
}

/// The client's end of a call's answer. Dropping it says that the client is gone.
pub(super) struct Replies(Receiver<Part>);

pub(super) fn replies() -> (Sender<Part>, Replies) {
    let (sender, receiver) = channel(MAX_WAITING);
    (sender, Replies(receiver))
}

impl Replies {
    /// The answer, once it has begun.
    pub(super) async fn answer(mut self, engine: &Engine) -> Result<Answer, Refusal> {
        match self.0.recv().await {
            Some(Part::PassOn(response)) => {
                let guest = engine.guest();
                Ok(response.map(|body| ResponseBody::other(Full::new(body), guest)))
            }
            Some(Part::Reply(Reply::Body { status, body })) => {
                Ok(json(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), body))
            }
            Some(Part::Reply(first)) => {
                let guest = engine.guest();
                let mut answer =
                    Response::new(ResponseBody::other(Events { first: Some(first), replies: self }, guest));
                let headers = answer.headers_mut();
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
                headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
                Ok(answer)
            }
            None => Err(Fault::Internal.refusal(&Dialect::NEUTRAL)),
        }
    }
}

struct Events {
    first: Option<Reply>,
    replies: Replies,
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            let reply = match self.first.take() {
                Some(first) => first,
                None => match self.replies.0.poll_recv(cx) {
                    Poll::Ready(Some(Part::Reply(reply))) => reply,
                    Poll::Ready(_) => return Poll::Ready(None),
                    Poll::Pending => return Poll::Pending,
                },
            };
            let mut bytes = Vec::new();
            match reply {
                Reply::Event(payload) => sse::write_anonymous(&mut bytes, &payload),
                Reply::Comment => sse::write_keep_alive(&mut bytes),
                Reply::Begin => continue,
                Reply::End | Reply::Body { .. } => return Poll::Ready(None),
            }
            return Poll::Ready(Some(Ok(Frame::data(bytes.into()))));
        }
    }
}
