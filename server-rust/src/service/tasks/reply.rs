//! What the client of a call is answered: a response as the application made it, one JSON body, or a stream of events.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
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
use tokio::sync::Notify;
use tokio::sync::mpsc::{Receiver, Sender, WeakSender, channel};

use super::{Answer, json};
use crate::service::answer::ResponseBody;

/// Parts of an answer that wait for a slow client. The run waits while half of them do. With more, the client is cut off.
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

/// The room for what a run sends while the client of its call reads.
#[derive(Clone)]
pub(super) struct Room {
    replies: WeakSender<Part>,
    unlinked: Arc<Notify>,
}

impl Room {
    pub(super) fn of(replies: &Sender<Part>) -> Self {
        Self { replies: replies.downgrade(), unlinked: Arc::default() }
    }

    /// Nobody waits for the client any more.
    pub(super) fn unlink(&self) {
        self.unlinked.notify_waiters();
    }

    /// Waits until the client has taken most of what waits for it.
    pub(super) async fn come(&self) {
        // What was sent last comes first, so that it counts.
        tokio::task::yield_now().await;
        if let Some(replies) = self.replies.upgrade() {
            tokio::select! {
                _ = replies.reserve_many(MAX_WAITING / 2) => {}
                () = self.unlinked.notified() => {}
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_there(room: &Room) -> bool {
        let come = room.come();
        tokio::pin!(come);
        for _ in 0..4 {
            tokio::select! {
                biased;
                () = &mut come => return true,
                () = tokio::task::yield_now() => {}
            }
        }
        false
    }

    #[tokio::test]
    async fn i10_a_run_waits_for_a_slow_client_as_long_as_that_waits_for_it() {
        let (sender, mut replies) = replies();
        let room = Room::of(&sender);
        for _ in 0..MAX_WAITING / 2 {
            assert!(is_there(&room).await);
            sender.try_send(Part::Reply(Reply::Comment)).ok().unwrap();
        }
        sender.try_send(Part::Reply(Reply::Comment)).ok().unwrap();
        assert!(!is_there(&room).await);
        replies.0.recv().await.unwrap();
        assert!(is_there(&room).await);
        // A call that has become a task goes on by itself.
        sender.try_send(Part::Reply(Reply::Comment)).ok().unwrap();
        let waiting = tokio::spawn({
            let room = room.clone();
            async move { room.come().await }
        });
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        room.unlink();
        waiting.await.unwrap();
        drop(sender);
        assert!(is_there(&room).await);
    }
}
