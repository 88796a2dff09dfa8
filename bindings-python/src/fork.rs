//! What a fork of the process must not come between.

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use tailrope_core::store::Forking;

use crate::log::{self, Queue};

/// Whose turn it is to fork. Hooks of others run while it is held, so that it is waited for without the interpreter.
static TURN: Mutex<()> = Mutex::new(());

/// What the thread that forks holds.
struct Held {
    lines: MutexGuard<'static, Queue>,
    stores: Forking,
    turn: MutexGuard<'static, ()>,
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// To be called before this thread forks. Waits for the operations of stores in files that are under way.
#[pyfunction]
pub(crate) fn before_fork(py: Python<'_>) {
    if HELD.with_borrow(Option::is_some) {
        return;
    }
    let turn = TURN.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
    // With the interpreter, so that nobody who has it finds these half held. The stores first: their threads log.
    let stores = Forking::begin();
    HELD.set(Some(Held { lines: log::hold(), stores, turn }));
}

/// To be called after the fork, in both processes; and before this thread waits for a store to be opened.
#[pyfunction]
pub(crate) fn forked() {
    if let Some(Held { lines, stores, turn }) = HELD.take() {
        log::release(lines);
        drop(stores);
        drop(turn);
    }
}
