//! Reads files of `tests/vectors` whose vectors name rules.

use std::collections::HashSet;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    about: String,
    vectors: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
    about: Option<String>,
    /// Invariants of the design, schedules of several processes, faults and requirements.
    rules: Vec<String>,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

/// What each line of SDKs is to say.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BySdk<T> {
    #[serde(rename = "mcp-python")]
    pub(crate) python: T,
    #[serde(rename = "mcp-typescript")]
    pub(crate) typescript: T,
}

/// The vectors of a file with their names. A field that `T` does not know fails the test, where `T` denies it.
pub(crate) fn vectors<T: DeserializeOwned>(file: &str) -> Vec<(String, T)> {
    let file: File = serde_json::from_str(file).unwrap();
    assert!(!file.about.is_empty() && !file.vectors.is_empty());
    let mut names = HashSet::new();
    let read = |Named { name, about, rules, fields }| {
        assert!(name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-')), "{name}");
        assert!(about.is_none_or(|about: String| !about.is_empty()), "{name}");
        let known = |rule: &String| ["I", "O", "F-", "W-", "T-"].iter().any(|start| rule.starts_with(start));
        assert!(!rules.is_empty() && rules.iter().all(known), "{name} names no rule");
        assert!(names.insert(name.clone()), "{name} comes twice");
        let vector = serde_json::from_value(Value::Object(fields));
        let vector = vector.unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, vector)
    };
    file.vectors.into_iter().map(read).collect()
}
