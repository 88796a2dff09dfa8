//! The answer to a `subscriptions/listen` that names tasks: the application's stream, and what becomes of the tasks between its
//! events.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use http::header::CONTENT_TYPE;
use http_body::{Body, Frame};
use tailrope_core::engine::TaskSubscription;

use super::Answer;
use crate::host::Host;
use crate::sender::text;
use crate::service::answer::ResponseBody;
use crate::signal::Signal;

/// `answer` is that of the application.
pub(super) fn interleaved(
    answer: Answer,
    subscription: TaskSubscription,
    signal: Arc<Signal>,
    host: &Arc<Host>,
) -> Answer {
    let content_type = answer.headers().get(CONTENT_TYPE).map(text);
    if !subscription.begin(content_type.as_deref()) {
        return answer;
    }
    let (head, body) = answer.into_parts();
    let body = Interleaved { application: Some(body), subscription, signal, host: Arc::clone(host) };
    Response::from_parts(head, ResponseBody::other(body, host.engine.guest()))
}

struct Interleaved {
    /// Until it is over.
    application: Option<ResponseBody>,
    subscription: TaskSubscription,
    signal: Arc<Signal>,
    host: Arc<Host>,
}

impl Body for Interleaved {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            let bytes = self.subscription.next();
            self.host.arm_for_engine();
            if let Some(bytes) = bytes {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if self.subscription.is_over() {
                self.application = None;
                return Poll::Ready(None);
            }
            if self.subscription.takes()
                && let Some(application) = &mut self.application
                && let Poll::Ready(frame) = Pin::new(application).poll_frame(cx)
            {
                match frame {
                    Some(Ok(frame)) => {
                        if let Ok(chunk) = frame.into_data() {
                            self.subscription.push(&chunk);
                        }
                    }
                    Some(Err(_)) | None => {
                        self.application = None;
                        self.subscription.end();
                    }
                }
                continue;
            }
            ready!(self.signal.poll_woken(cx));
        }
    }
}
