//! The script that does what callers ask, and what it says.

mod ask;
mod reply;

use std::fmt::Write as _;

use tailrope_core::protocol::StreamNonce;
use tailrope_core::store::{Limits, MAX_INBOX_BYTES, MAX_INBOX_MESSAGES, MAX_TAKEN, StoreOptions};

pub(super) use ask::add;
pub(super) use reply::{Other, Reply, Words, Written, reply};

/// Each uses what is defined before it.
const TEXTS: [&str; 7] = [
    include_str!("keys.lua"),
    include_str!("inbox.lua"),
    include_str!("trim.lua"),
    include_str!("write.lua"),
    include_str!("owner.lua"),
    include_str!("read.lua"),
    include_str!("run.lua"),
];
/// Kind and tag before the frame of an event.
const HEADER: usize = 9;
/// When it was stored, after the frame.
const STAMP: usize = 11;
/// What an event takes in the server's memory besides its frame, as measured with events of 300 bytes.
const EVENT_COST: u64 = 60;
/// What a log takes without events: its keys, and its place in those of its session.
const LOG_COST: u64 = 600;

/// Far less than what a server takes as an expiry, and more than anybody waits.
const LONGEST_MS: u64 = 10 * 365 * 86_400_000;

/// How long keys are kept, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lives {
    /// A running log's expiry is set again when it is older than this.
    pub(super) refresh_ms: u64,
    events_ms: u64,
    log_ms: u64,
    grace_ms: u64,
    session_ms: u64,
    /// For so long the name of a session that several owners had stays taken.
    name_ms: u64,
    /// An owner's sign of life outlives everything that it wrote: without it nobody can tell that the owner is gone.
    pub(super) sign_ms: u64,
}

impl Lives {
    pub(super) fn new(limits: &Limits, owner_lost_ms: u64) -> Self {
        let (age, retention) = (limits.max_age_ms.min(LONGEST_MS), limits.retention_ms.min(LONGEST_MS));
        // As long as an owner does not count as lost, what it writes is there.
        let lost = owner_lost_ms.min(LONGEST_MS);
        let events_ms = age + age / 2 + lost + 1_000;
        let log_ms = events_ms + age / 4 + 1_000;
        let grace_ms = retention.min(60_000) + 1_000;
        let session_ms = log_ms.max(retention + grace_ms) + age / 4;
        let sign_ms = session_ms + lost + 1_000;
        Self { refresh_ms: age / 8, events_ms, log_ms, grace_ms, session_ms, name_ms: age, sign_ms }
    }
}

/// The script with its constants.
pub(super) fn text(options: &StoreOptions) -> String {
    // A double of Lua holds integers up to here.
    const LARGEST: u64 = 1 << 53;
    let limits = &options.limits;
    let lives = Lives::new(limits, options.owner_lost_ms);
    let mut text = String::new();
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
        ("NAME_MS", lives.name_ms),
        ("MAX_INBOX_MESSAGES", size(MAX_INBOX_MESSAGES)),
        ("MAX_INBOX_BYTES", size(MAX_INBOX_BYTES)),
        ("MAX_TAKEN", size(MAX_TAKEN)),
    ] {
        // Writing to a string does not fail.
        let _ = writeln!(text, "local {name} = {}", value.min(LARGEST));
    }
    text + &TEXTS.concat()
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
