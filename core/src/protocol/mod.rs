//! The MCP wire: revision rules, JSON-RPC envelopes, admission of HTTP requests, server-sent events
//! and event ids.
//!
//! Pure: every function is computed from its arguments. There is no I/O, clock, randomness, async or
//! lock here, and nothing is remembered but what a [`Decoder`] has not given out yet. Nonces and
//! times come from the caller. That makes each rule a table of inputs and outputs, kept in
//! `tests/vectors` and read by all languages.
//!
//! Rules cite the requirement behind them: `W-nnn` is a requirement of the transport's revisions or
//! of the HTML standard, `F-nn` a fault that was reported against an SDK, `I-n` an invariant of the
//! design.
//!
//! | module | what it decides | requirements |
//! |---|---|---|
//! | [`revision`] | what a revision allows | W-013, W-022, W-026, W-040, W-041, W-063, W-069, W-088, W-093 |
//! | [`jsonrpc`], [`request_id`] | what a message is | W-002, W-012 to W-014, W-090, W-095 |
//! | [`admission`] | which requests enter a session | W-011, W-015 to W-017, W-029, W-051, W-080 to W-094 |
//! | [`refusal`] | what a request is answered that is not taken | W-016, W-029, W-083, W-084 |
//! | [`sse`] | how events are written | W-040, W-042, W-109, W-114, F-61 |
//! | [`sse_decoder`] | how events are read | W-100 to W-109, W-112, F-60, F-61, F-72 |
//! | [`event_id`] | how a position is named | W-060 to W-062, W-067, W-114 |

pub mod admission;
pub(crate) mod base64url;
mod envelope_error;
pub mod event_id;
pub(crate) mod fields;
mod hex;
mod incarnation;
#[cfg(feature = "testing")]
pub mod inspect;
pub(crate) mod json;
pub mod jsonrpc;
mod reason;
pub mod refusal;
pub mod request_id;
mod response;
pub mod revision;
pub mod sse;
pub(crate) mod sse_blocks;
pub mod sse_decoder;
mod tool_name;

pub use admission::{AcceptRule, Context, Dialect, Head, Operation, admit, admit_with_versions};
pub use event_id::{Cursor, EventId, IdEncoder, MAX_EVENT_ID_LEN, MAX_SEQ, MAX_VISIT, Origin, StreamNonce};
pub use hex::hex;
pub use incarnation::{Incarnation, Incoming};
pub use jsonrpc::{Body, Envelope, EnvelopeError, Fields, InitializeResult, Kind, Lasting, ListChanged};
pub use reason::Reason;
pub(crate) use refusal::retry_after_s;
pub use refusal::{ErrorId, NotRelayed, Refusal, Wording};
pub use request_id::{Names, RequestId};
pub(crate) use response::{is_error, is_tool_error};
pub use revision::{CLIENT_CAPABILITIES, Revision, Rules, TASKS_EXTENSION};
pub use sse_decoder::{Decoder, Event, EventTooLarge, Item};
pub use tool_name::ToolName;
