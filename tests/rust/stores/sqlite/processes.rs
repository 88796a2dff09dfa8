//! The SQLite store in several processes: some create a file at once, one is killed, two write, a third reads along.

use std::env::VarError;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::kit::eventually::eventually;
use crate::kit::folder::Folder;
use tailrope_core::Ms;
use tailrope_core::store::contract::{Caller, Event, Log, progress};
use tailrope_core::store::{Epoch, EventStore, Hold, ReadLimit, SessionRecord, StoreError, StoreOptions};
use tailrope_core::stream::Seq;
use tailrope_stores::SqliteStore;

fn at(path: &Path, options: &StoreOptions) -> SqliteStore {
    tailrope_stores::sqlite::open(path, options).expect("the file can be opened")
}

/// A process that does what one of the ignored tests below does. It is this binary.
struct Process {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Process {
    fn start(test: &str, variables: &[(&str, &str)]) -> Self {
        Self::start_by(Command::new(std::env::current_exe().unwrap()), test, variables)
    }

    /// The same by a command that runs what follows it.
    fn start_by(mut command: Command, test: &str, variables: &[(&str, &str)]) -> Self {
        let (_crate, module) = module_path!().split_once("::").expect("it is a module of the program");
        let mut child = command
            .args(["--exact", &format!("{module}::{test}"), "--ignored", "--nocapture", "--test-threads=1"])
            .envs(variables.iter().map(|(name, value)| (format!("TAILROPE_TEST_{name}"), value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this binary runs");
        let says = BufReader::new(child.stdout.take().unwrap());
        Self { child, says }
    }

    /// Appends to one stream, and says each position that the store has.
    fn writer(file: &Path, session: &str, events: u64) -> Self {
        let (file, events) = (file.to_str().unwrap(), events.to_string());
        Self::start("write_as_a_process", &[("FILE", file), ("SESSION", session), ("EVENTS", &events)])
    }

    /// What it says next behind this word; none when it has ended.
    fn says(&mut self, word: &str) -> Option<String> {
        let mut line = String::new();
        while self.says.read_line(&mut line).unwrap() > 0 {
            if let Some(what) = line.trim_end().strip_prefix(word) {
                return Some(what.trim_start().to_owned());
            }
            line.clear();
        }
        None
    }

    /// The next position that it got an answer for; none when it has ended.
    fn next(&mut self) -> Option<Seq> {
        self.says("stored").map(|seq| seq.parse().unwrap())
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

fn var(name: &str) -> Result<String, VarError> {
    std::env::var(format!("TAILROPE_TEST_{name}"))
}

fn say(what: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "\n{what}").unwrap();
    out.flush().unwrap();
}

#[test]
#[ignore = "it is the process that other tests here start, and kill"]
fn write_as_a_process() {
    let (Ok(file), Ok(session), Ok(events)) = (var("FILE"), var("SESSION"), var("EVENTS")) else { return };
    let options = StoreOptions { owner_lost_ms: 300, ..StoreOptions::default() };
    let store = at(Path::new(&file), &options);
    let caller = Caller::new(&store, Ms(0));
    let mut log = Log::new(&session, 1);
    caller.hold(&session, SessionRecord { principal: Some("alice".into()), ..SessionRecord::default() });
    for seq in 1..=events.parse().unwrap() {
        let event = payload(&session, seq);
        match caller.append(&log, seq, std::slice::from_ref(&event)) {
            // Another process has the session now.
            Err(StoreError::Fenced) => return,
            stored => stored.expect("it is stored"),
        }
        log.events.push(event);
        say(&format!("stored {seq}"));
    }
}

#[test]
#[ignore = "it is the process that other tests here start, and kill"]
fn take_as_a_process() {
    let (Ok(file), Ok(session)) = (var("FILE"), var("SESSION")) else { return };
    let store = at(Path::new(&file), &StoreOptions::default());
    let caller = Caller::new(&store, Ms(0));
    caller.hold(&session, SessionRecord::default());
    say("holds");
    let mut last = 0;
    loop {
        for mail in caller.take(&session, last).expect("it is the owner") {
            say(&format!("took {}", std::str::from_utf8(&mail.message.body).unwrap()));
            last = mail.number;
        }
    }
}

#[test]
#[ignore = "it is the process that other tests here start"]
fn open_as_a_process() {
    for file in std::io::stdin().lines().map_while(Result::ok) {
        match tailrope_stores::sqlite::open(Path::new(&file), &StoreOptions::default()) {
            Ok(_) => say("opened"),
            Err(error) => say(&format!("opened not: {error}")),
        }
    }
}

#[test]
fn a_new_file_is_the_same_to_all_processes_that_create_it() {
    let folder = Folder::new();
    let mut processes = [(); 4].map(|()| Process::start("open_as_a_process", &[]));
    for number in 0..25 {
        let file = folder.path(&format!("{number}.db"));
        for process in &mut processes {
            writeln!(process.child.stdin.as_mut().unwrap(), "{}", file.display()).unwrap();
        }
        for process in &mut processes {
            assert_eq!(process.says("opened").as_deref(), Some(""), "{number}");
        }
    }
    for mut process in processes {
        drop(process.child.stdin.take());
        assert!(process.child.wait().unwrap().success());
    }
}

#[test]
fn a_message_that_a_killed_owner_took_does_not_begin_again_and_any_other_one_does() {
    const MESSAGES: u64 = 80;
    let folder = Folder::new();
    let file = folder.path("a.db");
    let store = at(&file, &StoreOptions::default());
    let poster = Caller::new(&store, Ms(0));
    for (round, killed_at) in [1, 17, 40].into_iter().enumerate() {
        let session = format!("round {round}");
        let mut owner = Process::start("take_as_a_process", &[("FILE", file.to_str().unwrap()), ("SESSION", &session)]);
        owner.says("holds").expect("it begins the session");
        let mut told = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..MESSAGES {
                    poster.post(&Log::new(&session, number), number.to_string().as_bytes()).expect("it waits");
                }
            });
            while told.len() < killed_at {
                told.push(owner.says("took").expect("it takes until it is killed").parse::<u64>().unwrap());
            }
            owner.kill();
        });
        let heir = poster.with(Epoch { number: 2, salt: 8 });
        let hold = Hold { epoch: heir.epoch, seen: Some(poster.epoch), record: None };
        let begun: Vec<_> = heir.try_hold(&session, &hold).unwrap().into_iter().map(|log| log.nonce).collect();
        let (mut waiting, mut last) = (Vec::new(), 0);
        loop {
            let mail = heir.take(&session, last).expect("it is the owner");
            let Some(newest) = mail.last() else { break };
            last = newest.number;
            waiting.extend(mail.into_iter().map(|mail| mail.nonce));
        }
        let nonces = |numbers: std::ops::Range<u64>| numbers.map(|number| Log::new(&session, number).key.nonce);
        let taken = MESSAGES - waiting.len() as u64;
        assert!(waiting.iter().copied().eq(nonces(taken..MESSAGES)), "what it had not taken waits, in order");
        assert!(begun.len() as u64 == taken && nonces(0..taken).all(|nonce| begun.contains(&nonce)), "the rest began");
        assert!(told.iter().copied().eq(0..killed_at as u64) && killed_at as u64 <= taken, "with all that it was told");
    }
}

#[test]
fn what_was_acknowledged_survives_a_kill_of_its_process() {
    let folder = Folder::new();
    let file = folder.path("a.db");
    for round in 0..12 {
        let session = format!("round {round}");
        let mut writer = Process::writer(&file, &session, u64::MAX);
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
#[cfg(unix)]
fn a_log_that_may_not_grow_starts_over() {
    let folder = Folder::new();
    let file = folder.path("a.db");
    // So many blocks of 512 bytes a file of it may have. A log that is not cut has more after 100 events.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; ulimit -f 1024; exec \"$0\" \"$@\""]).arg(std::env::current_exe().unwrap());
    let events = 400;
    let variables = [("FILE", file.to_str().unwrap()), ("SESSION", "s"), ("EVENTS", &events.to_string())];
    let mut writer = Process::start_by(command, "write_as_a_process", &variables);
    let last = std::iter::from_fn(|| writer.next()).last();
    assert_eq!(last, Some(events), "every event is stored");
    assert!(writer.child.wait().unwrap().success());
    let store = at(&file, &StoreOptions::default());
    written("s", events).assert_stored(&Caller::new(&store, Ms(0)), 0, "I2");
}

#[test]
fn two_processes_write_and_a_third_reads_along() {
    let folder = Folder::new();
    let file = folder.path("a.db");
    let events = 400;
    let mut writers = ["one", "two"].map(|session| Process::writer(&file, session, events));
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
        let mut writer = Process::writer(&file, session, u64::MAX);
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
