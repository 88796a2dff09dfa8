//! Who waits for what on one JavaScript thread.
//!
//! The core wakes a key; JavaScript is told of all woken keys at the end of the native call that
//! caused it, when no lock is held. What the threads of a store or of a front wake is told by a threadsafe function
//! that carries nothing: it is weak, so nothing here holds the process open; at most one call of it is
//! under way; and one that fails is no loss: a wake-up is a hint, the log is the truth.

use std::cell::Cell;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use napi::Status;
use napi::bindgen_prelude::{Env, Function, FunctionRef};
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use tailrope_core::engine::{self, Wake};

use crate::convert::{Result, internal};

/// Calls a function without arguments on its own thread. Weak, and it throws nothing that we would hear of.
type Signal = ThreadsafeFunction<(), (), (), Status, false, true>;

/// What the core gets: keys that were woken and not told yet.
pub(crate) struct Woken {
    owner: ThreadId,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    keys: Vec<u32>,
    /// The signal was given and nobody has come for it.
    armed: bool,
    /// Only where other threads wake, and until the thread ends.
    signal: Option<Arc<Signal>>,
}

impl Woken {
    fn new() -> Self {
        Self { owner: thread::current().id(), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Vec<u32> {
        let mut state = self.lock();
        if state.keys.is_empty() { Vec::new() } else { std::mem::take(&mut state.keys) }
    }

    /// The thread of JavaScript ends: nobody comes any more.
    fn close(&self) {
        let signal = self.lock().signal.take();
        drop(signal);
    }
}

impl Wake for Woken {
    fn wake(&self, key: u64) {
        // Keys come from `Waiters::key`, which makes no larger ones.
        let key = u32::try_from(key).unwrap_or_default();
        let mut state = self.lock();
        state.keys.push(key);
        if state.armed || state.signal.is_none() || thread::current().id() == self.owner {
            // The next take finds this key, too; on the engine's own thread that is the call that returns.
            return;
        }
        let signal = state.signal.clone();
        state.armed = true;
        drop(state);
        if let Some(signal) = signal {
            // Fails only while its thread ends.
            let _ = signal.call((), ThreadsafeFunctionCallMode::NonBlocking);
        }
    }
}

/// The one who waits, with the function that is told. Shared by an engine and what it opened.
pub(crate) struct Waiters {
    woken: Arc<Woken>,
    resolve: FunctionRef<Vec<u32>, ()>,
    log: crate::log::Sink,
    next_key: Cell<u32>,
    /// The one that is let go of when the thread ends.
    engine: Cell<Option<engine::Engine>>,
}

impl Waiters {
    pub(crate) fn new(resolve: Function<'_, Vec<u32>, ()>, log: crate::log::Sink) -> Result<Rc<Self>> {
        let resolve = resolve.create_ref().map_err(internal)?;
        Ok(Rc::new(Self {
            woken: Arc::new(Woken::new()),
            resolve,
            log,
            next_key: Cell::new(1),
            engine: Cell::default(),
        }))
    }

    /// Has `signal` called on this thread when other threads wake something for `engine`; it is to call
    /// [`flush_signalled`](Self::flush_signalled).
    pub(crate) fn open_signal(
        self: &Rc<Self>,
        env: &Env,
        engine: &engine::Engine,
        signal: &Function<'_, (), ()>,
    ) -> Result<()> {
        if self.woken.lock().signal.is_some() {
            return Ok(());
        }
        let built = signal.build_threadsafe_function::<()>().callee_handled::<false>().weak::<true>().build();
        self.woken.lock().signal = Some(Arc::new(built.map_err(internal)?));
        // A thread of JavaScript that ends does not end its sessions, and what they hold goes with it.
        let hook = move |me: Weak<Self>| {
            if let Some(me) = me.upgrade() {
                me.woken.close();
                me.engine.take().inspect(engine::Engine::release);
            }
        };
        self.engine.set(Some(engine.clone()));
        env.add_env_cleanup_hook(Rc::downgrade(self), hook).map_err(internal)?;
        Ok(())
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
        crate::telemetry::flush(env);
        let keys = self.woken.take();
        if keys.is_empty() {
            return;
        }
        // The function is ours and does not throw; it fails only while its thread is torn down.
        let _ = self.resolve.borrow_back(env).and_then(|resolve| resolve.call(keys));
    }

    /// Tells what other threads have woken, and writes what they logged.
    pub(crate) fn flush_signalled(&self, env: &Env) {
        // First the flag, then the keys: what is woken meanwhile is among them, or signals again.
        self.woken.lock().armed = false;
        self.log.flush_others(env);
        crate::telemetry::flush_others(env);
        self.flush(env);
    }
}

impl Drop for Waiters {
    fn drop(&mut self) {
        self.woken.close();
    }
}
