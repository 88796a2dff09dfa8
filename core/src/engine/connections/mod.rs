//! Connections: how they come, what they are answered, and what they are given.

pub(crate) mod answers;
pub(crate) mod conn;
pub(crate) mod connection;
pub(crate) mod cuts;
pub(crate) mod gathering;
pub(crate) mod opening;
pub(crate) mod phases;
pub(crate) mod poll;
pub(crate) mod relay;
pub(crate) mod relays;
pub(crate) mod replays;
pub(crate) mod seeks;
pub(crate) mod serving;
pub(crate) mod steering;

pub use connection::Connection;
pub use poll::{Chunk, NoWake, Poll, Wake};
