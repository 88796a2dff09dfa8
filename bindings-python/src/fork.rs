//! What a fork of the process must not come between.

use std::cell::RefCell;
use std::sync::MutexGuard;

use pyo3::prelude::*;
use tailrope_core::store::Forking;

use crate::log::{self, Queue};

/// What the thread that forks holds.
struct Held {
    stores: Forking,
    lines: MutexGuard<'static, Queue>,
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// To be called before this thread forks. Waits for the operations of stores in files that are under way.
#[pyfunction]
pub(crate) fn before_fork() {
    HELD.with_borrow_mut(|held| {
        if held.is_none() {
            // In this order: a store's thread that is at work may log.
            let stores = Forking::begin();
            *held = Some(Held { stores, lines: log::hold() });
        }
    });
}

/// To be called after the fork, in both processes.
#[pyfunction]
pub(crate) fn forked(is_child: bool) {
    if let Some(Held { stores, lines }) = HELD.take() {
        log::release(lines);
        if is_child {
            stores.in_child();
        }
    }
}
