//! TLS with rustls: who is trusted, and how a connection is wrapped.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

#[derive(Clone)]
pub(super) struct Tls(TlsConnector);

impl Tls {
    /// Trusts the certificates in the file; without one, those that the system trusts.
    ///
    /// # Errors
    /// Why there are no certificates.
    pub(super) fn new(ca: Option<&Path>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        match ca {
            Some(file) => {
                let certificates = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
                let certificates = certificates.map_err(|error| format!("the file with certificates (ca): {error}"))?;
                roots.add_parsable_certificates(certificates);
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        if roots.is_empty() {
            let whose = if ca.is_some() { "the file (ca)" } else { "the system" };
            return Err(format!("{whose} has no certificates to trust"));
        }
        // Named, because the process may have another default, or none.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    pub(super) async fn wrap(&self, host: &str, stream: TcpStream) -> Result<TlsStream<TcpStream>, std::io::Error> {
        let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
        self.0.connect(name, stream).await
    }
}
