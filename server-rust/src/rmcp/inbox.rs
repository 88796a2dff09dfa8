//! What came for a session, until rmcp's loop takes it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use rmcp::model::ClientJsonRpcMessage;
use tokio::sync::Notify;

/// Messages that may wait. A client that sends faster than its session takes messages has to wait itself (I11).
const MAX_MESSAGES: usize = 64;

/// A queue. While it is empty, it keeps room for one message at most, because a thousand idle sessions have a queue
/// each.
#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    taken: Notify,
}

#[derive(Default)]
struct State {
    messages: VecDeque<ClientJsonRpcMessage>,
    is_closed: bool,
    /// rmcp's loop, while it waits for a message. Only the loop takes messages.
    taker: Option<Waker>,
}

impl Inbox {
    /// Whether there is room. True also when the queue is closed, and takes nothing any more.
    pub(crate) fn has_room(&self) -> bool {
        let state = self.state();
        state.is_closed || state.messages.len() < MAX_MESSAGES
    }

    /// Waits until there is room.
    pub(crate) async fn room(&self) {
        loop {
            let taken = self.taken.notified();
            if self.has_room() {
                return;
            }
            taken.await;
        }
    }

    /// Adds a message. False if the session has ended: nobody takes the message then.
    pub(crate) fn put(&self, message: ClientJsonRpcMessage) -> bool {
        let mut state = self.state();
        if state.is_closed {
            return false;
        }
        if state.messages.is_empty() {
            // Usually no other message comes before this one is taken.
            state.messages.reserve_exact(1);
        }
        state.messages.push_back(message);
        wake(state);
        true
    }

    /// The next message; none when the session has ended. No message is lost if the caller stops waiting.
    pub(crate) async fn take(&self) -> Option<ClientJsonRpcMessage> {
        poll_fn(|cx| self.poll_take(cx)).await
    }

    fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Option<ClientJsonRpcMessage>> {
        let mut state = self.state();
        if let Some(message) = state.messages.pop_front() {
            if state.messages.is_empty() && state.messages.capacity() > 1 {
                state.messages = VecDeque::new();
            }
            drop(state);
            self.taken.notify_waiters();
            return Poll::Ready(Some(message));
        }
        if state.is_closed {
            return Poll::Ready(None);
        }
        if !state.taker.as_ref().is_some_and(|taker| taker.will_wake(cx.waker())) {
            state.taker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Takes nothing any more. Returns what waits: nobody takes that, if rmcp's loop has ended.
    pub(crate) fn close(&self) -> VecDeque<ClientJsonRpcMessage> {
        let mut state = self.state();
        state.is_closed = true;
        let left = std::mem::take(&mut state.messages);
        wake(state);
        self.taken.notify_waiters();
        left
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes rmcp's loop if it waits for a message. Releases the lock first.
fn wake(mut state: MutexGuard<'_, State>) {
    let taker = state.taker.take();
    drop(state);
    if let Some(taker) = taker {
        taker.wake();
    }
}
