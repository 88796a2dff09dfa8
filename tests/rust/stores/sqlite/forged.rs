//! What somebody makes of sessions who can write to the file, and has no key.

use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use rusqlite::Connection;
use tailrope_core::Ms;
use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::contract::{Caller, Log, progress};
use tailrope_core::store::{Attach, EventStore, StoreOptions, Watch};

use super::store::at;
use crate::kit::eventually::{PATIENCE, eventually};
use crate::kit::folder::Folder;
use crate::kit::forging::{Forger, check_bad_records, check_payloads, check_sessions, hex, with_keys};

struct File(PathBuf);

impl File {
    fn run(&self, sql: &str) {
        let db = Connection::open(&self.0).unwrap();
        db.busy_timeout(PATIENCE).unwrap();
        db.execute_batch(sql).unwrap_or_else(|error| panic!("{error}: {sql}"));
    }
}

fn nonce(log: &Log) -> String {
    format!("x'{}'", hex(&log.key.nonce.0))
}

fn stream(log: &Log) -> String {
    let (session, nonce) = (&log.key.session, nonce(log));
    format!(
        "(SELECT id FROM stream WHERE nonce = {nonce} AND session = (SELECT id FROM session WHERE name = '{session}'))"
    )
}

fn message(log: &Log) -> String {
    format!("(SELECT message FROM stream WHERE id = {})", stream(log))
}

impl Forger for File {
    fn set_principal(&self, session: &str, principal: Option<&str>) {
        let principal = principal.map_or_else(|| "NULL".to_owned(), |principal| format!("'{principal}'"));
        self.run(&format!("UPDATE session SET principal = {principal} WHERE name = '{session}'"));
    }

    fn copy_record(&self, from: &str, to: &str, only_note: bool) {
        let columns = if only_note { "note" } else { "revision, principal, retry_ms, list_changed, standalone, note" };
        let there = format!("(SELECT {columns} FROM session WHERE name = '{from}')");
        self.run(&format!("UPDATE session SET ({columns}) = {there} WHERE name = '{to}'"));
    }

    fn set_note(&self, session: &str, note: &[u8]) {
        self.run(&format!("UPDATE session SET note = x'{}' WHERE name = '{session}'", hex(note)));
    }

    fn copy_message(&self, from: &Log, to: &Log) {
        let [(from_log, from), (to_log, to)] = [from, to].map(|log| (stream(log), message(log)));
        self.run(&format!(
            "UPDATE message SET body = (SELECT body FROM message WHERE number = {from}) WHERE number = {to};
             UPDATE stream SET about = (SELECT about FROM stream WHERE id = {from_log}) WHERE id = {to_log}"
        ));
    }

    fn keep_message(&self, log: &Log) {
        self.run(&format!("CREATE TABLE copy_of_message AS SELECT * FROM message WHERE number = {}", message(log)));
    }

    fn put_back(&self, _: &Log) {
        self.run("INSERT INTO message SELECT * FROM copy_of_message");
    }

    fn copy_event(&self, from: &Log, to: &Log) {
        let (from, to) = (stream(from), stream(to));
        self.run(&format!(
            "UPDATE event SET frame = (SELECT frame FROM event WHERE stream = {from} AND seq = 1)
             WHERE stream = {to} AND seq = 1"
        ));
    }

    fn copy_end(&self, from: &Log, to: &Log) {
        let (from, to) = (stream(from), stream(to));
        self.run(&format!("UPDATE stream SET tail = (SELECT tail FROM stream WHERE id = {from}) WHERE id = {to}"));
    }

    fn lose_log(&self, log: &Log) {
        self.run(&format!("DELETE FROM stream WHERE id = {}", stream(log)));
    }

    fn spoil_record(&self, session: &str) {
        self.run(&format!(
            "UPDATE session SET revision = '2099-01-01', retry_ms = -1, list_changed = 1000, standalone = x'01'
             WHERE name = '{session}'"
        ));
    }

    fn spoil_log(&self, log: &Log, damage: usize) -> bool {
        let damages = [
            "nonce = substr(nonce, 9)",
            "nonce = substr(nonce, 11)",
            "about = x'ff'",
            "head = -1",
            "head = 1000000000000000",
            "low = -5, low_tag = -1, low_at = -1",
            "chain = -1, events = -1, bytes = -1",
            "paced = x'ffff', readers = -1",
            "kept_until = 9000000000000000, tail = x'ff', withdrawn = 7",
            "message = -1",
        ];
        let stream = stream(log);
        if let Some(what) = damages.get(damage) {
            // Nothing of another type gets in.
            self.run(&format!("UPDATE event SET kind = 77, pinned = 9, tag = -1, at = -1 WHERE stream = {stream}"));
            self.run(&format!("UPDATE stream SET {what} WHERE id = {stream}"));
        }
        damage < damages.len()
    }
}

fn with(options: &StoreOptions, check: impl Fn(&Arc<dyn EventStore>, &File)) {
    let folder = Folder::new();
    let file = File(folder.path("a.db"));
    let address = format!("sqlite:{}", file.0.display());
    check(&tailrope_stores::open(&address, options).unwrap(), &file);
}

#[test]
fn o19_what_somebody_without_a_key_writes_is_nobodys_session_event_or_message() {
    for has_keys in [true, false] {
        with(&with_keys(has_keys), |store, file| check_sessions(store, file, has_keys));
        with(&with_keys(has_keys), |store, file| check_payloads(store, file, has_keys));
    }
}

#[test]
fn i9_a_bad_record_harms_itself_alone() {
    for has_keys in [true, false] {
        with(&with_keys(has_keys), |store, file| check_bad_records(store, file));
    }
}

/// Tells which log changed.
struct Ear(Mutex<Sender<StreamNonce>>);

impl Watch for Ear {
    fn changed(&self, nonce: StreamNonce) {
        let _ = self.0.lock().unwrap().send(nonce);
    }

    fn posted(&self) {}

    fn all_changed(&self) {}
}

#[test]
fn i9_hints_come_in_spite_of_a_bad_record() {
    let folder = Folder::new();
    let file = File(folder.path("a.db"));
    let [writing, reading] = [(), ()].map(|()| at(&file.0, &StoreOptions::default()));
    let (owner, reader) = (Caller::new(&writing, Ms(0)), Caller::new(&reading, Ms(0)));
    let (tell, told) = channel();
    let ear: Arc<dyn Watch> = Arc::new(Ear(Mutex::new(tell)));
    // Whichever is looked at first, most come before the good one.
    let bad: Vec<Log> = (0..20).map(|number| owner.open(&format!("bad {number}"), 1)).collect();
    let mut good = owner.open("good", 1);
    file.run("UPDATE stream SET nonce = x'01' WHERE session IN (SELECT id FROM session WHERE name <> 'good')");
    for log in bad.iter().chain([&good]) {
        reading.watch(&log.key.session, &Arc::downgrade(&ear));
    }
    reader.attach("good", &Attach { stream: Some(good.key.nonce), counts: true, ..Attach::default() });
    owner.push(&mut good, &[progress("an event")]);
    eventually("rule 13: of the other session", || told.try_iter().any(|nonce| nonce == good.key.nonce));
}

#[test]
fn nothing_of_another_type_gets_into_the_file() {
    let folder = Folder::new();
    let path = folder.path("a.db");
    let store = at(&path, &StoreOptions::default());
    let db = Connection::open(&path).unwrap();
    for sql in [
        "INSERT INTO session (name, owner, epoch, salt) VALUES ('s', 1, 1, 'text')",
        "INSERT INTO message (session, nonce, bytes, body) VALUES (1, x'01', 1, 'text')",
        "INSERT INTO event VALUES (1, 1, 1, 1, 1, 'text', x'')",
    ] {
        let refused = db.execute_batch(sql).expect_err(sql).to_string();
        assert!(refused.contains("cannot store TEXT"), "{refused}");
    }
    drop(store);
}
