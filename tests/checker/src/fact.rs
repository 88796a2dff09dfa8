//! One line of a history.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

/// Which event of a stream: its number, or the response that ends the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum N {
    /// The event with this number, from 1.
    Event(u64),
    /// The response.
    End,
}

impl fmt::Display for N {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Event(n) => n.fmt(f),
            Self::End => f.write_str("end"),
        }
    }
}

impl Serialize for N {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Event(n) => serializer.serialize_u64(*n),
            Self::End => serializer.serialize_str("end"),
        }
    }
}

impl<'de> Deserialize<'de> for N {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) if text == "end" => Ok(Self::End),
            Value::Number(n) if n.as_u64().is_some_and(|n| n > 0) => Ok(Self::Event(n.as_u64().unwrap_or(1))),
            other => Err(D::Error::custom(format!("n is a number from 1 on, or \"end\", not {other}"))),
        }
    }
}

/// Whose cursor a connection is opened with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Probe {
    /// The session's, or none.
    #[default]
    Own,
    /// Another session's.
    Foreign,
    /// Nobody's.
    Unknown,
}

/// Who ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// The server.
    Server,
    /// The client.
    Client,
    /// Whatever breaks connections in this test.
    Fault,
}

/// What makes an end, or a loss, legitimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The request was cancelled.
    Cancelled,
    /// The response could not be stored: the connection that reads the stream gets it all the same, others an error.
    Unstored,
    /// Nobody knows whether the store took the response: it may show up after the error.
    Unheard,
    /// The process that ran the request is gone.
    OwnerLost,
    /// Retention took the stream.
    Expired,
    /// The bounds of the store took the stream.
    Trimmed,
    /// The session ended.
    Ended,
    /// The store lost what it had.
    StoreLost,
}

impl Why {
    /// Whether a request may be seen to end in two ways.
    pub fn permits_two_ends(self) -> bool {
        matches!(self, Self::Unheard | Self::Unstored) || self.permits_loss()
    }

    /// Whether events may be missing, too.
    pub fn permits_loss(self) -> bool {
        matches!(self, Self::Expired | Self::Trimmed | Self::Ended | Self::StoreLost)
    }
}

/// A request that is about to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Open {
    /// Its name, used once.
    pub connection: String,
    /// The session that it is made in.
    pub session: String,
    /// The stream that it asks for, where the asker can know.
    pub stream: Option<String>,
    /// The event id that it resumes from.
    pub cursor: Option<String>,
    /// `POST` or `GET`.
    pub method: String,
    /// Whose cursor it is.
    pub probe: Probe,
    /// Which probes it is compared with.
    pub pair: Option<String>,
    /// Bytes of earlier connections may be under way still.
    pub in_flight: bool,
    /// Another process than that of earlier connections may serve it.
    pub elsewhere: bool,
    /// The process that serves it, where that is known.
    pub process: Option<String>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "lowercase")]
#[expect(missing_docs, reason = "the fields are explained in the README of this crate")]
pub enum Fact {
    /// A stream exists.
    Stream { session: String, stream: String, request: Option<Value>, revision: Option<String> },
    /// An event is about to be handed to the server.
    Emit { session: String, stream: String, n: N },
    /// The store holds it from now on.
    Kept { session: String, stream: String, n: N },
    /// A bound of the store dropped it.
    Dropped { session: String, stream: String, n: N },
    /// The server says that it is stored.
    Ack { session: String, stream: String, n: N },
    /// The server goes on before it is stored.
    Taken { session: String, stream: String, n: N },
    /// The server says that one before it is not stored.
    Failed { session: String, stream: String, n: N },
    /// The server says that it is not.
    Refused { session: String, stream: String, n: N },
    /// The server cannot know.
    Unsure { session: String, stream: String, n: N },
    /// A request is about to be made.
    Open(Open),
    /// The answer began.
    Head {
        connection: String,
        status: u16,
        #[serde(default)]
        headers: BTreeMap<String, String>,
    },
    /// A piece of the body.
    Bytes { connection: String, text: Option<String>, data: Option<String> },
    /// The connection ended.
    Closed { connection: String, by: By, clean: bool },
    /// What the store holds in the end.
    Stored { session: String, stream: String, ns: Vec<N> },
    /// What permits an end or a loss.
    Gone { session: String, stream: Option<String>, why: Why },
    /// The log holds again what the store had lost of it.
    Restored { session: String, stream: String },
    /// The reader says that it has everything.
    Done { session: String, stream: String },
    /// The test waited in vain.
    Hung { session: String, stream: Option<String>, says: String, invariant: Option<String> },
    /// Ignored.
    Note,
}

/// A fact with the time of some clock, in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    /// When it happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// What happened.
    #[serde(flatten)]
    pub fact: Fact,
}

/// Base64 in the standard alphabet, with or without padding; none for anything else.
pub(crate) fn base64(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut held) = (0_u32, 0_u32);
    for byte in text.trim_end_matches('=').bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        held = held << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push((held >> bits & 0xFF) as u8);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read() {
        for (text, bytes) in
            [("", &b""[..]), ("aQ==", b"i"), ("aWQ6", b"id:"), ("aWQ6IPCf", b"id: \xF0\x9F"), ("aQ", b"i")]
        {
            assert_eq!(base64(text).as_deref(), Some(bytes), "{text}");
        }
        assert_eq!(base64("a-_b"), None);
    }

    #[test]
    fn facts_are_read_as_they_are_written() {
        let line = r#"{"at":7,"fact":"open","connection":"c","session":"s","stream":null,"cursor":null,"method":"GET","probe":"foreign"}"#;
        let read: Timed = serde_json::from_str(line).unwrap();
        let Fact::Open(open) = &read.fact else { panic!("{read:?}") };
        assert_eq!((read.at, open.probe, open.in_flight), (Some(7), Probe::Foreign, false));
        let again: Timed = serde_json::from_str(&serde_json::to_string(&read).unwrap()).unwrap();
        assert_eq!(again, read);
        for n in ["1", "\"end\""] {
            let line = format!(r#"{{"fact":"emit","session":"s","stream":"a","n":{n},"more":1}}"#);
            assert!(serde_json::from_str::<Timed>(&line).is_ok(), "{line}");
        }
        for n in ["0", "-1", "\"last\"", "null"] {
            let line = format!(r#"{{"fact":"emit","session":"s","stream":"a","n":{n}}}"#);
            assert!(serde_json::from_str::<Timed>(&line).is_err(), "{line}");
        }
        assert!(serde_json::from_str::<Timed>(r#"{"fact":"emitted"}"#).is_err());
        let note = r#"{"fact":"note","anything":[1]}"#;
        assert_eq!(serde_json::from_str::<Timed>(note).unwrap().fact, Fact::Note);
    }
}
