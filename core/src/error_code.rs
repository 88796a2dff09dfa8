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

// docs/reference/errors.md is made of what follows: the first sentence says what happened, the others what to do.
codes! {
    // Engines and sessions
    /// The engine was closed. Make a new one; a process that goes away refuses new sessions so.
    Closed = "closed";
    /// A session, a connection or an engine was made before a fork, and is used after it. Make them in each process.
    Forked = "forked";
    /// The session has ended. Its client has to initialize a new one.
    SessionEnded = "session_ended";
    /// A session with this id is open. Choose another id.
    SessionExists = "session_exists";
    /// No further session fits: `max_sessions` are open, or `max_sessions_per_principal` of this user, and none of this
    /// user's is idle. Raise the bound that the log names, or have clients end their sessions.
    TooManySessions = "too_many_sessions";
    /// The message's request has its response already. Nothing is to be done: the first response counts.
    Finished = "finished";
    /// Too many events of one stream wait for the event store. Look at the store; send slower.
    Full = "full";

    // Event stores
    /// The event is larger than `max_event_bytes`. Send less at once, or raise `max_event_bytes`.
    TooLarge = "too_large";
    /// The store holds `max_bytes`, and all of it belongs to running streams. Raise `max_bytes`, or lower what one
    /// stream may hold.
    StoreFull = "store_full";
    /// As many messages as may wait for the process that owns a session do. Find out why that process takes none: it
    /// stands still, or is overloaded.
    InboxFull = "inbox_full";
    /// The stream's log has ended, or the store lost it. Nothing is to be done here: its requests get an error.
    Gone = "gone";
    /// The store has another position of the log than the engine. Look at the store: an event store of your own breaks
    /// a rule.
    OutOfOrder = "out_of_order";
    /// The store lost events that it had stored. Look at the store: it was set back.
    RolledBack = "rolled_back";
    /// Another process writes the stream's log. Nothing is to be done: that process took the session over.
    Fenced = "fenced";
    /// The store could not be reached, or failed. Look at the store; the log has the reason.
    StoreFailed = "store_failed";
    /// The store did not answer within `store_timeout_ms`. Look at the store.
    StoreTimedOut = "store_timed_out";
    /// The store cannot be opened: its address is unknown, or it cannot be used. The message says what is wrong.
    StoreNotOpened = "store_not_opened";

    // Clients
    /// The server does not know the session any more. Initialize a new one.
    SessionLost = "session_lost";
    /// The server cannot continue the stream. Send the request again where it may run twice.
    StreamLost = "stream_lost";
    /// The server has no such stream. Nothing is to be done: some servers have none.
    NoStream = "no_stream";
    /// The server refused the credentials. Renew them.
    Unauthorized = "unauthorized";
    /// The answer is none that a stream can start with. Look at the address, and at what stands before the server.
    UnexpectedAnswer = "unexpected_answer";
    /// The connection ended or fell silent before the response, and carried no event id; or the revision has no
    /// resumption. Nothing can be resumed at this server.
    NotResumable = "not_resumable";
    /// No try brought anything within the client's bounds. Look at the server, or raise the bounds.
    GaveUp = "gave_up";
    /// An event is larger than the client's `max_event_bytes`. Raise it.
    EventTooLarge = "event_too_large";

    // Packages
    /// Tailrope does not fit under the MCP SDK that is installed. The message says which versions it fits under.
    UnsupportedSdk = "unsupported_sdk";
    /// Node: an argument or an option is wrong. The message names it. Python raises `ValueError` or `TypeError`
    /// instead.
    InvalidArgument = "invalid_argument";
    /// Python: no event loop of asyncio runs here. Use asyncio or uvloop.
    NotAsyncio = "not_asyncio";
    /// Node: there is no native half for this platform, or it cannot be loaded. The message says where it was looked
    /// for.
    NativeMissing = "native_missing";
    /// Node: a call of Node-API failed. Report it.
    Internal = "internal";

    // The test kit
    /// The server did not come to listen, or ended. Look at what it wrote, which the message has.
    NotStarted = "not_started";
    /// The server cannot be killed and started again: only a process can. Give a command to `serve`.
    NotRestartable = "not_restartable";
    /// The server did not take the connection, or broke it before it answered. Look at the server.
    NoConnection = "no_connection";
    /// The server answered something else than was asked for. Look at `status`, the HTTP status.
    Refused = "refused";
    /// Nothing came for `wait_ms`. Look at what each connection carried, which the message has; or raise `wait_ms`.
    TimedOut = "timed_out";
    /// No event has had an id, or not the id that was named; or it is not known what should come. Name what should
    /// come.
    NoCursor = "no_cursor";
    /// The connection is over, and had less than was waited for. Look at the server.
    EndedEarly = "ended_early";
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
