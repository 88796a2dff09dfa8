//! Runs `tests/vectors/origin.json`: from where requests are served.

use serde::Deserialize;
use tailrope_core::exchange::{Allowed, Fault};

use crate::kit::vectors::vectors;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    #[serde(default)]
    hosts: Vec<String>,
    #[serde(default)]
    origins: Vec<String>,
    host: Option<String>,
    origin: Option<String>,
    want: Option<(String, String)>,
}

#[test]
fn origins() {
    for (name, vector) in vectors::<Vector>(include_str!("../../vectors/origin.json")) {
        let hosts: Vec<&str> = vector.hosts.iter().map(String::as_str).collect();
        let origins: Vec<&str> = vector.origins.iter().map(String::as_str).collect();
        let allowed = Allowed { hosts: &hosts, origins: &origins };
        let said = allowed.check(vector.host.as_deref(), vector.origin.as_deref()).err();
        let want = vector.want.as_ref().map(|(fault, text)| Fault::named(fault, text).expect("there is such a fault"));
        assert_eq!(said, want, "{name}");
    }
}
