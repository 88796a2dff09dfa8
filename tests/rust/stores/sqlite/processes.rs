//! The SQLite store in several processes: one is killed, two write, a third reads along.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::kit::eventually::eventually;
use crate::kit::folder::Folder;
use tailrope_core::Ms;
use tailrope_core::store::contract::{Caller, Event, Log, progress};
use tailrope_core::store::{Epoch, EventStore, Hold, ReadLimit, SessionRecord, SqliteStore, StoreError, StoreOptions};
use tailrope_core::stream::Seq;

fn at(path: &Path, options: &StoreOptions) -> SqliteStore {
    SqliteStore::open(path, options).expect("the file can be opened")
}

/// A process that appends to one stream and says each position that the store has. It is this binary.
struct Writer {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Writer {
    fn start(file: &Path, session: &str, events: u64) -> Self {
        let (_crate, module) = module_path!().split_once("::").expect("it is a module of the program");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("{module}::write_as_a_process"), "--ignored", "--nocapture", "--test-threads=1"])
            .env("TAILROPE_TEST_FILE", file)
            .env("TAILROPE_TEST_SESSION", session)
            .env("TAILROPE_TEST_EVENTS", events.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this binary runs");
        let says = BufReader::new(child.stdout.take().unwrap());
        Self { child, says }
    }

    /// The next position that it got an answer for; none when it has ended.
    fn next(&mut self) -> Option<Seq> {
        let mut line = String::new();
        while self.says.read_line(&mut line).unwrap() > 0 {
            if let Some(seq) = line.trim().strip_prefix("stored ") {
                return Some(seq.parse().unwrap());
            }
            line.clear();
        }
        None
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn payload(session: &str, seq: Seq) -> Event {
    progress(&format!("{session} {seq} {}", "x".repeat((seq % 50) as usize)))
}

/// What the process with this session has written up to a position.
fn written(session: &str, head: Seq) -> Log {
    let mut log = Log::new(session, 1);
    log.events = (1..=head).map(|seq| payload(session, seq)).collect();
    log
}

/// Up to which position its process has written.
fn head(caller: &Caller<'_>, session: &str) -> Seq {
    caller.read(&Log::new(session, 1), 0, ReadLimit::default()).expect("the log is there").page.head
}

#[test]
#[ignore = "it is the process that other tests here start, and kill"]
fn write_as_a_process() {
    let var = |name: &str| std::env::var(format!("TAILROPE_TEST_{name}"));
    let (Ok(file), Ok(session), Ok(events)) = (var("FILE"), var("SESSION"), var("EVENTS")) else { return };
    let options = StoreOptions { owner_lost_ms: 300, ..StoreOptions::default() };
    let store = at(Path::new(&file), &options);
    let caller = Caller::new(&store, Ms(0));
    let mut log = Log::new(&session, 1);
    caller.hold(&session, SessionRecord { principal: Some("alice".into()), ..SessionRecord::default() });
    let mut out = std::io::stdout();
    for seq in 1..=events.parse().unwrap() {
        let event = payload(&session, seq);
        match caller.append(&log, seq, std::slice::from_ref(&event)) {
            // Another process has the session now.
            Err(StoreError::Fenced) => return,
            stored => stored.expect("it is stored"),
        }
        log.events.push(event);
        writeln!(out, "\nstored {seq}").unwrap();
        out.flush().unwrap();
    }
}

#[test]
fn what_was_acknowledged_survives_a_kill_of_its_process() {
    let folder = Folder::new();
    let file = folder.path("a.db");
    for round in 0..12 {
        let session = format!("round {round}");
        let mut writer = Writer::start(&file, &session, u64::MAX);
        let mut acknowledged = 0;
        while acknowledged < 1 + round * 7 {
            acknowledged = writer.next().expect("it writes until it is killed");
        }
        writer.kill();
        let store = at(&file, &StoreOptions::default());
        let caller = Caller::new(&store, Ms(0));
        for earlier in 0..=round {
            let session = format!("round {earlier}");
            let head = head(&caller, &session);
            assert!(earlier != round || head >= acknowledged, "{head} of {acknowledged}");
            assert!(head > earlier * 7);
            written(&session, head).assert_stored(&caller, 0, "I1, after kill -9");
            assert!(caller.session(&session, Some("alice")).is_some());
        }
        assert_eq!(store.usage().streams, 0, "nothing was written here yet");
    }
}

#[test]
fn two_processes_write_and_a_third_reads_along() {
    let folder = Folder::new();
    let file = folder.path("a.db");
    let events = 400;
    let mut writers = ["one", "two"].map(|session| Writer::start(&file, session, events));
    let first = writers.each_mut().map(|writer| writer.next().expect("it writes"));
    assert_eq!(first, [1, 1], "one does not wait for the end of the other");
    let store = at(&file, &StoreOptions::default());
    let caller = Caller::new(&store, Ms(0));
    let mut heads = [1, 1];
    while heads != [events; 2] {
        for ((head, writer), session) in heads.iter_mut().zip(&mut writers).zip(["one", "two"]) {
            *head = writer.next().unwrap_or(*head).max(*head);
            let log = written(session, *head);
            let after = *head - 1;
            let got = caller.read_all(&log, after);
            assert!(got.iter().zip(*head..).all(|(event, seq)| event.seq == seq), "dense");
            assert!(!got.is_empty() && *got[0].frame == *log.events.last().unwrap().1, "what it got an answer for");
        }
    }
    for (writer, session) in writers.iter_mut().zip(["one", "two"]) {
        assert_eq!(writer.next(), None);
        assert!(writer.child.wait().unwrap().success());
        written(session, events).assert_stored(&caller, 0, "I2, two processes");
    }
}

#[test]
fn a_session_has_one_process_that_writes_it() {
    let folder = Folder::new();
    let file = folder.path("a.db");
    let options = |owner_lost_ms| StoreOptions { owner_lost_ms, ..StoreOptions::default() };
    // For this one nobody is lost within the hour.
    let store = at(&file, &options(3_600_000));
    let heir = Caller::new(&store, Ms(0)).with(Epoch { number: 2, salt: 8 });
    for (session, is_killed) in [("one", true), ("two", false)] {
        let mut writer = Writer::start(&file, session, u64::MAX);
        let mut acknowledged = writer.next().expect("it writes");
        let (log, limit) = (written(session, head(&heir, session)), ReadLimit::default());
        assert_eq!(heir.append(&log, log.head() + 1, &[progress("late")]), Err(StoreError::Fenced));
        let owner = heir.read(&log, 0, limit).expect("it is there").owner.expect("another process");
        assert!(owner.unseen_ms < 3_600_000, "it is alive");
        if is_killed {
            writer.child.kill().unwrap();
            let store = at(&file, &options(300));
            let caller = Caller::new(&store, Ms(0));
            let seen = || caller.read(&log, 0, limit).expect("it is there").owner;
            eventually("it gives no signs", || seen().is_some_and(|owner| owner.unseen_ms >= 300));
        }
        let hold = Hold { epoch: heir.epoch, seen: Some(owner.epoch), record: None };
        let running = heir.try_hold(session, &hold).expect("it is taken over");
        // It ends, refused or killed.
        acknowledged = std::iter::from_fn(|| writer.next()).last().unwrap_or(acknowledged);
        writer.child.wait().unwrap();
        let log = written(session, running[0].head);
        assert!(acknowledged <= log.head(), "I1: {acknowledged} of {}", log.head());
        log.assert_stored(&heir, 0, "I4: nothing comes behind what the heir was told");
        assert_eq!(heir.finish(&log, b"lost"), Ok(()), "I13");
    }
}
