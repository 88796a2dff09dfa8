//! What goes through the front unchanged.

use std::io;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, Response, StatusCode};
use axum::routing::any;
use futures_util::stream::poll_fn;
use http_body_util::{BodyExt as _, Collected, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tailrope_server::front::{AppAddress, PEER_HEADER};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy, split};
use tokio::sync::mpsc;

use crate::kit::{Settings, Site, read_to_end, read_until};

/// Answers with what came: the request line, the headers in their order, the body, and the trailers.
async fn echo(request: Request) -> String {
    let (parts, body) = request.into_parts();
    let list = |headers: &HeaderMap| {
        headers.iter().map(|(name, value)| format!("{name}: {}\n", value.to_str().unwrap())).collect::<String>()
    };
    let all: Collected<Bytes> = body.collect().await.unwrap();
    let trailers = all.trailers().map(list).unwrap_or_default();
    let body = String::from_utf8(all.to_bytes().to_vec()).unwrap();
    format!("{} {} {:?}\n{}\n{body}\n{trailers}", parts.method, parts.uri, parts.version, list(&parts.headers))
}

fn echoing() -> Site {
    Site::with(Settings { routes: Router::new().route("/echo", any(echo)), ..Settings::default() })
}

fn sent(request: &str) -> String {
    request.replace('\n', "\r\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn headers_of_one_connection_stay_there() {
    let site = echoing();
    let mut socket = site.connect().await;
    let own = socket.local_addr().unwrap();
    let request = "POST /echo?a=%20b HTTP/1.1\nHost: here\nConnection: close, X-Hop\nX-Hop: 1\nKeep-Alive: 1\nTE: gzip\n\
        Proxy-Connection: close\nUpgrade: h2c\nX-Tailrope-Peer: 8.8.8.8:1 https\nX-Kept: 1\nX-Kept: 2\nContent-Length: 4\n\n\
        body";
    socket.write_all(sent(request).as_bytes()).await.unwrap();
    let answer = read_to_end(&mut socket).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("connection: close"), "{head}");
    let (line, rest) = body.split_once('\n').unwrap();
    let mut headers: Vec<_> = rest.strip_suffix("\n\nbody\n").expect(rest).lines().collect();
    headers.sort_unstable();
    let peer = format!("{PEER_HEADER}: {own} http");
    assert_eq!(line, "POST /echo?a=%20b HTTP/1.1");
    assert_eq!(headers, ["content-length: 4", "host: here", "x-kept: 1", "x-kept: 2", &peer]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_connection_header_does_not_remove_the_peer() {
    let answer = echoing().raw(sent("GET /echo HTTP/1.1\nHost: here\nConnection: close, x-tailrope-peer\n\n")).await;
    assert!(answer.contains(PEER_HEADER), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn each_kind_of_request_goes_through() {
    let site = echoing();
    let body = |answer: &str| answer.split_once("\r\n\r\n").unwrap().1.to_owned();
    // The length of a chunked body is not known.
    let chunked = site
        .raw(sent(
            "POST /echo HTTP/1.1\nHost: a\nConnection: close\nTransfer-Encoding: chunked\n\n3\nabc\n2\nde\n0\n\n",
        ))
        .await;
    assert!(body(&chunked).contains("transfer-encoding: chunked") && chunked.contains("\nabcde\n"), "{chunked}");
    let trailers = "POST /echo HTTP/1.1\nHost: a\nConnection: close\nTransfer-Encoding: chunked\n\
        Trailer: X-Sum, X-Tailrope-Peer\n\n3\nabc\n0\nX-Sum: 6\nX-Tailrope-Peer: 8.8.8.8:1 https\n\n";
    let trailers = site.raw(sent(trailers)).await;
    assert!(trailers.ends_with("\nabc\nx-sum: 6\n"), "{trailers}");
    let head = site.raw(sent("HEAD /echo HTTP/1.1\nHost: a\nConnection: close\n\n")).await;
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("content-length: ") && body(&head).is_empty(), "{head}");
    let options = site.raw(sent("OPTIONS * HTTP/1.1\nHost: a\nConnection: close\n\n")).await;
    assert!(options.starts_with("HTTP/1.1 404"), "as the application has it: {options}");
    let old = site.raw(sent("GET /echo HTTP/1.0\n\n")).await;
    assert!(old.starts_with("HTTP/1.0 200") && body(&old).starts_with("GET /echo HTTP/1.1\n"), "{old}");
    let whole = site.raw(sent("GET http://there/echo HTTP/1.1\nHost: here\nConnection: close\n\n")).await;
    assert!(body(&whole).contains("\nhost: there\n") && !whole.contains("here\n\n"), "{whole}");
    let tunnel = site.raw(sent("CONNECT there:80 HTTP/1.1\nHost: there:80\n\n")).await;
    assert!(tunnel.starts_with("HTTP/1.1 501"), "{tunnel}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_client_that_asks_whether_to_go_on_is_told_so() {
    let site = echoing();
    let mut socket = site.connect().await;
    let head = "POST /echo HTTP/1.1\nHost: a\nExpect: 100-continue\nConnection: close\nContent-Length: 2\n\n";
    socket.write_all(sent(head).as_bytes()).await.unwrap();
    read_until(&mut socket, "HTTP/1.1 100 Continue\r\n\r\n").await;
    socket.write_all(b"ok").await.unwrap();
    let answer = read_to_end(&mut socket).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\nok\n") && !answer.contains("expect"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn headers_of_the_applications_connection_stay_there() {
    let answering = any(|| async {
        let answer = Response::builder().status(StatusCode::IM_A_TEAPOT).header("connection", "close, x-hop");
        let answer = answer.header("x-hop", "1").header("keep-alive", "1").header("x-kept", "1").header("x-kept", "2");
        answer.body(Body::from("tea")).unwrap()
    });
    let site = Site::with(Settings { routes: Router::new().route("/tea", answering), ..Settings::default() });
    let mut socket = site.connect().await;
    socket.write_all(sent("GET /tea HTTP/1.1\nHost: a\n\n").as_bytes()).await.unwrap();
    let answer = read_until(&mut socket, "tea").await;
    assert!(answer.starts_with("HTTP/1.1 418") && answer.contains("x-kept: 1\r\nx-kept: 2\r\n"), "{answer}");
    for gone in ["connection", "x-hop", "keep-alive"] {
        assert!(!answer.contains(gone), "{gone} in {answer}");
    }
    socket.write_all(sent("GET /tea HTTP/1.1\nHost: a\nConnection: close\n\n").as_bytes()).await.unwrap();
    let answer = read_to_end(&mut socket).await;
    assert!(answer.contains("connection: close"), "the client's wish is honoured: {answer}");
}

/// An answer that goes on as its test says, and tells when it is dropped. Nothing breaks it off.
fn stream(chunks: mpsc::UnboundedReceiver<&'static str>, gone: mpsc::UnboundedSender<()>) -> Router {
    let once = Arc::new(Mutex::new(Some((chunks, gone))));
    Router::new().route(
        "/events",
        any(move || {
            let (mut chunks, gone) = once.lock().unwrap().take().expect("one request");
            async move {
                let stream = poll_fn(move |cx| {
                    // Captured, so that it is dropped with the stream.
                    let _held = &gone;
                    chunks.poll_recv(cx).map(|chunk| {
                        chunk.map(|chunk| match chunk {
                            "" => Err(io::Error::other("broken off")),
                            chunk => Ok(Frame::data(Bytes::from(chunk))),
                        })
                    })
                });
                Response::builder()
                    .header("content-type", "text/event-stream")
                    .body(Body::new(StreamBody::new(stream)))
                    .unwrap()
            }
        }),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn events_of_the_application_come_one_by_one_until_the_client_leaves() {
    let ((next, chunks), (gone, mut is_gone)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let site = Site::with(Settings { routes: stream(chunks, gone), ..Settings::default() });
    let mut socket = site.connect().await;
    socket.write_all(sent("GET /events HTTP/1.1\nHost: a\n\n").as_bytes()).await.unwrap();
    for event in ["data: 1\n\n", "data: 2\n\n"] {
        next.send(event).unwrap();
        read_until(&mut socket, event).await;
    }
    drop(socket);
    assert_eq!(is_gone.recv().await, None, "the application's answer was dropped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_request_without_an_answer_yet_ends_when_its_client_leaves() {
    let (began, mut begun) = mpsc::unbounded_channel::<mpsc::UnboundedSender<()>>();
    let waiting = any(move || {
        let (held, released) = mpsc::unbounded_channel();
        began.send(held.clone()).unwrap();
        async move {
            let _held = (held, released);
            std::future::pending::<()>().await;
        }
    });
    let site = Site::with(Settings { routes: Router::new().route("/wait", waiting), ..Settings::default() });
    let mut socket = site.connect().await;
    socket.write_all(sent("GET /wait HTTP/1.1\nHost: a\n\n").as_bytes()).await.unwrap();
    let running = begun.recv().await.unwrap();
    drop(socket);
    running.closed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_websocket_goes_through() {
    let switching = any(|mut request: Request| async move {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let (mut reader, mut writer) = split(TokioIo::new(upgrade.await.unwrap()));
            copy(&mut reader, &mut writer).await.unwrap();
        });
        let header = |name: &'static str| request.headers().get(HeaderName::from_static(name)).cloned().unwrap();
        let answer = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS).header("sec-websocket-accept", "yes");
        answer
            .header("connection", header("connection"))
            .header("upgrade", header("upgrade"))
            .body(Body::empty())
            .unwrap()
    });
    let site = Site::with(Settings { routes: Router::new().route("/socket", switching), ..Settings::default() });
    let mut socket = site.connect().await;
    let request = "GET /socket HTTP/1.1\nHost: a\nConnection: keep-alive, Upgrade\nUpgrade: WebSocket\n\n";
    socket.write_all(sent(request).as_bytes()).await.unwrap();
    let head = read_until(&mut socket, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    for header in ["upgrade: websocket", "connection: upgrade", "sec-websocket-accept: yes"] {
        assert!(head.contains(header), "{header} in {head}");
    }
    socket.write_all(b"frames").await.unwrap();
    assert_eq!(read_until(&mut socket, "frames").await, "frames");
    // Also the end of one side.
    socket.shutdown().await.unwrap();
    assert_eq!(socket.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_large_body_goes_through_as_it_comes() {
    let ((seen, mut sees), route) = (mpsc::unbounded_channel(), Router::new());
    let reading = any(move |request: Request| async move {
        let mut body = request.into_body();
        while let Some(frame) = body.frame().await {
            seen.send(frame.unwrap().into_data().unwrap().len()).unwrap();
        }
    });
    let site = Site::with(Settings { routes: route.route("/upload", reading), ..Settings::default() });
    let mut socket = site.connect().await;
    socket
        .write_all(sent("POST /upload HTTP/1.1\nHost: a\nContent-Length: 9\nConnection: close\n\n").as_bytes())
        .await
        .unwrap();
    for _ in 0..3 {
        socket.write_all(b"abc").await.unwrap();
        // The application has it before the rest is sent.
        assert_eq!(sees.recv().await, Some(3));
    }
    assert!(read_to_end(&mut socket).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_application_that_does_not_answer_is_said_to_be_unreachable() {
    let site = Site::with(Settings {
        front: Box::new(|options| options.app = AppAddress::Unix("/nowhere/app".into())),
        ..Settings::default()
    });
    let answer = site.ask("POST", &[], crate::kit::hello()).await;
    assert_eq!(answer.status(), 502);
    let error: Value = serde_json::from_str(answer.body()).unwrap();
    assert_eq!(error["error"]["code"], -32603);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_application_that_breaks_off_is_broken_off() {
    let ((next, chunks), (gone, _is_gone)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let site = Site::with(Settings { routes: stream(chunks, gone), ..Settings::default() });
    let mut socket = site.connect().await;
    socket.write_all(sent("GET /events HTTP/1.1\nHost: a\n\n").as_bytes()).await.unwrap();
    next.send("data: 1\n\n").unwrap();
    read_until(&mut socket, "data: 1\n\n").await;
    next.send("").unwrap();
    let rest = read_to_end(&mut socket).await;
    assert!(!rest.contains("0\r\n\r\n"), "it is no whole answer: {rest:?}");
}
