//! Rules 1 to 8: what a log takes, keeps and gives back.

use super::*;

/// What an owner says of the pace of a stream.
fn paced() -> Option<Paced> {
    Some(Paced {
        retry_ms: Some(700),
        hold_ms: Some(u64::from(u32::MAX) + 1),
        max_connection_ms: Some(0),
        max_connection_bytes: Some(1 << 40),
        retention_ms: Some(600_000),
        closes: 3,
        closed_at: 1,
    })
}

/// That it names this delay, and nothing else.
pub(super) fn retry_after(retry_ms: u32) -> Option<Paced> {
    Some(Paced { retry_ms: Some(retry_ms), ..Paced::default() })
}

pub(super) fn rule_1_a_log_is_named_by_session_and_stream(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut logs: Vec<Log> = Vec::new();
    for session in ["s", "s2", "S", " "] {
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
    assert!(caller.log(&never_opened).is_none(), "rule 1: what was not opened is not there");
    assert_eq!(caller.read(&never_opened, 0, everything), Err(StoreError::Gone), "rule 1");
    assert_eq!(caller.append(&never_opened, 2, &[progress("x")]), Err(StoreError::Gone), "rule 1");
}

pub(super) fn rule_2_positions_are_dense_and_a_repeated_append_changes_nothing(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut log = caller.open("s", 1);
    let batch = [progress("a"), progress("b"), progress("c")];
    assert_eq!(caller.append(&log, 2, &batch), Err(StoreError::RolledBack), "rule 2: position 1 was never stored");
    caller.push(&mut log, &batch);
    let holds = |usage: &Usage, events| (usage.sessions, usage.streams, usage.events) == (1, 1, events);
    caller.assert_usage("rule 2", |usage| holds(usage, 3));
    let before = store.usage();
    assert_eq!(caller.append(&log, 1, &batch), Ok(()), "rule 2: the same batch again is a success");
    caller.assert_usage("rule 2: and changes nothing", |usage| *usage == before);
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
    log.assert_stored(&caller, 0, "rule 2");
    // Where the count lags behind, it did not yet show above what the repeated append did.
    caller.assert_usage("rule 2", |usage| holds(usage, 4));
}

pub(super) fn rule_2_one_append_creates_adds_and_ends(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    caller.hold("s", SessionRecord::default());
    let question = (EventKind::Question, Bytes::from_static(b"q"));
    let (mut streams, mut events) = (0, 0);
    for added in [vec![], vec![progress("a"), question], vec![progress("a"), terminal()]] {
        let ends = [None, Some(Bytes::from_static(b"tail"))];
        for end in ends.into_iter().filter(|end| end.is_none() || !is_answered(&added)) {
            for (paced, is_new) in [(None, true), (paced(), true), (None, false), (paced(), false)] {
                // What of it is there before: nothing, the log, its events.
                let parts = [None, Some(&added[..0]), Some(&added[..])];
                for before in parts.into_iter().filter(|part| !part.is_some_and(is_answered)) {
                    let mut log = Log::new("s", streams);
                    if !is_new {
                        caller.push(&mut log, &[progress("before")]);
                    }
                    let first = log.head() + 1;
                    if let Some(before) = before {
                        assert_eq!(caller.append(&log, first, before), Ok(()), "rule 2");
                    }
                    let append = Append { end: end.clone(), paced, ..log.append(first, &added) };
                    log.events.extend_from_slice(&added);
                    let tag_at = Some(log.chain_at(0).tag());
                    let page = LogPage {
                        page: Page { events: Vec::new(), head: log.head(), low: 1, tag_at },
                        is_finished: end.is_some() || is_answered(&added),
                        tail: end.clone(),
                        chain: append.chain,
                        paced: paced.unwrap_or_default(),
                        ..LogPage::default()
                    };
                    let want = AttachedLog { about: log.about(), page };
                    // The same append again changes nothing; a log keeps what it was created with.
                    for about in [log.about(), Bytes::from_static(b"again")] {
                        let append = Append { about, ..append.clone() };
                        assert_eq!(caller.write(&log, &append), Ok(()), "rule 2: {append:?} after {before:?}");
                        assert_eq!(caller.log(&log).as_ref(), Some(&want), "rule 2: {append:?} after {before:?}");
                    }
                    log.assert_stored(&caller, 0, "rule 2");
                    (streams, events) = (streams + 1, events + log.head());
                }
            }
        }
    }
    caller.assert_usage("rule 2", |usage| (usage.streams, usage.events) == (streams, events));
    // What was told last counts, also with other things to write.
    let mut log = caller.open("t", 0);
    for paced in [retry_after(5), None, retry_after(6), None] {
        let events = [progress("a")];
        let append = Append { paced, ..log.append(log.head() + 1, &events) };
        assert_eq!(caller.write(&log, &append), Ok(()), "rule 2");
        log.events.extend(events);
        let want = if log.head() < 3 { 5 } else { 6 };
        assert_eq!(caller.log(&log).and_then(|log| log.page.paced.retry_ms), Some(want), "rule 2");
    }
    // What comes without events has no position: it may come after events that the store lost.
    for (first, end) in [(1, None), (4, None), (9, None), (9, Some(Bytes::from_static(b"end")))] {
        let (chain, is_finished) = (first, end.is_some());
        let append = Append { end, paced: retry_after(7), chain_before: chain, chain, ..log.append(first, &[]) };
        assert_eq!(caller.write(&log, &append), Ok(()), "rule 2: {append:?}");
        log.assert_stored(&caller, 0, "rule 2");
        let told = caller.log(&log).map(|log| (log.page.paced.retry_ms, log.page.is_finished));
        assert_eq!(told, Some((Some(7), is_finished)), "rule 2: {append:?}");
    }
}

pub(super) fn rule_2_concurrent_appends_to_many_streams_all_count(store: &dyn EventStore) {
    const THREADS: u64 = 8;
    const STREAMS: u64 = 5;
    const EVENTS: u64 = 50;
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

pub(super) fn rule_3_an_event_is_readable_when_it_is_stored(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut log = caller.open("s", 1);
    log.assert_stored(&caller, 0, "rule 3");
    for number in 0..50 {
        caller.push(&mut log, &[progress(&format!("event {number}"))]);
        log.assert_stored(&caller, log.head() - 1, "rule 3");
    }
}

pub(super) fn rule_4_events_come_back_in_order_byte_for_byte(store: &dyn EventStore) {
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

pub(super) fn rule_4_pages_keep_their_bounds(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut log = caller.open("s", 1);
    let events: Vec<Event> = (0..20).map(|_| progress(&"x".repeat(100))).collect();
    caller.push(&mut log, &events);
    let page = |after, up_to, events, bytes| {
        let page = caller.read(&log, after, ReadLimit { up_to, events, bytes }).expect("the log is readable").page;
        assert_eq!((page.head, page.low), (20, 1), "rule 4: head and low do not depend on the bounds");
        page.events.iter().map(|event| event.seq).collect::<Vec<_>>()
    };
    assert_eq!(page(0, 20, 3, 1 << 20), [1, 2, 3], "rule 4: events");
    assert_eq!(page(5, 7, 100, 1 << 20), [6, 7], "rule 4: last position");
    // A store may count what it adds to a frame.
    let by_bytes = page(0, 20, 100, 350);
    assert!(!by_bytes.is_empty() && [1, 2, 3].starts_with(&by_bytes), "rule 4: bytes: {by_bytes:?}");
    assert_eq!(page(4, 20, 100, 1), [5], "rule 4: at least one event");
    assert_eq!(page(0, 20, 0, 1 << 20), [0; 0], "rule 4: none are wanted");
    assert_eq!(page(20, 20, 100, 1 << 20), [0; 0], "rule 4: nothing is after the head");
    assert_eq!(page(7, 7, 100, 1 << 20), [0; 0], "rule 4: an empty range");
    assert_eq!(page(25, 40, 100, 1 << 20), [0; 0], "rule 4: beyond the head");
    let tag_at = |after| {
        let limit = ReadLimit { up_to: 20, events: 1, bytes: 1 };
        caller.read(&log, after, limit).expect("the log is readable").page.tag_at
    };
    for after in 0..=20 {
        assert_eq!(tag_at(after), Some(log.chain_at(after).tag()), "rule 4: the tag at {after}");
    }
    assert_eq!(tag_at(21), None, "rule 4: nothing has a tag beyond the head");
}

pub(super) fn rule_5_nothing_is_trimmed_below_the_bounds(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut log = caller.open("s", 1);
    for _ in 0..40 {
        let events: Vec<Event> = (0..100).map(|_| progress(&"x".repeat(100))).collect();
        caller.push(&mut log, &events);
    }
    let mut question = (EventKind::Question, Bytes::from_static(b"question"));
    caller.push(&mut log, std::slice::from_ref(&question));
    let asked = log.head();
    store.settle(&log.key, caller.epoch, asked);
    store.settle(&log.key, caller.epoch, asked + 7);
    store.settle(&log.key, caller.epoch, 1);
    log.assert_stored(&caller, 0, "rule 5: an answered question is still readable");
    question.0 = EventKind::Terminal;
    caller.push(&mut log, &[question]);
    log.assert_stored(&caller, 0, "rule 5");
    assert_eq!(store.usage().trimmed, 0, "rule 5");
}

pub(super) fn rule_6_a_finished_log_stays_readable_and_takes_nothing(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    for (number, end) in (0..).zip([None, Some(Bytes::from_static(b"cancelled"))]) {
        let mut log = caller.open("s", number);
        caller.push(&mut log, &[progress("a")]);
        match &end {
            None => caller.push(&mut log, &[terminal()]),
            Some(end) => {
                // Which end comes with events that are there already is not asked again.
                for end in [end.clone(), Bytes::from_static(b"another")] {
                    let append = Append { end: Some(end), ..log.append(1, &log.events) };
                    assert_eq!(caller.write(&log, &append), Ok(()), "rule 6: {append:?}");
                }
            }
        }
        let Some(ended) = caller.log(&log) else { panic!("rule 6: a finished log is there") };
        let page = &ended.page;
        assert_eq!((page.is_finished, &page.tail, page.page.head), (true, &end, log.head()), "rule 6");
        let another = |append| Append { end: Some(Bytes::from_static(b"another")), paced: retry_after(7), ..append };
        let delayed = |append| Append { paced: retry_after(7), ..append };
        let next = log.head() + 1;
        for (append, answer) in [
            (delayed(log.append(1, &log.events)), Ok(())),
            (delayed(log.append(next, &[])), Ok(())),
            (another(log.append(next, &[])), Ok(())),
            (another(log.append(next, &[progress("late")])), Err(StoreError::Gone)),
            (log.append(next, &[terminal()]), Err(StoreError::Gone)),
            (another(log.append(1, &[])), Ok(())),
        ] {
            assert_eq!(caller.write(&log, &append), answer, "rule 6: {append:?}");
            assert_eq!(caller.log(&log).as_ref(), Some(&ended), "rule 6: the first end wins (I13): {append:?}");
        }
        store.sweep(Ms(1));
        log.assert_stored(&caller, 0, "rule 6");
    }
}

pub(super) fn rule_7_a_refused_append_changes_nothing(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[progress("a"), progress("b")]);
    let mut other = log.clone();
    other.events[1] = progress("not b");
    let mut absent = Log::new("s", 2);
    let late = [progress("late")];
    for (log, append, error) in [
        (&log, log.append(1, &late), StoreError::OutOfOrder),
        (&log, log.append(1, &log.events[..1]), StoreError::OutOfOrder),
        (&log, other.append(1, &other.events), StoreError::OutOfOrder),
        (&log, other.append(3, &late), StoreError::RolledBack),
        (&log, log.append(4, &late), StoreError::RolledBack),
        (&absent, absent.append(2, &[]), StoreError::Gone),
        (&absent, absent.append(2, &late), StoreError::Gone),
    ] {
        let before = caller.log(log);
        let append = Append { end: Some(Bytes::from_static(b"end")), paced: retry_after(7), ..append };
        assert_eq!(caller.write(log, &append), Err(error), "rule 7: {append:?}");
        assert_eq!(caller.log(log), before, "rule 7: {append:?}");
    }
    caller.assert_usage("rule 7", |usage| (usage.sessions, usage.streams, usage.events) == (1, 1, 2));
    caller.push(&mut log, &late);
    caller.push(&mut absent, &late);
    for log in [&log, &absent] {
        log.assert_stored(&caller, 0, "rule 7");
    }
}

/// Checks that a store that takes events of 100 bytes refuses a larger one, and all that is asked with it.
///
/// # Panics
/// When it does not.
pub fn check_size(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let sized = |bytes| progress(&"x".repeat(bytes));
    caller.hold("s", SessionRecord::default());
    let mut log = Log::new("s", 1);
    for (first, earlier) in [(1, None), (2, Some(sized(100)))] {
        if let Some(event) = earlier {
            caller.push(&mut log, &[event]);
        }
        let before = caller.log(&log);
        let end = Some(Bytes::from_static(b"end"));
        let append = Append { end, paced: retry_after(7), ..log.append(first, &[sized(10), sized(101)]) };
        assert_eq!(caller.write(&log, &append), Err(StoreError::TooLarge { bytes: 101, max: 100 }), "rule 7");
        assert_eq!(caller.log(&log), before, "rule 7");
    }
}

pub(super) fn rule_8_dropping_frees_everything(store: &dyn EventStore) {
    let empty = store.usage();
    let caller = Caller::new(store, Ms(0));
    let mut logs: Vec<Log> = (0..6).map(|number| caller.open(["s", "t"][usize::from(number > 3)], number)).collect();
    for log in &mut logs {
        caller.push(log, &[progress("a"), (EventKind::Question, Bytes::from_static(b"q"))]);
    }
    caller.push(&mut logs[0], &[terminal()]);
    assert_eq!(caller.finish(&logs[1], b"tail"), Ok(()), "rule 8");
    store.drop_stream(&logs[2].key, caller.epoch);
    store.drop_stream(&logs[2].key, caller.epoch);
    assert!(caller.log(&logs[2]).is_none(), "rule 8");
    caller.assert_usage("rule 8", |usage| (usage.sessions, usage.streams, usage.events) == (2, 5, 11));
    store.drop_session("s", caller.epoch);
    store.drop_session("s", caller.epoch);
    store.drop_session("never there", caller.epoch);
    for log in &logs[..4] {
        assert!(caller.log(log).is_none(), "rule 8 (F-54)");
        for first in [1, log.head() + 1] {
            assert_eq!(caller.append(log, first, &[progress("late")]), Err(StoreError::Gone), "rule 8");
        }
    }
    logs[4].assert_stored(&caller, 0, "rule 8: another session keeps its own");
    store.drop_session("t", caller.epoch);
    store.sweep(Ms(u64::MAX / 2));
    caller.assert_usage("rule 8 (F-54): nothing is left", |usage| *usage == Usage { trimmed: usage.trimmed, ..empty });
}
