//! The rules of owners and of readers, on the store objects of an owner and of the next one. Both may be one object.

use std::time::Instant;

use bytes::Bytes;

use super::BetweenTwo;
use super::caller::{Caller, Log, PATIENCE, progress};
use super::logs::retry_after;
use crate::Ms;
use crate::store::{
    Append, Attach, Attached, Epoch, EventStore, Hold, LogPage, Owner, ReadLimit, RunningLog, SessionRecord, StoreError,
};
use crate::stream::{EventKind, Seq};

pub(super) const RULE_12: &[BetweenTwo] = &[
    rule_12_only_the_owner_writes,
    rule_12_a_session_is_taken_over_by_who_saw_its_epoch,
    rule_12_an_owner_of_a_larger_number_than_the_store_has_was_forgotten,
    rule_12_two_that_begin_a_session_or_take_it_over_do_not_both_have_it,
    rule_12_an_heir_knows_what_was_stored_before_and_nothing_is_stored_after,
    rule_12_a_session_that_was_let_go_is_told_as_such,
    rule_12_an_owner_that_takes_stock_changes_nothing,
    nobody_else_finds_a_session,
    a_reader_counts_where_its_log_goes_on,
];

fn alice() -> SessionRecord {
    SessionRecord { principal: Some("alice".into()), note: Bytes::from_static(b"a note"), ..SessionRecord::default() }
}

fn end() -> Option<Bytes> {
    Some(Bytes::from_static(b"end"))
}

/// Two events in a log that has no end.
fn running(caller: &Caller<'_>, session: &str, number: u64) -> Log {
    let mut log = caller.open(session, number);
    caller.push(&mut log, &[progress("a"), (EventKind::Question, Bytes::from_static(b"q"))]);
    log
}

/// What is told of a log without an end.
fn as_running(log: &Log) -> RunningLog {
    RunningLog { nonce: log.key.nonce, head: log.head(), chain: log.chain_at(log.head()).0, about: log.about() }
}

/// Everything that changes a session is refused to this caller, or not done.
fn assert_fenced(store: &dyn EventStore, caller: &Caller<'_>, log: &Log) {
    let (epoch, next, late) = (caller.epoch, log.head() + 1, [progress("late")]);
    let absent = Log::new(&log.key.session, 99);
    for (log, append) in [
        (log, log.append(next, &late)),
        (log, log.append(next, &[])),
        (log, Append { paced: retry_after(7), ..log.append(next, &[]) }),
        (log, Append { end: end(), ..log.append(next, &[]) }),
        (log, Append { end: end(), ..log.append(next, &late) }),
        // What is there already is there for the owner.
        (log, log.append(1, &log.events)),
        (&absent, absent.append(1, &[])),
        (&absent, absent.append(2, &late)),
    ] {
        assert_eq!(caller.write(log, &append), Err(StoreError::Fenced), "rule 12 (O1): {epoch:?} writes {append:?}");
    }
    let earlier = Epoch { number: epoch.number - 1, salt: !epoch.salt };
    for (seen, record) in [(None, None), (None, Some(alice())), (Some(Epoch::default()), None), (Some(earlier), None)] {
        let epoch = if seen == Some(earlier) { Epoch { number: 9, salt: 9 } } else { epoch };
        let hold = Hold { epoch, seen, record };
        assert_eq!(caller.try_hold(&log.key.session, &hold), Err(StoreError::Fenced), "rule 12: {hold:?}");
    }
    store.settle(&log.key, epoch, 2);
    store.drop_stream(&log.key, epoch);
    store.release(&log.key.session, epoch);
    store.drop_session(&log.key.session, epoch);
    assert_eq!(caller.attach("", &Attach::default()), Attached::default(), "rule 11");
}

fn rule_12_only_the_owner_writes(a: &dyn EventStore, b: &dyn EventStore) {
    // Epochs are compared to their last digit.
    let epoch = Epoch { number: u64::MAX >> 11, salt: u64::MAX };
    let owner = Caller::new(a, Ms(0)).with(epoch);
    let mut log = running(&owner, "s", 1);
    let (found, page) = (owner.session("s", None), owner.read(&log, 0, ReadLimit::default()));
    for other in [
        Epoch { salt: epoch.salt - 1, ..epoch },
        Epoch { salt: 0, ..epoch },
        Epoch { number: epoch.number - 1, ..epoch },
        Epoch { number: epoch.number + 1, ..epoch },
    ] {
        for store in [a, b] {
            assert_fenced(store, &Caller::new(store, Ms(0)).with(other), &log);
            let left = (owner.session("s", None), owner.read(&log, 0, ReadLimit::default()));
            assert_eq!(left, (found.clone(), page.clone()), "rule 12: {other:?} changes nothing");
        }
    }
    owner.push(&mut log, &[progress("b")]);
    log.assert_stored(&Caller::new(b, Ms(0)), 0, "rule 12");
}

/// Checks that a store that keeps a few events of a stream keeps a question until its owner says that it was answered.
///
/// # Panics
/// When it does not.
pub fn check_settle(store: &dyn EventStore) {
    let caller = Caller::new(store, Ms(0));
    let mut log = caller.open("s", 1);
    let key = log.key.clone();
    caller.push(&mut log, &[(EventKind::Question, Bytes::from_static(b"q")), progress("a")]);
    let earlier = Epoch { number: caller.epoch.number - 1, ..caller.epoch };
    store.settle(&key, earlier, 1);
    let mut push_until = |rule, is_right: &dyn Fn(&[Seq]) -> bool| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            caller.push(&mut log, &[progress("b")]);
            let kept: Vec<Seq> = caller.read_all(&log, 0).iter().map(|event| event.seq).collect();
            if is_right(&kept) {
                break;
            }
            assert!(Instant::now() < deadline, "{rule}: {kept:?}");
        }
    };
    push_until("rule 5: a question stays", &|kept| kept[0] == 1 && kept[1] > 2);
    store.settle(&key, caller.epoch, 1);
    push_until("rule 5: until it is answered", &|kept| kept[0] > 1);
}

fn rule_12_a_session_is_taken_over_by_who_saw_its_epoch(a: &dyn EventStore, b: &dyn EventStore) {
    let owner = Caller::new(a, Ms(0));
    let mut logs: Vec<Log> = (0..5).map(|number| running(&owner, "s", number)).collect();
    logs.push(owner.open("s", 5));
    let elsewhere = running(&owner, "t", 6);
    owner.hold("s", alice());
    owner.push(&mut logs[0], &[(EventKind::Terminal, Bytes::from_static(b"end"))]);
    assert_eq!(owner.finish(&logs[1], b"end"), Ok(()));
    let mut seen = owner.epoch;
    let mut before = (a, owner.epoch);
    for (store, number) in [b, a, b].into_iter().zip(2..) {
        let heir = Caller::new(store, Ms(0)).with(Epoch { number, salt: u64::MAX - number });
        let stale = Hold { epoch: heir.epoch, seen: Some(Epoch { salt: seen.salt ^ 1, ..seen }), record: None };
        assert_eq!(heir.try_hold("s", &stale), Err(StoreError::Fenced), "rule 12: the epoch that was seen is another");
        let hold = Hold { seen: Some(seen), ..stale };
        let want: Vec<RunningLog> = logs[number as usize..].iter().map(as_running).collect();
        // Who got no answer asks again.
        for _ in 0..2 {
            let mut told = heir.try_hold("s", &hold).expect("rule 12 (O4): it is taken over, and asked for again");
            told.sort_by_key(|log| log.nonce.0);
            assert_eq!(told, want, "rule 12: the logs without an end are told");
        }
        let found = heir.session("s", Some("alice")).map(|record| record.note);
        assert_eq!(found, Some(alice().note), "rule 12: who finds the session is as before, and what");
        let (before_store, before_epoch) = before;
        assert_fenced(before_store, &Caller::new(before_store, Ms(0)).with(before_epoch), &logs[number as usize]);
        assert_eq!(heir.finish(&logs[number as usize], b"lost"), Ok(()), "rule 12: the heir ends them");
        (seen, before) = (heir.epoch, (store, heir.epoch));
    }
    owner.log(&elsewhere).expect("rule 12: another session is another one");
    elsewhere.assert_stored(&Caller::new(b, Ms(0)), 0, "rule 12");
    let ends = logs[..5].iter().map(|log| owner.read(log, 0, ReadLimit::default()).map(|page| page.is_finished));
    assert!(ends.into_iter().all(|is_finished| is_finished == Ok(true)), "rule 12");
    let (_, epoch) = before;
    b.drop_session("s", epoch);
    let last = Caller::new(b, Ms(0)).with(epoch);
    assert_eq!(last.session("s", Some("alice")), None, "rule 12: the heir drops it");
    assert_eq!(owner.append(&logs[5], 1, &[]), Err(StoreError::Gone), "rule 8");
    let again = Hold { epoch: owner.epoch, seen: None, record: Some(alice()) };
    assert_eq!(
        owner.try_hold("s", &again),
        Err(StoreError::Gone),
        "rule 8 (O16): an owner that stood still does not bring it back"
    );
    assert_eq!(owner.append(&logs[5], 1, &[]), Err(StoreError::Gone), "rule 8");
}

fn rule_12_an_owner_of_a_larger_number_than_the_store_has_was_forgotten(a: &dyn EventStore, b: &dyn EventStore) {
    let before = Caller::new(a, Ms(0));
    let log = running(&before, "s", 1);
    before.hold("s", alice());
    let forgotten = Caller::new(b, Ms(0)).with(Epoch { number: before.epoch.number + 2, salt: 3 });
    let record = SessionRecord { note: Bytes::from_static(b"another note"), ..alice() };
    let hold = Hold { epoch: forgotten.epoch, seen: Some(forgotten.epoch), record: Some(record.clone()) };
    for _ in 0..2 {
        assert_eq!(
            forgotten.try_hold("s", &hold),
            Ok(vec![as_running(&log)]),
            "rule 12 (O1): it has the session again"
        );
    }
    let note = forgotten.session("s", Some("alice")).map(|record| record.note);
    assert_eq!(note, Some(record.note), "rule 12: with what it says of it");
    assert_fenced(a, &before, &log);
    let epoch = Epoch { salt: 4, ..forgotten.epoch };
    let same = Hold { epoch, seen: Some(epoch), record: None };
    assert_eq!(before.try_hold("s", &same), Err(StoreError::Fenced), "rule 12: not from one of the same number");
    assert_eq!(forgotten.finish(&log, b"end"), Ok(()), "rule 12: it writes");
}

fn rule_12_two_that_begin_a_session_or_take_it_over_do_not_both_have_it(a: &dyn EventStore, b: &dyn EventStore) {
    let mut seen = None;
    let mut log = Log::new("s", 1);
    for number in 1..20 {
        // Both took the same number.
        let [in_a, in_b] = [(a, 1), (b, 2)].map(|(store, salt)| Caller::new(store, Ms(0)).with(Epoch { number, salt }));
        let record = seen.is_none().then(SessionRecord::default);
        let take =
            |caller: &Caller<'_>| caller.try_hold("s", &Hold { epoch: caller.epoch, seen, record: record.clone() });
        let (of_a, of_b) = std::thread::scope(|scope| {
            let of_b = scope.spawn(|| take(&in_b));
            (take(&in_a), of_b.join().expect("it has an answer"))
        });
        let ((winner, running), (loser, refused)) =
            if of_a.is_ok() { ((&in_a, of_a), (&in_b, of_b)) } else { ((&in_b, of_b), (&in_a, of_a)) };
        let running = running.expect("one of them has it");
        assert_eq!(refused, Err(StoreError::Fenced), "and only one");
        let told: Vec<_> = running.into_iter().map(|log| (log.nonce, log.head)).collect();
        assert_eq!(told, seen.map(|_| (log.key.nonce, log.head())).into_iter().collect::<Vec<_>>());
        assert_eq!(loser.append(&log, log.head() + 1, &[progress("late")]), Err(StoreError::Fenced), "I4");
        winner.push(&mut log, &[progress("event")]);
        log.assert_stored(loser, 0, "it is the log of one of them");
        seen = Some(winner.epoch);
    }
}

fn rule_12_an_heir_knows_what_was_stored_before_and_nothing_is_stored_after(a: &dyn EventStore, b: &dyn EventStore) {
    const APPENDS: u64 = 20;
    let (caller, other) = (Caller::new(a, Ms(0)), Caller::new(b, Ms(0)));
    let mut log = caller.open("s", 1);
    std::thread::scope(|scope| {
        let (count, counted) = std::sync::mpsc::channel();
        let heir = scope.spawn(move || {
            counted.iter().find(|stored| *stored == APPENDS).expect("events are stored");
            let hold = Hold { epoch: Epoch { number: 2, salt: 9 }, seen: Some(other.epoch), record: None };
            other.try_hold("s", &hold).expect("it takes over")
        });
        let refused = loop {
            let event = [progress(&format!("event {}", log.head()))];
            if let Err(error) = caller.append(&log, log.head() + 1, &event) {
                break error;
            }
            log.events.extend(event);
            let _ = count.send(log.head());
        };
        assert_eq!(refused, StoreError::Fenced, "an owner that did not see it ends here");
        let running = heir.join().expect("it has an answer");
        assert_eq!(running, [as_running(&log)], "the heir knows the log as it stays");
    });
    log.assert_stored(&caller, 0, "I4");
}

fn rule_12_a_session_that_was_let_go_is_told_as_such(a: &dyn EventStore, b: &dyn EventStore) {
    let (owner, other) = (Caller::new(a, Ms(0)), Caller::new(b, Ms(0)).with(Epoch { number: 2, salt: 9 }));
    let mut log = running(&owner, "s", 1);
    let told = |caller: &Caller<'_>| {
        caller.attach("", &Attach::default());
        caller.read(&log, 0, ReadLimit::default()).map(|page| page.owner)
    };
    a.release("never there", owner.epoch);
    assert_eq!(told(&owner), Ok(None), "rule 12");
    for _ in 0..2 {
        a.release("s", owner.epoch);
        a.release("s", owner.epoch);
        let released = Owner { epoch: owner.epoch, unseen_ms: u64::MAX };
        assert_eq!((told(&owner), told(&other)), (Ok(Some(released)), Ok(Some(released))), "rule 12 (O20)");
        owner.hold("s", SessionRecord::default());
        assert_eq!(told(&owner), Ok(None), "rule 12: the owner may come back");
    }
    a.release("s", owner.epoch);
    // What was asked before is stored, however late it is.
    owner.push(&mut log, &[progress("late")]);
    assert_eq!(owner.attach("", &Attach::default()), Attached::default(), "rule 11");
    let hold = Hold { epoch: other.epoch, seen: Some(owner.epoch), record: None };
    let heads: Vec<u64> = other.try_hold("s", &hold).expect("it is there").iter().map(|log| log.head).collect();
    assert_eq!(heads, [log.head()], "rule 12: it is taken over");
    assert_eq!(other.read(&log, 0, ReadLimit::default()).map(|page| page.owner), Ok(None), "rule 12: and has an owner");
    assert_fenced(a, &owner, &log);
    other.push(&mut log, &[progress("more")]);
    log.assert_stored(&owner, 0, "rule 12");
}

fn rule_12_an_owner_that_takes_stock_changes_nothing(a: &dyn EventStore, b: &dyn EventStore) {
    let (owner, other) = (Caller::new(a, Ms(0)), Caller::new(b, Ms(0)));
    let mut logs = [running(&owner, "s", 1), running(&owner, "s", 2), owner.open("s", 3)];
    owner.hold("s", alice());
    owner.finish(&logs[0], b"end").expect("it is ended");
    let told = |caller: &Caller<'_>| {
        let page = |log| caller.read(log, 0, ReadLimit::default()).expect("it is readable");
        // How long the owner gives no sign may differ.
        let pages = logs.each_ref().map(|log| LogPage { owner: None, ..page(log) });
        (caller.session("s", Some("alice")), pages, page(&logs[1]).owner.map(|owner| owner.epoch))
    };
    let before = (told(&owner), told(&other));
    let stock = Hold { epoch: owner.epoch, seen: Some(owner.epoch), record: None };
    for _ in 0..2 {
        let mut running = owner.try_hold("s", &stock).expect("rule 12: it is the owner");
        running.sort_by_key(|log| log.nonce.0);
        let want: Vec<RunningLog> = logs[1..].iter().map(as_running).collect();
        assert_eq!(running, want, "rule 12: the logs without an end are told");
        assert_eq!((told(&owner), told(&other)), before, "rule 12: nothing else changes");
    }
    owner.push(&mut logs[1], &[progress("b")]);
    logs[1].assert_stored(&other, 0, "rule 12");
}

fn nobody_else_finds_a_session(a: &dyn EventStore, b: &dyn EventStore) {
    let (owner, other) = (Caller::new(a, Ms(0)), Caller::new(b, Ms(0)));
    let log = running(&owner, "s", 1);
    let free = running(&owner, "free", 1);
    owner.hold("s", alice());
    let look = |log: &Log, principal: Option<&str>, aliases: &[&str]| {
        let (principal, aliases) = (principal.map(Into::into), aliases.iter().map(|alias| (*alias).into()).collect());
        let (stream, limit) = (Some(log.key.nonce), ReadLimit { up_to: 9, events: 9, bytes: 1 << 20 });
        let attach = Attach { stream, principal, aliases, counts: true, limit, ..Attach::default() };
        other.attach(&log.key.session, &attach)
    };
    let foreign = Attached { is_foreign: true, ..Attached::default() };
    for (principal, aliases) in
        [(None, &[][..]), (Some(""), &[]), (Some("Alice"), &[]), (Some("alice "), &[]), (Some("bob"), &["", "carol"])]
    {
        assert_eq!(look(&log, principal, aliases), foreign, "I7: {principal:?} is not alice");
    }
    for principal in ["", "alice"] {
        assert_eq!(look(&free, Some(principal), &[]), foreign, "I7: the session is nobody's");
    }
    let found = |log, principal, aliases| {
        let found = look(log, principal, aliases);
        assert!(!found.is_foreign && found.session.is_some(), "I7: {found:?}");
        found.log.map(|log| (log.page.readers, log.page.page.events.len()))
    };
    assert_eq!(found(&log, Some("alice"), &[]), Some((1, 2)), "I7: foreign readers do not count");
    assert_eq!(found(&log, Some("bob"), &["carol", "alice"]), Some((2, 2)), "I7: it is found by another name");
    assert_eq!(found(&free, None, &[]), Some((1, 2)), "I7");
    assert_eq!(found(&Log::new("s", 2), Some("alice"), &[]), None, "rule 1: the session has no such log");
    assert_eq!(look(&Log::new("t", 1), Some("alice"), &[]), Attached::default(), "rule 1: nobody has this session");
}

fn a_reader_counts_where_its_log_goes_on(a: &dyn EventStore, b: &dyn EventStore) {
    let (owner, other) = (Caller::new(a, Ms(0)), Caller::new(b, Ms(0)));
    let mut log = running(&owner, "s", 1);
    let mut readers = 0;
    for is_finished in [false, true] {
        if is_finished {
            owner.push(&mut log, &[(EventKind::Terminal, Bytes::from_static(b"end"))]);
        }
        for after in 0..log.head() + 2 {
            let is_there = after <= log.head();
            let tag = log.chain_at(after).tag();
            for (tag, fits) in [(None, is_there), (Some(tag), is_there), (Some(!tag), false)] {
                for counts in [false, true] {
                    let (stream, limit) = (Some(log.key.nonce), ReadLimit { up_to: 9, events: 1, bytes: 1 << 20 });
                    let attach = Attach { stream, after, tag, counts, limit, ..Attach::default() };
                    let found = other.attach("s", &attach).log.expect("it is there");
                    readers += u64::from(counts && fits);
                    assert_eq!((found.page.readers, found.about), (readers, log.about()), "{attach:?}");
                    let read = other.read(&log, after, limit).expect("the log is readable");
                    // How long the owner gives no sign may differ.
                    let shown = |page: LogPage| LogPage { owner: None, ..page };
                    assert_eq!(shown(found.page), shown(read), "a look and a read tell the same: {attach:?}");
                }
            }
        }
    }
}
