//! Checks from outside whether an MCP server that speaks Streamable HTTP can be resumed: what its clients can rely on when
//! their connections end. It knows nothing of Tailrope's own servers, and needs no SDK.
//!
//! [`run`] is the command `tailrope` of every package; [`probe`] gives the report to a program.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod checks;
mod command;
mod facts;
mod options;
mod report;
mod session;
mod terminal;
mod wire;
mod words;

pub use command::{Command, UsageError, run};
pub use facts::{Kind, Server};
pub use options::Options;
pub use report::{Finding, Report, Resumable, Step, Unusable, Verdict, probe};
pub use words::{Check, Need, words};
