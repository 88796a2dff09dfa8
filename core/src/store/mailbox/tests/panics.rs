//! Backends whose code panics.

use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use super::{NONCE, epoch};
use crate::Ms;
use crate::protocol::StreamNonce;
use crate::store::mailbox::{Backend, BlockingBackend, Fault, Op, Queued};
use crate::store::{
    Answer, Append, Complete, EventStore, Limits, Operation, Outcome, StoreError, StreamKey, Ticket, Usage, Watch,
    Watcher,
};
use crate::sync::{Arc, Weak};

/// A backend whose code panics at the operation with the number 1.
struct Panics(&'static str);

impl Backend for Panics {
    fn watch(&self, _session: &Arc<str>, _watcher: &Watcher) {}
    fn unwatch(&self, _session: &str, _watcher: &Watcher) {}
    fn usage(&self) -> Usage {
        Usage::default()
    }
}

impl BlockingBackend for Panics {
    fn run(&self, batch: &[Op]) -> Result<Vec<Option<Outcome>>, Fault> {
        assert!(batch.iter().all(|op| op.ticket.as_ref().is_none_or(|ticket| ticket.number != 1)), "{}", self.0);
        Ok(batch.iter().map(|op| op.ticket.as_ref().map(|_| Outcome::Done(Ok(())))).collect())
    }
}

struct Told(Sender<(u64, Outcome)>);

impl Complete for Told {
    fn complete(&self, ticket: &Ticket, outcome: Outcome) {
        drop(self.0.send((ticket.number, outcome)));
    }
}

#[test]
fn i9_an_operation_at_which_the_code_of_a_store_panics_fails_and_harms_no_other() {
    let store = Queued::start(Arc::new(Panics("a fault in its code")), &Limits::default(), 1, 60_000).unwrap();
    let (sender, told) = channel();
    let told_to = Arc::new(Told(sender));
    let to: Weak<dyn Complete> = Arc::downgrade(&(Arc::clone(&told_to) as Arc<dyn Complete>));
    let key = StreamKey { session: "a".into(), nonce: NONCE };
    for number in 1..=3 {
        let ticket = Ticket { to: to.clone(), nonce: NONCE, operation: Operation::Append, number };
        let append = Append { first: number, ..Append::default() };
        assert!(matches!(store.append(Ms(0), &key, epoch(), &append, &ticket), Answer::Later));
    }
    let mut outcomes: Vec<_> = (0..3).map(|_| told.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
    outcomes.sort_by_key(|(number, _)| *number);
    assert!(matches!(outcomes[0], (1, Outcome::Done(Err(StoreError::Failed(_))))), "{outcomes:?}");
    assert!(outcomes[1..].iter().all(|(_, outcome)| matches!(outcome, Outcome::Done(Ok(())))), "{outcomes:?}");
}

/// A backend that does what it is asked, and whose other code panics.
struct PanicsElsewhere;

impl Backend for PanicsElsewhere {
    fn watch(&self, _session: &Arc<str>, _watcher: &Watcher) {
        panic!("watch");
    }
    fn unwatch(&self, _session: &str, _watcher: &Watcher) {
        panic!("unwatch");
    }
    fn sweep(&self) {
        panic!("sweep");
    }
    fn usage(&self) -> Usage {
        panic!("usage");
    }
    fn close(&self) {
        panic!("close");
    }
    fn outlives_process(&self) -> bool {
        panic!("outlives_process");
    }
    fn is_cut_off(&self) -> bool {
        panic!("is_cut_off");
    }
    fn namespace(&self) -> &str {
        panic!("namespace");
    }
    fn may_wait(&self) -> bool {
        panic!("may_wait");
    }
}

impl BlockingBackend for PanicsElsewhere {
    fn run(&self, batch: &[Op]) -> Result<Vec<Option<Outcome>>, Fault> {
        Ok(batch.iter().map(|_| Some(Outcome::Done(Ok(())))).collect())
    }
}

struct Deaf;

impl Watch for Deaf {
    fn changed(&self, _nonce: StreamNonce) {}
    fn posted(&self) {}
    fn all_changed(&self) {}
}

#[test]
fn i9_whatever_code_of_a_store_panics_harms_only_what_it_was_called_for() {
    let store = Queued::start(Arc::new(PanicsElsewhere), &Limits::default(), 1, 60_000).unwrap();
    let watcher: Weak<dyn Watch> = Weak::<Deaf>::new();
    store.watch(&"a".into(), &watcher);
    store.unwatch("a", &watcher);
    assert_eq!(store.sweep(Ms(0)), Ms::NEVER);
    assert_eq!(store.usage(), Usage::default());
    assert_eq!((store.outlives_process(), store.is_cut_off(), store.namespace()), (true, false, ""));
    let (sender, told) = channel();
    let told_to: Arc<dyn Complete> = Arc::new(Told(sender));
    let ticket = Ticket { to: Arc::downgrade(&told_to), nonce: NONCE, operation: Operation::Append, number: 1 };
    let key = StreamKey { session: "a".into(), nonce: NONCE };
    drop(store.append(Ms(0), &key, epoch(), &Append { first: 1, ..Append::default() }, &ticket));
    let outcome = told.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(matches!(outcome, (1, Outcome::Done(Ok(())))), "{outcome:?}");
    drop(store);
}
