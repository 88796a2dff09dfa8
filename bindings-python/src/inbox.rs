//! Keys that were woken, on their way to one event loop.
//!
//! The core wakes on any thread: inside a native call, or on a thread of a store. The first are told when
//! the call returns, see `calling`. For the others the loop has a signal: an eventfd that its selector
//! watches, or where loops watch no descriptors a thread that waits. Nothing here touches the interpreter.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, Weak};

use tailrope_core::engine::Wake;

use crate::fork::Made;
use crate::waiters::{Shared, list_dirty};

thread_local! {
    static IN_CALL: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, this thread is inside a native call that tells what it woke when it returns.
pub(crate) struct InCall(bool);

impl InCall {
    pub(crate) fn begin() -> Self {
        Self(IN_CALL.replace(true))
    }
}

impl Drop for InCall {
    fn drop(&mut self) {
        IN_CALL.set(self.0);
    }
}

/// What the core gets: a loop that can be woken. Holds no Python object, so any thread may drop it.
pub(crate) struct Inbox {
    pub(crate) owner: Weak<Shared>,
    made: Made,
    state: Mutex<State>,
    /// For loops without a descriptor to watch.
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    woken: Vec<u64>,
    /// A native call will tell the loop.
    listed: bool,
    /// The signal was given and the loop has not come for it.
    armed: bool,
    /// The thread that waits for signals has seen this one, and tells the loop.
    seen: bool,
    signal: Signal,
}

#[derive(Default)]
enum Signal {
    /// No store of the loop's engines answers elsewhere.
    #[default]
    None,
    #[cfg(unix)]
    Descriptor(descriptor::Descriptor),
    Thread,
    /// Nobody waits there any more.
    Closed,
}

impl Inbox {
    pub(crate) fn new(owner: Weak<Shared>) -> Self {
        Self { owner, made: Made::here(), state: Mutex::default(), arrived: Condvar::new() }
    }

    /// Whether its loop is one of the parent's, and this a child of a fork.
    pub(crate) fn is_foreign(&self) -> bool {
        self.made.is_foreign()
    }

    /// None where nobody comes for its keys: a store's thread may have held the lock when the process forked.
    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        // What is behind the lock is consistent between calls, also after a panic elsewhere.
        (!self.is_foreign()).then(|| self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The keys that were woken since the last time.
    pub(crate) fn take(&self) -> Vec<u64> {
        let Some(mut state) = self.lock() else { return Vec::new() };
        state.listed = false;
        std::mem::take(&mut state.woken)
    }

    /// The same, for the receiver of the signal. A later wake-up gives the signal again.
    pub(crate) fn take_signalled(&self) -> Vec<u64> {
        let Some(mut state) = self.lock() else { return Vec::new() };
        #[cfg(unix)]
        if let Signal::Descriptor(descriptor) = &state.signal {
            descriptor.clear();
        }
        state.armed = false;
        state.seen = false;
        state.listed = false;
        std::mem::take(&mut state.woken)
    }

    /// Wakes from other threads give a signal from now on. With `watched` it is a descriptor.
    pub(crate) fn open_signal(&self, watched: bool) -> std::io::Result<Option<i32>> {
        #[cfg(unix)]
        if watched {
            let descriptor = descriptor::Descriptor::new()?;
            let number = descriptor.number();
            return Ok(self.lock().map(|mut state| {
                state.signal = Signal::Descriptor(descriptor);
                number
            }));
        }
        if !watched && let Some(mut state) = self.lock() {
            state.signal = Signal::Thread;
        }
        Ok(None)
    }

    /// Nobody comes for signals any more.
    pub(crate) fn close_signal(&self) {
        let Some(mut state) = self.lock() else { return };
        state.woken.clear();
        let closed = std::mem::replace(&mut state.signal, Signal::Closed);
        drop(state);
        drop(closed);
        self.arrived.notify_all();
    }

    /// Waits for the next signal, where it is no descriptor: one that the loop has not come for is not the next.
    /// False when it was closed.
    pub(crate) fn wait_signal(&self) -> bool {
        let waits = |state: &mut State| (!state.armed || state.seen) && !matches!(state.signal, Signal::Closed);
        let Some(state) = self.lock() else { return false };
        let mut state = self.arrived.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner);
        state.seen = true;
        !matches!(state.signal, Signal::Closed)
    }
}

impl Wake for Inbox {
    fn wake(&self, key: u64) {
        let Some(mut state) = self.lock() else { return };
        if matches!(state.signal, Signal::Closed) {
            return;
        }
        state.woken.push(key);
        if state.listed || state.armed {
            // The next take finds this key, too.
            return;
        }
        if IN_CALL.get() || matches!(state.signal, Signal::None) {
            state.listed = true;
            drop(state);
            list_dirty(self);
            return;
        }
        state.armed = true;
        match &state.signal {
            #[cfg(unix)]
            Signal::Descriptor(descriptor) => descriptor.give(),
            _ => self.arrived.notify_all(),
        }
    }
}

#[cfg(unix)]
mod descriptor {
    use std::io::{self, Read, Write};
    use std::os::fd::AsRawFd;

    #[cfg(target_os = "linux")]
    type End = std::fs::File;
    #[cfg(not(target_os = "linux"))]
    type End = std::os::unix::net::UnixStream;

    /// An eventfd on Linux, a pair of sockets elsewhere.
    pub(super) struct Descriptor {
        reader: End,
        /// None where it is the same one.
        writer: Option<End>,
    }

    impl Descriptor {
        #[cfg(target_os = "linux")]
        pub(super) fn new() -> io::Result<Self> {
            use std::os::fd::FromRawFd;

            // SAFETY: the call takes no pointers.
            let number = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: the descriptor was just opened, and nobody else has it.
            Ok(Self { reader: unsafe { End::from_raw_fd(number) }, writer: None })
        }

        #[cfg(not(target_os = "linux"))]
        pub(super) fn new() -> io::Result<Self> {
            let (reader, writer) = End::pair()?;
            reader.set_nonblocking(true)?;
            writer.set_nonblocking(true)?;
            Ok(Self { reader, writer: Some(writer) })
        }

        pub(super) fn number(&self) -> i32 {
            self.reader.as_raw_fd()
        }

        pub(super) fn give(&self) {
            let mut end = self.writer.as_ref().unwrap_or(&self.reader);
            // Fails only where it is readable already.
            let _ = end.write(&1_u64.to_ne_bytes());
        }

        pub(super) fn clear(&self) {
            // Fails only where there is nothing to read.
            let _ = (&self.reader).read(&mut [0; 8]);
        }
    }
}
