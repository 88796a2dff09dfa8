//! Runs `tests/vectors/faults.json`: what hosts refuse, in each SDK's words.

use serde::Deserialize;
use tailrope_core::exchange::Fault;
use tailrope_core::protocol::Dialect;

use crate::kit::vectors::{BySdk, vectors};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    given: Given,
    want: BySdk<Want>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    fault: String,
    text: String,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Want {
    status: u16,
    code: i32,
    message: String,
}

#[test]
fn faults() {
    for (name, Vector { given, want }) in vectors::<Vector>(include_str!("../../vectors/faults.json")) {
        let fault = Fault::named(&given.fault, &given.text).unwrap_or_else(|| panic!("{name}: no such fault"));
        let python = [&Dialect::MCP_PYTHON_1, &Dialect::MCP_PYTHON_2].map(|dialect| (dialect, &want.python));
        let typescript =
            [&Dialect::MCP_TYPESCRIPT_1, &Dialect::MCP_TYPESCRIPT_2].map(|dialect| (dialect, &want.typescript));
        for (dialect, want) in python.into_iter().chain(typescript) {
            let refusal = fault.refusal(dialect);
            let said = Want { status: refusal.status, code: refusal.code, message: refusal.message };
            assert_eq!(&said, want, "{name}");
        }
    }
    assert_eq!(Fault::named("no such fault", ""), None);
}

#[test]
fn w_016_a_fault_names_the_request_that_it_answers() {
    let named = |body: &[u8]| {
        String::from_utf8(Fault::Internal.refusal_of(&Dialect::MCP_TYPESCRIPT_2, body).body(&Dialect::MCP_TYPESCRIPT_2))
    };
    let request = named(br#"{"jsonrpc":"2.0","id":"a","method":"initialize"}"#).unwrap();
    assert!(request.ends_with(r#","id":"a"}"#), "{request}");
    for nameless in [&b"{"[..], br#"{"jsonrpc":"2.0","method":"x"}"#, br#"{"jsonrpc":"2.0","id":1,"result":{}}"#] {
        let text = named(nameless).unwrap();
        assert!(text.ends_with(r#","id":null}"#), "{text}");
    }
}
