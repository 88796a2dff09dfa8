//! The engine behind rmcp's `StreamableHttpService`.

mod application;
mod boxed;
mod catch_panic;
mod context;
mod error;
mod events;
mod ids;
mod inbox;
mod layer;
mod lean;
mod messages;
mod recent;
mod served;
mod sessions;
mod transport;

pub use application::RmcpServer;
pub use catch_panic::CatchPanic;
pub use context::ResumableContext;
pub use error::SessionsError;
pub use layer::{SessionsLayer, WithRequest};
pub use sessions::Sessions;
