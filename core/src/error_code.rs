//! The codes of errors: one table for all languages.

use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        /// What went wrong, by a name that is stable and the same in every language.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $($(#[$doc])* $name,)*
        }

        impl ErrorCode {
            /// Every one of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Its name.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $code,)*
                }
            }
        }
    };
}

codes! {
    /// The engine was closed.
    Closed = "closed";
    /// The engine was made before a fork, and is used after it.
    Forked = "forked";
    /// The session has ended.
    SessionEnded = "session_ended";
    /// A session with this id is open.
    SessionExists = "session_exists";
    /// No further session fits.
    TooManySessions = "too_many_sessions";
    /// The message's request has its end already.
    Finished = "finished";
    /// Too many events wait for the store.
    Full = "full";

    /// The event is larger than the store takes.
    TooLarge = "too_large";
    /// The store holds as much as it may, and nothing of it can be freed.
    StoreFull = "store_full";
    /// As many messages wait for a session's owner as may.
    InboxFull = "inbox_full";
    /// There is no such log, or it has ended.
    Gone = "gone";
    /// The position is not the next one of the log.
    OutOfOrder = "out_of_order";
    /// The store lost events that it had.
    RolledBack = "rolled_back";
    /// Another process writes the log.
    Fenced = "fenced";
    /// The store could not be reached, or failed.
    StoreFailed = "store_failed";
    /// The store did not answer in time.
    StoreTimedOut = "store_timed_out";
    /// The store cannot be opened.
    StoreNotOpened = "store_not_opened";

    /// The client's server does not know the session.
    SessionLost = "session_lost";
    /// The client's server cannot continue the stream.
    StreamLost = "stream_lost";
    /// The client's server has no such stream.
    NoStream = "no_stream";
    /// The client's server wants other credentials.
    Unauthorized = "unauthorized";
    /// The client got an answer that no stream can start with.
    UnexpectedAnswer = "unexpected_answer";
    /// The client's stream has nothing that a resume could name.
    NotResumable = "not_resumable";
    /// Nothing came of the client's tries.
    GaveUp = "gave_up";
    /// An event is larger than the client takes.
    EventTooLarge = "event_too_large";

    /// A package does not fit under the MCP SDK that is there.
    UnsupportedSdk = "unsupported_sdk";
    /// An argument is not usable. Python raises `ValueError` or `TypeError` instead.
    InvalidArgument = "invalid_argument";
    /// Python: no event loop of asyncio runs here.
    NotAsyncio = "not_asyncio";
    /// Node: there is no native half for this platform.
    NativeMissing = "native_missing";
    /// Node: a call of Node-API failed.
    Internal = "internal";

    /// The test kit's server did not come to listen, or has ended.
    NotStarted = "not_started";
    /// The test kit's server cannot be killed and started again.
    NotRestartable = "not_restartable";
    /// The server did not take the test kit's connection, or broke it before it answered.
    NoConnection = "no_connection";
    /// The server answered the test kit something else than was asked for.
    Refused = "refused";
    /// Nothing came to the test kit in time.
    TimedOut = "timed_out";
    /// The test kit has no event id to resume after.
    NoCursor = "no_cursor";
    /// The test kit's connection is over, and had less than was waited for.
    EndedEarly = "ended_early";
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
