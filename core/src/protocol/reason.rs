//! Why requests are refused, for the operator: one table for every language, the log, the counters and the documentation.

macro_rules! reasons {
    ($($(#[doc = $cause:literal])+ $name:ident = $word:literal;)*) => {
        /// Why a request is refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[doc = $cause])+ $name,)*
        }

        impl Reason {
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
        }
    };
}

impl Reason {
    /// Whether the operator can do something about it, rather than the client.
    pub fn is_ours(self) -> bool {
        match self {
            Self::BadRequest
            | Self::Forbidden
            | Self::UnknownSession
            | Self::EndedSession
            | Self::UnknownCursor
            | Self::DuplicateId
            | Self::Stopping
            | Self::Steered => false,
            Self::Unidentified
            | Self::Internal
            | Self::TooManyRequests
            | Self::TooManySessions
            | Self::StoreSilent
            | Self::StoreBehind
            | Self::StoreUnread
            | Self::NotRelayed
            | Self::AnswerUnknown => true,
        }
    }
}

reasons! {
    /// the request is not as it must be (400, 405, 406, 413, 415)
    BadRequest = "bad_request";
    /// the host or the origin is not served (403)
    Forbidden = "forbidden";
    /// nobody can tell whose request it is (500)
    Unidentified = "unidentified";
    /// code around the session failed (500)
    Internal = "internal";
    /// there is no such session for this user (404)
    UnknownSession = "unknown_session";
    /// the session has ended (404)
    EndedSession = "ended_session";
    /// the event id names nothing that can be resumed (400)
    UnknownCursor = "unknown_cursor";
    /// a request with this id is running (400)
    DuplicateId = "duplicate_id";
    /// as many requests of the session run as may: max_requests_per_session (429)
    TooManyRequests = "too_many_requests";
    /// as many sessions are open as may, and none is idle: max_sessions, max_sessions_per_principal (503)
    TooManySessions = "too_many_sessions";
    /// the server is stopping (503)
    Stopping = "stopping";
    /// the event store gives no sign, so another process may have the session (503)
    StoreSilent = "store_silent";
    /// too much waits for the event store (503)
    StoreBehind = "store_behind";
    /// the event store cannot say now whether there is such a session or task (503)
    StoreUnread = "store_unread";
    /// the request does not get to the process that has the session (503)
    NotRelayed = "not_relayed";
    /// the request may run, and its answer cannot be given (504)
    AnswerUnknown = "answer_unknown";
    /// the client was told to fall back to a revision that can resume (400)
    Steered = "steered";
}
