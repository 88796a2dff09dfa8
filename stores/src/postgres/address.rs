//! What the address of a store says.

use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, LoadBalanceHosts, SslMode, TargetSessionAttrs};

/// What may follow the question mark: first what is ours, then what libpq has.
const KNOWN: &str = "namespace, connections, connect_timeout_ms, timeout_ms and listen, and of libpq's application_name, \
                     channel_binding, connect_timeout, dbname, gssencmode, host, hostaddr, keepalives, keepalives_idle, \
                     keepalives_interval, load_balance_hosts, options, password, port, sslcert, sslkey, sslmode, \
                     sslrootcert, target_session_attrs and user";
const FORM: &str = "it is not of the form postgres://user:password@host:port/database, in which a mark like @, / or ? of a \
                    password is written with a percent sign (%40, %2F, %3F)";

/// What libpq calls `sslmode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

/// Where to connect, and how. No file was read yet.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) config: Config,
    pub(super) mode: Mode,
    /// The file with the authorities to trust.
    pub(super) authorities: Option<PathBuf>,
    /// Our own certificate, and its key.
    pub(super) identity: Option<(PathBuf, PathBuf)>,
    pub(super) connect_timeout: Duration,
}

/// Where notifications come from.
pub(super) enum Listen {
    /// The main address, if they come through there.
    Main,
    Elsewhere(Box<Place>),
    /// Nowhere: watched logs are looked at all the time.
    Off,
}

pub(super) struct Address {
    pub(super) place: Place,
    pub(super) listen: Listen,
    /// The schema that holds the tables.
    pub(super) namespace: String,
    /// For writing. One for questions, hints and housekeeping and one that listens and vacuums come on top.
    pub(super) connections: usize,
    /// How long an operation may take, a reconnection included.
    pub(super) timeout: Duration,
}

impl Address {
    /// Reads `postgres://user:password@host:port/db?options`. What is wrong is said without what was
    /// written: a password may be among it.
    pub(super) fn parse(address: &str) -> Result<Self, String> {
        let (main, ours) = split(address)?;
        let mut namespace = "tailrope".to_owned();
        let (mut connections, mut timeout, mut listen) = (2, 5_000, Listen::Main);
        for (name, value) in ours {
            match name {
                "namespace" => namespace = value,
                "connections" => connections = number(name, &value)?,
                "timeout_ms" => timeout = number(name, &value)?,
                _ if value == "off" => listen = Listen::Off,
                _ => {
                    let (mut place, own) = split(&value).map_err(|what| format!("listen: {what}"))?;
                    if !own.is_empty() {
                        return Err("the address in listen says how to connect, and no more".to_owned());
                    }
                    place.inherit(&main);
                    listen = Listen::Elsewhere(Box::new(place.finished().map_err(|what| format!("listen: {what}"))?));
                }
            }
        }
        let is_word = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
        if namespace.is_empty() || namespace.len() > 40 || !namespace.bytes().all(is_word) {
            return Err("a namespace has 1 to 40 characters of a-z, 0-9 and _".to_owned());
        }
        if !(1..=64).contains(&connections) {
            return Err("connections is a number from 1 to 64".to_owned());
        }
        let timeout = Duration::from_millis(timeout.max(100));
        Ok(Self { place: main.finished()?, listen, namespace, connections: connections as usize, timeout })
    }
}

/// What was said of a place, before it is known whether that is enough.
struct Draft {
    config: Config,
    mode: Option<Mode>,
    /// Empty where the system's are meant.
    root: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    connect_timeout: Option<Duration>,
    attributes: Option<TargetSessionAttrs>,
}

/// Options that have to do with the store.
type Ours = Vec<(&'static str, String)>;

/// The place of an address, and what else is said there.
fn split(address: &str) -> Result<(Draft, Ours), String> {
    let (place, query) = address.split_once('?').unwrap_or((address, ""));
    if !(place.starts_with("postgres://") || place.starts_with("postgresql://")) {
        return Err(FORM.to_owned());
    }
    let config = place.parse().map_err(|_| FORM.to_owned())?;
    let (mode, root, cert, key, connect_timeout, attributes) = (None, None, None, None, None, None);
    let mut draft = Draft { config, mode, root, cert, key, connect_timeout, attributes };
    draft.config.application_name("tailrope");
    draft.config.tcp_user_timeout(Duration::from_secs(20)).keepalives_idle(Duration::from_secs(30));
    let mut ours = Ours::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, written) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_decode_str(written).decode_utf8();
        let ours_name = ["namespace", "connections", "timeout_ms", "listen"].into_iter().find(|ours| *ours == name);
        match (ours_name, value) {
            // An address as it is, or encoded once more as values are.
            (Some("listen"), _) if written.contains("://") => ours.push(("listen", written.to_owned())),
            (Some(name), Ok(value)) => ours.push((name, value.into_owned())),
            (Some(name), Err(_)) => return Err(format!("the value of {name} is no text")),
            (None, value) => draft.set(name, value.ok().as_deref())?,
        }
    }
    Ok((draft, ours))
}

fn number(name: &str, value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("{name} is a number"))
}

/// One of a few words, and what it stands for.
fn word<T: Copy>(name: &str, value: &str, words: &[(&str, T)]) -> Result<T, String> {
    let found = words.iter().find(|(word, _)| *word == value).map(|(_, meaning)| *meaning);
    found.ok_or_else(|| {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        format!("the values of {name} are {}", words.join(", "))
    })
}

impl Draft {
    /// Takes over one of libpq's parameters. A value that is not text is none.
    fn set(&mut self, name: &str, value: Option<&str>) -> Result<(), String> {
        // Not before the name is known: what was written may be a part of a password.
        let text = || value.ok_or_else(|| format!("the value of {name} is no text"));
        let seconds = || number(name, text()?).map(|seconds| Duration::from_secs(seconds.min(86_400)));
        let file = || match text()? {
            "" => Err(format!("{name} is the path of a file in PEM form")),
            path => Ok(Some(PathBuf::from(path))),
        };
        let config = &mut self.config;
        match name {
            "user" => {
                config.user(text()?);
            }
            "password" => {
                config.password(text()?);
            }
            "dbname" => {
                config.dbname(text()?);
            }
            "options" => {
                config.options(text()?);
            }
            "application_name" => {
                config.application_name(text()?);
            }
            "host" => {
                for host in text()?.split(',') {
                    config.host(host);
                }
            }
            "hostaddr" => {
                for address in text()?.split(',') {
                    let address = address.parse().map_err(|_| "hostaddr is an address of a host, as numbers")?;
                    config.hostaddr(address);
                }
            }
            "port" => {
                for port in text()?.split(',') {
                    config.port(port.parse().map_err(|_| "port is a number from 1 to 65535")?);
                }
            }
            "connect_timeout" | "connect_timeout_ms" => {
                let time =
                    if name == "connect_timeout" { seconds()? } else { Duration::from_millis(number(name, text()?)?) };
                self.connect_timeout = Some(time.max(Duration::from_millis(100)));
            }
            "keepalives" => {
                config.keepalives(word(name, text()?, &[("0", false), ("1", true)])?);
            }
            "keepalives_idle" => {
                config.keepalives_idle(seconds()?);
            }
            "keepalives_interval" => {
                config.keepalives_interval(seconds()?);
            }
            "load_balance_hosts" => {
                let words = [("disable", LoadBalanceHosts::Disable), ("random", LoadBalanceHosts::Random)];
                config.load_balance_hosts(word(name, text()?, &words)?);
            }
            "target_session_attrs" => {
                use TargetSessionAttrs::{Any, ReadWrite};
                let words = [("any", Any), ("read-write", ReadWrite), ("primary", ReadWrite)];
                let known = word(name, text()?, &words);
                self.attributes = Some(known.map_err(|what| format!("{what}: an event store is written"))?);
            }
            "channel_binding" => {
                use ChannelBinding::{Disable, Prefer, Require};
                config.channel_binding(word(
                    name,
                    text()?,
                    &[("disable", Disable), ("prefer", Prefer), ("require", Require)],
                )?);
            }
            // There is none of that here: what may be without it, is.
            "gssencmode" => word(name, text()?, &[("disable", ()), ("prefer", ())])?,
            "sslmode" => {
                let words = [
                    ("disable", Mode::Disable),
                    ("allow", Mode::Allow),
                    ("prefer", Mode::Prefer),
                    ("require", Mode::Require),
                    ("verify-ca", Mode::VerifyCa),
                    ("verify-full", Mode::VerifyFull),
                ];
                self.mode = Some(word(name, text()?, &words)?);
            }
            "sslrootcert" if value == Some("system") => self.root = Some(PathBuf::new()),
            "sslrootcert" => self.root = file()?,
            "sslcert" => self.cert = file()?,
            "sslkey" => self.key = file()?,
            // A password that was put there by mistake must not be repeated.
            _ => return Err(format!("there is an option that is not known; the options are {KNOWN}")),
        }
        Ok(())
    }

    /// Takes over how to connect where nothing is said of it.
    fn inherit(&mut self, main: &Self) {
        if self.mode.is_none() && self.root.is_none() {
            self.mode = main.mode;
            self.root.clone_from(&main.root);
        }
        if self.cert.is_none() && self.key.is_none() {
            self.cert.clone_from(&main.cert);
            self.key.clone_from(&main.key);
        }
        self.connect_timeout = self.connect_timeout.or(main.connect_timeout);
    }

    fn finished(self) -> Result<Place, String> {
        let Self { mut config, mode, root, cert, key, connect_timeout, attributes } = self;
        let hosts = config.get_hosts().len().max(config.get_hostaddrs().len());
        if hosts == 0 {
            return Err("the host is missing: postgres://user:password@host:port/database".to_owned());
        }
        let by_default = if root.is_some() { Mode::VerifyFull } else { Mode::Prefer };
        let mode = mode.unwrap_or(by_default);
        if config.get_channel_binding() == ChannelBinding::Require && matches!(mode, Mode::Disable | Mode::Allow) {
            return Err(
                "channel_binding=require is for encrypted connections: sslmode=require, verify-ca, verify-full".into(),
            );
        }
        // An authority that everybody trusts gives certificates to everybody: without the name they say nothing.
        let is_systems = root.as_ref().is_some_and(|root| root.as_os_str().is_empty());
        if is_systems && mode != Mode::VerifyFull {
            return Err("sslrootcert=system is for sslmode=verify-full".to_owned());
        }
        let identity = match (cert, key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((cert, key)),
            _ => return Err("sslcert and sslkey belong together: our certificate, and its key".to_owned()),
        };
        let connect_timeout = connect_timeout.unwrap_or(Duration::from_secs(5));
        config.connect_timeout(connect_timeout);
        // Of several servers the one that can be written.
        let by_default = if hosts > 1 { TargetSessionAttrs::ReadWrite } else { TargetSessionAttrs::Any };
        config.target_session_attrs(attributes.unwrap_or(by_default));
        config.ssl_mode(match mode {
            Mode::Disable | Mode::Allow => SslMode::Disable,
            Mode::Prefer => SslMode::Prefer,
            Mode::Require | Mode::VerifyCa | Mode::VerifyFull => SslMode::Require,
        });
        let authorities = root.filter(|_| !is_systems);
        Ok(Place { config, mode, authorities, identity, connect_timeout })
    }
}

#[cfg(test)]
mod tests {
    use tokio_postgres::config::Host;

    use super::*;

    #[test]
    fn options_are_read() {
        let address = "postgresql://me:pa%40ss@h:5433/db?namespace=logs&connections=2&timeout_ms=700\
                       &listen=postgres://me@direct/db?sslmode=disable";
        let Ok(address) = Address::parse(address) else { panic!("it is right") };
        assert_eq!(address.place.config.get_password(), Some(&b"pa@ss"[..]));
        assert_eq!(address.place.config.get_ports(), [5433]);
        assert_eq!((address.namespace.as_str(), address.connections), ("logs", 2));
        assert_eq!(address.timeout, Duration::from_millis(700));
        let Listen::Elsewhere(listen) = address.listen else { panic!("it names another address") };
        assert_eq!(listen.config.get_ssl_mode(), SslMode::Disable);
    }

    #[test]
    fn parameters_of_libpq_mean_what_they_mean_there() {
        let place = |query: &str| match Address::parse(&format!("postgres://me@h/db?{query}")) {
            Ok(address) => address.place,
            Err(what) => panic!("{query}: {what}"),
        };
        for (query, mode) in [
            ("", Mode::Prefer),
            ("sslmode=disable", Mode::Disable),
            ("sslmode=allow", Mode::Allow),
            ("sslmode=require&sslrootcert=/ca.pem", Mode::Require),
            ("sslmode=verify-ca", Mode::VerifyCa),
            ("sslrootcert=/ca.pem", Mode::VerifyFull),
            ("sslrootcert=system", Mode::VerifyFull),
        ] {
            assert_eq!(place(query).mode, mode, "{query}");
        }
        let place_with_all = place(
            "sslrootcert=/c%20a.pem&sslcert=/our.pem&sslkey=/our.key&application_name=shop&connect_timeout=7&options=-c%20a%3Db\
             &channel_binding=require&target_session_attrs=primary&load_balance_hosts=random&gssencmode=disable",
        );
        assert_eq!(place_with_all.authorities, Some("/c a.pem".into()));
        assert_eq!(place_with_all.identity, Some(("/our.pem".into(), "/our.key".into())));
        assert_eq!(place_with_all.connect_timeout, Duration::from_secs(7));
        let config = place_with_all.config;
        assert_eq!((config.get_application_name(), config.get_options()), (Some("shop"), Some("-c a=b")));
        assert_eq!(config.get_channel_binding(), ChannelBinding::Require);
        assert_eq!(config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        assert_eq!(config.get_load_balance_hosts(), LoadBalanceHosts::Random);
        assert_eq!(place("").config.get_target_session_attrs(), TargetSessionAttrs::Any);
        let Ok(several) = Address::parse("postgres://me@a:1,b/db") else { panic!("it is right") };
        let config = several.place.config;
        assert_eq!(config.get_hosts(), [Host::Tcp("a".to_owned()), Host::Tcp("b".to_owned())]);
        assert_eq!(
            (config.get_ports(), config.get_target_session_attrs()),
            (&[1, 5432][..], TargetSessionAttrs::ReadWrite)
        );
        let Ok(in_query) = Address::parse("postgres:///db?host=a,b&port=1,2&user=me&password=p%40ss@word") else {
            panic!("it is right")
        };
        let config = in_query.place.config;
        assert_eq!((config.get_hosts().len(), config.get_ports()), (2, &[1, 2][..]));
        assert_eq!((config.get_user(), config.get_password()), (Some("me"), Some(&b"p@ss@word"[..])));
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
            ("postgres://me:secret@h/db?ca=secret", "and of libpq's application_name"),
            ("postgres://me:secret@h/db?sslmode=verify-secret", "prefer, require, verify-ca, verify-full"),
            ("postgres://me:secret@h/db?sslrootcert=system&sslmode=verify-ca", "is for sslmode=verify-full"),
            ("postgres://me:secret@h/db?sslcert=/secret", "belong together"),
            ("postgres://me:secret@h/db?target_session_attrs=standby", "an event store is written"),
            ("postgres://me:secret@h/db?connect_timeout=secret", "connect_timeout is a number"),
            ("postgres://me:secret@h/db?port=secret", "port is a number"),
            ("postgres://me:secret@h/db?options=%ff", "the value of options is no text"),
            ("postgres://me:secret@h/db?listen=postgres://h/db?namespace=a", "says how to connect, and no more"),
            ("postgres://me:secret@h/db?listen=redis://me:secret@h", "listen: it is not of the form"),
            ("postgres://me:secret@h:secret/db", "of the form"),
            ("postgres://me:pass?secret=%zz@h/db", "is written with a percent sign"),
            ("postgres://me:secret@h/db?sslmode=allow&channel_binding=require", "for encrypted connections"),
            ("postgres:///db", "the host is missing"),
        ] {
            let what = Address::parse(address).err().unwrap_or_default();
            assert!(what.contains(want) && !what.contains("secret"), "{address}: {what}");
        }
    }
}
