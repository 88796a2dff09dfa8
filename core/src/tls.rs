//! TLS: the authorities that we trust, and the certificates that we show. They are read here and nowhere else.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// Which servers are taken for the right one.
pub enum Server {
    /// Any that answers.
    Anybody,
    /// One with a certificate of these authorities, for whatever name.
    Signed(RootCertStore),
    /// One with a certificate of these authorities for the name that was asked for.
    Named(RootCertStore),
}

/// A certificate of our own, and its key.
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Reads both from files in PEM form.
    ///
    /// # Errors
    /// Which of them cannot be read.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, String> {
        let chain = certificates(certificate).map_err(|what| format!("the file with our certificate: {what}"))?;
        let key = PrivateKeyDer::from_pem_file(key)
            .map_err(|_| "the file with our key has no private key in PEM form that needs no password".to_owned())?;
        Ok(Self { chain, key })
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, &'static str> {
    let found = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = found.map_err(|_| "it cannot be read as certificates in PEM form")?;
    if found.is_empty() { Err("there are no certificates in it") } else { Ok(found) }
}

/// The authorities that a file names.
///
/// # Errors
/// Why there are none.
pub fn authorities(file: &Path) -> Result<RootCertStore, String> {
    let wrong = |what: &str| format!("the file with the authorities to trust: {what}");
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file).map_err(wrong)? {
        roots.add(certificate).map_err(|_| wrong("one of its certificates is not of an authority"))?;
    }
    Ok(roots)
}

/// The authorities that the system trusts, or those in `SSL_CERT_FILE` and `SSL_CERT_DIR`.
///
/// # Errors
/// There are none, so no server could be trusted.
pub fn authorities_of_system() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err("the system has no certificates to trust: name a file in SSL_CERT_FILE".to_owned());
    }
    Ok(roots)
}

/// What a connection begins with.
///
/// # Errors
/// The certificate and the key are not of each other, or cannot be used.
pub fn client(server: Server, identity: Option<Identity>) -> Result<ClientConfig, String> {
    // Named, because the process may have another default, or none.
    let provider = Arc::new(ring::default_provider());
    let unusable = |error: Error| format!("TLS cannot be used: {error}");
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let config = config.with_safe_default_protocol_versions().map_err(unusable)?;
    let config = match server {
        Server::Anybody => config.dangerous().with_custom_certificate_verifier(Arc::new(Lax::Anybody(provider))),
        Server::Signed(roots) => {
            let strict = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
            let strict = strict.map_err(|error| format!("TLS cannot be used: {error}"))?;
            config.dangerous().with_custom_certificate_verifier(Arc::new(Lax::AnyName(strict)))
        }
        Server::Named(roots) => config.with_root_certificates(roots),
    };
    match identity {
        Some(Identity { chain, key }) => config
            .with_client_auth_cert(chain, key)
            .map_err(|error| format!("our certificate and key cannot be used together: {error}")),
        None => Ok(config.with_no_client_auth()),
    }
}

/// Asks for less than rustls does. That the server has the key of its certificate is always proven.
#[derive(Debug)]
enum Lax {
    Anybody(Arc<CryptoProvider>),
    AnyName(Arc<WebPkiServerVerifier>),
}

impl ServerCertVerifier for Lax {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Self::AnyName(strict) = self else { return Ok(ServerCertVerified::assertion()) };
        match strict.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is looked at last, when everything else is right.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            judged => judged,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match self {
            Self::Anybody(provider) => {
                verify_tls12_signature(message, certificate, signature, &provider.signature_verification_algorithms)
            }
            Self::AnyName(strict) => strict.verify_tls12_signature(message, certificate, signature),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match self {
            Self::Anybody(provider) => {
                verify_tls13_signature(message, certificate, signature, &provider.signature_verification_algorithms)
            }
            Self::AnyName(strict) => strict.verify_tls13_signature(message, certificate, signature),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        match self {
            Self::Anybody(provider) => provider.signature_verification_algorithms.supported_schemes(),
            Self::AnyName(strict) => strict.supported_verify_schemes(),
        }
    }
}

/// What went wrong with a handshake, in words that name no server.
pub fn describe(error: &std::io::Error) -> String {
    let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else {
        return format!("TLS: {}", error.kind());
    };
    match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "TLS: the server's certificate is of an authority that is not trusted here".to_owned()
        }
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "TLS: the server's certificate is for another name".to_owned(),
        Error::InvalidCertificate(error) => format!("TLS: the server's certificate: {error:?}"),
        Error::InvalidMessage(_) => "TLS: the server does not speak TLS there".to_owned(),
        Error::AlertReceived(alert) => {
            format!("TLS: the server ended it ({alert:?}): it may want a certificate of ours")
        }
        _ => "TLS: an encrypted connection did not come about".to_owned(),
    }
}
