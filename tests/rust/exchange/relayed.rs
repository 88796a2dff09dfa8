//! What travels of a request that is relayed.

use bytes::Bytes;
use tailrope_core::exchange::{CREDENTIAL_HEADERS, RELAYED_HEADERS, Relayed, RelayedMethod, Unreadable};

use crate::kit::dice::Dice;

fn with_headers(headers: &[(&str, &str)], more: &[&str]) -> Vec<(String, String)> {
    let relayed = Relayed::new(RelayedMethod::Post, Bytes::new(), headers.iter().copied(), more, None);
    relayed.headers().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn owned(headers: &[(&str, &str)]) -> Vec<(String, String)> {
    headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn what_handlers_may_read_travels_and_nothing_else() {
    let headers = [
        ("Accept", "text/event-stream"),
        ("X-Tenant", "blue"),
        ("Content-Type", "application/json"),
        ("TraceParent", "00-1-2-01"),
        ("x-request-id", "1"),
        ("X-Request-Id", "2"),
    ];
    let listed =
        [("accept", "text/event-stream"), ("traceparent", "00-1-2-01"), ("x-request-id", "1"), ("x-request-id", "2")];
    assert_eq!(with_headers(&headers, &[]), owned(&listed));
    let more = with_headers(&headers, &["x-TENANT"]);
    assert_eq!(more[1], ("x-tenant".to_owned(), "blue".to_owned()), "what the operator lets travel");
}

#[test]
fn f_a_credential_never_travels() {
    let kept = CREDENTIAL_HEADERS.iter().chain(&["Cookie", "cookie2", "Proxy-Authorization", "AUTHORIZATION"]);
    let headers: Vec<(&str, &str)> = kept.map(|name| (*name, "secret")).collect();
    let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
    assert_eq!(with_headers(&headers, &[]), []);
    assert_eq!(with_headers(&headers, &names), [], "not even where the operator asks for it");
    assert!(RELAYED_HEADERS.iter().all(|name| name.to_ascii_lowercase() == **name && !names.contains(name)));
}

#[test]
fn a_request_comes_back_as_it_was() {
    let mut dice = Dice::Seed(15);
    for round in 0..200 {
        let method = if round % 5 == 0 { RelayedMethod::Delete } else { RelayedMethod::Post };
        let body: Vec<u8> = (0..dice.below(300)).map(|_| dice.below(256) as u8).collect();
        let values: Vec<String> =
            (0..dice.below(5)).map(|at| "é".repeat(dice.below(40) as usize * at as usize)).collect();
        let headers = values.iter().zip(RELAYED_HEADERS).map(|(value, name)| (name, value.as_str()));
        let auth = [None, Some(""), Some(r#"{"scopes":["a"]}"#)][dice.place(3)];
        let principal = [None, Some(""), Some("alice")][dice.place(3)];
        let relayed = Relayed::new(method, body.into(), headers, &[], auth).from_principal(principal);
        let encoded = relayed.encode();
        let back = Relayed::decode(&encoded).expect("it was written so");
        assert_eq!(back, relayed);
        assert_eq!((back.principal(), back.auth(), back.method()), (principal, auth, method), "none is not empty");
        let head = encoded.len() - relayed.body().len();
        for end in 0..head {
            let cut = Relayed::decode(&encoded.slice(..end));
            assert_eq!(cut, Err(Unreadable::Malformed), "{end} of {head} bytes");
        }
    }
}

#[test]
fn o22_what_a_later_release_wrote_is_not_read() {
    let relayed = Relayed::new(RelayedMethod::Post, Bytes::from_static(b"{}"), [], &[], None).encode();
    let version = |version: u8| {
        let mut bytes = relayed.to_vec();
        bytes[0] = version;
        Relayed::decode(&bytes.into()).map(|_| ())
    };
    assert_eq!((version(1), version(2), version(255)), (Ok(()), Err(Unreadable::Newer), Err(Unreadable::Newer)));
    assert_eq!(version(0), Err(Unreadable::Malformed));
}

#[test]
fn any_bytes_are_read_or_refused() {
    let mut dice = Dice::Seed(16);
    for _ in 0..20_000 {
        let mut bytes: Vec<u8> =
            (0..dice.below(40)).map(|_| [0, 1, 2, 255, dice.below(256) as u8][dice.place(5)]).collect();
        if let Some(first) = bytes.first_mut() {
            *first = 1;
        }
        if let Ok(relayed) = Relayed::decode(&bytes.clone().into()) {
            assert_eq!(Relayed::decode(&relayed.encode()), Ok(relayed));
        }
    }
}

#[test]
fn the_head_is_that_of_the_request() {
    let headers = [("Accept", "a"), ("MCP-Protocol-Version", "2025-11-25"), ("mcp-session-id", "other")];
    let relayed = Relayed::new(RelayedMethod::Delete, Bytes::new(), headers, &[], None);
    let head = relayed.head("s");
    assert_eq!((head.method, head.accept, head.session_id), ("DELETE", Some("a"), Some("s")));
    assert_eq!((head.protocol_version, head.last_event_id), (Some("2025-11-25"), None));
    for method in [RelayedMethod::Post, RelayedMethod::Delete] {
        assert_eq!(RelayedMethod::parse(method.as_str()), Some(method));
    }
    assert_eq!(RelayedMethod::parse("GET"), None);
}
