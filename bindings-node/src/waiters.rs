//! Who waits for what on one JavaScript thread.
//!
//! The core wakes a key; JavaScript is told of all woken keys at the end of the native call that
//! caused it, when no lock is held. No other thread is involved, so nothing here holds the process
//! open, and no event can be lost on the way: a wake-up is a hint, the log is the truth.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use napi::bindgen_prelude::{Env, Function, FunctionRef};
use tailrope_core::engine::Wake;

use crate::convert::{Result, internal};

/// What the core gets: keys that were woken and not told yet.
#[derive(Default)]
pub(crate) struct Woken(Mutex<Vec<u32>>);

impl Wake for Woken {
    fn wake(&self, key: u64) {
        // Keys come from `Waiters::key`, which makes no larger ones.
        let key = u32::try_from(key).unwrap_or_default();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(key);
    }
}

/// The one who waits, with the function that is told. Shared by an engine and what it opened.
pub(crate) struct Waiters {
    woken: Arc<Woken>,
    resolve: FunctionRef<Vec<u32>, ()>,
    log: crate::log::Sink,
    next_key: Cell<u32>,
}

impl Waiters {
    pub(crate) fn new(resolve: Function<'_, Vec<u32>, ()>, log: crate::log::Sink) -> Result<Rc<Self>> {
        let resolve = resolve.create_ref().map_err(internal)?;
        Ok(Rc::new(Self { woken: Arc::default(), resolve, log, next_key: Cell::new(1) }))
    }

    pub(crate) fn wake(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.woken) as Arc<dyn Wake>
    }

    /// A key that nobody waits for. 0 is never used; after four thousand million ones the first ones
    /// come again, when their connections are long gone.
    pub(crate) fn key(&self) -> u32 {
        let key = self.next_key.get();
        self.next_key.set(key.checked_add(1).unwrap_or(1));
        key
    }

    /// Tells what the native call that is about to return has woken, and writes what it logged.
    pub(crate) fn flush(&self, env: &Env) {
        self.log.flush(env);
        let keys = {
            let mut keys = self.woken.0.lock().unwrap_or_else(PoisonError::into_inner);
            if keys.is_empty() {
                return;
            }
            std::mem::take(&mut *keys)
        };
        // The function is ours and does not throw; it fails only while its thread is torn down.
        let _ = self.resolve.borrow_back(env).and_then(|resolve| resolve.call(keys));
    }
}
