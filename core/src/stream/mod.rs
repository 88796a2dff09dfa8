//! The stream machine: one append-only log, read by at most one active connection.
//!
//! Nothing here knows MCP or HTTP. A payload is opaque bytes with an [`EventKind`]; positions are
//! [`Seq`] numbers, dense from 1, with 0 as the priming position. Time, connection numbers and
//! jitter come in as arguments, so the same inputs always give the same outputs.
//!
//! A machine is fed with [`Machine::handle`] and answers with [`Output`]s, which the caller performs
//! in order and whose results it feeds back as further inputs.

mod chain;
mod cuts;
mod event;
mod io;
mod link;
mod machine;
mod pacing;

pub use chain::{Chain, ChainKey, tag_of};
pub use cuts::{Cut, Cuts, Expected};
pub use event::{EventKind, NewEvent, Page, Seq, StoredEvent};
pub use io::{CloseReason, ConnectionId, Drain, Frame, Input, Output, Outputs, Refused, RejectReason, Spread};
pub use machine::{Follow, Machine, StreamRules};
pub use pacing::{AUTO, MAX_FLOOR_MS, Paced, Pacing, retry_floor_ms};
