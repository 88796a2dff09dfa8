//! What a response of a handler says of its call, without reading it.

/// How much of a response's end is looked at: its last members, as SDKs write them.
const TAIL_BYTES: usize = 256;
const TOOL_ERROR: &[u8] = br#""isError":true"#;

/// Whether a response is an error. Its members are looked at up to the first that says so, which none of the SDKs writes
/// behind the result.
pub(crate) fn is_error(payload: &[u8]) -> bool {
    let mut rest = payload.trim_ascii_start().strip_prefix(b"{").unwrap_or_default();
    while let Some((name, behind)) = text(rest) {
        match name {
            b"error" => return true,
            b"result" => return false,
            _ => {}
        }
        let value = behind.trim_ascii_start().strip_prefix(b":").unwrap_or_default().trim_ascii_start();
        // The version and the id are texts or numbers.
        let behind = match text(value) {
            Some((_, behind)) => behind,
            None => {
                let end = value.iter().position(|byte| !matches!(byte, b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z'));
                &value[end.unwrap_or(value.len())..]
            }
        };
        rest = behind.trim_ascii_start().strip_prefix(b",").unwrap_or_default();
    }
    false
}

/// Whether a response is a result that says that its tool failed, where that is the last member of the result, as SDKs
/// write it. In a text of the result the quotes would be escaped.
pub(crate) fn is_tool_error(payload: &[u8]) -> bool {
    let tail = &payload[payload.len().saturating_sub(TAIL_BYTES)..];
    let Some(at) = memchr::memmem::rfind(tail, TOOL_ERROR) else { return false };
    let behind = tail[at + TOOL_ERROR.len()..].trim_ascii();
    behind == b"}}" || [&br#"},"jsonrpc""#[..], br#"},"id""#].iter().any(|next| behind.starts_with(next))
}

/// The text that JSON begins with, and what is behind it.
fn text(json: &[u8]) -> Option<(&[u8], &[u8])> {
    let inner = json.trim_ascii_start().strip_prefix(b"\"")?;
    let mut at = 0;
    loop {
        match inner.get(at)? {
            b'"' => return Some((&inner[..at], &inner[at + 1..])),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_says_whether_it_is_an_error_in_every_order_of_the_sdks() {
        for (json, error, tool_error) in [
            (r#"{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":false}}"#, false, false),
            (r#"{"jsonrpc":"2.0","id":"a\"b","error":{"code":1,"message":"m"}}"#, true, false),
            (r#"{"error":{"code":1,"message":"m"},"jsonrpc":"2.0","id":1}"#, true, false),
            (r#" { "jsonrpc" : "2.0" , "id" : -1 , "error" : {} }"#, true, false),
            (r#"{"jsonrpc":"2.0","id":1,"result":{"error":{}}}"#, false, false),
            (r#"{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":true}}"#, false, true),
            (r#"{"result":{"content":[],"isError":true},"jsonrpc":"2.0","id":"seven"}"#, false, true),
            (r#"{"jsonrpc":"2.0","id":1,"result":{"structuredContent":{"isError":true}}}"#, false, false),
            (
                r#"{"result":{"structuredContent":{"isError":true},"isError":false},"jsonrpc":"2.0","id":1}"#,
                false,
                false,
            ),
            (r#"{"jsonrpc":"2.0","id":1,"result":{"text":"\"isError\":true}}"}}"#, false, false),
            ("", false, false),
            (r#"{"jsonrpc"#, false, false),
            (r#"{"id":{"a":1},"error":1}"#, false, false),
        ] {
            assert_eq!((is_error(json.as_bytes()), is_tool_error(json.as_bytes())), (error, tool_error), "{json}");
        }
    }
}
