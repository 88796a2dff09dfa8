//! What an operator sees of a durable store: the sessions in it, and what its server and its place are like.
//!
//! A look changes nothing in the store, makes nothing that is not there, and gives no sign of life. It waits for the store, so
//! it is for a program of its own, not for a server. No payload of an event is shown. What is sealed stays sealed.

use std::collections::BTreeMap;

use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::session_name;

use crate::OpenError;
use crate::address::{Parted, part};

/// Something that is known of a store, its server or its place.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named like what is in them")]
pub enum Fact {
    Text(String),
    Number(i64),
    Flag(bool),
}

impl From<String> for Fact {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Fact {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<i64> for Fact {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for Fact {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

/// What is known, by its name. What could not be found out is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts(pub BTreeMap<&'static str, Fact>);

impl Facts {
    pub(crate) fn add(&mut self, name: &'static str, fact: impl Into<Fact>) {
        self.0.insert(name, fact.into());
    }

    /// Of a fact that may not be known.
    pub(crate) fn add_known(&mut self, name: &'static str, fact: Option<impl Into<Fact>>) {
        if let Some(fact) = fact {
            self.add(name, fact);
        }
    }

    /// A text, where that is what it is.
    pub fn text(&self, name: &str) -> Option<&str> {
        if let Some(Fact::Text(text)) = self.0.get(name) { Some(text) } else { None }
    }

    /// A number, where that is what it is.
    pub fn number(&self, name: &str) -> Option<i64> {
        if let Some(Fact::Number(number)) = self.0.get(name) { Some(*number) } else { None }
    }

    /// A flag, where that is what it is.
    pub fn flag(&self, name: &str) -> Option<bool> {
        if let Some(Fact::Flag(flag)) = self.0.get(name) { Some(*flag) } else { None }
    }
}

/// A session in a store. Times are milliseconds since 1970, by the store's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionSeen {
    /// What stores and logs know it by.
    pub name: String,
    /// The store object that writes it; none where that has let it go.
    pub owner: Option<String>,
    /// How many owners it has had.
    pub epoch: u64,
    /// The random half of the epoch, which a change of the session names, too.
    pub salt: u64,
    /// The negotiated revision.
    pub revision: Option<String>,
    /// Its record is encrypted.
    pub is_sealed: bool,
    /// A hash of whose it is. The same user of one store has the same.
    pub user: Option<String>,
    /// Bytes of its logs and messages.
    pub bytes: u64,
    /// Its logs.
    pub streams: u64,
    /// Those of them that have no end.
    pub running: u64,
    /// Messages that its owner has not taken.
    pub waiting: u64,
    /// When the oldest log that is held began, as far as its events are held.
    pub oldest_at: Option<u64>,
    /// When the newest log began.
    pub newest_at: Option<u64>,
    /// It has the log that was asked for.
    pub has_log: bool,
}

/// A part of what is in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionPage {
    /// Some sessions.
    pub sessions: Vec<SessionSeen>,
    /// Where the next page begins; none behind the last one. A page may be empty and not the last.
    pub next: Option<String>,
}

/// A log of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamSeen {
    /// Its name, in hexadecimal digits.
    pub nonce: String,
    /// It is the one that belongs to no request.
    pub is_standalone: bool,
    /// What it was created with.
    pub about: Vec<u8>,
    /// The last position, and the first that was not trimmed.
    pub head: u64,
    /// See `head`.
    pub low: u64,
    /// Events that are held.
    pub events: u64,
    /// Bytes of all that is held.
    pub bytes: u64,
    /// Readers that have come.
    pub readers: u64,
    /// When the event at `low` was stored, or the log was created.
    pub began_at: u64,
    /// When the newest event was stored, if it is held.
    pub last_at: Option<u64>,
    /// It has its end, and is kept until then.
    pub kept_until: Option<u64>,
    /// Bytes of an end that is not in the log.
    pub tail: Option<u64>,
    /// The message that it answers waits for the session's owner.
    pub waits: bool,
    /// Nobody will begin that message.
    pub is_withdrawn: bool,
}

/// What the sign of life of a store object is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// It lives as long as this count grows.
    Count(u64),
    /// It said that it was closed.
    Closed,
    /// The store knows of none.
    Unknown,
}

/// A durable store that is looked into. Texts of errors name no address and no secret.
#[allow(clippy::missing_errors_doc, reason = "each says why the store cannot be asked, or what it answered")]
pub trait Inspect {
    /// What the store, its server and its place are like. What is worth knowing of a store that cannot be used is among it.
    fn facts(&mut self) -> Result<Facts, String>;

    /// Sessions, some at a time. `log` is looked for in each of them. A session that begins meanwhile may be left out, one
    /// that does not may come twice, but is not left out.
    fn sessions(&mut self, after: Option<&str>, at_most: usize, log: &StreamNonce) -> Result<SessionPage, String>;

    /// One session.
    fn session(&mut self, name: &str, log: &StreamNonce) -> Result<Option<SessionSeen>, String>;

    /// The session's logs, from the first on.
    fn streams(&mut self, session: &str, at_most: usize) -> Result<Vec<StreamSeen>, String>;

    /// The frames of a log; none if there is no such log, or it has more bytes than wanted.
    fn frames(&mut self, session: &str, log: &StreamNonce, max_bytes: u64) -> Result<Option<Vec<Vec<u8>>>, String>;

    /// The signs of life of these store objects, in this order.
    fn beats(&mut self, owners: &[&str]) -> Result<Vec<Beat>, String>;

    /// The store's clock.
    fn now_ms(&mut self) -> Result<u64, String>;
}

/// The durable store with this address, to look into it. Nothing is connected yet.
///
/// # Errors
/// The address is wrong, or names a store that nobody can look into: one in the memory of a process.
pub fn inspect(address: &str) -> Result<Box<dyn Inspect>, OpenError> {
    let refuse = |what: String| OpenError::new(&crate::shown_address(address), what);
    match part(address)? {
        #[cfg(feature = "sqlite")]
        Parted::Sqlite(path) => Ok(Box::new(crate::sqlite::Looking::new(path))),
        #[cfg(feature = "redis")]
        Parted::Redis => Ok(Box::new(crate::redis::Looking::new(address).map_err(refuse)?)),
        #[cfg(feature = "postgres")]
        Parted::Postgres => Ok(Box::new(crate::postgres::Looking::new(address).map_err(refuse)?)),
        _ => Err(refuse(
            "what is in the memory of a process cannot be seen from outside: its server's stats() tell of it"
                .to_owned(),
        )),
    }
}

/// A principal as it is shown.
pub(crate) fn user(principal: &[u8]) -> String {
    session_name(&*String::from_utf8_lossy(principal))[..8].to_owned()
}

/// A number that only somebody else can have written so: it harms nothing but itself.
pub(crate) fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
