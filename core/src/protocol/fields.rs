//! Picks named members out of JSON objects in one pass and skips the rest unread.
//!
//! Names are compared after unescaping, so `"\u0069d"` is `id`. The values borrow from the text.

use std::fmt;
use std::ops::Range;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The members of an envelope.
#[derive(Default)]
pub(super) struct Members<'a> {
    pub(super) jsonrpc: Option<&'a RawValue>,
    pub(super) id: Option<&'a RawValue>,
    pub(super) method: Option<&'a RawValue>,
    pub(super) params: Option<&'a RawValue>,
    pub(super) result: Option<&'a RawValue>,
    pub(super) error: Option<&'a RawValue>,
    /// A member that came twice.
    pub(super) duplicate: Option<&'static str>,
    /// There are members of other names.
    pub(super) has_others: bool,
}

/// The parameters that the engine reads. Of a name that comes twice the last one counts.
#[derive(Default)]
pub(super) struct Params<'a> {
    pub(super) protocol_version: Option<&'a RawValue>,
    pub(super) request_id: Option<&'a RawValue>,
    pub(super) name: Option<&'a RawValue>,
    pub(super) uri: Option<&'a RawValue>,
    pub(super) meta: Option<&'a RawValue>,
    pub(super) progress_token: Option<&'a RawValue>,
    /// One that came twice.
    pub(super) duplicate: Option<&'static str>,
}

pub(super) fn members(text: &str) -> serde_json::Result<Members<'_>> {
    const NAMES: [&str; 6] = ["jsonrpc", "id", "method", "params", "result", "error"];
    let Picked { values: [jsonrpc, id, method, params, result, error], duplicate, has_others } = pick(text, &NAMES)?;
    Ok(Members { jsonrpc, id, method, params, result, error, duplicate, has_others })
}

/// `raw` is an object.
pub(super) fn params_of(raw: &RawValue) -> serde_json::Result<Params<'_>> {
    const NAMES: [&str; 5] = ["protocolVersion", "requestId", "name", "uri", "_meta"];
    let Picked { values: [protocol_version, request_id, name, uri, meta], mut duplicate, .. } =
        pick(raw.get(), &NAMES)?;
    let progress_token = match meta {
        Some(meta) if meta.get().starts_with('{') => {
            let picked = pick(meta.get(), &["progressToken"])?;
            duplicate = duplicate.or(picked.duplicate);
            picked.values[0]
        }
        _ => None,
    };
    Ok(Params { protocol_version, request_id, name, uri, meta, progress_token, duplicate })
}

pub(crate) struct Picked<'a, const N: usize> {
    pub(crate) values: [Option<&'a RawValue>; N],
    /// A name that came more than once.
    duplicate: Option<&'static str>,
    has_others: bool,
}

/// Where a value stands in the text that it borrows from.
pub(crate) fn place(text: &str, value: &RawValue) -> Range<usize> {
    let start = value.get().as_ptr() as usize - text.as_ptr() as usize;
    start..start + value.get().len()
}

/// All members of an object, in order. None for one that names a member twice, because readers differ in what they make of it,
/// and for anything else.
pub(crate) fn entries(json: &str) -> Option<Vec<(String, &RawValue)>> {
    let Entries(entries) = serde_json::from_str(json).ok()?;
    let mut names: Vec<&str> = entries.iter().map(|(name, _)| &**name).collect();
    names.sort_unstable();
    let is_unique = names.windows(2).all(|pair| pair[0] != pair[1]);
    is_unique.then_some(entries)
}

struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

/// Reads an object and nothing after it. The last of equal names counts.
pub(crate) fn pick<'a, const N: usize>(
    text: &'a str,
    names: &'static [&'static str; N],
) -> serde_json::Result<Picked<'a, N>> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let picked = deserializer.deserialize_map(PickVisitor { names })?;
    deserializer.end()?;
    Ok(picked)
}

struct PickVisitor<const N: usize> {
    names: &'static [&'static str; N],
}

impl<'de, const N: usize> Visitor<'de> for PickVisitor<N> {
    type Value = Picked<'de, N>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut values = [None; N];
        let mut duplicate = None;
        let mut has_others = false;
        while let Some(place) = map.next_key_seed(NameSeed { names: self.names })? {
            match place {
                Some(place) => {
                    if values[place].replace(map.next_value()?).is_some() {
                        duplicate = Some(self.names[place]);
                    }
                }
                None => {
                    has_others = true;
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Picked { values, duplicate, has_others })
    }
}

/// Reads a name as its place among the wanted ones.
struct NameSeed {
    names: &'static [&'static str],
}

impl<'de> DeserializeSeed<'de> for NameSeed {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for NameSeed {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.names.iter().position(|wanted| *wanted == name))
    }
}
