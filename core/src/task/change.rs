//! The records of a task's log: one for each change.

use std::fmt;

use bytes::Bytes;

use super::call_headers::CallHeaders;
use super::ladder::Response;
use super::status::End;

/// The version of the form that [`Change::encode`] writes.
const VERSION: u8 = 1;

/// A change of a task.
#[derive(Clone, PartialEq, Eq)]
pub struct Change {
    /// When, in milliseconds since 1970.
    pub at: u64,
    /// What changed.
    pub what: What,
}

/// What changes a task.
#[derive(Clone, PartialEq, Eq)]
pub enum What {
    /// There is a task.
    Created {
        /// For how long it may run.
        limit_ms: Option<u64>,
        /// For how long it is there after its end.
        retention_ms: u64,
        /// The call, as the SDK was given it.
        call: Bytes,
        /// The headers of its request that belong to it.
        headers: CallHeaders,
    },
    /// What it says of itself.
    Message(Box<str>),
    /// The call ended and is to be posted again: with the answers to these questions, which have the SDK's own keys, and with
    /// the state.
    Round {
        /// The questions.
        asked: Vec<(Box<str>, Bytes)>,
        /// What the SDK wants back, as JSON.
        state: Option<Bytes>,
    },
    /// The handler asks.
    Asked {
        /// The host's number of the question.
        ask: u64,
        /// What is asked.
        request: Bytes,
    },
    /// The handler does not wait for an answer any more.
    Withdrawn {
        /// The host's number of the question.
        ask: u64,
    },
    /// The client answered. Answers to handlers are not kept: their values are empty.
    Answered(Vec<Response>),
    /// It is over. That record alone tells all that is left to tell, because a store may have no room for the others.
    Ended(End, Born),
}

/// What a task is from its creation on, and its end repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Born {
    /// When it was made, in milliseconds since 1970.
    pub created_at: u64,
    /// For how long it is there after its end.
    pub retention_ms: u64,
}

/// What a store has to keep of a task's log until its end: without one of these records nobody could read the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) records: usize,
    pub(super) bytes: usize,
}

/// What a record takes besides its values, about. Bytes.
const RECORD_OVERHEAD: usize = 512;

impl Kept {
    /// With this, too.
    pub(super) fn with(self, what: &What) -> Self {
        let bytes = match what {
            What::Message(_) | What::Ended(..) => return self,
            What::Created { call, headers, .. } => {
                call.len() + headers.0.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
            }
            What::Round { asked, state } => {
                asked.iter().map(|(key, request)| key.len() + request.len()).sum::<usize>()
                    + state.as_ref().map_or(0, Bytes::len)
            }
            What::Asked { request, .. } => request.len(),
            What::Withdrawn { .. } => 0,
            What::Answered(responses) => responses.iter().map(|given| given.key.len() + given.value.len()).sum(),
        };
        Self { records: self.records + 1, bytes: self.bytes + bytes + RECORD_OVERHEAD }
    }
}

impl What {
    /// Its number in a record, and a word for it.
    fn kind(&self) -> (u8, &'static str) {
        match self {
            Self::Created { .. } => (1, "created"),
            Self::Message(_) => (2, "message"),
            Self::Round { .. } => (3, "round"),
            Self::Asked { .. } => (4, "asked"),
            Self::Withdrawn { .. } => (5, "withdrawn"),
            Self::Answered(_) => (6, "answered"),
            Self::Ended(End::Completed(_), _) => (7, "completed"),
            Self::Ended(End::Failed(_), _) => (8, "failed"),
            Self::Ended(End::Cancelled, _) => (9, "cancelled"),
        }
    }
}

/// No payload is for a log.
impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change").field("at", &self.at).field("what", &self.what.kind().1).finish()
    }
}

impl Change {
    /// The record, which [`decode`](Self::decode) reads.
    pub fn encode(&self) -> Bytes {
        let mut out = Writer(vec![VERSION, self.what.kind().0]);
        out.number(self.at);
        match &self.what {
            What::Created { limit_ms, retention_ms, call, headers } => {
                out.option(limit_ms.as_ref(), |out, limit_ms| out.number(*limit_ms));
                out.number(*retention_ms);
                out.bytes(call);
                out.length(headers.0.len());
                for (name, value) in &headers.0 {
                    out.bytes(name.as_bytes());
                    out.bytes(value.as_bytes());
                }
            }
            What::Message(message) => out.bytes(message.as_bytes()),
            What::Round { asked, state } => {
                out.length(asked.len());
                for (key, request) in asked {
                    out.bytes(key.as_bytes());
                    out.bytes(request);
                }
                out.option(state.as_ref(), |out, state| out.bytes(state));
            }
            What::Asked { ask, request } => {
                out.number(*ask);
                out.bytes(request);
            }
            What::Withdrawn { ask } => out.number(*ask),
            What::Answered(responses) => {
                out.length(responses.len());
                for Response { key, value } in responses {
                    out.bytes(key.as_bytes());
                    out.bytes(value);
                }
            }
            What::Ended(end, Born { created_at, retention_ms }) => {
                out.number(*created_at);
                out.number(*retention_ms);
                if let End::Completed(payload) | End::Failed(payload) = end {
                    out.bytes(payload);
                }
            }
        }
        out.0.into()
    }

    /// Whether a later release wrote this, which alone can read it.
    pub fn is_newer(record: &[u8]) -> bool {
        record.first().is_some_and(|version| *version > VERSION)
    }

    /// Reads what [`encode`](Self::encode) wrote. None for anything else.
    pub fn decode(record: &Bytes) -> Option<Self> {
        let is_known = record.first() == Some(&VERSION);
        is_known.then(|| Self::read(Reader(record.slice(1..)))).flatten()
    }

    fn read(mut from: Reader) -> Option<Self> {
        let kind = from.byte()?;
        let at = from.number()?;
        let what = match kind {
            1 => What::Created {
                limit_ms: from.option(Reader::number)?,
                retention_ms: from.number()?,
                call: from.bytes()?,
                headers: CallHeaders(from.list(|from| Some((from.text()?, from.text()?)))?),
            },
            2 => What::Message(from.text()?),
            3 => What::Round {
                asked: from.list(|from| Some((from.text()?, from.bytes()?)))?,
                state: from.option(Reader::bytes)?,
            },
            4 => What::Asked { ask: from.number()?, request: from.bytes()? },
            5 => What::Withdrawn { ask: from.number()? },
            6 => What::Answered(from.list(|from| Some(Response { key: from.text()?, value: from.bytes()? }))?),
            7..=9 => {
                let born = Born { created_at: from.number()?, retention_ms: from.number()? };
                let end = match kind {
                    7 => End::Completed(from.bytes()?),
                    8 => End::Failed(from.bytes()?),
                    _ => End::Cancelled,
                };
                What::Ended(end, born)
            }
            _ => return None,
        };
        from.0.is_empty().then_some(Self { at, what })
    }
}

/// Writes the parts of a record. Numbers are big-endian, and bytes come behind their length.
struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_be_bytes());
    }

    fn length(&mut self, length: usize) {
        // No event is longer: stores take none of that size.
        self.0.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    fn option<T>(&mut self, value: Option<&T>, write: impl FnOnce(&mut Self, &T)) {
        self.0.push(u8::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }
}

/// Reads them again.
struct Reader(Bytes);

impl Reader {
    fn take(&mut self, length: usize) -> Option<Bytes> {
        (length <= self.0.len()).then(|| self.0.split_to(length))
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|taken| taken[0])
    }

    fn number(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.take(8)?.as_ref().try_into().ok()?))
    }

    fn length(&mut self) -> Option<usize> {
        usize::try_from(u32::from_be_bytes(self.take(4)?.as_ref().try_into().ok()?)).ok()
    }

    fn bytes(&mut self) -> Option<Bytes> {
        let length = self.length()?;
        self.take(length)
    }

    fn text(&mut self) -> Option<Box<str>> {
        Some(std::str::from_utf8(&self.bytes()?).ok()?.into())
    }

    fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        match self.byte()? {
            0 => Some(None),
            1 => read(self).map(Some),
            _ => None,
        }
    }

    fn list<T>(&mut self, read: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let length = self.length()?;
        // Each has some bytes, so a list that is longer than the rest ends at once.
        (0..length).map(|_| read(self)).collect()
    }
}
