//! JSON-RPC request ids (W-095): a string or an integer of any size.

use std::fmt;
use std::sync::Arc;

use serde_json::value::RawValue;
use smol_str::SmolStr;

use super::envelope_error::EnvelopeError;

/// The id of a JSON-RPC request.
///
/// An integer keeps its digits as text, so ids beyond 64 bits survive unchanged, and `1` and `"1"`
/// are two different ids (invariant I7). Cheap to clone: each call is known by its id in several places.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequestId {
    /// Decimal digits without leading zeros, with an optional leading `-`; never `-0`.
    Integer(SmolStr),
    /// The decoded text of a JSON string.
    Text(Arc<str>),
}

impl RequestId {
    /// An integer id.
    pub fn integer(value: i64) -> Self {
        Self::Integer(itoa::Buffer::new().format(value).into())
    }

    /// A string id.
    pub fn text_id(text: &str) -> Self {
        Self::Text(text.into())
    }

    /// Reads one JSON token. `None` for null, a fraction, an exponent, a boolean or a container,
    /// and for anything that is not exactly one token.
    ///
    /// `-0` is read as `0`: every JSON library that an SDK uses does the same, and the response
    /// that comes back carries `0`.
    pub fn from_json(raw: &str) -> Option<Self> {
        if raw.starts_with('"') {
            return serde_json::from_str::<String>(raw).ok().map(|text| Self::Text(text.into()));
        }
        if raw == "-0" {
            return Some(Self::Integer("0".into()));
        }
        is_canonical_integer(raw).then(|| Self::Integer(raw.into()))
    }

    /// Appends the id as a JSON token.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        match self {
            Self::Integer(digits) => out.extend_from_slice(digits.as_bytes()),
            Self::Text(text) => write_json_string(out, text),
        }
    }

    /// The id as a JSON token.
    pub fn to_json(&self) -> String {
        match self {
            Self::Integer(digits) => digits.to_string(),
            Self::Text(text) => serde_json::Value::from(&**text).to_string(),
        }
    }

    /// The integer that the text of a string writes; none for any other id.
    pub fn number_of_text(&self) -> Option<Self> {
        match self {
            Self::Text(text) if is_canonical_integer(text) => Some(Self::Integer((&**text).into())),
            _ => None,
        }
    }

    /// The only other id with the same text: the integer that a string writes, or the string that writes an integer.
    pub fn of_same_text(&self) -> Option<Self> {
        match self {
            Self::Integer(digits) => Some(Self::text_id(digits)),
            Self::Text(_) => self.number_of_text(),
        }
    }

    /// Several ids as a JSON array.
    pub fn encode_all(ids: &[Self]) -> Vec<u8> {
        let mut out = vec![b'['];
        for (at, id) in ids.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            id.write_json(&mut out);
        }
        out.push(b']');
        out
    }

    /// Reads what [`encode_all`](Self::encode_all) wrote; `None` for anything else.
    pub fn decode_all(json: &[u8]) -> Option<Vec<Self>> {
        let ids: Vec<&RawValue> = serde_json::from_slice(json).ok()?;
        ids.into_iter().map(|id| Self::from_json(id.get())).collect()
    }

    /// The digits or the text, without a mark of which it is: for logs, never for look-ups.
    pub fn as_text(&self) -> &str {
        match self {
            Self::Integer(digits) => digits,
            Self::Text(text) => text,
        }
    }
}

/// Which names of requests a reader takes: ids, what cancellations name, and progress tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Every one. A parameter that is none counts as absent.
    Any,
    /// Those of at most [`MAX_BYTES`](Self::MAX_BYTES). A parameter that is none is refused: the SDK, which reads the body
    /// after us, might take it for one.
    Bounded,
    /// Of these, the integers that JavaScript can tell from their neighbours. The SDKs refuse some of the others, and read
    /// some as another integer, by which nobody would be answered and nothing be cancelled.
    Safe,
}

impl Names {
    /// Sessions keep names while requests run, and event ids and logs repeat them.
    pub const MAX_BYTES: usize = 1 << 10;

    /// The name, unless it is none (`fault`) or is not taken.
    pub(super) fn take(self, name: Option<RequestId>, fault: EnvelopeError) -> Result<RequestId, EnvelopeError> {
        let name = name.ok_or(fault)?;
        if self != Self::Any && name.as_text().len() > Self::MAX_BYTES {
            return Err(EnvelopeError::LongName { max: Self::MAX_BYTES });
        }
        match &name {
            RequestId::Integer(digits) if self == Self::Safe && !is_safe(digits) => Err(EnvelopeError::LargeInteger),
            _ => Ok(name),
        }
    }

    /// As [`take`](Self::take), for a parameter, which may be absent or null.
    pub(super) fn take_parameter(
        self,
        raw: Option<&RawValue>,
        fault: EnvelopeError,
    ) -> Result<Option<RequestId>, EnvelopeError> {
        let Some(raw) = raw.map(RawValue::get).filter(|raw| *raw != "null") else { return Ok(None) };
        match RequestId::from_json(raw) {
            None if self == Self::Any => Ok(None),
            name => self.take(name, fault).map(Some),
        }
    }
}

/// Whether an integer is between -(2^53-1) and 2^53-1.
fn is_safe(digits: &str) -> bool {
    const MAX: &str = "9007199254740991";
    let digits = digits.trim_start_matches('-');
    digits.len() < MAX.len() || (digits.len() == MAX.len() && digits <= MAX)
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_json())
    }
}

/// `0`, or digits that start with 1-9, with an optional `-` before the latter.
pub(crate) fn is_canonical_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text).as_bytes();
    match digits {
        [b'0'] => digits.len() == text.len(),
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

pub(crate) fn write_json_string(out: &mut Vec<u8>, text: &str) {
    // Writing a string into a Vec has no way to fail: no I/O, and every str is valid JSON text.
    let written = serde_json::to_writer(out, text);
    debug_assert!(written.is_ok());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_integer_keeps_its_digits_and_is_not_its_text() {
        let big = "123456789012345678901234567890";
        let id = RequestId::from_json(big).unwrap();
        assert_eq!(id, RequestId::Integer(big.into()));
        assert_eq!(id.to_json(), big);
        assert_ne!(RequestId::from_json("1"), RequestId::from_json("\"1\""));
        assert_eq!(RequestId::integer(-7), RequestId::from_json("-7").unwrap());
    }

    #[test]
    fn only_a_string_or_an_integer_is_an_id() {
        for raw in ["null", "1.0", "1e3", "true", "[]", "{}", "", "01", "-", "+1", " 1", "\"a", "\"a\"b"] {
            assert_eq!(RequestId::from_json(raw), None, "{raw}");
        }
        assert_eq!(RequestId::from_json("-0"), RequestId::from_json("0"));
    }

    #[test]
    fn text_is_decoded_and_escaped_again() {
        let id = RequestId::from_json(r#""a\u0022\n\u00e9""#).unwrap();
        assert_eq!(id, RequestId::text_id("a\"\n\u{e9}"));
        assert_eq!(id.to_json(), "\"a\\\"\\n\u{e9}\"");
        let mut out = Vec::new();
        id.write_json(&mut out);
        assert_eq!(out, id.to_json().as_bytes());
    }
}
