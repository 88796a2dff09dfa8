//! A store whose looks at logs are old: when they are told, their owners have given a sign meanwhile. Or they fail.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tailrope_core::Ms;
use tailrope_core::store::{
    Answer, Append, Attach, Attached, Complete, Epoch, EventStore, Hold, LogPage, Outcome, Owner, ReadLimit,
    RunningLog, StoreError, StreamKey, Ticket, Usage, Watcher,
};
use tailrope_core::stream::Seq;

/// Everything is done by the store within; this one knows of owners what was true long ago.
pub(crate) struct LateLooks {
    inner: Arc<dyn EventStore>,
    /// Every owner elsewhere counts as gone.
    pub(crate) sees_nobody: AtomicBool,
    /// No look is answered.
    pub(crate) sees_nothing: AtomicBool,
    /// Hints are lost.
    pub(crate) hears_nothing: AtomicBool,
    /// Looks that took an owner for gone.
    pub(crate) told: Arc<AtomicU64>,
    looks: Mutex<Vec<Arc<Look>>>,
}

/// Passes the answer to one question on.
struct Look {
    ticket: Ticket,
    told: Arc<AtomicU64>,
}

impl Complete for Look {
    fn complete(&self, _: &Ticket, outcome: Outcome) {
        let outcome = match outcome {
            Outcome::Page(Ok(LogPage { owner: Some(owner), is_finished: false, .. }))
                if owner.unseen_ms != u64::MAX =>
            {
                let Outcome::Page(Ok(page)) = outcome else { unreachable!("it was just looked at") };
                self.told.fetch_add(1, Ordering::SeqCst);
                Outcome::Page(Ok(LogPage { owner: Some(Owner { unseen_ms: u64::MAX, ..owner }), ..page }))
            }
            other => other,
        };
        self.ticket.complete(outcome);
    }
}

impl LateLooks {
    pub(crate) fn new(inner: Arc<dyn EventStore>) -> Arc<Self> {
        let (sees_nobody, sees_nothing, hears_nothing, told) = Default::default();
        Arc::new(Self { inner, sees_nobody, sees_nothing, hears_nothing, told, looks: Mutex::default() })
    }
}

impl EventStore for LateLooks {
    passes_on!(
        hold append attach take withdraw release unwatch settle drop_stream drop_session sweep usage answers_elsewhere outlives_process
    );

    fn read(&self, key: &StreamKey, after: Seq, limit: ReadLimit, ticket: &Ticket) -> Answer<LogPage> {
        if self.sees_nothing.load(Ordering::SeqCst) {
            return Answer::Now(Err(StoreError::Failed("it is away".to_owned())));
        }
        if !self.sees_nobody.load(Ordering::SeqCst) {
            return self.inner.read(key, after, limit, ticket);
        }
        let look = Arc::new(Look { ticket: ticket.clone(), told: Arc::clone(&self.told) });
        let asker: Arc<dyn Complete> = Arc::clone(&look) as _;
        self.looks.lock().unwrap().push(look);
        let answer = self.inner.read(key, after, limit, &Ticket { to: Arc::downgrade(&asker), ..ticket.clone() });
        assert!(matches!(answer, Answer::Later), "a store on a disk takes its time");
        answer
    }

    fn watch(&self, session: &Arc<str>, watcher: &Watcher) {
        if !self.hears_nothing.load(Ordering::SeqCst) {
            self.inner.watch(session, watcher);
        }
    }
}
