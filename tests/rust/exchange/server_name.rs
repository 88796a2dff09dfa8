//! Runs `tests/vectors/server_name.json`: which paths are of one server.

use serde::Deserialize;
use tailrope_core::exchange::{asgi_server_name, server_name};

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
    target: Option<String>,
    routed: Option<String>,
    asgi: Option<Asgi>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asgi {
    path: String,
    raw_path: Option<String>,
    #[serde(default)]
    root_path: String,
}

impl Request {
    fn server(&self) -> String {
        match (&self.target, &self.asgi) {
            (Some(target), None) => server_name(target, self.routed.as_deref()),
            (None, Some(asgi)) => {
                asgi_server_name(asgi.raw_path.as_deref().map(str::as_bytes), &asgi.path, &asgi.root_path)
            }
            _ => panic!("a vector has a target or what ASGI says"),
        }
    }
}

#[test]
fn i7_o7_servers() {
    for (name, vector) in vectors::<Vector>(include_str!("../../vectors/server_name.json")) {
        let (opens, asks) = (vector.opens.server(), vector.asks.server());
        assert_eq!(opens == asks, vector.finds, "{name}: {opens:?}, {asks:?}");
        for server in [&opens, &asks] {
            assert!(server.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' '), "{name}: {server:?}");
        }
    }
}

#[test]
fn i7_bytes_that_are_no_text_are_a_path_of_their_own() {
    let of = |raw: &[u8]| asgi_server_name(Some(raw), "/\u{fffd}", "");
    assert_ne!(of(b"/\xff"), of(b"/\xfe"));
}
