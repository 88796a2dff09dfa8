//! A store with 100,000 sessions.

use rusqlite::Connection;
use serde_json::{Value, json};
use tailrope_core::store::StoreOptions;
use tailrope_stores::open;

use super::running::{json, run};
use crate::kit::folder::Folder;

const MANY: i64 = 100_000;

#[test]
fn pages_of_many_sessions_are_sorted_over_all_of_them() {
    let folder = Folder::new();
    let path = folder.path("many.db");
    let address = format!("sqlite:{}", path.display());
    drop(open(&address, &StoreOptions::default()).expect("it opens"));
    let file = Connection::open(&path).expect("the file");
    let insert = "WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
         INSERT INTO session (name, owner, epoch, salt, released, bytes)
         SELECT printf('%032x', i), 1, 1, 1, 1, (i * 7919) % 100003 FROM n";
    file.execute(insert, [MANY]).expect("sessions");
    drop(file);
    let bytes = |page: &Value| -> Vec<u64> {
        page["items"].as_array().expect("items").iter().map(|item| item["bytes"].as_u64().expect("bytes")).collect()
    };
    let first = json(&["sessions", &address, "--limit", "1000"]);
    let second = json(&["sessions", &address, "--limit", "1000", "--page", "2"]);
    assert_eq!((&first["total"], &second["total"], &second["page"]), (&json!(MANY), &json!(MANY), &json!(2)));
    let both = [bytes(&first), bytes(&second)].concat();
    let mut all: Vec<u64> = (1..=MANY as u64).map(|number| number * 7919 % 100_003).collect();
    all.sort_unstable_by(|one, other| other.cmp(one));
    assert_eq!(both, all[..2_000]);
    let last = json(&["sessions", &address, "--limit", "1000", "--page", "100"]);
    assert_eq!(bytes(&last), all[99_000..]);
    let (status, _, err) = run(&["sessions", &address, "--limit", "1000", "--page", "101"]);
    assert!(status == 2 && err.contains("--limit times --page is at most 100000"), "{err}");
}
