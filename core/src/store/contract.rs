//! Puts any store through the rules that are written on [`EventStore`].
//!
//! For the tests of stores: [`check`] panics with the number of the rule that is broken.

mod caller;
mod inbox;
mod logs;
mod owners;
mod released;
mod retention;
mod shared;

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

pub use caller::{Caller, Event, Log, progress};
use inbox::RULE_14;
pub use logs::check_size;
use owners::RULE_12;
pub use owners::check_settle;
pub use released::check_released;
pub use retention::check_retention;
pub use shared::check_shared;

use super::{
    Append, Attach, Attached, AttachedLog, Epoch, EventStore, Hold, LogPage, MAX_NOTE_BYTES, ReadLimit, SessionRecord,
    StoreError, Usage,
};
use crate::Ms;
use crate::protocol::{ListChanged, Revision};
use crate::stream::{EventKind, Paced, Page, Seq};

/// Checks every rule on fresh stores. `make` gives an empty one that takes at least 4,000 events of
/// 100 bytes in a stream, and 20,000 in all, without trimming any.
///
/// # Panics
/// When the store breaks a rule.
pub fn check(make: &(dyn Fn() -> Arc<dyn EventStore> + Sync)) {
    const RULES: &[fn(&dyn EventStore)] = &[
        logs::rule_1_a_log_is_named_by_session_and_stream,
        logs::rule_2_positions_are_dense_and_a_repeated_append_changes_nothing,
        logs::rule_2_one_append_creates_adds_and_ends,
        logs::rule_2_concurrent_appends_to_many_streams_all_count,
        logs::rule_3_an_event_is_readable_when_it_is_stored,
        logs::rule_4_events_come_back_in_order_byte_for_byte,
        logs::rule_4_pages_keep_their_bounds,
        logs::rule_5_nothing_is_trimmed_below_the_bounds,
        logs::rule_6_a_finished_log_stays_readable_and_takes_nothing,
        logs::rule_7_a_refused_append_changes_nothing,
        logs::rule_8_dropping_frees_everything,
        rule_9_streams_do_not_wait_for_each_other,
        rule_11_what_has_no_answer_is_done_before_what_follows,
        rule_12_a_session_is_known_from_its_first_hold_until_it_is_dropped,
    ];
    let both = || {
        let store = make();
        (Arc::clone(&store), store)
    };
    let alone = RULES.iter().map(|rule| -> Check<'_> { Box::new(|| rule(&*make())) });
    at_once(alone.chain(between(&both, RULE_12)).chain(between(&both, RULE_14)));
}

/// A rule on the store objects of two processes, or of an owner and the next one. Both may be one object.
type BetweenTwo = fn(&dyn EventStore, &dyn EventStore);

/// One rule on a place of its own, without anything in it.
type Check<'a> = Box<dyn FnOnce() + Send + 'a>;

fn between<'a>(
    make: &'a (dyn Fn() -> (Arc<dyn EventStore>, Arc<dyn EventStore>) + Sync),
    rules: &'static [BetweenTwo],
) -> impl Iterator<Item = Check<'a>> {
    rules.iter().map(move |rule| -> Check<'a> {
        Box::new(move || {
            let (a, b) = make();
            rule(&*a, &*b);
        })
    })
}

/// Runs some checks at a time: most of them wait for their store most of their time.
fn at_once<'a>(checks: impl Iterator<Item = Check<'a>>) {
    const THREADS: usize = 4;
    let checks = Mutex::new(checks.collect::<Vec<_>>().into_iter());
    let next = || checks.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        let run = || {
            while let Some(check) = next() {
                check();
            }
        };
        for thread in [(); THREADS].map(|()| scope.spawn(run)) {
            if let Err(panic) = thread.join() {
                // What has not begun does not matter any more.
                while next().is_some() {}
                std::panic::resume_unwind(panic);
            }
        }
    });
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
                    let late = caller.append(&log, log.head() + 2, &[progress("late")]);
                    assert_eq!(late, Err(StoreError::RolledBack), "rule 9: and what one is refused harms no other");
                    let read = caller.read_all(&log, log.head() - 1);
                    assert_eq!(read.len(), 1, "rule 9");
                    store.usage();
                    store.sweep(Ms(round));
                    store.settle(&log.key, caller.epoch, round);
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
        assert_eq!(caller.finish(&log, b"end"), Ok(()), "rule 11");
        store.drop_stream(&log.key, caller.epoch);
        assert_eq!(caller.read(&log, 0, ReadLimit { up_to: 1, events: 1, bytes: 1 }), Err(StoreError::Gone), "rule 11");
        let again = caller.open("s", number);
        again.assert_stored(&caller, 0, "rule 11: a log that was dropped begins anew");
        store.drop_session("s", caller.epoch);
        assert!(caller.log(&log).is_none(), "rule 11");
        assert_eq!(caller.attach("", &Attach::default()), Attached::default(), "rule 11: nobody has the empty name");
    }
}

fn rule_12_a_session_is_known_from_its_first_hold_until_it_is_dropped(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(1_000));
    assert_eq!(caller.session("s", None), None, "rule 12: nobody said anything of it");
    let log = Log::new("s", 1);
    let list_changed = ListChanged { tools: true, prompts: false, resources: true };
    let alice = SessionRecord {
        revision: Some(Revision::V2025_11_25),
        principal: Some("alice \u{fc}\0".into()),
        retry_ms: 700,
        list_changed,
        standalone: Some(log.key.nonce),
        note: (0..MAX_NOTE_BYTES).map(|at| (at % 251) as u8).collect(),
    };
    let nobody = SessionRecord::default();
    let unchanged = Hold { epoch: caller.epoch, seen: None, record: None };
    let heir = Hold { epoch: Epoch { number: 2, salt: 8 }, seen: Some(caller.epoch), record: Some(nobody.clone()) };
    for hold in [&unchanged, &heir] {
        assert_eq!(caller.try_hold("s", hold), Err(StoreError::Gone), "rule 12: {hold:?} begins nothing");
    }
    assert_eq!(caller.append(&log, 1, &[]), Err(StoreError::Gone), "rule 12: a log needs its session");
    assert_eq!(caller.session("s", None), None, "rule 12: what is refused begins nothing");
    for record in [&nobody, &alice] {
        caller.hold("s", record.clone());
        caller.hold("t", record.clone());
    }
    caller.open_as(&log);
    caller.hold("t", nobody.clone());
    // A principal is compared, and need not be told: a store may keep what stands for it.
    let told = |record: SessionRecord| SessionRecord { principal: None, ..record };
    let known = |session, record: &SessionRecord| caller.session(session, record.principal.as_deref()).map(told);
    for session in ["s", "t"] {
        assert_eq!(caller.try_hold(session, &unchanged), Ok(Vec::new()), "rule 12: its own epoch replaces none");
    }
    assert_eq!((known("s", &alice), known("t", &nobody)), (Some(told(alice.clone())), Some(nobody.clone())), "rule 12");
    assert_eq!(known("", &nobody), None, "rule 12: no session stands for another");
    log.assert_stored(&caller, 0, "rule 12: a record changes nothing else");
    store.drop_session("s", caller.epoch);
    assert_eq!((known("s", &alice), known("t", &nobody)), (None, Some(nobody.clone())), "rule 12 (F-54)");
    assert_eq!(caller.read(&log, 0, ReadLimit::default()), Err(StoreError::Gone), "rule 12: its logs go with it");
    store.drop_session("t", caller.epoch);
    assert_eq!(known("t", &nobody), None, "rule 12: a session without logs goes, too");
}

fn terminal() -> Event {
    (EventKind::Terminal, Bytes::from_static(b"end"))
}

fn is_answered(events: &[Event]) -> bool {
    events.last().is_some_and(|(kind, _)| *kind == EventKind::Terminal)
}
