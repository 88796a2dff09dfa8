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
    let mut all: Vec<u64> = (1..=MANY as u64).map(|number| number * 7919 % 100_003).collect();
    all.sort_unstable_by(|one, other| other.cmp(one));
    for (page, part) in [("2", 1_000..2_000), ("100", 99_000..100_000)] {
        let shown = json(&["sessions", &address, "--limit", "1000", "--page", page]);
        assert_eq!((&shown["total"], shown["page"].to_string()), (&json!(MANY), page.to_owned()));
        assert_eq!(bytes(&shown), all[part]);
    }
    let (status, _, err) = run(&["sessions", &address, "--limit", "1000", "--page", "101"]);
    assert!(status == 2 && err.contains("--limit times --page is at most 100000"), "{err}");
}
