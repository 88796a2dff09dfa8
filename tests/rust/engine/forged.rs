//! Sessions in a file that somebody else writes to.

use std::sync::Arc;

use rusqlite::Connection;
use serde_json::json;
use tailrope_core::engine::Options;
use tailrope_core::store::{EncryptionKey, SealedStore, session_name};

use super::relay_sqlite::{dispatched, known};
use crate::kit::common::{Bench, NEW, call, notify, read_now, respond};
use crate::kit::eventually::PATIENCE;
use crate::kit::fleet::Fleet;
use crate::kit::folder::Folder;
use crate::kit::forging::with_keys;
use crate::kit::processes::{ended, events, find, process_at, read_until_in};
use crate::kit::relaying::{BOB, identity, open_in, relay, serve, tool_call};

fn write(folder: &Folder, sql: &str) {
    let db = Connection::open(folder.path("a.db")).unwrap();
    db.busy_timeout(PATIENCE).unwrap();
    db.execute_batch(sql).unwrap();
}

#[test]
fn i7_a_session_that_somebody_without_a_key_gives_to_others_is_nobodys() {
    for is_owner_gone in [false, true] {
        let folder = Folder::new();
        let [here, there] = [0, 50_000].map(|age_ms| process_at(&folder, age_ms, with_keys(true)));
        let session = open_in(&here, NEW);
        let running = call(&session, 1);
        notify(&session, 1, "a secret of alice").unwrap();
        drop(known(&there));
        if is_owner_gone {
            session.release();
        }
        for principal in ["NULL".to_owned(), format!("'{}'", identity(BOB).unwrap())] {
            write(&folder, &format!("UPDATE session SET principal = {principal}"));
            for who in [None, Some("bob"), Some("alice")] {
                assert!(find(&there, "s", who).unwrap().is_none(), "I7: {principal}, {who:?}");
            }
        }
        assert_eq!(serve(&session), [""; 0]);
        drop(running);
    }
}

#[test]
fn i9_a_message_whose_log_is_gone_stops_no_other() {
    let folder = Folder::new();
    let [here, there] = [0, 50_000].map(|age_ms| process_at(&folder, age_ms, with_keys(false)));
    let (session, name) = (open_in(&here, NEW), session_name("s"));
    let view = known(&there);
    let db = Connection::open(folder.path("a.db")).unwrap();
    let insert = format!(
        "INSERT INTO message (session, nonce, bytes, body) SELECT id, x'0102', 3, x'ff' FROM session WHERE name = '{name}';
         INSERT INTO message (session, nonce, bytes, body) SELECT id, x'000102030405060708090a0b', 3, x'ff' FROM session"
    );
    db.busy_timeout(PATIENCE).unwrap();
    db.execute_batch(&insert).unwrap();
    let connection = relay(&view, &tool_call(1));
    assert_eq!(dispatched(&here, &session, &[&there]), ["tools/call 1"], "what comes behind it begins");
    respond(&session, 1).unwrap();
    let answered = read_until_in(&[&there, &here], &connection, ended);
    assert_eq!(events(&answered), [json!({"event": 1, "is": {"result": 1}})]);
    let left: i64 = db.query_row("SELECT count(*) FROM message WHERE length(body) = 1", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0, "it is dropped");
}

#[test]
fn i9_a_call_whose_message_no_key_opens_ends_with_an_error() {
    let fleet = Fleet::new(2);
    let process = |index: usize, keys: &[char]| {
        let keys = keys.iter().map(|key| EncryptionKey::from_hex(&key.to_string().repeat(64)).unwrap());
        let store = SealedStore::new(Arc::clone(&fleet.nodes[index]) as _, &keys.collect::<Vec<_>>()).unwrap();
        Bench::new(Options { store: Some(Arc::new(store)), owner_lost_ms: 1_000, ..Options::default() })
    };
    let (here, there) = (process(0, &['a']), process(1, &['b', 'a']));
    let session = open_in(&here, NEW);
    here.advance(20);
    let connection = relay(&known(&there), &tool_call(1));
    for _ in 0..20 {
        fleet.settle();
        [&here, &there].iter().for_each(|bench| bench.advance(250));
        assert_eq!(serve(&session), [""; 0], "it does not begin");
    }
    let answered = read_now(&connection);
    assert!(answered.end.is_some() && answered.text.contains("\"error\""), "{answered:?}");
}
