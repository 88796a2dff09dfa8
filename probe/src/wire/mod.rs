//! HTTP/1.1 that hides nothing: each request has a connection of its own, which is read as bytes come and can be cut at
//! any time, beside others. Knows nothing of MCP but the form of its messages; nothing is retried.

mod blocks;
mod endpoint;
mod exchange;
mod tls;

pub(crate) use blocks::{Block, Message, is_marked};
pub(crate) use endpoint::{Endpoint, NoAnswer, Why};
pub(crate) use exchange::{Exchange, State};
