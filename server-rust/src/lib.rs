//! MCP Streamable HTTP for servers written in Rust: a stream outlives its connections.
//!
//! A call goes on when its connection breaks, and when the server closes it (SEP-1699). Its client comes back with
//! `Last-Event-ID` and is sent exactly what it has not got yet. The decisions are the [engine](Engine)'s; this crate gives it a
//! clock, HTTP, and messages.
//!
//! - `Sessions` (feature `rmcp`) is the session manager of rmcp's `StreamableHttpService`: one changed line.
//! - [`TailropeService`] is a tower service in the place of rmcp's, `TailropeService::new` (feature `rmcp`), and for handlers without an
//!   SDK, [`TailropeService::json_rpc`]. There the engine has the whole exchange: statuses, who asks, priming, comments and gaps.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod close;
mod dialect;
mod hearing;
mod host;
mod json_rpc;
mod outcomes;
mod pages;
#[cfg(feature = "rmcp")]
mod rmcp;
mod sender;
mod service;
mod signal;

pub use self::close::{Close, Drain};
pub use self::json_rpc::{Call, Handler, JsonRpcServer, RpcError};
#[cfg(feature = "rmcp")]
pub use self::rmcp::{ResumableContext, RmcpServer, Sessions, SessionsError};
pub use self::service::{ResponseBody, ServiceConfig, TailropeService};
pub use tailrope_core::engine::{Engine, EngineError, Options, Stats};

/// Event stores, by their address.
pub mod store {
    pub use tailrope_core::store::{Durability, EncryptionKey, EventStore, Limits, OpenError, StoreOptions, open};
}
