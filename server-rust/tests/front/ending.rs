//! The end of a front.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::Value;
use tailrope_core::engine::NoWake;
use tailrope_server::front::{AppAddress, Front, FrontOptions};
use tailrope_server::{Drain, Engine, Options};
use tokio::io::AsyncWriteExt as _;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::kit::{PATIENCE, Settings, Site, eventually, last_id, read_to_end, read_until, request, until};

/// A request that is answered at once.
fn ping(id: &str, number: u64) -> String {
    let body = request(number, "ping").to_string();
    format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: {id}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_drain_closes_the_streams_of_a_front_that_stopped_and_loses_nothing() {
    let mut site = Site::new();
    let id = site.open().await;
    let session = ("mcp-session-id", &*id);
    let mut call = site.client().await.begin("POST", &[session], request(1, "ask")).await;
    let mut events = until(&mut call, r#""method":"name""#).await;
    let mut idle = site.connect().await;
    idle.write_all(ping(&id, 2).as_bytes()).await.unwrap();
    read_until(&mut idle, "0\r\n\r\n").await;
    site.front.stop();
    assert_eq!(read_to_end(&mut idle).await, "", "an idle connection is closed");
    let address = site.front.addresses()[0];
    eventually("the end of the listener", || std::net::TcpStream::connect(address).is_err()).await;
    let service = site.service.clone();
    let draining = tokio::spawn(async move { service.drain(Drain::default().within_ms(60_000)).await });
    // Its end is a whole one: the reader gets no error.
    events += &until(&mut call, "\0").await;
    assert!(events.contains("retry: "), "{events}");
    assert!(draining.await.unwrap(), "nothing is left");
    let front = Arc::clone(&site.front);
    timeout(PATIENCE, spawn_blocking(move || front.close(60_000))).await.expect("nothing is waited for").unwrap();
    // What it did not get is still there.
    let rest = site.ask_app("GET", &[session, ("last-event-id", last_id(&events))], Value::Null).await;
    assert_eq!(rest.status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn close_waits_for_answers_and_cuts_what_goes_on() {
    let mut site = Site::new();
    let id = site.open().await;
    let session = [("mcp-session-id", &*id)];
    let mut waits = site.client().await.begin("POST", &session, request(1, "ask")).await;
    until(&mut waits, r#""method":"name""#).await;
    let mut fresh = site.connect().await;
    let front = Arc::clone(&site.front);
    let closing = spawn_blocking(move || front.close(60_000));
    assert_eq!(read_to_end(&mut fresh).await, "", "a connection without a request is closed");
    assert!(!closing.is_finished(), "an answer runs");
    // The answer goes on.
    let answer = serde_json::json!({ "jsonrpc": "2.0", "id": 1, "result": { "name": "Ada" } });
    assert_eq!(site.ask_app("POST", &session, answer).await.status(), 202);
    assert!(until(&mut waits, "\0").await.contains("Ada"));
    timeout(PATIENCE, closing).await.expect("no answer runs").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn close_cuts_after_its_time() {
    let mut site = Site::new();
    let id = site.open().await;
    let mut waits = site.client().await.begin("POST", &[("mcp-session-id", &id)], request(1, "wait")).await;
    until(&mut waits, "waits").await;
    assert_eq!(site.engine.stats().connections, 1);
    let front = Arc::clone(&site.front);
    timeout(PATIENCE, spawn_blocking(move || front.close(1))).await.expect("it waits no longer").unwrap();
    assert_eq!(site.engine.stats().connections, 0);
    assert!(!site.engine.is_draining());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_shortest_close_counts_and_each_waits_for_the_end() {
    let mut site = Site::new();
    let id = site.open().await;
    let mut waits = site.client().await.begin("POST", &[("mcp-session-id", &id)], request(1, "wait")).await;
    until(&mut waits, "waits").await;
    let close = |within_ms| {
        let front = Arc::clone(&site.front);
        spawn_blocking(move || front.close(within_ms))
    };
    let (first, longer) = (close(3_600_000), close(u64::MAX));
    let address = site.front.addresses()[0];
    eventually("the end of the listener", || std::net::TcpStream::connect(address).is_err()).await;
    timeout(PATIENCE, close(0)).await.expect("it waits for no answer").unwrap();
    assert_eq!(site.engine.stats().connections, 0, "it waits for the end");
    for closing in [first, longer] {
        timeout(PATIENCE, closing).await.expect("it is shortened").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn requests_that_came_before_the_stop_are_served() {
    let mut site = Site::new();
    let id = site.open().await;
    // More than one turn of a listener takes.
    let mut sockets = Vec::new();
    for number in 0..300 {
        let mut socket = site.connect().await;
        socket.write_all(ping(&id, number).as_bytes()).await.unwrap();
        sockets.push(socket);
    }
    site.front.stop();
    for mut socket in sockets {
        let answer = read_to_end(&mut socket).await;
        assert!(answer.contains(r#""result":{}"#), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn of_two_fronts_on_one_port_one_may_end() {
    let shared = |address: Option<SocketAddr>| Settings {
        front: Box::new(move |options| {
            options.reuse_port = true;
            options.addresses = vec![address.unwrap_or_else(|| "127.0.0.1:0".parse().unwrap())];
        }),
        ..Settings::default()
    };
    let first = Site::with(shared(None));
    let address = first.front.addresses()[0];
    let second = Site::with(shared(Some(address)));
    first.front.close(0);
    for _ in 0..20 {
        let answer = second.ask("POST", &[], crate::kit::hello()).await;
        assert_eq!(answer.status(), 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_socket_that_listens_already_is_served() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let site = Site::with(Settings {
        front: Box::new(move |options| {
            options.addresses.clear();
            options.listeners.push(listener);
        }),
        ..Settings::default()
    });
    assert_eq!(site.front.addresses(), [address]);
    assert_eq!(site.ask("POST", &[], crate::kit::hello()).await.status(), 200);
    site.front.stop();
    // No other descriptor of it is left on which the system would accept.
    eventually("nobody listens", || std::net::TcpStream::connect(address).is_err()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_address_that_is_taken_is_an_error() {
    let taker = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taker.local_addr().unwrap();
    let mut options = FrontOptions::new(AppAddress::Tcp(taken));
    options.addresses.push(taken);
    let error = Front::start(Engine::new(Options::default()), options, Arc::new(NoWake), 0).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
}
