//! Event ids: whatever is read is written the same, and whatever is written is read the same.

use tailrope_core::protocol::{
    Cursor, EventId, IdEncoder, MAX_EVENT_ID_LEN, MAX_SEQ, MAX_VISIT, Origin, RequestId, StreamNonce, sse,
};

use crate::reader::Reader;

pub(crate) fn run(bytes: &[u8]) {
    let Some((mode, bytes)) = bytes.split_first() else { return };
    if mode & 1 == 0 {
        if let Ok(text) = std::str::from_utf8(bytes) {
            is_canonical(text);
        }
    } else {
        parts(Reader::new(bytes));
    }
}

fn is_canonical(text: &str) {
    if let Some(id) = EventId::parse(text) {
        assert_eq!(written(&id), text, "what is read is written the same");
        assert!(text.len() <= MAX_EVENT_ID_LEN && sse::is_valid_event_id(text), "it fits a header");
    }
}

fn parts(mut reader: Reader<'_>) {
    let nonce = StreamNonce(reader.array_12());
    let (kind, seq, visit, tag) = (reader.u8(), reader.u64() & MAX_SEQ, reader.u32() & MAX_VISIT, reader.u32());
    let (damage, with) = (usize::from(reader.u8()), reader.u8());
    let name = String::from_utf8_lossy(reader.rest()).into_owned();
    let request = match kind & 3 {
        0 => None,
        1 => Some(RequestId::text_id(&name)),
        // Any digits; what they are not is not an integer.
        2 => RequestId::from_json(&name),
        _ => Some(RequestId::integer(i64::from_ne_bytes(seq.to_ne_bytes()))),
    };
    let (given, origin) = match request {
        None if kind & 4 == 0 => (Origin::Standalone, Origin::Standalone),
        None => (Origin::Unnamed, Origin::Unnamed),
        Some(request) => (Origin::Request(request.clone()), Origin::of_request(&request)),
    };
    if nonce == StreamNonce::NONE && kind & 8 == 0 {
        // No position is in it.
        return;
    }
    let id = |origin| match kind & 8 {
        0 => EventId::Position(Cursor { nonce, seq, visit, tag, origin }),
        _ => EventId::Tombstone(nonce, origin),
    };
    let text = written(&id(given));
    assert!(text.len() <= MAX_EVENT_ID_LEN && sse::is_valid_event_id(&text), "it fits a header: {text}");
    assert_eq!(EventId::parse(&text), Some(id(origin)), "what is written is read the same");

    let mut damaged = text.into_bytes();
    let at = damage % damaged.len();
    damaged[at] = with;
    if let Ok(text) = std::str::from_utf8(&damaged) {
        is_canonical(text);
    }
}

fn written(id: &EventId) -> String {
    let mut out = Vec::new();
    match id {
        EventId::Position(cursor) => {
            IdEncoder::new(cursor.nonce, &cursor.origin).encode(cursor.seq, cursor.visit, cursor.tag, &mut out);
        }
        EventId::Tombstone(nonce, origin) => IdEncoder::new(*nonce, origin).tombstone(&mut out),
    }
    String::from_utf8(out).expect("ids are ASCII")
}
