//! The memory store: the contract of all stores, and its own bounds (I11, F-20, F-54).

use std::sync::Arc;

use crate::kit::events::{positions, question, sized, terminal};
use tailrope_core::Ms;
use tailrope_core::store::contract::{Caller, Log, check, check_retention, check_settle, check_size};
use tailrope_core::store::{Append, EventStore, Limits, MemoryStore, ReadLimit, SessionRecord, StoreError, Usage};
use tailrope_core::stream::Paced;

/// What the store counts for a log and for an event besides their bytes.
// With the nine bytes that the caller opens a log with.
const LOG: u64 = 384 + 9;
const EVENT: u64 = 56;

fn store(limits: Limits) -> MemoryStore {
    MemoryStore::new(limits)
}

#[test]
fn the_memory_store_keeps_the_contract() {
    check(&|| Arc::new(MemoryStore::new(Limits::default())));
}

#[test]
fn i6_the_memory_store_keeps_a_log_for_as_long_as_its_pace_says() {
    let make = |retention_ms| -> Arc<dyn EventStore> { Arc::new(store(Limits { retention_ms, ..Limits::default() })) };
    check_retention(&make, &|store, ms| {
        store.sweep(Ms(ms));
    });
}

#[test]
#[cfg(feature = "testing")]
fn the_threaded_store_of_hosts_keeps_the_contract() {
    use tailrope_core::store::StoreOptions;
    use tailrope_stores::open;

    for address in ["test-threaded:", "test-threaded:?delay_ms=1"] {
        check(&|| open(address, &StoreOptions::default()).unwrap());
    }
    assert!(open("test-threaded:?delay_ms=x", &StoreOptions::default()).is_err());
}

#[test]
fn usage_is_counted_exactly() {
    let store = store(Limits::default());
    let caller = Caller::new(&store, Ms(0));
    assert_eq!(store.usage().bytes, 0);
    let mut log = caller.open("s", 1);
    assert_eq!(store.usage().bytes, LOG);
    caller.push(&mut log, &[sized(100), sized(0)]);
    assert_eq!(store.usage().bytes, LOG + 100 + 2 * EVENT);
    caller.finish(&log, b"1234").expect("it is ended");
    assert_eq!(store.usage().bytes, LOG + 100 + 2 * EVENT + 4);
    store.drop_stream(&log.key, caller.epoch);
    assert_eq!(store.usage(), Usage { sessions: 1, ..Usage::default() });
}

#[test]
fn a_stream_keeps_its_newest_events() {
    let store = store(Limits { max_events_per_stream: 5, ..Limits::default() });
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    for _ in 0..12 {
        caller.push(&mut log, &[sized(10)]);
    }
    assert_eq!(positions(&caller, &log, 0), [8, 9, 10, 11, 12]);
    assert_eq!(caller.log(&log).map(|log| (log.page.page.low, log.page.page.head)), Some((8, 12)));
    assert_eq!((store.usage().events, store.usage().trimmed), (5, 7));
    // The position before the first one left still has a tag; the ones before it have none.
    let tag_at = |after| caller.read(&log, after, ReadLimit { up_to: 12, events: 1, bytes: 1 }).unwrap().page.tag_at;
    assert!(tag_at(7).is_some() && tag_at(12).is_some());
    assert_eq!((tag_at(6), tag_at(0)), (None, None));
}

#[test]
fn a_batch_larger_than_the_bound_leaves_its_end() {
    let store = store(Limits { max_events_per_stream: 3, ..Limits::default() });
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(1), sized(1), sized(1), sized(1), sized(1)]);
    assert_eq!(positions(&caller, &log, 0), [3, 4, 5]);
}

#[test]
fn a_stream_keeps_its_bytes_and_its_newest_event_whatever_its_size() {
    let max = 1_000;
    let store = store(Limits { max_bytes_per_stream: max, ..Limits::default() });
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    for _ in 0..50 {
        caller.push(&mut log, &[sized(100)]);
        assert!(store.usage().bytes <= max as u64);
    }
    assert!(store.usage().events >= 3);
    caller.push(&mut log, &[sized(5_000)]);
    assert_eq!(positions(&caller, &log, 0), [51]);
    caller.push(&mut log, &[sized(10)]);
    assert_eq!(positions(&caller, &log, 0), [52]);
}

#[test]
fn an_event_that_is_too_large_is_refused_and_named() {
    check_size(&store(Limits { max_event_bytes: 100, ..Limits::default() }));
}

#[test]
fn old_events_go_when_the_stream_is_written_again() {
    let store = store(Limits { max_age_ms: 60_000, ..Limits::default() });
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(1), sized(1)]);
    caller.at(Ms(30_000)).push(&mut log, &[sized(1)]);
    assert_eq!(store.usage().events, 3);
    caller.at(Ms(62_000)).push(&mut log, &[sized(1)]);
    assert_eq!(positions(&caller, &log, 0), [3, 4]);
    caller.at(Ms(900_000)).push(&mut log, &[sized(1)]);
    assert_eq!(positions(&caller, &log, 0), [5], "the newest always stays");
}

#[test]
fn o20_an_unanswered_question_outlives_the_events_around_it() {
    let store = store(Limits { max_events_per_stream: 4, ..Limits::default() });
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[sized(1), question(), sized(1), question()]);
    store.settle(&log.key, caller.epoch, 4);
    for _ in 0..6 {
        caller.push(&mut log, &[sized(1)]);
    }
    assert_eq!(positions(&caller, &log, 0), [2, 8, 9, 10]);
    assert_eq!(caller.log(&log).map(|log| log.page.page.low), Some(8));
    assert_eq!(positions(&caller, &log, 2), [8, 9, 10]);
    store.settle(&log.key, caller.epoch, 2);
    assert_eq!(positions(&caller, &log, 0), [8, 9, 10], "answered, it goes");
    assert_eq!(store.usage().bytes, LOG + 3 * (EVENT + 1));
}

#[test]
fn o20_a_question_is_answered_for_its_owner_alone() {
    check_settle(&store(Limits { max_events_per_stream: 4, ..Limits::default() }));
}

#[test]
fn a_page_that_ends_at_a_pinned_event_is_continued_at_the_next_one() {
    let store = store(Limits { max_events_per_stream: 5, ..Limits::default() });
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[question(), sized(1), question(), sized(1), sized(1)]);
    caller.push(&mut log, &[sized(1), sized(1), sized(1)]);
    let page = |after| {
        let page = caller.read(&log, after, ReadLimit { up_to: 8, events: 1, bytes: 1 << 20 }).unwrap().page;
        page.events.iter().map(|event| event.seq).collect::<Vec<_>>()
    };
    assert_eq!([page(0), page(1), page(3), page(6)], [vec![1], vec![3], vec![6], vec![7]]);
}

#[test]
fn questions_that_nobody_answers_yield_last_but_they_do_yield() {
    let max = 2_000;
    let store = store(Limits { max_bytes_per_stream: max, ..Limits::default() });
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    for _ in 0..200 {
        caller.push(&mut log, &[question()]);
        assert!(store.usage().bytes <= max as u64, "{:?}", store.usage());
    }
    let kept = positions(&caller, &log, 0);
    assert!(kept.len() > 10 && *kept.last().unwrap() == 200, "the newest are kept: {kept:?}");
    caller.push(&mut log, &[sized(1_500)]);
    assert!(store.usage().bytes <= max as u64);
    assert_eq!(*positions(&caller, &log, 0).last().unwrap(), 201);
}

#[test]
fn a_session_over_its_bytes_gives_up_its_oldest_finished_streams_first() {
    let max = 8_000;
    let store = store(Limits { max_bytes_per_session: max, ..Limits::default() });
    let caller = Caller::new(&store, Ms(0));
    let mut running = caller.open("s", 0);
    caller.push(&mut running, &[sized(500), sized(500)]);
    let finished: Vec<Log> = (1..=8)
        .map(|number| {
            let mut log = caller.open("s", number);
            caller.at(Ms(number)).push(&mut log, &[sized(400), terminal()]);
            log
        })
        .collect();
    let mut other = caller.open("t", 99);
    caller.push(&mut other, &[sized(5_000)]);
    caller.push(&mut running, &[sized(1_000)]);
    let kept: Vec<bool> = finished.iter().map(|log| caller.log(log).is_some()).collect();
    assert!(kept.is_sorted() && !kept[0] && kept[7], "the oldest finished go first: {kept:?}");
    assert_eq!(positions(&caller, &running, 0), [1, 2, 3], "the running stream is whole");
    assert_eq!(positions(&caller, &other, 0), [1], "another session is not concerned");
    for number in 10..20 {
        caller.open("s", number);
        assert!(store.usage().bytes <= max as u64 + LOG + EVENT + 5_000, "logs without events count, too");
    }
}

#[test]
fn a_session_of_running_streams_gives_up_the_oldest_events_of_the_largest() {
    let max = 20_000;
    let store = store(Limits { max_bytes_per_session: max, ..Limits::default() });
    let caller = Caller::new(&store, Ms(0));
    let mut large = caller.open("s", 1);
    for _ in 0..100 {
        caller.push(&mut large, &[sized(100)]);
    }
    let mut small = caller.open("s", 2);
    for _ in 0..40 {
        caller.push(&mut small, &[sized(100)]);
        assert!(store.usage().bytes <= max as u64);
    }
    assert_eq!(positions(&caller, &small, 0), (1..=40).collect::<Vec<_>>(), "the small one is whole");
    let kept = positions(&caller, &large, 0);
    assert!(kept.len() < 100 && *kept.last().unwrap() == 100 && kept.windows(2).all(|pair| pair[1] == pair[0] + 1));
}

#[test]
fn the_store_over_its_bytes_gives_up_what_finished_first_in_any_session() {
    let max = 30_000;
    let store = store(Limits { max_bytes: max, ..Limits::default() });
    let caller = Caller::new(&store, Ms(0));
    let logs: Vec<Log> = (0..60)
        .map(|number| {
            let mut log = caller.open(&format!("session {number}"), number);
            caller.at(Ms(number / 10)).push(&mut log, &[sized(400), terminal()]);
            assert!(store.usage().bytes <= max as u64);
            log
        })
        .collect();
    let kept: Vec<bool> = logs.iter().map(|log| caller.log(log).is_some()).collect();
    assert!(kept.is_sorted(), "the oldest finished go first, also within a millisecond: {kept:?}");
    assert!(kept.iter().filter(|kept| **kept).count() >= 30, "and no more of them than needed");
    let mut running = caller.open("running", 100);
    for _ in 0..200 {
        caller.push(&mut running, &[sized(100)]);
        assert!(store.usage().bytes <= max as u64);
    }
    assert!(positions(&caller, &running, 0).len() > 100);
}

#[test]
fn an_unfinished_stream_without_events_counts_too() {
    let store = store(Limits { max_bytes: 100 * 500, ..Limits::default() });
    let caller = Caller::new(&store, Ms(0));
    for number in 0..1_000 {
        let log = caller.open(&format!("session {number}"), number);
        caller.at(Ms(number)).finish(&log, b"cancelled").expect("it is ended");
    }
    assert!(store.usage().bytes <= 100 * 500 && store.usage().streams <= 130, "{:?}", store.usage());
}

#[test]
fn i11_the_bound_of_the_store_is_kept_and_what_finds_no_room_is_refused() {
    let max = 100_000;
    let store = store(Limits { max_bytes: max, ..Limits::default() });
    let caller = Caller::new(&store, Ms(0));
    let (mut logs, mut refused) = (Vec::new(), None);
    for number in 0..1_000 {
        let mut log = Log::new(&format!("session {number}"), number);
        caller.hold(&log.key.session, SessionRecord::default());
        if let Err(error) = caller.append(&log, 1, &[sized(100)]) {
            refused = Some(error);
            break;
        }
        log.events.push(sized(100));
        logs.push(log);
        assert!(store.usage().bytes <= max as u64, "{:?}", store.usage());
    }
    assert_eq!(refused, Some(StoreError::Full { max }), "each stream has its newest event, which stays");
    assert!(logs.len() > 150, "{}", logs.len());
    caller.hold("short", SessionRecord::default());
    // An end needs no room, whether its log is there or not, and neither does what is there already.
    assert_eq!(caller.finish(&Log::new("short", 0), b"end"), Ok(()));
    let again = Append { paced: Some(Paced { retry_ms: Some(7), ..Paced::default() }), ..logs[1].append(2, &[]) };
    assert_eq!((caller.write(&logs[1], &again), caller.append(&logs[2], 1, &[])), (Ok(()), Ok(())));
    assert!(store.usage().bytes <= max as u64);
    // A stream that ends makes room.
    caller.finish(&logs[0], b"").expect("it is ended");
    assert_eq!(caller.append(&Log::new("short", 1), 1, &[sized(20)]), Ok(()));
    assert!(store.usage().bytes <= max as u64);
}

#[test]
fn a_full_store_gives_up_the_oldest_events_and_some_more_at_once() {
    let max = 1_000_000;
    let store = store(Limits { max_bytes: max, ..Limits::default() });
    let caller = Caller::new(&store, Ms(0));
    let mut logs: Vec<Log> = (0..20).map(|number| caller.open(&format!("session {number}"), number)).collect();
    let mut trims = 0;
    for second in 0..1_000_u64 {
        let before = store.usage().trimmed;
        let log = &mut logs[usize::try_from(second % 20).unwrap()];
        caller.at(Ms(second * 1_000)).push(log, &[sized(2_000)]);
        trims += u64::from(store.usage().trimmed > before);
        assert!(store.usage().bytes <= max as u64);
    }
    assert!(trims < 40, "the logs were looked through {trims} times for 1,000 events");
    for log in &logs {
        let kept = positions(&caller, log, 0);
        assert!(kept.len() > 10 && kept.last() == Some(&50), "old events of each went: {kept:?}");
    }
}

#[test]
fn retention_ends_some_time_after_the_terminal() {
    let store = store(Limits { retention_ms: 1_000, ..Limits::default() });
    let caller = Caller::new(&store, Ms(0));
    let mut early = caller.open("s", 1);
    let mut late = caller.open("s", 2);
    let mut running = caller.open("t", 3);
    let cancelled = caller.open("u", 4);
    caller.push(&mut running, &[sized(1)]);
    caller.at(Ms(100)).push(&mut early, &[terminal()]);
    caller.at(Ms(150)).finish(&cancelled, b"").expect("it is ended");
    caller.at(Ms(400)).push(&mut late, &[terminal()]);
    assert_eq!(store.sweep(Ms(1_099)), Ms(1_100), "it says when to come back");
    assert!(caller.log(&early).is_some());
    assert_eq!(store.sweep(Ms(1_100)), Ms(1_150));
    assert!(caller.log(&early).is_none() && caller.log(&cancelled).is_some());
    assert_eq!(store.sweep(Ms(5_000)), Ms::NEVER);
    assert!(caller.log(&late).is_none() && caller.log(&running).is_some(), "a running stream stays");
    assert_eq!((store.usage().sessions, store.usage().streams), (3, 1), "a session stays until it is dropped");
}

#[test]
fn a_dropped_session_leaves_nothing_to_sweep() {
    let store = store(Limits { retention_ms: 1_000, ..Limits::default() });
    let caller = Caller::new(&store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[terminal()]);
    store.drop_session("s", caller.epoch);
    assert_eq!(store.sweep(Ms(0)), Ms::NEVER, "F-54: no entry waits for retention");
    assert_eq!(store.usage(), Usage::default());
}

#[test]
fn concurrent_writers_over_the_bounds_neither_lose_count_nor_order() {
    let max = 200_000;
    let store =
        store(Limits { max_bytes: max, max_bytes_per_session: 60_000, max_events_per_stream: 50, ..Limits::default() });
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let store = &store;
            scope.spawn(move || {
                let caller = Caller::new(store, Ms(0));
                for round in 0..30 {
                    let session = format!("session {}", (thread + round) % 5);
                    let mut log = caller.open(&session, thread * 1_000 + round);
                    for _ in 0..60 {
                        caller.push(&mut log, &[sized(100)]);
                    }
                    let kept = positions(&caller, &log, 0);
                    assert!(kept.windows(2).all(|pair| pair[1] == pair[0] + 1) && kept.last() == Some(&60));
                    match round % 3 {
                        0 => caller.push(&mut log, &[terminal()]),
                        1 => caller.finish(&log, b"end").expect("it is ended"),
                        _ => store.drop_stream(&log.key, caller.epoch),
                    }
                }
            });
        }
    });
    assert!(store.usage().bytes <= max as u64, "{:?}", store.usage());
    for session in 0..5 {
        store.drop_session(&format!("session {session}"), Caller::new(&store, Ms(0)).epoch);
    }
    let left = store.usage();
    assert_eq!((left.bytes, left.events, left.streams, left.sessions), (0, 0, 0, 0), "every byte is accounted for");
}
