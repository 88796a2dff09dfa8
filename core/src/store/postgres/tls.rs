//! Encrypted connections: rustls for tokio-postgres.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};

/// Whose certificates are good.
pub(super) enum Trust<'a> {
    /// Nothing is encrypted.
    Nobody,
    /// Encrypted, but whoever answers is taken for the server.
    Anybody,
    System,
    File(&'a PathBuf),
}

#[derive(Clone)]
pub(super) struct Tls(Option<Arc<ClientConfig>>);

impl Tls {
    pub(super) fn new(trust: &Trust<'_>) -> Result<Self, String> {
        if matches!(trust, Trust::Nobody) {
            return Ok(Self(None));
        }
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|_| "there is no usable version of TLS".to_owned())?;
        let config = match trust {
            Trust::Nobody | Trust::Anybody => {
                config.dangerous().with_custom_certificate_verifier(Arc::new(Unverified(provider)))
            }
            Trust::System | Trust::File(_) => config.with_root_certificates(roots(trust)?),
        };
        Ok(Self(Some(Arc::new(config.with_no_client_auth()))))
    }
}

fn roots(trust: &Trust<'_>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    if let Trust::File(path) = trust {
        let unreadable = |_| "the file in ca cannot be read as certificates in PEM form".to_owned();
        for certificate in CertificateDer::pem_file_iter(path).map_err(unreadable)? {
            let refused = |_| "the file in ca has a certificate that is none of an authority".to_owned();
            roots.add(certificate.map_err(unreadable)?).map_err(refused)?;
        }
    } else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    if roots.is_empty() {
        return Err("there is no certificate of an authority to trust; name a file with ca=FILE".to_owned());
    }
    Ok(roots)
}

/// Takes any certificate whose owner shows that it is its own.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Encrypted;
    type TlsConnect = Connect;
    type Error = io::Error;

    fn make_tls_connect(&mut self, domain: &str) -> io::Result<Connect> {
        Ok(Connect { config: self.0.clone(), domain: domain.to_owned() })
    }
}

pub(super) struct Connect {
    config: Option<Arc<ClientConfig>>,
    domain: String,
}

impl TlsConnect<Socket> for Connect {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, stream: Socket) -> Self::Future {
        Box::pin(async move {
            let config = self.config.ok_or(io::ErrorKind::Unsupported)?;
            let name = ServerName::try_from(self.domain).map_err(|_| io::ErrorKind::InvalidInput)?;
            Ok(Encrypted(Box::new(tokio_rustls::TlsConnector::from(config).connect(name, stream).await?)))
        })
    }
}

pub(super) struct Encrypted(Box<tokio_rustls::client::TlsStream<Socket>>);

impl TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
