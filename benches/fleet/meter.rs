//! Stands between the store objects and their server, and counts what passes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What was counted until now.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Connections that are open.
    pub(crate) connections: u64,
    /// Commands to Redis, each run of a script as one; statements that PostgreSQL answered, or several in one transaction.
    pub(crate) requests: u64,
    /// Messages of publish and subscribe, or notifications, that came to a store object.
    pub(crate) messages: u64,
}

#[derive(Default)]
struct Totals {
    connections: AtomicU64,
    requests: AtomicU64,
    messages: AtomicU64,
}

/// A proxy with counters.
pub(crate) struct Meter {
    totals: Arc<Totals>,
    /// Where the proxy listens.
    pub(crate) port: u16,
}

impl Meter {
    pub(crate) fn new(to: SocketAddr, is_redis: bool) -> Self {
        let totals = Arc::new(Totals::default());
        let (told, port) = channel();
        let of_thread = Arc::clone(&totals);
        // Ends with the process.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
                told.send(listener.local_addr().expect("it has an address").port()).expect("somebody waits for it");
                while let Ok((client, _)) = listener.accept().await {
                    tokio::spawn(pass(client, to, is_redis, Arc::clone(&of_thread)));
                }
            });
        });
        Self { totals, port: port.recv().expect("the proxy listens") }
    }

    pub(crate) fn read(&self) -> Counts {
        let read = |total: &AtomicU64| total.load(Ordering::SeqCst);
        let Totals { connections, requests, messages } = &*self.totals;
        Counts { connections: read(connections), requests: read(requests), messages: read(messages) }
    }
}

async fn pass(client: TcpStream, to: SocketAddr, is_redis: bool, totals: Arc<Totals>) {
    let Ok(server) = TcpStream::connect(to).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    totals.connections.fetch_add(1, Ordering::SeqCst);
    let (mut commands, mut pushes, mut frames) = (Commands::default(), Pushes::default(), Frames::default());
    let asked = copy(from_client, to_server, |bytes| {
        if is_redis {
            totals.requests.fetch_add(commands.count(bytes), Ordering::SeqCst);
        }
    });
    let answered = copy(from_server, to_client, |bytes| {
        let (requests, messages) = if is_redis { (0, pushes.count(bytes)) } else { frames.count(bytes) };
        totals.requests.fetch_add(requests, Ordering::SeqCst);
        totals.messages.fetch_add(messages, Ordering::SeqCst);
    });
    tokio::select! {
        () = asked => {}
        () = answered => {}
    }
    totals.connections.fetch_sub(1, Ordering::SeqCst);
}

async fn copy(mut from: impl AsyncReadExt + Unpin, mut to: impl AsyncWriteExt + Unpin, mut look: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        look(&buffer[..count]);
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Counts commands as clients of Redis write them: `*N`, then N times `$LENGTH` and so many bytes, each with its line end.
#[derive(Default)]
struct Commands {
    line: Vec<u8>,
    /// Bytes that are no line.
    skip: usize,
}

impl Commands {
    fn count(&mut self, bytes: &[u8]) -> u64 {
        let (mut rest, mut found) = (bytes, 0);
        while !rest.is_empty() {
            let skipped = self.skip.min(rest.len());
            self.skip -= skipped;
            rest = &rest[skipped..];
            let Some((byte, after)) = rest.split_first() else { break };
            rest = after;
            if *byte != b'\n' {
                self.line.push(*byte);
                continue;
            }
            let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).trim_end().to_owned();
            if line.starts_with('*') {
                found += 1;
            } else if let Some(length) = line.strip_prefix('$') {
                self.skip = length.parse::<usize>().expect("a length") + 2;
            }
        }
        found
    }
}

/// Counts messages to subscribers. No event of this program has these bytes.
#[derive(Default)]
struct Pushes {
    end: Vec<u8>,
}

impl Pushes {
    fn count(&mut self, bytes: &[u8]) -> u64 {
        const MARK: &[u8] = b"message\r\n";
        let text = [&self.end, bytes].concat();
        let found = text.windows(MARK.len()).filter(|part| *part == MARK).count();
        self.end = text[text.len().saturating_sub(MARK.len() - 1)..].to_vec();
        found as u64
    }
}

/// Counts what PostgreSQL says: each frame has a letter and its length.
#[derive(Default)]
struct Frames {
    head: Vec<u8>,
    skip: usize,
}

impl Frames {
    /// How often it was ready for the next query, and notifications.
    fn count(&mut self, bytes: &[u8]) -> (u64, u64) {
        let (mut rest, mut ready, mut notified) = (bytes, 0, 0);
        while !rest.is_empty() {
            let skipped = self.skip.min(rest.len());
            self.skip -= skipped;
            rest = &rest[skipped..];
            let Some((byte, after)) = rest.split_first() else { break };
            rest = after;
            self.head.push(*byte);
            if let [letter, a, b, c, d] = self.head[..] {
                ready += u64::from(letter == b'Z');
                notified += u64::from(letter == b'A');
                self.skip = u32::from_be_bytes([a, b, c, d]) as usize - 4;
                self.head.clear();
            }
        }
        (ready, notified)
    }
}
