//! What is asked of the server, and what it says: the arguments of the script, and its answers.

use std::fmt::Write as _;
use std::sync::Arc;

use ::redis::{Cmd, Value};
use bytes::Bytes;

use crate::protocol::{ListChanged, Revision, StreamNonce};
use crate::store::mailbox::{Ask, Op};
use crate::store::{
    Attach, Attached, AttachedLog, Epoch, Limits, LogPage, Owner, ReadLimit, RunningLog, SessionRecord, StoreError,
    StoreOptions,
};
use crate::stream::{Chain, EventKind, Page, Seq, StoredEvent};

const TEXT: &str = include_str!("script.lua");
/// Kind and tag before the frame of an event.
const HEADER: usize = 9;
/// When it was stored, after the frame.
const STAMP: usize = 11;
/// What an event takes in the server's memory besides its frame, as measured with events of 300 bytes.
const EVENT_COST: u64 = 60;
/// What a log takes without events: its keys, and its place in those of its session.
const LOG_COST: u64 = 600;

/// How long keys are kept, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lives {
    /// A running log's expiry is set again when it is older than this.
    pub(super) refresh_ms: u64,
    events_ms: u64,
    log_ms: u64,
    grace_ms: u64,
    session_ms: u64,
    /// An owner's sign of life outlives everything that it wrote: without it nobody can tell that the owner is gone.
    pub(super) sign_ms: u64,
}

impl Lives {
    pub(super) fn new(limits: &Limits, owner_lost_ms: u64) -> Self {
        // Far less than what a server takes as an expiry, and more than anybody waits.
        const LONGEST_MS: u64 = 10 * 365 * 86_400_000;
        let (age, retention) = (limits.max_age_ms.min(LONGEST_MS), limits.retention_ms.min(LONGEST_MS));
        // As long as an owner does not count as lost, what it writes is there.
        let lost = owner_lost_ms.min(LONGEST_MS);
        let events_ms = age + age / 2 + lost + 1_000;
        let log_ms = events_ms + age / 4 + 1_000;
        let grace_ms = retention.min(60_000) + 1_000;
        let session_ms = log_ms.max(retention + grace_ms) + age / 4;
        Self { refresh_ms: age / 8, events_ms, log_ms, grace_ms, session_ms, sign_ms: session_ms + lost + 1_000 }
    }
}

/// The script with its constants.
pub(super) fn text(options: &StoreOptions) -> String {
    // A double of Lua holds integers up to here.
    const LARGEST: u64 = 1 << 53;
    let limits = &options.limits;
    let lives = Lives::new(limits, options.owner_lost_ms);
    let mut text = String::with_capacity(TEXT.len() + 512);
    let size = |limit: usize| limit as u64;
    for (name, value) in [
        ("EVENT_COST", EVENT_COST),
        ("LOG_COST", LOG_COST),
        ("MAX_EVENTS_PER_STREAM", size(limits.max_events_per_stream)),
        ("MAX_BYTES_PER_STREAM", size(limits.max_bytes_per_stream)),
        ("MAX_BYTES_PER_SESSION", size(limits.max_bytes_per_session)),
        ("MAX_AGE_MS", limits.max_age_ms),
        ("RETENTION_MS", limits.retention_ms.min(lives.session_ms)),
        ("GRACE_MS", lives.grace_ms),
        ("REFRESH_MS", lives.refresh_ms),
        ("EVENTS_MS", lives.events_ms),
        ("LOG_MS", lives.log_ms),
        ("SESSION_MS", lives.session_ms),
    ] {
        // Writing to a string does not fail.
        let _ = writeln!(text, "local {name} = {}", value.min(LARGEST));
    }
    text + TEXT
}

/// Adds an operation to the script's arguments.
pub(super) fn add(cmd: &mut Cmd, op: &Op) {
    match &op.ask {
        Ask::Hold(hold) => {
            let count = if hold.record.is_some() { 7 } else { 2 };
            cmd.arg("H").arg(count).arg(epoch_text(hold.epoch)).arg(hold.seen.map(epoch_text).unwrap_or_default());
            let Some(record) = &hold.record else { return };
            let lists = record.list_changed;
            let lists = u8::from(lists.tools) | u8::from(lists.prompts) << 1 | u8::from(lists.resources) << 2;
            cmd.arg(record.revision.map_or("", |revision| revision.as_str())).arg(named(record.principal.as_deref()));
            cmd.arg(record.retry_ms).arg(lists).arg(record.standalone.as_ref().map(hex).unwrap_or_default());
        }
        Ask::Append { nonce, epoch, append } => {
            let text = |value: Option<String>| value.unwrap_or_default();
            let mut value = Vec::new();
            cmd.arg("A").arg(9 + append.events.len()).arg(epoch_text(*epoch)).arg(hex(nonce)).arg(append.first);
            cmd.arg(chain_text(append.chain_before)).arg(chain_text(append.chain));
            cmd.arg(text(append.retry_ms.map(|retry_ms| retry_ms.to_string())));
            // An end may be empty, and is another one than none then.
            if let Some(end) = &append.end {
                value.push(b'=');
                value.extend_from_slice(end);
            }
            cmd.arg(&value[..]);
            let start = (append.first == 1).then(|| chain_text(Chain::start(&nonce.0).0));
            cmd.arg(&append.about[..]).arg(text(start));
            for event in &append.events {
                value.clear();
                value.extend_from_slice(format!("{}{:08x}", event.kind as u8, event.tag).as_bytes());
                value.extend_from_slice(&event.frame);
                cmd.arg(&value[..]);
            }
        }
        Ask::Attach(Attach { stream, principal, aliases, after, tag, counts, limit }) => {
            cmd.arg("L").arg(9 + aliases.len()).arg(1 + aliases.len()).arg(named(principal.as_deref()));
            for alias in aliases {
                cmd.arg(named(Some(alias)));
            }
            cmd.arg(stream.as_ref().map(hex).unwrap_or_default()).arg(u8::from(*counts));
            cmd.arg(tag.map(|tag| format!("{tag:08x}")).unwrap_or_default());
            add_bounds(cmd, *after, limit);
        }
        Ask::Read { nonce, after, limit } => {
            cmd.arg("G").arg(5).arg(hex(nonce));
            add_bounds(cmd, *after, limit);
        }
        Ask::Release { epoch } => {
            cmd.arg("R").arg(1).arg(epoch_text(*epoch));
        }
        Ask::Settle { nonce, epoch, seq } => {
            cmd.arg("S").arg(3).arg(epoch_text(*epoch)).arg(hex(nonce)).arg(*seq);
        }
        Ask::DropStream { nonce, epoch } => {
            cmd.arg("D").arg(2).arg(epoch_text(*epoch)).arg(hex(nonce));
        }
        Ask::DropSession { epoch } => {
            cmd.arg("X").arg(1).arg(epoch_text(*epoch));
        }
        Ask::Keep { nonces } => {
            cmd.arg("T").arg(nonces.len());
            for nonce in nonces {
                cmd.arg(hex(nonce));
            }
        }
    }
}

/// What a page is of.
fn add_bounds(cmd: &mut Cmd, after: Seq, limit: &ReadLimit) {
    // Doubles again; positions have 40 bits.
    let bound = |value: u64| value.min(1 << 50);
    cmd.arg(bound(after)).arg(bound(limit.up_to)).arg(bound(limit.events as u64)).arg(bound(limit.bytes as u64));
}

/// A principal may be empty, and is another one than none then.
fn named(principal: Option<&str>) -> String {
    principal.map_or_else(String::new, |principal| format!("={principal}"))
}

fn epoch_text(epoch: Epoch) -> String {
    chain_text(epoch.number) + &chain_text(epoch.salt)
}

fn hex(nonce: &StreamNonce) -> String {
    nonce.hex()
}

/// What [`hex`] wrote.
pub(super) fn nonce(text: &[u8]) -> Option<StreamNonce> {
    let mut nonce = [0; 12];
    if text.len() != 2 * nonce.len() {
        return None;
    }
    for (byte, pair) in nonce.iter_mut().zip(text.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(StreamNonce(nonce))
}

fn chain_text(chain: u64) -> String {
    format!("{chain:016x}")
}

/// A log that was trimmed besides, with its events and bytes; none when it was removed.
pub(super) type Other = (StreamNonce, Option<(u64, u64)>);

/// Everything that one run of the script says.
pub(super) struct Reply {
    /// Positions.
    pub(super) trimmed: u64,
    pub(super) others: Vec<Other>,
    /// One for each operation.
    pub(super) results: Vec<Result<Words, StoreError>>,
    /// Why others were not told what changed.
    pub(super) untold: Option<String>,
}

/// What a log holds after a write.
#[derive(Clone, Copy)]
pub(super) struct Written {
    pub(super) events: u64,
    pub(super) bytes: u64,
    pub(super) is_finished: bool,
}

/// An answer without its first word.
pub(super) struct Words(std::vec::IntoIter<Value>);

impl Words {
    fn next(&mut self) -> Value {
        self.0.next().unwrap_or_default()
    }

    pub(super) fn number(&mut self) -> Option<u64> {
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
    pub(super) fn written(&mut self) -> Option<Written> {
        let (events, bytes) = (self.number()?, self.number()?);
        Some(Written { events, bytes, is_finished: self.number() == Some(1) })
    }

    /// The logs that are named in a list.
    pub(super) fn nonces(&mut self) -> Vec<StreamNonce> {
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
    pub(super) fn running(&mut self) -> Option<Vec<(RunningLog, Written)>> {
        let logs = self.list()?.0.map(|log| {
            let Value::Array(log) = log else { return None };
            let mut log = Self(log.into_iter());
            let (nonce, head, chain) = (nonce(&log.bytes()?)?, log.number()?, log.hexadecimal()?);
            let about = log.bytes()?.into();
            Some((RunningLog { nonce, head, chain, about }, log.written()?))
        });
        logs.collect()
    }

    /// A page of a log. `unseen` says for how long the owner of this name gave no sign, and none of this store object's.
    pub(super) fn page(&mut self, unseen: &impl Fn(&str) -> Option<u64>) -> Option<LogPage> {
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
        Some(LogPage { page: Page { events, head, low, tag_at }, chain, is_finished, tail, readers, owner })
    }

    /// What a look for a stream found, with its [page](Self::page).
    pub(super) fn attached(&mut self, unseen: &impl Fn(&str) -> Option<u64>) -> Option<Attached> {
        if self.number()? == 1 {
            return Some(Attached { is_foreign: true, ..Attached::default() });
        }
        let principal = self.text()?.strip_prefix('=').map(Into::into);
        let revision = Revision::parse(&self.text()?);
        let retry_ms = self.number()?.try_into().ok()?;
        let lists = self.number()?;
        let list_changed = ListChanged { tools: lists & 1 != 0, prompts: lists & 2 != 0, resources: lists & 4 != 0 };
        let standalone = nonce(&self.bytes()?);
        let session = Some(SessionRecord { revision, principal, retry_ms, list_changed, standalone });
        let log = match self.page(unseen) {
            Some(page) => {
                let about = self.bytes()?.into();
                let retry_ms = self.number().and_then(|retry_ms| retry_ms.try_into().ok());
                Some(AttachedLog { about, retry_ms, page })
            }
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
pub(super) fn reply(value: Value) -> Option<Reply> {
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
