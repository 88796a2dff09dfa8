//! What a client has told that holds for the rest of its session: another server object of it has to hear that, too.

use std::fmt;

use bytes::Bytes;

use crate::protocol::Envelope;
use crate::protocol::jsonrpc::{self, Body, Lasting};

/// Bytes of what is [encoded](Handshake::encode). Nothing is kept of a client that tells more.
pub const MAX_HANDSHAKE_BYTES: usize = 64 << 10;

/// Resources that a client may have subscribed to. Nothing is kept of one that has more.
const MAX_SUBSCRIPTIONS: usize = 1_000;

/// The form that [`Handshake::encode`] writes.
const VERSION: u8 = 1;

/// Bytes of the length before each message.
const LENGTH: usize = 4;

/// The messages of a client that hold for the rest of its session, as it wrote them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Handshake {
    initialize: Option<Bytes>,
    initialized: Option<Bytes>,
    level: Option<Bytes>,
    /// With the resources' names, in the order in which they came.
    subscriptions: Vec<(Box<str>, Bytes)>,
    is_too_large: bool,
}

/// No payload is for a log.
impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake").field("messages", &self.messages().count()).finish_non_exhaustive()
    }
}

impl Handshake {
    /// Takes note of a message, and its text. Whether that changes anything. What comes before `initialize` counts for nothing.
    pub fn note(&mut self, envelope: &Envelope, text: &Bytes) -> bool {
        let Some(lasting) = envelope.lasting() else { return false };
        if self.is_too_large || (self.initialize.is_none() && lasting != Lasting::Initialize) {
            return false;
        }
        let place = match lasting {
            Lasting::Initialize => &mut self.initialize,
            Lasting::Initialized => &mut self.initialized,
            Lasting::Level => &mut self.level,
            Lasting::Subscribe(uri) => {
                if self.subscriptions.iter().any(|(other, _)| **other == *uri) {
                    return false;
                }
                self.subscriptions.push((uri.into(), text.clone()));
                self.check_size();
                return true;
            }
            Lasting::Unsubscribe(uri) => {
                let before = self.subscriptions.len();
                self.subscriptions.retain(|(other, _)| **other != *uri);
                return self.subscriptions.len() < before;
            }
        };
        let is_new = place.as_ref() != Some(text);
        *place = Some(text.clone());
        self.check_size();
        is_new
    }

    /// Whether the client told more than is kept. A server object that heard only some of it would not be the same.
    pub fn is_too_large(&self) -> bool {
        self.is_too_large
    }

    /// What another server object has to be told, in this order.
    pub fn replay(&self) -> Vec<Bytes> {
        self.messages().cloned().collect()
    }

    /// For the store: what [`decode`](Self::decode) reads. Empty where there is nothing to tell.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        for message in self.messages() {
            if out.is_empty() {
                out.push(VERSION);
            }
            // It has no more than MAX_HANDSHAKE_BYTES.
            out.extend_from_slice(&(message.len() as u32).to_be_bytes());
            out.extend_from_slice(message);
        }
        out.into()
    }

    /// Whether a later release wrote this, which alone can read it.
    pub fn is_newer(bytes: &Bytes) -> bool {
        bytes.first().is_some_and(|version| *version > VERSION)
    }

    /// Reads what [`encode`](Self::encode) wrote. None for anything else.
    pub fn decode(bytes: &Bytes) -> Option<Self> {
        if bytes.len() > MAX_HANDSHAKE_BYTES {
            return None;
        }
        let mut handshake = Self::default();
        let mut rest = bytes.get(1..).unwrap_or_default();
        while !rest.is_empty() {
            let (length, behind) = rest.split_first_chunk::<LENGTH>()?;
            let (text, behind) = behind.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
            let Ok(Body::Single(envelope)) = jsonrpc::read(text) else { return None };
            handshake.note(&envelope, &bytes.slice_ref(text));
            rest = behind;
        }
        // In this version, in this order, and each message once.
        (handshake.encode() == *bytes).then_some(handshake)
    }

    fn messages(&self) -> impl Iterator<Item = &Bytes> {
        let first = [&self.initialize, &self.initialized, &self.level];
        first.into_iter().flatten().chain(self.subscriptions.iter().map(|(_, text)| text))
    }

    fn check_size(&mut self) {
        let bytes = 1 + self.messages().map(|text| LENGTH + text.len()).sum::<usize>();
        if bytes > MAX_HANDSHAKE_BYTES || self.subscriptions.len() > MAX_SUBSCRIPTIONS {
            *self = Self { is_too_large: true, ..Self::default() };
        }
    }
}
