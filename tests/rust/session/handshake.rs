//! What is kept of what a client told for the rest of its session, and that it comes back as it was.

use bytes::Bytes;
use serde_json::{Value, json};
use tailrope_core::protocol::jsonrpc::{self, Envelope};
use tailrope_core::session::{Handshake, MAX_HANDSHAKE_BYTES};

use crate::kit::dice::Dice;

fn request(id: u64, method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

fn initialize(version: &str) -> String {
    request(0, "initialize", &json!({"protocolVersion": version}))
}

fn initialized() -> String {
    json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string()
}

fn level(id: u64, level: &str) -> String {
    request(id, "logging/setLevel", &json!({"level": level}))
}

fn subscribe(id: u64, uri: &str) -> String {
    request(id, "resources/subscribe", &json!({"uri": uri}))
}

fn unsubscribe(id: u64, uri: &str) -> String {
    request(id, "resources/unsubscribe", &json!({"uri": uri}))
}

fn envelope(text: &str) -> Envelope {
    jsonrpc::read(text.as_bytes()).expect("it is a message").envelopes()[0].clone()
}

/// Whether that changes anything.
fn note(handshake: &mut Handshake, text: &str) -> bool {
    handshake.note(&envelope(text), &Bytes::copy_from_slice(text.as_bytes()))
}

fn of(messages: &[String]) -> Handshake {
    let mut handshake = Handshake::default();
    messages.iter().for_each(|text| assert!(note(&mut handshake, text), "{text}"));
    handshake
}

fn replay(handshake: &Handshake) -> Vec<String> {
    handshake.replay().iter().map(|text| String::from_utf8(text.to_vec()).expect("it is JSON")).collect()
}

#[test]
fn a_server_object_is_told_what_holds_now_in_the_order_of_a_client() {
    let handshake = of(&[
        initialize("2025-11-25"),
        subscribe(1, "file:///a"),
        level(2, "debug"),
        initialized(),
        subscribe(3, "file:///b"),
        unsubscribe(4, "file:///a"),
        subscribe(5, "file:///c"),
        level(6, "error"),
        subscribe(7, "file:///a"),
    ]);
    let want = [
        initialize("2025-11-25"),
        initialized(),
        level(6, "error"),
        subscribe(3, "file:///b"),
        subscribe(5, "file:///c"),
        subscribe(7, "file:///a"),
    ];
    assert_eq!(replay(&handshake), want);
}

#[test]
fn what_is_over_with_its_answer_or_says_the_same_again_changes_nothing() {
    let mut handshake = of(&[initialize("2025-11-25"), initialized(), subscribe(1, "file:///a")]);
    let before = handshake.clone();
    for text in [
        initialize("2025-11-25"),
        initialized(),
        subscribe(8, "file:///a"),
        unsubscribe(9, "file:///b"),
        request(2, "tools/call", &json!({"name": "resources/subscribe", "uri": "x"})),
        request(3, "resources/subscribe", &json!({"uri": 7})),
        request(4, "resources/subscribe", &json!({})),
        request(5, "notifications/initialized", &json!({})),
        json!({"jsonrpc": "2.0", "method": "logging/setLevel", "params": {"level": "debug"}}).to_string(),
        json!({"jsonrpc": "2.0", "id": 6, "result": {"uri": "file:///c"}}).to_string(),
    ] {
        assert!(!note(&mut handshake, &text), "{text}");
    }
    assert_eq!(handshake, before);
    assert!(note(&mut handshake, &initialize("2025-06-18")), "it may come again");
    assert_eq!(replay(&handshake)[0], initialize("2025-06-18"));
}

#[test]
fn nothing_is_kept_of_a_session_whose_initialize_was_not_seen() {
    let mut handshake = Handshake::default();
    for text in [initialized(), level(1, "debug"), subscribe(2, "file:///a")] {
        assert!(!note(&mut handshake, &text));
    }
    assert_eq!((handshake.encode(), handshake.replay()), (Bytes::new(), Vec::new()));
    assert_eq!(Handshake::decode(&Bytes::new()), Some(handshake));
}

#[test]
fn a_client_that_tells_more_than_is_kept_has_nothing_kept() {
    let first = initialize("2025-11-25");
    // A byte for the version, and four for the length of each.
    let room = MAX_HANDSHAKE_BYTES - 1 - 4 - first.len() - 4 - subscribe(1, "").len();
    for (length, is_kept) in [(room, true), (room + 1, false)] {
        let mut handshake = of(&[first.clone(), subscribe(1, &"x".repeat(length))]);
        assert_eq!((handshake.is_too_large(), handshake.encode().is_empty()), (!is_kept, !is_kept));
        if is_kept {
            assert_eq!(handshake.encode().len(), MAX_HANDSHAKE_BYTES);
            assert_eq!(Handshake::decode(&handshake.encode()), Some(handshake));
        } else {
            assert!(!note(&mut handshake, &first), "it is not known any more what it wants");
            assert_eq!(handshake.replay(), Vec::<Bytes>::new());
        }
    }
    let mut many = of(&[first]);
    let short =
        |number| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{{"uri":"{number}"}}}}"#);
    let kept = (0..).take_while(|number| note(&mut many, &short(*number)) && !many.is_too_large()).count();
    assert!((600..=1_000).contains(&kept), "{kept}");
}

#[test]
fn it_comes_back_as_it_was_and_nothing_else_is_read() {
    let mut dice = Dice::Seed(16);
    for _ in 0..200 {
        let mut handshake = of(&[initialize("2025-11-25")]);
        for id in 0..dice.below(12) {
            let uri = format!("file:///{}", dice.below(4));
            let text = match dice.below(5) {
                0 => initialized(),
                1 => level(id, "info"),
                2 => unsubscribe(id, &uri),
                _ => subscribe(id, &uri),
            };
            note(&mut handshake, &text);
        }
        let encoded = handshake.encode();
        assert_eq!(Handshake::decode(&encoded), Some(handshake.clone()));
        assert!(!format!("{handshake:?}").contains("file"), "no payload is for a log");
        let mut damaged = encoded.to_vec();
        match dice.below(3) {
            0 => damaged.truncate(1 + dice.place(encoded.len() - 1)),
            1 => damaged[0] = 2 + dice.below(200) as u8,
            _ => damaged[1 + dice.place(4)] ^= 1 << dice.below(8),
        }
        let back = Handshake::decode(&damaged.clone().into());
        // What ends behind a message is a shorter one.
        assert!(back.is_none_or(|back| *back.encode() == *damaged && encoded.starts_with(&damaged)));
    }
}
