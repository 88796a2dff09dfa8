//! Checks from outside whether an MCP server that speaks Streamable HTTP can be resumed: what its clients can rely on when
//! their connections end. It knows nothing of Tailrope's own servers, and needs no SDK.
//!
//! [`probe`] gives the report to a program; the crate `tailrope-cli` has the command.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod checks;
mod facts;
mod options;
mod report;
mod session;
mod wire;
mod words;

pub use facts::{Kind, Server};
pub use options::{Options, UsageError};
pub use report::{Counts, Finding, Report, Resumable, Step, Unusable, Verdict, probe};
pub use words::{Check, Need, words};
