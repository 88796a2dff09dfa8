//! Passes a request on to the application, and its answer back.

use std::error::Error;
use std::sync::Arc;

use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TE, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri, Version};
use hyper::client::conn::http1;
use hyper::upgrade::{OnUpgrade, on};
use hyper_util::rt::TokioIo;
use tailrope_core::exchange::Fault;
use tokio::io::copy_bidirectional;

use super::PEER_HEADER;
use super::Shared;
use super::body::{AnswerBody, Driver, RequestBody, TooSlow};
use super::exchange::{Answer, refused, unread};
use super::listening::Client;
use super::socket::Socket;
use crate::sender::text;
use crate::service::reading::BoxError;

pub(super) const PEER: HeaderName = HeaderName::from_static(PEER_HEADER);

/// Headers that are about one connection, beside those that `Connection` names.
const HOP_BY_HOP: [HeaderName; 6] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

/// The answer of the application. The request ends there when its client leaves, and the answer is dropped.
pub(super) async fn proxy(shared: &Shared, parts: Parts, body: RequestBody, client: Arc<Client>) -> Answer {
    let (request, upgrade) = to_app(parts, body, &client);
    match send(shared, request, upgrade, client).await {
        Ok(answer) => answer,
        Err(error) => {
            if let Some(error) = of_client(&*error) {
                return unread(&error);
            }
            if shared.complaints.unreachable.is_due() {
                tracing::error!(
                    target: "tailrope", error = &*error as &dyn Error,
                    "the application behind the front does not answer: requests get 502"
                );
            }
            refused(Fault::AppUnreachable)
        }
    }
}

/// The error, if it is that of the client's body.
fn of_client(error: &(dyn Error + 'static)) -> Option<BoxError> {
    let error = error.downcast_ref::<hyper::Error>().filter(|error| error.is_user())?;
    Some(match error.source() {
        Some(source) if source.is::<TooSlow>() => TooSlow.into(),
        _ => "the client did not send its body to the end".into(),
    })
}

/// The request, as it goes to the application, and what the client's connection becomes if the application wants it.
fn to_app(mut parts: Parts, body: RequestBody, client: &Client) -> (Request<RequestBody>, Option<OnUpgrade>) {
    // Other protocols could carry requests past the front.
    let is_upgrade = parts.headers.get(UPGRADE).is_some_and(|to| to.as_bytes().eq_ignore_ascii_case(b"websocket"));
    let takes_trailers = parts.headers.get_all(TE).iter().any(|te| text(te).contains("trailers"));
    let upgrade = parts.extensions.remove::<OnUpgrade>().filter(|_| is_upgrade);
    // Where both are, the body is chunked.
    if parts.headers.contains_key(TRANSFER_ENCODING) {
        parts.headers.remove(CONTENT_LENGTH);
    }
    remove_hop_by_hop(&mut parts.headers);
    // The front answers it when it reads the body.
    parts.headers.remove(EXPECT);
    if upgrade.is_some() {
        parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        parts.headers.insert(UPGRADE, WEBSOCKET);
    } else if takes_trailers {
        parts.headers.insert(CONNECTION, HeaderValue::from_static("te"));
        parts.headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    // The whole URL of a request says where it goes, whatever `Host` says.
    if let Some(host) = parts.uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok()) {
        parts.headers.insert(HOST, host);
    }
    let target = parts.uri.path_and_query().cloned();
    parts.uri = target.map_or_else(|| Uri::from_static("/"), Uri::from);
    parts.version = Version::HTTP_11;
    if let Ok(peer) = HeaderValue::try_from(format!("{} http", client.peer)) {
        parts.headers.insert(PEER, peer);
    }
    (Request::from_parts(parts, body), upgrade)
}

async fn send(
    shared: &Shared,
    request: Request<RequestBody>,
    upgrade: Option<OnUpgrade>,
    client: Arc<Client>,
) -> Result<Answer, BoxError> {
    let socket = Socket::connect(&shared.options.app).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
    // One connection for each request: with a kept one, the application could close it at the moment it is used again.
    let driver = Driver(tokio::spawn(async move {
        // An error is also that of the request or of its answer.
        let _ = connection.with_upgrades().await;
    }));
    let mut answer = sender.send_request(request).await?;
    let is_switched = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
    let to_app = on(&mut answer);
    remove_hop_by_hop(answer.headers_mut());
    if let (true, Some(upgrade)) = (is_switched, upgrade) {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        answer.headers_mut().insert(UPGRADE, WEBSOCKET);
        tokio::spawn(async move {
            let _client = client;
            if let (Ok(ours), Ok(app)) = (upgrade.await, to_app.await) {
                // An error ends it as well.
                let _ = copy_bidirectional(&mut TokioIo::new(ours), &mut TokioIo::new(app)).await;
            }
            drop(driver);
        });
        return Ok(answer.map(|_| AnswerBody::empty()));
    }
    if is_switched {
        return Err("it answers 101 to a request that asks for no websocket".into());
    }
    Ok(answer.map(|body| AnswerBody::App { body, _driver: driver }))
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| text(value).split(',').filter_map(|name| name.trim().parse().ok()).collect::<Vec<_>>())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}
