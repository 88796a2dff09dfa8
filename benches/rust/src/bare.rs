//! Hyper with nothing behind it: what the load client asks for, answered as fast as that goes. It stores nothing and knows no session.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream;
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;

type Answer = Response<BoxBody<Bytes, Infallible>>;

/// Bytes that leave at once.
const PAGE_BYTES: usize = 64 << 10;

static EVENTS: AtomicU64 = AtomicU64::new(1);

#[derive(Deserialize)]
struct Message<'a> {
    method: &'a str,
    id: Option<u64>,
    #[serde(borrow)]
    params: Option<Params<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    protocol_version: Option<&'a str>,
    name: Option<&'a str>,
    #[serde(borrow)]
    arguments: Option<Arguments<'a>>,
}

#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    n: Option<u64>,
    bytes: Option<usize>,
}

fn event(page: &mut String, data: std::fmt::Arguments<'_>) {
    let number = EVENTS.fetch_add(1, Ordering::Relaxed);
    // Text takes all that it is given.
    let _ = write!(page, "id: {number}\ndata: {data}\n\n");
}

fn stream_answer(body: BoxBody<Bytes, Infallible>) -> Answer {
    let mut answer = Response::new(body);
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    answer.headers_mut().insert("mcp-session-id", HeaderValue::from_static("bare"));
    answer
}

fn status(status: StatusCode) -> Answer {
    let mut answer = Response::new(Empty::new().boxed());
    *answer.status_mut() = status;
    answer
}

/// What a call emits, page by page, and its result.
fn emitted(id: u64, n: u64, bytes: usize) -> BoxBody<Bytes, Infallible> {
    let message = "x".repeat(bytes);
    let pages = stream::unfold((0, String::new()), move |(mut i, mut page)| {
        let message = message.clone();
        async move {
            if i > n {
                return None;
            }
            while i < n && page.len() < PAGE_BYTES {
                i += 1;
                event(
                    &mut page,
                    format_args!(
                        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{id},"progress":{i},"total":{n},"message":"{message}"}}}}"#
                    ),
                );
            }
            if i == n && page.len() < PAGE_BYTES {
                event(
                    &mut page,
                    format_args!(r#"{{"jsonrpc":"2.0","id":{id},"result":{}}}"#, result(&format!("\"{n}\""))),
                );
                i += 1;
            }
            Some((Bytes::from(std::mem::take(&mut page)), (i, page)))
        }
    });
    let frames = pages.map(|page| Ok(Frame::data(page)));
    BodyExt::boxed(StreamBody::new(Box::pin(frames)))
}

fn result(text_json: &str) -> String {
    format!(r#"{{"content":[{{"type":"text","text":{text_json}}}]}}"#)
}

/// A stream on which nothing happens.
fn idle() -> BoxBody<Bytes, Infallible> {
    let mut page = String::new();
    event(&mut page, format_args!(""));
    let first = stream::iter([Ok(Frame::data(Bytes::from(page)))]);
    BodyExt::boxed(StreamBody::new(first.chain(stream::pending())))
}

fn answered(message: &Message<'_>, id: u64) -> Option<Answer> {
    let params = message.params.as_ref()?;
    let result = match (message.method, params.name) {
        ("initialize", _) => {
            format!(r#"{{"protocolVersion":"{}","capabilities":{{}}}}"#, params.protocol_version?)
        }
        ("tools/call", Some("echo")) => result(params.arguments.as_ref()?.text?.get()),
        ("tools/call", Some("emit")) => {
            let arguments = params.arguments.as_ref()?;
            return Some(stream_answer(emitted(id, arguments.n?, arguments.bytes?)));
        }
        _ => return None,
    };
    let mut page = String::new();
    event(&mut page, format_args!(""));
    event(&mut page, format_args!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#));
    Some(stream_answer(Full::new(Bytes::from(page)).boxed()))
}

/// The answer to a request of the load client.
pub(crate) async fn answer(request: Request<Incoming>) -> Result<Answer, Infallible> {
    if request.method() == Method::GET {
        return Ok(stream_answer(idle()));
    }
    if request.method() == Method::DELETE {
        return Ok(status(StatusCode::NO_CONTENT));
    }
    let Ok(body) = request.into_body().collect().await else { return Ok(status(StatusCode::BAD_REQUEST)) };
    let body = body.to_bytes();
    let answer = match serde_json::from_slice::<Message<'_>>(&body) {
        Ok(Message { id: None, .. }) => Some(status(StatusCode::ACCEPTED)),
        Ok(message) => message.id.and_then(|id| answered(&message, id)),
        Err(_) => None,
    };
    Ok(answer.unwrap_or_else(|| status(StatusCode::BAD_REQUEST)))
}
