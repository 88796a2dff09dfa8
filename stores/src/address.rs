//! One way to name a store: the address.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use tailrope_core::ErrorCode;
use tailrope_core::store::{EventStore, MemoryStore, SealedStore, StoreOptions};

/// Why a server cannot be reached, without its name.
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) fn not_reached(error: &std::io::Error) -> String {
    // How the standard library says it: there is no kind for it.
    if error.to_string().starts_with("failed to lookup address") {
        return "the name of its host cannot be resolved: check the address and the DNS".to_owned();
    }
    error.kind().to_string()
}

/// A store could not be opened. The text names the address without what is secret in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenError {
    address: String,
    what: String,
}

impl OpenError {
    /// `shown` is an address without credentials.
    pub(crate) fn new(shown: &str, what: impl Into<String>) -> Self {
        Self { address: shown.to_owned(), what: what.into() }
    }

    /// What is wrong, without the address.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// The code of the error, the same in every language.
    pub fn code(&self) -> ErrorCode {
        ErrorCode::StoreNotOpened
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the event store {:?} cannot be opened: {}", self.address, self.what)
    }
}

impl Error for OpenError {}

/// Opens the store with this address. This may wait for the disk, or for the network.
///
/// | address | store |
/// |---|---|
/// | `memory:` | in this process's memory |
/// | `sqlite:PATH`, `sqlite:///ABSOLUTE/PATH` | in a file that processes of one machine share (feature `sqlite`) |
/// | `redis://[USER:PASSWORD@]HOST[:PORT][/DB]` | at a Redis or Valkey server (feature `redis`) |
/// | `redis+cluster://[USER:PASSWORD@]HOST,HOST...` | in a cluster, some servers of which are named |
/// | `redis+sentinel://[USER:PASSWORD@]HOST,HOST.../SERVICE[/DB]` | at the server that sentinels say is in charge |
/// | `rediss://`, `rediss+cluster://`, `rediss+sentinel://` | the same with TLS |
/// | `postgres://USER:PASSWORD@HOST:PORT/DATABASE?OPTIONS` | in a PostgreSQL database, for processes on any machine (feature `postgres`) |
///
/// Redis addresses may end in options, `?NAME=VALUE&NAME=VALUE`:
///
/// | option | default | |
/// |---|---|---|
/// | `namespace` | `tailrope` | what all keys begin with |
/// | `connect_timeout_ms` | 5,000 | how long connecting may take, and opening the store |
/// | `timeout_ms` | 10,000 | how long an operation is tried before it fails |
/// | `ca` | the system's | with TLS: a file with the certificates to trust, in PEM form |
/// | `cert`, `key` | | with TLS: files with our own certificate and its key, in PEM form, for a server that asks for them |
/// | `sentinel_user`, `sentinel_password` | | for the sentinels, where they ask for it |
///
/// A character that has a meaning in an address is written with a percent sign: `p%40ss` for `p@ss`.
///
/// # Errors
/// [`OpenError`] when there is no such kind of store, or this one cannot be used.
pub fn open(address: &str, options: &StoreOptions) -> Result<Arc<dyn EventStore>, OpenError> {
    let store = open_plain(address, options)?;
    Ok(match SealedStore::new(Arc::clone(&store), &options.encryption_keys) {
        Some(sealed) => Arc::new(sealed),
        None => store,
    })
}

/// Whether opening the store with this address waits for a network, and so for seconds where nobody answers.
pub fn is_remote(address: &str) -> bool {
    let scheme = address.split_once(':').map_or("", |(scheme, _)| scheme);
    ["postgres", "postgresql"].contains(&scheme) || scheme.starts_with("redis")
}

/// The kinds of store in this build.
fn kinds() -> String {
    [
        "memory:",
        #[cfg(feature = "sqlite")]
        "sqlite:PATH",
        #[cfg(feature = "redis")]
        "redis://HOST",
        #[cfg(feature = "postgres")]
        "postgres://HOST/DATABASE",
    ]
    .join(", ")
}

fn open_plain(address: &str, options: &StoreOptions) -> Result<Arc<dyn EventStore>, OpenError> {
    match part(address)? {
        Parted::Memory => Ok(Arc::new(MemoryStore::new(options.limits))),
        #[cfg(feature = "sqlite")]
        Parted::Sqlite(path) => Ok(Arc::new(crate::sqlite::open(path, options)?)),
        #[cfg(not(feature = "sqlite"))]
        Parted::Sqlite(_) => unreachable!("`part` refuses it"),
        #[cfg(feature = "testing")]
        Parted::Threaded(delay_ms) => {
            Ok(Arc::new(tailrope_core::store::ThreadedStore::delayed(options.limits, delay_ms)))
        }
        #[cfg(feature = "postgres")]
        Parted::Postgres => Ok(Arc::new(crate::postgres::open(address, options)?)),
        #[cfg(feature = "redis")]
        Parted::Redis => Ok(Arc::new(crate::redis::open(address, options)?)),
    }
}

/// Which kind of store an address names.
pub(crate) enum Parted<'a> {
    Memory,
    /// The path of the file.
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code))]
    Sqlite(&'a std::path::Path),
    #[cfg(feature = "testing")]
    Threaded(u64),
    #[cfg(feature = "postgres")]
    Postgres,
    #[cfg(feature = "redis")]
    Redis,
}

/// Tells the kinds of stores in this build apart.
pub(crate) fn part(address: &str) -> Result<Parted<'_>, OpenError> {
    let known = kinds();
    let refuse = |what: String| Err(OpenError::new(&shown_address(address), what));
    let Some((scheme, rest)) = address.split_once(':') else {
        return refuse(format!("an address is a kind of store, a colon and a place; the kinds are {known}"));
    };
    match scheme {
        "memory" if rest.is_empty() => Ok(Parted::Memory),
        "memory" => refuse("a store in memory has no place; its whole address is memory:".to_owned()),
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            let path = match rest.strip_prefix("//") {
                None => rest,
                Some(path) if path.starts_with('/') => path,
                Some(_) => {
                    return refuse("a file is on this machine: sqlite:PATH or sqlite:///ABSOLUTE/PATH".to_owned());
                }
            };
            if path.contains('?') {
                return refuse("the address of a SQLite file takes no options; they are arguments".to_owned());
            }
            if path.is_empty() || path.starts_with(':') {
                return refuse("the path of the file is missing: sqlite:PATH".to_owned());
            }
            Ok(Parted::Sqlite(std::path::Path::new(path)))
        }
        #[cfg(feature = "testing")]
        "test-threaded" => {
            let delay_ms = if rest.is_empty() { Some("0") } else { rest.strip_prefix("?delay_ms=") };
            match delay_ms.and_then(|delay_ms| delay_ms.parse().ok()) {
                Some(delay_ms) => Ok(Parted::Threaded(delay_ms)),
                None => refuse("its address is test-threaded: or test-threaded:?delay_ms=N".to_owned()),
            }
        }
        #[cfg(not(feature = "sqlite"))]
        "sqlite" => refuse(format!("this build has no SQLite; the kinds of store are {known}")),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(Parted::Postgres),
        #[cfg(not(feature = "postgres"))]
        "postgres" | "postgresql" => refuse(format!("this build has no PostgreSQL; the kinds of store are {known}")),
        #[cfg(feature = "redis")]
        _ if scheme.starts_with("redis") => Ok(Parted::Redis),
        #[cfg(not(feature = "redis"))]
        _ if scheme.starts_with("redis") => refuse(format!("this build has no Redis; the kinds of store are {known}")),
        _ if !is_kind(scheme) => refuse(format!("it names no kind of store; the kinds are {known}")),
        _ => refuse(format!("there is no kind of store called {scheme:?}; the kinds are {known}")),
    }
}

/// An address without what may be secret in it: the user and password, what follows a question mark, and
/// the place as a whole where it cannot be told from these.
pub fn shown_address(address: &str) -> String {
    // What names no kind of store is a list of settings, or a path whose kind was forgotten.
    let Some((scheme, rest)) = address.split_once(':').filter(|(kind, _)| is_kind(kind)) else {
        return if address.contains(['=', '@', ':', ' ']) { "...".to_owned() } else { address.to_owned() };
    };
    if ["memory", "sqlite", "test-threaded"].contains(&scheme) {
        return address.split_once('?').map_or(address, |(place, _)| place).to_owned();
    }
    let hidden = || format!("{scheme}:...");
    let Some(rest) = rest.strip_prefix("//") else { return hidden() };
    // Passwords are written with all kinds of characters that should have been escaped.
    let place = match rest.rsplit_once('@') {
        None => rest,
        Some((before, _)) if before.contains(['?', '#']) => return hidden(),
        Some((_, place)) => place,
    };
    let end = place.find(['?', '#']).unwrap_or(place.len());
    format!("{scheme}://{}", &place[..end])
}

fn is_kind(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_secret_in_an_address_is_not_shown() {
        for (address, want) in [
            ("memory:", "memory:"),
            ("redis://user:pa@ss@host:6379/0?password=x", "redis://host:6379/0"),
            ("redis://user:pa/s?s@host:6379/0?password=x", "redis:..."),
            ("postgres://host/db", "postgres://host/db"),
            ("sqlite:events.db?key=secret", "sqlite:events.db"),
            ("sqlite:///a@b/events.db", "sqlite:///a@b/events.db"),
            ("redis://:pa/ss@host:6379/0", "redis://host:6379/0"),
            ("redis://:pa?ss@host:6379/0", "redis:..."),
            ("redis://host/0?password=p@ss", "redis:..."),
            ("redis:user:pass@host", "redis:..."),
            ("host=db user=me password=pass", "..."),
            ("host=db password=pass:word", "..."),
            ("events.db", "events.db"),
        ] {
            assert_eq!(shown_address(address), want);
        }
    }
}
