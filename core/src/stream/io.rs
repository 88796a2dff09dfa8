//! Inputs and outputs of the stream machine.

use bytes::Bytes;

use super::cuts::{Cut, Expected};
use super::event::{EventKind, NewEvent, Page, Seq, StoredEvent};
use super::pacing::Paced;

/// One connection of one stream. Never used twice by an engine. Of two the larger is the newer: it came later,
/// however long each had to wait for the store (I4).
pub type ConnectionId = u64;

/// What keeps the clients of many connections apart: they are not to come back at once, and not too often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// Randomness for the pacing of one connection.
    pub jitter: u16,
    /// The least `retry`, in milliseconds, as many streams are polled; 0 while few are. See [`retry_floor_ms`](super::retry_floor_ms).
    pub floor_ms: u32,
    /// At what the connection will be cut by something else.
    pub expected: Expected,
}

/// What happens to a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A connection without a cursor: the stream's own POST, or a standalone GET.
    Open {
        /// The connection.
        conn: ConnectionId,
        /// How its client is kept apart from others.
        spread: Spread,
    },
    /// A connection with a cursor.
    Resume {
        /// The connection.
        conn: ConnectionId,
        /// Everything after this position is wanted.
        after: Seq,
        /// How often this position was visited before.
        visit: u32,
        /// The chain tag that the cursor carries; none where the store makes the ids.
        tag: Option<u32>,
        /// How its client is kept apart from others.
        spread: Spread,
    },
    /// The stream's connections are paced so from its beginning. What concerns early closes is left out where there are none.
    Pace(Paced),
    /// The log is to be there before its first event, for readers elsewhere.
    Create,
    /// An event for the log.
    Publish(NewEvent),
    /// End the stream with a payload that is not in the log.
    Terminate {
        /// The synthesized end.
        payload: Bytes,
    },
    /// The store holds the events of the last [`Output::Append`].
    Appended,
    /// The store did not take the events of the last [`Output::Append`].
    AppendFailed,
    /// The log has this head, as somebody else writes it. A store that was set back has less of it than before.
    Grown {
        /// The last stored position.
        head: Seq,
    },
    /// The log has got its end from somebody else: it takes no events from here. What a store that was set back has lost of
    /// it does not come again.
    Ended {
        /// The last stored position.
        head: Seq,
        /// The end, if it is not in the log.
        tail: Option<Bytes>,
    },
    /// The store's answer to an [`Output::Load`].
    Page {
        /// The connection that the page was loaded for.
        conn: ConnectionId,
        /// What the store holds.
        page: Page,
    },
    /// The store could not answer an [`Output::Load`].
    LoadFailed {
        /// The connection that the page was loaded for.
        conn: ConnectionId,
    },
    /// All bytes sent so far are flushed; the connection can take more.
    Ready {
        /// The connection.
        conn: ConnectionId,
    },
    /// The host asks to close the connection without terminating the stream.
    CloseRequested {
        /// A new `retry` for this stream, kept for later connections.
        retry_ms: Option<u32>,
        /// From now on resumed connections are closed again after this time.
        hold_ms: Option<u64>,
    },
    /// The process is going away: close what is open, and what opens from now on.
    Drain(Drain),
    /// A reader in another process has the stream now.
    Taken,
    /// The process that writes the log has kept this with it.
    Paced(Paced),
    /// The connection is gone.
    Lost {
        /// The connection.
        conn: ConnectionId,
    },
    /// The time of [`Machine::deadline`](super::Machine::deadline) has come.
    Tick,
}

/// When the clients come back whose connections a drain closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// The least `retry`, in milliseconds: what the restart takes.
    pub retry_ms: u32,
    /// Each client is told up to this much more, in milliseconds, so that not all come back at once.
    pub spread_ms: u32,
}

impl Drain {
    /// The clients come back after this time, in milliseconds, spread over half of it more.
    pub fn after(retry_ms: u32) -> Self {
        Self { retry_ms, spread_ms: retry_ms / 2 }
    }
}

/// What the caller has to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Ask the store to hold the events that the machine has [asked](super::Machine::asked) it for, the first at `first`: none
    /// where only the log, or what follows, is to be stored. The first such request creates the log. Answered by one of
    /// [`Input::Appended`], [`Input::AppendFailed`] and [`Input::Ended`].
    Append {
        /// Position of the first event.
        first: Seq,
        /// What is to be kept for readers in other processes, where it has changed.
        paced: Option<Box<Paced>>,
    },
    /// The store holds the event with this token.
    Stored {
        /// The token of the event.
        token: u64,
    },
    /// The store did not take this event; it is in no log and later events are unharmed.
    Unstored {
        /// The token of the event.
        token: u64,
        /// The position that it would have had; events behind it move up.
        seq: Seq,
        /// What it was. After a terminal or an answer the stream is open again: its end has to say
        /// what became of them.
        kind: EventKind,
    },
    /// Ask the store for events. Answered by [`Input::Page`] or [`Input::LoadFailed`].
    Load {
        /// The connection that reads.
        conn: ConnectionId,
        /// Everything after this position.
        after: Seq,
        /// Nothing after this position.
        up_to: Seq,
    },
    /// A connection was lost, and its client has come back.
    Cut(Cut),
    /// The resume is valid: this connection is now the stream's reader.
    Accept {
        /// The connection.
        conn: ConnectionId,
    },
    /// The resume is not possible.
    Reject {
        /// The connection.
        conn: ConnectionId,
        /// Why not.
        why: RejectReason,
    },
    /// Write this on the connection.
    Send {
        /// The connection.
        conn: ConnectionId,
        /// What to write.
        frame: Frame,
    },
    /// The connection has something to do: let its writer report [`Input::Ready`] again.
    Wake {
        /// The connection.
        conn: ConnectionId,
    },
    /// End the connection. The stream goes on unless it is complete.
    Close {
        /// The connection.
        conn: ConnectionId,
        /// Why it ends.
        why: CloseReason,
    },
    /// The stream ended outside its log: tell the store, so that later readers get the same end.
    Finish {
        /// The synthesized end.
        tail: Bytes,
    },
    /// Nothing is left to do for this machine. The log stays readable until retention ends.
    Forget,
}

/// Takes what a machine asks for.
pub trait Outputs {
    /// Takes the next output.
    fn push(&mut self, output: Output);
}

impl Outputs for Vec<Output> {
    fn push(&mut self, output: Output) {
        self.push(output);
    }
}

/// Something to write on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// An event with an id and empty data, so that the client can resume before any message.
    Priming {
        /// The position that the id names.
        seq: Seq,
        /// How often this position was visited.
        visit: u32,
        /// The chain tag of the position.
        tag: u32,
        /// The stream's reconnection delay.
        retry_ms: u32,
    },
    /// Stored events, in order.
    Events(Vec<StoredEvent>),
    /// Positions that retention took before this reader came.
    Gap {
        /// First missing position.
        first: Seq,
        /// How many are missing.
        count: u64,
    },
    /// A new reconnection delay.
    Retry {
        /// Milliseconds.
        ms: u32,
    },
    /// A comment against idle time-outs.
    KeepAlive,
    /// An end that is not in the log.
    Tail(Bytes),
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CloseReason {
    /// The stream is complete and all of it was sent.
    Complete,
    /// The host asked for it.
    Asked,
    /// A polled connection had its time.
    Polled,
    /// The connection reached its age or byte limit.
    Limit,
    /// The process is going away.
    Drain,
    /// A newer reader took the stream over.
    Superseded,
    /// The store could not be read in time.
    Fault,
    /// The session ended.
    Ended,
}

impl CloseReason {
    /// The name used in logs and statistics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Asked => "asked",
            Self::Polled => "polled",
            Self::Limit => "limit",
            Self::Drain => "drain",
            Self::Superseded => "superseded",
            Self::Fault => "fault",
            Self::Ended => "ended",
        }
    }
}

/// Why a resume is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// The cursor names the terminal: nothing is left, and nothing will come.
    Complete,
    /// The cursor belongs to a history that this log does not hold.
    Unknown,
}

/// Why an input was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The stream has its terminal already; the first wins (I13).
    Finished,
    /// Too many events wait for the store.
    Full,
    /// This stream's connections must not be closed early (W-047).
    NotResumable,
}
