//! Reading server-sent events as the HTML standard prescribes (W-100 to W-109), piece by piece.
//!
//! Bytes go in with [`Decoder::push`] in chunks of any size, items come out of [`Decoder::next`].
//! Lines end at CR, LF or CRLF and nowhere else (F-61). An event that is too large is an error that
//! names its size, never a silent drop (F-60).

use std::fmt;
use std::mem;

use memchr::memchr2;

/// One thing that a stream said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A block with data ended.
    Event(Event),
    /// The text after the colon, with one leading blank dropped.
    Comment(String),
    /// A valid `retry` line, reported when it is read (W-105).
    Retry(u64),
    /// A block without data ended: nothing is dispatched, but the id that it set counts (W-106).
    Cursor(String),
}

/// A dispatched event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// `message` unless the block names another type.
    pub event: String,
    /// The data lines, joined with LF.
    pub data: String,
    /// The id that this block itself set, if any; empty when it reset the id (W-104).
    pub id: Option<String>,
    /// The cursor after this event, which may stem from an earlier block (W-107).
    pub last_id: String,
}

/// An event has more bytes than the decoder may hold. The decoder gives nothing after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventTooLarge {
    /// Bytes of the event that had arrived when the decoder gave up.
    pub size_bytes: usize,
    /// The most that one event may hold.
    pub limit_bytes: usize,
}

impl fmt::Display for EventTooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size_bytes, limit_bytes } = self;
        write!(f, "an event of at least {size_bytes} bytes is over the limit of {limit_bytes} bytes")
    }
}

impl std::error::Error for EventTooLarge {}

/// The incremental reader; see the module.
#[derive(Debug)]
pub struct Decoder {
    limit_bytes: usize,
    failed: Option<EventTooLarge>,
    buffer: Vec<u8>,
    /// Where the next line starts in `buffer`.
    start: usize,
    /// Up to where `buffer` has been searched for a line end.
    searched: usize,
    at_beginning: bool,
    /// The last line ended with CR: an LF that follows belongs to it (W-101).
    after_cr: bool,

    block: Block,
    /// The id that the next dispatch commits. It outlives blocks, but not an unfinished one (W-108).
    pending_id: String,
    last_id: String,
    retry_ms: Option<u64>,
}

#[derive(Debug, Default)]
struct Block {
    event: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    has_id: bool,
}

impl Decoder {
    /// `limit_bytes` bounds what one event may hold: its data so far and the line being read.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            failed: None,
            buffer: Vec::new(),
            start: 0,
            searched: 0,
            at_beginning: true,
            after_cr: false,
            block: Block::default(),
            pending_id: String::new(),
            last_id: String::new(),
            retry_ms: None,
        }
    }

    /// A decoder of a resumed stream starts with the cursor that the stream was resumed from (W-112).
    pub fn resumed_from(mut self, last_id: &str) -> Self {
        self.pending_id = last_id.to_owned();
        self.last_id = last_id.to_owned();
        self
    }

    /// The cursor, as of the items that were taken; empty when there is none.
    pub fn last_id(&self) -> &str {
        &self.last_id
    }

    /// The reconnection time, as of the items that were taken.
    pub fn retry_ms(&self) -> Option<u64> {
        self.retry_ms
    }

    /// Hands over the next bytes. Take all items before the next push, so that memory stays bounded.
    pub fn push(&mut self, chunk: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        self.buffer.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        self.buffer.extend_from_slice(chunk);
    }

    /// The next item, or `None` until more bytes arrive. At the end of the stream an unfinished block
    /// is dropped with the decoder (W-108).
    #[allow(clippy::should_implement_trait, reason = "not an iterator: None is not the end")]
    pub fn next(&mut self) -> Result<Option<Item>, EventTooLarge> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        while let Some((start, end)) = self.next_line() {
            self.check_size(end - start)?;
            if let Some(item) = self.read_line(start, end) {
                return Ok(Some(item));
            }
        }
        self.check_size(self.buffer.len() - self.start)?;
        Ok(None)
    }

    fn check_size(&mut self, line_bytes: usize) -> Result<(), EventTooLarge> {
        // Comments and unknown fields are not kept, so any number of them may pass.
        let size_bytes = self.block.event.len() + self.block.data.len() + line_bytes;
        if size_bytes <= self.limit_bytes {
            return Ok(());
        }
        let error = EventTooLarge { size_bytes, limit_bytes: self.limit_bytes };
        self.failed = Some(error);
        self.buffer = Vec::new();
        self.block = Block::default();
        Err(error)
    }

    /// Takes one complete line out of the buffer. A CR ends its line at once, so that no event waits
    /// for the byte after it.
    fn next_line(&mut self) -> Option<(usize, usize)> {
        if self.at_beginning {
            self.skip_byte_order_mark()?;
        }
        if self.after_cr && self.start < self.buffer.len() {
            self.after_cr = false;
            if self.buffer[self.start] == b'\n' {
                self.start += 1;
            }
        }
        let from = self.searched.max(self.start);
        let Some(offset) = memchr2(b'\r', b'\n', &self.buffer[from..]) else {
            self.searched = self.buffer.len();
            return None;
        };
        let line = (self.start, from + offset);
        self.after_cr = self.buffer[line.1] == b'\r';
        self.start = line.1 + 1;
        self.searched = self.start;
        Some(line)
    }

    /// `None` while the bytes so far could still become a byte order mark (W-100).
    fn skip_byte_order_mark(&mut self) -> Option<()> {
        const MARK: &[u8] = b"\xEF\xBB\xBF";
        if self.buffer.len() < MARK.len() && MARK.starts_with(&self.buffer) {
            return None;
        }
        self.at_beginning = false;
        if self.buffer.starts_with(MARK) {
            self.start = MARK.len();
        }
        Some(())
    }

    fn read_line(&mut self, start: usize, end: usize) -> Option<Item> {
        let line = &self.buffer[start..end];
        if line.is_empty() {
            return self.end_block();
        }
        let (name, value) = match line.iter().position(|byte| *byte == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &b""[..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"" => return Some(Item::Comment(text(value))),
            b"data" => {
                self.block.data.extend_from_slice(value);
                self.block.data.push(b'\n');
                self.block.has_data = true;
            }
            b"event" => self.block.event = value.to_vec(),
            b"id" if !value.contains(&0) => {
                self.pending_id = text(value);
                self.block.has_id = true;
            }
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                // All digits, so the only failure is a number beyond u64: the longest wait there is.
                let retry_ms = text(value).parse().unwrap_or(u64::MAX);
                self.retry_ms = Some(retry_ms);
                return Some(Item::Retry(retry_ms));
            }
            _ => {}
        }
        None
    }

    fn end_block(&mut self) -> Option<Item> {
        let mut block = mem::take(&mut self.block);
        self.last_id.clone_from(&self.pending_id);
        if !block.has_data {
            return block.has_id.then(|| Item::Cursor(self.last_id.clone()));
        }
        block.data.pop();
        Some(Item::Event(Event {
            event: if block.event.is_empty() { "message".to_owned() } else { text(&block.event) },
            data: text(&block.data),
            id: block.has_id.then(|| self.last_id.clone()),
            last_id: self.last_id.clone(),
        }))
    }
}

/// Line ends are ASCII and cannot be part of a longer sequence, so replacing invalid bytes line by
/// line gives what replacing them in the whole stream gives (W-100).
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::sse;
    use super::*;

    fn decode_all(chunks: &[&[u8]]) -> Vec<Item> {
        let mut decoder = Decoder::new(1 << 20);
        let mut items = Vec::new();
        for chunk in chunks {
            decoder.push(chunk);
            while let Some(item) = decoder.next().unwrap() {
                items.push(item);
            }
        }
        items
    }

    fn split<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let mut chunks = Vec::new();
        let mut start = 0;
        for cut in cuts {
            chunks.push(&bytes[start..cut]);
            start = cut;
        }
        chunks.push(&bytes[start..]);
        chunks
    }

    #[derive(Clone, Debug)]
    enum Written {
        Message(String, String),
        Anonymous(String),
        Priming(String, Option<u32>),
        Retry(u32),
        KeepAlive,
        Gap(u64, u64),
    }

    /// JSON text of any string, with raw line ends around it as a pretty printer leaves them.
    fn payload() -> impl Strategy<Value = String> {
        ("[\\PC\u{85}\u{2028}\u{2029}\u{2014}\r\n\0]{0,80}", "[ \r\n]{0,3}")
            .prop_map(|(value, blank)| format!("{blank}{{\"v\":{blank}{}}}", serde_json::Value::from(value)))
    }

    fn written() -> impl Strategy<Value = Written> {
        prop_oneof![
            ("[!-~]{1,40}", payload()).prop_map(|(id, payload)| Written::Message(id, payload)),
            payload().prop_map(Written::Anonymous),
            ("[!-~]{1,40}", any::<Option<u32>>()).prop_map(|(id, retry)| Written::Priming(id, retry)),
            any::<u32>().prop_map(Written::Retry),
            Just(Written::KeepAlive),
            (any::<u64>(), any::<u64>()).prop_map(|(first, count)| Written::Gap(first, count)),
        ]
    }

    proptest! {
        #[test]
        fn whatever_is_written_reads_back_in_any_chunks(
            all in prop::collection::vec(written(), 0..8),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let mut out = Vec::new();
            let mut expected = Vec::new();
            let mut last_id = String::new();
            for one in &all {
                match one {
                    Written::Message(id, payload) => {
                        sse::write_message(&mut out, |out| out.extend_from_slice(id.as_bytes()), payload.as_bytes());
                        last_id.clone_from(id);
                        expected.push((Some(id.clone()), last_id.clone(), payload.clone()));
                    }
                    Written::Anonymous(payload) => {
                        sse::write_anonymous(&mut out, payload.as_bytes());
                        expected.push((None, last_id.clone(), payload.clone()));
                    }
                    Written::Priming(id, retry_ms) => {
                        sse::write_priming(&mut out, |out| out.extend_from_slice(id.as_bytes()), *retry_ms);
                        last_id.clone_from(id);
                        expected.push((Some(id.clone()), last_id.clone(), String::new()));
                    }
                    Written::Retry(retry_ms) => sse::write_retry(&mut out, *retry_ms),
                    Written::KeepAlive => sse::write_keep_alive(&mut out),
                    Written::Gap(first, count) => sse::write_gap(&mut out, *first, *count),
                }
            }
            let items = decode_all(&split(&out, &cuts));
            let events: Vec<&Event> = items
                .iter()
                .filter_map(|item| if let Item::Event(event) = item { Some(event) } else { None })
                .collect();
            prop_assert_eq!(events.len(), expected.len());
            for (event, (id, last_id, payload)) in events.into_iter().zip(expected) {
                prop_assert_eq!(&event.event, "message");
                prop_assert_eq!(&event.id, &id);
                prop_assert_eq!(&event.last_id, &last_id);
                let line_ends = ['\u{85}', '\u{2028}', '\u{2029}', '\r', '\n'];
                prop_assert!(!event.data.contains(line_ends));
                if payload.is_empty() {
                    prop_assert_eq!(&event.data, "");
                } else {
                    let read: serde_json::Value = serde_json::from_str(&event.data).unwrap();
                    let meant: serde_json::Value = serde_json::from_str(&payload).unwrap();
                    prop_assert_eq!(read, meant);
                }
            }
        }

        #[test]
        fn any_bytes_read_the_same_in_any_chunks(
            bytes in "((id|data|event|retry|x|)(:| |: )?[0-9a-z\0\u{feff}\u{e9}]{0,3}(\r|\n|\r\n)){0,12}|\\PC{0,40}",
            raw in prop::collection::vec(any::<u8>(), 0..4),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let bytes = [bytes.as_bytes(), &raw].concat();
            prop_assert_eq!(decode_all(&split(&bytes, &cuts)), decode_all(&[&bytes]));
        }
    }

    #[test]
    fn an_event_over_the_limit_is_an_error_that_names_its_size_and_stays() {
        let mut decoder = Decoder::new(16);
        decoder.push(b"id: a\ndata: 123\n\ndata: 0123456789");
        assert!(matches!(decoder.next(), Ok(Some(Item::Event(_)))));
        assert_eq!(decoder.next(), Ok(None));
        decoder.push(b"0123456789");
        let error = EventTooLarge { size_bytes: 26, limit_bytes: 16 };
        assert_eq!(decoder.next(), Err(error));
        assert_eq!(error.to_string(), "an event of at least 26 bytes is over the limit of 16 bytes");
        decoder.push(b"\n\ndata: 1\n\n");
        assert_eq!(decoder.next(), Err(error));
        assert_eq!(decoder.last_id(), "a");
    }

    #[test]
    fn many_short_lines_of_one_event_are_bounded_too() {
        let mut decoder = Decoder::new(20);
        decoder.push(&b"data: 1234\n".repeat(4));
        assert!(decoder.next().is_err());
        let mut decoder = Decoder::new(20);
        decoder.push(&b": a comment\nunknown: 1\ndata: 1\n\n: another\n".repeat(30));
        let mut items = 0;
        while decoder.next().unwrap().is_some() {
            items += 1;
        }
        assert_eq!(items, 90);
    }
}
