//! Where the server is, what every request to it carries, and how a request is sent.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONNECTION, HOST, InvalidHeaderValue};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use http_body_util::Full;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::exchange::Exchange;
use super::tls::{Socket, connector, wrapped};

/// There was no head of an answer.
#[derive(Clone, Debug)]
pub(crate) struct NoAnswer {
    pub(crate) why: Why,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Silent,
    /// Nobody listens, or nobody who is trusted.
    Refused,
    Broken,
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl NoAnswer {
    fn refused(error: std::io::Error) -> Self {
        Self { why: Why::Refused, text: error.to_string() }
    }

    fn broken() -> Self {
        Self { why: Why::Broken, text: "the connection ended before an answer".to_owned() }
    }
}

pub(crate) struct Endpoint {
    uri: Uri,
    /// Carried by every request, in the place of what we would send.
    headers: HeaderMap,
    tls: OnceCell<TlsConnector>,
}

impl Endpoint {
    pub(crate) fn new(uri: Uri, headers: HeaderMap) -> Self {
        Self { uri, headers, tls: OnceCell::new() }
    }

    /// # Errors
    /// There is no answer within the time, or at all.
    pub(crate) async fn send(
        &self,
        method: Method,
        headers: &[(&'static str, String)],
        body: Option<String>,
        within: Duration,
    ) -> Result<Rc<Exchange>, NoAnswer> {
        let request = self.request(method, headers, body)?;
        timeout(within, self.sent(request)).await.unwrap_or_else(|_| {
            Err(NoAnswer { why: Why::Silent, text: format!("no answer within {} ms", within.as_millis()) })
        })
    }

    async fn sent(&self, request: Request<Full<Bytes>>) -> Result<Rc<Exchange>, NoAnswer> {
        let is_tls = self.uri.scheme_str() == Some("https");
        let host = self.uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let port = self.uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let stream = TcpStream::connect((host, port)).await.map_err(NoAnswer::refused)?;
        // A request is one piece, so there is nothing to wait for.
        let _ = stream.set_nodelay(true);
        if !is_tls {
            return exchanged(stream, request).await;
        }
        let tls = self.tls.get_or_try_init(|| async { connector() }).await.map_err(NoAnswer::refused)?;
        exchanged(wrapped(tls, host, stream).await.map_err(NoAnswer::refused)?, request).await
    }

    fn request(
        &self,
        method: Method,
        headers: &[(&'static str, String)],
        body: Option<String>,
    ) -> Result<Request<Full<Bytes>>, NoAnswer> {
        let mut all = HeaderMap::new();
        let host = self.uri.authority().map_or("", |authority| authority.as_str());
        let host = host.rsplit('@').next().unwrap_or_default();
        let ours = [(HOST, host), (ACCEPT_ENCODING, "identity"), (CONNECTION, "close")];
        for (name, value) in ours {
            all.insert(name.clone(), value_of(name.as_str(), value)?);
        }
        for (name, value) in headers {
            all.insert(HeaderName::from_static(name), value_of(name, value)?);
        }
        for (name, value) in &self.headers {
            all.insert(name.clone(), value.clone());
        }
        let mut request = Request::new(Full::new(Bytes::from(body.unwrap_or_default())));
        *request.method_mut() = method;
        let target = self.uri.path_and_query().map_or("/", |target| target.as_str());
        *request.uri_mut() = target.parse().map_err(|_| NoAnswer::broken())?;
        *request.headers_mut() = all;
        Ok(request)
    }
}

fn value_of(name: &str, value: &str) -> Result<HeaderValue, NoAnswer> {
    HeaderValue::from_bytes(value.as_bytes()).map_err(|_: InvalidHeaderValue| {
        let text = format!("{name} cannot be sent: there are control characters in it");
        NoAnswer { why: Why::Broken, text }
    })
}

async fn exchanged<S: Socket>(stream: S, request: Request<Full<Bytes>>) -> Result<Rc<Exchange>, NoAnswer> {
    let shaken = handshake(TokioIo::new(stream)).await;
    let (mut sender, mut connection) = shaken.map_err(|_| NoAnswer::broken())?;
    let mut is_driven = true;
    let answer = {
        let answer = sender.send_request(request);
        tokio::pin!(answer);
        loop {
            tokio::select! {
                biased;
                answer = &mut answer => break answer,
                _ = &mut connection, if is_driven => is_driven = false,
            }
        }
    };
    let answer = answer.map_err(|_| NoAnswer::broken())?;
    let exchange = Rc::new(Exchange::new(&answer));
    tokio::task::spawn_local(Rc::clone(&exchange).read(connection, answer.into_body(), is_driven));
    Ok(exchange)
}
