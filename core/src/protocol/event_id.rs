//! Event ids that name a position of a stream (W-060 to W-062, W-067, W-114).
//!
//! ```text
//! a <16 chars: stream nonce, 12 bytes> <16 chars: seq 5, visit 3, chain tag 4 bytes, big-endian> [suffix]
//! z <16 chars: stream nonce, 12 bytes> <16 chars: zeros>                                         [suffix]
//! ```
//!
//! `a` is a position, `z` a tombstone: the end of a stream that the engine made up. The suffix is
//! absent on the standalone stream, `.` and the base64url of `n` (integer) or `s` (string) and the
//! request id on the stream of one request, and a bare `.` on a request's stream that cannot be
//! named (a batch, or an id that is too long).
//!
//! Parsing is total and canonical: a text that is not exactly what [`IdEncoder`] would write is no
//! event id. Whether the caller may read the stream is not decided here (W-008, I7).

use std::fmt;

use smallvec::SmallVec;

use super::base64url;
use super::hex::hex;
use super::request_id::{RequestId, is_canonical_integer};

/// The last position that an id can name.
pub const MAX_SEQ: u64 = (1 << 40) - 1;
/// The last visit that an id can count.
pub const MAX_VISIT: u32 = (1 << 24) - 1;
/// No event id of ours is longer, in characters.
pub const MAX_EVENT_ID_LEN: usize = 120;

/// Type mark and request id together.
const MAX_NAME_LEN: usize = 60;
const POSITION: u8 = b'a';
const TOMBSTONE: u8 = b'z';
const HEAD_LEN: usize = 33;

/// The unguessable name of a stream within its session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamNonce(pub [u8; 12]);

impl StreamNonce {
    /// Names no stream: an answer has it whose stream is not known.
    pub const NONE: Self = Self([0; 12]);

    /// Twenty-four characters of `[0-9a-f]`.
    pub fn hex(&self) -> String {
        hex(&self.0)
    }
}

impl fmt::Display for StreamNonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hex())
    }
}

impl fmt::Debug for StreamNonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What an event id tells about the stream even when the stream is lost.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The standalone stream of a session, which belongs to no request.
    Standalone,
    /// A stream of requests whose id cannot be read back.
    Unnamed,
    /// The stream of this one request.
    Request(RequestId),
}

impl Origin {
    /// What the event ids of this request's stream tell: an id that does not fit is not named.
    pub fn of_request(id: &RequestId) -> Self {
        if id.as_text().len() < MAX_NAME_LEN { Self::Request(id.clone()) } else { Self::Unnamed }
    }

    /// The same for the stream of a POST that carries these requests.
    pub fn of_requests(ids: &[RequestId]) -> Self {
        match ids {
            [only] => Self::of_request(only),
            _ => Self::Unnamed,
        }
    }
}

/// A position in a stream, as a client presents it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cursor {
    /// Which stream.
    pub nonce: StreamNonce,
    /// The event that was received last; 0 is the priming position.
    pub seq: u64,
    /// Makes the id of an echo differ from the ids before it; no part of the position.
    pub visit: u32,
    /// Tells a log that was rolled back and written again from the one that the client saw.
    pub tag: u32,
    /// What the suffix says.
    pub origin: Origin,
}

/// An event id of our form.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EventId {
    /// An event in the log, the priming position, or an echo of either.
    Position(Cursor),
    /// A synthesized end of this stream.
    Tombstone(StreamNonce, Origin),
}

impl EventId {
    /// Reads an id of our form; `None` for anything that would be written differently, and for a position in
    /// [`StreamNonce::NONE`].
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        if text.len() > MAX_EVENT_ID_LEN {
            return None;
        }
        let (head, suffix) = text.split_at_checked(HEAD_LEN)?;
        let (version, head) = head.split_first()?;
        let mut bytes = [0; 24];
        base64url::decode(head, &mut bytes)?;
        let origin = parse_suffix(suffix)?;

        let [n0, n1, n2, n3, n4, n5, n6, n7, n8, n9, n10, n11, position @ ..] = bytes;
        let nonce = StreamNonce([n0, n1, n2, n3, n4, n5, n6, n7, n8, n9, n10, n11]);
        match *version {
            POSITION if nonce != StreamNonce::NONE => {
                let [s0, s1, s2, s3, s4, v0, v1, v2, tag @ ..] = position;
                Some(Self::Position(Cursor {
                    nonce,
                    seq: u64::from_be_bytes([0, 0, 0, s0, s1, s2, s3, s4]),
                    visit: u32::from_be_bytes([0, v0, v1, v2]),
                    tag: u32::from_be_bytes(tag),
                    origin,
                }))
            }
            TOMBSTONE if position == [0; 12] => Some(Self::Tombstone(nonce, origin)),
            _ => None,
        }
    }
}

fn parse_suffix(suffix: &[u8]) -> Option<Origin> {
    let Some((dot, name)) = suffix.split_first() else {
        return Some(Origin::Standalone);
    };
    if *dot != b'.' {
        return None;
    }
    if name.is_empty() {
        return Some(Origin::Unnamed);
    }
    let mut bytes = [0; MAX_NAME_LEN];
    let length = base64url::decode(name, &mut bytes)?;
    let (mark, id) = bytes[..length].split_first()?;
    let id = std::str::from_utf8(id).ok()?;
    match mark {
        b'n' if is_canonical_integer(id) => Some(Origin::Request(RequestId::Integer(id.into()))),
        b's' => Some(Origin::Request(RequestId::Text(id.into()))),
        _ => None,
    }
}

/// Writes the event ids of one stream. The parts that do not change are made once.
#[derive(Clone, Debug)]
pub struct IdEncoder {
    nonce: StreamNonce,
    nonce_text: [u8; 16],
    /// Few are longer: those of an integer or of a short text.
    suffix: SmallVec<[u8; 24]>,
}

impl IdEncoder {
    /// A request whose mark and id take more than 60 bytes becomes [`Origin::Unnamed`].
    pub fn new(nonce: StreamNonce, origin: &Origin) -> Self {
        let mut name = [0; MAX_NAME_LEN];
        let name = match origin {
            Origin::Request(id) if id.as_text().len() < MAX_NAME_LEN => {
                let name = &mut name[..=id.as_text().len()];
                name[0] = match id {
                    RequestId::Integer(_) => b'n',
                    RequestId::Text(_) => b's',
                };
                name[1..].copy_from_slice(id.as_text().as_bytes());
                name
            }
            _ => &mut [],
        };
        let mut suffix = SmallVec::new();
        if *origin != Origin::Standalone {
            suffix.push(b'.');
            base64url::encode(name, |characters| suffix.extend_from_slice(characters));
        }
        Self { nonce, nonce_text: base64url::encode_12(&nonce.0), suffix }
    }

    /// The stream whose ids are written.
    pub fn nonce(&self) -> StreamNonce {
        self.nonce
    }

    /// Appends the id of a position. `seq` and `visit` stay within [`MAX_SEQ`] and [`MAX_VISIT`];
    /// larger values are held at the maximum.
    pub fn encode(&self, seq: u64, visit: u32, tag: u32, out: &mut Vec<u8>) {
        debug_assert!(seq <= MAX_SEQ && visit <= MAX_VISIT);
        let [_, _, _, s0, s1, s2, s3, s4] = seq.min(MAX_SEQ).to_be_bytes();
        let [_, v0, v1, v2] = visit.min(MAX_VISIT).to_be_bytes();
        let [t0, t1, t2, t3] = tag.to_be_bytes();
        self.write(POSITION, &[s0, s1, s2, s3, s4, v0, v1, v2, t0, t1, t2, t3], out);
    }

    /// Appends the id of a synthesized end.
    pub fn tombstone(&self, out: &mut Vec<u8>) {
        self.write(TOMBSTONE, &[0; 12], out);
    }

    fn write(&self, version: u8, position: &[u8; 12], out: &mut Vec<u8>) {
        let mut head = [0; HEAD_LEN];
        head[0] = version;
        head[1..17].copy_from_slice(&self.nonce_text);
        head[17..].copy_from_slice(&base64url::encode_12(position));
        out.reserve(HEAD_LEN + self.suffix.len());
        out.extend_from_slice(&head);
        out.extend_from_slice(&self.suffix);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(id: &EventId) -> String {
        let mut out = Vec::new();
        match id {
            EventId::Position(cursor) => {
                IdEncoder::new(cursor.nonce, &cursor.origin).encode(cursor.seq, cursor.visit, cursor.tag, &mut out);
            }
            EventId::Tombstone(nonce, origin) => IdEncoder::new(*nonce, origin).tombstone(&mut out),
        }
        String::from_utf8(out).unwrap()
    }

    fn origin() -> impl Strategy<Value = Origin> {
        prop_oneof![
            Just(Origin::Standalone),
            Just(Origin::Unnamed),
            any::<i64>().prop_map(|number| Origin::Request(RequestId::integer(number))),
            "[1-9][0-9]{0,58}".prop_map(|digits| Origin::Request(RequestId::Integer(digits.into()))),
            "[ -~]{0,59}".prop_map(|text| Origin::Request(RequestId::Text(text.into()))),
            "\\PC{0,14}".prop_map(|text| Origin::Request(RequestId::Text(text.into()))),
        ]
    }

    fn event_id() -> impl Strategy<Value = EventId> {
        let nonce = any::<[u8; 12]>().prop_map(StreamNonce);
        (nonce, 0..=MAX_SEQ, 0..=MAX_VISIT, any::<u32>(), origin(), any::<bool>()).prop_map(
            |(nonce, seq, visit, tag, origin, tombstone)| match tombstone {
                true => EventId::Tombstone(nonce, origin),
                false => EventId::Position(Cursor { nonce, seq, visit, tag, origin }),
            },
        )
    }

    proptest! {
        #[test]
        fn every_id_reads_back_and_fits_in_the_header(id in event_id()) {
            let text = written(&id);
            prop_assert!(text.len() <= MAX_EVENT_ID_LEN);
            prop_assert!(text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b','));
            prop_assert_eq!(EventId::parse(&text), Some(id));
        }

        #[test]
        fn whatever_parses_is_written_the_same(
            text in "[az]?[A-Za-z0-9_-]{30,34}(\\.[A-Za-z0-9_-]{0,8})?|\\PC{0,130}",
        ) {
            if let Some(id) = EventId::parse(&text) {
                prop_assert_eq!(written(&id), text);
            }
        }

        #[test]
        fn a_damaged_id_is_no_id_or_another_canonical_one(
            id in event_id(),
            at in any::<prop::sample::Index>(),
            with in "[ -~]",
        ) {
            let mut text = written(&id);
            let at = at.index(text.len());
            text.replace_range(at..=at, &with);
            if let Some(id) = EventId::parse(&text) {
                prop_assert_eq!(written(&id), text);
            }
        }
    }

    #[test]
    fn a_request_id_that_does_not_fit_is_not_named() {
        let nonce = StreamNonce([7; 12]);
        for (length, named) in [(59, true), (60, false), (5000, false)] {
            let id = RequestId::Text("x".repeat(length).into());
            let mut out = Vec::new();
            IdEncoder::new(nonce, &Origin::Request(id.clone())).tombstone(&mut out);
            let text = String::from_utf8(out).unwrap();
            let origin = if named { Origin::Request(id) } else { Origin::Unnamed };
            assert_eq!(EventId::parse(&text), Some(EventId::Tombstone(nonce, origin)));
        }
    }
}
