//! What a host refuses before or after admission, in the words of the SDK that it serves.

use crate::protocol::jsonrpc::{INTERNAL_ERROR, INVALID_PARAMS, PARSE_ERROR};
use crate::protocol::{Dialect, Reason, Refusal, Wording};

/// Why a host does not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault<'a> {
    /// The application that has to answer the request does not.
    AppUnreachable,
    /// The body is larger than the host reads; the text is the bound in bytes.
    BodyTooLarge(&'a str),
    /// The request came by a name that the host does not serve.
    ForeignHost(&'a str),
    /// The request came from a page that may not use the server.
    ForeignOrigin(&'a str),
    /// What the user has put around sessions failed, for example a factory or a function that answers challenges.
    Internal,
    /// The SDK does not take the message; the text is what it says about the message.
    InvalidMessage(&'a str),
    /// The user's function for new sessions failed.
    NotOpened,
    /// The SDK does not take the `initialize`.
    NotInitialize,
    /// The session has ended (W-084).
    SessionEnded,
    /// Only the event store knows whether there is such a session, and it cannot tell now.
    SessionUnread,
    /// There is no such session for this sender (W-083, I7).
    SessionUnknown,
    /// The event store gave no sign for so long that another process may have the session.
    StoreSilent,
    /// The session has as many requests in flight as it may have (I11).
    TooManyRequests,
    /// No further session fits (I11).
    TooManySessions,
    /// As many requests wait for the application as may (I11).
    TooManyWaiting,
    /// Nobody can tell whose request it is (I7).
    Unidentified,
}

impl<'a> Fault<'a> {
    /// The fault with this name, which bindings use for it. `text` is what there is to say about it.
    pub fn named(name: &str, text: &'a str) -> Option<Self> {
        Some(match name {
            "app_unreachable" => Self::AppUnreachable,
            "body_too_large" => Self::BodyTooLarge(text),
            "foreign_host" => Self::ForeignHost(text),
            "foreign_origin" => Self::ForeignOrigin(text),
            "internal" => Self::Internal,
            "invalid_message" => Self::InvalidMessage(text),
            "not_opened" => Self::NotOpened,
            "not_initialize" => Self::NotInitialize,
            "session_ended" => Self::SessionEnded,
            "session_unread" => Self::SessionUnread,
            "session_unknown" => Self::SessionUnknown,
            "store_silent" => Self::StoreSilent,
            "too_many_requests" => Self::TooManyRequests,
            "too_many_sessions" => Self::TooManySessions,
            "too_many_waiting" => Self::TooManyWaiting,
            "unidentified" => Self::Unidentified,
            _ => return None,
        })
    }

    /// The answer.
    pub fn refusal(self, dialect: &Dialect) -> Refusal {
        let refusal = self.answer(dialect);
        match self {
            Self::ForeignHost(_) | Self::ForeignOrigin(_) => refusal.because(Reason::Forbidden),
            Self::Internal => refusal.because(Reason::Internal),
            Self::StoreSilent => refusal.because(Reason::StoreSilent),
            Self::TooManyRequests => refusal.because(Reason::TooManyRequests),
            Self::TooManySessions => refusal.because(Reason::TooManySessions),
            Self::Unidentified => refusal.because(Reason::Unidentified),
            _ => refusal,
        }
    }

    fn answer(self, dialect: &Dialect) -> Refusal {
        let wording = dialect.wording;
        match self {
            Self::AppUnreachable => {
                Refusal::new(502, INTERNAL_ERROR, "Bad Gateway: the application behind this server does not answer")
            }
            Self::BodyTooLarge(max) => {
                wording.refused(413, format!("Payload Too Large: Request body must not exceed {max} bytes"))
            }
            Self::ForeignHost(host) => wording.refused(403, format!("Invalid Host header: {host}")),
            Self::ForeignOrigin(origin) => wording.refused(403, format!("Invalid Origin header: {origin}")),
            Self::Internal => Refusal::new(500, INTERNAL_ERROR, "Internal server error"),
            Self::InvalidMessage(why) => match wording {
                Wording::Python => Refusal::new(400, INVALID_PARAMS, format!("Validation error: {why}")),
                Wording::TypeScript => Refusal::new(400, PARSE_ERROR, "Parse error: Invalid JSON-RPC message"),
            },
            Self::NotOpened => Refusal::new(400, PARSE_ERROR, "Parse error"),
            Self::NotInitialize => wording.refused(400, "Bad Request: Server not initialized"),
            Self::SessionEnded => wording.session_ended(),
            Self::SessionUnread => wording.session_unread(),
            Self::SessionUnknown => wording.session_unknown(),
            Self::StoreSilent => {
                Refusal::new(503, INTERNAL_ERROR, "Service Unavailable: the event store gives no sign")
            }
            Self::TooManyRequests => {
                Refusal::new(429, INTERNAL_ERROR, "Too many requests of this session are running: wait for one to end")
            }
            Self::Unidentified => {
                Refusal::new(500, INTERNAL_ERROR, "Internal server error: the server cannot tell whose request this is")
            }
            Self::TooManySessions => Refusal::new(503, INTERNAL_ERROR, "Too many open sessions"),
            Self::TooManyWaiting => {
                Refusal::new(503, INTERNAL_ERROR, "Service Unavailable: too many requests wait for the server")
            }
        }
    }

    /// The answer to the request in this body: the error names the request.
    pub fn refusal_of(self, dialect: &Dialect, body: &[u8]) -> Refusal {
        self.refusal(dialect).naming_request(body)
    }
}
