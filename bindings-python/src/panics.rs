//! Panics of the core, as exceptions.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Runs a call. What the core has behind its locks is consistent also after a panic.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> PyResult<T> {
    let called = catch_unwind(AssertUnwindSafe(|| {
        #[cfg(feature = "testing")]
        planned::panic_if_due();
        call()
    }));
    called.map_err(|panic| PyRuntimeError::new_err(format!("the engine panicked: {}", words(&*panic))))
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word")
}

/// The native call of this number from here on panics, once; 0 is none. Only in builds for tests.
#[cfg(feature = "testing")]
#[pyfunction]
pub(crate) fn panic_in(calls: u32) {
    planned::LEFT.store(calls, std::sync::atomic::Ordering::Relaxed);
}

#[cfg(feature = "testing")]
mod planned {
    use std::sync::atomic::{AtomicU32, Ordering};

    pub(super) static LEFT: AtomicU32 = AtomicU32::new(0);

    pub(super) fn panic_if_due() {
        let left = LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        assert!(left != Ok(1), "planned by a test");
    }
}
