//! What the command shows of a store: the same on SQLite, Redis and PostgreSQL, and nothing that is for clients alone.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tailrope_core::Ms;
use tailrope_core::protocol::{Revision, StreamNonce};
use tailrope_core::store::contract::{Caller, Event, Log, progress};
use tailrope_core::store::{
    Attach, EncryptionKey, EventKind, EventStore, Hold, Message, SessionId, SessionRecord, StoreError, StoreOptions,
    StreamKey, session_name,
};
use tailrope_core::task::{CallHeaders, Change, TASK_ID_BYTES, TASK_LOG, TaskId, What};
use tailrope_stores::open;

use super::running::{answer, fresh, json, run};
use crate::kit::folder::Folder;

const CLIENTS_ID: &str = "the-id-of-the-client";
const PAYLOAD: &str = "payload of an event";
const USER: &str = "alice@example.com";

/// A session with a stream that runs, one that has ended, and a message that waits; and a task that works.
struct Inside {
    store: Arc<dyn EventStore>,
    session: Arc<str>,
    task: TaskId,
}

fn log(session: &str, nonce: StreamNonce) -> Log {
    Log { key: StreamKey { session: session.into(), nonce }, events: Vec::new() }
}

fn write(caller: &Caller<'_>, log: &Log, about: &'static str, events: &[Event], end: Option<&'static str>) {
    let mut append = log.append(1, events);
    (append.about, append.end) = (about.into(), end.map(Bytes::from));
    caller.write(log, &append).expect("it is written");
}

impl Inside {
    fn fill(address: &str, keys: Vec<EncryptionKey>) -> Self {
        // Its signs of life come often.
        let options = StoreOptions { owner_lost_ms: 400, encryption_keys: keys, ..StoreOptions::default() };
        let store = open(address, &options).expect("it opens");
        let session = session_name(SessionId::new("/mcp", CLIENTS_ID));
        let caller = Caller::new(&*store, Ms(0));
        let standalone = log(&session, StreamNonce([1; 12]));
        let record = SessionRecord {
            revision: Some(Revision::V2025_11_25),
            principal: Some(USER.into()),
            standalone: Some(standalone.key.nonce),
            note: PAYLOAD.into(),
            ..SessionRecord::default()
        };
        caller.hold(&session, record);
        let events = [progress(PAYLOAD), progress(PAYLOAD)];
        write(&caller, &standalone, "[]", &events, None);
        write(&caller, &log(&session, StreamNonce([2; 12])), r#"[7,"seven"]"#, &events, Some(PAYLOAD));
        let attach = Attach {
            stream: Some(StreamNonce([3; 12])),
            principal: Some(USER.into()),
            message: Some(Message { about: "[9]".into(), body: PAYLOAD.into() }),
            ..Attach::default()
        };
        caller.try_attach(&session, &attach).expect("the message is taken");
        let task = TaskId::new(&[5; TASK_ID_BYTES]);
        let name = session_name(SessionId::new("/mcp", &task.session_id()));
        caller.hold(&name, SessionRecord { principal: Some(USER.into()), ..SessionRecord::default() });
        let what = What::Created {
            limit_ms: None,
            retention_ms: 60_000,
            call: PAYLOAD.into(),
            headers: CallHeaders::default(),
        };
        let change = Change { at: 1_000, what }.encode();
        write(&caller, &log(&name, TASK_LOG), "[1]", &[(EventKind::Question, change)], None);
        Self { store, session, task }
    }
}

/// What differs from run to run, once it is known to be what it has to be.
fn settled(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(settled),
        Value::Object(fields) => {
            for (name, value) in fields {
                match name.as_str() {
                    // A task says itself when it was made.
                    "created_at_ms" | "updated_at_ms" => {}
                    "id" if value.is_string() => *value = json!("an owner"),
                    "store" => *value = json!("the store"),
                    _ if name.ends_with("_ms") && value.as_u64().is_some_and(|ms| ms > 1_700_000_000_000) => {
                        *value = json!("a time");
                    }
                    "bytes" if value.as_u64().is_some_and(|bytes| bytes > 0) => *value = json!("some"),
                    _ => settled(value),
                }
            }
        }
        _ => {}
    }
}

fn told(words: &[&str]) -> Value {
    let mut value = json(words);
    settled(&mut value);
    value
}

fn owner(state: &str) -> Value {
    json!({"id": if state == "released" { Value::Null } else { json!("an owner") }, "state": state, "epoch": 1})
}

fn session(name: &str, state: &str) -> Value {
    json!({
        "name": name, "kind": "session", "revision": "2025-11-25", "user": &session_name(USER)[..8], "sealed": false,
        "owner": owner(state), "streams": 3, "running": 2, "waiting": 1, "bytes": "some",
        "oldest_at_ms": "a time", "newest_at_ms": "a time",
    })
}

fn stream(nonce: u8, kind: &str, state: &str, requests: Value, head: u64) -> Value {
    let has_end = state == "finished";
    json!({
        "stream": StreamNonce([nonce; 12]).hex(), "kind": kind, "state": state, "requests": requests,
        "low": 1, "head": head, "events": head, "bytes": "some", "readers": 0,
        "began_at_ms": "a time", "last_at_ms": if head > 0 { json!("a time") } else { Value::Null },
        "kept_until_ms": if has_end { json!("a time") } else { Value::Null },
        "tail_bytes": if has_end { json!(PAYLOAD.len()) } else { Value::Null },
    })
}

/// The form of what `--json` prints, which programs rely on.
fn shows_what_is_in(address: &str) {
    let Inside { store, session: name, task } = Inside::fill(address, Vec::new());
    let page = json!({"store": "the store", "now_ms": "a time", "sort": "waiting", "limit": 1, "page": 1, "total": 2,
        "sealed": false, "items": [session(&name, "lives")]});
    assert_eq!(told(&["sessions", address, "--sort", "waiting", "--limit", "1"]), page);
    let whole = json!({"store": "the store", "now_ms": "a time", "session": session(&name, "lives"), "streams": [
        stream(1, "standalone", "running", json!([]), 2),
        stream(2, "requests", "finished", json!([7, "seven"]), 2),
        stream(3, "requests", "waiting", json!([9]), 0),
    ]});
    for id in [&["show", address, &name][..], &["show", address, CLIENTS_ID, "--server", "/mcp"]] {
        let mut shown = told(id);
        shown["streams"].as_array_mut().expect("streams").sort_by_key(|stream| stream["stream"].to_string());
        assert_eq!(shown, whole);
    }
    let of_task = session_name(SessionId::new("/mcp", &task.session_id()));
    let tasks = json!({"store": "the store", "now_ms": "a time", "sort": "newest", "limit": 50, "page": 1, "total": 1,
    "sealed": false, "items": [{
        "name": &*of_task, "state": "working", "user": &session_name(USER)[..8], "sealed": false,
        "owner": owner("lives"), "created_at_ms": 1_000, "updated_at_ms": 1_000, "waiting": 0, "bytes": "some",
    }]});
    assert_eq!(told(&["tasks", address]), tasks);
    let shown = told(&["show", address, task.as_str(), "--server", "/mcp"]);
    assert_eq!((&shown["session"]["name"], &shown["streams"][0]["kind"]), (&json!(&*of_task), &json!("task")));
    tells_people(address, &name);
    let (status, out, _) = run(&["show", address, "0123456789abcdef0123456789abcdef"]);
    assert_eq!((status, out.as_str()), (1, ""));

    ends_what_it_is_told_to(address, &name);
    // Its owner lives, and may write again what a store has lost.
    let caller = Caller::new(&*store, Ms(0));
    let hold = Hold { epoch: caller.epoch, seen: None, record: Some(SessionRecord::default()) };
    assert_eq!(caller.try_hold(&name, &hold), Err(StoreError::Gone));
    drop(store);
    assert_eq!(told(&["sessions", address])["items"][0]["owner"]["state"], "closed");
    let doctor = json(&["doctor", address]);
    assert_eq!((&doctor["exit"], &doctor["facts"]["version"].is_u64()), (&json!(0), &true), "{doctor}");
}

/// Nothing of it is for clients alone.
fn tells_people(address: &str, name: &str) {
    for words in [&["sessions", address][..], &["show", address, name], &["tasks", address], &["doctor", address]] {
        for more in [&[][..], &["--json"]] {
            let (status, out, err) = run(&[words, more].concat());
            assert_eq!((status, err.as_str()), (0, ""), "{words:?}");
            for secret in [PAYLOAD, USER, "alice", CLIENTS_ID] {
                assert!(!out.contains(secret), "{out}");
            }
        }
    }
    let (_, out, _) = run(&["sessions", address]);
    let head: Vec<&str> = out.lines().next().expect("a heading").split_whitespace().collect();
    assert_eq!(head, ["SESSION", "REVISION", "USER", "OWNER", "OLDEST", "NEWEST", "RUNNING", "WAITING", "BYTES"]);
    assert!(out.contains(name) && out.contains("2 sessions, ") && out.ends_with("page 1 of 1, by bytes\n"), "{out}");
}

fn ends_what_it_is_told_to(address: &str, name: &str) {
    for no in ["", "n\n", "what\n"] {
        let (status, out, err) = answer(&["end", address, name], no);
        assert_eq!((status, out.as_str()), (1, ""));
        assert!(err.starts_with(&format!("End session {name}? Its 3 streams")) && err.ends_with("nothing was ended\n"));
    }
    assert_eq!(told(&["sessions", address])["total"], 2);
    let (status, out, _) = answer(&["end", address, name], "y\n");
    assert_eq!(status, 0, "{out}");
    assert!(out.ends_with(&format!(": session {name} is ended\n")), "{out}");
    let (status, _, err) = run(&["end", address, name, "--yes"]);
    assert!(status == 1 && err.contains("there is no session of this name"), "{err}");
    assert_eq!(told(&["sessions", address])["total"], 1, "the other one is still there");
}

/// Of an encrypted store that is shown which needs no key, and it is said that the rest is not.
fn leaves_sealed_what_is_sealed(address: &str) {
    let key = EncryptionKey::from_hex(&"5a".repeat(32)).expect("a key");
    let Inside { session: name, .. } = Inside::fill(address, vec![key]);
    let sessions = told(&["sessions", address]);
    assert_eq!((&sessions["sealed"], &sessions["total"]), (&json!(true), &json!(2)));
    assert!(sessions["items"].as_array().expect("two").iter().all(|item| item["revision"].is_null()), "{sessions}");
    let shown = told(&["show", address, &name]);
    assert!(shown["streams"].as_array().expect("three").iter().all(|stream| stream["requests"].is_null()), "{shown}");
    assert_eq!(told(&["tasks", address])["items"][0]["state"], Value::Null);
    let (_, out, _) = run(&["sessions", address]);
    assert!(out.contains("The store is encrypted"), "{out}");
    let ended = json(&["end", address, &name, "--yes"]);
    assert_eq!((&ended["name"], &ended["ended"]), (&json!(&*name), &json!(true)));
}

fn file(folder: &Folder, name: &str) -> String {
    format!("sqlite:{}", folder.path(name).display())
}

#[test]
fn a_sqlite_file_is_looked_into() {
    let folder = Folder::new();
    shows_what_is_in(&file(&folder, "a.db"));
    leaves_sealed_what_is_sealed(&file(&folder, "b.db"));
}

#[test]
fn a_redis_server_is_looked_into() {
    shows_what_is_in(&fresh("TAILROPE_TEST_REDIS"));
    leaves_sealed_what_is_sealed(&fresh("TAILROPE_TEST_REDIS"));
}

#[test]
fn a_postgres_database_is_looked_into() {
    shows_what_is_in(&fresh("TAILROPE_TEST_POSTGRES"));
    leaves_sealed_what_is_sealed(&fresh("TAILROPE_TEST_POSTGRES"));
}

#[test]
fn a_clients_id_without_its_server_is_no_name_and_is_not_said_again() {
    let folder = Folder::new();
    let address = file(&folder, "a.db");
    let _inside = Inside::fill(&address, Vec::new());
    // The SDK's ids in Python have the form of a name.
    let like_a_name = "8d0c2c0e5a5f4c0aa4d8e4b1f1a7d0c3";
    for command in [&["show"][..], &["end", "--yes"]] {
        for (id, more, exit, told) in [
            (CLIENTS_ID, &[][..], 2, "this is no name of a session; with the client's id give --server NAME"),
            (like_a_name, &[], 1, "there is no session of this name; with the client's id give --server NAME"),
            (CLIENTS_ID, &["--server", "/other"], 1, "the server /other has no session with this id"),
        ] {
            let (status, out, err) = run(&[command, &[&address, id], more].concat());
            assert_eq!((status, out.as_str()), (exit, ""), "{err}");
            assert!(err.contains(told) && !err.contains(id), "{err}");
        }
    }
    assert_eq!(told(&["sessions", &address])["total"], 2);
}

#[test]
fn an_owner_without_signs_of_life_is_silent_and_a_session_that_was_let_go_is_released() {
    let folder = Folder::new();
    let (address, copy) = (file(&folder, "a.db"), file(&folder, "copy.db"));
    let Inside { store, session: name, .. } = Inside::fill(&address, Vec::new());
    // Nobody has the copy open: it is as after the end of a machine.
    for end in ["", "-wal"] {
        std::fs::copy(folder.path(&format!("a.db{end}")), folder.path(&format!("copy.db{end}"))).expect("a copy");
    }
    assert_eq!(told(&["show", &copy, &name])["session"]["owner"], owner("silent"));
    store.release(&name, Caller::new(&*store, Ms(0)).epoch);
    tailrope_core::store::flush(&*store, std::time::Duration::from_secs(60));
    assert_eq!(told(&["show", &address, &name])["session"]["owner"], owner("released"));
}
