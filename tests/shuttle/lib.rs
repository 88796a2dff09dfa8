//! The engine and its stores in memory, compiled a second time with threads, locks and atomics that Shuttle schedules:
//! it decides which thread goes on at each of them, and a schedule that fails is printed and can be repeated.
//!
//! The source is the core's own. All that differs is what `crate::sync` is.
#![allow(dead_code, missing_docs, unused_imports, unreachable_pub, reason = "a part of the core, as it is there")]

#[path = "../../core/src/engine/mod.rs"]
pub mod engine;
#[path = "../../core/src/error_code.rs"]
mod error_code;
#[path = "../../core/src/exchange/mod.rs"]
pub mod exchange;
#[path = "../../core/src/maps.rs"]
mod maps;
#[path = "../../core/src/protocol/mod.rs"]
pub mod protocol;
#[path = "../../core/src/repeats.rs"]
mod repeats;
#[path = "../../core/src/session/mod.rs"]
pub mod session;
#[path = "../../core/src/store/mod.rs"]
pub mod store;
#[path = "../../core/src/stream/mod.rs"]
pub mod stream;
#[path = "../../core/src/task/mod.rs"]
pub mod task;
#[path = "../../core/src/time.rs"]
mod time;

pub use error_code::ErrorCode;
pub use time::Ms;

pub mod sync {
    pub use shuttle::sync::*;
    pub use shuttle::thread;

    /// Shuttle has none. Whoever comes second waits for the lock, where Shuttle can see it.
    #[derive(Default)]
    pub struct OnceLock<T> {
        gate: Mutex<()>,
        value: std::sync::OnceLock<T>,
    }

    impl<T> OnceLock<T> {
        pub fn new() -> Self {
            Self { gate: Mutex::new(()), value: std::sync::OnceLock::new() }
        }

        pub fn get_or_init(&self, init: impl FnOnce() -> T) -> &T {
            let gate = self.gate.lock();
            let value = self.value.get_or_init(init);
            drop(gate);
            value
        }
    }
}
