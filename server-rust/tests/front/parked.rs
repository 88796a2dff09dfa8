//! What a stream costs that nobody writes to. `cargo test -p tailrope-server --features front --test front -- --ignored --nocapture`

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::kit::{Settings, Site, hello};

const STREAMS: usize = 4_000;

/// Bytes of memory that the process has.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4_096
}

async fn listen(mut socket: impl AsyncRead + AsyncWrite + Unpin, id: &str) -> impl AsyncRead + AsyncWrite {
    let request =
        format!("GET /mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: {id}\r\nAccept: text/event-stream\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut byte = [0; 256];
    assert_ne!(socket.read(&mut byte).await.unwrap(), 0);
    assert!(byte.starts_with(b"HTTP/1.1 200"));
    socket
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "a measurement"]
async fn bytes_of_a_parked_stream() {
    let mut settings = Settings::default();
    settings.engine.max_sessions_per_principal = STREAMS * 2;
    let mut site = Site::with(settings);
    let mut ids = Vec::new();
    for _ in 0..2 * STREAMS {
        let opened = site.ask_app("POST", &[], hello()).await;
        ids.push(opened.headers()["mcp-session-id"].to_str().unwrap().to_owned());
    }
    site.seen_by_app();
    let (behind, front) = ids.split_at(STREAMS);
    let mut kept: Vec<Box<dyn Send>> = Vec::new();
    let before = resident();
    for id in front {
        kept.push(Box::new(listen(site.connect().await, id).await));
    }
    let between = resident();
    assert_eq!(site.seen_by_app(), [""; 0]);
    for id in behind {
        kept.push(Box::new(listen(UnixStream::connect(site.socket()).await.unwrap(), id).await));
    }
    let after = resident();
    let each = |bytes: usize| bytes / STREAMS;
    eprintln!("{} bytes for each stream at the front, {} at axum", each(between - before), each(after - between));
    assert_eq!(site.ask("POST", &[("mcp-session-id", &ids[0])], Value::Null).await.status(), 400);
}
