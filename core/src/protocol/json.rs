//! JSON text with a member more, or with another value: everything else stays as its writer wrote it.

use serde_json::value::RawValue;

use super::fields::{pick, place};

/// The value of this member of an object; none where there is no object, or no such member.
pub(crate) fn member<'a>(object: &'a str, name: &'static [&'static str; 1]) -> Option<&'a RawValue> {
    pick(object, name).ok()?.values[0]
}

/// As [`member`], where null is as good as absent.
pub(crate) fn known_member<'a>(object: &'a str, name: &'static [&'static str; 1]) -> Option<&'a RawValue> {
    member(object, name).filter(|value| value.get() != "null")
}

/// The value, if it is an object.
pub(crate) fn object(value: &RawValue) -> Option<&RawValue> {
    value.get().starts_with('{').then_some(value)
}

/// The text of a JSON string; none for any other value.
pub(crate) fn text(value: &RawValue) -> Option<String> {
    serde_json::from_str(value.get()).ok()
}

/// The text with a member more at the start of one of its objects, which has no member of that name.
pub(crate) fn with_member(text: &str, object: &RawValue, name: &str, value: &str) -> String {
    let start = place(text, object).start + 1;
    let (before, behind) = text.split_at(start);
    let comma = if object.get()[1..].trim_ascii_start().starts_with('}') { "" } else { "," };
    format!("{before}{}:{value}{comma}{behind}", quoted(name))
}

/// The text with another value in the place of one of its values.
pub(crate) fn with_value(text: &str, old: &RawValue, new: &str) -> String {
    let place = place(text, old);
    format!("{}{new}{}", &text[..place.start], &text[place.end..])
}

/// A text as JSON.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
