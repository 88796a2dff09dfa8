//! The native half of the npm package `tailrope`. It holds no protocol decision: every class wraps a
//! handle of `tailrope-core`, and every rule about events and cursors is in there.
//!
//! Everything happens on the JavaScript thread that calls, and all state hangs on the objects that
//! it made, so several workers in a process do not meet. Threads that stores and fronts have wake a JavaScript
//! thread and do nothing else to it.

mod admission;
mod adopted;
mod client;
mod client_tasks;
mod command;
mod connection;
mod convert;
mod engine;
mod front;
mod hook_log;
#[cfg(feature = "testing")]
mod inspect;
mod log;
mod look_up;
mod posted;
mod session;
mod store;
mod tasks;
mod telemetry;
mod waiters;
