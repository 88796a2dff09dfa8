//! Threads for a backend that waits while it reaches its logs.

use std::io;
use std::time::Duration;

use super::ask::{Fault, Kind, Op};
use super::queued::{Backend, Queued};
use super::{Mailbox, Take, Turn};
use crate::store::threads::Threads;
use crate::store::{Limits, Outcome};
use crate::sync::{Arc, thread};

/// How long what is left may take when the store is closed.
const CLOSING: Duration = Duration::from_secs(60);

/// A backend that does what it is asked in calls that wait. This, with [`Backend`], is all that a store of your own has
/// to be: [`Queued::start`] makes an event store of it.
pub trait BlockingBackend: Backend + 'static {
    /// Does these operations, all of one session, in their order: completely or not at all. Returns what became of
    /// each, in its place; none where nobody waits for it. One that is refused changes nothing, has its error as its
    /// outcome, and the others are done all the same.
    ///
    /// What an operation has to do is written at the method of [`EventStore`](crate::store::EventStore) that it is named
    /// after. Calls come from several threads, but never two at a time for one session. They tell
    /// no time: take that of a clock which all processes of the store share. The backend keeps the bounds of [`Limits`],
    /// except `max_event_bytes`: larger events do not come. A call that panics has done nothing, like one that fails with
    /// [`Kind::OfOne`].
    ///
    /// # Errors
    /// [`Fault`] when nothing was done, or it is not known whether anything was.
    fn run(&self, batch: &[Op]) -> Result<Vec<Option<Outcome>>, Fault>;
}

/// The fault of a batch whose code panicked.
fn panicked() -> Fault {
    Fault { what: "the code of the event store panicked".to_owned(), kind: Kind::OfOne, was_sent: false }
}

impl<B: BlockingBackend> Queued<Arc<B>> {
    /// Starts `threads` threads that bring operations to the backend, each a batch at a time. An operation is tried for
    /// `timeout_ms` milliseconds. Larger events than `max_event_bytes` of the limits are refused; the other limits are not
    /// looked at. Dropping the store does what waits, for a minute at most.
    ///
    /// # Errors
    /// When the operating system gives no thread.
    pub fn start(backend: Arc<B>, limits: &Limits, threads: usize, timeout_ms: u64) -> io::Result<Self> {
        const TAKE: Take = Take { changes: true, questions: true, sessions: 1, operations: 64, bytes: 1 << 20 };
        let mailbox = Arc::new(Mailbox::new(Duration::from_millis(timeout_ms), CLOSING));
        let start = |_| {
            let (mailbox, backend) = (Arc::clone(&mailbox), Arc::clone(&backend));
            let run = move || {
                while let Turn::Batch(batch) = mailbox.next_until(&TAKE, None) {
                    match mailbox.guard(|| backend.run(&batch)).unwrap_or_else(|| Err(panicked())) {
                        Ok(outcomes) => mailbox.done(batch, outcomes),
                        Err(fault) => mailbox.failed(batch, &fault),
                    }
                }
            };
            thread::Builder::new().name("tailrope-store".to_owned()).spawn(run)
        };
        let threads = (0..threads.max(1)).map(start).collect::<io::Result<Vec<_>>>()?;
        Ok(Self::new(mailbox, limits.max_event_bytes, Threads::new(threads), backend))
    }
}
