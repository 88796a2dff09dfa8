//! How calls end, for the operator: one table for every language, the log, the counters and the documentation.

use super::SynthesizedEnd;
use crate::protocol::{is_error, is_tool_error};

/// How bad an outcome is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// The call ended well. It is in the log only if every call is.
    Well,
    /// The caller got an error, and has it from the handler or from itself.
    Told,
    /// The call was lost for its caller.
    Lost,
    /// The server could not keep what it promises.
    Broken,
}

impl Weight {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Well => "well",
            Self::Told => "told",
            Self::Lost => "lost",
            Self::Broken => "broken",
        }
    }
}

macro_rules! outcomes {
    ($($(#[doc = $cause:literal])+ $name:ident = $word:literal, $weight:ident;)*) => {
        /// How a call ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Outcome {
            $($(#[doc = $cause])+ $name,)*
        }

        impl Outcome {
            /// All of them, in a fixed order.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Its name, the same in every language.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// What happened, in words.
            pub fn cause(self) -> &'static str {
                match self { $(Self::$name => concat!($($cause),+).trim_ascii(),)* }
            }

            /// How bad it is.
            pub fn weight(self) -> Weight {
                match self { $(Self::$name => Weight::$weight,)* }
            }
        }
    };
}

outcomes! {
    /// the handler gave a result
    Result = "result", Well;
    /// the handler gave a result that says that the tool failed
    ToolError = "tool_error", Told;
    /// the handler gave an error
    Error = "error", Told;
    /// the client cancelled the call
    Cancelled = "cancelled", Told;
    /// the client did not come back for max_detached_ms
    ClientGone = "client_gone", Lost;
    /// the call was not begun
    Refused = "refused", Lost;
    /// the server stopped before the call had ended
    Drained = "drained", Lost;
    /// the process that ran the call is gone, or was taken for gone
    OwnerGone = "owner_gone", Lost;
    /// the event store did not take the response, or lost events of the call
    StoreRefused = "store_refused", Broken;
    /// the response is larger than the server keeps, or its retention is over
    Limit = "limit", Broken;
    /// the session ended before the call
    SessionEnded = "session_ended", Told;
}

impl Outcome {
    /// The outcome of a call whose handler gave this response, whose values are skipped, not read.
    pub fn of_response(payload: &[u8]) -> Self {
        match (is_error(payload), is_tool_error(payload)) {
            (true, _) => Self::Error,
            (false, true) => Self::ToolError,
            (false, false) => Self::Result,
        }
    }
}

impl From<SynthesizedEnd> for Outcome {
    fn from(end: SynthesizedEnd) -> Self {
        match end {
            SynthesizedEnd::Cancelled => Self::Cancelled,
            SynthesizedEnd::SessionEnded => Self::SessionEnded,
            SynthesizedEnd::Draining | SynthesizedEnd::Stopped => Self::Drained,
            SynthesizedEnd::Unwritable => Self::Error,
            SynthesizedEnd::Unstored | SynthesizedEnd::StoreLost => Self::StoreRefused,
            SynthesizedEnd::TooLarge { .. } | SynthesizedEnd::Lost => Self::Limit,
            SynthesizedEnd::OwnerLost => Self::OwnerGone,
        }
    }
}
