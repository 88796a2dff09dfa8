//! Posting and listening over hyper.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::{StreamExt as _, once};
use http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::{Connect as Connector, HttpConnector};
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::TokioExecutor;
use tailrope_core::client::{self, Opening, Options, OptionsError, Token, takes_answer, takes_request};

use crate::driver::{Body, Cancels, Connect, Connected, Events, never_cancelled};

const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROTOCOL_VERSION: &str = "mcp-protocol-version";
const SESSION_ID: &str = "mcp-session-id";

type Http<C> = Client<C, Full<Bytes>>;
type Refresh = Arc<dyn Fn(&mut HeaderMap) + Send + Sync>;

/// Why a message was not posted, or a stream not begun.
#[derive(Debug)]
#[non_exhaustive]
pub enum HttpError {
    /// The request could not be sent, or its answer could not be read.
    Http(ClientError),
    /// The request is not valid: the address or a header is wrong.
    Request(http::Error),
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(error) => write!(f, "the request failed: {error}"),
            Self::Request(error) => write!(f, "the request is not valid: {error}"),
        }
    }
}

impl std::error::Error for HttpError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Http(error) => Some(error),
            Self::Request(error) => Some(error),
        }
    }
}

/// The answer to a POST: the head of the first answer, and what follows it.
#[derive(Debug)]
pub enum Posted {
    /// A stream that ends when every request of the message is answered.
    Events(Response<Events>),
    /// Anything else: JSON, an acceptance, a refusal.
    Answer(Response<Incoming>),
}

/// Sends messages to one MCP endpoint. It keeps no session: the caller gives the headers. The [crate](crate) shows one
/// session.
pub struct HttpClient<C = HttpConnector> {
    http: Http<C>,
    uri: Uri,
    options: Options,
    refresh: Option<Refresh>,
    cancels: Cancels,
}

impl<C> fmt::Debug for HttpClient<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address may hold a password.
        f.debug_struct("HttpClient").field("host", &self.uri.host()).finish_non_exhaustive()
    }
}

impl HttpClient {
    /// A client without TLS.
    ///
    /// # Errors
    /// An option is out of its range.
    pub fn http(uri: Uri, options: Options) -> Result<Self, OptionsError> {
        Self::new(Client::builder(TokioExecutor::new()).build_http(), uri, options)
    }
}

impl<C: Connector + Clone + Send + Sync + 'static> HttpClient<C> {
    /// A client over `http`, which knows about TLS and proxies.
    ///
    /// # Errors
    /// An option is out of its range.
    pub fn new(http: Http<C>, uri: Uri, options: Options) -> Result<Self, OptionsError> {
        let options = options.checked()?;
        Ok(Self { http, uri, options, refresh: None, cancels: Cancels::default() })
    }

    /// Changes the headers of each connection right before it is made: for credentials that expire during a long
    /// call.
    #[must_use]
    pub fn refresh(mut self, refresh: impl Fn(&mut HeaderMap) + Send + Sync + 'static) -> Self {
        self.refresh = Some(Arc::new(refresh));
        self
    }

    /// Posts a message. Resumes send the same headers, except those that describe the body.
    ///
    /// # Errors
    /// The message could not be sent, or its answer could not be read. Then nobody knows whether the server got it.
    pub async fn post(&self, headers: &HeaderMap, message: Bytes) -> Result<Posted, HttpError> {
        let client::Posted { requests, cancelled } = client::Posted::read(&message);
        let address = self.uri.to_string();
        self.cancels.cancel(&address, text(headers.get(SESSION_ID)), &cancelled);
        // Registered before the message is sent: its requests may be cancelled before they are answered.
        let cancelled = self.cancels.register(&address, text(headers.get(SESSION_ID)), &requests);
        let mut request = Request::builder().method(Method::POST).uri(&self.uri);
        if let Some(all) = request.headers_mut() {
            all.extend(headers.clone());
            all.insert(CONTENT_TYPE, JSON);
            all.insert(ACCEPT, BOTH);
            self.refreshed(all);
        }
        let request = request.body(Full::new(message)).map_err(HttpError::Request)?;
        let answer = self.http.request(request).await.map_err(HttpError::Http)?;
        let is_taken = takes_request("POST", None, text(headers.get(PROTOCOL_VERSION)));
        let is_stream = takes_answer(answer.status().as_u16(), text(answer.headers().get(CONTENT_TYPE)));
        if requests.is_empty() || !is_taken || !is_stream {
            return Ok(Posted::Answer(answer));
        }
        let mut headers = self.for_resumes(headers);
        // The session that this very answer opened.
        if let Some(session) = answer.headers().get(SESSION_ID) {
            headers.insert(SESSION_ID, session.clone());
        }
        let (opening, connect) = (Opening::Posted(requests), self.connect(headers));
        let (head, incoming) = answer.into_parts();
        let events = Events::run(opening, self.options.clone(), connect, Some(body(incoming)), cancelled);
        Ok(Posted::Events(Response::from_parts(head, events)))
    }

    /// Listens to the session's standalone stream.
    pub fn listen(&self, headers: &HeaderMap) -> Events {
        let connect = self.connect(self.for_resumes(headers));
        Events::run(Opening::Standalone, self.options.clone(), connect, None, never_cancelled())
    }

    /// Continues a stream that another process saved. The token's session and revision are sent unless `headers` name
    /// others.
    pub fn resume(&self, headers: &HeaderMap, token: Token) -> Events {
        let mut all = self.for_resumes(headers);
        for (name, value) in [(SESSION_ID, &token.session_id), (PROTOCOL_VERSION, &token.protocol_version)] {
            if let Some(value) = value.as_deref().and_then(|value| HeaderValue::from_str(value).ok())
                && !all.contains_key(name)
            {
                all.insert(name, value);
            }
        }
        let session = text(all.get(SESSION_ID)).map(str::to_owned);
        let cancelled = self.cancels.register(&self.uri.to_string(), session.as_deref(), &token.requests);
        Events::run(Opening::Saved(token), self.options.clone(), self.connect(all), None, cancelled)
    }

    fn refreshed(&self, headers: &mut HeaderMap) {
        if let Some(refresh) = &self.refresh {
            refresh(headers);
        }
    }

    fn for_resumes(&self, headers: &HeaderMap) -> HeaderMap {
        let mut headers = headers.clone();
        for of_body in [CONTENT_TYPE, CONTENT_LENGTH, CONTENT_ENCODING, TRANSFER_ENCODING] {
            headers.remove(of_body);
        }
        headers.insert(ACCEPT, EVENT_STREAM);
        headers
    }

    fn connect(&self, headers: HeaderMap) -> Get<C> {
        Get { http: self.http.clone(), uri: self.uri.clone(), headers, refresh: self.refresh.clone() }
    }
}

struct Get<C> {
    http: Http<C>,
    uri: Uri,
    headers: HeaderMap,
    refresh: Option<Refresh>,
}

impl<C: Connector + Clone + Send + Sync + 'static> Connect for Get<C> {
    fn connect(&mut self, last_event_id: Option<String>) -> BoxFuture<'static, Connected> {
        let mut headers = self.headers.clone();
        if let Some(refresh) = &self.refresh {
            refresh(&mut headers);
        }
        if let Some(id) = last_event_id {
            let Ok(id) = HeaderValue::from_bytes(id.as_bytes()) else {
                return std::future::ready(Connected::Broken).boxed();
            };
            headers.insert("last-event-id", id);
        }
        let mut request = Request::new(Full::new(Bytes::new()));
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = headers;
        let answer = self.http.request(request);
        async move {
            let Ok(answer) = answer.await else { return Connected::Broken };
            let status = answer.status().as_u16();
            let content_type = text(answer.headers().get(CONTENT_TYPE)).map(str::to_owned);
            let seconds: Option<u64> = text(answer.headers().get(RETRY_AFTER)).and_then(|text| text.parse().ok());
            let retry_after_ms = seconds.map(|seconds| seconds.saturating_mul(1_000));
            Connected::Answer { status, content_type, retry_after_ms, body: body(answer.into_body()) }
        }
        .boxed()
    }
}

fn text(value: Option<&HeaderValue>) -> Option<&str> {
    value.and_then(|value| value.to_str().ok())
}

fn body(incoming: Incoming) -> Body {
    let chunks = incoming.into_data_stream();
    // After an error there is nothing to ask for.
    let ended = once(async {}).filter_map(|()| async { None });
    chunks.map(|chunk| chunk.map_err(|_| ())).chain(ended).boxed()
}
