//! What came for a session, until rmcp's loop takes it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rmcp::model::ClientJsonRpcMessage;
use tokio::sync::Notify;

/// Messages that may wait. A client that sends faster than its session takes has to wait itself (I11).
const MAX_MESSAGES: usize = 64;

/// A queue that holds no memory while it is empty, as a thousand idle sessions have one each.
#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    arrived: Notify,
    taken: Notify,
}

#[derive(Default)]
struct State {
    messages: VecDeque<ClientJsonRpcMessage>,
    is_closed: bool,
}

impl Inbox {
    /// Waits until there is room, or nothing is taken any more.
    pub(crate) async fn room(&self) {
        loop {
            let taken = self.taken.notified();
            {
                let state = self.state();
                if state.is_closed || state.messages.len() < MAX_MESSAGES {
                    return;
                }
            }
            taken.await;
        }
    }

    /// False where the session has ended: nobody takes it.
    pub(crate) fn put(&self, message: ClientJsonRpcMessage) -> bool {
        {
            let mut state = self.state();
            if state.is_closed {
                return false;
            }
            if state.messages.is_empty() {
                // Mostly no other comes before it is taken.
                state.messages.reserve_exact(1);
            }
            state.messages.push_back(message);
        }
        self.arrived.notify_one();
        true
    }

    /// The next message; none when the session has ended. Loses nothing where the caller stops waiting.
    pub(crate) async fn take(&self) -> Option<ClientJsonRpcMessage> {
        loop {
            let arrived = self.arrived.notified();
            {
                let mut state = self.state();
                if let Some(message) = state.messages.pop_front() {
                    if state.messages.is_empty() {
                        state.messages = VecDeque::new();
                    }
                    drop(state);
                    self.taken.notify_waiters();
                    return Some(message);
                }
                if state.is_closed {
                    return None;
                }
            }
            arrived.await;
        }
    }

    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        self.arrived.notify_one();
        self.taken.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
