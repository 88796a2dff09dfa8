//! What `tailrope doctor` finds wrong with real stores, and that it changes nothing in them.

use rusqlite::Connection;
use serde_json::{Value, json};
use tailrope_core::store::StoreOptions;
use tailrope_stores::open;

use super::running::{fresh, run};
use super::server::Server;
use crate::kit::folder::Folder;

/// Its exit status, and how each check ended.
fn found(address: &str) -> (i32, Vec<(String, String)>, Value) {
    let (status, out, err) = run(&["doctor", address, "--json"]);
    assert_eq!(err, "", "{address}");
    let report: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(report["exit"], json!(status));
    let keys: Vec<&String> = report.as_object().expect("a report").keys().collect();
    assert_eq!(keys, ["checks", "exit", "facts", "store"]);
    let checks = report["checks"].as_array().expect("checks");
    let text = |check: &Value, key: &str| check[key].as_str().expect(key).to_owned();
    for check in checks {
        let keys: Vec<&String> = check.as_object().expect("a check").keys().collect();
        assert_eq!(keys, ["advice", "check", "means", "outcome", "what"]);
        assert_eq!(check["advice"].is_null(), text(check, "outcome") == "ok", "{check}");
    }
    let checks = checks.iter().map(|check| (text(check, "check"), text(check, "outcome"))).collect();
    (status, checks, report)
}

/// Whether a check ended so.
fn has(checks: &[(String, String)], check: &str, outcome: &str) -> bool {
    checks.contains(&(check.to_owned(), outcome.to_owned()))
}

fn makes(address: &str) {
    drop(open(address, &StoreOptions::default()).expect("it opens"));
}

#[test]
fn a_file_is_examined() {
    let folder = Folder::new();
    let path = folder.path("a.db");
    let address = format!("sqlite:{}", path.display());
    let (status, checks, _) = found(&address);
    assert!(status == 0 && has(&checks, "file", "warn") && !path.exists(), "{checks:?}");
    makes(&address);
    let (status, checks, report) = found(&address);
    assert!(status == 0 && has(&checks, "layout", "ok") && has(&checks, "lock", "ok"), "{checks:?}");
    assert_eq!((&report["facts"]["journal_mode"], &report["facts"]["open_in"]), (&json!("wal"), &json!(0)));

    let other = Connection::open(&path).expect("the file");
    other.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    let (status, checks, _) = found(&address);
    assert!(status == 1 && has(&checks, "lock", "fault"), "{checks:?}");
    other.execute_batch("ROLLBACK; PRAGMA user_version = 99099").expect("another version");
    let (status, checks, _) = found(&address);
    assert!(status == 1 && has(&checks, "layout", "fault"), "{checks:?}");
    let (status, _, err) = run(&["sessions", &address]);
    assert!(status == 2 && err.contains("it has version 99 of the tables"), "{err}");
    let foreign = folder.path("foreign.db");
    Connection::open(&foreign).and_then(|db| db.execute_batch("CREATE TABLE a (b)")).expect("another database");
    let (status, _, report) = found(&format!("sqlite:{}", foreign.display()));
    assert_eq!((status, &report["facts"]["unusable"]), (1, &json!("it is a database of something else")));
}

#[test]
fn people_are_told_what_is_wrong_what_it_means_and_what_to_do() {
    let (status, out, err) = run(&["doctor", "redis://127.0.0.1:1"]);
    assert_eq!((status, err.as_str()), (1, ""));
    let told = "redis://127.0.0.1:1\n\n\
         fault  reachable      the server cannot be reached: connection refused\n\
         \x20                     servers cannot open the store: they do not start, or refuse calls until they can\n\
         \x20                     -> check the address, the network and the rights; the servers' log names the same\n\n\
         0 ok, 0 warn, 1 fault\n";
    assert_eq!(out, told);
}

#[test]
fn a_redis_server_is_examined() {
    let (status, checks, report) = found(&fresh("TAILROPE_TEST_REDIS"));
    assert!(status == 0 && has(&checks, "rights", "ok") && has(&checks, "clock", "ok"), "{report}");
    let server = Server::start(&["--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru"]);
    let (status, checks, report) = found(&server.address(""));
    assert!(status == 0 && has(&checks, "eviction", "warn") && has(&checks, "persistence", "warn"), "{report}");
    assert_eq!(server.say("DBSIZE"), ":0", "it changes nothing");
    makes(&server.address(""));
    let keys = server.say("DBSIZE");
    let (_, checks, report) = found(&server.address(""));
    assert!(has(&checks, "layout", "ok") && report["facts"]["version"].is_u64(), "{report}");
    assert_eq!(server.say("DBSIZE"), keys, "it changes nothing");

    assert_eq!(server.say("ACL SETUSER reader on >pw ~tailrope:* +@read +info +time +publish &tailrope:*"), "+OK");
    let (status, checks, report) = found(&server.address("reader:pw@"));
    assert!(status == 1 && has(&checks, "rights", "fault"), "{report}");
    server.say(&format!("REPLICAOF 127.0.0.1 {}", server.port));
    let (status, checks, report) = found(&server.address(""));
    assert!(status == 1 && has(&checks, "role", "fault"), "{report}");
}

#[test]
fn a_postgres_database_is_examined() {
    let address = fresh("TAILROPE_TEST_POSTGRES");
    let (status, checks, report) = found(&address);
    assert!(status == 0 && has(&checks, "schema", "warn") && has(&checks, "connections", "ok"), "{report}");
    let (_, _, again) = found(&address);
    assert_eq!(again["facts"]["has_schema"], json!(false), "it changes nothing");
    makes(&address);
    let (status, checks, report) = found(&address);
    assert!(status == 0 && has(&checks, "rights", "ok") && has(&checks, "layout", "ok"), "{report}");
    assert_eq!(report["facts"]["connections_of_process"], json!(4));
    let options = "&options=-c%20default_transaction_read_only%3Don%20-c%20statement_timeout%3D900";
    let (status, checks, report) = found(&format!("{address}{options}"));
    assert!(status == 1 && has(&checks, "role", "fault") && has(&checks, "timeout", "warn"), "{report}");
}
