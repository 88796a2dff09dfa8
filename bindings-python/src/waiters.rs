//! Who waits for what on one event loop.
//!
//! The core wakes a key; the key's future is resolved at the end of the native call that caused it,
//! when no lock is held. On the loop's own thread that is a direct call, from another thread it goes
//! through `call_soon_threadsafe`. No Rust thread is involved, so none ever attaches to the
//! interpreter.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use pyo3::intern;
use pyo3::prelude::*;
use tailrope_core::engine::Wake;

/// Loops with keys that were woken and not resolved yet.
static DIRTY: Mutex<Vec<Arc<Shared>>> = Mutex::new(Vec::new());
static ANY_DIRTY: AtomicBool = AtomicBool::new(false);

pub(crate) struct Shared {
    thread: ThreadId,
    /// Called from other threads; arranges for `resolve` on the loop's thread.
    notify: Py<PyAny>,
    state: Mutex<State>,
    next_key: AtomicU64,
}

#[derive(Default)]
struct State {
    listed: bool,
    woken: Vec<u64>,
    waiting: HashMap<u64, Py<PyAny>>,
    /// Woken before anybody waited.
    early: HashSet<u64>,
}

/// What the core gets: a loop that can be woken.
pub(crate) struct Waker(pub(crate) Arc<Shared>);

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
    pub(crate) fn key(&self) -> u64 {
        self.next_key.fetch_add(1, Ordering::Relaxed)
    }

    /// Resolves the futures of all woken keys. On the loop's thread only.
    fn resolve(&self, py: Python<'_>) -> PyResult<()> {
        let mut futures = Vec::new();
        {
            let mut state = lock(&self.state);
            state.listed = false;
            let State { woken, waiting, early, .. } = &mut *state;
            for key in woken.drain(..) {
                match waiting.remove(&key) {
                    Some(future) => futures.push(future),
                    None => {
                        early.insert(key);
                    }
                }
            }
        }
        for future in futures {
            let future = future.into_bound(py);
            if !future.call_method0(intern!(py, "done"))?.is_truthy()? {
                future.call_method1(intern!(py, "set_result"), (py.None(),))?;
            }
        }
        Ok(())
    }
}

/// Resolves what the native call that is about to return has woken, and writes what it logged.
pub(crate) fn flush(py: Python<'_>) -> PyResult<()> {
    crate::log::flush(py);
    if !ANY_DIRTY.load(Ordering::Acquire) {
        return Ok(());
    }
    let dirty = {
        let mut dirty = lock(&DIRTY);
        ANY_DIRTY.store(false, Ordering::Release);
        std::mem::take(&mut *dirty)
    };
    let here = std::thread::current().id();
    for shared in dirty {
        if shared.thread == here {
            shared.resolve(py)?;
        } else if let Err(error) = shared.notify.call0(py) {
            // That loop is closed: nobody waits there any more.
            tracing::debug!(target: "tailrope", %error, "a loop could not be woken");
        }
    }
    Ok(())
}

/// The futures that wait on one event loop. To be made on the loop's thread.
#[pyclass(frozen, module = "tailrope._native")]
pub(crate) struct Waiters {
    pub(crate) shared: Arc<Shared>,
}

#[pymethods]
impl Waiters {
    #[new]
    fn new(notify: Py<PyAny>) -> Self {
        Self {
            shared: Arc::new(Shared {
                thread: std::thread::current().id(),
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
        if state.early.remove(&key) {
            return false;
        }
        // A future that is replaced is dropped after the lock.
        let replaced = state.waiting.insert(key, future);
        drop(state);
        drop(replaced);
        true
    }

    /// Forgets a key that nobody will wait for again.
    fn forget(&self, key: u64) {
        let waiting = {
            let mut state = lock(&self.shared.state);
            state.early.remove(&key);
            state.waiting.remove(&key)
        };
        drop(waiting);
    }

    /// Wakes a key from the host's side.
    fn wake(&self, py: Python<'_>, key: u64) -> PyResult<()> {
        Waker(Arc::clone(&self.shared)).wake(key);
        flush(py)
    }

    /// Resolves the futures of all woken keys. On the loop's thread only.
    fn resolve(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.resolve(py)
    }
}

/// What is behind these locks is consistent between calls, also after a panic elsewhere.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
