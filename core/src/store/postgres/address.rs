//! What the address of a store says.

use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use super::tls::{Tls, Trust};

/// The options that may follow the question mark.
const KNOWN: &str = "namespace, sslmode, ca, connections, connect_timeout_ms, timeout_ms and listen";
const SSL_MODES: &str = "disable, prefer, require and verify-full";

/// Where to connect, and how.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) config: Config,
    pub(super) tls: Tls,
    pub(super) connect_timeout: Duration,
}

/// Where notifications come from.
pub(super) enum Listen {
    /// The main address, if they come through there.
    Main,
    Elsewhere(Box<Server>),
    /// Nowhere: watched logs are looked at all the time.
    Off,
}

pub(super) struct Address {
    pub(super) server: Server,
    pub(super) listen: Listen,
    /// The schema that holds the tables.
    pub(super) namespace: String,
    /// For writing. One for reading and up to three for other things come on top,
    /// and now and then one that vacuums.
    pub(super) connections: usize,
    /// How long an operation may take, a reconnection included.
    pub(super) timeout: Duration,
}

#[derive(Default)]
struct Options {
    namespace: Option<String>,
    ssl_mode: Option<String>,
    ca: Option<PathBuf>,
    connections: Option<usize>,
    connect_timeout_ms: Option<u64>,
    timeout_ms: Option<u64>,
    listen: Option<String>,
}

impl Address {
    /// Reads `postgres://user:password@host:port/db?options`. What is wrong is said without what was
    /// written: a password may be among it.
    pub(super) fn parse(address: &str) -> Result<Self, String> {
        let (place, options) = split(address)?;
        let main = server(place, &options)?;
        let namespace = options.namespace.clone().unwrap_or_else(|| "tailrope".to_owned());
        let is_word = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
        if namespace.is_empty() || namespace.len() > 40 || !namespace.bytes().all(is_word) {
            return Err("a namespace has 1 to 40 characters of a-z, 0-9 and _".to_owned());
        }
        let connections = options.connections.unwrap_or(4);
        if !(1..=64).contains(&connections) {
            return Err("connections is a number from 1 to 64".to_owned());
        }
        let listen = match options.listen.as_deref() {
            None => Listen::Main,
            Some("off") => Listen::Off,
            Some(address) => {
                let (place, mut own) = split(address).map_err(|what| format!("listen: {what}"))?;
                if own.namespace.is_some() || own.connections.is_some() || own.listen.is_some() {
                    return Err("the address in listen takes sslmode, ca and connect_timeout_ms only".to_owned());
                }
                own.inherit(&options);
                Listen::Elsewhere(Box::new(server(place, &own).map_err(|what| format!("listen: {what}"))?))
            }
        };
        let timeout = Duration::from_millis(options.timeout_ms.unwrap_or(5_000).max(100));
        Ok(Self { server: main, listen, namespace, connections, timeout })
    }
}

impl Options {
    /// Takes over how to connect where nothing is said of it.
    fn inherit(&mut self, main: &Self) {
        if self.ssl_mode.is_none() && self.ca.is_none() {
            self.ssl_mode.clone_from(&main.ssl_mode);
            self.ca.clone_from(&main.ca);
        }
        self.connect_timeout_ms = self.connect_timeout_ms.or(main.connect_timeout_ms);
    }
}

fn split(address: &str) -> Result<(&str, Options), String> {
    let (place, query) = address.split_once('?').unwrap_or((address, ""));
    let mut options = Options::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, written) = pair.split_once('=').unwrap_or((pair, ""));
        // Not before the name is known for one of these: it is a part of a password otherwise.
        let value = || decode(written).ok_or_else(|| format!("the value of {name} is no text"));
        let number = || value()?.parse::<u64>().map_err(|_| format!("{name} is a number"));
        match name {
            "namespace" => options.namespace = Some(value()?),
            "sslmode" => options.ssl_mode = Some(value()?),
            "ca" => options.ca = Some(value()?.into()),
            "connections" => options.connections = Some(usize::try_from(number()?).unwrap_or(usize::MAX)),
            "connect_timeout_ms" => options.connect_timeout_ms = Some(number()?),
            "timeout_ms" => options.timeout_ms = Some(number()?),
            // An address as it is, or encoded once more as values are.
            "listen" => options.listen = Some(if written.contains("://") { written.to_owned() } else { value()? }),
            // A password that was put there by mistake must not be repeated.
            _ => return Err(format!("there is an option that is not known; the options are {KNOWN}")),
        }
    }
    Ok((place, options))
}

fn server(place: &str, options: &Options) -> Result<Server, String> {
    if !(place.starts_with("postgres://") || place.starts_with("postgresql://")) {
        return Err("it is not of the form postgres://user:password@host:port/database".to_owned());
    }
    let mut config: Config =
        place.parse().map_err(|_| "it is not of the form postgres://user:password@host:port/database".to_owned())?;
    if config.get_hosts().is_empty() {
        return Err("the host is missing: postgres://user:password@host:port/database".to_owned());
    }
    let ca = options.ca.as_ref();
    let by_default = if ca.is_some() { "verify-full" } else { "prefer" };
    let ssl_mode = options.ssl_mode.as_deref().unwrap_or(by_default);
    if ca.is_some() && ssl_mode != "verify-full" {
        return Err("ca is for sslmode=verify-full; the other modes check no certificate".to_owned());
    }
    let (mode, trust) = match (ssl_mode, ca) {
        ("disable", _) => (SslMode::Disable, Trust::Nobody),
        ("prefer", _) => (SslMode::Prefer, Trust::Anybody),
        ("require", _) => (SslMode::Require, Trust::Anybody),
        ("verify-full", None) => (SslMode::Require, Trust::System),
        ("verify-full", Some(ca)) => (SslMode::Require, Trust::File(ca)),
        _ => return Err(format!("the values of sslmode are {SSL_MODES}")),
    };
    let tls = Tls::new(&trust)?;
    let connect_timeout = Duration::from_millis(options.connect_timeout_ms.unwrap_or(5_000).max(100));
    config.ssl_mode(mode).application_name("tailrope").connect_timeout(connect_timeout);
    config.tcp_user_timeout(Duration::from_secs(20)).keepalives_idle(Duration::from_secs(30));
    // Of several servers the one that can be written.
    if config.get_hosts().len() > 1 {
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
    // Certificates have no names of sockets.
    if mode == SslMode::Prefer && config.get_hosts().iter().any(is_socket) {
        config.ssl_mode(SslMode::Disable);
    }
    Ok(Server { config, tls, connect_timeout })
}

#[cfg(unix)]
fn is_socket(host: &Host) -> bool {
    matches!(host, Host::Unix(_))
}

#[cfg(not(unix))]
fn is_socket(_host: &Host) -> bool {
    false
}

/// Undoes percent-encoding.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &tail[2..];
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let address = "postgresql://me:pa%40ss@h:5433/db?namespace=logs&connections=2&timeout_ms=700\
                       &listen=postgres://me@direct/db?sslmode=disable";
        let Ok(address) = Address::parse(address) else { panic!("it is right") };
        assert_eq!(address.server.config.get_password(), Some(&b"pa@ss"[..]));
        assert_eq!(address.server.config.get_ports(), [5433]);
        assert_eq!((address.namespace.as_str(), address.connections), ("logs", 2));
        assert_eq!(address.timeout, Duration::from_millis(700));
        let Listen::Elsewhere(listen) = address.listen else { panic!("it names another address") };
        assert_eq!(listen.config.get_ssl_mode(), SslMode::Disable);
    }

    #[test]
    fn an_address_to_listen_at_is_written_as_it_is_or_encoded() {
        for listen in
            ["postgres://me:p%40ss%2F@direct/db?sslmode=disable", "postgres%3A%2F%2Fme:p%2540ss%252F@direct/db"]
        {
            let Ok(address) = Address::parse(&format!("postgres://me@pooler/db?sslmode=disable&listen={listen}"))
            else {
                panic!("it is right: {listen}")
            };
            let Listen::Elsewhere(server) = address.listen else { panic!("it names another address") };
            assert_eq!(server.config.get_password(), Some(&b"p@ss/"[..]));
            assert_eq!(server.config.get_hosts(), [Host::Tcp("direct".to_owned())]);
            assert_eq!(server.config.get_ssl_mode(), SslMode::Disable);
        }
    }

    #[test]
    fn what_is_wrong_is_said_without_what_was_written() {
        for (address, want) in [
            ("postgres://me:secret@h/db?secret=1", "the options are namespace"),
            ("postgres://me:secret@h/db?sslmode=secret", "the values of sslmode"),
            ("postgres://me:secret@h/db?connections=secret", "connections is a number"),
            ("postgres://me:secret@h/db?connections=0", "from 1 to 64"),
            ("postgres://me:secret@h/db?namespace=Se-cret", "a namespace has"),
            ("postgres://me:secret@h/db?ca=/x&sslmode=require", "verify-full"),
            ("postgres://me:secret@h/db?listen=redis://me:secret@h", "listen: it is not of the form"),
            ("postgres://me:secret@h:secret/db", "of the form"),
            ("postgres://me:pass?secret=%zz@h/db", "an option that is not known"),
            ("postgres:///db", "the host is missing"),
        ] {
            let what = Address::parse(address).err().unwrap_or_default();
            assert!(what.contains(want) && !what.contains("secret"), "{address}: {what}");
        }
    }
}
