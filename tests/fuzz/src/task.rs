//! Tasks: whatever a client, a host or a store says, it is read or refused, and every schedule keeps the rules.

use bytes::Bytes;
use serde_json::Value;
use tailrope_core::protocol::{Dialect, Head, RequestId};
use tailrope_core::task::{
    Announcement, Call, Change, Posted, RequestMeta, Status, TASK_ID_BYTES, Task, TaskHead, TaskId, announce, detailed,
    notification, read_request, subscribed_tasks, with_subscribed_tasks,
};

use crate::kit::dice::Dice;
use crate::reader::Reader;
use crate::task_world::World;

/// Steps of one schedule.
const MAX_STEPS: u32 = 400;

pub(crate) fn run(bytes: &[u8]) {
    let Some((mode, bytes)) = bytes.split_first() else { return };
    match mode % 4 {
        0 => schedule(bytes),
        1 => request(Reader::new(bytes)),
        2 => texts(bytes),
        _ => records(Reader::new(bytes)),
    }
}

fn schedule(bytes: &[u8]) {
    let mut world = World::new(Dice::of(bytes));
    for _ in 0..MAX_STEPS {
        if world.is_used_up() {
            break;
        }
        world.step();
    }
    world.settle();
}

fn request(mut reader: Reader<'_>) {
    let mut line = || String::from_utf8_lossy(reader.line()).into_owned();
    let (method, name, version) = (line(), line(), line());
    let head = Head {
        method: "POST",
        accept: Some("application/json, text/event-stream"),
        content_type: Some("application/json"),
        protocol_version: Some(&version),
        ..Head::default()
    };
    let (methods, names) = ([&*method], [&*name]);
    let head =
        TaskHead { head, methods: &methods, names: &names[usize::from(name.is_empty())..], ..TaskHead::default() };
    let body = reader.rest();
    for dialect in [&Dialect::MCP_PYTHON_2, &Dialect::MCP_TYPESCRIPT_2] {
        match read_request(&head, body, false, dialect) {
            Ok(read) => {
                let body: Value = serde_json::from_slice(body).expect("what is taken is JSON");
                assert_eq!(body["params"]["taskId"], read.task.as_str());
                assert_eq!(body["method"], *method, "T-25");
            }
            Err(refusal) => {
                let said: Value = serde_json::from_slice(&refusal.body(dialect)).expect("a refusal is JSON");
                assert_eq!(said["error"]["code"], refusal.code);
            }
        }
    }
}

fn texts(bytes: &[u8]) {
    if let Announcement::Added(answer) = announce(bytes) {
        assert_eq!(announce(&answer), Announcement::ByHost, "T-02: it names the extension");
    }
    if let Some(call) = Call::read(bytes) {
        let given: Value = serde_json::from_slice(call.body()).expect("the SDK is given JSON");
        assert!(given["method"].is_string());
    }
    if let Some(posted) = Posted::read(None, bytes) {
        let body: Value = serde_json::from_slice(bytes).expect("what is read is JSON");
        assert_eq!(body["method"].as_str().unwrap_or_default(), posted.method);
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = RequestMeta::of(text);
    let _ = subscribed_tasks(text);
    if let Some(said) = with_subscribed_tasks(text, &["a"]) {
        let said: Value = serde_json::from_str(&said).expect("an acknowledgement is JSON");
        assert_eq!(said["params"]["notifications"]["taskIds"][0], "a");
    }
}

fn records(mut reader: Reader<'_>) {
    let (mut changes, mut task) = (Vec::new(), None::<Task>);
    while !reader.is_empty() {
        let record = Bytes::copy_from_slice(reader.bytes());
        let Some(change) = Change::decode(&record) else { continue };
        assert_eq!(change.encode(), record, "it is read as it was written");
        let is_next = match &mut task {
            Some(task) => task.apply(&change).is_ok(),
            None => Task::new(&change).map(|first| task = Some(first)).is_ok(),
        };
        if is_next {
            changes.push(change);
        }
    }
    assert_eq!(Task::fold(&changes), Ok(task.clone()));
    let Some(task) = task else { return };
    let (id, request) = (TaskId::new(&[0; TASK_ID_BYTES]), RequestId::integer(1));
    let _ = (detailed(&request, &id, &task, u64::MAX), notification(&request, &id, &task, 0), task.round_call());
    assert_eq!(task.status().is_terminal(), task.end().is_some());
    if let Some(lost) = task.owner_lost(0) {
        assert_ne!(task.status(), Status::Completed);
        let mut task = task;
        assert!(task.apply(&lost).is_ok());
    }
}
