//! JSON that is read one level at a time, with every text and number as it is written.

use serde_json::value::RawValue;

use crate::protocol::fields::entries;

/// What a value is.
pub(super) enum Shape<'a> {
    Object(Vec<(String, &'a RawValue)>),
    List(Vec<&'a RawValue>),
    Text(String),
    /// A number, a truth value or null.
    Other(&'a str),
}

impl<'a> Shape<'a> {
    /// None for an object that names a member twice: readers differ in what they make of it.
    pub(super) fn of(value: &'a RawValue) -> Option<Self> {
        let json = value.get();
        Some(match json.as_bytes().first()? {
            b'{' => Self::Object(entries(json)?),
            b'[' => Self::List(serde_json::from_str(json).ok()?),
            b'"' => Self::Text(serde_json::from_str(json).ok()?),
            _ => Self::Other(json),
        })
    }
}
