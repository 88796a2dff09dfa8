//! A store that does everything on another thread, one thing after the other: no answer is there when a
//! call returns.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use tailrope_core::Ms;
use tailrope_core::store::{
    Answer, Append, Attach, Attached, Epoch, EventStore, Hold, Limits, LogPage, MemoryStore, Outcome, ReadLimit,
    RunningLog, StoreError, StreamKey, Ticket, Usage,
};
use tailrope_core::stream::Seq;

type Job = Box<dyn FnOnce(&MemoryStore) + Send>;

pub(crate) struct ThreadedStore {
    inner: Arc<MemoryStore>,
    jobs: Mutex<Sender<Job>>,
}

impl ThreadedStore {
    pub(crate) fn new(limits: Limits) -> Self {
        let inner = Arc::new(MemoryStore::new(limits));
        let (jobs, todo) = channel::<Job>();
        let store = Arc::clone(&inner);
        std::thread::spawn(move || todo.iter().for_each(|job| job(&store)));
        Self { inner, jobs: Mutex::new(jobs) }
    }

    fn put(&self, job: impl FnOnce(&MemoryStore) + Send + 'static) {
        self.jobs.lock().unwrap().send(Box::new(job)).expect("the thread takes jobs");
    }

    fn ask<T>(
        &self,
        ticket: &Ticket,
        ask: impl FnOnce(&MemoryStore, &Ticket) -> Answer<T> + Send + 'static,
        outcome: impl FnOnce(Result<T, StoreError>) -> Outcome + Send + 'static,
    ) -> Answer<T> {
        let ticket = ticket.clone();
        self.put(move |store| match ask(store, &ticket) {
            Answer::Now(result) => ticket.complete(outcome(result)),
            Answer::Later => unreachable!("the memory store answers at once"),
        });
        Answer::Later
    }
}

impl EventStore for ThreadedStore {
    fn hold(&self, session: &str, hold: &Hold, ticket: &Ticket) -> Answer<Vec<RunningLog>> {
        let (session, hold) = (session.to_owned(), hold.clone());
        self.ask(ticket, move |store, ticket| store.hold(&session, &hold, ticket), Outcome::Held)
    }

    fn append(&self, now: Ms, key: &StreamKey, epoch: Epoch, append: &Append, ticket: &Ticket) -> Answer<()> {
        let (key, append) = (key.clone(), append.clone());
        self.ask(ticket, move |store, ticket| store.append(now, &key, epoch, &append, ticket), Outcome::Done)
    }

    fn attach(&self, session: &str, attach: &Attach, ticket: &Ticket) -> Answer<Attached> {
        let (session, attach) = (session.to_owned(), attach.clone());
        self.ask(ticket, move |store, ticket| store.attach(&session, &attach, ticket), Outcome::Attached)
    }

    fn read(&self, key: &StreamKey, after: Seq, limit: ReadLimit, ticket: &Ticket) -> Answer<LogPage> {
        let key = key.clone();
        self.ask(ticket, move |store, ticket| store.read(&key, after, limit, ticket), Outcome::Page)
    }

    fn release(&self, session: &str, epoch: Epoch) {
        let session = session.to_owned();
        self.put(move |store| store.release(&session, epoch));
    }

    fn settle(&self, key: &StreamKey, epoch: Epoch, seq: Seq) {
        let key = key.clone();
        self.put(move |store| store.settle(&key, epoch, seq));
    }

    fn drop_stream(&self, key: &StreamKey, epoch: Epoch) {
        let key = key.clone();
        self.put(move |store| store.drop_stream(&key, epoch));
    }

    fn drop_session(&self, session: &str, epoch: Epoch) {
        let session = session.to_owned();
        self.put(move |store| store.drop_session(&session, epoch));
    }

    fn sweep(&self, now: Ms) -> Ms {
        self.put(move |store| {
            store.sweep(now);
        });
        now + 1_000
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }
}
