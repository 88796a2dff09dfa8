//! Runs `tests/vectors/readers.json` against our reader. The packages compare it with the readers of their SDKs.

use serde::Deserialize;
use serde_json::Value;
use tailrope_core::protocol::Dialect;
use tailrope_core::protocol::inspect::inspect;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "it is for people who read the vectors")]
struct File {
    about: String,
    vectors: Vec<Vector>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "some of it is for people who read the vectors")]
struct Vector {
    name: String,
    about: Option<String>,
    rules: Vec<String>,
    body: Option<String>,
    body_hex: Option<String>,
    /// Messages, or `refused`.
    want: Value,
    #[serde(default)]
    refused_by: Vec<String>,
}

const LINES: [(&str, &Dialect); 4] = [
    ("python-1", &Dialect::MCP_PYTHON_1),
    ("python-2", &Dialect::MCP_PYTHON_2),
    ("typescript", &Dialect::MCP_TYPESCRIPT_1),
    ("neutral", &Dialect::NEUTRAL),
];

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn i13_our_reader_takes_a_body_for_what_the_others_take_it_for() {
    let File { vectors, .. } = serde_json::from_str(include_str!("../../vectors/readers.json")).unwrap();
    let mut failed = Vec::new();
    for Vector { name, body, body_hex, want, refused_by, .. } in vectors {
        let body = body.map_or_else(|| unhex(&body_hex.unwrap()), String::into_bytes);
        for (line, dialect) in LINES {
            let got = inspect(&body, dialect);
            let is_refused = want == "refused" || refused_by.iter().any(|other| line.starts_with(&**other));
            if if is_refused { !got.is_string() } else { got != want } {
                failed.push(format!("{name} by {line}: {got}"));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
