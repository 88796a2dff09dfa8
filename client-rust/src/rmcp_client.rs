//! Wraps the HTTP client of rmcp's Streamable HTTP transport.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::{BoxStream, StreamExt as _};
use http::{HeaderName, HeaderValue};
use rmcp::model::ClientJsonRpcMessage;
use rmcp::transport::streamable_http_client::{StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse};
use sse_stream::{Error as SseError, Sse};
use tailrope_core::Ms;
use tailrope_core::client::{
    Opening, Options, OptionsError, Posted, Repeats, failure_payloads, may_repeat, takes_request,
};
use tokio::time::{Instant, sleep};

use crate::driver::{Body, Cancels, Connect, Connected, Event, Events, never_cancelled};

type SseEvents = BoxStream<'static, Result<Sse, SseError>>;
type Headers = HashMap<HeaderName, HeaderValue>;

/// Reads the HTTP status out of an error of the inner client.
pub type StatusOf<E> = fn(&E) -> Option<u16>;

/// Wraps an HTTP client, so that the transport sees one stream for each call, however often connections end.
///
/// The inner client reads the events, so two things are not seen here. One is comments: `max_silence_ms` has no effect,
/// and only the inner client's time-outs or TCP's keep-alive find a half-open connection. The other is a gap, because a
/// comment announces it.
///
/// ```no_run
/// # fn f() -> Result<(), tailrope_client::OptionsError> {
/// use rmcp::transport::StreamableHttpClientTransport;
/// use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
/// use tailrope_client::{Options, Resumable};
///
/// let client = Resumable::new(reqwest::Client::new(), Options::default())?
///     .statuses(|error: &reqwest::Error| error.status().map(|status| status.as_u16()));
/// let config = StreamableHttpClientTransportConfig::with_uri("http://127.0.0.1:8000/mcp");
/// let transport = StreamableHttpClientTransport::with_client(client, config);
/// # drop(transport);
/// # Ok(()) }
/// ```
pub struct Resumable<C: StreamableHttpClient> {
    inner: C,
    options: Options,
    status_of: StatusOf<C::Error>,
    cancels: Cancels,
}

impl<C: StreamableHttpClient> Clone for Resumable<C> {
    fn clone(&self) -> Self {
        let Self { inner, options, status_of, cancels } = self;
        Self { inner: inner.clone(), options: options.clone(), status_of: *status_of, cancels: cancels.clone() }
    }
}

impl<C: StreamableHttpClient> fmt::Debug for Resumable<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resumable").field("options", &self.options).finish_non_exhaustive()
    }
}

impl<C: StreamableHttpClient + Sync> Resumable<C> {
    /// Wraps this client.
    ///
    /// # Errors
    /// An option is out of its range.
    pub fn new(inner: C, options: Options) -> Result<Self, OptionsError> {
        Ok(Self { inner, options: options.checked()?, status_of: |_| None, cancels: Cancels::default() })
    }

    /// Sets how to tell a refusal from a broken connection in the inner client's errors. Without it, a resume that is
    /// refused with 400 is tried again until the options say to give up.
    #[must_use]
    pub fn statuses(mut self, status_of: StatusOf<C::Error>) -> Self {
        self.status_of = status_of;
        self
    }

    fn connect(&self, request: &Asked, max_event_bytes: Option<usize>) -> Get<C> {
        Get {
            inner: self.inner.clone(),
            status_of: self.status_of,
            request: request.clone(),
            max_event_bytes,
            first: None,
        }
    }

    fn options(&self, max_event_bytes: Option<usize>) -> Options {
        // Keep-alives are comments, which the inner client drops. So a live connection may look silent here.
        let mut options = Options { max_silence_ms: None, ..self.options.clone() };
        if let Some(max_event_bytes) = max_event_bytes {
            options.max_event_bytes = options.max_event_bytes.min(max_event_bytes);
        }
        options
    }

    async fn post(
        &self,
        request: Asked,
        message: ClientJsonRpcMessage,
        max_event_bytes: Option<usize>,
    ) -> Result<StreamableHttpPostResponse, StreamableHttpError<C::Error>> {
        let text = serde_json::to_vec(&message).unwrap_or_default();
        if may_repeat(request.version(), &text) {
            return self.repeated(&request, &message, max_event_bytes).await;
        }
        let Posted { requests, cancelled } = Posted::read(&text);
        let (address, session) = (Arc::clone(&request.uri), request.session_id.clone());
        self.cancels.cancel(&address, session.as_deref(), &cancelled);
        // Registered before the message is sent: its requests may be cancelled before they are answered.
        let cancelled = self.cancels.register(&address, session.as_deref(), &requests);
        match self.send(request.clone(), message, max_event_bytes).await {
            Ok(StreamableHttpPostResponse::Sse(events, session)) if !requests.is_empty() && request.is_resumable() => {
                let mut request = request;
                if let Some(session) = &session {
                    request.session_id = Some(session.as_str().into());
                }
                let connect = self.connect(&request, max_event_bytes);
                let opening = Opening::Posted(requests);
                let options = self.options(max_event_bytes);
                let events = Events::run(opening, options, connect, Some(body(events)), cancelled);
                Ok(StreamableHttpPostResponse::Sse(written(events), session))
            }
            other => other,
        }
    }

    async fn send(
        &self,
        request: Asked,
        message: ClientJsonRpcMessage,
        max_event_bytes: Option<usize>,
    ) -> Result<StreamableHttpPostResponse, StreamableHttpError<C::Error>> {
        let Asked { uri, session_id, auth, headers } = request;
        match max_event_bytes {
            Some(max) => {
                let max = inner_bound(max);
                self.inner.post_message_with_max_sse_event_size(uri, message, session_id, auth, headers, max).await
            }
            None => self.inner.post_message(uri, message, session_id, auth, headers).await,
        }
    }

    /// Sends a request about a task until its answer is one. It does the same however often it comes.
    async fn repeated(
        &self,
        request: &Asked,
        message: &ClientJsonRpcMessage,
        max_event_bytes: Option<usize>,
    ) -> Result<StreamableHttpPostResponse, StreamableHttpError<C::Error>> {
        let (mut repeats, began) = (Repeats::new(self.options.clone()), Instant::now());
        loop {
            let posted = self.send(request.clone(), message.clone(), max_event_bytes).await;
            let (status, retry_after_ms) = match &posted {
                Err(StreamableHttpError::Client(error)) => ((self.status_of)(error), None),
                Err(StreamableHttpError::Io(_)) => (None, None),
                Err(StreamableHttpError::HttpStatus(error)) => {
                    let seconds = error.retry_after.as_deref().and_then(|text| text.trim().parse::<u64>().ok());
                    (Some(error.status), seconds.map(|seconds| seconds.saturating_mul(1_000)))
                }
                // What the server said, or what nobody will say otherwise.
                Ok(_) | Err(_) => return posted,
            };
            let now = Ms(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX));
            let jitter = getrandom::u32().unwrap_or(0);
            let Some(wait_ms) = repeats.after(now, jitter, status, retry_after_ms) else { return posted };
            sleep(Duration::from_millis(wait_ms)).await;
        }
    }

    /// The transport judges the first answer. What follows is judged here.
    async fn get(
        &self,
        request: Asked,
        last_event_id: Option<String>,
        max_event_bytes: Option<usize>,
    ) -> Result<SseEvents, StreamableHttpError<C::Error>> {
        let mut connect = self.connect(&request, max_event_bytes);
        let events = connect.ask(last_event_id.clone()).await?;
        if !request.is_resumable() {
            return Ok(events);
        }
        connect.first = Some(events);
        let opening = last_event_id.map_or(Opening::Standalone, Opening::Continued);
        let events = Events::run(opening, self.options(max_event_bytes), connect, None, never_cancelled());
        Ok(written(events))
    }
}

/// What the requests of a stream have in common.
#[derive(Clone)]
struct Asked {
    uri: Arc<str>,
    session_id: Option<Arc<str>>,
    auth: Option<String>,
    headers: Headers,
}

impl Asked {
    fn is_resumable(&self) -> bool {
        takes_request("POST", None, self.version())
    }

    fn version(&self) -> Option<&str> {
        let version = self.headers.iter().find(|(name, _)| name.as_str() == "mcp-protocol-version");
        version.and_then(|(_, value)| value.to_str().ok())
    }
}

struct Get<C: StreamableHttpClient> {
    inner: C,
    status_of: StatusOf<C::Error>,
    request: Asked,
    max_event_bytes: Option<usize>,
    /// The answer to the first connection, which was made already.
    first: Option<SseEvents>,
}

impl<C: StreamableHttpClient> Get<C> {
    fn ask(
        &self,
        last_event_id: Option<String>,
    ) -> impl Future<Output = Result<SseEvents, StreamableHttpError<C::Error>>> + Send + 'static {
        let (inner, Asked { uri, session_id, auth, headers }) = (self.inner.clone(), self.request.clone());
        let max_event_bytes = self.max_event_bytes;
        async move {
            match max_event_bytes {
                Some(max) => {
                    let max = inner_bound(max);
                    inner.get_stream_with_max_sse_event_size(uri, session_id, last_event_id, auth, headers, max).await
                }
                None => inner.get_stream(uri, session_id, last_event_id, auth, headers).await,
            }
        }
    }
}

impl<C: StreamableHttpClient + Sync> Connect for Get<C> {
    fn connect(&mut self, last_event_id: Option<String>) -> BoxFuture<'static, Connected> {
        if let Some(events) = self.first.take() {
            return std::future::ready(answer(200, None, body(events))).boxed();
        }
        let (asked, status_of) = (self.ask(last_event_id), self.status_of);
        async move {
            let none = || futures_util::stream::empty().boxed();
            match asked.await {
                Ok(events) => answer(200, None, body(events)),
                Err(StreamableHttpError::SessionExpired) => answer(404, None, none()),
                Err(StreamableHttpError::ServerDoesNotSupportSse) => answer(405, None, none()),
                Err(StreamableHttpError::AuthRequired(_)) => answer(401, None, none()),
                Err(StreamableHttpError::InsufficientScope(_)) => answer(403, None, none()),
                Err(StreamableHttpError::HttpStatus(error)) => {
                    let seconds: Option<u64> = error.retry_after.as_deref().and_then(|text| text.trim().parse().ok());
                    answer(error.status, seconds, none())
                }
                Err(StreamableHttpError::UnexpectedContentType(_)) => {
                    Connected::Answer { status: 200, content_type: None, retry_after_ms: None, body: none() }
                }
                Err(StreamableHttpError::Client(error)) => match status_of(&error) {
                    Some(status) => answer(status, None, none()),
                    None => Connected::Broken,
                },
                Err(_) => Connected::Broken,
            }
        }
        .boxed()
    }
}

/// The bound for the inner client. It is larger than ours because the inner client also counts what is around the data,
/// and our bound has to be reached first: a stream that ours ends is not asked for again.
fn inner_bound(max_event_bytes: usize) -> usize {
    max_event_bytes.saturating_mul(2).saturating_add(64 << 10)
}

fn answer(status: u16, retry_after_s: Option<u64>, body: Body) -> Connected {
    let retry_after_ms = retry_after_s.map(|seconds| seconds.saturating_mul(1_000));
    Connected::Answer { status, content_type: Some("text/event-stream".to_owned()), retry_after_ms, body }
}

/// Turns events back into bytes: the inner client has read them, but the stream reads bytes.
fn body(events: SseEvents) -> Body {
    events.map(|event| event.map(|event| bytes_of(&event)).map_err(|_| ())).boxed()
}

fn bytes_of(event: &Sse) -> Bytes {
    let mut out = String::with_capacity(event.data.as_ref().map_or(0, String::len) + 64);
    let mut line = |name: &str, value: &str| {
        for part in value.split('\n') {
            out.extend([name, ": ", part, "\n"]);
        }
    };
    if let Some(name) = &event.event {
        line("event", name);
    }
    if let Some(id) = &event.id {
        line("id", id);
    }
    if let Some(retry_ms) = event.retry {
        line("retry", &retry_ms.to_string());
    }
    if let Some(data) = &event.data {
        line("data", data);
    }
    out.push('\n');
    out.into()
}

/// The stream's events for the transport. They carry no id, so that the transport starts no resume of its own.
fn written(events: Events) -> SseEvents {
    let write = |event: Event| {
        let message = |data: String| Ok(Sse::default().data(data));
        match event {
            Event::Message { event: None, data } => vec![message(data)],
            Event::Message { event: Some(name), data } => vec![Ok(Sse::default().event(name).data(data))],
            Event::Failed { failure, unanswered } if unanswered.is_empty() => {
                vec![Err(SseError::Body(Box::new(failure)))]
            }
            Event::Failed { failure, unanswered } => {
                failure_payloads(&unanswered, &failure).into_iter().map(message).collect()
            }
            Event::Gap { first, count } => {
                tracing::warn!(target: "tailrope", first, count, "the server lost events of a stream");
                Vec::new()
            }
            Event::CursorLost => {
                tracing::warn!(target: "tailrope", "the server refused the cursor of the standalone stream");
                Vec::new()
            }
            Event::Opened => Vec::new(),
        }
    };
    events.flat_map(move |event| futures_util::stream::iter(write(event))).boxed()
}

impl<C: StreamableHttpClient + Sync> StreamableHttpClient for Resumable<C> {
    type Error = C::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, StreamableHttpError<C::Error>> {
        self.post(Asked { uri, session_id, auth, headers }, message, None).await
    }

    async fn post_message_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth: Option<String>,
        headers: Headers,
        max_sse_event_size: usize,
    ) -> Result<StreamableHttpPostResponse, StreamableHttpError<C::Error>> {
        self.post(Asked { uri, session_id, auth, headers }, message, Some(max_sse_event_size)).await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<(), StreamableHttpError<C::Error>> {
        self.inner.delete_session(uri, session_id, auth, headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<SseEvents, StreamableHttpError<C::Error>> {
        self.get(Asked { uri, session_id, auth, headers }, last_event_id, None).await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth: Option<String>,
        headers: Headers,
        max_sse_event_size: usize,
    ) -> Result<SseEvents, StreamableHttpError<C::Error>> {
        self.get(Asked { uri, session_id, auth, headers }, last_event_id, Some(max_sse_event_size)).await
    }
}
