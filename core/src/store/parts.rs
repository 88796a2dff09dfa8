//! What stores are made of that reach their logs by workers of their own: for those of `tailrope-stores`. A store of your own needs
//! no more than a [`BlockingBackend`](super::BlockingBackend).

pub use super::inbox::log_lost;
pub use super::liveness::{Pulse, Sightings, beat_ms, next_beat};
pub use super::mailbox::{Ask, Backend, Fault, Kind, Mailbox, Op, Queued, Take, Turn};
pub use super::threads::Threads;
pub use super::watchers::NOT_HEARD;
