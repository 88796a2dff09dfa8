//! What goes into the machine of a call and what comes out.

use bytes::Bytes;

use crate::Ms;
use crate::task::call_headers::Header;
use crate::task::change::{Change, Kept, What};
use crate::task::ladder::Response;
use crate::task::reply::Reply;

/// The time of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// On the engine's clock, for everything that is measured.
    pub at: Ms,
    /// In milliseconds since 1970, for what clients read.
    pub unix_ms: u64,
}

/// What a call that may become a task is served by.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// A call that takes longer becomes a task. 0: every call that has no error at once.
    pub after_ms: u64,
    /// For how long a task may run.
    pub limit_ms: Option<u64>,
    /// For how long a task is there after its end.
    pub retention_ms: u64,
    /// Bytes of one record that the store takes.
    pub max_record_bytes: usize,
    /// Records, and bytes of them, that a log may have until a store trims it. A log that was trimmed cannot be read before it has
    /// its end.
    pub max_records: usize,
    /// See [`max_records`](Self::max_records).
    pub max_log_bytes: usize,
    /// The client takes a stream of events as an answer, and the SDK gives one.
    pub takes_streams: bool,
}

impl Settings {
    /// Whether a log with so much takes this, and can still be read. Answers have its last quarter: a client can answer what it
    /// was asked.
    pub(super) fn has_room(&self, kept: Kept, what: &What) -> bool {
        let quarters = match what {
            What::Message(_) | What::Ended(..) | What::Withdrawn { .. } => return true,
            What::Answered(_) => 4,
            What::Created { .. } | What::Round { .. } | What::Asked { .. } => 3,
        };
        let Kept { records, bytes } = kept.with(what);
        records <= self.max_records / 4 * quarters && bytes <= self.max_log_bytes / 4 * quarters
    }
}

/// Something that happened to a call.
///
/// Its runs are numbered: 0 is the call as it was posted, and each later one is a round that [`Output::Start`] began. What
/// comes of a run that is over counts for nothing.
#[derive(Clone, Debug)]
pub enum Input {
    /// The SDK sent a message in answer to the run.
    Message {
        /// The run.
        run: u32,
        /// JSON-RPC, alone.
        message: Bytes,
        /// It is the body of the answer, and not an event of a stream: it can be [passed on](Output::PassOn).
        is_body: bool,
    },
    /// The SDK answered, and not with JSON-RPC.
    NotJsonRpc {
        /// The run.
        run: u32,
        /// The HTTP status.
        status: u16,
    },
    /// Nothing more comes of the run.
    RunEnded {
        /// The run.
        run: u32,
    },
    /// The handler wants to ask its client.
    Question {
        /// The host's number of the question.
        ask: u64,
        /// What it asks: a JSON-RPC request, whose id counts for nothing.
        request: Bytes,
    },
    /// The handler waits for the answer no more.
    Withdrawn {
        /// The host's number of the question.
        ask: u64,
    },
    /// The client of the call closed its connection.
    ClientGone,
    /// A client answers questions of the task.
    Update {
        /// The host's number of the request.
        from: u64,
        /// The answers.
        responses: Vec<Response>,
    },
    /// A client ends the task.
    Cancel {
        /// The host's number of the request.
        from: u64,
    },
    /// The store has the changes up to this one.
    Stored {
        /// The number of the change.
        number: u64,
    },
    /// The store does not take this change, and so none after it.
    Unstored {
        /// The number of the change.
        number: u64,
    },
    /// Nobody asked for the task for as long as it may go on so.
    Unasked,
    /// Another process has the task.
    Fenced,
    /// [`Machine::deadline`](super::Machine::deadline) has come.
    Tick,
}

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Store the change behind those before it. The first one creates the task.
    Store {
        /// Its number, counted from 0.
        number: u64,
        /// The change.
        change: Change,
    },
    /// The store has changes that it did not have: polls that wait and subscribers may be told.
    Changed,
    /// Give this to the client of the call.
    Reply(Reply),
    /// Give the client of the call the SDK's answer as it is, with its status and headers.
    PassOn,
    /// The end of the client's connection is not the end of the run any more.
    Unlink,
    /// End the connection of the run, so that the SDK cancels its handler.
    Disconnect {
        /// The run.
        run: u32,
    },
    /// Cancel what is left of the run.
    Kill {
        /// The run.
        run: u32,
    },
    /// Post the call again.
    Start {
        /// The number of the run.
        run: u32,
        /// The update that had the last answer: the call is posted in the context of this request, whose credentials are fresh. None
        /// where the SDK wanted no answer.
        from: Option<u64>,
        /// The message.
        call: Bytes,
        /// All headers that [belong to the message](crate::task::is_of_message).
        headers: Vec<Header>,
    },
    /// The handler's question has an answer.
    Answer {
        /// The host's number of the question.
        ask: u64,
        /// The result, as JSON.
        result: Bytes,
    },
    /// The handler's question cannot be asked: it ends as the SDK ends it.
    Refuse {
        /// The host's number of the question.
        ask: u64,
    },
    /// The update or cancellation is done: [`acknowledged`](crate::task::acknowledged).
    Acknowledge {
        /// The host's number of the request.
        from: u64,
    },
    /// The update or cancellation is not done: [`not_taken`](crate::task::not_taken).
    NotTaken {
        /// The host's number of the request.
        from: u64,
    },
    /// The update is larger than what is kept of a task, and is never done: [`too_large`](crate::task::too_large).
    TooLarge {
        /// The host's number of the request.
        from: u64,
    },
}
