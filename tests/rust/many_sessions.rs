//! Short sessions that no client ever deletes, over every store: what is held reaches a plateau (I11). In one of four the
//! client vanishes for good amid a call, or amid a question of the server.
//!
//! The driver does what hosts do: it ticks the engine, and ends a session that has been idle for too long.
//! Time is compressed by the options. From time to time the process goes away without ending anything, so
//! that the store has to forget what was left in it.
//!
//! How much is held while sessions come depends on how fast they come. So now and then they pause: then
//! everything that was held on their behalf has to go, to the last row, and what memory and files keep is
//! compared with what they kept earlier. `TAILROPE_SESSIONS=1000000` runs so many sessions as fast as the
//! store takes them, pauses at each tenth, and prints what was held before and after.

#[macro_use]
mod kit;

mod heap;

mod stores {
    pub(crate) mod postgres {
        pub(crate) mod database;
    }

    pub(crate) mod redis {
        pub(crate) mod server;
    }
}

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::kit::common::{NEW, broadcast, id, listen, notify, respond};
use crate::kit::folder::Folder;
use crate::stores::postgres::database::Database;
use crate::stores::redis::server::{Server, say};
use tailrope_core::engine::{Connection, Engine, Options, OutgoingMessage, SessionHandle, Wake};
use tailrope_core::protocol::Dialect;
use tailrope_core::store::{EventStore, Limits, StoreOptions};
use tailrope_core::stream::Pacing;
use tailrope_stores::open;

/// In `make test-full`.
const FEW: u64 = 1_000;
/// A client that opens sessions faster than this is more than a machine of tests has.
const MOST_PER_S: u64 = 20_000;
/// Sessions whose calls run at once.
const RUNNING: usize = 256;
/// Everything that makes something go. The stores add up to two seconds of their own.
const SHORT_MS: u64 = 500;
const LONGER_MS: u64 = 2_000;
/// Within this time everything has gone, on a machine that is busy with something else.
const GONE: Duration = Duration::from_secs(60);
/// What is left when everything has gone: a store object, or two of them, is known to its store.
const FEW_LEFT: [(&str, u64); 2] = [("rows_owner", 2), ("keys", 4)];
/// The later half of the pauses may find this many times as much as the earlier half...
const FACTOR: f64 = 1.5;
/// ... and this much in any case, in kB. An allocator, and a write-ahead log up to its bound, keep for later what
/// they once had; what is allocated is exact.
const SLACK_KB: [(&str, u64); 4] =
    [("heap_kb", 512), ("sqlite_heap_kb", 1 << 10), ("rss_kb", 24 << 10), ("wal_kb", 24 << 10)];
const SLACK_ELSE_KB: u64 = 8 << 10;

/// One at a time: what is measured is the process.
static ALONE: Mutex<()> = Mutex::new(());

type Sizes = Vec<(&'static str, u64)>;

#[test]
fn i11_memory_reaches_a_plateau() {
    run("memory", "memory:", Vec::new);
}

#[test]
fn i11_a_sqlite_file_reaches_a_plateau() {
    let folder = Folder::new();
    let file = folder.path("a.db");
    let size = |end: &str| {
        let path = PathBuf::from(format!("{}{end}", file.display()));
        std::fs::metadata(path).map_or(0, |data| data.len()) >> 10
    };
    run("SQLite", &format!("sqlite:{}", file.display()), || {
        let db = rusqlite::Connection::open(&file).unwrap();
        db.busy_timeout(Duration::from_secs(20)).unwrap();
        let number = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap().cast_unsigned();
        let pages = number("SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count");
        let mut sizes = vec![("pages_kb", (pages * number("PRAGMA page_size")) >> 10)];
        sizes.extend([("file_kb", size("")), ("wal_kb", size("-wal"))]);
        for (table, sql) in [
            ("rows_owner", "SELECT count(*) FROM owner"),
            ("rows_session", "SELECT count(*) FROM session"),
            ("rows_stream", "SELECT count(*) FROM stream"),
            ("rows_event", "SELECT count(*) FROM event"),
        ] {
            sizes.push((table, number(sql)));
        }
        sizes
    });
}

#[test]
fn i11_redis_keys_reach_a_plateau() {
    let server = Server::start(&[]);
    let place = server.place();
    run("Redis", &server.address(""), || {
        let keys = say(&place, &["DBSIZE"])[0].parse().unwrap();
        let memory = say(&place, &["INFO", "memory"]).concat();
        let used = memory.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
        vec![("keys", keys), ("used_memory_kb", used.trim().parse::<u64>().unwrap() >> 10)]
    });
}

#[test]
fn i11_postgres_rows_reach_a_plateau() {
    let database = Database::new();
    run("PostgreSQL", &database.address(""), || {
        let administrator = database.inside();
        let tables = [
            ("rows_owner", "owner"),
            ("rows_session", "session"),
            ("rows_stream", "stream"),
            ("rows_event", "event"),
            ("rows_trash", "trash"),
        ];
        let count = |table: &str| administrator.number(&format!("SELECT count(*) FROM store.{table}"));
        let mut sizes: Sizes = tables.iter().map(|(name, table)| (*name, count(table).cast_unsigned())).collect();
        let bytes = administrator.number(
            "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relnamespace = 'store'::regnamespace",
        );
        sizes.push(("tables_kb", bytes.cast_unsigned() >> 10));
        sizes
    });
}

/// Runs the sessions over the store with this address, and looks in each pause what is held.
fn run(name: &str, address: &str, sizes: impl Fn() -> Sizes) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let asked = std::env::var("TAILROPE_SESSIONS").ok().map(|count| count.parse().expect("a number of sessions"));
    let count: u64 = asked.unwrap_or(FEW);
    let (pauses, processes) = if asked.is_some() { (10, 20) } else { (2, 4) };
    let shortest = Duration::from_secs(1) / u32::try_from(MOST_PER_S).unwrap();
    let mut process = Process::new(address);
    let (mut samples, mut opening) = (Vec::new(), Duration::ZERO);
    let (mut next, mut since) = (Instant::now(), Instant::now());
    for number in 1..=count {
        process.wait_until(next);
        // A machine that was busy is not to be made up for.
        next = (next + shortest).max(Instant::now());
        process.open(number);
        if number % (count / pauses) == 0 {
            let took = since.elapsed();
            opening += took;
            let per_s = (count / pauses) as f64 / took.as_secs_f64();
            // To look takes a while, in which nobody would read what is kept for a short time only.
            process.finish(0);
            let held: Sizes = process.sizes().into_iter().chain(sizes()).collect();
            let left = process.rest(&sizes);
            if asked.is_some() {
                eprintln!("{name} {number}: {per_s:.0}/s {held:?}\n    then {left:?}");
            }
            samples.push(left);
            since = Instant::now();
        }
        if process.outlives && number % (count / processes) == 0 && number < count {
            process = process.replaced(address);
        }
    }
    eprintln!("{name}: {count} sessions in {:.1} s, and pauses", opening.as_secs_f64());
    check(name, &samples);
}

fn allowed(few: &[(&str, u64)], what: &str) -> Option<u64> {
    few.iter().find(|(name, _)| *name == what).map(|(_, count)| *count)
}

/// Whether this is of sessions: memory and files may keep something for later, rows may not.
fn has_to_go(what: &str) -> bool {
    !what.ends_with("_kb")
}

/// What memory and files keep while nothing is held does not grow with the sessions that have been.
fn check(name: &str, samples: &[Sizes]) {
    let (earlier, later) = samples.split_at(samples.len() / 2);
    for (at, (what, _)) in samples[0].iter().enumerate().filter(|(_, (what, _))| !has_to_go(what)) {
        let most = |samples: &[Sizes]| samples.iter().map(|sizes| sizes[at].1).max().unwrap();
        let slack = allowed(&SLACK_KB, what).unwrap_or(SLACK_ELSE_KB);
        let bound = (most(earlier) as f64 * FACTOR) as u64 + slack;
        let all: Vec<u64> = samples.iter().map(|sizes| sizes[at].1).collect();
        assert!(most(later) <= bound, "{name}: {what} is no plateau, {bound} allowed: {all:?}");
    }
}

/// What a host is to the engine.
struct Process {
    engine: Engine,
    outlives: bool,
    began: Instant,
    bell: Arc<Bell>,
    /// Calls that are not answered to their end.
    running: HashMap<u64, Running>,
    /// Calls that were cut, and ended when their stream might have been kept for long enough.
    late: u64,
    /// When to look whether a session is idle.
    watched: VecDeque<(Instant, SessionHandle)>,
}

struct Running {
    session: SessionHandle,
    connection: Connection,
    began: Instant,
    /// It is to be cut after its first event, and resumed.
    is_to_be_cut: bool,
    was_cut: bool,
}

#[derive(Default)]
struct Bell {
    rung: Mutex<Vec<u64>>,
    came: Condvar,
}

impl Wake for Bell {
    fn wake(&self, key: u64) {
        self.rung.lock().unwrap().push(key);
        self.came.notify_one();
    }
}

impl Bell {
    fn wait(&self, at_most: Duration) {
        let rung = self.rung.lock().unwrap();
        drop(self.came.wait_timeout_while(rung, at_most, |rung| rung.is_empty()).unwrap());
    }
}

impl Process {
    fn new(address: &str) -> Self {
        // Redis ends a log by its own clock, also while a machine of tests stalls.
        let max_age_ms = if address.starts_with("redis") { LONGER_MS } else { SHORT_MS };
        let limits = Limits { retention_ms: SHORT_MS, max_age_ms, ..Limits::default() };
        let options = StoreOptions { limits, owner_lost_ms: 5_000, ..StoreOptions::default() };
        let store: Arc<dyn EventStore> = open(address, &options).expect("the store can be used");
        let outlives = store.outlives_process();
        let engine = Engine::new(Options {
            limits,
            // A machine of tests may stall for longer than a stream stays readable here.
            pacing: Pacing { store_wait_ms: SHORT_MS, ..Pacing::default() },
            max_detached_ms: SHORT_MS,
            session_idle_ms: SHORT_MS,
            max_sessions: 100_000,
            owner_lost_ms: 5_000,
            store: Some(store),
            ..Options::default()
        });
        let bell = Arc::default();
        let (running, watched) = (HashMap::new(), VecDeque::new());
        Self { engine, outlives, began: Instant::now(), bell, running, late: 0, watched }
    }

    /// The process is killed, and another comes.
    fn replaced(mut self, address: &str) -> Self {
        self.finish(0);
        self.assert_nothing_lost();
        self.engine.release();
        drop(self);
        Self::new(address)
    }

    fn assert_nothing_lost(&self) {
        let stats = self.engine.stats();
        assert_eq!((stats.events_unstored, stats.logs_lost), (0, 0), "{stats:?}");
        assert!(stats.resumes_lost <= self.late, "{} may be lost: {stats:?}", self.late);
    }

    /// One short session: what its client and its handler do.
    fn open(&mut self, number: u64) {
        let name = format!("short {number} of process {}", std::process::id());
        let wake = Arc::clone(&self.bell) as _;
        let session = self.engine.open_session(&name, None, &Dialect::MCP_PYTHON_2, wake, 0).expect("there is room");
        session.assume_revision(NEW);
        let began = Instant::now();
        let connection = session.call(&[id(1)], None, Arc::clone(&self.bell) as _, number).expect("it is open");
        for step in ["one", "two", "three"] {
            notify(&session, 1, step).unwrap();
        }
        match number % 16 {
            // The handler never comes to its end.
            0 | 8 => connection.lost(),
            // It waits for an answer of the client, which never comes.
            6 | 7 => {
                let question = br#"{"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":{}}"#;
                session.send(OutgoingMessage::request(&id(0), Some(&id(1)), question)).unwrap();
                connection.lost();
            }
            // The client is gone before the response.
            1..=3 => {
                connection.lost();
                respond(&session, 1).unwrap();
            }
            // It listens for a while.
            4 => {
                let listener = listen(&session);
                broadcast(&session, "heard").unwrap();
                respond(&session, 1).unwrap();
                drop(listener);
            }
            rest => {
                respond(&session, 1).unwrap();
                let is_to_be_cut = rest == 5;
                let running = Running { session: session.clone(), connection, began, is_to_be_cut, was_cut: false };
                self.running.insert(number, running);
                self.read(number);
            }
        }
        self.watched.push_back((Instant::now() + Duration::from_millis(SHORT_MS), session));
        self.finish(RUNNING);
        self.do_what_is_due();
    }

    /// Reads what there is for calls that have something, and waits until no more than so many run.
    fn finish(&mut self, left: usize) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let rung = std::mem::take(&mut *self.bell.rung.lock().unwrap());
            rung.into_iter().for_each(|number| self.read(number));
            if self.running.len() <= left {
                return;
            }
            if Instant::now() >= deadline {
                let left: Vec<_> =
                    self.running.iter().map(|(number, call)| (number, call.connection.poll(1))).collect();
                panic!("calls come to their end: {left:?}, {:?}", self.engine.stats());
            }
            self.pause();
        }
    }

    fn read(&mut self, number: u64) {
        while let Some(call) = self.running.get_mut(&number) {
            let poll = call.connection.poll(if call.is_to_be_cut { 1 } else { 64 << 10 });
            if poll.end.is_some() {
                self.late += u64::from(call.was_cut && call.began.elapsed() >= Duration::from_millis(SHORT_MS));
                self.running.remove(&number);
            } else if poll.is_empty() {
                return;
            } else if call.is_to_be_cut {
                let cursor = poll.text().lines().rev().find_map(|line| line.strip_prefix("id: ").map(str::to_owned));
                let Some(cursor) = cursor else {
                    assert!(
                        poll.text().starts_with(':'),
                        "a comment where the store is slow, or it is primed: {poll:?}"
                    );
                    continue;
                };
                call.is_to_be_cut = false;
                call.connection.lost();
                call.was_cut = true;
                let wake = Arc::clone(&self.bell) as _;
                call.connection = call.session.resume(&cursor, None, wake, number).expect("it is open");
            }
        }
    }

    fn pause(&self) {
        self.bell.wait(Duration::from_millis(2));
        self.engine.tick();
    }

    fn do_what_is_due(&mut self) {
        if self.engine.due_in_ms() == 0 {
            self.engine.tick();
        }
        let now = Instant::now();
        while self.watched.front().is_some_and(|(due, _)| *due <= now) {
            let Some((_, session)) = self.watched.pop_front() else { break };
            for (_, outcome) in session.take_outcomes() {
                outcome.unwrap_or_else(|error| panic!("{}: {error:?} after {:?}", session.id(), self.began.elapsed()));
            }
            match session.idle_in_ms() {
                Some(0) => session.end(),
                other => {
                    let wait = Duration::from_millis(other.unwrap_or(SHORT_MS).max(1));
                    self.watched.push_back((now + wait, session));
                }
            }
        }
    }

    fn wait_until(&mut self, until: Instant) {
        loop {
            self.do_what_is_due();
            self.finish(RUNNING);
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(Duration::from_millis(2)));
        }
    }

    /// Opens nothing until everything that was opened has gone. Returns what is still there.
    fn rest(&mut self, sizes: &impl Fn() -> Sizes) -> Sizes {
        self.finish(0);
        self.assert_nothing_lost();
        let deadline = Instant::now() + GONE;
        let mut look = Instant::now();
        loop {
            self.do_what_is_due();
            self.pause();
            if self.watched.is_empty() && Instant::now() >= look {
                let left: Sizes = self.sizes().into_iter().chain(sizes()).collect();
                let is_gone = |(what, count): &(&str, u64)| *count <= allowed(&FEW_LEFT, what).unwrap_or(0);
                if left.iter().filter(|(what, _)| has_to_go(what)).all(is_gone) {
                    return left;
                }
                assert!(Instant::now() < deadline, "it does not go: {left:?}, {:?}", self.engine.stats());
                look = Instant::now() + Duration::from_millis(50);
            }
        }
    }

    fn sizes(&self) -> Sizes {
        let stats = self.engine.stats();
        let mut sizes = vec![
            ("rss_kb", rss_kb()),
            ("heap_kb", heap::held() >> 10),
            ("sqlite_heap_kb", heap::held_by_sqlite() >> 10),
            ("watched", self.watched.len() as u64),
        ];
        let of_interest = ["sessions", "connections", "streams", "events", "bytes"];
        sizes.extend(
            stats
                .entries()
                .map(|(counter, count)| (counter.name, count))
                .filter(|(name, _)| of_interest.contains(name)),
        );
        sizes
    }
}

fn rss_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or_default()
}
