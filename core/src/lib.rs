//! The engine behind Tailrope: MCP Streamable HTTP streams that survive their connections.
//!
//! **A stream is an append-only log. A connection is only a cursor over it.** Priming, live
//! delivery, replay, server-side close, polling, takeover and slow readers are one piece of code:
//! read the log after the cursor, write frames, wait.
//!
//! [`protocol`], [`stream`], [`session`], [`exchange`] and [`client`] are pure: no I/O, no clock, no randomness, no async, no
//! locks. They build without the `runtime` feature, which proves it. [`store`] keeps the logs,
//! [`engine`] drives the machines and performs their outputs.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod client;
mod error_code;
pub mod exchange;
pub mod protocol;
pub mod session;
pub mod stream;
mod time;
#[cfg(feature = "tls")]
#[doc(hidden)]
pub mod tls;

#[cfg(feature = "runtime")]
pub mod engine;
#[cfg(feature = "runtime")]
pub mod log_lines;
#[cfg(feature = "runtime")]
pub mod store;

/// What threads share in the engine and its stores is locked by these. `tests/shuttle` compiles both with others.
#[cfg(feature = "runtime")]
mod sync {
    pub(crate) use std::sync::*;
    pub(crate) use std::thread;
}

pub use error_code::ErrorCode;
pub use time::Ms;
