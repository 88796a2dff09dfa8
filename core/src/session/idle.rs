//! When a session counts as idle (I11, F-50, F-51).

use super::Session;
use crate::Ms;
use crate::stream::MAX_FLOOR_MS;

/// The least time that a client is given to come back.
const MIN_POLL_MS: u64 = 60_000;
/// The same where it may have been told to stay away for long, as many streams are polled.
const MIN_AWAITED_MS: u64 = 3 * MAX_FLOOR_MS as u64;

/// Until when the client of a stream that has just lost its reader is expected to come back.
pub(super) fn awaited_until(now: Ms, retry_ms: u32) -> Ms {
    now + (u64::from(retry_ms) * 10).max(MIN_AWAITED_MS)
}

impl Session {
    /// The client gave a sign.
    pub fn contact(&mut self, now: Ms) {
        self.last_contact = self.last_contact.max(now);
    }

    /// A connection of the session opened.
    pub fn connected(&mut self, now: Ms) {
        self.connections += 1;
        self.contact(now);
    }

    /// A connection of the session ended. When its stream holds, or may get, something that the client
    /// has not been sent, the client comes back after `retry_ms`.
    pub fn disconnected(&mut self, now: Ms, retry_ms: Option<u32>) {
        self.connections = self.connections.saturating_sub(1);
        self.contact(now);
        if let Some(retry_ms) = retry_ms {
            let poll = now + (u64::from(retry_ms) * 10).max(MIN_POLL_MS);
            self.poll_until = self.poll_until.max(poll);
        }
    }

    /// After how long without anything the session is idle, in milliseconds; 0 is never.
    pub fn set_idle_ms(&mut self, idle_ms: u64) {
        self.idle_ms = idle_ms;
    }

    /// The last sign of the client.
    pub fn last_contact(&self) -> Ms {
        self.last_contact
    }

    /// Whether the client has stayed away for as long as it may while requests run.
    pub fn is_detached(&self, now: Ms, max_detached_ms: u64) -> bool {
        self.connections == 0 && self.last_contact + max_detached_ms <= now
    }

    /// Until when something holds the session: an open connection, a running request or a pending poll.
    ///
    /// A poll is pending for max(10 x retry, 60 s) after a connection that left something to come back for. Without any
    /// contact nothing but a connection holds for longer than `max_detached_ms`.
    pub fn busy_until(&self, max_detached_ms: u64) -> Ms {
        if self.connections > 0 {
            return Ms::NEVER;
        }
        let detached = self.last_contact + max_detached_ms;
        if !self.in_flight.is_empty() {
            return detached;
        }
        self.poll_until.min(detached)
    }

    /// Whether nothing holds the session, and it is not just being opened: a newer one may have its place. A process that has a
    /// reader of another one's session gives a sign of that every `sign_ms`.
    pub fn may_give_way(&self, now: Ms, max_detached_ms: u64, sign_ms: u64) -> bool {
        let is_opening = self.revision.is_none() && self.last_contact + MIN_POLL_MS > now;
        let is_read_elsewhere = self.last_contact + 2 * sign_ms > now
            && self.streams.values().any(|stream| stream.machine.is_read_elsewhere());
        !is_opening && !is_read_elsewhere && self.busy_until(max_detached_ms) <= now
    }

    /// When the session has been idle for its idle time; never while something [holds](Self::busy_until) it.
    pub fn idle_at(&self, max_detached_ms: u64) -> Ms {
        let busy_until = self.busy_until(max_detached_ms);
        if self.connections > 0 || !self.in_flight.is_empty() {
            return busy_until;
        }
        if self.idle_ms == 0 {
            return Ms::NEVER;
        }
        busy_until.max(self.last_contact + self.idle_ms)
    }
}
