//! Why a body is not taken: what is wrong with its messages, in words and as a code.

use std::fmt;

use super::jsonrpc::{INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR};

/// Why a body is not a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// The bytes are not UTF-8 (W-002).
    NotUtf8,
    /// The text is not JSON; the reason, with line and column.
    NotJson(String),
    /// JSON, but neither an object nor an array of objects.
    NotAnObject,
    /// An array without elements.
    EmptyBatch,
    /// An array of more elements than are taken; none of them was looked at.
    TooMany {
        /// The bound.
        max: usize,
    },
    /// `jsonrpc` is absent or not `"2.0"`.
    Version,
    /// The id is null, a fraction, a boolean or a container (W-095).
    Id,
    /// A notification of cancellation whose `requestId` is neither absent, null, a string nor an integer. Readers differ in
    /// which request it is about.
    Cancelled,
    /// A `progressToken` that is neither absent, null, a string nor an integer.
    Token,
    /// An id, or what names one, of more bytes than are taken.
    LongName {
        /// The bound.
        max: usize,
    },
    /// An id, or what names one, is an integer that the reader behind us reads as another one.
    LargeInteger,
    /// A response has no id.
    MissingId,
    /// A member of the envelope comes twice, or a parameter that the engine reads. Readers differ in which one counts.
    Duplicate(&'static str),
    /// `method` is not a string.
    Method,
    /// `params` is neither an object nor null.
    Params,
    /// A member that its kind of message does not have, for a reader that takes no other.
    Foreign,
    /// `_meta` is not an object, or its `progressToken` neither a string nor a number, for such a
    /// reader.
    Meta,
    /// `result` is not an object.
    Result,
    /// `error` is not an object with an integer code and a message.
    Error,
    /// More than one of method, result and error.
    Ambiguous,
    /// None of method, result and error.
    Empty,
}

impl EnvelopeError {
    /// The code that the Python SDKs answer to the same fault. The faults that they let pass, or
    /// read in another way than the sender, get `INVALID_REQUEST`.
    pub fn code(&self) -> i32 {
        match self {
            Self::NotUtf8 | Self::NotJson(_) => PARSE_ERROR,
            Self::Id | Self::Cancelled | Self::Token | Self::LongName { .. } | Self::LargeInteger => INVALID_REQUEST,
            Self::Duplicate(_) | Self::Ambiguous | Self::TooMany { .. } => INVALID_REQUEST,
            _ => INVALID_PARAMS,
        }
    }
}

impl fmt::Display for EnvelopeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::NotJson(reason) => return f.write_str(reason),
            Self::Duplicate(name) => return write!(f, "the message names `{name}` twice"),
            Self::TooMany { max } => return write!(f, "a batch must not have more than {max} messages"),
            Self::LongName { max } => return write!(f, "an id must not have more than {max} bytes"),
            Self::NotUtf8 => "the body is not UTF-8",
            Self::NotAnObject => "a message must be a JSON object",
            Self::EmptyBatch => "a batch must not be empty",
            Self::Version => "`jsonrpc` must be \"2.0\"",
            Self::Id => "an id must be a string or an integer",
            Self::Cancelled => "`requestId` must be a string or an integer",
            Self::Token => "`progressToken` must be a string or an integer",
            Self::LargeInteger => "an integer that is an id must be between -(2^53-1) and 2^53-1",
            Self::MissingId => "a response must have an id",
            Self::Method => "`method` must be a string",
            Self::Params => "`params` must be an object",
            Self::Foreign => "a message must have the members of its kind and no other",
            Self::Meta => "`_meta` must be an object, and its `progressToken` a string or a number",
            Self::Result => "`result` must be an object",
            Self::Error => "`error` must be an object with an integer `code` and a string `message`",
            Self::Ambiguous => "a message must have only one of `method`, `result` and `error`",
            Self::Empty => "a message must have one of `method`, `result` and `error`",
        };
        f.write_str(text)
    }
}

impl std::error::Error for EnvelopeError {}
