//! The sockets below HTTP: plain ones, and TLS by the certificates that the system trusts.

use std::io;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

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
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(io::Error::other("the system has no certificates to trust: name a file in SSL_CERT_FILE"));
    }
    // Named, because the process may have another default, or none.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

pub(super) async fn wrapped(tls: &TlsConnector, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    tls.connect(name, stream).await
}
