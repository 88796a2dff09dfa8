//! Whose session it is, behind rmcp's own service.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Once};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::json;
use tailrope_core::log_lines::{Line, LineSink, send_lines};
use tailrope_server::{Drain, Engine, Identity, Sessions};
use tower_layer::Layer as _;
use tower_service::Service;
use tracing::field::{Field, Visit};
use tracing::subscriber::DefaultGuard;
use tracing::{Level, span};

use crate::lab::{Answer, Gates, Peer, Server, Steps, counts, hello, result};
use crate::quick;
use crate::shared::{Place, ask, ask_at};

/// All that somebody gets who asks for a session in every way there is.
async fn answers(server: &Server, user: &str, id: &str, cursor: &str) -> Vec<(u16, HeaderMap, Bytes)> {
    let peer = Peer { server, id: id.to_owned(), user: user.to_owned() };
    let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": {} });
    let notification = json!({ "jsonrpc": "2.0", "method": "notifications/roots/list_changed" });
    let asked: [Pin<Box<dyn Future<Output = Answer> + Send>>; 7] = [
        Box::pin(peer.resume(cursor)),
        Box::pin(peer.resume("0")),
        Box::pin(peer.listen()),
        Box::pin(peer.call(9, &[])),
        Box::pin(peer.post(answer)),
        Box::pin(peer.post(notification)),
        Box::pin(peer.delete()),
    ];
    let mut answers = Vec::new();
    for asked in asked {
        answers.push(asked.await.whole().await);
    }
    answers
}

/// Bob, with a token of his own, asks a process for alice's session.
async fn bob_gets_what_he_gets_for_an_unknown_session(owner: &Server, asked: &Server, engine: &Engine) {
    let alice = owner.open("Bearer alice").await;
    let mut call = alice.call(1, &["emit 1"]).await;
    assert_eq!(result(call.rest().await.last().unwrap()), "done");
    let cursor = &call.ids[0];
    for user in ["Bearer bob", ""] {
        let before = engine.stats().requests_foreign;
        let stolen = answers(asked, user, &alice.id, cursor).await;
        assert_eq!(engine.stats().requests_foreign, before + 7);
        assert_eq!(stolen, answers(asked, user, &"0".repeat(32), cursor).await);
        // rmcp answers every DELETE with 202.
        let statuses: Vec<u16> = stolen.iter().map(|(status, ..)| *status).collect();
        assert_eq!(statuses, [404, 404, 404, 404, 404, 404, 202]);
    }
    // It is still hers, with all that is in it.
    let again = alice.at(asked).resume(cursor).await.rest().await;
    assert_eq!((counts(&again).len(), result(again.last().unwrap())), (1, "done"));
    assert_eq!(alice.at(asked).listen().await.status(), 200);
    assert_eq!(alice.at(asked).delete().await.status(), 202);
    assert_eq!(alice.call(2, &[]).await.status(), 404);
}

#[tokio::test]
async fn i7_behind_rmcp_s_service_another_users_session_is_an_unknown_one() {
    let engine = Engine::new(quick());
    let server = Server::of(Sessions::new(engine.clone()).into());
    bob_gets_what_he_gets_for_an_unknown_session(&server, &server, &engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i7_behind_rmcp_s_service_another_users_session_is_unknown_in_another_process() {
    let place = Place::new("whose");
    let sessions = place.sessions();
    let engine = sessions.engine().clone();
    let (owner, asked) = (Server::of(place.sessions().into()), Server::heir(sessions));
    bob_gets_what_he_gets_for_an_unknown_session(&owner, &asked, &engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i7_requests_of_two_users_at_once_are_kept_apart() {
    let place = Place::new("at-once");
    let (owner, other) = (Server::of(place.sessions().into()), Server::of(place.sessions().into()));
    let alice = owner.open("Bearer alice").await;
    let mut call = alice.call(1, &["emit 1"]).await;
    call.rest().await;
    for server in [&owner, &other] {
        let alice = alice.at(server);
        let bob = Peer { server, id: alice.id.clone(), user: "Bearer bob".to_owned() };
        for _ in 0..20 {
            let (mine, his) = tokio::join!(alice.resume(&call.ids[0]), bob.resume(&call.ids[0]));
            assert_eq!((mine.status(), his.status()), (200, 404));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o6_i7_after_a_restart_a_session_goes_on_with_its_own_user() {
    let place = Place::new("restarted");
    let named = || Identity::default().principal(|parts| parts.headers.get("x-user")?.to_str().ok().map(str::to_owned));
    let sessions = Arc::new(place.sessions().with_identity(named()));
    let before = Server::of(Arc::clone(&sessions));
    let alice = before.open("Bearer alice").await;
    let mut call = alice.call(1, &["emit 2"]).await;
    assert_eq!(counts(&call.rest().await), [1, 2]);
    assert!(sessions.drain(Drain::default()).await, "nothing runs any more");
    let heir = place.sessions().with_identity(named());
    let engine = heir.engine().clone();
    let after = Server::heir(heir);
    let bob = Peer { server: &after, id: alice.id.clone(), user: "Bearer bob".to_owned() };
    assert_eq!(bob.call(2, &[]).await.status(), 404);
    assert_eq!(engine.stats().sessions_adopted, 0);
    let alice = alice.at(&after);
    assert_eq!(counts(&alice.resume(&call.ids[0]).await.rest().await), [1, 2]);
    assert_eq!(result(&alice.call(2, &[]).await.rest().await[0]), "done");
    assert_eq!(engine.stats().sessions_adopted, 1);
    assert_eq!(bob.call(3, &[]).await.status(), 404);
    assert_eq!(alice.delete().await.status(), 202);
    assert_eq!(alice.call(3, &[]).await.status(), 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o7_i7_behind_rmcp_s_service_the_path_names_the_server() {
    let place = Place::new("paths");
    let shared = Arc::new(place.sessions());
    let at = |path, sessions: Arc<Sessions>| Server::of(sessions).at(path);
    let admin = at("/admin", Arc::clone(&shared));
    let (public, other) = (at("/public", shared), at("/public", place.sessions().into()));
    let peer = admin.open("").await;
    for server in [&public, &other] {
        for (status, ..) in answers(server, "", &peer.id, "0").await.into_iter().take(6) {
            assert_eq!(status, 404);
        }
    }
    assert_eq!(result(&peer.call(1, &[]).await.rest().await[0]), "done");
}

#[tokio::test]
async fn o7_i7_a_layer_around_a_router_sees_the_whole_path() {
    let sessions = Arc::new(Sessions::new(Engine::new(quick())));
    let tools = Steps::new(&Gates::default());
    let config = StreamableHttpServerConfig::default();
    let service = StreamableHttpService::new(move || Ok(tools.clone()), sessions, config);
    let app = axum::Router::new().nest_service("/admin", service.clone()).nest_service("/public", service);
    let app = app.layer(Sessions::layer());
    let opened = ask_at(app.clone(), "/admin", None, hello()).await;
    let id = Some(opened.headers()["mcp-session-id"].to_str().unwrap().to_owned());
    let notification = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    assert_eq!(ask_at(app.clone(), "/public", id.clone(), notification.clone()).await.status(), 404);
    assert_eq!(ask_at(app, "/admin", id, notification).await.status(), 202);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_behind_rmcp_s_service_see_the_path_of_relayed_requests() {
    let place = Place::new("path-seen");
    let sessions = Arc::new(place.sessions());
    let (owner, other) = (Server::of(Arc::clone(&sessions)), Server::heir(place.sessions()));
    let peer = owner.open("").await.at(&other);
    assert_eq!(result(&peer.call(1, &["path"]).await.rest().await[0]), "/mcp done", "relayed");
    assert!(sessions.drain(Drain::default()).await);
    assert_eq!(result(&peer.call(2, &["path"]).await.rest().await[0]), "/mcp done", "adopted");
}

/// Wants no line, and leaves none switched off.
struct Unwanted;

impl LineSink for Unwanted {
    fn wants(&self, _: Level) -> bool {
        false
    }

    fn take(&self, _: Level, _: Line) {}
}

/// Collects warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    /// Those of this thread, until the guard goes.
    fn here() -> (Self, DefaultGuard) {
        // A line that the thread of another test comes to first would otherwise be switched off here, too.
        static ONCE: Once = Once::new();
        ONCE.call_once(|| send_lines(Unwanted));
        let warnings = Self::default();
        let guard = tracing::subscriber::set_default(warnings.clone());
        (warnings, guard)
    }
}

impl Visit for Warnings {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "tailrope" && *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}

    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _span: &span::Id) {}

    fn exit(&self, _span: &span::Id) {}
}

/// What is warned of by a server that two clients use.
async fn warnings(server: Server) -> Vec<String> {
    let (warnings, _guard) = Warnings::here();
    for id in [1, 2] {
        let peer = server.open("").await;
        assert_eq!(result(&peer.call(id, &[]).await.rest().await[0]), "done");
        assert_eq!(peer.delete().await.status(), 202);
    }
    std::mem::take(&mut warnings.0.lock().unwrap())
}

#[tokio::test]
async fn i7_one_warning_says_that_the_layer_is_missing() {
    let place = Place::new("warned");
    let named = || Sessions::new(Engine::new(quick())).with_identity(Identity::default().principal(|_| None));
    for sessions in [named(), place.sessions()] {
        let logged = warnings(Server::of(sessions.into()).without_layer()).await;
        assert!(logged.len() == 1 && logged[0].contains("`Sessions::layer()`"), "{logged:?}");
    }
    let plain = Server::of(Sessions::new(Engine::new(quick())).into()).without_layer();
    assert_eq!(warnings(plain).await, [""; 0], "nobody has a name, and nothing is shared");
    assert_eq!(warnings(Server::of(named().into())).await, [""; 0], "the layer is there");
}

#[tokio::test]
async fn i7_without_the_layer_a_request_with_a_credential_opens_no_session() {
    let (warnings, _guard) = Warnings::here();
    let engine = Engine::new(quick());
    let server = Server::of(Sessions::new(engine.clone()).into()).without_layer();
    for _ in 0..2 {
        let opened = server.ask("POST", &[("authorization", "Bearer alice")], hello().to_string()).await;
        let (status, head, body) = opened.whole().await;
        assert!(status == 500 && head.get("mcp-session-id").is_none());
        assert!(String::from_utf8_lossy(&body).contains("`Sessions::layer()`"), "{body:?}");
    }
    let nobodys = server.open("").await;
    let alice = Peer { server: &server, id: nobodys.id.clone(), user: "Bearer alice".to_owned() };
    assert_eq!(alice.call(1, &[]).await.status(), 500, "nor does she find one of nobody's");
    assert_eq!(warnings.0.lock().unwrap().len(), 1);
    assert_eq!(engine.stats().sessions, 1);
}

#[tokio::test]
async fn i7_without_the_layer_nobody_finds_a_users_session() {
    let engine = Engine::new(quick());
    let sessions = Arc::new(Sessions::new(engine.clone()));
    let (layered, bare) = (Server::of(Arc::clone(&sessions)), Server::of(sessions).without_layer());
    let alice = layered.open("Bearer alice").await;
    let statuses = answers(&bare, "Bearer alice", &alice.id, "0").await.into_iter().map(|(status, ..)| status);
    assert_eq!(statuses.collect::<Vec<_>>(), [404, 404, 404, 404, 404, 404, 202]);
    assert_eq!(result(&alice.call(1, &[]).await.rest().await[0]), "done");
}

/// A user, as authentication leaves it.
#[derive(Clone)]
struct User;

/// A service behind authentication.
struct Authenticated<S>(S);

impl<S: Service<Request<B>>, B> Service<Request<B>> for Authenticated<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> S::Future {
        request.extensions_mut().insert(User);
        self.0.call(request)
    }
}

#[tokio::test]
async fn i7_a_layer_outside_of_authentication_opens_no_session_of_a_user() {
    let user = |parts: &Parts| parts.extensions.get::<User>().map(|_| "alice".to_owned());
    let engine = Engine::new(quick());
    let sessions = Arc::new(Sessions::new(engine.clone()).with_identity(Identity::default().principal(user)));
    let tools = Steps::new(&Gates::default());
    let service = StreamableHttpService::new(
        move || Ok(tools.clone()),
        Arc::clone(&sessions),
        StreamableHttpServerConfig::default(),
    );
    let outside = Sessions::layer().layer(Authenticated(service.clone()));
    assert_eq!(ask(outside, None, hello()).await.status(), 500);
    let inside = Authenticated(Sessions::layer().layer(service));
    assert_eq!(ask(inside, None, hello()).await.status(), 200);
    assert_eq!(engine.stats().sessions, 1);
}
