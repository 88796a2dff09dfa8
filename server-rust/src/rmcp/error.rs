//! What the sessions of rmcp's service could not do.

use std::error::Error;
use std::fmt;

use tailrope_core::engine::EngineError;
use tailrope_core::protocol::{EnvelopeError, Refusal};

/// What the sessions could not do. rmcp answers the client with 500, or on a resume with an empty stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionsError {
    /// There is no such session for this sender.
    UnknownSession,
    /// The engine does not take the request.
    Refused(Refusal),
    /// The engine failed.
    Engine(EngineError),
    /// The message is not one that a session takes.
    Message(EnvelopeError),
    /// The request belongs to a user, and no [`layer`](crate::Sessions::layer) has shown that.
    NotShown,
}

impl fmt::Display for SessionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownSession => f.write_str("there is no such session: it has ended, or belongs to another user"),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Engine(error) => error.fmt(f),
            Self::Message(error) => error.fmt(f),
            Self::NotShown => f.write_str(
                "the server cannot tell whose sessions are: it needs `Sessions::layer()` around rmcp's service, inside of \
                 what authenticates",
            ),
        }
    }
}

impl Error for SessionsError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::UnknownSession | Self::NotShown => None,
            Self::Refused(refusal) => Some(refusal),
            Self::Engine(error) => Some(error),
            Self::Message(error) => Some(error),
        }
    }
}

impl From<Refusal> for SessionsError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<EngineError> for SessionsError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

impl From<EnvelopeError> for SessionsError {
    fn from(error: EnvelopeError) -> Self {
        Self::Message(error)
    }
}
