//! What a store knows besides events.

use bytes::Bytes;

use super::ReadLimit;
use crate::protocol::{ListChanged, Revision, StreamNonce};
use crate::stream::{Paced, Page, Seq};

/// Which owner of a session writes: every change of the owner makes the number grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Epoch {
    /// Larger than that of the owner before.
    pub number: u64,
    /// Drawn by the owner. It tells two owners apart that took the same number, one of which a failing store forgot.
    pub salt: u64,
}

impl Epoch {
    /// That of the owner that comes next, which draws this salt.
    #[must_use]
    pub fn next(self, salt: u64) -> Self {
        Self { number: self.number.saturating_add(1), salt }
    }
}

/// What a store keeps of a session besides its logs: enough to serve its readers elsewhere, or after a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionRecord {
    /// The negotiated revision.
    pub revision: Option<Revision>,
    /// Who created the session: nobody else finds it (I7).
    pub principal: Option<Box<str>>,
    /// The reconnection delay of the session's streams in milliseconds.
    pub retry_ms: u32,
    /// The lists that the server said it announces changes of.
    pub list_changed: ListChanged,
    /// The stream of the session that belongs to no request.
    pub standalone: Option<StreamNonce>,
    /// What a process needs that builds the session's server object anew, of up to [`MAX_NOTE_BYTES`]; empty where none can. It is
    /// a payload like events are.
    pub note: Bytes,
}

/// Bytes of a session's [note](SessionRecord::note), before it is encrypted.
pub const MAX_NOTE_BYTES: usize = 64 << 10;

/// What becomes of the ownership of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The epoch of the session's owner from now on.
    pub epoch: Epoch,
    /// The epoch that is replaced. With none the session is new, or has `epoch` already.
    pub seen: Option<Epoch>,
    /// What is kept of the session from now on. With none that stays as it is.
    pub record: Option<SessionRecord>,
}

impl Hold {
    /// Whether it takes the session from the owner with this epoch: from the one that was seen, or from one before that, which
    /// only a store has that was set back.
    pub fn replaces(&self, epoch: Epoch) -> bool {
        self.seen.is_some_and(|seen| seen == epoch || epoch.number < seen.number)
    }
}

/// A log without an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningLog {
    /// Its stream.
    pub nonce: StreamNonce,
    /// The last stored position.
    pub head: Seq,
    /// The running hash at `head`.
    pub chain: u64,
    /// What it was created with.
    pub about: Bytes,
}

/// The owner of a session, as another store object sees it. An owner is a store object, not a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The epoch that it writes with.
    pub epoch: Epoch,
    /// For how many milliseconds it is known to give no sign of life, as [`Sightings`](super::Sightings) counts them.
    /// `u64::MAX` when it released the session.
    pub unseen_ms: u64,
}

/// Events of a log, and where it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPage {
    /// The events. Position 0 has the tag of [`Chain::start`](crate::stream::Chain::start), whatever was trimmed.
    pub page: Page,
    /// The running hash at the head.
    pub chain: u64,
    /// The log has its end.
    pub is_finished: bool,
    /// An end that is not in the log.
    pub tail: Option<Bytes>,
    /// How the stream's connections are paced.
    pub paced: Paced,
    /// How many readers [attached](super::EventStore::attach) that count.
    pub readers: u64,
    /// Who owns the session; none for this store object itself. A session that was
    /// [released](super::EventStore::release) is nobody's: every store object, that which released it too, tells the last epoch.
    pub owner: Option<Owner>,
}

/// A look for a stream, and what it wants of it. By itself it looks for a session of nobody, and wants nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attach {
    /// The stream; none looks for the session alone.
    pub stream: Option<StreamNonce>,
    /// The session's principal. A session of another one is not found (I7).
    pub principal: Option<Box<str>>,
    /// Other names of the same principal, of a store that encrypts them with one of several keys.
    pub aliases: Vec<Box<str>>,
    /// Everything after this position is wanted.
    pub after: Seq,
    /// The chain tag of that position, where it is known.
    pub tag: Option<u32>,
    /// A reader is here now, and nowhere else (I4): [`LogPage::readers`] grows by one, where the log
    /// [goes on](Self::fits) after the position.
    pub counts: bool,
    /// How many of the events.
    pub limit: ReadLimit,
    /// What the session's owner is to begin, with the stream as the name of its answer. With one, a stream is named.
    pub message: Option<Message>,
}

/// A message for the owner of a session, that came to another process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// What the log of its answer is created with.
    pub about: Bytes,
    /// The message.
    pub body: Bytes,
}

/// A message that waited for its session's owner, who has it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mail {
    /// Larger than that of every message of the session that was taken before.
    pub number: u64,
    /// The stream of its answer.
    pub nonce: StreamNonce,
    /// What it was [posted](Attach::message) with.
    pub message: Message,
}

impl Attach {
    /// Whether a session of this principal is found.
    pub fn finds(&self, principal: Option<&str>) -> bool {
        self.principal.as_deref() == principal || self.aliases.iter().any(|alias| Some(&**alias) == principal)
    }

    /// Whether a log with this head, and this tag at the position where it still has one, goes on after the position.
    pub fn fits(&self, head: Seq, tag_at: Option<u32>) -> bool {
        self.after <= head && tag_at.zip(self.tag).is_none_or(|(at, tag)| at == tag)
    }
}

/// What a look for a stream found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attached {
    /// The session; none where it is not known, or is somebody else's.
    pub session: Option<SessionRecord>,
    /// It is somebody else's.
    pub is_foreign: bool,
    /// The log, where the session has it.
    pub log: Option<AttachedLog>,
}

/// A log that was looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttachedLog {
    /// What it was created with.
    pub about: Bytes,
    /// Its events, and where it stands.
    pub page: LogPage,
}
