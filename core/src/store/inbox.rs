//! The bounds of a session's inbox.

use super::{Message, StoreError};

/// Messages of one session that may wait for its owner.
pub const MAX_INBOX_MESSAGES: usize = 1_000;
/// Bytes of these. One message may be larger.
pub const MAX_INBOX_BYTES: usize = 8 << 20;
/// Messages that are told in the answer to one [take](super::EventStore::take).
pub const MAX_TAKEN: usize = 64;

impl Message {
    /// Of payloads.
    pub fn bytes(&self) -> usize {
        self.about.len() + self.body.len()
    }
}

/// Whether one more message may wait where so many wait, with so many bytes, [counted](Message::bytes) alike.
///
/// # Errors
/// [`StoreError::InboxFull`].
pub fn check_inbox(waiting: usize, waiting_bytes: usize, message: &Message) -> Result<(), StoreError> {
    if waiting >= MAX_INBOX_MESSAGES {
        Err(StoreError::InboxFull { max: MAX_INBOX_MESSAGES })
    } else if waiting > 0 && waiting_bytes + message.bytes() > MAX_INBOX_BYTES {
        Err(StoreError::InboxFull { max: MAX_INBOX_BYTES })
    } else {
        Ok(())
    }
}

/// Says that a store had messages for the owner of a session without the logs of their answers.
pub fn log_lost(session: &str, messages: usize) {
    tracing::error!(target: "tailrope", session, messages, "messages of other processes have no log, and are dropped");
}
