//! The rules for a store that several processes use, on two store objects that stand for them.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use bytes::Bytes;

use super::caller::{Caller, Event, Log, PATIENCE, progress};
use crate::Ms;
use crate::protocol::StreamNonce;
use crate::store::{Append, EventStore, SessionRecord, StoreError, Watch, Watcher};
use crate::stream::EventKind;

/// Checks what holds between the processes of one store. `make` gives two store objects of one empty
/// place, whose owners have `owner_lost_ms` of at least 5,000.
///
/// # Panics
/// When the store breaks a rule.
pub fn check_shared(make: &dyn Fn() -> (Arc<dyn EventStore>, Arc<dyn EventStore>)) {
    let (a, b) = make();
    a_log_is_written_by_its_owner_and_read_everywhere(&*a, &*b);
    let (a, b) = make();
    whoever_creates_a_log_owns_it(&*a, &*b);
    let (a, b) = make();
    claims_are_counted_over_all_processes(&*a, &*b);
    let (a, b) = make();
    rule_13_watchers_elsewhere_are_told_of_every_change(&*a, &*b);
    let (a, b) = make();
    a_reader_that_waits_for_hints_gets_every_event(&*a, &*b);
}

/// Collects hints.
#[derive(Default)]
pub(super) struct Hints {
    count: Mutex<u64>,
    came: Condvar,
}

impl Watch for Hints {
    fn changed(&self, _nonce: StreamNonce) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.came.notify_all();
    }
}

impl Hints {
    fn count(&self) -> u64 {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a hint after the first `seen`.
    fn wait(&self, seen: u64, what: &str) -> u64 {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.came.wait_timeout_while(count, PATIENCE, |count| *count <= seen);
        let count = *waited.unwrap_or_else(PoisonError::into_inner).0;
        assert!(count > seen, "rule 13: {what} is told elsewhere");
        count
    }
}

fn watcher(hints: &Arc<Hints>) -> Watcher {
    let hints: Arc<dyn Watch> = Arc::clone(hints) as Arc<dyn Watch>;
    Arc::downgrade(&hints)
}

fn a_log_is_written_by_its_owner_and_read_everywhere(a: &dyn EventStore, b: &dyn EventStore) {
    let (owner, other) = (Caller::new(a, Ms(0)), Caller::new(b, Ms(0)));
    let mut log = owner.open("s", 1);
    owner.push(&mut log, &[progress("a"), (EventKind::Question, Bytes::from_static(b"q"))]);
    log.assert_stored(&other, 0, "what is stored is readable elsewhere");
    log.assert_stored(&other, 1, "what is stored is readable elsewhere");
    let unseen = |caller: &Caller<'_>| caller.record(&log).and_then(|record| record.owner_unseen_ms);
    assert_eq!(unseen(&owner), None, "its own log has no other owner");
    assert!(unseen(&other).is_some_and(|ms| ms < 5_000), "the owner of a log gives signs: {:?}", unseen(&other));
    let record = owner.record(&log);
    let late = [progress("late")];
    for append in [
        log.append(1, &[]),
        log.append(3, &late),
        Append { retry_ms: Some(7), ..log.append(3, &[]) },
        Append { end: end(), ..log.append(3, &[]) },
        Append { end: end(), ..log.append(3, &late) },
        Append { end: end(), ..log.append(1, &log.events) },
    ] {
        assert_eq!(other.write(&log, &append), Err(StoreError::Fenced), "only the owner writes (I4): {append:?}");
        assert_eq!(owner.record(&log), record, "what is refused changes nothing: {append:?}");
    }
    assert_eq!(other.append(&log, 1, &log.events), Ok(()), "what is there is there for everybody");
    owner.push(&mut log, &[progress("c")]);
    let record =
        SessionRecord { principal: Some("alice".into()), standalone: Some(log.key.nonce), ..SessionRecord::default() };
    a.put_session(Ms(0), "s", &record);
    owner.push(&mut log, &[progress("d")]);
    let found = other.session("s").map(|found| (found.principal, found.standalone));
    assert_eq!(found, Some((record.principal, record.standalone)), "a session is known elsewhere");
    assert_eq!(other.session("t"), None, "and only that one");
    let elsewhere = Log::new("t", 1);
    assert!(other.record(&elsewhere).is_none(), "rule 1: the same stream of another session is another one");
    assert_eq!(owner.finish(&log, b"first"), Ok(()), "its owner ends it");
    assert_eq!(other.finish(&log, b"second"), Ok(()), "it has an end");
    let tail = other.record(&log).and_then(|record| record.tail);
    assert_eq!(tail.as_deref(), Some(&b"first"[..]), "and keeps it (I13)");
}

fn end() -> Option<Bytes> {
    Some(Bytes::from_static(b"end"))
}

fn whoever_creates_a_log_owns_it(a: &dyn EventStore, b: &dyn EventStore) {
    let (owner, other) = (Caller::new(a, Ms(0)), Caller::new(b, Ms(0)));
    let mut log = owner.open("s", 0);
    let again = Append { about: Bytes::from_static(b"again"), ..log.append(1, &[]) };
    assert_eq!(other.write(&log, &again), Ok(()), "a log that is there already can be created again");
    for append in [
        Append { retry_ms: Some(7), ..again.clone() },
        Append { end: end(), ..again.clone() },
        log.append(1, &[progress("late")]),
    ] {
        assert_eq!(other.write(&log, &append), Err(StoreError::Fenced), "and keeps its owner: {append:?}");
    }
    owner.push(&mut log, &[progress("a")]);
    log.assert_stored(&other, 0, "its owner goes on");
    let record = owner.record(&log).map(|record| (record.about, record.finished, record.retry_ms));
    assert_eq!(record, Some((log.about(), false, None)), "nothing of it is changed");
    for number in 1..20 {
        let mut log = Log::new("s", number);
        // Both create it at once, each with an event of its own.
        let create = |caller: Caller<'_>, event: &str| caller.append(&log, 1, &[progress(event)]);
        let [in_a, in_b] = std::thread::scope(|scope| {
            let in_a = scope.spawn(|| create(Caller::new(a, Ms(0)), "a"));
            let in_b = scope.spawn(|| create(Caller::new(b, Ms(0)), "b"));
            [in_a, in_b].map(|created| created.join().expect("it has an answer"))
        });
        let is_of_a = in_a.is_ok();
        let (winner, event) = if is_of_a { (&owner, "a") } else { (&other, "b") };
        let want = if is_of_a { (Ok(()), Err(StoreError::Fenced)) } else { (Err(StoreError::Fenced), Ok(())) };
        assert_eq!((in_a, in_b), want, "one of them has it");
        log.events.push(progress(event));
        winner.push(&mut log, &[progress("more")]);
        log.assert_stored(&owner, 0, "it is the log of one of them");
    }
}

fn claims_are_counted_over_all_processes(a: &dyn EventStore, b: &dyn EventStore) {
    let (one, two) = (Caller::new(a, Ms(0)), Caller::new(b, Ms(0)));
    let log = one.open("s", 1);
    let claims = |caller: &Caller<'_>| caller.record(&log).map(|record| record.claims);
    assert_eq!(claims(&one), Some(0), "nobody claimed it yet");
    assert_eq!((one.claim(&log), two.claim(&log), one.claim(&log)), (Ok(1), Ok(2), Ok(3)), "claims are counted");
    assert_eq!((claims(&one), claims(&two)), (Some(3), Some(3)), "and told everywhere");
    assert_eq!(one.claim(&Log::new("s", 2)), Err(StoreError::Gone), "what is not there is not claimed");
    assert_eq!(one.claim(&Log::new("t", 1)), Err(StoreError::Gone), "rule 1");
}

fn rule_13_watchers_elsewhere_are_told_of_every_change(a: &dyn EventStore, b: &dyn EventStore) {
    let (owner, other) = (Caller::new(a, Ms(0)), Caller::new(b, Ms(0)));
    let mut log = Log::new("s", 1);
    let at_b = Arc::new(Hints::default());
    b.watch(&log.key, &watcher(&at_b));
    for number in 0..20 {
        let seen = at_b.count();
        owner.push(&mut log, &[progress(&format!("{number}"))]);
        at_b.wait(seen, "an append");
    }
    let at_a = Arc::new(Hints::default());
    a.watch(&log.key, &watcher(&at_a));
    let seen = at_a.count();
    assert_eq!(other.claim(&log), Ok(1));
    at_a.wait(seen, "a claim");
    let seen = at_b.count();
    owner.push(&mut log, &[(EventKind::Terminal, Bytes::from_static(b"end"))]);
    at_b.wait(seen, "the terminal");
    b.unwatch(&log.key, &watcher(&at_b));
    a.unwatch(&log.key, &watcher(&at_a));
    let ended = owner.open("s", 2);
    b.watch(&ended.key, &watcher(&at_b));
    let seen = at_b.count();
    assert_eq!(owner.finish(&ended, b"end"), Ok(()));
    let seen = at_b.wait(seen, "an end that is not in the log");
    a.drop_stream(&ended.key);
    at_b.wait(seen, "a drop");
    b.unwatch(&ended.key, &watcher(&at_b));
}

fn a_reader_that_waits_for_hints_gets_every_event(a: &dyn EventStore, b: &dyn EventStore) {
    const EVENTS: u64 = 500;
    let owner = Caller::new(a, Ms(0));
    let log = owner.open("s", 1);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let other = Caller::new(b, Ms(0));
            let hints = Arc::new(Hints::default());
            b.watch(&log.key, &watcher(&hints));
            let mut got = 0;
            while got < EVENTS {
                // The count is taken before the log is read: what comes in between makes no one wait.
                let seen = hints.count();
                let head = other.record(&log).expect("the log is there").head;
                let events = other.read_all(&log, got);
                assert!(events.len() as u64 >= head - got, "what the record tells is readable");
                got += events.len() as u64;
                if got < EVENTS && events.is_empty() {
                    hints.wait(seen, "an append");
                }
            }
            b.unwatch(&log.key, &watcher(&hints));
        });
        let mut written = log.clone();
        for number in 0..EVENTS {
            let event: Event = progress(&format!("event {number}"));
            owner.push(&mut written, &[event]);
        }
        reader.join().expect("the reader gets everything");
    });
}
