//! Who waits for what on one event loop.
//!
//! The core wakes a key; the key's future is resolved at the end of the native call that caused it,
//! when no lock is held. While the loop runs on this thread that is a direct call, otherwise it goes
//! through `call_soon_threadsafe`. What the threads of a store wake reaches the loop by a signal that
//! it watches, see inbox.rs: no Rust thread ever attaches to the interpreter.

use std::collections::HashMap;
use std::process::id;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::{PyTraverseError, PyVisit};
use tailrope_core::engine::Wake;

use crate::inbox::{InCall, Inbox};
use crate::panics::caught;

/// Keys of all loops: some name their waiter also elsewhere than at its loop.
static NEXT_KEY: AtomicU64 = AtomicU64::new(1);

/// Loops with keys that were woken and not resolved yet.
static DIRTY: Mutex<Vec<Arc<Shared>>> = Mutex::new(Vec::new());
static ANY_DIRTY: AtomicBool = AtomicBool::new(false);

pub(crate) struct Shared {
    /// The address of the loop, to tell whether it is the one that runs here. Loops may change threads.
    event_loop: usize,
    /// Called from elsewhere; arranges for `resolve` on the loop's thread, and says whether it could.
    notify: Py<PyAny>,
    inbox: Arc<Inbox>,
    /// One for each key in use, so that what is woken late leaves nothing behind.
    slots: Mutex<HashMap<u64, Slot>>,
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

impl Key {
    /// Whether its loop is one of the parent's, and this a child of a fork.
    pub(crate) fn is_foreign(&self) -> bool {
        self.shared.inbox.is_foreign()
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.shared.forget(self.number);
    }
}

/// The loop of this inbox has woken keys, of which the end of a native call tells it.
pub(crate) fn list_dirty(inbox: &Inbox) {
    if let Some(shared) = inbox.owner.upgrade() {
        lock(&DIRTY).push(shared);
        ANY_DIRTY.store(true, Ordering::Release);
    }
}

impl Shared {
    /// A new key, and how the core wakes it.
    pub(crate) fn key(self: &Arc<Self>) -> (Key, Arc<dyn Wake>) {
        let number = NEXT_KEY.fetch_add(1, Ordering::Relaxed);
        lock(&self.slots).insert(number, Slot::Idle);
        (Key { shared: Arc::clone(self), number }, Arc::clone(&self.inbox) as _)
    }

    fn forget(&self, key: u64) {
        // What waits there is dropped after the lock.
        let slot = lock(&self.slots).remove(&key);
        drop(slot);
    }

    /// Resolves the futures of these keys. On the loop's thread only.
    fn resolve(&self, py: Python<'_>, woken: Vec<u64>) {
        let mut futures = Vec::new();
        {
            let mut slots = lock(&self.slots);
            for key in woken {
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
                // Its loop is closed. That does not concern the caller that woke it.
                tracing::debug!(target: "tailrope", %error, "a waiter could not be woken");
            }
        }
    }

    /// The loop is gone: lets go of everything that waits there.
    fn abandon(&self) {
        self.inbox.take();
        let slots = lock(&self.slots).values_mut().map(std::mem::take).collect::<Vec<_>>();
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

/// Runs a call into the core. What it woke is told when it returns. A panic becomes an exception of its caller: left to
/// PyO3, it would be none that anybody expects, and end every session of the process.
pub(crate) fn calling<T>(py: Python<'_>, call: impl FnOnce() -> T) -> PyResult<T> {
    let in_call = InCall::begin();
    let value = caught(call);
    drop(in_call);
    flush(py);
    value
}

/// Resolves what the native call that is about to return has woken, and writes what it logged. Faults
/// of one loop are not those of another, and not the caller's.
fn flush(py: Python<'_>) {
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
            shared.resolve(py, shared.inbox.take());
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
        let event_loop = running_loop(py).unwrap_or_default();
        let shared = Arc::new_cyclic(|me| Shared {
            event_loop,
            notify,
            inbox: Arc::new(Inbox::new(me.clone())),
            slots: Mutex::default(),
        });
        Self { shared }
    }

    /// Lets `future` wait for `key`. False when the key was woken since it was last waited for: then
    /// there is something to do already.
    fn park(&self, key: u64, future: Py<PyAny>) -> bool {
        let mut slots = lock(&self.shared.slots);
        let slot = slots.entry(key).or_default();
        if matches!(slot, Slot::Woken) {
            *slot = Slot::Idle;
            return false;
        }
        // A future that is replaced is dropped after the lock.
        let replaced = std::mem::replace(slot, Slot::Waiting(future));
        drop(slots);
        drop(replaced);
        true
    }

    /// Shows the garbage collector what waits here: the frames that wait lead back here. Nobody else shows it,
    /// though connections hold it, too.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // What cannot be seen now is seen the next time.
        let Ok(slots) = self.shared.slots.try_lock() else { return Ok(()) };
        for slot in slots.values() {
            if let Slot::Waiting(future) = slot {
                visit.call(future)?;
            }
        }
        Ok(())
    }

    fn __clear__(&self) {
        self.shared.abandon();
    }

    /// Forgets a key that nobody will wait for again.
    fn forget(&self, key: u64) {
        self.shared.forget(key);
    }

    /// Wakes a key from the host's side.
    fn wake(&self, py: Python<'_>, key: u64) -> PyResult<()> {
        calling(py, || self.shared.inbox.wake(key))
    }

    /// Resolves the futures of all woken keys. On the loop's thread only.
    fn resolve(&self, py: Python<'_>) {
        self.shared.resolve(py, self.shared.inbox.take());
    }

    /// Prepares the loop for wake-ups on threads that are not Python's. With `watched` by a descriptor,
    /// where the system has one for it: `Signal.descriptor` is None where it has not.
    fn open_signal(&self, watched: bool) -> PyResult<Signal> {
        let descriptor = self.shared.inbox.open_signal(watched)?;
        Ok(Signal {
            shared: Arc::downgrade(&self.shared),
            inbox: Arc::clone(&self.shared.inbox),
            descriptor,
            pid: id(),
            closed: AtomicBool::new(false),
        })
    }

    /// How many keys are in use.
    #[getter]
    fn in_use(&self) -> usize {
        lock(&self.shared.slots).len()
    }
}

/// What the threads of a store signal to one loop. It ends with the object, which the loop's selector holds:
/// so it ends with the loop.
#[pyclass(frozen, module = "tailrope._native")]
pub(crate) struct Signal {
    shared: Weak<Shared>,
    inbox: Arc<Inbox>,
    descriptor: Option<i32>,
    pid: u32,
    closed: AtomicBool,
}

#[pymethods]
impl Signal {
    /// What the loop watches for reading; None where a thread has to wait instead.
    #[getter]
    fn descriptor(&self) -> Option<i32> {
        self.descriptor
    }

    /// Resolves the futures of all woken keys. On the loop's thread only.
    fn resolve(&self, py: Python<'_>) {
        // First the signal, then the keys: what is woken meanwhile is among them, or signals again.
        let woken = self.inbox.take_signalled();
        if let Some(shared) = self.shared.upgrade() {
            shared.resolve(py, woken);
        }
        flush(py);
    }

    /// Waits for a signal, for loops that watch no descriptors. False when there will be none.
    fn wait(&self, py: Python<'_>) -> bool {
        py.detach(|| self.inbox.wait_signal())
    }

    /// Ends it: nobody comes any more.
    fn close(&self) {
        // Also where nobody told of a fork: the descriptor ends with the child.
        if self.pid == id() && !self.closed.swap(true, Ordering::Relaxed) {
            self.inbox.close_signal();
        }
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        self.close();
    }
}

/// What is behind these locks is consistent between calls, also after a panic elsewhere.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
