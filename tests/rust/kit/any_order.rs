//! A store whose answers the test lets through, one by one and in any order.
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tailrope_core::Ms;
use tailrope_core::engine::Options;
use tailrope_core::store::{
    Answer, Append, Attach, Attached, Complete, Epoch, EventStore, Hold, LogPage, Operation, Outcome, ReadLimit,
    RunningLog, StoreError, StoreOptions, StreamKey, Ticket, Usage, Watcher,
};
use tailrope_core::stream::Seq;

use crate::kit::common::{Bench, SECRET};
use crate::kit::folder::Folder;
use crate::kit::processes::{PATIENCE, store_in};

type Which = fn(&Operation) -> bool;

pub(crate) fn is_attach(operation: &Operation) -> bool {
    matches!(operation, Operation::Attach(_))
}

pub(crate) fn is_look(operation: &Operation) -> bool {
    matches!(operation, Operation::Look(_))
}

/// Everything is done by the store within; what of its answers is held the test passes on.
pub(crate) struct AnyOrder {
    inner: Arc<dyn EventStore>,
    held: Mutex<Option<Which>>,
    relays: Mutex<Vec<Arc<Relay>>>,
    answers: Answers,
}

type Answers = Arc<Mutex<Vec<(Ticket, Outcome)>>>;

/// A process with a store object of its own, whose answers can be held.
pub(crate) fn process_in_any_order(folder: &Folder) -> (Bench, Arc<AnyOrder>) {
    let store = AnyOrder::new(store_in(folder, StoreOptions::default()));
    (Bench::new(Options { store: Some(Arc::clone(&store) as _), ..Options::default() }), store)
}

/// Takes the outcome of one question in the place of who asked.
struct Relay {
    ticket: Ticket,
    answers: Answers,
}

impl Complete for Relay {
    fn complete(&self, _: &Ticket, outcome: Outcome) {
        self.answers.lock().unwrap().push((self.ticket.clone(), outcome));
    }
}

impl AnyOrder {
    pub(crate) fn new(inner: Arc<dyn EventStore>) -> Arc<Self> {
        let (held, relays, answers) = Default::default();
        Arc::new(Self { inner, held, relays, answers })
    }

    /// From now on answers to these wait.
    pub(crate) fn hold(&self, which: Which) {
        *self.held.lock().unwrap() = Some(which);
    }

    /// From now on no answer waits any more. Those that do go on waiting.
    pub(crate) fn let_go(&self) {
        *self.held.lock().unwrap() = None;
    }

    /// Answers that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.answers.lock().unwrap().len()
    }

    /// Lets time pass until so many answers wait.
    pub(crate) fn wait_for(&self, bench: &Bench, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.waiting() < count {
            assert!(Instant::now() < deadline, "the store is asked");
            bench.advance(20);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets the answer through that waits at this place.
    pub(crate) fn answer(&self, at: usize) {
        let (ticket, outcome) = self.answers.lock().unwrap().remove(at);
        ticket.complete(outcome);
    }

    pub(crate) fn answer_all(&self) {
        while self.waiting() > 0 {
            self.answer(0);
        }
    }

    /// Every answer that waits is that the store cannot tell. Waits until there is one.
    pub(crate) fn fail_all(&self, bench: &Bench) {
        self.wait_for(bench, 1);
        for (ticket, _) in std::mem::take(&mut *self.answers.lock().unwrap()) {
            let error = || StoreError::Failed(SECRET.to_owned());
            ticket.complete(match ticket.operation {
                Operation::Attach(_) => Outcome::Attached(Err(error())),
                Operation::Read(_) | Operation::Look(_) => Outcome::Page(Err(error())),
                operation => panic!("{operation:?} is not held"),
            });
        }
    }

    fn ask<T>(&self, ticket: &Ticket, ask: impl FnOnce(&Ticket) -> Answer<T>) -> Answer<T> {
        if !self.held.lock().unwrap().is_some_and(|which| which(&ticket.operation)) {
            return ask(ticket);
        }
        let relay = Arc::new(Relay { ticket: ticket.clone(), answers: Arc::clone(&self.answers) });
        let asker: Arc<dyn Complete> = Arc::clone(&relay) as _;
        self.relays.lock().unwrap().push(relay);
        let answer = ask(&Ticket { to: Arc::downgrade(&asker), ..ticket.clone() });
        assert!(matches!(answer, Answer::Later), "a store on a disk takes its time");
        answer
    }
}

impl EventStore for AnyOrder {
    passes_on!(
        append take withdraw release unwatch settle drop_stream drop_session sweep usage answers_elsewhere outlives_process
    );

    fn hold(&self, session: &str, hold: &Hold, ticket: &Ticket) -> Answer<Vec<RunningLog>> {
        self.ask(ticket, |ticket| self.inner.hold(session, hold, ticket))
    }

    fn attach(&self, session: &str, attach: &Attach, ticket: &Ticket) -> Answer<Attached> {
        self.ask(ticket, |ticket| self.inner.attach(session, attach, ticket))
    }

    fn read(&self, key: &StreamKey, after: Seq, limit: ReadLimit, ticket: &Ticket) -> Answer<LogPage> {
        self.ask(ticket, |ticket| self.inner.read(key, after, limit, ticket))
    }

    fn abandon(&self, key: &StreamKey, ticket: &Ticket) {
        self.answers.lock().unwrap().retain(|(held, _)| held.number != ticket.number);
        self.inner.abandon(key, ticket);
    }

    fn watch(&self, session: &Arc<str>, watcher: &Watcher) {
        self.inner.watch(session, watcher);
    }
}
