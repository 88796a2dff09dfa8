//! Messages for the owners of sessions (rule 14).

use std::collections::BTreeMap;

use super::room::LOG_OVERHEAD;
use super::{MemoryStore, SessionLogs, add};
use crate::protocol::StreamNonce;
use crate::store::{MAX_TAKEN, Mail, Message, StoreError, StreamKey, check_inbox};
use crate::sync::atomic::Ordering;

/// Messages for the owner of one session, by their numbers.
#[derive(Default)]
pub(super) struct Inbox {
    last: u64,
    /// They wait.
    waiting: BTreeMap<u64, (StreamNonce, Message)>,
    waiting_bytes: usize,
    /// The owner has them, and may ask again.
    taken: BTreeMap<u64, (StreamNonce, Message)>,
}

/// What became of the message that a log is the answer of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Posted {
    Waits(u64),
    Taken,
    Withdrawn,
}

impl Inbox {
    pub(super) fn bytes(&self) -> usize {
        self.waiting.values().chain(self.taken.values()).map(|(_, message)| message.bytes()).sum()
    }

    /// Adds a message that waits. Returns its number.
    fn push(&mut self, nonce: StreamNonce, message: &Message) -> u64 {
        self.last += 1;
        self.waiting.insert(self.last, (nonce, message.clone()));
        self.waiting_bytes += message.bytes();
        self.last
    }

    /// Forgets a message that waits. Returns its bytes.
    fn forget_waiting(&mut self, number: u64) -> usize {
        let bytes = self.waiting.remove(&number).map_or(0, |(_, message)| message.bytes());
        self.waiting_bytes -= bytes;
        bytes
    }

    /// Forgets messages that were taken, up to this number. Returns their bytes.
    fn forget_taken(&mut self, up_to: u64) -> usize {
        let behind = self.taken.split_off(&up_to.saturating_add(1));
        let done = std::mem::replace(&mut self.taken, behind);
        done.into_values().map(|(_, message)| message.bytes()).sum()
    }

    fn take_next(&mut self) -> Option<StreamNonce> {
        let (number, (nonce, message)) = self.waiting.pop_first()?;
        self.waiting_bytes -= message.bytes();
        self.taken.insert(number, (nonce, message));
        Some(nonce)
    }
}

impl MemoryStore {
    /// Leaves a message for the session's owner, with the log of its answer, where that is not there.
    pub(super) fn post(&self, logs: &mut SessionLogs, key: &StreamKey, message: &Message) -> Result<(), StoreError> {
        if logs.streams.contains_key(&key.nonce) {
            return Ok(());
        }
        check_inbox(logs.inbox.waiting.len(), logs.inbox.waiting_bytes, message)?;
        let bytes = LOG_OVERHEAD + message.about.len() + message.bytes();
        if self.tally.bytes.load(Ordering::Relaxed) + bytes as u64 > self.limits.max_bytes as u64 {
            return Err(StoreError::Full { max: self.limits.max_bytes });
        }
        let number = logs.inbox.push(key.nonce, message);
        self.create(logs, key, &message.about).posted = Some(Posted::Waits(number));
        logs.bytes += message.bytes();
        add(&self.tally.bytes, message.bytes());
        Ok(())
    }

    /// The messages that the owner took and asks for again, and those that wait.
    pub(super) fn take_mail(&self, logs: &mut SessionLogs, after: u64) -> Vec<Mail> {
        self.forget_taken(logs, after);
        while logs.inbox.taken.len() < MAX_TAKEN
            && let Some(nonce) = logs.inbox.take_next()
        {
            if let Some(log) = logs.streams.get_mut(&nonce) {
                log.posted = Some(Posted::Taken);
            }
        }
        let taken = logs.inbox.taken.iter();
        let mail = |(number, (nonce, message)): (&u64, &(StreamNonce, Message))| Mail {
            number: *number,
            nonce: *nonce,
            message: message.clone(),
        };
        taken.map(mail).collect()
    }

    /// The owner has begun these messages, up to this number.
    pub(super) fn forget_taken(&self, logs: &mut SessionLogs, up_to: u64) {
        let bytes = logs.inbox.forget_taken(up_to);
        logs.bytes -= bytes;
        self.freed(bytes);
    }

    /// Nobody begins this message any more.
    pub(super) fn forget_waiting(&self, logs: &mut SessionLogs, number: u64) {
        let bytes = logs.inbox.forget_waiting(number);
        logs.bytes -= bytes;
        self.freed(bytes);
    }
}
