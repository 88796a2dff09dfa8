//! Streams of MCP Streamable HTTP that always come back, for clients written in Rust.
//!
//! A server may close a connection and be asked for the rest later (SEP-1699); a proxy or a sleeping laptop closes it
//! unasked. Here a stream outlives its connections: it waits the `retry` that it was told, resumes with
//! `Last-Event-ID`, and ends when its requests are answered or when nothing can come of it any more. The decisions
//! are [`tailrope_core::client`]'s; this crate makes the connections.
//!
//! - `HttpClient` (feature `hyper`, the default) posts and listens by itself.
//! - `Resumable` (feature `rmcp`) stands before an HTTP client of rmcp's Streamable HTTP transport.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod driver;
#[cfg(feature = "hyper")]
mod http_client;
#[cfg(feature = "rmcp")]
mod rmcp_client;

pub use driver::{Event, Events};
#[cfg(feature = "hyper")]
pub use http_client::{HttpClient, HttpError, Posted};
#[cfg(feature = "rmcp")]
pub use rmcp_client::{Resumable, StatusOf};
pub use tailrope_core::client::{Failure, Options, OptionsError, Token, TokenError};
