#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod client;
mod error_code;
pub mod exchange;
pub mod protocol;
pub mod task;
mod time;

// The machines are public for the tests, which ask them directly. What hosts use of them is re-exported by `engine` and `store`.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod session;
#[cfg(not(feature = "testing"))]
#[allow(dead_code, unreachable_pub, unused_imports)]
mod session;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod stream;
#[cfg(not(feature = "testing"))]
#[allow(dead_code, unreachable_pub, unused_imports)]
mod stream;

#[cfg(feature = "tls")]
#[doc(hidden)]
pub mod tls;

#[cfg(feature = "runtime")]
pub mod engine;
#[cfg(feature = "runtime")]
pub mod log_lines;
#[cfg(feature = "runtime")]
mod maps;
#[cfg(feature = "runtime")]
mod repeats;
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
