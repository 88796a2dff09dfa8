//! What the server says: the answers of the script.

use std::sync::Arc;

use ::redis::Value;
use bytes::Bytes;
use tailrope_core::protocol::{ListChanged, Revision, StreamNonce};
use tailrope_core::store::{
    Attached, AttachedLog, Epoch, EventKind, LogPage, Mail, Message, Owner, Paced, Page, RunningLog, Seq,
    SessionRecord, StoreError, StoredEvent,
};

use super::{HEADER, STAMP, nonce};

/// A log that was trimmed besides, with its events and bytes; none when it was removed.
pub(in crate::redis) type Other = (StreamNonce, Option<(u64, u64)>);

/// Everything that one run of the script says.
pub(in crate::redis) struct Reply {
    /// Positions.
    pub(in crate::redis) trimmed: u64,
    pub(in crate::redis) others: Vec<Other>,
    /// One for each operation.
    pub(in crate::redis) results: Vec<Result<Words, StoreError>>,
    /// Why others were not told what changed.
    pub(in crate::redis) untold: Option<String>,
}

/// What a log holds after a write.
#[derive(Clone, Copy)]
pub(in crate::redis) struct Written {
    pub(in crate::redis) events: u64,
    pub(in crate::redis) bytes: u64,
    /// For how many milliseconds it is kept, where it has ended.
    pub(in crate::redis) left_ms: Option<u64>,
}

/// An answer without its first word.
pub(in crate::redis) struct Words(std::vec::IntoIter<Value>);

impl Words {
    fn next(&mut self) -> Value {
        self.0.next().unwrap_or_default()
    }

    pub(in crate::redis) fn number(&mut self) -> Option<u64> {
        number(&self.next())
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        match self.next() {
            Value::BulkString(bytes) => Some(bytes),
            _ => None,
        }
    }

    fn text(&mut self) -> Option<String> {
        self.bytes().and_then(|bytes| String::from_utf8(bytes).ok())
    }

    /// What a log holds after a write.
    pub(in crate::redis) fn written(&mut self) -> Option<Written> {
        let (events, bytes) = (self.number()?, self.number()?);
        Some(Written { events, bytes, left_ms: self.number().filter(|left_ms| *left_ms > 0) })
    }

    /// The logs that are named in a list.
    pub(in crate::redis) fn nonces(&mut self) -> Vec<StreamNonce> {
        let mut list = self.list();
        std::iter::from_fn(|| nonce(&list.as_mut()?.bytes()?)).collect()
    }

    fn list(&mut self) -> Option<Self> {
        match self.next() {
            Value::Array(list) => Some(Self(list.into_iter())),
            _ => None,
        }
    }

    fn hexadecimal(&mut self) -> Option<u64> {
        self.text().and_then(|text| u64::from_str_radix(&text, 16).ok())
    }

    /// The logs without an end of a session, each with what it holds.
    pub(in crate::redis) fn running(&mut self) -> Option<Vec<(RunningLog, Written)>> {
        let logs = self.list()?.0.map(|log| {
            let Value::Array(log) = log else { return None };
            let mut log = Self(log.into_iter());
            let (nonce, head, chain) = (nonce(&log.bytes()?)?, log.number()?, log.hexadecimal()?);
            let about = log.bytes()?.into();
            Some((RunningLog { nonce, head, chain, about }, log.written()?))
        });
        logs.collect()
    }

    /// Messages that were taken, each with what its log holds.
    pub(in crate::redis) fn mail(&mut self) -> Option<Vec<(Mail, Written)>> {
        let messages = self.list()?.0.map(|words| {
            let Value::Array(words) = words else { return None };
            let mut words = Self(words.into_iter());
            let (number, nonce) = (words.number()?, nonce(&words.bytes()?)?);
            let message = Message { about: words.bytes()?.into(), body: words.bytes()?.into() };
            Some((Mail { number, nonce, message }, words.written()?))
        });
        messages.collect()
    }

    /// A page of a log. `unseen` says for how long the owner of this name gave no sign, and none of this store object's.
    pub(in crate::redis) fn page(&mut self, unseen: &impl Fn(&str) -> Option<u64>) -> Option<LogPage> {
        let mut words = self.list()?;
        let (head, low) = (words.number()?, words.number()?);
        let tag_at = words.hexadecimal().and_then(|tag| tag.try_into().ok());
        let mut list = words.list()?;
        let mut events = Vec::with_capacity(list.0.len() / 2);
        while let (Some(seq), Some(value)) = (list.number(), list.bytes()) {
            events.push(event(seq, &value)?);
        }
        let (chain, is_finished) = (words.hexadecimal()?, words.number()? == 1);
        let (tail, readers) = (words.bytes().map(Bytes::from), words.number()?);
        let epoch = words.text()?;
        let (number, salt) = epoch.split_at_checked(16)?;
        let [number, salt] = [number, salt].map(|half| u64::from_str_radix(half, 16).ok());
        let epoch = Epoch { number: number?, salt: salt? };
        let unseen_ms = words.text().and_then(|owner| unseen(&owner));
        let owner = unseen_ms.map(|unseen_ms| Owner { epoch, unseen_ms });
        let paced = words.bytes().and_then(|bytes| Paced::from_bytes(&bytes)).unwrap_or_default();
        Some(LogPage { page: Page { events, head, low, tag_at }, chain, is_finished, tail, paced, readers, owner })
    }

    /// What a look for a stream found, with its [page](Self::page).
    pub(in crate::redis) fn attached(&mut self, unseen: &impl Fn(&str) -> Option<u64>) -> Option<Attached> {
        if self.number()? == 1 {
            return Some(Attached { is_foreign: true, ..Attached::default() });
        }
        let principal = self.text()?.strip_prefix('=').map(Into::into);
        let revision = self.text().as_deref().and_then(Revision::parse);
        let retry_ms = self.number().unwrap_or_default().try_into().unwrap_or(u32::MAX);
        let list_changed = ListChanged::from_bits(self.number().unwrap_or_default() as u8);
        let standalone = self.bytes().and_then(|bytes| nonce(&bytes));
        let note = self.bytes().unwrap_or_default().into();
        let session = Some(SessionRecord { revision, principal, retry_ms, list_changed, standalone, note });
        let log = match self.page(unseen) {
            Some(page) => Some(AttachedLog { about: self.bytes()?.into(), page }),
            None => None,
        };
        Some(Attached { session, is_foreign: false, log })
    }
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => (*number).try_into().ok(),
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

fn event(seq: Seq, value: &[u8]) -> Option<StoredEvent> {
    let (header, frame) = value.split_at_checked(HEADER)?;
    let frame = &frame[..frame.len().checked_sub(STAMP)?];
    let kind = match header[0] {
        b'1' => EventKind::Answer,
        b'2' => EventKind::Question,
        b'3' => EventKind::Terminal,
        _ => EventKind::Progress,
    };
    let tag = u32::from_str_radix(std::str::from_utf8(&header[1..]).ok()?, 16).ok()?;
    Some(StoredEvent { seq, kind, tag, frame: Arc::from(frame) })
}

/// Takes what the script returned apart; none when it is nothing that our script returns.
pub(in crate::redis) fn reply(value: Value) -> Option<Reply> {
    let Value::Array(parts) = value else { return None };
    let [trimmed, Value::Array(others), Value::Array(results), untold] = <[Value; 4]>::try_from(parts).ok()? else {
        return None;
    };
    let others = others.chunks_exact(3).filter_map(|log| {
        let Value::BulkString(name) = &log[0] else { return None };
        Some((nonce(name)?, number(&log[1]).zip(number(&log[2]))))
    });
    Some(Reply {
        trimmed: number(&trimmed)?,
        others: others.collect(),
        results: results.into_iter().map(result).collect(),
        untold: Words(vec![untold].into_iter()).text(),
    })
}

fn result(value: Value) -> Result<Words, StoreError> {
    let Value::Array(words) = value else {
        return Err(StoreError::Failed("the server gave no answer".to_owned()));
    };
    let mut words = Words(words.into_iter());
    match words.number() {
        Some(0) => Ok(words),
        Some(1) => Err(StoreError::Gone),
        Some(2) => Err(StoreError::Fenced),
        Some(3) => Err(StoreError::OutOfOrder),
        Some(4) => Err(StoreError::RolledBack),
        Some(6) => {
            let max = words.number().and_then(|max| max.try_into().ok()).unwrap_or_default();
            Err(StoreError::InboxFull { max })
        }
        _ => Err(StoreError::Failed(failure(&words.text().unwrap_or_default()))),
    }
}

/// What is wrong, in words that say nothing of where the server is.
fn failure(text: &str) -> String {
    if text.contains("OOM") {
        return "the server's memory is full (maxmemory)".to_owned();
    }
    if text.contains("MISCONF") {
        return "the server takes no writes because it cannot save them".to_owned();
    }
    format!("the server said: {text}")
}
