//! What a fork of the process must not come between.

use std::cell::RefCell;
use std::process::id;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use tailrope_stores::Forking;

use crate::log::{self, Queue};

/// Whose turn it is to fork. Hooks of others run while it is held, so that it is waited for without the interpreter.
static TURN: Mutex<()> = Mutex::new(());
/// The process that this module was last told of.
static PID: AtomicU32 = AtomicU32::new(0);
/// How many forks are between the first process and this one.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// To be called first of all.
pub(crate) fn begin() {
    PID.store(id(), Ordering::Relaxed);
}

/// What the thread that forks holds.
struct Locks {
    lines: MutexGuard<'static, Queue>,
    stores: Forking,
    turn: MutexGuard<'static, ()>,
}

thread_local! {
    static LOCKS: RefCell<Option<Locks>> = const { RefCell::new(None) };
}

/// To be called before this thread forks. Waits for the operations of stores in files that are under way.
#[pyfunction]
pub(crate) fn before_fork(py: Python<'_>) {
    if LOCKS.with_borrow(Option::is_some) {
        return;
    }
    let turn = TURN.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
    // With the interpreter, so that nobody who has it finds these half held. The stores first: their threads log.
    let stores = Forking::begin();
    LOCKS.set(Some(Locks { lines: log::hold(), stores, turn }));
}

/// To be called after the fork, in both processes; and before this thread waits for a store to be opened.
#[pyfunction]
pub(crate) fn forked() {
    // Also where a host tells of its fork only afterwards.
    if PID.swap(id(), Ordering::Relaxed) != id() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    if let Some(Locks { lines, stores, turn }) = LOCKS.take() {
        log::release(lines);
        drop(stores);
        drop(turn);
    }
}

/// What a process made. A child of a fork may not touch the locks of it: a thread that is not there may hold them.
#[derive(Clone, Copy)]
pub(crate) struct Made(u64);

impl Made {
    pub(crate) fn here() -> Self {
        Self(GENERATION.load(Ordering::Relaxed))
    }

    pub(crate) fn is_foreign(self) -> bool {
        self.0 != GENERATION.load(Ordering::Relaxed)
    }
}
