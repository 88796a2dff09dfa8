//! Who waits for what on one event loop.
//!
//! The core wakes a key; the key's future is resolved at the end of the native call that caused it,
//! when no lock is held. While the loop runs on this thread that is a direct call, otherwise it goes
//! through `call_soon_threadsafe`. No Rust thread is involved, so none ever attaches to the
//! interpreter.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tailrope_core::engine::Wake;

/// Loops with keys that were woken and not resolved yet.
static DIRTY: Mutex<Vec<Arc<Shared>>> = Mutex::new(Vec::new());
static ANY_DIRTY: AtomicBool = AtomicBool::new(false);

pub(crate) struct Shared {
    /// The address of the loop, to tell whether it is the one that runs here. Loops may change threads.
    event_loop: usize,
    /// Called from elsewhere; arranges for `resolve` on the loop's thread, and says whether it could.
    notify: Py<PyAny>,
    state: Mutex<State>,
    next_key: AtomicU64,
}

#[derive(Default)]
struct State {
    listed: bool,
    woken: Vec<u64>,
    /// One for each key in use, so that what is woken late leaves nothing behind.
    slots: HashMap<u64, Slot>,
}

#[derive(Default)]
enum Slot {
    /// Nobody waits.
    #[default]
    Idle,
    /// Woken before anybody waited.
    Woken,
    Waiting(Py<PyAny>),
}

/// A key in use, until it is dropped.
pub(crate) struct Key {
    shared: Arc<Shared>,
    pub(crate) number: u64,
}

impl Drop for Key {
    fn drop(&mut self) {
        self.shared.forget(self.number);
    }
}

/// What the core gets: a loop that can be woken.
struct Waker(Arc<Shared>);

impl Wake for Waker {
    fn wake(&self, key: u64) {
        let listed = {
            let mut state = lock(&self.0.state);
            state.woken.push(key);
            std::mem::replace(&mut state.listed, true)
        };
        if !listed {
            lock(&DIRTY).push(Arc::clone(&self.0));
            ANY_DIRTY.store(true, Ordering::Release);
        }
    }
}

impl Shared {
    /// A new key, and how the core wakes it.
    pub(crate) fn key(self: &Arc<Self>) -> (Key, Arc<dyn Wake>) {
        let number = self.next_key.fetch_add(1, Ordering::Relaxed);
        lock(&self.state).slots.insert(number, Slot::Idle);
        (Key { shared: Arc::clone(self), number }, Arc::new(Waker(Arc::clone(self))))
    }

    fn forget(&self, key: u64) {
        // What waits there is dropped after the lock.
        let slot = lock(&self.state).slots.remove(&key);
        drop(slot);
    }

    /// Resolves the futures of all woken keys. On the loop's thread only.
    fn resolve(&self, py: Python<'_>) {
        let mut futures = Vec::new();
        {
            let mut state = lock(&self.state);
            state.listed = false;
            let State { woken, slots, .. } = &mut *state;
            for key in woken.drain(..) {
                let Some(slot) = slots.get_mut(&key) else { continue };
                *slot = match std::mem::take(slot) {
                    Slot::Waiting(future) => {
                        futures.push(future);
                        Slot::Idle
                    }
                    Slot::Idle | Slot::Woken => Slot::Woken,
                };
            }
        }
        for future in futures {
            if let Err(error) = set_done(future.bind(py)) {
                // Its loop is closed. That is no matter of whoever happened to wake it.
                tracing::debug!(target: "tailrope", %error, "a waiter could not be woken");
            }
        }
    }

    /// The loop is gone: lets go of everything that waits there.
    fn abandon(&self) {
        let slots = {
            let mut state = lock(&self.state);
            state.listed = false;
            state.woken.clear();
            state.slots.values_mut().map(std::mem::take).collect::<Vec<_>>()
        };
        drop(slots);
    }
}

fn set_done(future: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = future.py();
    if !future.call_method0(intern!(py, "done"))?.is_truthy()? {
        future.call_method1(intern!(py, "set_result"), (py.None(),))?;
    }
    Ok(())
}

/// Resolves what the native call that is about to return has woken, and writes what it logged. Faults
/// of one loop are not those of another, and not the caller's.
pub(crate) fn flush(py: Python<'_>) {
    crate::log::flush(py);
    if !ANY_DIRTY.load(Ordering::Acquire) {
        return;
    }
    let dirty = {
        let mut dirty = lock(&DIRTY);
        ANY_DIRTY.store(false, Ordering::Release);
        std::mem::take(&mut *dirty)
    };
    let running = running_loop(py);
    for shared in dirty {
        if running == Some(shared.event_loop) {
            shared.resolve(py);
            continue;
        }
        let notified = shared.notify.call0(py).and_then(|told| told.is_truthy(py));
        if !notified.unwrap_or(false) {
            // That loop is closed: nobody waits there any more.
            tracing::debug!(target: "tailrope", "a loop could not be woken");
            shared.abandon();
        }
    }
}

/// The address of the loop that runs on this thread.
fn running_loop(py: Python<'_>) -> Option<usize> {
    static GET: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let found = GET.import(py, "asyncio", "_get_running_loop").and_then(|get| get.call0());
    found.ok().filter(|found| !found.is_none()).map(|found| found.as_ptr() as usize)
}

/// The futures that wait on one event loop. To be made where the loop runs.
#[pyclass(frozen, module = "tailrope._native")]
pub(crate) struct Waiters {
    pub(crate) shared: Arc<Shared>,
}

#[pymethods]
impl Waiters {
    #[new]
    fn new(py: Python<'_>, notify: Py<PyAny>) -> Self {
        Self {
            shared: Arc::new(Shared {
                event_loop: running_loop(py).unwrap_or_default(),
                notify,
                state: Mutex::default(),
                next_key: AtomicU64::new(1),
            }),
        }
    }

    /// Lets `future` wait for `key`. False when the key was woken since it was last waited for: then
    /// there is something to do already.
    fn park(&self, key: u64, future: Py<PyAny>) -> bool {
        let mut state = lock(&self.shared.state);
        let slot = state.slots.entry(key).or_default();
        if matches!(slot, Slot::Woken) {
            *slot = Slot::Idle;
            return false;
        }
        // A future that is replaced is dropped after the lock.
        let replaced = std::mem::replace(slot, Slot::Waiting(future));
        drop(state);
        drop(replaced);
        true
    }

    /// Forgets a key that nobody will wait for again.
    fn forget(&self, key: u64) {
        self.shared.forget(key);
    }

    /// Wakes a key from the host's side.
    fn wake(&self, py: Python<'_>, key: u64) {
        Waker(Arc::clone(&self.shared)).wake(key);
        flush(py);
    }

    /// Resolves the futures of all woken keys. On the loop's thread only.
    fn resolve(&self, py: Python<'_>) {
        self.shared.resolve(py);
    }

    /// How many keys are in use.
    #[getter]
    fn in_use(&self) -> usize {
        lock(&self.shared.state).slots.len()
    }
}

/// What is behind these locks is consistent between calls, also after a panic elsewhere.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
