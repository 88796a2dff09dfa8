//! What travels of a request that is relayed.

use bytes::Bytes;
use tailrope_core::exchange::{
    IDENTITY_HEADERS, RELAYED_HEADERS, Relayed, RelayedMethod, Unreadable, is_secret_header,
};

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
    let kept = IDENTITY_HEADERS.iter().filter(|name| is_secret_header(name)).chain(&[
        "Cookie",
        "cookie2",
        "Proxy-Authorization",
        "AUTHORIZATION",
    ]);
    let headers: Vec<(&str, &str)> = kept.map(|name| (*name, "secret")).collect();
    let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
    assert_eq!(with_headers(&headers, &[]), []);
    assert_eq!(with_headers(&headers, &names), [], "not even where the operator asks for it");
    assert!(RELAYED_HEADERS.iter().all(|name| name.to_ascii_lowercase() == **name && !names.contains(name)));
}

#[test]
fn f_no_credential_travels_with_what_is_said_of_the_sender() {
    // I6: by value, at any depth, whatever member holds it.
    let headers = [("authorization", "Bearer secret-of-alice"), ("x-api-key", "key-1")];
    let auth = r#"{
        "token": "secret-of-alice", "clientId": "app", "scopes": ["a", "key-1"], "expiresAt": 90071992547409931,
        "resource": "https://x.example/?access_token=secret-of-alice",
        "extra": {
            "raw": "secret-of-alice", "secret-of-alice": 1, "header": "Bearer secret-of-alice", "sub": "alice", "key": "key-10",
            "claims": {"access_token": "upstream", "sub": "alice", "deeper": [{"jwt": "secret-of-alice"}, "key-1", "kept"]},
            "again": "upstream"
        }
    }"#;
    let of = |auth| {
        let relayed = Relayed::new(RelayedMethod::Post, Bytes::new(), headers, &[], Some(auth));
        relayed.auth().map(str::to_owned)
    };
    let kept = r#"{"clientId":"app","scopes":["a"],"expiresAt":90071992547409931,"extra":{"sub":"alice","key":"key-10","claims":{"sub":"alice","deeper":[{},"kept"]}}}"#;
    assert_eq!(of(auth).as_deref(), Some(kept));
    assert_eq!(of("secret-of-alice"), None, "what is no JSON does not travel");
    assert_eq!(of(r#""secret-of-alice""#), None);
}

#[test]
fn what_does_not_travel_is_known() {
    let headers =
        [("X-Tenant", "blue"), ("Host", "h"), ("cookie", "c"), ("x-mine", "1"), ("X-Mine", "2"), ("accept", "a")];
    let relayed = Relayed::new(RelayedMethod::Post, Bytes::new(), headers, &["x-tenant"], None);
    let relayed = relayed.without(["user".to_owned()]);
    let dropped: Vec<&str> = relayed.dropped().collect();
    assert_eq!(dropped, ["header cookie", "header x-mine", "user"]);
    assert_eq!(Relayed::decode(&relayed.encode()).unwrap().dropped().count(), 0, "it is for the log here");
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
        let auth = [None, Some("{}"), Some(r#"{"scopes":["a"]}"#)][dice.place(3)];
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
