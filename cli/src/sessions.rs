//! `tailrope sessions ADDRESS` and `tailrope tasks ADDRESS`: what is in a store, a page of it.

use std::cmp::Reverse;

use serde::Serialize;
use tailrope_core::task::{Change, TASK_LOG, Task};
use tailrope_stores::inspect::SessionSeen;

use crate::FINE;
use crate::arguments::{Given, Takes};
use crate::living::{Owner, Owners};
use crate::store::{SEALED, Store};
use crate::table::{age, bytes, counted, table};
use crate::terminal::Terminal;

const TAKES: Takes<'_> = Takes { flags: &["--json"], values: &["--sort", "--limit", "--page"] };
/// How many sessions are asked for at a time.
const AT_A_TIME: usize = 500;
/// So many are kept in memory at most, to be sorted.
const MOST: usize = 100_000;
/// A larger log of a task is not read.
const TASK_BYTES: u64 = 4 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Bytes,
    Newest,
    Oldest,
    Streams,
    Waiting,
}

const ORDERS: [(&str, Order); 5] = [
    ("bytes", Order::Bytes),
    ("newest", Order::Newest),
    ("oldest", Order::Oldest),
    ("streams", Order::Streams),
    ("waiting", Order::Waiting),
];

impl Order {
    /// What comes first is smallest.
    fn key(self, session: &SessionSeen) -> Reverse<u64> {
        Reverse(match self {
            Self::Bytes => session.bytes,
            Self::Newest => session.newest_at.unwrap_or(0),
            Self::Oldest => session.oldest_at.map_or(0, |at| u64::MAX - at),
            Self::Streams => session.streams,
            Self::Waiting => session.waiting,
        })
    }
}

/// Which part is shown.
struct Wanted {
    order: Order,
    sort: &'static str,
    limit: usize,
    page: usize,
}

impl Wanted {
    fn read(given: &Given<'_>, sort: &'static str) -> Result<Self, String> {
        let order = |name: &str| ORDERS.iter().find(|(known, _)| *known == name).copied();
        let (sort, by) = order(sort).unwrap_or(ORDERS[0]);
        let mut wanted = Self { order: by, sort, limit: 50, page: 1 };
        for (name, value) in given.values() {
            match name {
                "--sort" => {
                    let names: Vec<&str> = ORDERS.iter().map(|(name, _)| *name).collect();
                    let found = order(value).ok_or_else(|| format!("--sort takes {}", names.join(", ")))?;
                    (wanted.sort, wanted.order) = found;
                }
                "--limit" => wanted.limit = number(name, value, 1_000)?,
                _ => wanted.page = number(name, value, MOST)?,
            }
        }
        if wanted.limit * wanted.page > MOST {
            return Err(format!("--limit times --page is at most {MOST}: sort by something else"));
        }
        Ok(wanted)
    }
}

fn number(name: &str, value: &str, most: usize) -> Result<usize, String> {
    let number = value.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("{name} is a number from 1 to {most}"))
}

/// The first sessions in an order, of any number that comes by.
struct First {
    order: Order,
    count: usize,
    kept: Vec<SessionSeen>,
    /// All that came by.
    total: u64,
    bytes: u64,
    is_sealed: bool,
}

impl First {
    fn new(wanted: &Wanted) -> Self {
        let (order, count) = (wanted.order, wanted.limit * wanted.page);
        Self { order, count, kept: Vec::new(), total: 0, bytes: 0, is_sealed: false }
    }

    fn take(&mut self, session: SessionSeen) {
        self.total += 1;
        self.bytes += session.bytes;
        self.is_sealed |= session.is_sealed;
        self.kept.push(session);
        // Seldom: each time as many come in as stay.
        if self.kept.len() >= 2 * self.count + AT_A_TIME {
            self.cut();
        }
    }

    fn cut(&mut self) {
        let order = self.order;
        self.kept.sort_by(|one, other| (order.key(one), &one.name).cmp(&(order.key(other), &other.name)));
        // A store may tell one twice.
        self.kept.dedup_by(|one, other| one.name == other.name);
        self.kept.truncate(self.count);
    }

    fn page(mut self, wanted: &Wanted) -> Page {
        self.cut();
        let sessions = self.kept.into_iter().skip(wanted.limit * (wanted.page - 1)).collect();
        Page { sessions, total: self.total, bytes: self.bytes, is_sealed: self.is_sealed }
    }
}

struct Page {
    sessions: Vec<SessionSeen>,
    total: u64,
    bytes: u64,
    is_sealed: bool,
}

/// Goes through all sessions, some at a time.
fn find(
    store: &mut Store,
    wanted: &Wanted,
    terminal: &mut Terminal,
    is_wanted: fn(&SessionSeen) -> bool,
) -> Result<Page, String> {
    let mut first = First::new(wanted);
    let mut after: Option<String> = None;
    loop {
        let page = store.inside.sessions(after.as_deref(), AT_A_TIME, &TASK_LOG)?;
        page.sessions.into_iter().filter(is_wanted).for_each(|session| first.take(session));
        terminal.progress(&format!("{} found", first.total));
        after = page.next;
        if after.is_none() {
            return Ok(first.page(wanted));
        }
    }
}

/// What is told of a session.
#[derive(Serialize)]
pub(crate) struct Session {
    name: String,
    kind: &'static str,
    revision: Option<String>,
    user: Option<String>,
    sealed: bool,
    owner: Owner,
    streams: u64,
    running: u64,
    waiting: u64,
    bytes: u64,
    oldest_at_ms: Option<u64>,
    newest_at_ms: Option<u64>,
}

impl Session {
    pub(crate) fn new(seen: SessionSeen, owners: &Owners) -> Self {
        let owner = owners.of(&seen);
        let SessionSeen { name, revision, is_sealed: sealed, user, bytes, streams, running, waiting, .. } = seen;
        let (oldest_at_ms, newest_at_ms) = (seen.oldest_at, seen.newest_at);
        let kind = if seen.has_log { "task" } else { "session" };
        Self { name, kind, revision, user, sealed, owner, streams, running, waiting, bytes, oldest_at_ms, newest_at_ms }
    }

    fn row(&self, now: u64) -> Vec<String> {
        let dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        vec![
            self.name.clone(),
            if self.kind == "task" { "task".to_owned() } else { dash(&self.revision) },
            dash(&self.user),
            self.owner.shown(),
            age(now, self.oldest_at_ms),
            age(now, self.newest_at_ms),
            format!("{}/{}", self.running, self.streams),
            self.waiting.to_string(),
            bytes(self.bytes),
        ]
    }

    /// Its row below a heading.
    pub(crate) fn table(sessions: &[Self], now: u64) -> String {
        let heads = ["SESSION", "REVISION:", "USER:", "OWNER:", "OLDEST", "NEWEST", "RUNNING", "WAITING", "BYTES"];
        table(&heads, &sessions.iter().map(|session| session.row(now)).collect::<Vec<_>>())
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Listing<'a, T> {
    store: &'a str,
    now_ms: u64,
    sort: &'a str,
    limit: usize,
    page: usize,
    total: u64,
    sealed: bool,
    #[serde(rename = "items")]
    items: &'a [T],
}

pub(crate) fn sessions(words: &[String], terminal: &mut Terminal) -> Result<u8, String> {
    run(words, terminal, "bytes", list_sessions)
}

pub(crate) fn tasks(words: &[String], terminal: &mut Terminal) -> Result<u8, String> {
    run(words, terminal, "newest", list_tasks)
}

type List = fn(&mut Store, &Wanted, bool, &mut Terminal) -> Result<(), String>;

fn run(words: &[String], terminal: &mut Terminal, sort: &'static str, list: List) -> Result<u8, String> {
    let given = Given::read(words, &TAKES)?;
    let wanted = Wanted::read(&given, sort)?;
    let mut store = Store::at(given.one("give one address of a store")?)?;
    match list(&mut store, &wanted, given.has("--json"), terminal) {
        Ok(()) => Ok(FINE),
        Err(what) => Ok(store.refused(&what, terminal)),
    }
}

fn list_sessions(store: &mut Store, wanted: &Wanted, is_json: bool, terminal: &mut Terminal) -> Result<(), String> {
    let found = find(store, wanted, terminal, |_| true)?;
    terminal.progress("looking for signs of life");
    let owners = Owners::look(&mut *store.inside, found.sessions.iter())?;
    let now_ms = store.inside.now_ms()?;
    let (total, all_bytes, sealed) = (found.total, found.bytes, found.is_sealed);
    let items: Vec<Session> = found.sessions.into_iter().map(|seen| Session::new(seen, &owners)).collect();
    show(terminal, store, wanted, is_json, now_ms, total, sealed, &items, |items| {
        (Session::table(items, now_ms), format!("{}, {}", counted(total, "session"), bytes(all_bytes)))
    });
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "what the two listings have in common")]
fn show<T: Serialize>(
    terminal: &mut Terminal,
    store: &Store,
    wanted: &Wanted,
    is_json: bool,
    now_ms: u64,
    total: u64,
    sealed: bool,
    items: &[T],
    text: impl FnOnce(&[T]) -> (String, String),
) {
    let &Wanted { sort, limit, page, .. } = wanted;
    if is_json {
        return terminal.json(&Listing { store: &store.shown, now_ms, sort, limit, page, total, sealed, items });
    }
    let (table, sum) = text(items);
    if !items.is_empty() {
        terminal.print(&format!("{table}\n"));
    }
    let pages = total.div_ceil(limit as u64).max(1);
    terminal.print(&format!("{}: {sum}; page {page} of {pages}, by {sort}", store.shown));
    if sealed {
        terminal.print(SEALED);
    }
}

/// What is told of a task.
#[derive(Serialize)]
struct TaskRow {
    name: String,
    state: Option<&'static str>,
    user: Option<String>,
    sealed: bool,
    owner: Owner,
    created_at_ms: Option<u64>,
    updated_at_ms: Option<u64>,
    waiting: u64,
    bytes: u64,
}

impl TaskRow {
    fn new(store: &mut Store, seen: SessionSeen, owners: &Owners) -> Result<Self, String> {
        let task = if seen.is_sealed { None } else { read(store, &seen.name)? };
        let state = match &task {
            Some(task) => Some(task.status().as_str()),
            // Its log has an end, which cannot be read here.
            None if seen.running == 0 => Some("ended"),
            None => None,
        };
        let times = task.map(|task| (task.created_at(), task.updated_at()));
        Ok(Self {
            state,
            owner: owners.of(&seen),
            name: seen.name,
            user: seen.user,
            sealed: seen.is_sealed,
            created_at_ms: times.map(|(created, _)| created),
            updated_at_ms: times.map(|(_, updated)| updated),
            waiting: seen.waiting,
            bytes: seen.bytes,
        })
    }

    fn row(&self, now: u64) -> Vec<String> {
        vec![
            self.name.clone(),
            self.state.unwrap_or("-").to_owned(),
            self.user.clone().unwrap_or_else(|| "-".to_owned()),
            self.owner.shown(),
            age(now, self.created_at_ms),
            age(now, self.updated_at_ms),
            self.waiting.to_string(),
            bytes(self.bytes),
        ]
    }
}

/// How a task stands by its log; none where that cannot be read, or is too large.
fn read(store: &mut Store, name: &str) -> Result<Option<Task>, String> {
    let Some(frames) = store.inside.frames(name, &TASK_LOG, TASK_BYTES)? else { return Ok(None) };
    let changes: Option<Vec<Change>> = frames.into_iter().map(|frame| Change::decode(&frame.into())).collect();
    Ok(changes.and_then(|changes| Task::fold(&changes).ok().flatten()))
}

fn list_tasks(store: &mut Store, wanted: &Wanted, is_json: bool, terminal: &mut Terminal) -> Result<(), String> {
    let found = find(store, wanted, terminal, |seen| seen.has_log)?;
    terminal.progress("looking for signs of life");
    let owners = Owners::look(&mut *store.inside, found.sessions.iter())?;
    let now_ms = store.inside.now_ms()?;
    let (total, all_bytes, sealed) = (found.total, found.bytes, found.is_sealed);
    let rows = found.sessions.into_iter().map(|seen| TaskRow::new(store, seen, &owners));
    let rows = rows.collect::<Result<Vec<_>, _>>()?;
    show(terminal, store, wanted, is_json, now_ms, total, sealed, &rows, |rows| {
        let heads = ["TASK", "STATE:", "USER:", "OWNER:", "CREATED", "UPDATED", "WAITING", "BYTES"];
        let rows: Vec<Vec<String>> = rows.iter().map(|row| row.row(now_ms)).collect();
        (table(&heads, &rows), format!("{}, {}", counted(total, "task"), bytes(all_bytes)))
    });
    Ok(())
}
