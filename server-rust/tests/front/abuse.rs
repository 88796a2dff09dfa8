//! Clients that send too slowly, too much, or what is no HTTP.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::routing::any;
use http_body_util::BodyExt as _;
use tokio::io::AsyncWriteExt as _;

use crate::kit::{Settings, Site, eventually, read_to_end, read_until, request};

fn impatient() -> Site {
    Site::with(Settings {
        front: Box::new(|options| (options.head_timeout_ms, options.body_timeout_ms) = (50, 50)),
        routes: Router::new()
            .route("/upload", any(|request: Request| async { drop(request.into_body().collect().await) })),
        ..Settings::default()
    })
}

fn post(id: &str, more: &str) -> String {
    format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: {id}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\n{more}"
    )
}

fn ping(id: &str, more: &str) -> String {
    let body = request(1, "ping").to_string();
    post(id, &format!("{more}Content-Length: {}\r\n\r\n{body}", body.len()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_head_that_does_not_end_is_not_waited_for() {
    let site = impatient();
    for begun in ["", "GET / HTTP/1.1\r\nHost: a\r\nX"] {
        let answer = site.raw(begun).await;
        assert!(!answer.contains("200"), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_body_that_does_not_go_on_is_not_waited_for() {
    let mut site = impatient();
    let id = site.open().await;
    let begun = post(&id, "Content-Length: 9\r\n\r\n{");
    for begun in [&*begun, "POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{"] {
        let answer = site.raw(begun).await;
        assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("connection: close"), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_is_no_http_is_refused() {
    let mut site = Site::new();
    let id = site.open().await;
    let head = "POST /mcp HTTP/1.1\r\nHost: a\r\n";
    for (bytes, status) in [
        (format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(200_000)), 431),
        (format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: x\r\n".repeat(1_000)), 431),
        ("no http\r\n\r\n".to_owned(), 400),
        (format!("{head}Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"), 400),
        (format!("{head}Content-Length: -1\r\n\r\nab"), 400),
        (format!("{head}Transfer-Encoding: gzip\r\n\r\nab"), 400),
        (format!("{head}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"), 400),
        (format!("{head}X: a\r\n folded\r\n\r\n"), 400),
        (post(&id, "Transfer-Encoding: chunked\r\n\r\nno length\r\n{}\r\n0\r\n\r\n"), 400),
        (
            "POST /other HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nno length\r\n{}\r\n0\r\n\r\n"
                .to_owned(),
            400,
        ),
    ] {
        let answer = site.raw(&bytes).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer:?} to {:.200}", bytes);
    }
    assert!(site.raw(ping(&id, "Connection: close\r\n")).await.contains(r#""result":{}"#), "others are served");
}

/// A body that two servers could read differently must not become a request of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn no_request_is_smuggled() {
    let echo = any(|request: Request| async move {
        let length = request.headers().get("content-length").is_some();
        format!("<{length} {}>", request.into_body().collect().await.unwrap().to_bytes().len())
    });
    let mut site = Site::with(Settings { routes: Router::new().route("/echo", echo), ..Settings::default() });
    let hidden = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";
    let chunked = format!("{:x}\r\n{hidden}\r\n0\r\n\r\n", hidden.len());
    for head in
        ["Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n"]
    {
        let answer =
            site.raw(format!("POST /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{head}\r\n{chunked}")).await;
        assert!(answer.contains(&format!("<false {}>", hidden.len())), "{answer}");
        assert_eq!(site.seen_by_app(), ["POST /echo"]);
    }
    let named = format!(
        "POST /echo HTTP/1.1\r\nHost: a\r\nConnection: close, content-length\r\nContent-Length: {}\r\n\r\n{hidden}",
        hidden.len()
    );
    assert!(site.raw(named).await.contains(&format!("<true {}>", hidden.len())));
    assert_eq!(site.seen_by_app(), ["POST /echo"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn requests_in_a_row_are_answered_in_a_row() {
    let mut site = Site::new();
    let id = site.open().await;
    let answers = site.raw(ping(&id, "").repeat(3) + &ping(&id, "Connection: close\r\n")).await;
    assert_eq!(answers.matches(r#""result":{}"#).count(), 4, "{answers}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_connection_without_its_client_is_given_up() {
    let mut site = Site::new();
    let id = site.open().await;
    let mut socket = site.connect().await;
    let wait = request(1, "wait").to_string();
    socket.write_all(post(&id, &format!("Content-Length: {}\r\n\r\n{wait}", wait.len())).as_bytes()).await.unwrap();
    read_until(&mut socket, "waits").await;
    // Half of it is enough: nothing tells this from a client that has left.
    socket.shutdown().await.unwrap();
    let engine = site.engine.clone();
    eventually("the end of the connection", || engine.stats().connections == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn i11_connections_above_the_bound_wait() {
    let mut site =
        Site::with(Settings { front: Box::new(|options| options.max_connections = 2), ..Settings::default() });
    let id = site.open().await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut socket = site.connect().await;
        socket.write_all(ping(&id, "").as_bytes()).await.unwrap();
        read_until(&mut socket, "0\r\n\r\n").await;
        open.push(socket);
    }
    let mut third = site.connect().await;
    third.write_all(ping(&id, "Connection: close\r\n").as_bytes()).await.unwrap();
    let waits = site.engine.stats().connections_opened;
    // The others are served meanwhile.
    open[0].write_all(ping(&id, "").as_bytes()).await.unwrap();
    read_until(&mut open[0], "0\r\n\r\n").await;
    assert_eq!(site.engine.stats().connections_opened, waits + 1);
    drop(open.pop());
    assert!(read_to_end(&mut third).await.contains(r#""result":{}"#));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn many_clients_at_once_are_served() {
    let mut site = Site::new();
    let id: Arc<str> = site.open().await.into();
    let address = site.front.addresses()[0];
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..400 {
        let id = Arc::clone(&id);
        asking.spawn(async move {
            let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
            socket.write_all(ping(&id, "Connection: close\r\n").as_bytes()).await.unwrap();
            assert!(read_to_end(&mut socket).await.contains(r#""result":{}"#));
        });
    }
    asking.join_all().await;
}
