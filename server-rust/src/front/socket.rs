//! A connection to the application.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};

use super::options::AppAddress;

/// How long the application may accept no connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// The pause before a Unix socket is tried again that has as many connections waiting as it may have.
const CONNECT_PAUSE: Duration = Duration::from_millis(10);

pub(super) enum Socket {
    #[cfg(unix)]
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    pub(super) async fn connect(app: &AppAddress) -> io::Result<Self> {
        let end = Instant::now() + CONNECT_WITHIN;
        loop {
            let connected = match app {
                #[cfg(unix)]
                AppAddress::Unix(path) => UnixStream::connect(path).await.map(Self::Unix),
                AppAddress::Tcp(address) => TcpStream::connect(address).await.and_then(|socket| {
                    socket.set_nodelay(true)?;
                    Ok(Self::Tcp(socket))
                }),
            };
            match connected {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {
                    sleep(CONNECT_PAUSE).await;
                }
                connected => return connected,
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            #[cfg(unix)]
            Self::Unix(socket) => Pin::new(socket).poll_read(cx, buffer),
            Self::Tcp(socket) => Pin::new(socket).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            #[cfg(unix)]
            Self::Unix(socket) => Pin::new(socket).poll_write(cx, bytes),
            Self::Tcp(socket) => Pin::new(socket).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            #[cfg(unix)]
            Self::Unix(socket) => Pin::new(socket).poll_flush(cx),
            Self::Tcp(socket) => Pin::new(socket).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            #[cfg(unix)]
            Self::Unix(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tcp(socket) => Pin::new(socket).poll_shutdown(cx),
        }
    }
}
