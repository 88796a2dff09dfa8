//! What one connection carried: the suffix of a log behind a cursor, or what is given instead of it.

use serde_json::Value;
use tailrope_core::protocol::{Cursor, EventId, Origin, StreamNonce};
use tailrope_core::stream::Seq;

use crate::kit::common::frames;

/// What a connection was opened for.
#[derive(Debug)]
pub(crate) enum Asked {
    /// A new stream.
    Call,
    /// The standalone stream, wherever it is.
    Listen,
    /// What a log has behind this.
    Behind(Cursor),
    /// A stream that has its end.
    Nothing,
}

/// What came so far.
struct Suffix<'a> {
    asked: &'a Asked,
    /// How many came, but for comments.
    blocks: usize,
    primings: usize,
    /// The first priming event names what was asked for.
    is_asked: bool,
    /// The last one names a start that may be given instead.
    is_given: bool,
    stream: Option<StreamNonce>,
    /// None where nothing tells where it begins.
    at: Option<Seq>,
    /// The client was told to fetch its lists again.
    has_lists: bool,
    /// An event came, or was said to be missing.
    has_moved: bool,
    is_over: bool,
}

/// Panics unless `text` is in order, once each, and of one log: the one that was `asked` for, or the standalone stream from
/// its start where that was one.
///
/// Which revision the session has is told by whether there is a priming event.
pub(crate) fn check(asked: &Asked, text: &str) {
    if text.starts_with('{') {
        return;
    }
    let mut suffix = Suffix {
        asked,
        blocks: 0,
        primings: 0,
        is_asked: false,
        is_given: false,
        stream: None,
        at: matches!(asked, Asked::Call).then_some(0),
        has_lists: false,
        has_moved: false,
        is_over: false,
    };
    for (block, frame) in text.split_terminator("\n\n").zip(frames(text)) {
        assert!(!suffix.is_over, "I6: nothing follows a tombstone");
        let id = block.lines().next().and_then(|line| line.strip_prefix("id: "));
        suffix.take(id.and_then(EventId::parse), &frame);
        suffix.blocks += usize::from(frame.get("comment").is_none());
    }
}

impl Suffix<'_> {
    fn take(&mut self, id: Option<EventId>, frame: &Value) {
        assert!(!matches!(self.asked, Asked::Nothing), "I6: {frame} follows an end");
        let first = match &id {
            Some(EventId::Position(cursor)) => cursor.seq,
            _ => frame["gap"]["first"].as_u64().unwrap_or(0),
        };
        if first == 1 && self.has_moved && self.primings == 0 && self.may_be_given() {
            self.begins_again();
        }
        match id {
            Some(EventId::Position(cursor)) if frame.get("priming").is_some() => self.primed(&cursor),
            Some(EventId::Position(cursor)) => {
                assert!(
                    self.stream.is_none_or(|stream| stream == cursor.nonce),
                    "I2: an event of the log that was named"
                );
                self.moves(cursor.seq, "I3: neither gap nor repeat");
                (self.stream, self.at) = (Some(cursor.nonce), Some(cursor.seq));
            }
            Some(EventId::Tombstone(stream, _)) => {
                let asked = match self.asked {
                    Asked::Behind(asked) if !self.may_be_given() => Some(asked.nonce),
                    _ => None,
                };
                let own = self.stream.or(asked);
                assert!(own.is_none_or(|own| own == stream), "I13: an end of the log that was named");
                self.is_over = true;
            }
            None => {
                if let Some(gap) = frame.get("gap") {
                    let (first, count) = (gap["first"].as_u64().unwrap_or(0), gap["count"].as_u64().unwrap_or(0));
                    assert!(count > 0, "I8: something is missing");
                    self.moves(first, "I8: a gap is where something is missing");
                    self.at = Some(first + count - 1);
                } else if let Some(message) = frame.get("anonymous") {
                    let is_list = message.as_str().is_some_and(|method| method.ends_with("list_changed"));
                    let is_given = self.may_be_given() && (self.primings == 0 || self.is_given && !self.has_moved);
                    assert!(is_list && is_given, "I3: {message} is in no log");
                    if self.has_moved {
                        self.begins_again();
                    }
                    self.has_lists = true;
                }
            }
        }
    }

    /// Whether the standalone stream may be given instead of what was asked for.
    fn may_be_given(&self) -> bool {
        match self.asked {
            Asked::Listen => true,
            Asked::Behind(asked) => asked.origin == Origin::Standalone,
            Asked::Call | Asked::Nothing => false,
        }
    }

    /// I5: the first thing; and once more where what is given instead begins, if what was named turned out to be lost, or
    /// the store was set back below what was sent.
    fn primed(&mut self, named: &Cursor) {
        let is_start = self.may_be_given() && named.seq == 0 && named.origin == Origin::Standalone;
        let is_asked = match self.asked {
            Asked::Call => named.seq == 0 && named.origin != Origin::Standalone,
            Asked::Listen => named.origin == Origin::Standalone,
            Asked::Behind(asked) => {
                assert!(is_start || asked != named, "I5: {named:?} has no name of its own");
                Cursor { visit: asked.visit, ..named.clone() } == *asked
            }
            Asked::Nothing => false,
        };
        match self.primings {
            0 => {
                assert_eq!(self.blocks, 0, "I5: it is the first thing");
                assert!(is_asked || is_start, "I5: {named:?} is not what was asked for: {:?}", self.asked);
                // Who asked for a start is not told which it has.
                (self.is_given, self.is_asked) = (is_start, is_asked);
            }
            _ => {
                let is_lost =
                    self.primings == 1 && !self.has_lists && (self.is_asked || self.stream != Some(named.nonce));
                assert!(is_start && (self.has_moved || is_lost), "I5: {named:?} instead of what?");
                (self.is_given, self.has_moved, self.has_lists) = (true, false, false);
            }
        }
        self.primings += 1;
        (self.stream, self.at) = (Some(named.nonce), Some(named.seq));
    }

    /// The store was set back, and has other events of the standalone stream now, which is given from its start. Without
    /// priming, only a list that has changed tells where that begins, if the session has lists.
    fn begins_again(&mut self) {
        (self.stream, self.at, self.has_moved) = (None, Some(0), false);
    }

    /// Something at this position comes, or is said to be missing.
    fn moves(&mut self, seq: Seq, rule: &str) {
        let follows = match (self.at, self.asked) {
            (Some(at), _) => seq == at + 1,
            (None, Asked::Behind(asked)) => seq == asked.seq + 1 || (seq == 1 && self.may_be_given()),
            (None, _) => true,
        };
        assert!(follows, "{rule}: {seq} behind {:?}", self.at);
        self.has_moved = true;
    }
}
