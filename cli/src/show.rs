//! `tailrope show ADDRESS ID` and `tailrope end ADDRESS ID`: one session.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::stdin;
use std::sync::Weak;
use std::thread::sleep;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tailrope_core::protocol::{RequestId, StreamNonce};
use tailrope_core::store::{Complete, Epoch, Hold, Limits, Operation, Outcome, StoreOptions, Ticket, flush};
use tailrope_core::task::TASK_LOG;
use tailrope_stores::inspect::{SessionSeen, StreamSeen};
use tailrope_stores::open;

use crate::arguments::{Given, Takes};
use crate::living::Owners;
use crate::sessions::Session;
use crate::store::{SEALED, Store, name_of};
use crate::table::{age, bytes, table};
use crate::terminal::Terminal;
use crate::{AMISS, FINE};

/// So many streams of a session are shown.
const MOST_STREAMS: usize = 500;
/// How long the store may take to end a session.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long an owner that lives has to hear that the session is another's. One that hears it ends the session on its side; one
/// that finds it gone takes the store for one that lost it.
const HEARING: Duration = Duration::from_secs(1);
/// What opening a store for a moment must not shorten: all that it keeps is kept for as long as its servers say.
const KEPT_MS: u64 = 30 * 86_400_000;

/// What is told of a stream.
#[derive(Serialize)]
struct Stream {
    stream: String,
    kind: &'static str,
    state: &'static str,
    requests: Option<Vec<Value>>,
    low: u64,
    head: u64,
    events: u64,
    bytes: u64,
    readers: u64,
    began_at_ms: u64,
    last_at_ms: Option<u64>,
    kept_until_ms: Option<u64>,
    tail_bytes: Option<u64>,
}

impl Stream {
    fn new(seen: StreamSeen, is_sealed: bool) -> Self {
        let kind = match () {
            () if seen.is_standalone => "standalone",
            () if seen.nonce == TASK_LOG.hex() => "task",
            () => "requests",
        };
        let state = match () {
            () if seen.is_withdrawn => "withdrawn",
            () if seen.kept_until.is_some() => "finished",
            () if seen.waits => "waiting",
            () => "running",
        };
        // They are texts of the client, or numbers; nothing else is told.
        let requests = RequestId::decode_all(&seen.about).and_then(|_| serde_json::from_slice(&seen.about).ok());
        Self {
            stream: seen.nonce,
            kind,
            state,
            requests: requests.filter(|_| !is_sealed),
            low: seen.low,
            head: seen.head,
            events: seen.events,
            bytes: seen.bytes,
            readers: seen.readers,
            began_at_ms: seen.began_at,
            last_at_ms: seen.last_at,
            kept_until_ms: seen.kept_until,
            tail_bytes: seen.tail,
        }
    }

    fn row(&self, now: u64) -> Vec<String> {
        let requests = match &self.requests {
            Some(ids) if self.kind == "requests" => ids.iter().map(Value::to_string).collect::<Vec<_>>().join(" "),
            _ => "-".to_owned(),
        };
        vec![
            self.stream.clone(),
            self.kind.to_owned(),
            requests,
            self.state.to_owned(),
            format!("{}-{}", self.low, self.head),
            self.events.to_string(),
            bytes(self.bytes),
            self.readers.to_string(),
            age(now, Some(self.began_at_ms)),
            age(now, self.last_at_ms),
            self.tail_bytes.map_or_else(|| "-".to_owned(), bytes),
        ]
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Shown<'a> {
    store: &'a str,
    now_ms: u64,
    session: Session,
    streams: Vec<Stream>,
}

/// The store and the session that were named.
struct Named<'a> {
    address: &'a str,
    name: String,
    server: Option<&'a str>,
}

impl<'a> Named<'a> {
    fn of(given: &Given<'a>) -> Result<Self, String> {
        let [address, id] = given.rest[..] else {
            return Err("give the address of a store, and the name or the id of a session".to_owned());
        };
        let server = given.values().find(|(name, _)| *name == "--server").map(|(_, value)| value);
        Ok(Self { address, name: name_of(id, server)?.into_owned(), server })
    }

    /// A client's id may look like a name, and is not said again.
    fn is_missing(&self, store: &Store, terminal: &mut Terminal) -> u8 {
        let what = match self.server {
            Some(server) => format!("the server {server} has no session with this id"),
            None => "there is no session of this name; with the client's id give --server NAME".to_owned(),
        };
        terminal.complain(&format!("tailrope: {}: {what}", store.shown));
        AMISS
    }
}

pub(crate) fn show(words: &[String], terminal: &mut Terminal) -> Result<u8, String> {
    let given = Given::read(words, &Takes { flags: &["--json"], values: &["--server"] })?;
    let named = Named::of(&given)?;
    let mut store = Store::at(named.address)?;
    match shown(&mut store, &named.name, given.has("--json"), terminal) {
        Ok(true) => Ok(FINE),
        Ok(false) => Ok(named.is_missing(&store, terminal)),
        Err(what) => Ok(store.refused(&what, terminal)),
    }
}

fn shown(store: &mut Store, name: &str, is_json: bool, terminal: &mut Terminal) -> Result<bool, String> {
    let Some(seen) = store.session(name)? else { return Ok(false) };
    let streams = store.inside.streams(name, MOST_STREAMS)?;
    terminal.progress("looking for signs of life");
    let owners = Owners::look(&mut *store.inside, [&seen].into_iter())?;
    let now_ms = store.inside.now_ms()?;
    let (is_sealed, all) = (seen.is_sealed, seen.streams);
    let session = Session::new(seen, &owners);
    let streams: Vec<Stream> = streams.into_iter().map(|stream| Stream::new(stream, is_sealed)).collect();
    if is_json {
        terminal.json(&Shown { store: &store.shown, now_ms, session, streams });
        return Ok(true);
    }
    terminal.print(&Session::table(&[session], now_ms));
    let heads =
        ["STREAM", "KIND:", "REQUESTS:", "STATE:", "HELD", "EVENTS", "BYTES", "READERS", "BEGAN", "LAST", "TAIL"];
    let rows: Vec<Vec<String>> = streams.iter().map(|stream| stream.row(now_ms)).collect();
    if !rows.is_empty() {
        terminal.print(&format!("\n{}", table(&heads, &rows)));
    }
    if all > rows.len() as u64 {
        terminal.print(&format!("\nand {} more streams", all - rows.len() as u64));
    }
    if is_sealed {
        terminal.print(&format!("\n{SEALED}"));
    }
    Ok(true)
}

pub(crate) fn end(words: &[String], terminal: &mut Terminal) -> Result<u8, String> {
    let given = Given::read(words, &Takes { flags: &["--json", "--yes"], values: &["--server"] })?;
    let named = Named::of(&given)?;
    let (mut store, name) = (Store::at(named.address)?, &named.name);
    let ended = match store.session(name) {
        Ok(None) => return Ok(named.is_missing(&store, terminal)),
        Ok(Some(seen)) if given.has("--yes") || agrees(&seen, terminal) => ended(&mut store, named.address, &seen),
        Ok(Some(_)) => {
            terminal.complain("tailrope: nothing was ended");
            return Ok(AMISS);
        }
        Err(what) => return Ok(store.refused(&what, terminal)),
    };
    Ok(match ended {
        Ok(()) if given.has("--json") => {
            terminal.json(&serde_json::json!({"store": store.shown, "name": name, "ended": true}));
            FINE
        }
        Ok(()) => {
            terminal.print(&format!("{}: session {name} is ended", store.shown));
            FINE
        }
        Err(what) => {
            terminal.complain(&format!("tailrope: {}: session {name} is not ended: {what}", store.shown));
            AMISS
        }
    })
}

/// Asks, and takes silence for a no.
fn agrees(seen: &SessionSeen, terminal: &mut Terminal) -> bool {
    let SessionSeen { name, streams, running, .. } = seen;
    terminal.complain(&format!(
        "End session {name}? Its {streams} streams are deleted, and {running} of them run: their calls end with an error. [y/N]"
    ));
    let mut answer = String::new();
    let _ = stdin().read_line(&mut answer);
    ["y", "yes"].contains(&answer.trim().to_lowercase().as_str())
}

/// Takes no answer.
struct Unheard;

impl Complete for Unheard {
    fn complete(&self, _ticket: &Ticket, _outcome: Outcome) {}
}

fn ended(store: &mut Store, address: &str, seen: &SessionSeen) -> Result<(), String> {
    let is_living = Owners::look(&mut *store.inside, [seen].into_iter())?.of(seen).lives();
    let limits = Limits {
        max_events_per_stream: usize::MAX,
        max_bytes_per_stream: usize::MAX,
        max_bytes_per_session: usize::MAX,
        max_bytes: usize::MAX,
        retention_ms: KEPT_MS,
        max_age_ms: KEPT_MS,
        ..Limits::default()
    };
    let writing = open(address, &StoreOptions { limits, ..StoreOptions::default() });
    let writing = writing.map_err(|error| error.what().to_owned())?;
    let before = Epoch { number: seen.epoch, salt: seen.salt };
    let epoch = before.next(RandomState::new().build_hasher().finish());
    // Its owner may live, and would write again what a store has lost: so it is taken from it first, which the owner hears of.
    // The name of a session that had several owners stays taken.
    let hold = Hold { epoch, seen: Some(before), record: None };
    let to: Weak<Unheard> = Weak::new();
    let ticket = Ticket { to, nonce: StreamNonce::NONE, operation: Operation::Hold, number: 0 };
    // What came of it is seen below.
    let _ = writing.hold(&seen.name, &hold, &ticket);
    if is_living {
        flush(&*writing, PATIENCE);
        sleep(HEARING);
    }
    writing.drop_session(&seen.name, epoch);
    flush(&*writing, PATIENCE);
    drop(writing);
    match store.session(&seen.name)? {
        None => Ok(()),
        Some(now) if (now.epoch, now.salt) != (seen.epoch, seen.salt) => {
            Err("another process has taken it over meanwhile: try again".to_owned())
        }
        Some(_) => Err("the store did not do it in time".to_owned()),
    }
}
