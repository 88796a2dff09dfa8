//! What somebody makes of sessions who can write to the database, and has no key.

use std::sync::Arc;

use tailrope_core::store::contract::Log;
use tailrope_core::store::{EventStore, StoreOptions};
use tailrope_stores::open;

use super::database::{Administrator, Namespaces, namespace};
use crate::kit::forging::{Forger, check_bad_records, check_payloads, check_sessions, hex, with_keys};

struct Schema {
    administrator: Administrator,
    name: String,
}

impl Schema {
    fn run(&self, sql: &str) {
        self.administrator.run(&format!("SET search_path = {}; {sql}", self.name));
    }
}

fn stream(log: &Log) -> String {
    let (session, nonce) = (&log.key.session, hex(&log.key.nonce.0));
    format!(
        "(SELECT x.id FROM stream AS x JOIN session AS s ON s.id = x.session
          WHERE s.name = '{session}'::bytea AND x.nonce = '\\x{nonce}'::bytea)"
    )
}

impl Forger for Schema {
    fn set_principal(&self, session: &str, principal: Option<&str>) {
        let principal = principal.map_or_else(|| "NULL".to_owned(), |principal| format!("'{principal}'::bytea"));
        self.run(&format!("UPDATE session SET principal = {principal} WHERE name = '{session}'::bytea"));
    }

    fn copy_record(&self, from: &str, to: &str, only_note: bool) {
        let columns = if only_note { "note" } else { "note, revision, principal, retry_ms, lists, standalone" };
        let there = format!("(SELECT {columns} FROM session WHERE name = '{from}'::bytea)");
        let set = if only_note { format!("note = {there}") } else { format!("({columns}) = {there}") };
        self.run(&format!("UPDATE session SET {set} WHERE name = '{to}'::bytea"));
    }

    fn set_note(&self, session: &str, note: &[u8]) {
        self.run(&format!("UPDATE session SET note = '\\x{}'::bytea WHERE name = '{session}'::bytea", hex(note)));
    }

    fn copy_message(&self, from: &Log, to: &Log) {
        let (from, to) = (stream(from), stream(to));
        self.run(&format!(
            "UPDATE message SET body = (SELECT body FROM message WHERE stream = {from}) WHERE stream = {to};
             UPDATE event SET frame = (SELECT frame FROM event WHERE stream = {from} AND seq = 0)
             WHERE stream = {to} AND seq = 0"
        ));
    }

    fn keep_message(&self, log: &Log) {
        self.run(&format!("CREATE TABLE copy_of_message AS SELECT * FROM message WHERE stream = {}", stream(log)));
    }

    /// As the newest one: what comes before what was taken is forgotten with that.
    fn put_back(&self, log: &Log) {
        let stream = stream(log);
        self.run(&format!(
            "UPDATE event SET stream = 1000000 WHERE stream = {stream}; UPDATE stream SET id = 1000000 WHERE id = {stream};
             INSERT INTO message SELECT session, 1000000, is_taken, bytes, body FROM copy_of_message"
        ));
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
        self.run(&format!(
            "UPDATE event SET frame = (SELECT frame FROM event WHERE stream = {from} AND seq = -1)
             WHERE stream = {to} AND seq = -1"
        ));
    }

    fn lose_log(&self, log: &Log) {
        self.run(&format!("DELETE FROM stream WHERE id = {}", stream(log)));
    }

    fn spoil_record(&self, session: &str) {
        self.run(&format!(
            "UPDATE session SET revision = '2099-01-01', retry_ms = -1, lists = -1, standalone = '\\x01'
             WHERE name = '{session}'::bytea"
        ));
    }

    fn spoil_log(&self, log: &Log, damage: usize) -> bool {
        let damages = [
            "nonce = substring(nonce FROM 9)",
            "nonce = nonce || nonce",
            "head = -1",
            "head = 9223372036854775807",
            "low = -5, low_tag = -1, low_at = -1",
            "chain = -1, events = -1, bytes = -1",
            "paced = '\\xffff', readers = -1, followers = '{-1, 0}'",
            "kept_until = 9223372036854775807, is_withdrawn = true",
            "kept_ms = 9223372036854775807",
        ];
        let stream = stream(log);
        if let Some(what) = damages.get(damage) {
            self.run(&format!("UPDATE event SET kind = 77, pinned = true, tag = -1, at = -1 WHERE stream = {stream}"));
            self.run(&format!("UPDATE stream SET {what} WHERE id = {stream}"));
        }
        damage < damages.len()
    }
}

fn with(options: &StoreOptions, check: impl Fn(&Arc<dyn EventStore>, &Schema)) {
    let namespaces = Namespaces::direct();
    let address = namespaces.address();
    let schema = Schema { administrator: Administrator::new(), name: namespace(&address).to_owned() };
    check(&open(&address, options).unwrap(), &schema);
}

#[test]
fn o19_what_somebody_without_a_key_writes_is_nobodys_session_event_or_message() {
    for has_keys in [true, false] {
        with(&with_keys(has_keys), |store, schema| check_sessions(store, schema, has_keys));
        with(&with_keys(has_keys), |store, schema| check_payloads(store, schema, has_keys));
    }
}

#[test]
fn i9_a_bad_record_harms_itself_alone() {
    for has_keys in [true, false] {
        with(&with_keys(has_keys), |store, schema| check_bad_records(store, schema));
    }
}
