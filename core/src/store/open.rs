//! One way to name a store: the address.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

#[cfg(feature = "sqlite")]
use super::SqliteStore;
use super::{EventStore, Limits, MemoryStore};

/// What a durable store promises when it says that an event is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// It survives the end of the process, however that comes. A power failure may take the last ones.
    #[default]
    Process,
    /// It survives a power failure. Every commit waits for the disk.
    Power,
}

/// Tells the time in milliseconds since 1970.
pub type WallClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// What can be set on a store.
#[derive(Clone)]
pub struct StoreOptions {
    /// The bounds. For a store that processes share they hold for all of them together, so all should
    /// have the same.
    pub limits: Limits,
    /// What stored means.
    pub durability: Durability,
    /// Whose process has given no sign of life for so long counts as gone, in milliseconds.
    pub owner_lost_ms: u64,
    /// The clock of durable stores; the system's when there is none.
    pub wall_clock: Option<WallClock>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { limits: Limits::default(), durability: Durability::default(), owner_lost_ms: 10_000, wall_clock: None }
    }
}

impl fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limits, durability, owner_lost_ms, .. } = self;
        f.debug_struct("StoreOptions")
            .field("limits", limits)
            .field("durability", durability)
            .field("owner_lost_ms", owner_lost_ms)
            .finish_non_exhaustive()
    }
}

/// A store could not be opened. The text names the address without what is secret in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenError {
    address: String,
    what: String,
}

impl OpenError {
    /// `shown` is an address without credentials.
    pub(super) fn new(shown: &str, what: impl Into<String>) -> Self {
        Self { address: shown.to_owned(), what: what.into() }
    }

    /// The code of the error, the same in every language.
    pub fn code(&self) -> &'static str {
        "store_not_opened"
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the event store {:?} cannot be opened: {}", self.address, self.what)
    }
}

impl Error for OpenError {}

/// Opens the store with this address. This may wait for the disk.
///
/// | address | store |
/// |---|---|
/// | `memory:` | in this process's memory |
/// | `sqlite:PATH`, `sqlite:///ABSOLUTE/PATH` | in a file that processes of one machine share (feature `sqlite`) |
///
/// # Errors
/// [`OpenError`] when there is no such kind of store, or this one cannot be used.
pub fn open(address: &str, options: &StoreOptions) -> Result<Arc<dyn EventStore>, OpenError> {
    const KNOWN: &str = if cfg!(feature = "sqlite") { "memory: and sqlite:PATH" } else { "memory:" };
    let refuse = |what: String| Err(OpenError::new(&shown(address), what));
    let Some((scheme, rest)) = address.split_once(':') else {
        return refuse(format!("an address is a kind of store, a colon and a place; the kinds are {KNOWN}"));
    };
    match scheme {
        "memory" if rest.is_empty() => Ok(Arc::new(MemoryStore::new(options.limits))),
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
            if path.is_empty() || path.starts_with(':') {
                return refuse("the path of the file is missing: sqlite:PATH".to_owned());
            }
            Ok(Arc::new(SqliteStore::open(std::path::Path::new(path), options)?))
        }
        #[cfg(not(feature = "sqlite"))]
        "sqlite" => refuse(format!("this build has no SQLite; the kinds of store are {KNOWN}")),
        _ => refuse(format!("there is no kind of store called {scheme:?}; the kinds are {KNOWN}")),
    }
}

/// An address without what may be secret in it: user and password, and what follows a question mark.
pub(super) fn shown(address: &str) -> String {
    let address = address.split_once('?').map_or(address, |(place, _)| place);
    let Some((scheme, rest)) = address.split_once("://") else { return address.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_secret_in_an_address_is_not_shown() {
        for (address, want) in [
            ("memory:", "memory:"),
            ("redis://user:pa@ss@host:6379/0?password=x", "redis://host:6379/0"),
            ("postgres://host/db", "postgres://host/db"),
            ("sqlite:events.db?key=secret", "sqlite:events.db"),
            ("sqlite:///a@b/events.db", "sqlite:///a@b/events.db"),
        ] {
            assert_eq!(shown(address), want);
        }
    }
}
