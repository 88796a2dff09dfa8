//! The headers that belong to a call's message. The others belong to the request that brings it.
//!
//! A round posts the call again, in the context of the request that brought the last answer. So its headers are those of that request,
//! except for those of the message, which come with the call: through its task's log, also in another process.

use std::fmt;

use super::declaration::Posted;
use super::ladder::header_value;

/// A name in lower case, and its value.
pub type Header = (Box<str>, Box<str>);

/// What the name of a header begins with, in lower case, that repeats an argument of a call (SEP-2243).
pub const PARAM_HEADERS: &str = "mcp-param-";

/// Whether a header of this name belongs to a message: a request with another message has another one, or none.
pub fn is_of_message(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.starts_with("content-")
        || name.starts_with(PARAM_HEADERS)
        || matches!(&*name, "transfer-encoding" | "mcp-method" | "mcp-name")
}

/// The headers of a call that repeat its arguments.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct CallHeaders(pub(super) Vec<Header>);

/// No payload is for a log.
impl fmt::Debug for CallHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CallHeaders").field(&self.0.len()).finish()
    }
}

impl CallHeaders {
    /// Those of them among the headers of the call's request: hosts may leave out the others before.
    pub fn of<'a, V: Into<Box<str>>>(headers: impl IntoIterator<Item = (&'a str, V)>) -> Self {
        let start = |name: &'a str| name.get(..PARAM_HEADERS.len());
        let is_param = |name: &'a str| start(name).is_some_and(|start| start.eq_ignore_ascii_case(PARAM_HEADERS));
        let params = headers.into_iter().filter(|(name, _)| is_param(name));
        Self(params.map(|(name, value)| (name.to_ascii_lowercase().into(), value.into())).collect())
    }

    /// All headers of the message that posts the call again.
    pub(super) fn of_round(&self, call: &[u8]) -> Vec<Header> {
        let header = |name: &str, value: &str| (name.into(), value.into());
        let mut headers = vec![header("content-type", "application/json"), header("mcp-method", "tools/call")];
        let tool = Posted::read(None, call).and_then(|posted| posted.tool);
        headers.extend(tool.map(|tool| header("mcp-name", &header_value(&tool))));
        headers.extend(self.0.iter().cloned());
        headers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_a_message_and_of_its_request() {
        let of_message = [
            "content-length",
            "Content-Type",
            "content-encoding",
            "Transfer-Encoding",
            "mcp-method",
            "Mcp-Name",
            "Mcp-Param-Color",
        ];
        for name in of_message {
            assert!(is_of_message(name), "{name}");
        }
        for name in ["authorization", "accept", "host", "x-trace", "mcp-protocol-version", "mcp-params", "é"] {
            assert!(!is_of_message(name), "{name}");
        }
    }

    #[test]
    fn a_round_has_the_arguments_that_its_call_had_in_headers() {
        let headers =
            CallHeaders::of([("Mcp-Param-Color", "red"), ("x-trace", "first"), ("mcp-name", "é"), ("mcp", "é")]);
        let call = r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"é","_meta":{}}}"#;
        let round: Vec<Header> = headers.of_round(call.as_bytes());
        let pairs: Vec<(&str, &str)> = round.iter().map(|(name, value)| (&**name, &**value)).collect();
        let expected = [
            ("content-type", "application/json"),
            ("mcp-method", "tools/call"),
            ("mcp-name", "=?base64?w6k=?="),
            ("mcp-param-color", "red"),
        ];
        assert_eq!(pairs, expected);
    }
}
