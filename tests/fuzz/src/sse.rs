//! Server-sent events: read the same however they are cut, as a naive reader of the whole text reads them, and as they
//! were written.

use tailrope_core::protocol::sse_decoder::{Decoder, Event, EventTooLarge, Item};
use tailrope_core::protocol::{jsonrpc, sse};

use crate::reader::Reader;

/// More than any input: no event is too large.
const NO_LIMIT: usize = 1 << 24;

pub(crate) fn run(bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    let (mode, cuts) = (reader.u8(), reader.u8() % 8);
    let cuts: Vec<usize> = (0..cuts).map(|_| usize::from(reader.u16())).collect();
    match mode & 3 {
        0 => any_text(reader.rest(), &cuts),
        1 => {
            // A byte order mark that comes in parts is counted before it is known for one.
            let limit_bytes = 3 + usize::from(reader.u8());
            limited(reader.rest(), &cuts, limit_bytes);
        }
        _ => round_trip(reader, &cuts),
    }
}

struct Read {
    items: Vec<Item>,
    error: Option<EventTooLarge>,
    last_id: String,
    retry_ms: Option<u64>,
}

fn read<'a>(chunks: impl IntoIterator<Item = &'a [u8]>, limit_bytes: usize) -> Read {
    let mut decoder = Decoder::new(limit_bytes);
    let (mut items, mut error) = (Vec::new(), None);
    'chunks: for chunk in chunks {
        decoder.push(chunk);
        loop {
            match decoder.next() {
                Ok(Some(item)) => items.push(item),
                Ok(None) => break,
                Err(too_large) => {
                    assert!(too_large.size_bytes > too_large.limit_bytes && too_large.limit_bytes == limit_bytes);
                    assert_eq!(decoder.next(), Err(too_large), "an error stays");
                    error = Some(too_large);
                    break 'chunks;
                }
            }
        }
    }
    Read { items, error, last_id: decoder.last_id().to_owned(), retry_ms: decoder.retry_ms() }
}

fn cut<'a>(bytes: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.sort_unstable();
    let mut start = 0;
    let mut chunks = Vec::new();
    for end in cuts.into_iter().chain([bytes.len()]) {
        chunks.push(&bytes[start..end]);
        start = end;
    }
    chunks
}

fn any_text(bytes: &[u8], cuts: &[usize]) {
    let whole = read([bytes], NO_LIMIT);
    assert_eq!(whole.error, None);
    let (items, last_id, retry_ms) = naive(bytes);
    assert_eq!(whole.items, items, "as a naive reader reads it");
    assert_eq!((&whole.last_id, whole.retry_ms), (&last_id, retry_ms));
    for chunks in [cut(bytes, cuts), bytes.chunks(1).collect()] {
        let parts = read(chunks, NO_LIMIT);
        assert_eq!(parts.items, whole.items, "in any chunks");
        assert_eq!((parts.last_id, parts.retry_ms), (last_id.clone(), retry_ms));
    }
}

fn limited(bytes: &[u8], cuts: &[usize], limit_bytes: usize) {
    let whole = read([bytes], limit_bytes);
    for item in &whole.items {
        let size = match item {
            Item::Event(event) => event.data.len(),
            Item::Comment(text) | Item::Cursor(text) => text.len(),
            Item::Retry(_) => 0,
        };
        // A byte that is not UTF-8 becomes three.
        assert!(size <= 3 * limit_bytes, "nothing over the limit is given");
    }
    for chunks in [cut(bytes, cuts), bytes.chunks(1).collect()] {
        let parts = read(chunks, limit_bytes);
        assert_eq!(parts.items, whole.items, "in any chunks");
        assert_eq!(parts.error.is_some(), whole.error.is_some(), "in any chunks");
    }
}

/// The HTML standard's rules, on the whole text at once.
fn naive(bytes: &[u8]) -> (Vec<Item>, String, Option<u64>) {
    let text = String::from_utf8_lossy(bytes);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text).replace("\r\n", "\n").replace('\r', "\n");
    let mut lines: Vec<&str> = text.split('\n').collect();
    // What has no line end is not there yet.
    lines.pop();
    let (mut items, mut pending, mut last_id, mut retry_ms) = (Vec::new(), String::new(), String::new(), None);
    let (mut name_of_event, mut data, mut has_id) = (String::new(), Vec::new(), false);
    for line in lines {
        if line.is_empty() {
            last_id.clone_from(&pending);
            if !data.is_empty() {
                let event = if name_of_event.is_empty() { "message".to_owned() } else { name_of_event };
                let id = has_id.then(|| last_id.clone());
                items.push(Item::Event(Event { event, data: data.join("\n"), id, last_id: last_id.clone() }));
            } else if has_id {
                items.push(Item::Cursor(last_id.clone()));
            }
            (name_of_event, data, has_id) = (String::new(), Vec::new(), false);
            continue;
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "" => items.push(Item::Comment(value.to_owned())),
            "data" => data.push(value),
            "event" => value.clone_into(&mut name_of_event),
            "id" if !value.contains('\0') => {
                value.clone_into(&mut pending);
                has_id = true;
            }
            "retry" if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) => {
                let told = value.parse().unwrap_or(u64::MAX);
                retry_ms = Some(told);
                items.push(Item::Retry(told));
            }
            _ => {}
        }
    }
    (items, last_id, retry_ms)
}

/// What is to be written, and what a reader is to make of it.
fn round_trip(mut reader: Reader<'_>, cuts: &[usize]) {
    let (mut out, mut expected, mut last_id) = (Vec::new(), Vec::new(), String::new());
    for _ in 0..16 {
        if reader.is_empty() {
            break;
        }
        let kind = reader.u8() % 7;
        let id = id(reader.bytes());
        let retry_ms = reader.u32();
        let payload = payload(&reader.text(), reader.u8());
        let write_id = |out: &mut Vec<u8>| out.extend_from_slice(id.as_bytes());
        match kind {
            0 => {
                let start = out.len();
                sse::write_message(&mut out, write_id, payload.as_bytes());
                let (read_id, read) = sse::message_of(&out[start..]).expect("a frame is one");
                assert!(read_id == id.as_bytes() && same(read, payload.as_bytes()), "a frame gives back what it has");
                last_id.clone_from(&id);
                expected.push((Some(id), last_id.clone(), payload));
            }
            1 => {
                sse::write_anonymous(&mut out, payload.as_bytes());
                expected.push((None, last_id.clone(), payload));
            }
            2 => {
                sse::write_priming(&mut out, write_id, (retry_ms & 1 == 0).then_some(retry_ms));
                last_id.clone_from(&id);
                expected.push((Some(id), last_id.clone(), String::new()));
            }
            3 => sse::write_retry(&mut out, retry_ms),
            4 => sse::write_keep_alive(&mut out),
            5 => sse::write_gap(&mut out, u64::from(retry_ms), u64::from(retry_ms) << 20),
            _ => {
                let mut error = Vec::new();
                jsonrpc::write_error(&mut error, None, -1, &payload);
                let error = String::from_utf8(error).expect("an error is text");
                sse::write_anonymous(&mut out, error.as_bytes());
                expected.push((None, last_id.clone(), error));
            }
        }
    }
    let given = read(cut(&out, cuts), NO_LIMIT);
    assert_eq!(given.error, None);
    let events = given.items.into_iter().filter_map(|item| match item {
        Item::Event(event) => Some(event),
        Item::Comment(_) | Item::Retry(_) | Item::Cursor(_) => None,
    });
    let mut count = 0;
    for (event, (id, last_id, payload)) in events.zip(&expected) {
        assert_eq!((event.event.as_str(), &event.id, &event.last_id), ("message", id, last_id));
        let breaks_lines = ['\u{85}', '\u{2028}', '\u{2029}', '\r', '\n'];
        assert!(!event.data.contains(breaks_lines), "F-61: one line for every reader");
        assert!(same(event.data.as_bytes(), payload.as_bytes()), "what is written is read");
        count += 1;
    }
    assert_eq!(count, expected.len(), "as many events as were written");
}

/// Any bytes as an id that may go on the wire.
fn id(bytes: &[u8]) -> String {
    let id: String = bytes.iter().map(|byte| char::from(b'!' + byte % 94)).collect();
    if id.is_empty() { "a".to_owned() } else { id }
}

/// A JSON document with this text in it, and blanks where a pretty printer leaves them.
fn payload(text: &str, blanks: u8) -> String {
    let blank = ["", " ", "\n", "\r\n"][usize::from(blanks & 3)];
    format!("{{{blank}\"v\":{blank}{}}}{blank}", serde_json::Value::from(text))
}

/// Whether both are the same JSON document, or are both empty.
fn same(one: &[u8], other: &[u8]) -> bool {
    let value = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).ok();
    one.is_empty() && other.is_empty() || value(one).is_some() && value(one) == value(other)
}
