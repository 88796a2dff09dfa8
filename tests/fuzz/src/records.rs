//! What stores give back, and what names them: whatever the bytes are, it is read or refused.

use bytes::Bytes;
use serde_json::Value;
use tailrope_core::client::Token;
use tailrope_core::protocol::Body;
use tailrope_core::protocol::jsonrpc;
use tailrope_core::session::Handshake;
use tailrope_core::store::StoreError;
use tailrope_stores::{decoding, shown_address};

use crate::reader::Reader;
use crate::sealed;

pub(crate) fn run(bytes: &[u8]) {
    let Some((mode, bytes)) = bytes.split_first() else { return };
    match mode % 6 {
        0 => redis(bytes),
        1 => sealed::run(Reader::new(bytes)),
        2 => token(bytes),
        3 => address(bytes),
        4 => credentials(Reader::new(bytes)),
        _ => handshake(bytes),
    }
}

fn redis(bytes: &[u8]) {
    for result in decoding::redis_reply(bytes).unwrap_or_default() {
        match result {
            Ok(read) => {
                let events = read.page.iter().flat_map(|page| &page.page.events);
                assert!(events.map(|event| event.frame.len()).sum::<usize>() <= bytes.len());
            }
            Err(StoreError::TooLarge { .. } | StoreError::TimedOut { .. }) => panic!("a server says no such thing"),
            Err(_) => {}
        }
    }
    for (_, _, place) in decoding::redis_slots(bytes, "asked") {
        assert!(place.contains(':'), "{place} has a port");
    }
}

fn token(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(token) = Token::parse(text) else { return };
    let written = token.to_string();
    assert_eq!(Token::parse(&written), Ok(token.clone()), "W-113: it reads back");
    assert!(!written.contains(['\n', '\r']), "it is one line");
    if let Ok(value) = serde_json::from_str::<Value>(text) {
        assert_eq!(value["lastEventId"], *token.last_event_id);
        assert_eq!(value["requests"].as_array().map(Vec::len), Some(token.requests.len()));
    }
}

fn handshake(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    if let Some(handshake) = Handshake::decode(&bytes) {
        assert_eq!(handshake.encode(), bytes, "it is read as it was written");
        let is_told = handshake.replay().iter().all(|text| matches!(jsonrpc::read(text), Ok(Body::Single(_))));
        assert!(is_told && !handshake.is_too_large());
    }
}

fn address(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(shown) = decoding::redis_address(text) {
        let again = decoding::redis_address(&shown);
        assert!(again.is_ok() || shown.contains(['%', ' ', '[', ']', '@', '?', '#', '/']), "{shown}: {again:?}");
    }
    let _ = decoding::postgres_address(text);
    let _ = shown_address(text);
}

/// An address that is right, but for one part that is any text: nothing that is said of it has the password in it.
fn credentials(mut reader: Reader<'_>) {
    const PASSWORD: &str = "hunter2hunter2";
    let (kind, place) = (usize::from(reader.u8()), reader.u8());
    let schemes = ["redis", "rediss", "redis+cluster", "redis+sentinel", "rediss+sentinel", "postgres", "postgresql"];
    let scheme = schemes[kind % schemes.len()];
    let any: String = String::from_utf8_lossy(reader.rest()).into_owned();
    // What follows an @ is a host, and hosts are no secret; a user is none either.
    let any = any.replace('@', "");
    // A fuzzer learns what it is compared with.
    if any.contains(PASSWORD) {
        return;
    }
    let address = match place & 3 {
        0 => format!("{scheme}://me:{PASSWORD}@{any}"),
        1 => format!("{scheme}://me:{PASSWORD}@host{any}"),
        2 => format!("{scheme}://me:{PASSWORD}{any}@host/0"),
        _ => format!("{scheme}://me:{any}{PASSWORD}@host/0?namespace={any}"),
    };
    let shown = shown_address(&address);
    assert!(!shown.contains(PASSWORD), "{address:?} is shown as {shown:?}");
    let is_redis = scheme.starts_with("redis");
    let wrong = if is_redis {
        decoding::redis_address(&address).unwrap_or_else(|error| error.to_string())
    } else {
        decoding::postgres_address(&address).map_or_else(|error| error.to_string(), |()| String::new())
    };
    assert!(!wrong.contains(PASSWORD), "{address:?}: {wrong:?}");
}
