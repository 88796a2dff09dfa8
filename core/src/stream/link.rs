//! One connection, as its stream sees it: a cursor and some times.

use super::event::Seq;
use super::io::{CloseReason, ConnectionId, Spread};
use super::pacing::{AUTO, Pacing};
use crate::Ms;

/// An agreed end of a connection: after this position, for this reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CloseAt {
    pub(super) seq: Seq,
    pub(super) why: CloseReason,
}

/// A connection that reads a stream.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) conn: ConnectionId,
    /// Everything up to here was handed to the connection. All that I3 needs.
    pub(super) sent: Seq,
    /// Position, visit counter and chain tag that the priming event names.
    pub(super) primed: (Seq, u32, u32),
    /// The first bytes are out.
    pub(super) opened: bool,
    /// When the first bytes go out at the latest, if the store has the log.
    pub(super) open_due: Ms,
    /// When a comment goes out in their place, where the store takes long to create the log. None before it is waited for.
    pub(super) comment_due: Option<Ms>,
    /// The writer has nothing to do and waits to be woken.
    pub(super) waiting: bool,
    /// The store owes a page up to here.
    pub(super) loading: Option<Seq>,
    pub(super) close: Option<CloseAt>,
    /// The chain tag of the event at `sent`: every page has to confirm it. None where nothing can.
    pub(super) tag: Option<u32>,
    /// A page has to confirm it even if nothing follows: the store could not be asked, or was set back.
    pub(super) is_unverified: bool,
    /// Since when loads fail, and when to try again.
    pub(super) fault: Option<(Ms, Ms)>,
    pub(super) retry_sent: Option<u32>,
    pub(super) last_write: Ms,
    /// The longest time without a write that has ended, in milliseconds.
    pub(super) silent_ms: u64,
    pub(super) came: Ms,
    pub(super) hold_due: Ms,
    pub(super) bytes: u64,
    pub(super) spread: Spread,
}

impl Link {
    pub(super) fn new(conn: ConnectionId, spread: Spread, primed: (Seq, u32, u32), now: Ms, may_wait_ms: u64) -> Self {
        Self {
            conn,
            sent: primed.0,
            primed,
            opened: false,
            open_due: now + may_wait_ms,
            comment_due: None,
            waiting: false,
            loading: None,
            close: None,
            tag: None,
            is_unverified: false,
            fault: None,
            retry_sent: None,
            last_write: now,
            silent_ms: 0,
            came: now,
            hold_due: Ms::NEVER,
            bytes: 0,
            spread,
        }
    }

    /// When it is too old.
    pub(super) fn age_due(&self, pacing: &Pacing) -> Ms {
        match pacing.max_connection_ms {
            0 => Ms::NEVER,
            AUTO => match self.spread.expected.age_ms {
                0 => Ms::NEVER,
                cut_ms => self.came + self.earlier(cut_ms - cut_ms / 8),
            },
            max_ms => self.came + self.earlier(max_ms),
        }
    }

    /// Something is written.
    pub(super) fn wrote(&mut self, now: Ms) {
        self.silent_ms = self.silent_ms.max(now.since(self.last_write));
        self.last_write = now;
    }

    /// Up to an eighth less, so that what begins together does not end together.
    fn earlier(&self, ms: u64) -> u64 {
        // A store may tell of any time.
        ms - (ms / 8).saturating_mul(u64::from(self.spread.jitter)) / u64::from(u16::MAX)
    }

    /// When a keep-alive is due.
    pub(super) fn keep_alive_due(&self, pacing: &Pacing) -> Ms {
        if pacing.keep_alive_ms == 0 {
            return Ms::NEVER;
        }
        let keep_alive_ms = match self.spread.expected.silent_ms {
            0 => pacing.keep_alive_ms,
            cut_ms => pacing.keep_alive_ms.min(cut_ms / 2),
        };
        self.last_write + self.earlier(keep_alive_ms)
    }

    /// The next time at which a waiting reader has something to do.
    pub(super) fn deadline(&self, pacing: &Pacing) -> Ms {
        let idle = self.parked_deadline(pacing);
        if self.loading.is_some() {
            return idle;
        }
        // A close that is agreed waits for the store, not for a time.
        let end = if self.close.is_none() { self.hold_due.min(self.age_due(pacing)) } else { Ms::NEVER };
        let load_again = self.fault.map_or(Ms::NEVER, |(_, again)| again);
        idle.min(end).min(load_again)
    }

    /// The same for a parked connection, which gets comments only.
    pub(super) fn parked_deadline(&self, pacing: &Pacing) -> Ms {
        if self.opened { self.keep_alive_due(pacing) } else { self.open_due }
    }

    /// The delay that its client is told where that is `retry_ms` by itself: more, and spread, where many streams are polled.
    pub(super) fn effective_retry_ms(&self, retry_ms: u32) -> u32 {
        match self.spread.floor_ms {
            floor_ms if floor_ms > retry_ms => self.spread_retry(floor_ms, floor_ms),
            _ => retry_ms,
        }
    }

    /// `retry_ms` plus up to `spread_ms`, by this connection's jitter: a floor, never less.
    pub(super) fn spread_retry(&self, retry_ms: u32, spread_ms: u32) -> u32 {
        let extra = u64::from(spread_ms) * u64::from(self.spread.jitter) / u64::from(u16::MAX);
        retry_ms.saturating_add(u32::try_from(extra).unwrap_or(u32::MAX))
    }
}
