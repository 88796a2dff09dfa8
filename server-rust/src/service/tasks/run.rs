//! A run of a call: the application handles it, detached from the client's connection.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, HeaderName, Request, Response};
use http_body_util::{BodyExt as _, Full};
use tailrope_core::engine::TaskCall;
use tailrope_core::exchange::Relayed;
use tailrope_core::task::{Header, Input, RunReader, is_of_message};
use tokio::task::JoinHandle;

use super::reply::Room;
use crate::sender::text;
use crate::service::application::Application;
use crate::service::endpoint::Endpoint;

/// A run, and the answer that can be passed on.
pub(super) struct Run {
    pub(super) number: u32,
    handle: JoinHandle<()>,
    pub(super) answer: Arc<Mutex<Option<Response<Bytes>>>>,
}

/// Tells the engine that nothing more comes of a run, however the run ends.
struct Ending {
    call: TaskCall,
    number: u32,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.call.input(Input::RunEnded { run: self.number });
    }
}

impl Run {
    /// Gives the application the message.
    pub(super) fn start<A: Application>(
        endpoint: &Arc<Endpoint<A>>,
        call: &TaskCall,
        room: Room,
        number: u32,
        parts: Parts,
        message: Bytes,
    ) -> Self {
        let answer: Arc<Mutex<Option<Response<Bytes>>>> = Arc::default();
        let ending = Ending { call: call.clone(), number };
        let (endpoint, passed) = (Arc::clone(endpoint), Arc::clone(&answer));
        let handle = tokio::spawn(async move {
            let guest = endpoint.host.engine.guest();
            let request = Request::from_parts(parts, Full::new(message));
            let Some(served) = endpoint.application.serve_modern(request, guest) else { return };
            read(served.await, &ending, &room, &passed).await;
            endpoint.host.arm_for_engine();
        });
        Self { number, handle, answer }
    }

    /// Ends the run: the application sees that its client is gone.
    pub(super) fn cancel(&self) {
        self.handle.abort();
    }

    pub(super) fn take_answer(&self) -> Option<Response<Bytes>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

async fn read(response: super::Answer, ending: &Ending, room: &Room, answer: &Mutex<Option<Response<Bytes>>>) {
    let (head, mut body) = response.into_parts();
    let content_type = head.headers.get(CONTENT_TYPE).map(text).map(std::borrow::Cow::into_owned);
    let status = head.status.as_u16();
    let mut reader = RunReader::new(ending.number, status, content_type.as_deref());
    let mut all = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(data) = frame.into_data() else { continue };
        if reader.is_body() {
            all.extend_from_slice(&data);
        }
        for input in reader.data(&data) {
            ending.call.input(input);
        }
        if !reader.is_body() {
            room.come().await;
        }
    }
    *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(Response::from_parts(head, all.into()));
    for input in reader.end() {
        ending.call.input(input);
    }
}

/// The message of an input.
pub(super) fn message(input: Input) -> Option<Bytes> {
    match input {
        Input::Message { message, .. } => Some(message),
        _ => None,
    }
}

/// The head of a request with another message, in the context of this one.
pub(super) fn with_message(mut parts: Parts, of_message: &[Header]) -> Parts {
    let dropped: Vec<HeaderName> = parts.headers.keys().filter(|name| is_of_message(name.as_str())).cloned().collect();
    for name in dropped {
        parts.headers.remove(name);
    }
    append(&mut parts.headers, of_message.iter().map(|(name, value)| (&**name, &**value)));
    parts
}

fn append<'a>(to: &mut HeaderMap, headers: impl Iterator<Item = (&'a str, &'a str)>) {
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            to.append(name, value);
        }
    }
}

/// The head of a request that came to another process.
pub(super) fn head_of_relayed(first: &Parts, relayed: &Relayed) -> Parts {
    let mut request = Request::new(());
    request.method_mut().clone_from(&first.method);
    request.uri_mut().clone_from(&first.uri);
    request.headers_mut().insert(CONTENT_TYPE, super::JSON);
    // rmcp refuses requests for another host. The process to which this one came has asked it.
    if let Some(host) = first.headers.get(HOST) {
        request.headers_mut().insert(HOST, host.clone());
    }
    append(request.headers_mut(), relayed.headers());
    request.into_parts().0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_has_the_headers_of_its_context_and_those_of_its_message() {
        let context = Request::builder()
            .header("X-Trace", "second")
            .header("Mcp-Param-Size", "of another message")
            .header("Mcp-Method", "tasks/update")
            .header(CONTENT_TYPE, "application/json")
            .header("Content-Length", "7");
        let parts = context.body(()).unwrap().into_parts().0;
        let of_message = [("mcp-method", "tools/call"), ("mcp-param-color", "red"), ("mcp-param-color", "blue")];
        let of_message = of_message.map(|(name, value)| (name.into(), value.into()));
        let headers = with_message(parts, &of_message).headers;
        let mut told: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        told.sort_unstable();
        let wanted = [
            ("mcp-method", "tools/call"),
            ("mcp-param-color", "blue"),
            ("mcp-param-color", "red"),
            ("x-trace", "second"),
        ];
        assert_eq!(told, wanted);
    }
}
