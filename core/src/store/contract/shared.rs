//! The rules for a store that several processes use, on two store objects that stand for them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::caller::{Caller, Event, Log, progress};
use super::inbox::RULE_14;
use super::owners::RULE_12;
use super::{BetweenTwo, at_once, between};
use crate::Ms;
use crate::protocol::StreamNonce;
use crate::store::{Attach, Attached, Epoch, EventStore, Hold, Owner, ReadLimit, SessionRecord, Watch, Watcher};
use crate::stream::EventKind;

/// Checks what holds between the processes of one store. `make` gives two store objects of one empty
/// place, whose owners have `owner_lost_ms` of at least 5,000.
///
/// # Panics
/// When the store breaks a rule.
pub fn check_shared(make: &(dyn Fn() -> (Arc<dyn EventStore>, Arc<dyn EventStore>) + Sync)) {
    const RULES: &[BetweenTwo] = &[
        a_session_is_written_by_its_owner_and_read_everywhere,
        readers_are_counted_over_all_processes,
        rule_13_watchers_elsewhere_are_told_of_what_concerns_them,
        a_reader_that_waits_for_hints_gets_every_event,
    ];
    at_once(between(make, RULES).chain(between(make, RULE_12)).chain(between(make, RULE_14)));
}

/// Collects hints.
#[derive(Default)]
pub(super) struct Hints {
    /// Those that concern logs.
    logs: Count,
    /// Those that concern messages.
    messages: Count,
}

impl Watch for Hints {
    fn changed(&self, _nonce: StreamNonce) {
        self.logs.add();
    }

    fn posted(&self) {
        self.messages.add();
    }

    fn all_changed(&self) {
        self.logs.add();
        self.messages.add();
    }
}

#[derive(Default)]
struct Count {
    count: Mutex<u64>,
    grew: Condvar,
}

impl Count {
    fn add(&self) {
        *self.lock() += 1;
        self.grew.notify_all();
    }

    fn now(&self) -> u64 {
        *self.lock()
    }

    /// Waits for a hint after the first `seen`.
    fn wait(&self, seen: u64, what: &str) -> u64 {
        let mut count = self.lock();
        // A process that stood still has not waited. So what counts is how often it waited for a moment.
        for _ in 0..300 {
            let waited = self.grew.wait_timeout_while(count, Duration::from_millis(100), |count| *count <= seen);
            count = waited.unwrap_or_else(PoisonError::into_inner).0;
            if *count > seen {
                return *count;
            }
        }
        panic!("{what} is told elsewhere");
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn watcher(hints: &Arc<Hints>) -> Watcher {
    let hints: Arc<dyn Watch> = Arc::clone(hints) as Arc<dyn Watch>;
    Arc::downgrade(&hints)
}

fn a_session_is_written_by_its_owner_and_read_everywhere(a: &dyn EventStore, b: &dyn EventStore) {
    let (caller, other) = (Caller::new(a, Ms(0)), Caller::new(b, Ms(0)));
    let mut log = caller.open("s", 1);
    caller.push(&mut log, &[progress("a"), (EventKind::Question, Bytes::from_static(b"q"))]);
    log.assert_stored(&other, 0, "what is stored is readable elsewhere");
    log.assert_stored(&other, 1, "what is stored is readable elsewhere");
    assert_eq!(other.session("s", None), Some(SessionRecord::default()), "a session is known elsewhere");
    assert_eq!(other.session("t", None), None, "and only that one");
    assert_eq!(other.log(&Log::new("t", 1)), None, "rule 1: the same stream of another session is another one");
    let owner = |caller: &Caller<'_>| {
        let (looked, read) = (caller.log(&log), caller.read(&log, 0, ReadLimit::default()));
        let [looked, read] = [looked.expect("it is there").page, read.expect("it is readable")].map(|page| page.owner);
        assert_eq!(looked.map(|owner| owner.epoch), read.map(|owner| owner.epoch), "every look tells the owner");
        read
    };
    let gives_signs = |caller: &Caller<'_>, epoch| {
        let owner = owner(caller);
        let is_well = owner.is_some_and(|owner| owner.epoch == epoch && owner.unseen_ms < 5_000);
        assert!(is_well, "the owner of a session gives signs: {owner:?}");
    };
    let mut epoch = caller.epoch;
    for (store, owns, looks, lets_go) in
        [(a, &caller, &other, false), (b, &other, &caller, true), (a, &caller, &other, true)]
    {
        assert_eq!(owner(owns), None, "its own session has no other owner");
        gives_signs(looks, epoch);
        if lets_go {
            store.release("s", epoch);
            assert_eq!(owns.attach("", &Attach::default()), Attached::default(), "rule 11");
            let released = Some(Owner { epoch, unseen_ms: u64::MAX });
            assert_eq!((owner(owns), owner(looks)), (released, released), "a session that was let go is told as such");
        }
        let hold = Hold { epoch: Epoch { number: epoch.number + 1, salt: 9 }, seen: Some(epoch), record: None };
        assert_eq!(looks.try_hold("s", &hold).map(|running| running.len()), Ok(1), "and can be taken over");
        epoch = hold.epoch;
    }
    assert_eq!(owner(&other), None, "the process that held it last owns it");
    gives_signs(&caller, epoch);
}

fn readers_are_counted_over_all_processes(a: &dyn EventStore, b: &dyn EventStore) {
    let (one, two) = (Caller::new(a, Ms(0)), Caller::new(b, Ms(0)));
    let log = one.open("s", 1);
    let attach = |counts| Attach { stream: Some(log.key.nonce), counts, ..Attach::default() };
    let readers = |caller: &Caller<'_>, counts| {
        let log = caller.attach("s", &attach(counts)).log.expect("it is there");
        log.page.readers
    };
    assert_eq!(readers(&one, false), 0, "nobody came yet");
    for (count, caller) in (1..).zip([&one, &two, &one]) {
        assert_eq!(readers(caller, true), count, "readers are counted");
        assert_eq!((readers(&one, false), readers(&two, false)), (count, count), "and told everywhere");
    }
    for session in ["t", "S"] {
        assert_eq!(two.attach(session, &attach(true)), Attached::default(), "rule 1");
    }
}

fn rule_13_watchers_elsewhere_are_told_of_what_concerns_them(a: &dyn EventStore, b: &dyn EventStore) {
    let (owner, other) = (Caller::new(a, Ms(0)), Caller::new(b, Ms(0)));
    let session: Arc<str> = "s".into();
    let (at_a, at_b) = (Arc::new(Hints::default()), Arc::new(Hints::default()));
    a.watch(&session, &watcher(&at_a));
    b.watch(&session, &watcher(&at_b));
    let read_by = |caller: &Caller<'_>, log: &Log| {
        caller.attach("s", &Attach { stream: Some(log.key.nonce), counts: true, ..Attach::default() })
    };
    let mut log = owner.open("s", 1);
    for number in 10..15 {
        let seen = at_a.messages.now();
        other.post(&Log::new("s", number), b"message").expect("it waits");
        at_a.messages.wait(seen, "rule 13 (O21): each message (by `posted`)");
    }
    for _ in 0..5 {
        let seen = at_a.logs.now();
        read_by(&other, &log);
        at_a.logs.wait(seen, "rule 13: a reader");
    }
    for number in 0..20 {
        let seen = at_b.logs.now();
        owner.push(&mut log, &[progress(&format!("{number}"))]);
        at_b.logs.wait(seen, "rule 13: an append");
    }
    let seen = at_b.logs.now();
    read_by(&owner, &log);
    let seen = at_b.logs.wait(seen, "rule 13: a reader at the owner");
    owner.push(&mut log, &[(EventKind::Terminal, Bytes::from_static(b"end"))]);
    at_b.logs.wait(seen, "rule 13: the terminal");
    let ended = owner.open("s", 2);
    read_by(&other, &ended);
    let seen = at_b.logs.now();
    assert_eq!(owner.finish(&ended, b"end"), Ok(()));
    let seen = at_b.logs.wait(seen, "rule 13: an end that is not in the log");
    a.drop_stream(&ended.key, owner.epoch);
    let seen = at_b.logs.wait(seen, "rule 13: a drop");
    a.drop_session("s", owner.epoch);
    at_b.logs.wait(seen, "rule 13: a drop of the session");
    let taken = owner.open("s", 3);
    let seen = at_a.logs.now();
    let epoch = Epoch { number: owner.epoch.number + 1, salt: 9 };
    let hold = Hold { epoch, seen: Some(owner.epoch), record: None };
    assert_eq!(other.try_hold("s", &hold).map(|logs| logs.len()), Ok(1));
    at_a.logs.wait(seen, "rule 13: another owner");
    read_by(&owner, &taken);
    let (seen, heir) = (at_a.logs.now(), other.with(epoch));
    assert_eq!(heir.finish(&taken, b"end"), Ok(()));
    at_a.logs.wait(seen, "rule 13: an end that the next owner wrote");
    a.unwatch("s", &watcher(&at_a));
    b.unwatch("s", &watcher(&at_b));
}

fn a_reader_that_waits_for_hints_gets_every_event(a: &dyn EventStore, b: &dyn EventStore) {
    const EVENTS: u64 = 500;
    let owner = Caller::new(a, Ms(0));
    let log = owner.open("s", 1);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let other = Caller::new(b, Ms(0));
            let hints = Arc::new(Hints::default());
            b.watch(&log.key.session, &watcher(&hints));
            other.attach("s", &Attach { stream: Some(log.key.nonce), counts: true, ..Attach::default() });
            let mut got = 0;
            while got < EVENTS {
                // The count is taken before the log is read: what comes in between makes no one wait.
                let seen = hints.logs.now();
                let head = other.read(&log, got, ReadLimit::default()).expect("the log is there").page.head;
                let events = other.read_all(&log, got);
                assert!(events.len() as u64 >= head - got, "what a look tells is readable");
                got += events.len() as u64;
                if got < EVENTS && events.is_empty() {
                    hints.logs.wait(seen, "rule 13: an append");
                }
            }
            b.unwatch(&log.key.session, &watcher(&hints));
        });
        let mut written = log.clone();
        for number in 0..EVENTS {
            let event: Event = progress(&format!("event {number}"));
            owner.push(&mut written, &[event]);
        }
        reader.join().expect("the reader gets everything");
    });
}
