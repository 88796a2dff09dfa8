//! The sockets below HTTP: plain ones, and TLS by the certificates that the system trusts.

use std::io;
use std::sync::Arc;

use tailrope_core::tls;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

/// A connection that can end as a path that dies.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + 'static {
    fn tcp(&self) -> &TcpStream;

    /// Its close becomes a reset.
    fn reset_on_close(&self) {
        // It may be closed already.
        let _ = self.tcp().set_zero_linger();
    }
}

impl Socket for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl Socket for TlsStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

/// # Errors
/// The system names no certificate, so no server can be trusted.
pub(super) fn connector() -> io::Result<TlsConnector> {
    let config = tls::authorities_of_system().and_then(|roots| tls::client(tls::Server::Named(roots), None));
    Ok(TlsConnector::from(Arc::new(config.map_err(io::Error::other)?)))
}

pub(super) async fn wrapped(tls: &TlsConnector, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    tls.connect(name, stream).await
}
