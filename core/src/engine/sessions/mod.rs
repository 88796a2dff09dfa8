//! Sessions: what is kept of one, how it is opened here or found elsewhere, and how it ends.

pub(crate) mod admitting;
pub(crate) mod adopting;
pub(crate) mod building;
pub(crate) mod cell;
pub(crate) mod change;
pub(crate) mod ends;
pub(crate) mod facts;
pub(crate) mod handle;
pub(crate) mod heirs;
pub(crate) mod inbox;
pub(crate) mod looking_up;
pub(crate) mod messages;
pub(crate) mod places;
pub(crate) mod posted;
pub(crate) mod released;
pub(crate) mod sending;
pub(crate) mod taking;
pub(crate) mod ticking;
pub(crate) mod timers;

pub use adopting::{Adopted, OfferWake};
pub use handle::{SessionHandle, WeakSession};
pub use looking_up::LookUp;
pub use messages::{OutgoingMessage, SendOutcome, Sent};
pub use posted::Posted;
