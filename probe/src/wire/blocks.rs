//! What an SSE body says, block by block, with nothing left out: a client hides comments, empty events and lone ids.

use serde_json::{Map, Value};
use tailrope_core::protocol::{Decoder, EventTooLarge, Item};
use tokio::time::Instant;

/// A JSON-RPC message.
pub(crate) type Message = Map<String, Value>;

/// One event, or one comment. `data` is `None` where there was no data line.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) id: Option<String>,
    pub(crate) data: Option<String>,
    pub(crate) retry_ms: Option<u64>,
    pub(crate) comment: Option<String>,
    /// The JSON-RPC message, if there is one.
    pub(crate) message: Option<Message>,
    pub(crate) at: Instant,
}

impl Block {
    fn new(id: Option<String>, data: Option<String>, retry_ms: Option<u64>) -> Self {
        let message = data.as_deref().and_then(|data| parsed(data.as_bytes()));
        // An empty id is none: it takes the one before away.
        let id = id.filter(|id| !id.is_empty());
        Self { id, data, retry_ms, comment: None, message, at: Instant::now() }
    }

    fn comment(text: &str) -> Self {
        Self { comment: Some(text.trim().to_owned()), ..Self::new(None, None, None) }
    }

    /// What it says: of JSON, neither the order of names nor the space between them.
    pub(crate) fn content(&self) -> String {
        let data = self.data.as_deref().unwrap_or_default();
        serde_json::from_str::<Value>(data).map_or_else(|_| data.to_owned(), |value| value.to_string())
    }

    pub(crate) fn is_event(&self) -> bool {
        self.comment.is_none()
    }

    pub(crate) fn is_priming(&self) -> bool {
        self.id.is_some() && self.data.as_deref() == Some("")
    }

    /// Whether clients see it at all.
    pub(crate) fn has_data(&self) -> bool {
        self.data.as_deref().is_some_and(|data| !data.is_empty())
    }

    pub(crate) fn is_response(&self) -> bool {
        self.message.as_ref().is_some_and(is_response)
    }
}

/// Whether the text names the progress token of this session's calls.
pub(crate) fn is_marked(text: &str, session: &str) -> bool {
    text.contains(&format!("\"probe-{session}-"))
}

pub(crate) fn parsed(text: &[u8]) -> Option<Message> {
    match serde_json::from_slice(text) {
        Ok(Value::Object(message)) => Some(message),
        _ => None,
    }
}

fn is_response(message: &Message) -> bool {
    !message.contains_key("method") && (message.contains_key("result") || message.contains_key("error"))
}

/// Gives the core's decoder one line after the other, because that does not tell of blocks that clients do not see.
#[derive(Debug)]
pub(crate) struct Blocks {
    decoder: Decoder,
    /// Whether the line that is being read has something in it, and the block something besides comments.
    line: Line,
    has_fields: bool,
    after_cr: bool,
    retry_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Empty,
    Comment,
    Field,
}

impl Blocks {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        let decoder = Decoder::new(limit_bytes);
        Self { decoder, line: Line::Empty, has_fields: false, after_cr: false, retry_ms: None }
    }

    /// # Errors
    /// A block is too large.
    pub(crate) fn push(&mut self, chunk: &[u8], mut found: impl FnMut(Block)) -> Result<(), EventTooLarge> {
        for piece in chunk.split_inclusive(|byte| matches!(byte, b'\r' | b'\n')) {
            self.decoder.push(piece);
            let mut is_told = false;
            while let Some(item) = self.decoder.next()? {
                match item {
                    Item::Comment(text) => found(Block::comment(&text)),
                    Item::Retry(ms) => self.retry_ms = Some(ms),
                    Item::Event(event) => {
                        found(Block::new(event.id, Some(event.data), self.retry_ms.take()));
                        is_told = true;
                    }
                    Item::Cursor(id) => {
                        found(Block::new(Some(id), None, self.retry_ms.take()));
                        is_told = true;
                    }
                }
            }
            let ends_block = self.ends_block(piece);
            if ends_block && self.has_fields && !is_told {
                found(Block::new(None, None, self.retry_ms.take()));
            }
            self.has_fields &= !ends_block;
        }
        Ok(())
    }

    fn ends_block(&mut self, piece: &[u8]) -> bool {
        let is_rest_of_crlf = self.after_cr && piece == b"\n";
        self.after_cr = piece.ends_with(b"\r");
        if is_rest_of_crlf {
            return false;
        }
        let is_whole = piece.ends_with(b"\n") || self.after_cr;
        let text = if is_whole { &piece[..piece.len() - 1] } else { piece };
        if self.line == Line::Empty && !text.is_empty() {
            self.line = if text[0] == b':' { Line::Comment } else { Line::Field };
        }
        if !is_whole {
            return false;
        }
        let line = std::mem::replace(&mut self.line, Line::Empty);
        self.has_fields |= line == Line::Field;
        line == Line::Empty
    }
}
