//! One request: served here, or proxied.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::CONNECTION;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use tailrope_core::engine::SessionHandle;
use tailrope_core::exchange::{self, Action, AnswerHead, Fault};
use tokio::sync::oneshot;

use super::Shared;
use super::arrival::{Arrival, Asked, Call, Message, Verdict, Waiting};
use super::body::{AnswerBody, RequestBody, TooSlow};
use super::listening::Client;
use super::proxy::{PEER, proxy};
use super::sessions::Served;
use crate::pages::Pages;
use crate::sender::{Identity, Sender};
use crate::service::SESSION_ID;
use crate::service::answer::{self, ResponseBody};
use crate::service::headers::Headers;
use crate::service::reading::{BoxError, Unread, read};

pub(super) type Answer = Response<AnswerBody>;

/// How a request is served.
enum Plan {
    Own(Response<ResponseBody>),
    Stream(Pages),
    /// The application answers it.
    Proxied(Parts, RequestBody),
}

pub(super) async fn serve(
    shared: Arc<Shared>,
    request: Request<Incoming>,
    client: Arc<Client>,
) -> Result<Answer, BoxError> {
    let patience = Duration::from_millis(shared.options.body_timeout_ms);
    let (mut parts, body) = request.into_parts();
    // It is the front that says where a connection comes from.
    parts.headers.remove(PEER);
    let body = RequestBody::new(body, patience);
    if parts.method == Method::CONNECT {
        return Ok(status(StatusCode::NOT_IMPLEMENTED));
    }
    let Some((served, session)) = shared.sessions.find(&parts) else {
        return Ok(proxy(&shared, parts, body, client).await);
    };
    let session_id = parts.headers.get(SESSION_ID).cloned();
    Ok(match plan(&shared, &served, session, parts, body, &client).await {
        Ok(Plan::Own(answer)) => answer.map(AnswerBody::Own),
        Ok(Plan::Stream(pages)) => answer::connection(pages, session_id.as_ref()).await.map(AnswerBody::Own),
        Ok(Plan::Proxied(parts, body)) => proxy(&shared, parts, body, client).await,
        Err(error) => unread(&error),
    })
}

/// Decides about a request of a session that was handed over.
async fn plan(
    shared: &Shared,
    served: &Served,
    session: SessionHandle,
    parts: Parts,
    mut body: RequestBody,
    client: &Client,
) -> Result<Plan, BoxError> {
    let is_post = parts.method == Method::POST;
    if !is_post && !body.is_end_stream() {
        return Ok(Plan::Proxied(parts, body));
    }
    let bytes = match read(pin!(&mut body), served.max_body_bytes()).await {
        Ok(bytes) => bytes,
        Err(Unread::TooLarge(bytes)) => {
            body.put_back(bytes);
            return Ok(Plan::Proxied(parts, body));
        }
        Err(Unread::Failed(error)) => return Err(error),
    };
    let proxied = |parts, bytes| Ok(Plan::Proxied(parts, RequestBody::whole(bytes)));
    let admitted = {
        let headers = Headers::of(&parts.headers);
        let (head, identity) = (headers.head(&parts), Identity::default());
        served.on_terms(|terms| {
            Sender::of(&parts, &identity, &shared.host.engine).ask(|requester| {
                // Of which server it is, its path has said.
                session.admit(&exchange::Request { head, requester, server: None, body: &bytes }, terms)
            })
        })
    };
    let Ok(admission) = admitted else { return proxied(parts, bytes) };
    // The engine counts what it refuses, so it is not asked twice.
    if admission.last_event_id().is_some_and(|cursor| !session.may_know(cursor)) {
        return proxied(parts, bytes);
    }
    match admission.action() {
        Action::Delete => proxied(parts, bytes),
        // It may begin another session.
        Action::Call if admission.initialize().is_some() => proxied(parts, bytes),
        Action::Listen | Action::Resume => {
            let json_response = served.json_response();
            match Pages::open(&shared.host, |signal| session.open(&admission, json_response, signal, 0)) {
                Ok(pages) => Ok(Plan::Stream(pages)),
                Err(_) => proxied(parts, bytes),
            }
        }
        Action::Message if admission.is_for_nobody() => {
            session.received(&admission);
            Ok(Plan::Own(accepted(&session, &parts)))
        }
        Action::Call | Action::Message => {
            let (json_response, peer) = (served.json_response(), client.peer);
            let asked = Asked { session, admission, json_response, parts, peer, body: bytes };
            Ok(ask_host(shared, Arc::new(asked)).await)
        }
    }
}

/// Gives the request to the host, and waits for what it decides.
async fn ask_host(shared: &Shared, asked: Arc<Asked>) -> Plan {
    let (verdict, decided) = oneshot::channel();
    let waiting = Waiting { asked: Arc::clone(&asked), host: Arc::clone(&shared.host), verdict };
    let arrival = match asked.admission.action() {
        Action::Call => Arrival::Call(Call(waiting)),
        _ => Arrival::Message(Message(waiting)),
    };
    if shared.inbox.put(arrival).is_err() {
        if shared.complaints.inbox_full.is_due() {
            let max_waiting = shared.options.max_waiting;
            tracing::warn!(target: "tailrope", max_waiting, "requests are refused: too many wait for the host");
        }
        let (dialect, session_id) = (asked.session.dialect(), asked.parts.headers.get(SESSION_ID));
        let refusal = Fault::TooManyWaiting.refusal_of(dialect, &asked.body);
        return Plan::Own(answer::refused(&refusal, dialect, session_id));
    }
    match decided.await {
        Ok(Verdict::Opened(pages)) => Plan::Stream(pages),
        Ok(Verdict::Accepted) => Plan::Own(accepted(&asked.session, &asked.parts)),
        Err(_) => Plan::Proxied(asked.parts.clone(), RequestBody::whole(asked.body.clone())),
    }
}

fn accepted(session: &SessionHandle, parts: &Parts) -> Response<ResponseBody> {
    answer::empty(&AnswerHead::accepted(session.dialect()), parts.headers.get(SESSION_ID))
}

/// The answer to a request whose body was not read, for clients that are still there.
pub(super) fn unread(error: &BoxError) -> Answer {
    tracing::debug!(target: "tailrope", error = &**error as &dyn std::error::Error, "the body of a request was not read to its end");
    status(if error.is::<TooSlow>() { StatusCode::REQUEST_TIMEOUT } else { StatusCode::BAD_REQUEST })
}

/// An answer without a body, after which the connection closes.
fn status(status: StatusCode) -> Answer {
    let mut answer = Response::new(AnswerBody::empty());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// Where nothing was read.
pub(super) fn refused(fault: Fault<'_>) -> Answer {
    let dialect = &tailrope_core::protocol::Dialect::NEUTRAL;
    answer::refused(&fault.refusal(dialect), dialect, None).map(AnswerBody::Own)
}
