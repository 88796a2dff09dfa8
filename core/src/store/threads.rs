//! The threads that a store waits for when it goes away.

use std::process::id;

use crate::sync::thread::{self, JoinHandle};

/// Threads of this process. The child of a fork has them not: to wait for one would be to wait for ever, or for
/// whatever came to be in its place.
pub struct Threads {
    of: u32,
    running: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Threads of this process.
    pub fn new(running: Vec<JoinHandle<()>>) -> Self {
        Self { of: id(), running }
    }

    /// The threads, for the store that goes away. None in the child of a fork, where it may not touch its locks.
    pub(super) fn take(&mut self) -> Option<Vec<JoinHandle<()>>> {
        let running = std::mem::take(&mut self.running);
        if self.of == id() {
            return Some(running);
        }
        // Not even detached.
        std::mem::forget(running);
        None
    }
}

/// Waits for them, unless this is one of them: an outcome may have let go of the last engine. The others wait for
/// that one, and all of them end when it goes on.
pub(super) fn join(threads: Vec<JoinHandle<()>>) {
    let me = thread::current().id();
    if threads.iter().all(|thread| thread.thread().id() != me) {
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}
