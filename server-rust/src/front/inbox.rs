//! What waits for the host.

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tailrope_core::engine::{SessionHandle, Wake};

use super::arrival::Arrival;

/// Requests and idle sessions, until the host takes them.
pub(super) struct Inbox {
    state: Mutex<State>,
    max_waiting: usize,
    wake: Arc<dyn Wake>,
    key: u64,
}

#[derive(Default)]
struct State {
    requests: Vec<Arrival>,
    /// By name: while the host does not come, the engine returns a session again and again.
    idle: HashMap<Box<str>, SessionHandle>,
    /// The host has been woken, and has not come yet.
    is_woken: bool,
    is_closed: bool,
}

impl Inbox {
    pub(super) fn new(max_waiting: usize, wake: Arc<dyn Wake>, key: u64) -> Self {
        Self { state: Mutex::default(), max_waiting, wake, key }
    }

    /// Puts a request in, and wakes the host. Returns the request if there is no room for it.
    pub(super) fn put(&self, request: Arrival) -> Result<(), Arrival> {
        let mut state = self.state();
        if state.is_closed || state.requests.len() >= self.max_waiting {
            drop(state);
            return Err(request);
        }
        state.requests.push(request);
        self.wake(state);
        Ok(())
    }

    pub(super) fn put_idle(&self, session: SessionHandle) {
        let mut state = self.state();
        if !state.is_closed {
            state.idle.insert(session.name().into(), session);
            self.wake(state);
        }
    }

    pub(super) fn take(&self) -> Vec<Arrival> {
        let mut state = self.state();
        state.is_woken = false;
        let (mut arrivals, idle) = (mem::take(&mut state.requests), mem::take(&mut state.idle));
        drop(state);
        arrivals.extend(idle.into_values().map(Arrival::Idle));
        arrivals
    }

    /// Takes nothing any more, and declines what waits.
    pub(super) fn close(&self) {
        self.state().is_closed = true;
        drop(self.take());
    }

    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let is_woken = mem::replace(&mut state.is_woken, true);
        drop(state);
        if !is_woken {
            self.wake.wake(self.key);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
