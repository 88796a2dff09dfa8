//! A server: how a connection to it comes about, encrypted or not.

use std::error::Error as _;
use std::io;
use std::time::Duration;

use tailrope_core::store::parts::Fault;
use tailrope_core::tls::{self, Identity};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Error, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::address::{Mode, Place};
use super::link::{fault, passing};

pub(super) type Wire = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// Where to connect, with what that takes.
#[derive(Clone)]
pub(super) struct Server {
    config: Config,
    pub(super) tls: MakeRustlsConnect,
    /// What is tried when the server does not want it as it was tried first.
    otherwise: Option<SslMode>,
    pub(super) connect_timeout: Duration,
}

impl Server {
    /// Reads the certificates.
    ///
    /// # Errors
    /// Which of them cannot be used.
    pub(super) fn new(place: Place) -> Result<Self, String> {
        let Place { mut config, mode, authorities, identity, connect_timeout } = place;
        let roots = || match &authorities {
            Some(file) => tls::authorities(file).map_err(|what| format!("sslrootcert: {what}")),
            None => tls::authorities_of_system(),
        };
        let trust = match mode {
            Mode::VerifyFull => tls::Server::Named(roots()?),
            Mode::VerifyCa => tls::Server::Signed(roots()?),
            // An authority that is named is asked.
            Mode::Require | Mode::Prefer | Mode::Allow if authorities.is_some() => tls::Server::Signed(roots()?),
            Mode::Require | Mode::Prefer | Mode::Allow | Mode::Disable => tls::Server::Anybody,
        };
        let identity = identity.filter(|_| mode != Mode::Disable);
        let identity = identity.map(|(certificate, key)| Identity::read(&certificate, &key)).transpose();
        let identity = identity.map_err(|what| format!("sslcert and sslkey: {what}"))?;
        let mut otherwise = match mode {
            Mode::Allow => Some(SslMode::Require),
            Mode::Prefer => Some(SslMode::Disable),
            Mode::Disable | Mode::Require | Mode::VerifyCa | Mode::VerifyFull => None,
        };
        // Nothing is encrypted on the way through a socket of this machine.
        if !config.get_hosts().is_empty() && config.get_hosts().iter().all(is_socket) {
            config.ssl_mode(SslMode::Disable);
            otherwise = None;
        }
        let tls = MakeRustlsConnect::new(tls::client(trust, identity)?);
        Ok(Self { config, tls, otherwise, connect_timeout })
    }

    /// Connects. The caller has to let the connection run.
    pub(super) async fn connect(&self) -> Result<(Client, Wire), Fault> {
        // Each host has its own limit, a handshake has none.
        let hosts = u32::try_from(self.config.get_hosts().len()).unwrap_or(1);
        let limit = self.connect_timeout * (hosts + 1);
        let late = || passing("the server did not answer in time", false);
        let first = tokio::time::timeout(limit, self.config.connect(self.tls.clone())).await.map_err(|_| late())?;
        let (error, otherwise) = match (first, self.otherwise) {
            (Ok(connected), _) => return Ok(connected),
            (Err(error), Some(otherwise)) if is_about_encryption(&error) => (error, otherwise),
            (Err(error), _) => return Err(fault(&error)),
        };
        let mut config = self.config.clone();
        config.ssl_mode(otherwise);
        let second = tokio::time::timeout(limit, config.connect(self.tls.clone())).await.map_err(|_| late())?;
        // What was wanted first says more.
        second.map_err(|_| fault(&error))
    }
}

/// Whether it may work with encryption where there was none, or without.
fn is_about_encryption(error: &Error) -> bool {
    error.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION) || handshake(error).is_some()
}

/// The fault of a handshake, if it is one.
pub(super) fn handshake(error: &Error) -> Option<&io::Error> {
    let mut source = error.source();
    while let Some(cause) = source {
        let io = cause.downcast_ref::<io::Error>();
        if let Some(io) = io.filter(|io| io.get_ref().is_some_and(|inner| inner.is::<rustls::Error>())) {
            return Some(io);
        }
        source = cause.source();
    }
    None
}

#[cfg(unix)]
fn is_socket(host: &Host) -> bool {
    matches!(host, Host::Unix(_))
}

#[cfg(not(unix))]
fn is_socket(_host: &Host) -> bool {
    false
}
