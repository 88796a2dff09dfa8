//! The servers that `tests/services/with` started, and others that a test starts for itself.
#![allow(dead_code, reason = "each test target uses a part")]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use tailrope_core::Ms;
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::contract::{Caller, Log, check, check_shared, progress};
use tailrope_core::store::{Attach, EventStore, StoreOptions, Watch, Watcher};
use tailrope_stores::open;

use crate::kit::eventually::PATIENCE;
use crate::kit::folder::Folder;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Alone,
    Cluster,
    Sentinel,
    Tls,
}

/// The value of a variable that names a server.
///
/// # Panics
/// With what sets it, when nobody did.
pub(crate) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!(
            "{name} is not set; this sets it: tests/services/with redis postgres -- cargo test -p tailrope-stores \
             --features redis,postgres --test servers; and of all kinds, for --test every_server"
        )
    })
}

/// The address of the servers of a kind.
pub(crate) fn address(kind: Kind) -> String {
    match kind {
        Kind::Alone => variable("TAILROPE_TEST_REDIS"),
        Kind::Cluster => variable("TAILROPE_TEST_REDIS_CLUSTER"),
        Kind::Sentinel => variable("TAILROPE_TEST_REDIS_SENTINEL"),
        Kind::Tls => {
            let (address, ca) = (variable("TAILROPE_TEST_REDIS_TLS"), variable("TAILROPE_TEST_REDIS_TLS_CA"));
            format!("{address}?ca={ca}")
        }
    }
}

/// The same with a namespace in which there is nothing yet.
pub(crate) fn fresh(kind: Kind) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let address = address(kind);
    let mark = if address.contains('?') { '&' } else { '?' };
    let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    format!("{address}{mark}namespace=test-{process}-{number}")
}

/// Where the server of a plain address is.
pub(crate) fn place(address: &str) -> String {
    let rest = address.rsplit("://").next().unwrap_or_default();
    rest.split([',', '/', '?']).next().unwrap_or_default().to_owned()
}

/// Says something to a server, and returns what it says: lines, with those of lists one after the other.
pub(crate) fn say(place: &str, words: &[&str]) -> Vec<String> {
    let stream = TcpStream::connect(place).expect("the server is there");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut text = format!("*{}\r\n", words.len());
    for word in words {
        text += &format!("${}\r\n{word}\r\n", word.len());
    }
    (&stream).write_all(text.as_bytes()).unwrap();
    let mut said = Vec::new();
    hear(&mut BufReader::new(&stream), &mut said);
    said
}

fn hear(from: &mut impl BufRead, said: &mut Vec<String>) {
    let mut line = String::new();
    if from.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let (mark, rest) = line.trim_end().split_at(1);
    match mark {
        "$" => {
            let length: usize = rest.parse().unwrap_or(0);
            let mut bytes = vec![0; length + 2];
            if rest != "-1" {
                from.read_exact(&mut bytes).unwrap();
                bytes.truncate(length);
                said.push(String::from_utf8_lossy(&bytes).into_owned());
            }
        }
        "*" => (0..rest.parse().unwrap_or(0)).for_each(|_| hear(from, said)),
        _ => said.push(rest.to_owned()),
    }
}

/// The keys of a namespace.
pub(crate) fn keys(place: &str, namespace: &str) -> Vec<String> {
    say(place, &["KEYS", &format!("{namespace}:*")])
}

/// A port below those that the system gives to those who want any: between two starts nobody is handed it.
pub(crate) fn free_port() -> u16 {
    let mut random = [0; 2];
    loop {
        getrandom::fill(&mut random).unwrap();
        let port = 20_000 + u16::from_ne_bytes(random) % 12_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A server of a test's own, which may come to harm.
pub(crate) struct Server {
    process: Option<Child>,
    folder: Folder,
    pub(crate) port: u16,
    options: Vec<String>,
}

impl Server {
    pub(crate) fn start(options: &[&str]) -> Self {
        // Where this is set, the programs are there.
        variable("TAILROPE_TEST_REDIS");
        let port = free_port();
        let options = options.iter().map(ToString::to_string).collect();
        let mut server = Self { process: None, folder: Folder::new(), port, options };
        server.again();
        server
    }

    /// Starts it, with what it saved before.
    pub(crate) fn again(&mut self) {
        let program = std::env::var("TAILROPE_TEST_REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let mut command = Command::new(program);
        command.args(["--bind", "127.0.0.1", "--port", &self.port.to_string(), "--save", "", "--loglevel", "warning"]);
        command.args(["--enable-debug-command", "yes", "--dir"]).arg(self.folder.path("")).args(&self.options);
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.process = Some(process.expect("redis-server starts"));
        let deadline = Instant::now() + PATIENCE;
        let ready = |said: Vec<String>| said == ["PONG"] || said.iter().any(|said| said.starts_with("NOAUTH"));
        while TcpStream::connect(self.place()).is_err() || !ready(self.say(&["PING"])) {
            assert!(Instant::now() < deadline, "redis-server answers");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Takes its power away.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Stops it where it is, or lets it go on.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.process.as_ref().expect("it runs").id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
    }

    pub(crate) fn place(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn address(&self, options: &str) -> String {
        format!("redis://{}{options}", self.place())
    }

    pub(crate) fn say(&self, words: &[&str]) -> Vec<String> {
        say(&self.place(), words)
    }

    /// How often the script was run.
    pub(crate) fn runs(&self) -> u64 {
        self.calls("evalsha")
    }

    /// How often it was given a command, or a script gave it.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let said = self.say(&["INFO", "commandstats"]).concat();
        let of_command = format!("cmdstat_{command}:calls=");
        let calls = said.split_once(&of_command).and_then(|(_, calls)| calls.split(',').next());
        calls.map_or(0, |calls| calls.parse().expect("a number"))
    }

    /// How often somebody was refused a command or a channel with this in its name.
    pub(crate) fn refusals(&self, name: &str) -> u64 {
        let (mut count, mut refusals) = (0, 0);
        for pair in self.say(&["ACL", "LOG", "128"]).windows(2) {
            match &*pair[0] {
                "count" => count = pair[1].parse().expect("a number"),
                "object" if pair[1].contains(name) => refusals += count,
                _ => {}
            }
        }
        refusals
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.process.is_some() {
            self.signal("CONT");
        }
        self.kill();
    }
}

pub(crate) fn at(address: &str, options: &StoreOptions) -> Arc<dyn EventStore> {
    open(address, options).unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn keeps_the_contract(kind: Kind) {
    check(&|| at(&fresh(kind), &StoreOptions::default()));
}

pub(crate) fn keeps_the_rules_between_processes(kind: Kind) {
    check_shared(&|| {
        let place = fresh(kind);
        (at(&place, &StoreOptions::default()), at(&place, &StoreOptions::default()))
    });
}

/// Why an address cannot be used.
pub(crate) fn refusal(address: &str) -> String {
    let error = open(address, &StoreOptions::default()).err();
    error.unwrap_or_else(|| panic!("{address} is opened")).to_string()
}

/// What a store says of logs that others write.
#[derive(Default)]
pub(crate) struct Hints {
    state: Mutex<(u64, Option<Instant>)>,
    posts: AtomicU64,
    came: Condvar,
}

impl Watch for Hints {
    fn changed(&self, _nonce: StreamNonce) {
        let mut state = self.state.lock().unwrap();
        *state = (state.0 + 1, Some(Instant::now()));
        self.came.notify_all();
    }

    fn posted(&self) {
        self.posts.fetch_add(1, Ordering::SeqCst);
    }

    fn all_changed(&self) {
        self.changed(StreamNonce([0; 12]));
    }
}

impl Hints {
    /// How many there were, but for messages.
    pub(crate) fn count(&self) -> u64 {
        self.state.lock().unwrap().0
    }

    /// How many were of messages.
    pub(crate) fn posts(&self) -> u64 {
        self.posts.load(Ordering::SeqCst)
    }

    /// When the last one came that was neither waited for nor forgotten.
    pub(crate) fn wait(&self) -> Instant {
        let state = self.state.lock().unwrap();
        let (mut state, _) = self.came.wait_timeout_while(state, PATIENCE, |state| state.1.is_none()).unwrap();
        state.1.take().expect("rule 13: a hint comes")
    }

    pub(crate) fn forget(&self) {
        self.state.lock().unwrap().1 = None;
    }
}

pub(crate) fn watcher(hints: &Arc<Hints>) -> Watcher {
    let hints: Arc<dyn Watch> = Arc::clone(hints) as Arc<dyn Watch>;
    Arc::downgrade(&hints)
}

/// A reader of the log is at this store object.
pub(crate) fn follow(caller: &Caller<'_>, log: &Log) {
    let attach = Attach { stream: Some(log.key.nonce), counts: true, ..Attach::default() };
    assert!(caller.attach(&log.key.session, &attach).log.is_some(), "the log is there");
}

/// Each event of another process is told, and none of this one. Returns how long half of the hints took at most.
pub(crate) fn hints_come(kind: Kind) -> Duration {
    let address = fresh(kind);
    let (a, b) = (at(&address, &StoreOptions::default()), at(&address, &StoreOptions::default()));
    let caller = Caller::new(&*a, Ms(0));
    let mut logs: Vec<Log> = (0..10).map(|number| caller.open(&format!("s{number}"), number)).collect();
    let hints: Vec<Arc<Hints>> = logs.iter().map(|_| Arc::default()).collect();
    for (log, hints) in logs.iter().zip(&hints) {
        b.watch(&log.key.session, &watcher(hints));
        follow(&Caller::new(&*b, Ms(0)), log);
    }
    // The subscription has begun.
    hints[0].wait();
    let mut took = Vec::new();
    for round in 0..60 {
        for (log, hints) in logs.iter_mut().zip(&hints) {
            hints.forget();
            let since = Instant::now();
            caller.push(log, &[progress(&format!("{round}"))]);
            took.push(hints.wait().saturating_duration_since(since));
        }
    }
    took.sort_unstable();
    let own = Arc::new(Hints::default());
    a.watch(&logs[0].key.session, &watcher(&own));
    own.wait();
    hints[0].forget();
    caller.push(&mut logs[0], &[progress("own")]);
    hints[0].wait();
    assert_eq!(own.count(), 1, "what was done here needs no hint");
    took[took.len() / 2]
}
