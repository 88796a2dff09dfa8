//! Writing server-sent events (W-040, W-042, W-109, W-114).
//!
//! Lines end with LF, every field has a colon and a blank, `id` comes before `data`, and a payload
//! is one line. Our own blocks are never given an `event` field: clients treat an unnamed one as `message`.

use std::io::Write as _;

/// A comment that keeps intermediaries from closing an idle connection.
pub const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";
/// The longest event id that is taken from a store that is not ours, in characters.
pub const MAX_FOREIGN_EVENT_ID_LEN: usize = 512;

/// Bytes to make room for besides the payload of an event: those of its id, and of the lines. Few events take more.
const EVENT_ROOM: usize = 140;

/// Appends an event with an id. `payload` is JSON text.
pub fn write_message(out: &mut Vec<u8>, write_id: impl FnOnce(&mut Vec<u8>), payload: &[u8]) {
    out.reserve(payload.len() + EVENT_ROOM);
    out.extend_from_slice(b"id: ");
    write_id(out);
    out.extend_from_slice(b"\ndata: ");
    write_payload(out, payload);
    out.extend_from_slice(b"\n\n");
}

/// The id and the payload of a frame that [`write_message`] wrote; none of any other.
pub fn message_of(frame: &[u8]) -> Option<(&[u8], &[u8])> {
    let fields = frame.strip_prefix(b"id: ")?.strip_suffix(b"\n\n")?;
    let (id, rest) = fields.split_at_checked(memchr::memchr(b'\n', fields)?)?;
    let payload = rest.strip_prefix(b"\ndata: ")?;
    (!payload.is_empty()).then_some((id, payload))
}

/// The id and the reconnection time of a block that [`write_priming`] wrote; none of any other.
pub fn priming_of(block: &[u8]) -> Option<(&[u8], Option<u32>)> {
    let fields = block.strip_prefix(b"id: ")?.strip_suffix(b"\ndata: \n\n")?;
    let Some(end) = memchr::memchr(b'\n', fields) else { return Some((fields, None)) };
    let retry_ms = str::from_utf8(fields[end..].strip_prefix(b"\nretry: ")?).ok()?.parse().ok()?;
    Some((&fields[..end], Some(retry_ms)))
}

/// Appends an event without an id: it moves no cursor.
pub fn write_anonymous(out: &mut Vec<u8>, payload: &[u8]) {
    out.reserve(payload.len() + 8);
    out.extend_from_slice(b"data: ");
    write_payload(out, payload);
    out.extend_from_slice(b"\n\n");
}

/// Appends an event of a type of its own, without an id. The type is of one line. The data, which need not be JSON,
/// keeps its lines.
pub fn write_typed(out: &mut Vec<u8>, event: &str, data: &str) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(event.as_bytes());
    for line in data.split('\n') {
        out.extend_from_slice(b"\ndata: ");
        out.extend_from_slice(line.as_bytes());
    }
    out.extend_from_slice(b"\n\n");
}

/// Appends a priming event: an id and an explicit empty `data` line (W-040, W-106, W-114). Without
/// that line some parsers drop the id, and the Go client takes a line without a colon for corruption.
pub fn write_priming(out: &mut Vec<u8>, write_id: impl FnOnce(&mut Vec<u8>), retry_ms: Option<u32>) {
    out.reserve(EVENT_ROOM);
    out.extend_from_slice(b"id: ");
    write_id(out);
    out.push(b'\n');
    if let Some(retry_ms) = retry_ms {
        write_retry_line(out, retry_ms);
    }
    out.extend_from_slice(b"data: \n\n");
}

/// Appends a block that sets the reconnection time and nothing else (W-042, W-105).
pub fn write_retry(out: &mut Vec<u8>, retry_ms: u32) {
    write_retry_line(out, retry_ms);
    out.push(b'\n');
}

/// Appends [`KEEP_ALIVE`].
pub fn write_keep_alive(out: &mut Vec<u8>) {
    out.extend_from_slice(KEEP_ALIVE);
}

/// Appends the comment that announces `count` missing events from `first` on (invariant I8).
pub fn write_gap(out: &mut Vec<u8>, first: u64, count: u64) {
    // Writing into a Vec cannot fail.
    let _ = write!(out, ": gap {first} {count}\n\n");
}

/// Whether an id that a foreign store made may go on the wire: 1 to 512 characters of visible ASCII.
/// Anything else could end the line and forge events.
pub fn is_valid_event_id(id: &str) -> bool {
    (1..=MAX_FOREIGN_EVENT_ID_LEN).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
}

fn write_retry_line(out: &mut Vec<u8>, retry_ms: u32) {
    out.extend_from_slice(b"retry: ");
    out.extend_from_slice(itoa::Buffer::new().format(retry_ms).as_bytes());
    out.push(b'\n');
}

/// Appends JSON text as one line. Raw CR and LF are whitespace between tokens, because JSON strings
/// cannot hold them, and are dropped. U+0085, U+2028 and U+2029 occur in strings only and are
/// escaped: some clients split lines there (F-61).
fn write_payload(out: &mut Vec<u8>, payload: &[u8]) {
    let mut copied = 0;
    let mut at = 0;
    while let Some(offset) = find_suspect(&payload[at..]) {
        at += offset;
        let (replacement, length): (&[u8], usize) = match payload[at..] {
            [b'\r' | b'\n', ..] => (b"", 1),
            [0xC2, 0x85, ..] => (b"\\u0085", 2),
            [0xE2, 0x80, 0xA8, ..] => (b"\\u2028", 3),
            [0xE2, 0x80, 0xA9, ..] => (b"\\u2029", 3),
            _ => {
                at += 1;
                continue;
            }
        };
        out.extend_from_slice(&payload[copied..at]);
        out.extend_from_slice(replacement);
        at += length;
        copied = at;
    }
    out.extend_from_slice(&payload[copied..]);
}

fn is_suspect(byte: u8) -> bool {
    (byte == b'\r') | (byte == b'\n') | (byte == 0xC2) | (byte == 0xE2)
}

/// The first byte that could begin something to replace. Whole chunks are tested without a branch
/// per byte, which compiles to vector instructions.
fn find_suspect(bytes: &[u8]) -> Option<usize> {
    const CHUNK: usize = 32;
    let is_clean = |chunk: &[u8; CHUNK]| chunk.iter().fold(0, |found, byte| found | u8::from(is_suspect(*byte))) == 0;
    let (chunks, _) = bytes.as_chunks();
    let clean = chunks.iter().take_while(|chunk| is_clean(chunk)).count();
    // The rest is tested in one chunk with some of the bytes before it.
    if clean == chunks.len() && bytes.last_chunk().is_some_and(is_clean) {
        return None;
    }
    let at = clean * CHUNK;
    bytes[at..].iter().position(|byte| is_suspect(*byte)).map(|offset| at + offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(text: &str) -> String {
        let mut out = Vec::new();
        write_anonymous(&mut out, text.as_bytes());
        let text = String::from_utf8(out).unwrap();
        text.strip_prefix("data: ").unwrap().strip_suffix("\n\n").unwrap().to_owned()
    }

    #[test]
    fn a_priming_event_and_a_message_are_read_as_they_were_written() {
        let write_id = |out: &mut Vec<u8>| out.extend_from_slice(b"z1.a");
        for retry_ms in [None, Some(0), Some(u32::MAX)] {
            let mut block = Vec::new();
            write_priming(&mut block, write_id, retry_ms);
            assert_eq!((priming_of(&block), message_of(&block)), (Some((&b"z1.a"[..], retry_ms)), None));
            block.extend_from_within(..);
            assert_eq!(priming_of(&block), None, "there are two");
        }
        let mut frame = Vec::new();
        write_message(&mut frame, write_id, b"{}");
        assert_eq!((priming_of(&frame), message_of(&frame)), (None, Some((&b"z1.a"[..], &b"{}"[..]))));
        for other in
            [KEEP_ALIVE, b"retry: 5\n\n", b"id: a\nretry: 5\n\n", b"id: a\nretry: x\ndata: \n\n", b"data: {}\n\n"]
        {
            assert_eq!((priming_of(other), message_of(other)), (None, None));
        }
    }

    #[test]
    fn replacements_at_every_offset_of_a_chunk() {
        for offset in 0..70 {
            let before = "x".repeat(offset);
            let text = format!("{before}\u{2028}\u{2029}\u{85}\u{2014}\u{e9}\u{a0}\r\n{before}");
            assert_eq!(payload(&text), format!("{before}\\u2028\\u2029\\u0085\u{2014}\u{e9}\u{a0}{before}"));
        }
    }

    #[test]
    fn foreign_ids_are_bounded_visible_ascii() {
        assert!(is_valid_event_id("a,b!~"));
        assert!(is_valid_event_id(&"x".repeat(512)));
        for id in ["", "a b", "a\nb", "a\0", "\u{e9}", "\u{7f}", &"x".repeat(513)] {
            assert!(!is_valid_event_id(id), "{id:?}");
        }
    }
}
