//! Our stores behind an SDK's own transport: what it stores, and what comes after an id.

use std::sync::mpsc::channel;
use std::time::Duration;

use crate::kit::common::{Bench, slow};
use crate::kit::folder::Folder;
use bytes::Bytes;
use tailrope_core::engine::{HookLog, HookReplay, Options};
use tailrope_core::protocol::EventId;
use tailrope_core::store::{EventStore, Limits, StoreError, StoreOptions, StreamKey, session_name};
use tailrope_core::stream::EventKind;
use tailrope_stores::open;

const PATIENCE: Duration = Duration::from_secs(60);

fn store(log: &HookLog, scope: &str, stream: &str, kind: EventKind, text: &str) -> Result<String, StoreError> {
    let (told, outcome) = channel();
    let done = Box::new(move |result| told.send(result).expect("somebody waits"));
    log.store(scope, stream, kind, Bytes::copy_from_slice(text.as_bytes()), done);
    outcome.recv_timeout(PATIENCE).expect("it is told")
}

fn put(log: &HookLog, scope: &str, stream: &str, text: &str) -> String {
    store(log, scope, stream, EventKind::Progress, text).expect("it is stored")
}

fn replay(log: &HookLog, scope: &str, after: &str) -> Option<HookReplay> {
    let (told, outcome) = channel();
    log.replay(scope, after, Box::new(move |result| told.send(result).expect("somebody waits")));
    outcome.recv_timeout(PATIENCE).expect("it is told").expect("the store works")
}

fn texts(replay: Option<HookReplay>) -> Option<(String, Vec<String>)> {
    let replay = replay?;
    let text = |(_, payload): &(String, Bytes)| String::from_utf8(payload.to_vec()).unwrap();
    Some((replay.stream.clone(), replay.events.iter().map(text).collect()))
}

fn engines() -> Vec<(Bench, Folder)> {
    ["memory:", "test-threaded:?delay_ms=1", "sqlite:"]
        .into_iter()
        .map(|kind| {
            let folder = Folder::new();
            let place = if kind == "sqlite:" { folder.path("a.db").display().to_string() } else { String::new() };
            let store = open(&format!("{kind}{place}"), &StoreOptions::default()).unwrap();
            (Bench::new(Options { store: Some(store), ..Options::default() }), folder)
        })
        .collect()
}

#[test]
fn what_came_after_an_id_is_replayed_with_the_name_of_its_stream() {
    for (bench, _folder) in engines() {
        let log = bench.engine.hook_log();
        let primed = store(&log, "s", "7", EventKind::Progress, "").unwrap();
        let first = put(&log, "s", "7", "a");
        put(&log, "s", "other", "x");
        let second = put(&log, "s", "7", "b");
        let end = store(&log, "s", "7", EventKind::Terminal, "end").unwrap();
        let all = replay(&log, "s", &primed).expect("it is known");
        assert_eq!(
            all.events.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>(),
            [first.clone(), second, end.clone()]
        );
        assert_eq!(texts(Some(all)), Some(("7".into(), vec!["a".into(), "b".into(), "end".into()])));
        assert_eq!(texts(replay(&log, "s", &first)), Some(("7".into(), vec!["b".into(), "end".into()])));
        assert_eq!(texts(replay(&log, "s", &end)), Some(("7".into(), vec![])));
        assert!(end.len() <= 60 && end.bytes().all(|byte| byte.is_ascii_graphic()), "{end}");
    }
}

#[test]
fn i7_an_id_means_nothing_in_another_scope() {
    for (bench, _folder) in engines() {
        let log = bench.engine.hook_log();
        let id = put(&log, "s", "1", "a");
        put(&log, "s", "1", "b");
        put(&log, "t", "1", "c");
        assert_eq!(replay(&log, "t", &id), None);
        for unknown in ["", "x", &id[1..], &format!("{id}bjE")] {
            assert_eq!(replay(&log, "s", unknown), None, "{unknown}");
        }
        log.drop_scope("s");
        assert_eq!(replay(&log, "s", &id), None, "F-54: it goes with its scope");
        assert_eq!(texts(replay(&log, "t", &put(&log, "t", "1", "d"))), Some(("1".into(), vec![])));
    }
}

#[test]
fn a_name_that_is_used_again_begins_another_log() {
    for (bench, _folder) in engines() {
        let log = bench.engine.hook_log();
        let first = put(&log, "s", "1", "a");
        store(&log, "s", "1", EventKind::Terminal, "end").unwrap();
        let second = put(&log, "s", "1", "b");
        put(&log, "s", "1", "c");
        assert_eq!(texts(replay(&log, "s", &first)), Some(("1".into(), vec!["end".into()])));
        assert_eq!(texts(replay(&log, "s", &second)), Some(("1".into(), vec!["c".into()])));
    }
}

#[test]
fn messages_of_one_stream_keep_their_order_when_nobody_waits_for_them() {
    for (bench, _folder) in engines() {
        let log = bench.engine.hook_log();
        let start = put(&log, "s", "1", "start");
        let (told, outcomes) = channel();
        for number in 0..200 {
            let told = told.clone();
            let done = Box::new(move |result: Result<String, StoreError>| told.send(result).expect("somebody waits"));
            log.store("s", "1", EventKind::Progress, format!("{number}").into(), done);
        }
        for _ in 0..200 {
            outcomes.recv_timeout(PATIENCE).expect("it is told").expect("it is stored");
        }
        let want: Vec<String> = (0..200).map(|number| number.to_string()).collect();
        assert_eq!(texts(replay(&log, "s", &start)), Some(("1".into(), want)), "I2");
    }
}

#[test]
fn i8_a_rest_that_is_not_whole_is_no_replay() {
    let limits = Limits { max_events_per_stream: 3, ..Limits::default() };
    let bench = Bench::new(Options { limits, ..Options::default() });
    let log = bench.engine.hook_log();
    let ids: Vec<String> = (0..5).map(|number| put(&log, "s", "1", &number.to_string())).collect();
    assert_eq!(replay(&log, "s", &ids[0]), None);
    assert_eq!(texts(replay(&log, "s", &ids[1])), Some(("1".into(), vec!["2".into(), "3".into(), "4".into()])));
}

/// A process of its own on a file.
fn process(folder: &Folder) -> Bench {
    let store = open(&format!("sqlite:{}", folder.path("a.db").display()), &StoreOptions::default()).unwrap();
    Bench::new(Options { store: Some(store), ..Options::default() })
}

#[test]
fn a_restart_on_a_durable_store_finds_it() {
    let folder = Folder::new();
    let id = {
        let before = process(&folder);
        let log = before.engine.hook_log();
        let id = put(&log, "", "1", "a");
        put(&log, "", "1", "b");
        id
    };
    let after = process(&folder);
    let log = after.engine.hook_log();
    put(&log, "", "1", "of another log");
    assert_eq!(texts(replay(&log, "", &id)), Some(("1".into(), vec!["b".into()])));
}

#[test]
fn processes_that_share_a_store_write_one_scope_and_find_what_the_others_stored() {
    let folder = Folder::new();
    let processes = [process(&folder), process(&folder)];
    let logs = processes.each_ref().map(|process| process.engine.hook_log());
    let first = logs.each_ref().map(|log| put(log, "", "1", "first"));
    for (log, text) in logs.iter().zip(["of one", "of the other"]) {
        put(log, "", "1", text);
    }
    assert_eq!(texts(replay(&logs[1], "", &first[0])), Some(("1".into(), vec!["of one".into()])));
    assert_eq!(texts(replay(&logs[0], "", &first[1])), Some(("1".into(), vec!["of the other".into()])));
}

#[test]
fn i9_a_fault_harms_one_message_and_a_lost_log_none() {
    let (bench, memory) = slow(Options::default());
    let log = bench.engine.hook_log();
    let first = put(&log, "s", "1", "a");
    memory.set(false, true);
    assert!(store(&log, "s", "1", EventKind::Progress, "lost").is_err());
    memory.set(false, false);
    put(&log, "s", "1", "b");
    assert_eq!(texts(replay(&log, "s", &first)), Some(("1".into(), vec!["b".into()])));
    let Some(EventId::Position(cursor)) = EventId::parse(&first) else { panic!("an id of our form") };
    memory.drop_stream(&StreamKey { session: session_name("hook s"), nonce: cursor.nonce }, memory.epoch());
    let again = put(&log, "s", "1", "c");
    assert_eq!((replay(&log, "s", &first), texts(replay(&log, "s", &again))), (None, Some(("1".into(), vec![]))));
}

#[test]
fn f58_a_message_whose_answer_is_lost_is_stored_once_and_before_what_follows() {
    for was_stored in [true, false] {
        let (bench, memory) = slow(Options::default());
        let log = bench.engine.hook_log();
        let first = put(&log, "s", "1", "a");
        memory.set(true, false);
        let (told, outcomes) = channel();
        for text in ["unheard", "behind it"] {
            let told = told.clone();
            let done = Box::new(move |result: Result<String, StoreError>| told.send(result).expect("somebody waits"));
            log.store("s", "1", EventKind::Progress, text.into(), done);
        }
        let outcome = || outcomes.recv_timeout(PATIENCE).expect("it is told");
        let unheard = StoreError::TimedOut { after_ms: 10_000 };
        if was_stored {
            assert!(memory.answer_unheard());
        } else {
            assert!(memory.answer_with(unheard.clone()));
        }
        assert_eq!(outcome(), Err(unheard.clone()));
        // What was not heard of is asked again, and what failed then had not been asked.
        assert!(memory.answer_with(unheard.clone()));
        assert_eq!(outcome(), Err(unheard));
        assert_eq!(memory.pending(), 0, "it is not asked for ever");
        memory.set(false, false);
        put(&log, "s", "1", "b");
        put(&log, "s", "1", "c");
        let want = ["unheard", "b", "c"].map(str::to_owned);
        assert_eq!(texts(replay(&log, "s", &first)), Some(("1".into(), want.into())));
    }
}
