//! What the engine could not do.

use std::error::Error;
use std::fmt;

use crate::ErrorCode;
use crate::store::StoreError;

/// What the engine could not do. The text is for the server, never for clients (I9).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineError {
    /// The engine was closed.
    Closed,
    /// The engine was made before a fork and cannot be used after it.
    Forked,
    /// The session has ended.
    SessionEnded,
    /// A session with this id is open.
    SessionExists,
    /// No further session fits, and none of the same principal is idle.
    TooManySessions {
        /// The option that bounds them: `max_sessions` or `max_sessions_per_principal`.
        option: &'static str,
        /// The bound.
        max: usize,
    },
    /// The message's request has its end already; the first wins (I13).
    Finished,
    /// Too many events wait for the store.
    Full,
    /// The store did not take the event.
    Store(StoreError),
    /// The store did not take an earlier event of the stream, whose sender did not wait. If this message is a
    /// notification, it is stored all the same. If it is a request, it is not sent.
    Earlier(StoreError),
}

impl EngineError {
    /// The code of the error, the same in every language.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Closed => ErrorCode::Closed,
            Self::Forked => ErrorCode::Forked,
            Self::SessionEnded => ErrorCode::SessionEnded,
            Self::SessionExists => ErrorCode::SessionExists,
            Self::TooManySessions { .. } => ErrorCode::TooManySessions,
            Self::Finished => ErrorCode::Finished,
            Self::Full => ErrorCode::Full,
            Self::Store(error) | Self::Earlier(error) => error.code(),
        }
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the engine is closed"),
            Self::Forked => f.write_str("the engine was made before a fork; make one in each process"),
            Self::SessionEnded => f.write_str("the session has ended"),
            Self::SessionExists => f.write_str("a session with this id is open"),
            Self::TooManySessions { option, max } => {
                write!(f, "{max} sessions are open, the most that {option} allows")
            }
            Self::Finished => f.write_str("the request has its end already"),
            Self::Full => f.write_str("too much waits for the event store"),
            // SDKs put the text of a handler's exception into results, so it says nothing of the store.
            Self::Store(StoreError::Full { .. } | StoreError::Failed(_) | StoreError::TimedOut { .. }) => {
                f.write_str("the event store did not store the event")
            }
            Self::Store(error) => error.fmt(f),
            Self::Earlier(_) => f.write_str("the event store did not store an event that was sent before"),
        }
    }
}

impl Error for EngineError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Store(error) | Self::Earlier(error) => Some(error),
            _ => None,
        }
    }
}
