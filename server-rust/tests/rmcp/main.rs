//! Our sessions behind rmcp's `StreamableHttpService`: what its own session manager loses, repeats or mixes up.

mod lab;
mod lean;
mod own_service;
mod shared;
mod task_subscriptions;
mod tasks;
mod whose;

use std::time::Duration;

use tailrope_server::{Drain, Engine, Identity, Options, Sessions};

use crate::lab::{PATIENCE, Server, counts, result};

fn quick() -> Options {
    let mut options = Options::default();
    options.pacing.retry_ms = 20;
    options
}

#[tokio::test]
async fn i3_the_response_after_a_close_is_not_lost_and_the_last_event_not_repeated() {
    let server = Server::new(quick());
    let peer = server.open("").await;
    let mut first = peer.call(1, &["emit 3", "close", "gate later", "emit 2"]).await;
    let before = counts(&first.rest().await);
    assert_eq!(first.retry_ms(), Some(20));
    server.gates.open("later");
    let mut second = peer.resume(first.last_id()).await;
    let rest = second.rest().await;
    assert_eq!([before, counts(&rest)].concat(), [1, 2, 3, 4, 5]);
    assert_eq!(result(rest.last().unwrap()), "true done");
    // It stays readable, from every position.
    for (position, id) in first.ids.iter().enumerate() {
        let again = peer.resume(id).await.rest().await;
        assert_eq!(counts(&again).len(), 5 - position, "after {id}");
        assert_eq!(result(again.last().unwrap()), "true done");
    }
}

#[tokio::test]
async fn i13_a_call_whose_tool_panics_gets_its_end() {
    let server = Server::new(quick());
    let peer = server.open("").await;
    for _ in 0..2 {
        // Twice with one id and one token: nothing of the first is left.
        let answer = peer.call(1, &["emit 1", "fall"]).await.rest().await;
        assert_eq!((counts(&answer), &answer[1]["error"]["code"]), (vec![1], &(-32603).into()));
    }
}

#[tokio::test]
async fn i13_a_call_whose_tool_panics_gets_its_end_though_a_task_of_the_tool_goes_on() {
    let server = Server::new(quick());
    let answer = server.open("").await.call(1, &["task", "fall"]).await.rest().await;
    assert_eq!(answer[0]["error"]["code"], -32603);
}

#[tokio::test]
async fn i13_a_call_whose_tool_panics_without_its_context_gets_its_end_where_panics_are_caught() {
    let server = Server::that_catches_panics();
    let peer = server.open("").await;
    for _ in 0..2 {
        let answer = peer.call(1, &["emit 1", "fall alone"]).await.rest().await;
        assert_eq!((counts(&answer), &answer[1]["error"]["code"]), (vec![1], &(-32603).into()));
    }
    let answer = peer.call(2, &["fallen task"]).await.rest().await;
    assert_eq!(result(&answer[0]), "done", "a task of the tool is not the tool");
}

#[tokio::test]
async fn i5_streams_start_with_an_id_and_a_retry() {
    let server = Server::new(quick());
    let peer = server.open("").await;
    let mut call = peer.call(1, &["poll", "gate never"]).await;
    assert_eq!(call.rest().await.len(), 0);
    assert_eq!((call.ids.len(), call.retry_ms()), (1, Some(7)), "what the handler asked for");
    let mut resumed = peer.resume(call.last_id()).await;
    assert_eq!(resumed.rest().await.len(), 0, "a poll that brings nothing ends");
    assert_eq!((resumed.ids.len(), resumed.retry_ms()), (1, Some(7)), "and the stream remembers it");
    assert_ne!(resumed.last_id(), call.last_id());
}

#[tokio::test]
async fn i7_events_of_another_session_are_never_replayed() {
    let server = Server::new(quick());
    let (own, other) = (server.open("").await, server.open("").await);
    let mut call = own.call(1, &["emit 3"]).await;
    assert_eq!(counts(&call.rest().await), [1, 2, 3]);
    for id in &call.ids {
        let foreign = other.resume(id).await.rest().await;
        assert_eq!(counts(&foreign).len(), 0);
        assert!(foreign.iter().all(|message| message.get("error").is_some()), "{foreign:?}");
    }
}

#[tokio::test]
async fn i7_a_session_belongs_to_who_opened_it() {
    let identity = Identity::default().principal(|parts| {
        let user = parts.headers.get("authorization")?.to_str().ok()?;
        Some(user.split(' ').next()?.to_owned())
    });
    let server = Server::of(Sessions::new(Engine::new(quick())).with_identity(identity).into());
    let mut peer = server.open("alice 1").await;
    peer.user = "alice 2".to_owned();
    assert_eq!(peer.call(1, &[]).await.status(), 200);
    peer.user = "mallory 1".to_owned();
    assert_eq!(peer.call(2, &[]).await.status(), 404);
}

#[tokio::test]
async fn i10_a_reader_that_takes_nothing_delays_no_other_call() {
    let mut options = quick();
    options.limits.max_bytes_per_stream = 1 << 20;
    let server = Server::new(options);
    let peer = server.open("").await;
    let stalled = peer.call(1, &["emit 400 100000"]).await;
    for id in 2..10 {
        assert_eq!(result(&peer.call(id, &[]).await.rest().await[0]), "done");
    }
    drop(stalled);
}

#[tokio::test]
async fn i12_a_lost_connection_cancels_nothing() {
    let server = Server::new(quick());
    let peer = server.open("").await;
    let mut first = peer.call(1, &["emit 1", "gate later", "emit 1"]).await;
    first.some(1).await;
    let cursor = first.last_id().to_owned();
    drop(first);
    server.gates.open("later");
    let rest = peer.resume(&cursor).await.rest().await;
    assert_eq!(counts(&rest), [2]);
    assert_eq!(result(rest.last().unwrap()), "done");
}

#[tokio::test]
async fn i13_a_cancelled_request_gets_its_end() {
    let server = Server::new(quick());
    let peer = server.open("").await;
    let mut call = peer.call(1, &["emit 1", "gate never"]).await;
    call.some(1).await;
    let cancel = serde_json::json!({
        "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 },
    });
    assert_eq!(peer.post(cancel).await.status(), 202);
    let rest = call.rest().await;
    assert_eq!(rest.last().unwrap()["error"]["code"], -32800);
}

#[tokio::test]
async fn what_rmcp_itself_numbers_zero_is_the_start_of_the_standalone_stream() {
    let server = Server::new(quick());
    let peer = server.open("").await;
    let resumed = peer.resume("0").await;
    assert_eq!(resumed.status(), 200);
    // It is live: a session that ends closes it.
    peer.delete().await;
    let mut resumed = resumed;
    resumed.rest().await;
}

#[tokio::test]
async fn a_deleted_session_is_gone_and_so_is_its_loop() {
    let engine = Engine::new(quick());
    let server = Server::of(Sessions::new(engine.clone()).into());
    let peer = server.open("").await;
    let mut call = peer.call(1, &["emit 1", "gate never"]).await;
    call.some(1).await;
    assert_eq!(peer.delete().await.status(), 202);
    assert!(call.rest().await.iter().all(|message| message.get("error").is_some()));
    assert_eq!(peer.call(2, &[]).await.status(), 404);
    assert_eq!(peer.resume(call.last_id()).await.status(), 404);
    assert_eq!(engine.stats().sessions, 0);
}

#[tokio::test]
async fn i11_idle_sessions_end_by_themselves() {
    let engine = Engine::new(Options { session_idle_ms: 100, ..quick() });
    let server = Server::of(Sessions::new(engine.clone()).into());
    let idle = server.open("").await;
    let busy = server.open("").await;
    let mut call = busy.call(1, &["gate later"]).await;
    let is_one_left = async {
        while engine.stats().sessions != 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, is_one_left).await.expect("the idle session ends");
    assert_eq!(idle.call(1, &[]).await.status(), 404);
    server.gates.open("later");
    assert_eq!(result(&call.rest().await[0]), "done");
}

#[tokio::test]
async fn a_drain_closes_every_connection_with_an_id_and_a_retry() {
    let sessions = std::sync::Arc::new(Sessions::new(Engine::new(Options { drain_within_ms: 60_000, ..quick() })));
    let server = Server::of(std::sync::Arc::clone(&sessions));
    let peer = server.open("").await;
    let mut call = peer.call(1, &["emit 1", "gate later"]).await;
    call.some(1).await;
    let (is_over, rest) = tokio::join!(sessions.drain(Drain::default()), call.rest());
    assert!(is_over && rest.is_empty());
    assert!(call.retry_ms().unwrap() >= 5_000);
    server.gates.open("later");
    let rest = peer.resume(call.last_id()).await.rest().await;
    // What comes to a process that drains gets its priming event, and ends; the result is there or comes later.
    assert!(rest.iter().all(|message| result(message) == "done"), "{rest:?}");
}
