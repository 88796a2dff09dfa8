//! How a call ended, for the operator.

use bytes::Bytes;

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With this response.
    Answered(Bytes),
    /// The server gave no answer, or one that is no JSON-RPC.
    Unanswered,
    /// A client cancelled the task.
    Cancelled,
    /// The client closed its connection before there was a task, which cancels the call.
    ClientGone,
    /// No client asked for the task for as long as it may go on so.
    Unasked,
    /// The task ran longer than it may.
    TooLong,
    /// The answer is larger than what is kept of a task.
    TooLarge,
    /// The server asked for more input again and again, or for none that could be given.
    Unending,
    /// The store did not take how the task went on.
    Unstored,
}

impl Ending {
    /// What happened, in words, where the response does not say it.
    pub fn cause(&self) -> Option<&'static str> {
        Some(match self {
            Self::Answered(_) | Self::Cancelled | Self::Unstored => return None,
            Self::Unanswered => "the server gave no answer, or one that is no JSON-RPC",
            Self::ClientGone => "the client closed its connection before the call was a task",
            Self::Unasked => "no client asked for the task for max_detached_ms",
            Self::TooLong => "the task ran longer than it may",
            Self::TooLarge => "the answer is larger than what is kept of a task",
            Self::Unending => "the server wants more input again and again, or does not tell which",
        })
    }
}
