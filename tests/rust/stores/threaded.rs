//! A store that does everything on another thread, one thing after the other: no answer is there when a
//! call returns.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use tailrope_core::Ms;
use tailrope_core::store::{
    Answer, Append, EventStore, Limits, MemoryStore, Outcome, ReadLimit, Record, SessionRecord, StoreError, StreamKey,
    Ticket, Usage,
};
use tailrope_core::stream::{Page, Seq};

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
    fn append(&self, now: Ms, key: &StreamKey, append: &Append, ticket: &Ticket) -> Answer<()> {
        let (key, append) = (key.clone(), append.clone());
        self.ask(ticket, move |store, ticket| store.append(now, &key, &append, ticket), Outcome::Done)
    }

    fn read(&self, key: &StreamKey, after: Seq, limit: ReadLimit, ticket: &Ticket) -> Answer<Page> {
        let key = key.clone();
        self.ask(ticket, move |store, ticket| store.read(&key, after, limit, ticket), Outcome::Page)
    }

    fn record(&self, key: &StreamKey, ticket: &Ticket) -> Answer<Option<Record>> {
        let key = key.clone();
        self.ask(ticket, move |store, ticket| store.record(&key, ticket), Outcome::Record)
    }

    fn put_session(&self, now: Ms, session: &str, record: &SessionRecord) {
        let (session, record) = (session.to_owned(), record.clone());
        self.put(move |store| store.put_session(now, &session, &record));
    }

    fn session(&self, now: Ms, session: &str, ticket: &Ticket) -> Answer<Option<SessionRecord>> {
        let session = session.to_owned();
        self.ask(ticket, move |store, ticket| store.session(now, &session, ticket), Outcome::Session)
    }

    fn settle(&self, key: &StreamKey, seq: Seq) {
        let key = key.clone();
        self.put(move |store| store.settle(&key, seq));
    }

    fn drop_stream(&self, key: &StreamKey) {
        let key = key.clone();
        self.put(move |store| store.drop_stream(&key));
    }

    fn drop_session(&self, session: &str) {
        let session = session.to_owned();
        self.put(move |store| store.drop_session(&session));
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
