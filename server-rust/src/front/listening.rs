//! Accepts connections, and drives them.

use std::io;
use std::mem::take;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{sleep, timeout};

use super::exchange::serve;
use super::options::FrontOptions;
use super::{Phase, Shared};

/// Connections that wait until they are accepted. The system may allow fewer.
const BACKLOG: u32 = 4_096;
/// The pause after an error of accepting, for example because the process has no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a connection may still send its first request when the front stops.
const LAST_REQUEST: Duration = Duration::from_millis(500);
/// The most that the head of a request may have.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// A connection of a client.
pub(super) struct Client {
    pub(super) peer: SocketAddr,
    /// It has sent a request.
    has_asked: AtomicBool,
    /// Given back when the connection is over, or what it was upgraded to.
    _permit: OwnedSemaphorePermit,
}

impl Client {
    fn new(peer: SocketAddr, permit: OwnedSemaphorePermit) -> Self {
        Self { peer, has_asked: AtomicBool::new(false), _permit: permit }
    }
}

/// Opens the sockets of a front, in the current runtime. Returns their addresses, too.
pub(super) fn open(options: &mut FrontOptions) -> io::Result<(Vec<TcpListener>, Vec<SocketAddr>)> {
    // Another descriptor of the same socket would accept connections when the front has stopped.
    let given = take(&mut options.listeners).into_iter().map(|listener| {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    });
    let bound = options.addresses.iter().map(|address| bind(*address, options.reuse_port));
    let listeners: Vec<_> = bound.chain(given).collect::<io::Result<_>>()?;
    let addresses = listeners.iter().map(TcpListener::local_addr).collect::<io::Result<_>>()?;
    Ok((listeners, addresses))
}

fn bind(address: SocketAddr, reuse_port: bool) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Elsewhere this lets others take the address of a listener.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    if reuse_port {
        #[cfg(not(unix))]
        return Err(io::Error::new(io::ErrorKind::Unsupported, "reuse_port: this system has no SO_REUSEPORT"));
        #[cfg(unix)]
        socket.set_reuseport(true)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts connections until the front stops.
pub(super) async fn accept(shared: Arc<Shared>, listener: TcpListener) {
    let mut phase = shared.phase.subscribe();
    let mut is_stopped = pin!(phase.wait_for(|phase| *phase != Phase::Serving));
    loop {
        tokio::select! {
            biased;
            _ = &mut is_stopped => break,
            (socket, client) = next(&shared, &listener) => spawn(&shared, socket, client),
        }
    }
    // To close the socket would reset the connections that wait behind it. tokio may not have heard of all of them.
    let Ok(listener) = listener.into_std() else { return };
    for _ in 0..BACKLOG {
        let Ok(permit) = Arc::clone(&shared.connections).try_acquire_owned() else { break };
        let Ok((socket, peer)) = listener.accept() else { break };
        if let Ok(socket) = socket.set_nonblocking(true).and_then(|()| TcpStream::from_std(socket)) {
            spawn(&shared, socket, Client::new(peer, permit));
        }
    }
}

fn spawn(shared: &Arc<Shared>, socket: TcpStream, client: Client) {
    tokio::spawn(drive(Arc::clone(shared), socket, Arc::new(client)));
}

/// The next connection, when there is room for it.
async fn next(shared: &Shared, listener: &TcpListener) -> (TcpStream, Client) {
    let connections = &shared.connections;
    if connections.available_permits() == 0 && shared.complaints.crowded.is_due() {
        let max_connections = shared.options.max_connections;
        tracing::warn!(target: "tailrope", max_connections, "new connections wait: as many are open as may be");
    }
    let permit = Arc::clone(connections).acquire_owned().await.expect("nobody closes the semaphore");
    loop {
        match listener.accept().await {
            Ok((socket, peer)) => return (socket, Client::new(peer, permit)),
            // The client has left already.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                if shared.complaints.not_accepted.is_due() {
                    tracing::warn!(target: "tailrope", %error, "a connection is not accepted; it is tried again");
                }
                sleep(PAUSE).await;
            }
        }
    }
}

/// Serves the requests of one connection.
async fn drive(shared: Arc<Shared>, socket: TcpStream, client: Arc<Client>) {
    // Otherwise each small event would wait for the acknowledgement of the one before.
    let _ = socket.set_nodelay(true);
    let mut phase = shared.phase.subscribe();
    let head_timeout = Duration::from_millis(shared.options.head_timeout_ms);
    let asking = Arc::clone(&client);
    let service = service_fn(move |request| {
        asking.has_asked.store(true, Ordering::Relaxed);
        serve(Arc::clone(&shared), request, Arc::clone(&asking))
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(head_timeout).max_header_size(MAX_HEAD_BYTES);
    let mut connection = pin!(http.serve_connection(TokioIo::new(socket), service).with_upgrades());
    tokio::select! {
        // An error is the client's: it has left, or what it sent is not HTTP.
        _ = connection.as_mut() => return,
        _ = phase.wait_for(|phase| *phase != Phase::Serving) => {}
    }
    let has_asked = || client.has_asked.load(Ordering::Relaxed);
    // hyper would close a connection at once that has not been read from.
    if !has_asked() && (timeout(LAST_REQUEST, connection.as_mut()).await.is_ok() || !has_asked()) {
        return;
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}
