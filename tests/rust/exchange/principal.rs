//! Runs `tests/vectors/principal.json`: who finds whose session.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use tailrope_core::exchange::{Asker, CREDENTIAL_HEADERS};

use crate::kit::vectors::vectors;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    opens: Request,
    asks: Request,
    finds: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    named: Option<String>,
    user: Option<Value>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

impl Request {
    fn principal(&self) -> Option<Box<str>> {
        let user_json = self.user.as_ref().map(Value::to_string);
        let credentials: Vec<(&str, &str)> =
            self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert!(credentials.iter().all(|(name, _)| CREDENTIAL_HEADERS.contains(name)));
        Asker { named: self.named.as_deref(), user_json: user_json.as_deref(), credentials: &credentials }.principal()
    }
}

#[test]
fn i7_principals() {
    for (name, vector) in vectors::<Vector>(include_str!("../../vectors/principal.json")) {
        let (owner, asker) = (vector.opens.principal(), vector.asks.principal());
        assert_eq!(owner == asker, vector.finds, "{name}: {owner:?}, {asker:?}");
    }
}

#[test]
fn i7_a_principal_says_nothing_of_what_it_was_made_from() {
    let secret = [("authorization", "Bearer secret")];
    let principals = [
        Asker { named: Some("alice"), ..Asker::default() },
        Asker { user_json: Some(r#"{"sub":"alice"}"#), ..Asker::default() },
        Asker { credentials: &secret, ..Asker::default() },
    ];
    for asker in principals {
        let principal = asker.principal().expect("somebody");
        assert!(principal.len() == 64 && principal.bytes().all(|byte| byte.is_ascii_hexdigit()), "{principal}");
    }
}

#[test]
fn i7_credentials_count_in_any_order_of_the_headers() {
    let headers = [("authorization", "Bearer 1"), ("x-api-key", "2")];
    let turned = [headers[1], headers[0]];
    let of = |credentials| Asker { credentials, ..Asker::default() }.principal();
    assert_eq!(of(&headers), of(&turned));
}
