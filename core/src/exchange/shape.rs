//! JSON that is read one level at a time, with every text and number as it is written.

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

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
            b'{' => {
                let Members(members) = serde_json::from_str(json).ok()?;
                let mut names: Vec<&str> = members.iter().map(|(name, _)| &**name).collect();
                names.sort_unstable();
                if names.windows(2).any(|pair| pair[0] == pair[1]) {
                    return None;
                }
                Self::Object(members)
            }
            b'[' => Self::List(serde_json::from_str(json).ok()?),
            b'"' => Self::Text(serde_json::from_str(json).ok()?),
            _ => Self::Other(json),
        })
    }
}

struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}
