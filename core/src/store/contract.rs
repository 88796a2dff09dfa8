//! Puts any store through the rules that are written on [`EventStore`].
//!
//! For the tests of stores: [`check`] panics with the number of the rule that is broken.

mod caller;
mod shared;

use std::sync::Arc;

use bytes::Bytes;

use caller::about;
pub use caller::{Caller, Event, Log, progress};
pub use shared::check_shared;

use super::{EventStore, Operation, ReadLimit, Record, SessionRecord, StoreError, Usage};
use crate::Ms;
use crate::protocol::{ListChanged, Revision};
use crate::stream::{EventKind, Seq};

/// Checks every rule on fresh stores. `make` gives an empty one that takes at least 4,000 events of
/// 100 bytes in a stream, and 20,000 in all, without trimming any.
///
/// # Panics
/// When the store breaks a rule.
pub fn check(make: &dyn Fn() -> Arc<dyn EventStore>) {
    rule_1_a_log_is_named_by_session_and_stream(&*make());
    rule_2_positions_are_dense_and_a_repeated_append_changes_nothing(&*make());
    rule_2_concurrent_appends_to_many_streams_all_count(&*make());
    rule_3_an_event_is_readable_when_it_is_stored(&*make());
    rule_4_events_come_back_in_order_byte_for_byte(&*make());
    rule_4_pages_keep_their_bounds(&*make());
    rule_5_nothing_is_trimmed_below_the_bounds(&*make());
    rule_6_a_finished_log_stays_readable_and_takes_nothing(&*make());
    rule_6_a_synthesized_end_is_kept_with_the_log(&*make());
    rule_7_a_failed_operation_changes_nothing(&*make());
    rule_8_dropping_frees_everything(&*make());
    rule_9_streams_do_not_wait_for_each_other(&*make());
    rule_11_what_has_no_answer_is_done_before_what_follows(&*make());
    rule_12_a_session_is_known_until_it_is_dropped(&*make());
}

fn rule_1_a_log_is_named_by_session_and_stream(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut logs: Vec<Log> = Vec::new();
    for session in ["s", "s2", "S", ""] {
        logs.extend([1, 2].map(|number| caller.open(session, number)));
    }
    for log in &mut logs {
        caller.push(log, &[progress(&format!("{:?}", log.key))]);
    }
    for log in &logs {
        log.assert_stored(&caller, 0, "rule 1");
    }
    let never_opened = Log::new("s", 3);
    let everything = ReadLimit { up_to: Seq::MAX, events: 10, bytes: 1 << 20 };
    assert!(caller.record(&never_opened).is_none(), "rule 1: what was not opened is not there");
    assert_eq!(caller.read(&never_opened, 0, everything), Err(StoreError::Gone), "rule 1");
    assert_eq!(caller.append(&never_opened, 1, &[progress("x")]), Err(StoreError::Gone), "rule 1");
}

fn rule_2_positions_are_dense_and_a_repeated_append_changes_nothing(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut log = caller.open("s", 1);
    let batch = [progress("a"), progress("b"), progress("c")];
    assert_eq!(caller.append(&log, 2, &batch), Err(StoreError::RolledBack), "rule 2: position 1 was never stored");
    caller.push(&mut log, &batch);
    let usage = store.usage();
    assert_eq!(caller.append(&log, 1, &batch), Ok(()), "rule 2: the same batch again is a success");
    assert_eq!(store.usage(), usage, "rule 2: and changes nothing");
    log.assert_stored(&caller, 0, "rule 2");
    assert_eq!(
        caller.append(&log, 1, &[progress("x"), progress("y"), progress("z")]),
        Err(StoreError::OutOfOrder),
        "rule 2: another batch there is refused"
    );
    assert_eq!(
        caller.append(&log, 5, &[progress("e")]),
        Err(StoreError::RolledBack),
        "rule 2: no position is left out"
    );
    let mut other = log.clone();
    other.events[1] = progress("not b");
    assert_eq!(
        caller.append(&other, 4, &[progress("d")]),
        Err(StoreError::RolledBack),
        "rule 2: nothing goes on after events that the log does not hold"
    );
    caller.push(&mut log, &[progress("d")]);
    // Opening again is what a second node does.
    let again = Bytes::from_static(b"again");
    let answer = store.open(Ms(0), &log.key, &again, &caller.ticket(&log.key, Operation::Open));
    assert_eq!(caller.done(&log.key, Operation::Open, answer), Ok(()), "rule 2: a log can be opened twice");
    let kept = caller.record(&log).map(|record| record.about);
    assert_eq!(kept, Some(about(1)), "rule 2: and keeps what it was opened with first");
    log.assert_stored(&caller, 0, "rule 2");
}

fn rule_2_concurrent_appends_to_many_streams_all_count(store: &dyn EventStore) {
    const THREADS: u64 = 8;
    const STREAMS: u64 = 5;
    const EVENTS: u64 = 200;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let caller = Caller::new(store, Ms(0));
                let session = format!("session {}", thread % 3);
                let mut logs: Vec<Log> = (0..STREAMS).map(|at| caller.open(&session, thread * STREAMS + at)).collect();
                for event in 0..EVENTS {
                    for log in &mut logs {
                        caller.push(log, &[progress(&format!("{thread} {event}"))]);
                    }
                }
                for log in &logs {
                    log.assert_stored(&caller, 0, "rule 2 (F-13)");
                }
            });
        }
    });
    let want = (3, THREADS * STREAMS, THREADS * STREAMS * EVENTS);
    Caller::new(store, Ms(0))
        .assert_usage("rule 2 (F-13)", |usage| (usage.sessions, usage.streams, usage.events) == want);
}

fn rule_3_an_event_is_readable_when_it_is_stored(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut log = caller.open("s", 1);
    log.assert_stored(&caller, 0, "rule 3");
    for number in 0..50 {
        caller.push(&mut log, &[progress(&format!("event {number}"))]);
        log.assert_stored(&caller, log.head() - 1, "rule 3");
    }
}

fn rule_4_events_come_back_in_order_byte_for_byte(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut log = caller.open("s", 1);
    let every_byte: Vec<u8> = (0..=255).collect();
    let kinds = [EventKind::Progress, EventKind::Answer, EventKind::Question];
    for (number, kind) in (0..30).zip(kinds.into_iter().cycle()) {
        let payload = every_byte.repeat(number);
        caller.push(&mut log, &[(kind, payload.into()), (kind, Bytes::new())]);
    }
    let got = caller.read_all(&log, 0);
    for (event, (kind, payload)) in got.iter().zip(&log.events) {
        assert!(event.kind == *kind && *event.frame == **payload, "rule 4: position {}", event.seq);
    }
    for after in [0, 1, 17, 59, 60] {
        log.assert_stored(&caller, after, "rule 4");
    }
}

fn rule_4_pages_keep_their_bounds(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut log = caller.open("s", 1);
    let events: Vec<Event> = (0..20).map(|_| progress(&"x".repeat(100))).collect();
    caller.push(&mut log, &events);
    let page = |after, up_to, events, bytes| {
        let page = caller.read(&log, after, ReadLimit { up_to, events, bytes }).expect("the log is readable");
        assert_eq!((page.head, page.low), (20, 1), "rule 4: head and low do not depend on the bounds");
        page.events.iter().map(|event| event.seq).collect::<Vec<_>>()
    };
    assert_eq!(page(0, 20, 3, 1 << 20), [1, 2, 3], "rule 4: events");
    assert_eq!(page(5, 7, 100, 1 << 20), [6, 7], "rule 4: last position");
    // A store may count what it adds to a frame.
    let by_bytes = page(0, 20, 100, 350);
    assert!(!by_bytes.is_empty() && [1, 2, 3].starts_with(&by_bytes), "rule 4: bytes: {by_bytes:?}");
    assert_eq!(page(4, 20, 100, 1), [5], "rule 4: at least one event");
    assert_eq!(page(20, 20, 100, 1 << 20), [0; 0], "rule 4: nothing is after the head");
    assert_eq!(page(7, 7, 100, 1 << 20), [0; 0], "rule 4: an empty range");
    assert_eq!(page(25, 40, 100, 1 << 20), [0; 0], "rule 4: beyond the head");
    let tag_at = |after| {
        let limit = ReadLimit { up_to: 20, events: 1, bytes: 1 };
        caller.read(&log, after, limit).expect("the log is readable").tag_at
    };
    for after in 0..=20 {
        assert_eq!(tag_at(after), Some(log.chain_at(after).tag()), "rule 4: the tag at {after}");
    }
    assert_eq!(tag_at(21), None, "rule 4: nothing has a tag beyond the head");
}

fn rule_5_nothing_is_trimmed_below_the_bounds(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut log = caller.open("s", 1);
    for _ in 0..40 {
        let events: Vec<Event> = (0..100).map(|_| progress(&"x".repeat(100))).collect();
        caller.push(&mut log, &events);
    }
    let mut question = (EventKind::Question, Bytes::from_static(b"question"));
    caller.push(&mut log, std::slice::from_ref(&question));
    let asked = log.head();
    store.settle(&log.key, asked);
    store.settle(&log.key, asked + 7);
    store.settle(&log.key, 1);
    log.assert_stored(&caller, 0, "rule 5: an answered question is still readable");
    question.0 = EventKind::Terminal;
    caller.push(&mut log, &[question]);
    log.assert_stored(&caller, 0, "rule 5");
    assert_eq!(store.usage().trimmed, 0, "rule 5");
}

fn rule_6_a_finished_log_stays_readable_and_takes_nothing(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[progress("a"), (EventKind::Terminal, Bytes::from_static(b"end"))]);
    let Some(record) = caller.record(&log) else { panic!("rule 6: a finished log has a record") };
    assert!(record.finished && record.tail.is_none(), "rule 6: {record:?}");
    let last = [(EventKind::Terminal, Bytes::from_static(b"end"))];
    assert_eq!(caller.append(&log, 2, &last), Ok(()), "rule 6: the terminal again is a success (rule 2)");
    assert_eq!(caller.append(&log, 3, &[progress("late")]), Err(StoreError::Gone), "rule 6: nothing more");
    assert_eq!(caller.finish(&log, b"other"), Ok(()), "rule 6: it has an end");
    assert_eq!(caller.record(&log), Some(record), "rule 6: the first end wins (I13)");
    store.sweep(Ms(1));
    log.assert_stored(&caller, 0, "rule 6");
}

fn rule_6_a_synthesized_end_is_kept_with_the_log(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[progress("a")]);
    let tail = Bytes::from_static(b"cancelled");
    assert_eq!(caller.finish(&log, b"cancelled"), Ok(()), "rule 6");
    assert_eq!(caller.finish(&log, b"another"), Ok(()), "rule 6: an end that is asked for again");
    let chain = log.chain_at(1).0;
    let want =
        Record { head: 1, low: 1, finished: true, tail: Some(tail), chain, about: about(1), ..Record::default() };
    assert_eq!(caller.record(&log), Some(want), "rule 6");
    assert_eq!(caller.append(&log, 2, &[progress("late")]), Err(StoreError::Gone), "rule 6: nothing more");
    log.assert_stored(&caller, 0, "rule 6");
    store.set_retry(&log.key, 700);
    let retry_ms = caller.record(&log).and_then(|record| record.retry_ms);
    assert_eq!(retry_ms, Some(700), "rule 6: later readers get the stream's own delay");
    // What is not there cannot be finished, and is not there afterwards.
    let other = Log::new("s", 2);
    store.set_retry(&other.key, 700);
    assert_eq!(caller.finish(&other, b""), Err(StoreError::Gone), "rule 6");
    assert!(caller.record(&other).is_none(), "rule 6");
}

fn rule_7_a_failed_operation_changes_nothing(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut log = caller.open("s", 1);
    let mut other = caller.open("s", 2);
    caller.push(&mut log, &[progress("a")]);
    let usage = store.usage();
    assert!(caller.append(&log, 3, &[progress("x")]).is_err());
    assert!(caller.append(&Log::new("t", 1), 1, &[progress("x")]).is_err());
    assert_eq!(store.usage(), usage, "rule 7");
    caller.push(&mut log, &[progress("b")]);
    caller.push(&mut other, &[progress("c")]);
    log.assert_stored(&caller, 0, "rule 7");
    other.assert_stored(&caller, 0, "rule 7");
}

fn rule_8_dropping_frees_everything(store: &dyn EventStore) {
    let empty = store.usage();
    let caller = Caller::new(store, Ms(0));
    let mut logs: Vec<Log> = (0..6).map(|number| caller.open(["s", "t"][usize::from(number > 3)], number)).collect();
    for log in &mut logs {
        caller.push(log, &[progress("a"), (EventKind::Question, Bytes::from_static(b"q"))]);
    }
    caller.push(&mut logs[0], &[(EventKind::Terminal, Bytes::from_static(b"end"))]);
    assert_eq!(caller.finish(&logs[1], b"tail"), Ok(()), "rule 8");
    store.drop_stream(&logs[2].key);
    store.drop_stream(&logs[2].key);
    assert!(caller.record(&logs[2]).is_none(), "rule 8");
    caller.assert_usage("rule 8", |usage| (usage.sessions, usage.streams, usage.events) == (2, 5, 11));
    store.drop_session("s");
    store.drop_session("s");
    store.drop_session("never there");
    for log in &logs[..4] {
        assert!(caller.record(log).is_none(), "rule 8 (F-54)");
        assert_eq!(caller.append(log, log.head() + 1, &[progress("late")]), Err(StoreError::Gone), "rule 8");
    }
    logs[4].assert_stored(&caller, 0, "rule 8: another session keeps its own");
    store.drop_session("t");
    store.sweep(Ms(u64::MAX / 2));
    caller.assert_usage("rule 8 (F-54): nothing is left", |usage| *usage == Usage { trimmed: usage.trimmed, ..empty });
}

fn rule_9_streams_do_not_wait_for_each_other(store: &dyn EventStore) {
    // Readers and writers of eight streams at once; a store that lets them wait in a circle hangs here.
    std::thread::scope(|scope| {
        for number in 0..8 {
            scope.spawn(move || {
                let caller = Caller::new(store, Ms(0));
                let mut log = caller.open("s", number);
                for round in 0..100 {
                    caller.push(&mut log, &[progress(&format!("{number} {round}"))]);
                    let read = caller.read_all(&log, log.head() - 1);
                    assert_eq!(read.len(), 1, "rule 9");
                    store.usage();
                    store.sweep(Ms(round));
                    store.settle(&log.key, round);
                }
                log.assert_stored(&caller, 0, "rule 9");
            });
        }
    });
}

fn rule_11_what_has_no_answer_is_done_before_what_follows(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    for number in 0..50 {
        let mut log = caller.open("s", number);
        caller.push(&mut log, &[progress("a")]);
        store.set_retry(&log.key, 5);
        assert_eq!(caller.finish(&log, b"end"), Ok(()), "rule 11");
        let Some(record) = caller.record(&log) else { panic!("rule 11: the log is there") };
        assert_eq!((record.finished, record.retry_ms), (true, Some(5)), "rule 11");
        store.drop_stream(&log.key);
        assert_eq!(caller.read(&log, 0, ReadLimit { up_to: 1, events: 1, bytes: 1 }), Err(StoreError::Gone), "rule 11");
        caller.open("s", number);
        store.drop_session("s");
        assert!(caller.record(&log).is_none(), "rule 11");
    }
}

fn rule_12_a_session_is_known_until_it_is_dropped(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(1_000));
    assert_eq!(caller.session("s"), None, "rule 12: nobody said anything of it");
    let log = caller.open("s", 1);
    assert_eq!(caller.session("s"), None, "rule 12: a log says nothing of its session");
    let list_changed = ListChanged { tools: true, prompts: false, resources: true };
    let alice = SessionRecord {
        revision: Some(Revision::V2025_11_25),
        principal: Some("alice \u{fc}\0".into()),
        retry_ms: 700,
        list_changed,
        standalone: Some(log.key.nonce),
        ..SessionRecord::default()
    };
    let nobody = SessionRecord::default();
    store.put_session(Ms(1_000), "s", &alice);
    store.put_session(Ms(1_000), "t", &alice);
    store.put_session(Ms(1_000), "t", &nobody);
    let known = |session| {
        let record = caller.session(session)?;
        // A store that says the ages by a clock of its own has seen a little time pass.
        assert!(record.age_ms < 60_000 && record.unseen_ms <= record.age_ms, "rule 12: {record:?}");
        Some(SessionRecord { age_ms: 0, unseen_ms: 0, ..record })
    };
    assert_eq!((known("s"), known("t")), (Some(alice), Some(nobody.clone())), "rule 12");
    assert_eq!(known(""), None, "rule 12: no session stands for another");
    store.drop_session("s");
    assert_eq!((known("s"), known("t")), (None, Some(nobody)), "rule 12 (F-54)");
    assert!(caller.record(&log).is_none(), "rule 12: its logs go with it");
    store.drop_session("t");
    assert_eq!(known("t"), None, "rule 12: a session without logs goes, too");
}
