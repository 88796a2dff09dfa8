//! What is kept with a log, for a process that finds it later.

use bytes::Bytes;

use crate::protocol::RequestId;

/// The place of something in a trace, as W3C Trace Context writes it in version `00`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceParent(Box<str>);

impl TraceParent {
    /// How many bytes each has.
    const BYTES: usize = 55;

    /// Reads the text of one; none for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let mut hex = |digits: usize| {
            parts.next().filter(|part| {
                part.len() == digits && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
            })
        };
        let (version, trace, span, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2));
        let is_one = |part: &str| part.bytes().any(|byte| byte != b'0');
        let is_known = version == "00" && flags.is_some() && text.len() == Self::BYTES;
        (is_known && is_one(trace) && is_one(span)).then(|| Self(text.into()))
    }

    /// The text of it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What is kept with the log of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The requests whose end the log has not, even where that is on its way.
    pub requests: Vec<RequestId>,
    /// The call's place in a trace, where it has one.
    pub trace: Option<TraceParent>,
}

impl About {
    /// The form that stores keep: the ids as a JSON array, and what is behind it is the place in the trace.
    pub fn encode(&self) -> Bytes {
        let mut out = RequestId::encode_all(&self.requests);
        out.extend_from_slice(self.trace.as_ref().map_or("", TraceParent::as_str).as_bytes());
        out.into()
    }

    /// Reads what [`encode`](Self::encode) wrote; none for anything else.
    pub fn decode(kept: &[u8]) -> Option<Self> {
        let ids = kept.iter().rposition(|byte| *byte == b']')? + 1;
        let (ids, trace) = kept.split_at(ids);
        let trace = match trace {
            b"" => None,
            trace => Some(TraceParent::parse(std::str::from_utf8(trace).ok()?)?),
        };
        Some(Self { requests: RequestId::decode_all(ids)?, trace })
    }
}

impl From<Vec<RequestId>> for About {
    fn from(requests: Vec<RequestId>) -> Self {
        Self { requests, trace: None }
    }
}
