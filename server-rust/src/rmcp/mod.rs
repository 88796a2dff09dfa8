//! The engine behind rmcp's `StreamableHttpService`.

mod application;
mod boxed;
mod context;
mod events;
mod ids;
mod inbox;
mod lean;
mod messages;
mod recent;
mod served;
mod sessions;
mod transport;

pub use application::RmcpServer;
pub use context::ResumableContext;
pub use sessions::{Sessions, SessionsError};
