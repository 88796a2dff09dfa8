//! The address of a server, a cluster or a service that sentinels watch, and what can be set in it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;

const PORT: u16 = 6_379;
const SENTINEL_PORT: u16 = 26_379;

/// Where one server is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) host: String,
    pub(super) port: u16,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// How the server that has a key is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It is the one.
    Alone,
    /// Any of the places knows.
    Cluster,
    /// The places are sentinels; the service is called so.
    Sentinel(String),
}

/// User and password.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login")
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) kind: Kind,
    pub(super) places: Vec<Place>,
    pub(super) login: Login,
    pub(super) sentinel_login: Login,
    pub(super) db: u32,
    pub(super) tls: bool,
    pub(super) ca: Option<PathBuf>,
    /// Our own certificate, and its key.
    pub(super) identity: Option<(PathBuf, PathBuf)>,
    pub(super) namespace: String,
    pub(super) connect_timeout: Duration,
    pub(super) timeout: Duration,
}

/// What the query of an address may have.
const OPTIONS: &str = "namespace, connect_timeout_ms, timeout_ms, ca, cert and key (with TLS), \
                       sentinel_user and sentinel_password (with sentinels)";

impl Address {
    /// Takes an address apart.
    ///
    /// # Errors
    /// What is wrong with it, in words that repeat nothing secret.
    pub(super) fn parse(address: &str) -> Result<Self, String> {
        let (scheme, rest) = address.split_once("://").ok_or("an address is redis://HOST, with two slashes")?;
        let (tls, kind) = match scheme.strip_prefix("rediss").map(|kind| (true, kind)) {
            Some(found) => found,
            None => (false, scheme.strip_prefix("redis").unwrap_or(scheme)),
        };
        // A password may have any of the marks that are looked for below.
        let (login, rest) = match rest.rsplit_once('@') {
            Some((login, rest)) => (parse_login(login)?, rest),
            None => (Login::default(), rest),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let path: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let default_port = if kind == "+sentinel" { SENTINEL_PORT } else { PORT };
        let places: Vec<Place> =
            hosts.split(',').map(|host| parse_place(host, default_port)).collect::<Result<_, _>>()?;
        let (kind, db) = match (kind, &path[..]) {
            ("", []) => (Kind::Alone, 0),
            ("", [db]) => (Kind::Alone, parse_db(db)?),
            ("+cluster", []) => (Kind::Cluster, 0),
            ("+sentinel", [service]) => (Kind::Sentinel(decode(service)?), 0),
            ("+sentinel", [service, db]) => (Kind::Sentinel(decode(service)?), parse_db(db)?),
            ("", _) => return Err("after the host comes the number of a database, and no more".to_owned()),
            ("+cluster", _) => return Err("a cluster has no databases: nothing comes after the hosts".to_owned()),
            ("+sentinel", _) => {
                return Err("after the sentinels comes the service: redis+sentinel://S1,S2/SERVICE".to_owned());
            }
            _ => {
                let kinds =
                    "redis, redis+cluster and redis+sentinel, and with TLS rediss, rediss+cluster, rediss+sentinel";
                return Err(format!("the kinds of Redis address are {kinds}"));
            }
        };
        if kind == Kind::Alone && places.len() > 1 {
            return Err("one server has one host; several are redis+cluster:// or redis+sentinel://".to_owned());
        }
        let mut parsed = Self {
            kind,
            places,
            login,
            sentinel_login: Login::default(),
            db,
            tls,
            ca: None,
            identity: None,
            namespace: "tailrope".to_owned(),
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(10),
        };
        let (mut cert, mut key) = (None, None);
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let value = decode(value)?;
            match name {
                "cert" => cert = Some(parsed.path(name, value)?),
                "key" => key = Some(parsed.path(name, value)?),
                _ => parsed.set(name, value)?,
            }
        }
        parsed.identity = match (cert, key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((cert, key)),
            _ => return Err("cert and key belong together: our certificate, and its key".to_owned()),
        };
        Ok(parsed)
    }

    fn path(&self, name: &str, value: String) -> Result<PathBuf, String> {
        match value.as_str() {
            _ if !self.tls => Err(format!("{name} is for addresses with TLS (rediss)")),
            "" => Err(format!("{name} is the path of a file in PEM form")),
            _ => Ok(value.into()),
        }
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), String> {
        let milliseconds = |value: &str| match value.parse() {
            Ok(ms @ 1..=3_600_000) => Ok(Duration::from_millis(ms)),
            _ => Err(format!("{name} is a number of milliseconds, from 1 to 3600000")),
        };
        match name {
            "namespace" => {
                let is_fine = |byte: u8| byte.is_ascii_graphic() && byte != b'{' && byte != b'}';
                if value.is_empty() || value.len() > 64 || !value.bytes().all(is_fine) {
                    return Err("namespace is 1 to 64 visible ASCII characters, without braces".to_owned());
                }
                self.namespace = value;
            }
            "connect_timeout_ms" => self.connect_timeout = milliseconds(&value)?,
            "timeout_ms" => self.timeout = milliseconds(&value)?,
            "ca" => self.ca = Some(self.path(name, value)?),
            "sentinel_user" | "sentinel_password" if !matches!(self.kind, Kind::Sentinel(_)) => {
                return Err(format!("{name} is for addresses with sentinels"));
            }
            "sentinel_user" => self.sentinel_login.user = Some(value),
            "sentinel_password" => self.sentinel_login.password = Some(value),
            // Not repeated: it may be a password that was not encoded.
            _ => return Err(format!("the address has an option that is not known; the options are {OPTIONS}")),
        }
        Ok(())
    }

    /// The places without what is secret.
    pub(super) fn shown(&self) -> String {
        let places: Vec<String> = self.places.iter().map(Place::to_string).collect();
        let (scheme, kind, path) = match &self.kind {
            Kind::Alone if self.db == 0 => (self.scheme(), "", String::new()),
            Kind::Alone => (self.scheme(), "", format!("/{}", self.db)),
            Kind::Cluster => (self.scheme(), "+cluster", String::new()),
            Kind::Sentinel(service) => (self.scheme(), "+sentinel", format!("/{service}")),
        };
        format!("{scheme}{kind}://{}{path}", places.join(","))
    }

    fn scheme(&self) -> &'static str {
        if self.tls { "rediss" } else { "redis" }
    }
}

/// An address that may be wrong, without what is secret in it: nothing before the last @ is shown, nothing
/// after a question mark.
pub(super) fn shown(address: &str) -> String {
    match Address::parse(address) {
        Ok(parsed) => parsed.shown(),
        Err(_) => {
            let (scheme, rest) = address.split_once(':').unwrap_or((address, ""));
            let host = rest.trim_start_matches('/').rsplit('@').next().unwrap_or_default();
            let host = host.split(['?', '&', '=']).next().unwrap_or_default();
            format!("{scheme}://{host}")
        }
    }
}

fn parse_login(text: &str) -> Result<Login, String> {
    let (user, password) = match text.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        // What there is alone is a password, as other clients have it.
        None => ("", Some(text)),
    };
    let present = |part: &str| decode(part).map(|part| Some(part).filter(|part| !part.is_empty()));
    Ok(Login { user: present(user)?, password: password.map_or(Ok(None), present)? })
}

fn parse_place(text: &str, default_port: u16) -> Result<Place, String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("an IPv6 address is in brackets: [::1]")?;
            (host, port.strip_prefix(':'))
        }
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return Err("the host is missing: redis://HOST".to_owned());
    }
    let port = match port {
        None => default_port,
        Some(port) => port.parse().map_err(|_| "a port is a number from 1 to 65535")?,
    };
    Ok(Place { host: decode(host)?, port })
}

fn parse_db(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "a database is a number: redis://HOST/0".to_owned())
}

/// Undoes percent-encoding.
fn decode(text: &str) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| "a part of the address is not UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(host: &str, port: u16) -> Place {
        Place { host: host.to_owned(), port }
    }

    #[test]
    fn addresses_say_where_who_and_how() {
        let plain = Address::parse("redis://localhost").unwrap();
        assert_eq!(
            (plain.places, plain.kind, plain.tls, plain.db),
            (vec![place("localhost", 6379)], Kind::Alone, false, 0)
        );
        let full =
            Address::parse("rediss://me:p%40ss%2F@h:1/3?namespace=a:b&timeout_ms=70&connect_timeout_ms=5&ca=/c%20a")
                .unwrap();
        assert_eq!((full.places, full.db, full.tls), (vec![place("h", 1)], 3, true));
        assert_eq!((full.login.user.as_deref(), full.login.password.as_deref()), (Some("me"), Some("p@ss/")));
        assert_eq!(
            (full.namespace.as_str(), full.timeout.as_millis(), full.connect_timeout.as_millis()),
            ("a:b", 70, 5)
        );
        assert_eq!(full.ca, Some("/c a".into()));
        let known = Address::parse("rediss://h?cert=/our.pem&key=/our.key").unwrap();
        assert_eq!(known.identity, Some(("/our.pem".into(), "/our.key".into())));
        let cluster = Address::parse("redis+cluster://:pw@a,[::1]:7,c:8").unwrap();
        assert_eq!(cluster.places, [place("a", 6379), place("::1", 7), place("c", 8)]);
        assert_eq!(
            (cluster.kind, cluster.login.user, cluster.login.password),
            (Kind::Cluster, None, Some("pw".into()))
        );
        let watched = Address::parse("redis+sentinel://s1,s2:5/main/2?sentinel_password=x").unwrap();
        assert_eq!((watched.kind, watched.db), (Kind::Sentinel("main".into()), 2));
        assert_eq!(watched.places, [place("s1", 26379), place("s2", 5)]);
        assert_eq!(watched.sentinel_login.password.as_deref(), Some("x"));
    }

    #[test]
    fn what_is_wrong_with_an_address_is_said_without_its_secrets() {
        for (address, what) in [
            ("redis:host", "two slashes"),
            ("redis://u:secret@", "the host is missing"),
            ("redis://u:secret@h:port", "a port is a number"),
            ("redis://u:secret@h/db", "a database is a number"),
            ("redis://u:secret@h/1/2", "and no more"),
            ("redis://u:secret@h,i", "one server has one host"),
            ("redis+cluster://u:secret@h/1", "a cluster has no databases"),
            ("redis+sentinel://u:secret@h", "comes the service"),
            ("redis+ring://u:secret@h", "the kinds of Redis address are"),
            ("redis://u:secret@h?ca=x", "with TLS"),
            ("redis://u:secret@h?db=secret", "the options are namespace, connect_timeout_ms, timeout_ms, ca"),
            ("redis://u:secret@h?timeout_ms=secret", "a number of milliseconds"),
            ("redis://u:secret@h?namespace={secret}", "without braces"),
            ("redis://u:secret%ff@h", "not UTF-8"),
            ("rediss://u:secret@h?cert=/c", "belong together"),
            ("redis://u:secret@h?key=/k", "with TLS"),
            ("redis://u:se/cr?et@h?sentinel_user=secret", "with sentinels"),
        ] {
            let error = Address::parse(address).unwrap_err();
            assert!(error.contains(what) && !error.contains("secret"), "{address}: {error}");
            let shown = shown(address);
            assert!(
                !shown.contains("secret") && !shown.contains("cr?et") && !shown.contains("u:"),
                "{address}: {shown}"
            );
        }
        let parsed = Address::parse("redis://u:secret@h/1?namespace=n").unwrap();
        assert!(!format!("{parsed:?}").contains("secret") && parsed.shown() == "redis://h:6379/1", "{parsed:?}");
    }
}
