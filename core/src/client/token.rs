//! A stream that is handed to a later process.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::protocol::RequestId;

const VERSION: u32 = 1;

/// What it takes to continue a stream elsewhere, later (W-113). As text it is JSON of one line, the same in all
/// languages. It holds no credentials; who may resume is the server's to check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The cursor.
    pub last_event_id: String,
    /// The stream's reconnection time, if it told one.
    pub retry_ms: Option<u64>,
    /// The requests that are not answered, as far as they are known; none on a standalone stream.
    pub requests: Vec<RequestId>,
    /// Whether it is the standalone stream, which goes on from where it is when its cursor is refused.
    pub is_standalone: bool,
    /// The session, if there is one (W-082).
    pub session_id: Option<String>,
    /// The revision that was negotiated, if it is known (W-092).
    pub protocol_version: Option<String>,
}

/// A text is not a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenError(String);

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a stream token: {}", self.0)
    }
}

impl std::error::Error for TokenError {}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Text<'a> {
    tailrope: u32,
    last_event_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry_ms: Option<u64>,
    #[serde(borrow)]
    requests: Vec<&'a RawValue>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    standalone: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    protocol_version: Option<String>,
}

impl Token {
    /// Reads what [`Display`](fmt::Display) wrote.
    ///
    /// # Errors
    /// The text is none of ours, or of another version.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let read: Text<'_> = serde_json::from_str(text).map_err(|error| TokenError(error.to_string()))?;
        if read.tailrope != VERSION {
            return Err(TokenError(format!("version {} is not {VERSION}", read.tailrope)));
        }
        let is_line = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte >= b' ' && byte != 0x7f);
        if !is_line(&read.last_event_id) {
            return Err(TokenError("the event id is empty or not of one line".into()));
        }
        let visible = |text: &Option<String>| text.as_deref().is_none_or(is_line);
        if !visible(&read.session_id) || !visible(&read.protocol_version) {
            return Err(TokenError("a header is empty or not of one line".into()));
        }
        if read.standalone && !read.requests.is_empty() {
            return Err(TokenError("a standalone stream answers no requests".into()));
        }
        let requests: Option<Vec<_>> = read.requests.iter().map(|id| RequestId::from_json(id.get())).collect();
        Ok(Self {
            last_event_id: read.last_event_id,
            retry_ms: read.retry_ms,
            requests: requests.ok_or_else(|| TokenError("a request id is neither a string nor an integer".into()))?,
            is_standalone: read.standalone,
            session_id: read.session_id,
            protocol_version: read.protocol_version,
        })
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<String> = self.requests.iter().map(RequestId::to_json).collect();
        let raw: Result<Vec<&RawValue>, _> = ids.iter().map(|id| serde_json::from_str(id)).collect();
        let text = Text {
            tailrope: VERSION,
            last_event_id: self.last_event_id.clone(),
            retry_ms: self.retry_ms,
            requests: raw.map_err(|_| fmt::Error)?,
            standalone: self.is_standalone,
            session_id: self.session_id.clone(),
            protocol_version: self.protocol_version.clone(),
        };
        f.write_str(&serde_json::to_string(&text).map_err(|_| fmt::Error)?)
    }
}
