#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod adopting;
mod close;
#[cfg(feature = "front")]
pub mod front;
mod hearing;
mod host;
mod json_rpc;
mod live;
mod outcomes;
mod pages;
mod panics;
#[cfg(feature = "rmcp")]
mod rmcp;
mod sender;
mod service;
mod signal;
mod source;
mod table;
mod watching;

pub use self::close::{Close, Drain};
pub use self::json_rpc::{Call, Handler, JsonRpcServer, RpcError};
pub use self::live::Live;
#[cfg(feature = "rmcp")]
pub use self::rmcp::{CatchPanic, ResumableContext, RmcpServer, Sessions, SessionsError, SessionsLayer, WithRequest};
pub use self::sender::Identity;
pub use self::service::{ResponseBody, ServiceConfig, Stalled, TailropeService};
pub use self::watching::{Metrics, Readyz};
pub use tailrope_core::engine::{Engine, EngineError, Health, OnStoreFailure, Options, Pace, Paces, Pacing, Stats};

/// Event stores, opened by their address. To write a store of your own, use `tailrope_core::store`
/// (docs/stores/own-in-rust.md).
///
/// ```no_run
/// use tailrope_server::store::{StoreOptions, open};
/// use tailrope_server::{Engine, Options};
///
/// let store = open("redis://cache.internal", &StoreOptions::default())?; // waits for the network
/// let engine = Engine::new(Options { store: Some(store), ..Options::default() });
/// # drop(engine);
/// # Ok::<(), tailrope_server::store::OpenError>(())
/// ```
pub mod store {
    pub use tailrope_core::store::{Durability, EncryptionKey, EventStore, Limits, StoreError, StoreOptions};
    pub use tailrope_stores::{OpenError, open};
}
