//! What the front serves of a session itself, and what it leaves to the application.

use serde_json::{Value, json};

use tailrope_server::ServiceConfig;

use crate::kit::{Settings, Site, eventually, hello, last_id, numbers, request, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_call_is_served_by_the_front_alone() {
    let mut site = Site::new();
    let id = site.open().await;
    let session = [("mcp-session-id", &*id)];
    let called = site.ask("POST", &session, request(1, "count")).await;
    assert_eq!(called.status(), 200);
    assert_eq!(called.headers()["content-type"], "text/event-stream");
    assert_eq!(called.headers()["mcp-session-id"], *id);
    assert_eq!(numbers(called.body()), [0, 1, 2], "{}", called.body());
    assert!(called.body().contains("counted"));
    assert_eq!(site.seen_by_app(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn i3_a_polled_call_is_read_to_its_end() {
    let mut site = Site::new();
    let id = site.open().await;
    let session = ("mcp-session-id", &*id);
    let first = site.ask("POST", &[session], request(1, "poll")).await;
    assert!(first.body().starts_with("id: ") && first.body().contains("retry: 7\n"), "{}", first.body());
    let mut events = first.into_body();
    while !events.contains("polled") {
        let next = site.ask("GET", &[session, ("last-event-id", last_id(&events))], Value::Null).await;
        assert_eq!(next.status(), 200);
        events += next.body();
    }
    assert_eq!(numbers(&events), [0, 1, 2]);
    let over = site.ask("GET", &[session, ("last-event-id", last_id(&events))], Value::Null).await;
    assert_eq!(over.status(), 204, "there is nothing to come back for");
    assert_eq!(site.seen_by_app(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn messages_and_answers_reach_the_handlers() {
    let mut site = Site::new();
    let id = site.open().await;
    let session = [("mcp-session-id", &*id)];
    let told = site.ask("POST", &session, json!({ "jsonrpc": "2.0", "method": "notifications/told" })).await;
    assert_eq!((told.status().as_u16(), &**told.body()), (202, ""));
    assert_eq!(site.told.recv().await.unwrap(), "notifications/told");
    let mut call = site.client().await.begin("POST", &session, request(1, "ask")).await;
    until(&mut call, r#""method":"name""#).await;
    let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": { "name": "Ada" } });
    assert_eq!(site.ask("POST", &session, answer).await.status(), 202);
    let rest = until(&mut call, "\0").await;
    assert!(rest.contains(r#""result":{"name":"Ada"}"#), "{rest}");
    assert_eq!(site.seen_by_app(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_standalone_stream_is_served_by_the_front() {
    let mut site = Site::new();
    let id = site.open().await;
    let session = [("mcp-session-id", &*id)];
    let mut listening = site.client().await.begin("GET", &session, Value::Null).await;
    assert_eq!(listening.status(), 200);
    site.ask("POST", &session, request(1, "announce")).await;
    until(&mut listening, "announced").await;
    assert_eq!(site.seen_by_app(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn i13_a_cancelled_request_gets_its_end() {
    let mut site = Site::new();
    let id = site.open().await;
    let session = [("mcp-session-id", &*id)];
    let mut call = site.client().await.begin("POST", &session, request(1, "wait")).await;
    until(&mut call, "waits").await;
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } });
    assert_eq!(site.ask("POST", &session, cancel).await.status(), 202);
    let rest = until(&mut call, "\0").await;
    assert!(rest.contains("-32800"), "{rest}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_client_that_left_comes_back_for_the_rest() {
    let mut site = Site::new();
    let id = site.open().await;
    let session = ("mcp-session-id", &*id);
    let mut call = site.client().await.begin("POST", &[session], request(1, "ask")).await;
    let events = until(&mut call, r#""method":"name""#).await;
    drop(call);
    let engine = site.engine.clone();
    eventually("the end of the connection", || engine.stats().connections == 0).await;
    let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": { "name": "Ada" } });
    assert_eq!(site.ask("POST", &[session], answer).await.status(), 202);
    let rest = site.ask("GET", &[session, ("last-event-id", last_id(&events))], Value::Null).await;
    assert!(rest.body().contains(r#""name":"Ada""#), "{}", rest.body());
    assert_eq!(site.seen_by_app(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_session_that_was_deleted_is_the_applications_again() {
    let mut site = Site::new();
    let id = site.open().await;
    let session = [("mcp-session-id", &*id)];
    assert_eq!(site.ask("DELETE", &session, Value::Null).await.status(), 200);
    assert_eq!(site.told.recv().await.unwrap(), "ended");
    for method in ["GET", "POST"] {
        let gone = site.ask(method, &session, request(1, "ping")).await;
        assert_eq!(gone.status(), 404, "{}", gone.body());
    }
    assert_eq!(site.seen_by_app(), ["DELETE /mcp", "GET /mcp", "POST /mcp"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_the_front_cannot_serve_plainly_the_application_answers_as_without_it() {
    let mut site = Site::with(Settings {
        service: ServiceConfig::default()
            .allowed_hosts(["localhost"])
            .allowed_origins(["http://page"])
            .max_body_bytes(300),
        ..Settings::default()
    });
    let id = site.open().await;
    let session = ("mcp-session-id", &*id);
    let large = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping", "params": { "text": "x".repeat(300) } });
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], Value);
    let cases: &[Case<'_>] = &[
        ("POST", &[("mcp-session-id", "0")], request(1, "ping")),
        ("GET", &[("mcp-session-id", "0")], Value::Null),
        ("POST", &[session, ("origin", "http://evil")], request(1, "ping")),
        ("GET", &[session, ("origin", "http://evil")], Value::Null),
        ("POST", &[session, ("mcp-protocol-version", "1999-01-01")], request(1, "ping")),
        ("POST", &[session, ("mcp-protocol-version", "2026-07-28")], request(1, "ping")),
        ("POST", &[("mcp-protocol-version", "2026-07-28"), ("mcp-method", "ping")], request(1, "ping")),
        ("POST", &[session], json!("no message")),
        ("POST", &[session], json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": "none" } })),
        ("POST", &[session], json!([])),
        ("POST", &[session], large),
        ("POST", &[session], hello()),
        ("POST", &[session, ("content-encoding", "gzip")], request(1, "no method")),
        ("GET", &[session, ("last-event-id", "nothing of ours")], Value::Null),
        ("PUT", &[session], request(1, "ping")),
        ("OPTIONS", &[session], Value::Null),
        ("POST", &[], request(1, "ping")),
    ];
    for (method, headers, body) in cases {
        let ours = site.ask(method, headers, body.clone()).await;
        assert_eq!(site.seen_by_app().len(), 1, "{method} {headers:?} {body}");
        let theirs = site.ask_app(method, headers, body.clone()).await;
        site.seen_by_app();
        let whole = |answer: &http::Response<String>| {
            let mut headers = answer.headers().clone();
            headers.remove("date");
            // An event id is another one each time.
            let body = if headers["content-type"] == "text/event-stream" { "" } else { answer.body() };
            (answer.status(), headers, body.to_owned())
        };
        assert_eq!(whole(&ours), whole(&theirs), "{method} {headers:?} {body}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn only_an_allowed_host_is_served() {
    let mut site = Site::new();
    let id = site.open().await;
    let body = request(1, "ping").to_string();
    for (host, target, proxied) in [
        ("localhost", "/mcp", 0),
        ("localhost:8000", "/mcp?x=1", 0),
        ("evil.example", "/mcp", 1),
        ("localhost.evil.example", "/mcp", 1),
        ("localhost", "/mcp/", 1),
        ("localhost", "//mcp", 1),
        ("localhost", "/%6dcp", 1),
        ("localhost", "/other", 1),
        ("localhost\r\nHost: localhost", "/mcp", 1),
        ("localhost", "http://localhost/mcp", 1),
    ] {
        site.raw(format!(
            "POST {target} HTTP/1.1\r\nHost: {host}\r\nMcp-Session-Id: {id}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))
        .await;
        assert_eq!(site.seen_by_app().len(), proxied, "{host} {target}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn i7_another_user_finds_nothing() {
    let mut site = Site::new();
    let opened = site.ask("POST", &[("authorization", "Bearer alice")], hello()).await;
    let id = opened.headers()["mcp-session-id"].to_str().unwrap();
    site.seen_by_app();
    for (user, status, proxied) in [("Bearer alice", 200, 0), ("Bearer mallory", 404, 1)] {
        let headers = [("mcp-session-id", id), ("authorization", user)];
        assert_eq!(site.ask("POST", &headers, request(1, "ping")).await.status(), status);
        assert_eq!(site.seen_by_app().len(), proxied, "{user}");
    }
    assert_eq!(site.ask("POST", &[("mcp-session-id", id)], request(1, "ping")).await.status(), 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_answer_in_json_is_one() {
    let service = ServiceConfig::default().json_response(true);
    let mut site = Site::with(Settings { service, ..Settings::default() });
    let id = site.open().await;
    let called = site.ask("POST", &[("mcp-session-id", &id)], request(1, "count")).await;
    assert_eq!(called.headers()["content-type"], "application/json");
    assert_eq!(called.body(), r#"{"jsonrpc":"2.0","id":1,"result":"counted"}"#);
    assert_eq!(site.seen_by_app(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn i11_an_idle_session_is_its_hosts_to_end() {
    let mut settings = Settings::default();
    settings.engine.session_idle_ms = 1;
    let mut site = Site::with(settings);
    let _id = site.open().await;
    assert_eq!(site.told.recv().await.unwrap(), "ended");
}
