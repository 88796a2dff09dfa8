//! The file of the SQLite store: what it keeps, whose it is, and which files are refused.

use std::path::Path;

use super::store::at;
use crate::kit::events::{question, sized};
use crate::kit::folder::Folder;
use bytes::Bytes;
use tailrope_core::Ms;
use tailrope_core::store::contract::Caller;
use tailrope_core::store::{
    Append, Attach, Epoch, EventStore, Hold, Owner, ReadLimit, RunningLog, SessionRecord, StoreOptions,
};
use tailrope_core::stream::Paced;
use tailrope_stores::open;

#[test]
fn reopening_finds_everything() {
    let folder = Folder::new();
    let file = folder.path("a.db");
    let options = StoreOptions::default();
    let store = at(&file, &options);
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(10), question(), sized(0)]);
    let paced = Paced { retry_ms: Some(700), hold_ms: Some(9), closes: 3, closed_at: 1, ..Paced::default() };
    let retry = Append { paced: Some(paced), ..log.append(4, &[]) };
    caller.write(&log, &retry).expect("it is set");
    let known = SessionRecord { principal: Some("alice".into()), retry_ms: 9, ..SessionRecord::default() };
    let mut ended = caller.open("s", 2);
    caller.hold("s", known.clone());
    caller.push(&mut ended, &[sized(10)]);
    caller.finish(&ended, b"tail").expect("it is ended");
    let usage = store.usage();
    drop(store);
    let store = at(&file, &options);
    let caller = Caller::new(&store, Ms(7));
    log.assert_stored(&caller, 0, "I6");
    ended.assert_stored(&caller, 0, "I6");
    assert_eq!(caller.session("s", Some("alice")), Some(known));
    let owner = Owner { epoch: caller.epoch, unseen_ms: u64::MAX };
    let look = Attach { stream: Some(log.key.nonce), principal: Some("alice".into()), ..Attach::default() };
    let found = caller.attach("s", &look).log.unwrap();
    assert_eq!((found.page.paced, found.page.is_finished, found.page.owner), (paced, false, Some(owner)));
    let page = caller.read(&ended, 0, ReadLimit::default()).unwrap();
    assert_eq!(page.tail, Some(Bytes::from_static(b"tail")));
    let heir = caller.with(Epoch { number: 2, salt: 8 });
    let running = heir.try_hold("s", &Hold { epoch: heir.epoch, seen: Some(owner.epoch), record: None }).unwrap();
    assert!(matches!(&running[..], [RunningLog { nonce, head: 3, .. }] if *nonce == log.key.nonce), "{running:?}");
    assert_eq!(heir.finish(&log, b"gone"), Ok(()), "I13");
    assert_eq!(store.usage().events, usage.events);
}

#[test]
fn a_file_that_cannot_be_used_is_refused_with_what_is_wrong() {
    let folder = Folder::new();
    let text = folder.path("text.db");
    std::fs::write(&text, "no database, but long enough to be looked at as one".repeat(100)).unwrap();
    let other = folder.path("other.db");
    rusqlite::Connection::open(&other).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    let damaged = folder.path("damaged.db");
    drop(at(&damaged, &StoreOptions::default()));
    let mut bytes = std::fs::read(&damaged).unwrap();
    bytes[100..4_000].fill(0xFF);
    std::fs::write(&damaged, bytes).unwrap();
    let cases = [
        (text, "no SQLite database"),
        (other, "something else"),
        (damaged, "damaged"),
        (folder.path("no/such/folder.db"), "directory does not exist"),
        (folder.path("."), "is a directory"),
    ];
    for (file, what) in cases {
        let error = open(&format!("sqlite:{}", file.display()), &StoreOptions::default()).err();
        let text = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(text.contains(what), "{file:?}: {text:?}");
    }
}

/// What stands for the tables in a file: which version of them it has, and which a release has to know.
fn layout(file: &Path) -> (i32, i32) {
    let db = rusqlite::Connection::open(file).unwrap();
    let number: i32 = db.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    (number % 1_000, number / 1_000)
}

#[test]
fn a_file_of_another_release_is_used_if_that_says_so_and_refused_by_version_if_not() {
    let folder = Folder::new();
    let file = folder.path("a.db");
    let store = at(&file, &StoreOptions::default());
    Caller::new(&store, Ms(0)).open("s", 1);
    drop(store);
    let (version, serves) = layout(&file);
    assert_eq!(serves, version, "no release before knows these tables");
    for (written, serves, is_used) in [
        (version + 1, version, true),
        (version + 1, version - 1, true),
        (version + 1, version + 1, false),
        (version - 1, version - 1, false),
    ] {
        let sql = format!("PRAGMA user_version = {}", serves * 1_000 + written);
        rusqlite::Connection::open(&file).unwrap().execute_batch(&sql).unwrap();
        match tailrope_stores::sqlite::open(&file, &StoreOptions::default()) {
            Ok(store) => {
                assert!(is_used, "version {written}, for {serves}");
                assert!(Caller::new(&store, Ms(0)).session("s", None).is_some());
            }
            Err(error) => {
                let (text, both) = (error.to_string(), [written, version].map(|number| format!("version {number}")));
                assert!(!is_used && both.iter().all(|version| text.contains(version)), "{text}");
            }
        }
        assert_eq!(layout(&file), (written, serves), "it stays as it is");
    }
}

#[test]
fn addresses_are_refused_with_what_was_tried_and_what_there_is() {
    let folder = Folder::new();
    let options = StoreOptions::default();
    for (address, what) in [
        ("events.db", "the kinds are memory:, sqlite:PATH"),
        ("mysql://me:pass@host/db", "no kind of store called \"mysql\""),
        ("sqlite:", "the path of the file is missing"),
        ("sqlite:events.db?key=pass", "takes no options"),
        ("sqlite::memory:", "the path of the file is missing"),
        ("sqlite://host/events.db", "a file is on this machine"),
        ("memory:here", "its whole address is memory:"),
    ] {
        let error = open(address, &options).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(what) && !error.contains("pass"), "{address}: {error}");
    }
    assert!(open("memory:", &options).is_ok());
    let absolute = format!("sqlite://{}", folder.path("a.db").display());
    assert!(open(&absolute, &options).is_ok() && folder.path("a.db").exists());
}

#[cfg(unix)]
#[test]
fn a_new_file_is_its_users_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let _store = at(&folder.path("a.db"), &StoreOptions::default());
    for file in ["a.db", "a.db-wal"] {
        let mode = std::fs::metadata(folder.path(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{file}: {mode:o}");
    }
}
