//! What a response of a handler says of its call. Its values are skipped, not read.

const IS_ERROR: &[u8] = b"isError";

/// Whether a response is an error. Its members are looked at up to the first that says so: what stands behind is not touched.
pub(crate) fn is_error(payload: &[u8]) -> bool {
    let is_either = |name: &[u8]| matches!(name, b"error" | b"result");
    members(payload).find(|(name, _)| is_either(name)).is_some_and(|(name, _)| name == b"error")
}

/// Whether a response is a result that says that its tool failed, at any place among the members of the result.
pub(crate) fn is_tool_error(payload: &[u8]) -> bool {
    if !may_be_tool_error(payload) {
        return false;
    }
    let Some((_, result)) = members(payload).find(|(name, _)| *name == b"result") else { return false };
    members(result).any(|(name, value)| name == IS_ERROR && value.starts_with(b"true"))
}

/// Whether an object anywhere in it says so: the quotes of a text would be escaped. Almost no result gets past this.
fn may_be_tool_error(payload: &[u8]) -> bool {
    let value = |at: usize| value_of(payload[at + IS_ERROR.len()..].strip_prefix(b"\"")?);
    memchr::memmem::find_iter(payload, IS_ERROR).any(|at| value(at).is_some_and(|value| value.starts_with(b"true")))
}

/// The members of the object that JSON begins with: their names, and the JSON from their values on.
fn members(json: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut rest = json.trim_ascii_start().strip_prefix(b"{");
    let mut last: Option<&[u8]> = None;
    std::iter::from_fn(move || {
        if let Some(value) = last.take() {
            rest = skipped(value).and_then(|behind| behind.trim_ascii_start().strip_prefix(b","));
        }
        let (name, behind) = text(rest?)?;
        last = value_of(behind);
        Some((name, last?))
    })
}

/// The JSON from the value on, behind the name of a member.
fn value_of(behind: &[u8]) -> Option<&[u8]> {
    Some(behind.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start())
}

/// What is behind the value that JSON begins with.
fn skipped(json: &[u8]) -> Option<&[u8]> {
    let (mut rest, mut depth) = (json, 0_usize);
    loop {
        match rest.first()? {
            b'"' => rest = text(rest)?.1,
            b'{' | b'[' => (rest, depth) = (&rest[1..], depth + 1),
            b'}' | b']' => (rest, depth) = (&rest[1..], depth.checked_sub(1)?),
            _ => {
                let end = rest
                    .iter()
                    .position(|byte| matches!(byte, b'"' | b'{' | b'[' | b'}' | b']' | b','))
                    .unwrap_or(rest.len());
                // Inside, commas and what is between the values are passed over, too.
                rest = &rest[if depth == 0 { end } else { end.max(1) }..];
            }
        }
        if depth == 0 {
            return Some(rest);
        }
    }
}

/// The text that JSON begins with, and what is behind it.
fn text(json: &[u8]) -> Option<(&[u8], &[u8])> {
    let inner = json.trim_ascii_start().strip_prefix(b"\"")?;
    let mut at = 0;
    loop {
        at += memchr::memchr2(b'"', b'\\', inner.get(at..)?)?;
        if inner[at] == b'"' {
            return Some((&inner[..at], &inner[at + 1..]));
        }
        at += 2;
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
            // Python's of 2026-07-28, and of 2025-11-25 with other members behind.
            (
                r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"\"x\" {["}],"isError":true,"resultType":"complete","_meta":{"a":[1,{}]}}}"#,
                false,
                true,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":true,"structuredContent":{"isError":false}}}"#,
                false,
                true,
            ),
            // Node's, whose results keep the order in which the handler wrote them.
            (
                r#"{"result":{"isError":true,"content":[{"type":"text","text":"x"}],"resultType":"complete"},"jsonrpc":"2.0","id":1}"#,
                false,
                true,
            ),
            (
                r#"{"result":{"content":[{"type":"text","text":"ends in \\"}],"resultType":"complete","isError":true,"_meta":{}},"jsonrpc":"2.0","id":1}"#,
                false,
                true,
            ),
            // rmcp's.
            (
                r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","content":[],"structuredContent":{"n":-1.5e3,"b":null},"isError":true}}"#,
                false,
                true,
            ),
            // As a program writes it that does not leave out white space.
            ("{\n  \"result\": {\n    \"n\": [1, 2.5, true , \"a\"],\n    \"isError\": true\n  }\n}", false, true),
            ("{\n  \"result\": {\n    \"isError\": false, \"a\": {\"isError\" : true}\n  }\n}", false, false),
            (
                r#"{"result":{"content":[{"isError":true}],"resultType":"complete"},"jsonrpc":"2.0","id":1}"#,
                false,
                false,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":{"isError":true,"a":1},"isError":false,"resultType":"complete"}}"#,
                false,
                false,
            ),
            (r#"{"jsonrpc":"2.0","id":1,"result":{"_meta":{"a":{"isError":true}},"content":[]}}"#, false, false),
            (r#"{"jsonrpc":"2.0","id":1,"isError":true,"result":{"content":[]}}"#, false, false),
            (r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m","data":{"isError":true}}}"#, true, false),
            (r#"{"jsonrpc":"2.0","id":1,"result":{"text":"\"isError\":true"}}"#, false, false),
            (r#"{"jsonrpc":"2.0","id":1,"result":["isError",{"isError":true}]}"#, false, false),
            ("", false, false),
            ("[]", false, false),
            (r#"{"jsonrpc"#, false, false),
            (r#"{"result":{"a":[}],"isError":true}}"#, false, false),
            (r#"{"result":{"a":1"isError":true}}"#, false, false),
            (r#"{"result":{"a":"\"#, false, false),
            (r#"{"id":{"a":1},"error":1}"#, true, false),
        ] {
            assert_eq!((is_error(json.as_bytes()), is_tool_error(json.as_bytes())), (error, tool_error), "{json}");
        }
    }
}
