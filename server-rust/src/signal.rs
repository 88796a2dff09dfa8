//! A wake-up, as a future that waits for it.

use std::future::poll_fn;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tailrope_core::engine::Wake;

/// Woken on any thread: by the engine, or by a queue that has something for its reader. A wake-up before anybody waits counts for the next
/// one who waits.
#[derive(Debug, Default)]
pub(crate) struct Signal(Mutex<Waiting>);

#[derive(Debug, Default)]
enum Waiting {
    #[default]
    Nobody,
    Woken,
    Task(Waker),
}

impl Signal {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn poll_woken(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut waiting = self.waiting();
        if matches!(*waiting, Waiting::Woken) {
            *waiting = Waiting::Nobody;
            return Poll::Ready(());
        }
        if !matches!(&*waiting, Waiting::Task(waker) if waker.will_wake(cx.waker())) {
            *waiting = Waiting::Task(cx.waker().clone());
        }
        Poll::Pending
    }

    pub(crate) fn is_woken(&self) -> bool {
        matches!(*self.waiting(), Waiting::Woken)
    }

    /// What it was woken for is looked at now.
    pub(crate) fn clear(&self) {
        let mut waiting = self.waiting();
        if matches!(*waiting, Waiting::Woken) {
            *waiting = Waiting::Nobody;
        }
    }

    pub(crate) async fn woken(&self) {
        poll_fn(|cx| self.poll_woken(cx)).await;
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Signal {
    fn wake(&self, _key: u64) {
        let before = mem::replace(&mut *self.waiting(), Waiting::Woken);
        if let Waiting::Task(waker) = before {
            waker.wake();
        }
    }
}
