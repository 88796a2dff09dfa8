//! What a host sends, and what becomes of it.

use bytes::Bytes;

use crate::engine::EngineError;
use crate::protocol::RequestId;
use crate::session::OutgoingKind;
use crate::store::StoreError;

/// A message of the server to its client.
#[derive(Clone, Debug)]
pub struct OutgoingMessage<'a> {
    /// What it is.
    pub kind: OutgoingKind,
    /// The id of the request that it answers, or that it is. None for notifications.
    pub id: Option<&'a RequestId>,
    /// The request that it is related to. None sends it on the standalone stream.
    pub related: Option<&'a RequestId>,
    /// The message as JSON text, passed through as it is.
    pub payload: Bytes,
}

impl<'a> OutgoingMessage<'a> {
    /// A notification.
    pub fn notification(related: Option<&'a RequestId>, payload: &[u8]) -> Self {
        Self { kind: OutgoingKind::Notification, id: None, related, payload: Bytes::copy_from_slice(payload) }
    }

    /// A result or an error.
    pub fn response(id: &'a RequestId, payload: &[u8]) -> Self {
        Self { kind: OutgoingKind::Response, id: Some(id), related: None, payload: Bytes::copy_from_slice(payload) }
    }

    /// A request to the client.
    pub fn request(id: &'a RequestId, related: Option<&'a RequestId>, payload: &[u8]) -> Self {
        Self { kind: OutgoingKind::Request, id: Some(id), related, payload: Bytes::copy_from_slice(payload) }
    }
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The store holds it.
    Stored,
    /// The store has not answered yet; [`SessionHandle::take_outcomes`](crate::engine::SessionHandle::take_outcomes) will tell with this number.
    Pending(u64),
    /// The engine has it and brings it to the store. Nobody has to wait for that: a failure is told to the next
    /// sender on the stream.
    Ahead,
    /// It goes nowhere: its request has its end already, or an answer in JSON has no room for it. Or the store did not
    /// take it, and the sender need not know: it is a response, for which the engine answers, or progress that
    /// [`OnStoreFailure::DropProgress`](crate::engine::OnStoreFailure::DropProgress) drops.
    Dropped,
}

/// The late outcome of a [`Sent::Pending`] message.
pub type SendOutcome = (u64, Result<(), EngineError>);

/// A sender that waits until the store has answered for its message.
pub(crate) struct Sender {
    /// The error of an earlier event that was not stored: told instead of a success.
    pub(crate) earlier: Option<StoreError>,
    pub(crate) is_progress: bool,
    /// The sender was told that the store takes too long.
    pub(crate) is_told: bool,
}
