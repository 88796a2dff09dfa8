//! What the front serves of a session itself, and what it leaves to the application.

use serde_json::{Value, json};

use crate::kit::{Site, last_id, numbers, request, until};

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
