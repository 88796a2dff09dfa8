//! Readers whose store answers late, in any order, or not at all: which of them is the newest, and where each begins.

mod common;
mod folder;
#[macro_use]
mod passing_on;
mod any_order;
mod processes;

use any_order::{AnyOrder, process_in_any_order};
use common::{NEW, broadcast, listen};
use folder::Folder;
use processes::{adopt_known, events, has, open_session, process, read_until};
use serde_json::json;
use tailrope_core::store::Operation;

fn is_record(operation: &Operation) -> bool {
    matches!(operation, Operation::Record)
}

#[test]
fn i2_a_listener_begins_where_its_first_id_says() {
    let folder = Folder::new();
    let here = process(&folder, 0);
    let (there, store) = process_in_any_order(&folder);
    let session = open_session(&here, "s", NEW);
    let seen = adopt_known(&there);
    let first = listen(&seen);
    broadcast(&session, "a").unwrap();
    assert_eq!(events(&read_until(&there, &first, has(1))), [json!({"event": 1, "is": "a"})]);
    store.hold(is_record);
    // Nothing that was asked before is under way any more.
    store.fail_all(&there);
    let second = listen(&seen);
    store.fail_all(&there);
    let told = read_until(&there, &second, |answered| !answered.text.is_empty());
    assert_eq!((told.frames().len(), events(&told).len()), (1, 0), "the store cannot tell: {told:?}");
    store.let_go();
    broadcast(&session, "b").unwrap();
    let rest = read_until(&there, &second, has(2));
    assert_eq!(events(&rest), [json!({"event": 1, "is": "a"}), json!({"event": 2, "is": "b"})]);
    let again = common::resume(&seen, &told.last_id());
    assert_eq!(events(&read_until(&there, &again, has(2))), events(&rest), "the id means the same to a resume");
}
