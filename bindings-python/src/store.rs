//! Event stores, by their address.

use std::process::id;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tailrope_core::store::{self, EventStore, StoreOptions};
use tailrope_stores::shown_address;

use crate::convert::not_opened;
use crate::options::store_options;

/// An event store that is open. Engines of one process may share it. What it was given is written by the
/// time the process exits; nothing has to be closed.
#[pyclass(frozen, module = "tailrope")]
pub(crate) struct Store {
    /// Where it is; may have a password in it, so nothing shows it.
    place: String,
    pub(crate) options: StoreOptions,
    /// The store, and the process that opened it. Locked with the interpreter held and never across a wait,
    /// so that no fork finds it locked.
    open: Mutex<Option<(u32, Arc<dyn EventStore>)>>,
}

impl Store {
    /// The store of this process: a child of a fork opens its own.
    pub(crate) fn here(&self, py: Python<'_>) -> PyResult<Arc<dyn EventStore>> {
        if let Some((pid, store)) = &*lock(&self.open)
            && *pid == id()
        {
            return Ok(Arc::clone(store));
        }
        let opened = open(py, &self.place, &self.options)?;
        // Outside of the lock: a store that goes away may wait for a disk.
        let before = lock(&self.open).replace((id(), Arc::clone(&opened)));
        drop(before);
        Ok(opened)
    }
}

#[pymethods]
impl Store {
    /// The address, without user, password and options.
    #[getter]
    fn address(&self) -> String {
        shown_address(&self.place)
    }

    /// Whether this process has opened it. A child of a fork has not.
    #[getter]
    fn is_open_here(&self) -> bool {
        lock(&self.open).as_ref().is_some_and(|(pid, _)| *pid == id())
    }

    /// Opens it for this process, where that has not. May wait for a disk or a network; others run meanwhile.
    fn open_here(&self, py: Python<'_>) -> PyResult<()> {
        self.here(py).map(drop)
    }

    fn __repr__(&self) -> String {
        format!("<tailrope.Store {}>", self.address())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// This may wait for a disk or a network; others run meanwhile.
fn open(py: Python<'_>, place: &str, options: &StoreOptions) -> PyResult<Arc<dyn EventStore>> {
    // Another hook of this thread's fork may be what opens it.
    crate::fork::forked();
    let opened = py.detach(|| tailrope_stores::open(place, options));
    crate::log::flush(py);
    opened.map_err(|error| not_opened(&error))
}

/// Opens the event store with this address. This may wait for a disk or a network.
#[pyfunction]
#[pyo3(signature = (address, **options))]
pub(crate) fn open_store(py: Python<'_>, address: String, options: Option<&Bound<'_, PyDict>>) -> PyResult<Store> {
    let options = store_options(options)?;
    let opened = open(py, &address, &options)?;
    Ok(Store { place: address, options, open: Mutex::new(Some((id(), opened))) })
}

/// How long a process that ends waits for a store to write what it was given.
const FLUSH: Duration = Duration::from_secs(5);

/// Waits until the store has done what it was asked.
pub(crate) fn flush(py: Python<'_>, store: &Arc<dyn EventStore>) {
    py.detach(|| store::flush(&**store, FLUSH));
}
