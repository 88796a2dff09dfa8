//! What is known of one connection.

use std::collections::BTreeMap;

use tailrope_core::protocol::sse_decoder::Decoder;

use crate::fact::{By, Open};
use crate::stream::{Place, Position};

/// What a body may hold of one event.
const EVENT_BYTES: usize = 64 << 20;

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) open: Open,
    pub(crate) session: usize,
    pub(crate) stream: Option<usize>,
    /// Where it began, and where it stands; none without a stream.
    pub(crate) start: Option<Position>,
    pub(crate) position: Option<Position>,
    /// The last event that it was given.
    pub(crate) last: Option<Place>,
    pub(crate) status: Option<u16>,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) is_json: bool,
    pub(crate) decoder: Decoder,
    /// The body, where it is needed as a whole.
    pub(crate) body: Vec<u8>,
    /// The last two bytes.
    pub(crate) last_bytes: [u8; 2],
    pub(crate) has_bytes: bool,
    /// Whether anything but a `retry` came, and whether one came.
    pub(crate) is_opened: bool,
    pub(crate) has_retry: bool,
    /// An event came.
    pub(crate) has_more: bool,
    /// It named the start of another log than the one that was asked for.
    pub(crate) is_given: bool,
    /// It began without the event that it has to begin with: only an error terminal may follow.
    pub(crate) is_unprimed: bool,
    pub(crate) gap: Option<(u64, u64)>,
    pub(crate) has_terminal: bool,
    /// What it got while a later reader, which is named too, had nothing but its priming event.
    pub(crate) early: Vec<(Place, usize)>,
    pub(crate) closed: Option<(By, bool)>,
    /// It was open when a log that was lost was restored: its answer may be from before that.
    pub(crate) is_unsure: bool,
}

impl Connection {
    pub(crate) fn new(open: Open, session: usize, stream: Option<usize>, start: Option<Position>) -> Self {
        Self {
            open,
            session,
            stream,
            start,
            position: start,
            last: None,
            status: None,
            headers: BTreeMap::new(),
            is_json: false,
            decoder: Decoder::new(EVENT_BYTES),
            body: Vec::new(),
            last_bytes: [b'\n'; 2],
            has_bytes: false,
            is_opened: false,
            has_retry: false,
            has_more: false,
            is_given: false,
            is_unprimed: false,
            gap: None,
            has_terminal: false,
            early: Vec::new(),
            closed: None,
            is_unsure: false,
        }
    }

    pub(crate) fn note_bytes(&mut self, bytes: &[u8]) {
        for byte in &bytes[bytes.len().saturating_sub(2)..] {
            self.last_bytes = [self.last_bytes[1], *byte];
        }
        self.has_bytes |= !bytes.is_empty();
    }
}

/// The numbers of a comment that announces a gap.
pub(crate) fn gap(comment: &str) -> Option<(u64, u64)> {
    let (first, count) = comment.strip_prefix("gap ")?.split_once(' ')?;
    Some((first.parse().ok()?, count.parse().ok()?))
}
