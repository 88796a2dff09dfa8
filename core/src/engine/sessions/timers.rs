//! The times at which a session has something to do: one table, with one entry for each reason.

use std::collections::BTreeSet;

use crate::Ms;
use crate::maps::OwnMap;
use crate::protocol::StreamNonce;
use crate::stream::ConnectionId;

/// What there is to do when a time has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Reason {
    /// The store has not answered the question with this number: it is called off.
    Question(u64),
    /// The store has not answered what is written to a log, or the pause before it is asked again is over.
    Write(StreamNonce),
    /// The host's own store has not done the replay with this number.
    Replay(u64),
    /// The store is asked once more for the stream of a connection.
    Seek(ConnectionId),
    /// A connection gets a comment, because the store cannot tell of its stream.
    Comment(ConnectionId),
    /// A log that another process writes is looked at.
    Look(StreamNonce),
    /// Something should have become of a relayed message.
    Relay(StreamNonce),
    /// The session looks, without a hint, whether other processes relay anything to it.
    Inbox,
    /// The host should have taken the session that it adopts, or should be serving it.
    Adoption,
    /// A drain waits no longer for calls that cannot be handed over.
    Drain,
}

/// The table.
#[derive(Default)]
pub(crate) struct Timers {
    at: OwnMap<Reason, Ms>,
    due: BTreeSet<(Ms, Reason)>,
}

impl Timers {
    /// Sets a time, instead of any other for the same reason.
    pub(crate) fn set(&mut self, reason: Reason, at: Ms) {
        self.clear(reason);
        if at != Ms::NEVER {
            self.at.insert(reason, at);
            self.due.insert((at, reason));
        }
    }

    pub(crate) fn clear(&mut self, reason: Reason) {
        if let Some(at) = self.at.remove(&reason) {
            self.due.remove(&(at, reason));
        }
    }

    pub(crate) fn clear_all(&mut self) {
        self.at.clear();
        self.due.clear();
    }

    /// Sets another time, if one is set.
    pub(crate) fn change(&mut self, reason: Reason, at: Ms) {
        if self.at.contains_key(&reason) {
            self.set(reason, at);
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.due.len()
    }

    /// Takes the next reason whose time has come.
    pub(crate) fn pop(&mut self, now: Ms) -> Option<Reason> {
        let (_, reason) = *self.due.first().filter(|(at, _)| *at <= now)?;
        self.clear(reason);
        Some(reason)
    }

    /// The first of the times.
    pub(crate) fn next(&self) -> Ms {
        self.due.first().map_or(Ms::NEVER, |(at, _)| *at)
    }
}
