//! A wake-up that can be awaited.

use std::future::poll_fn;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tailrope_core::engine::Wake;

/// The engine wakes it, on any thread. A wake-up that comes before anybody waits counts for the next wait.
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

    /// Forgets a wake-up: the caller looks now at what it was for.
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
