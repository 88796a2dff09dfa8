//! The events of one connection, kept as ranges of the text they came in.
//!
//! Splitting is all that happens while a clock runs; the JSON inside is read afterwards by `check`.

use std::ops::Range;
use std::sync::LazyLock;

use memchr::{memchr, memmem};

use crate::http::Result;

#[derive(Default)]
pub(crate) struct Event {
    pub(crate) id: Range<usize>,
    pub(crate) data: Range<usize>,
}

#[derive(Default)]
pub(crate) struct Events {
    pub(crate) text: Vec<u8>,
    pub(crate) events: Vec<Event>,
    pub(crate) retry_ms: Option<u64>,
    line_start: usize,
    current: Event,
    has_data: bool,
}

impl Events {
    /// With memory for `count` events that has been written to, so that no page fault is timed.
    pub(crate) fn with_room_for(count: usize) -> Self {
        let mut text = vec![1; count * 400];
        text.clear();
        Self { text, events: Vec::with_capacity(count + 16), ..Self::default() }
    }

    /// Take in what was appended to `text`; true once an event that ends the request has been seen.
    pub(crate) fn advance(&mut self) -> Result<bool> {
        let mut terminal = false;
        while let Some(at) = memchr(b'\n', &self.text[self.line_start..]) {
            let start = self.line_start;
            let end = start + at;
            self.line_start = end + 1;
            let end = if end > start && self.text[end - 1] == b'\r' { end - 1 } else { end };
            if start == end {
                terminal |= self.dispatch();
            } else {
                self.field(start..end)?;
            }
        }
        Ok(terminal)
    }

    fn field(&mut self, line: Range<usize>) -> Result<()> {
        let text = &self.text[line.clone()];
        let colon = memchr(b':', text).unwrap_or(text.len());
        let mut value = (line.start + colon + 1).min(line.end)..line.end;
        if self.text[value.clone()].first() == Some(&b' ') {
            value.start += 1;
        }
        match &text[..colon] {
            b"id" => self.current.id = value,
            b"data" if self.has_data => return Err("data over several lines".into()),
            b"data" => {
                self.current.data = value;
                self.has_data = true;
            }
            b"retry" => self.retry_ms = Some(std::str::from_utf8(&self.text[value])?.parse()?),
            b"event" if &self.text[value.clone()] != b"message" => {
                return Err("unexpected event type".into());
            }
            _ => {} // comments and `event: message`
        }
        Ok(())
    }

    fn dispatch(&mut self) -> bool {
        let event = std::mem::take(&mut self.current);
        let has_data = std::mem::take(&mut self.has_data);
        if !has_data {
            return false;
        }
        let terminal = is_terminal(&self.text[event.data.clone()]);
        self.events.push(event);
        terminal
    }

    pub(crate) fn id(&self, event: &Event) -> &[u8] {
        &self.text[event.id.clone()]
    }

    pub(crate) fn data(&self, event: &Event) -> &[u8] {
        &self.text[event.data.clone()]
    }

    /// The cursor a client would resume from: the last id seen.
    pub(crate) fn last_id(&self) -> Option<&[u8]> {
        self.events.iter().rev().map(|event| self.id(event)).find(|id| !id.is_empty())
    }
}

/// A response has no method. The SDKs write it first or second, so nearly every event is decided by its head.
fn is_terminal(data: &[u8]) -> bool {
    static METHOD: LazyLock<memmem::Finder<'static>> = LazyLock::new(|| memmem::Finder::new(b"\"method\""));
    if data.is_empty() || METHOD.find(&data[..data.len().min(64)]).is_some() {
        return false;
    }
    serde_json::from_slice::<serde_json::Value>(data).is_ok_and(|message| message.get("method").is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(parts: &[&str]) -> (Events, bool) {
        let mut events = Events::default();
        let mut terminal = false;
        for part in parts {
            events.text.extend_from_slice(part.as_bytes());
            terminal |= events.advance().unwrap();
        }
        (events, terminal)
    }

    #[test]
    fn both_line_ends_and_any_cut_give_the_same_events() {
        let wire =
            ": hello\n\nid: a\nretry: 10\ndata: \n\nid: b\r\nevent: message\r\ndata: {\"id\":1,\"result\":{}}\r\n\r\n";
        for cut in 0..wire.len() {
            let (events, terminal) = read(&[&wire[..cut], &wire[cut..]]);
            assert!(terminal);
            assert_eq!(events.events.len(), 2);
            assert_eq!(events.retry_ms, Some(10));
            assert_eq!(events.id(&events.events[0]), b"a");
            assert_eq!(events.data(&events.events[0]), b"");
            assert_eq!(events.last_id(), Some(&b"b"[..]));
        }
    }

    #[test]
    fn a_notification_is_not_terminal_wherever_its_method_stands() {
        let far = format!("data: {{\"params\":{{\"message\":\"{}\"}},\"method\":\"m\"}}\n\n", "x".repeat(200));
        assert!(!read(&[&far]).1);
        assert!(!read(&["data: {\"jsonrpc\":\"2.0\",\"method\":\"m\"}\n\n"]).1);
        assert!(read(&["data: {\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{}}\n\n"]).1);
    }
}
