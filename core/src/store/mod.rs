//! Event stores: where the logs live.
//!
//! A store keeps logs by (session, stream, seq) and knows nothing of HTTP or JSON-RPC. The written
//! contract is on [`EventStore`]; the module `contract` (feature `testing`) puts any store through it.

mod append;
#[cfg(any(test, feature = "testing"))]
pub mod contract;
mod error;
mod flush;
mod host;
mod inbox;
mod limits;
mod liveness;
mod mailbox;
mod memory;
mod options;
pub mod parts;
mod records;
mod sealed;
mod sealed_record;
mod session_name;
#[cfg(feature = "testing")]
pub mod threaded;
mod threads;
mod watchers;

use std::fmt;
use std::sync::{Arc, Weak};

use bytes::Bytes;

pub use append::{Append, LogState, Verdict};
pub use error::StoreError;
pub use flush::flush;
pub use host::{HostOperation, HostReplay, HostRequest, HostStore};
pub use inbox::{MAX_INBOX_BYTES, MAX_INBOX_MESSAGES, MAX_TAKEN, check_inbox};
pub use limits::Limits;
pub use liveness::{Pulse, Sightings, beat_ms};
pub use mailbox::{Ask, Backend, BlockingBackend, Fault, Kind, Op, Queued};
pub use memory::MemoryStore;
pub use options::{Durability, StoreOptions, WallClock};
pub use records::{
    Attach, Attached, AttachedLog, Epoch, Hold, LogPage, MAX_NOTE_BYTES, Mail, Message, Owner, RunningLog,
    SessionRecord,
};
pub use sealed::{EncryptionKey, SealedStore};
pub use session_name::{SessionId, session_name};
#[cfg(feature = "testing")]
pub use threaded::ThreadedStore;
pub use watchers::{Watch, Watcher, Watchers};

pub use crate::stream::{Chain, ChainKey, ConnectionId, EventKind, Paced, Page, Seq, StoredEvent};

use crate::Ms;
use crate::protocol::StreamNonce;

/// The name of one stream. Both halves are always needed: no look-up by stream alone (I7).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct StreamKey {
    /// The session that the stream belongs to.
    pub session: Arc<str>,
    /// The stream's own, unguessable name.
    pub nonce: StreamNonce,
}

impl fmt::Debug for StreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.session, self.nonce.hex())
    }
}

/// What a store holds at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Sessions.
    pub sessions: u64,
    /// Logs.
    pub streams: u64,
    /// Events.
    pub events: u64,
    /// Bytes, with what each event costs besides its payload.
    pub bytes: u64,
    /// Positions that were trimmed away since the store was opened.
    pub trimmed: u64,
}

/// The answer of a store that may have to wait.
#[derive(Debug)]
pub enum Answer<T> {
    /// Done, or failed, before the call returned.
    Now(Result<T, StoreError>),
    /// The outcome will be given to the ticket, exactly once. One that takes longer than the engine
    /// waits is ignored.
    Later,
}

impl<T> Answer<T> {
    /// An outcome that is known at once.
    pub fn ok(value: T) -> Self {
        Self::Now(Ok(value))
    }
}

/// Which operation a late outcome belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// [`EventStore::hold`].
    Hold,
    /// [`EventStore::append`].
    Append,
    /// [`EventStore::attach`] for this connection.
    Attach(ConnectionId),
    /// [`EventStore::take`].
    Take,
    /// [`EventStore::withdraw`].
    Withdraw,
    /// [`EventStore::read`] for this connection.
    Read(ConnectionId),
    /// [`EventStore::read`] after this position, to see whether the log has changed elsewhere.
    Look(Seq),
}

/// A late outcome.
#[derive(Debug)]
pub enum Outcome {
    /// Of an append.
    Done(Result<(), StoreError>),
    /// Of a hold: the session's logs that have no end, where another owner's epoch was replaced.
    Held(Result<Vec<RunningLog>, StoreError>),
    /// Of an attach.
    Attached(Result<Attached, StoreError>),
    /// Of a take.
    Taken(Result<Vec<Mail>, StoreError>),
    /// Of a withdrawal: whether the message is withdrawn.
    Withdrawn(Result<bool, StoreError>),
    /// Of a read.
    Page(Result<LogPage, StoreError>),
}

impl Outcome {
    /// Why the operation failed.
    pub(crate) fn error(&self) -> Option<&StoreError> {
        match self {
            Self::Done(result) => result.as_ref().err(),
            Self::Held(result) => result.as_ref().err(),
            Self::Attached(result) => result.as_ref().err(),
            Self::Taken(result) => result.as_ref().err(),
            Self::Withdrawn(result) => result.as_ref().err(),
            Self::Page(result) => result.as_ref().err(),
        }
    }

    /// The operation failed.
    pub fn failed(operation: Operation, error: StoreError) -> Self {
        match operation {
            Operation::Hold => Self::Held(Err(error)),
            Operation::Append => Self::Done(Err(error)),
            Operation::Attach(_) => Self::Attached(Err(error)),
            Operation::Take => Self::Taken(Err(error)),
            Operation::Withdraw => Self::Withdrawn(Err(error)),
            Operation::Read(_) | Operation::Look(_) => Self::Page(Err(error)),
        }
    }
}

/// Takes late outcomes.
pub trait Complete: Send + Sync {
    /// The operation of this ticket has this outcome.
    fn complete(&self, ticket: &Ticket, outcome: Outcome);
}

/// The claim of a waiting operation on its outcome.
#[derive(Clone)]
pub struct Ticket {
    /// Who waits.
    pub to: Weak<dyn Complete>,
    /// For which stream. All zeros where it is for a session.
    pub nonce: StreamNonce,
    /// For which operation.
    pub operation: Operation,
    /// Tells the operation from every other one of its engine.
    pub number: u64,
}

impl Ticket {
    /// Hands the outcome over. No lock of the store may be held.
    pub fn complete(&self, outcome: Outcome) {
        if let Some(to) = self.to.upgrade() {
            to.complete(self, outcome);
        }
    }

    fn name(&self) -> Name {
        Name(self.to.as_ptr().cast::<()>().addr(), self.number)
    }
}

/// Tells an operation from every other one, those of other engines included: who waits for it, and its number there.
/// Nobody else is at that place in memory as long as the ticket is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Name(usize, u64);

/// The bounds of one read. At least one event is returned where there is one, and any is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadLimit {
    /// Nothing after this position.
    pub up_to: Seq,
    /// Events at most.
    pub events: usize,
    /// Bytes of frames at most.
    pub bytes: usize,
}

/// A durable ordered log per stream, and who may write it.
///
/// 1. A log is named by session *and* stream; two sessions never share one (I7).
/// 2. A log begins with its first [`append`](Self::append), at position 1. Positions are dense. An append is taken if
///    its `first` is head + 1 and its `chain_before` is that of the log; otherwise it is refused. An append without
///    events has no position. The same append a second time is a success that changes nothing. If the log holds less,
///    or something else, it has lost events that it had stored: [`StoreError::RolledBack`].
/// 3. An event is readable when its append succeeded, and not before (I1).
/// 4. Events are read back in order, byte for byte.
/// 5. Trimming moves `low` and is by prefix only. The newest event stays, whatever its size. Terminals and unanswered
///    questions survive it: they are returned at their positions, so a reader sees the positions between as missing (I8).
/// 6. A log ends with a terminal, or with an end that is not in it. The first end wins (I13). A finished log takes no
///    further events. It stays readable for the retention time that its [pace](Paced::retention_ms) named when it
///    ended, or else for that of the store.
/// 7. A failed operation changes nothing and harms no other (I9). Nor does what somebody else has written into the store: a
///    record that cannot be read fails by itself, and a take drops a message that has no log.
/// 8. [`drop_session`](Self::drop_session) frees everything that the session held (I11). Only a [`hold`](Self::hold)
///    creates it again. If the session has had several owners, no hold does so for
///    [`max_age_ms`](Limits::max_age_ms): an earlier owner may have stood still, and must not bring it back.
/// 9. No method blocks on another stream's operation; none calls the ticket while it holds a lock. The engine calls the
///    methods while it holds the lock of a session: none may call the session or its engine.
/// 10. An operation that was [abandoned](Self::abandon), or got no answer in the store's own time
///     ([`StoreError::TimedOut`]), is asked again unchanged, until it has an answer. So a store says that an append,
///     or an attach that brings a message, has [`Failed`](StoreError::Failed) only if nothing of it was stored. A
///     store that makes the ids is not asked twice: with it, an operation without an answer in time has failed.
/// 11. The operations of one caller on one session are done in the order of asking, also those without an answer
///     ([`settle`](Self::settle), drops and the like). [`usage`](Self::usage) may lag behind. No session has the
///     empty name: an [`attach`](Self::attach) to it is answered after everything that was asked before, so that a
///     process can wait for that before it ends.
/// 12. A session has one owner, with an [`Epoch`]. Each change of the session or its logs names the epoch. When the
///     session has another one, the change is refused with [`StoreError::Fenced`], or not done if it has no answer.
///     Each operation decides by what is there when it is done, whatever other processes do at the same time.
/// 13. A store that several processes use tells the watchers of a session of changes that were made at other store
///     objects. Watchers of the owner's store object hear that a log got a reader, and that the session has another
///     owner. Watchers of a store object at which a reader [attached](Self::attach) with [`counts`](Attach::counts)
///     hear that its log was appended to, ended or dropped, or got another reader. The store may tell too often, and
///     late. It must not leave a change out: where hints can be lost, it calls [`Watch::all_changed`] when they come
///     through again, and when it may have been set back. The owner's watchers are also [told](Watch::posted) of a
///     message that came to another store object.
/// 14. A session has an inbox. A message that was [posted](Attach::message) waits for its owner, as a log without
///     events. Either a [take](Self::take) or a [withdrawal](Self::withdraw) wins. The stream of its answer names a
///     message: while that stream has its log, a second copy of the message changes nothing. [`check_inbox`] says how
///     many messages may wait.
pub trait EventStore: Send + Sync {
    /// Begins a session, keeps what changed in its record, or takes the session over from an owner that is gone.
    ///
    /// A session that is not there is created with `hold.epoch`, if `hold.seen` is none and there is a record. A
    /// session that has `hold.epoch` gets the record. A session that has the epoch `hold.seen`, or an epoch with a
    /// smaller number, has `hold.epoch` from now on, and this store object owns it. (Numbers grow. Only a store that
    /// was set back has a smaller number than somebody has seen.) The outcome then names the session's logs without an
    /// end, also when the same is asked again.
    ///
    /// The messages of the session's inbox are not told. When `hold.epoch` is new, those that were taken are forgotten.
    /// [`StoreError::Gone`] if there is no such session, [`StoreError::Fenced`] if it has another epoch.
    fn hold(&self, session: &str, hold: &Hold, ticket: &Ticket) -> Answer<Vec<RunningLog>>;

    /// Writes to a log: creates it, adds events at its end, ends it, all at once or not at all.
    ///
    /// If the message that the log answers still waits, it waits no more: a store that was set back may have forgotten
    /// that the message was taken. [`StoreError::Gone`] if there is no such session or log, or the log has ended.
    /// [`StoreError::Fenced`] if the session has another epoch.
    fn append(&self, now: Ms, key: &StreamKey, epoch: Epoch, append: &Append, ticket: &Ticket) -> Answer<()>;

    /// The caller does not wait for this operation any more, because it took too long. The store calls it off in
    /// constant time, if it can. If it does the operation after all, no harm is done.
    fn abandon(&self, key: &StreamKey, ticket: &Ticket) {
        let _ = (key, ticket);
    }

    /// Finds what a reader needs that comes to a stream: the session, the log, and its first events.
    ///
    /// With a [message](Attach::message), and if the session is found and has no such log, the log is created first,
    /// and the message waits. [`StoreError::InboxFull`] if it does not fit.
    fn attach(&self, session: &str, attach: &Attach, ticket: &Ticket) -> Answer<Attached>;

    /// The events after a position. [`StoreError::Gone`] where there is no such session or log.
    fn read(&self, key: &StreamKey, after: Seq, limit: ReadLimit, ticket: &Ticket) -> Answer<LogPage>;

    /// Tells the messages that wait for the session's owner, in the order in which they came; the owner begins them.
    /// Messages with a [number](Mail::number) up to `after` are forgotten. Later ones that this epoch has taken already
    /// are told again, first. At most [`MAX_TAKEN`] are told: a caller that got any asks again. [`StoreError::Gone`] if
    /// there is no such session, [`StoreError::Fenced`] if it has another epoch.
    fn take(&self, session: &str, epoch: Epoch, after: u64, ticket: &Ticket) -> Answer<Vec<Mail>>;

    /// Takes a message back that nobody has taken yet: its log ends with this payload, which is not an event of it. The
    /// outcome says whether the message is withdrawn, now or before. [`StoreError::Gone`] if there is no such session
    /// or log.
    fn withdraw(&self, now: Ms, key: &StreamKey, end: &Bytes, ticket: &Ticket) -> Answer<bool>;

    /// The owner lets the session go: anybody may take it over at once. Session and logs stay, with their epoch.
    fn release(&self, session: &str, epoch: Epoch);

    /// From now on the watcher is told of changes to the session that were made elsewhere (rule 13). An empty name is of no
    /// session: its watcher is only told that [anything may have changed](Watch::all_changed).
    fn watch(&self, session: &Arc<str>, watcher: &Watcher) {
        let _ = (session, watcher);
    }

    /// The watcher has heard enough of this session.
    fn unwatch(&self, session: &str, watcher: &Watcher) {
        let _ = (session, watcher);
    }

    /// The question at this position was answered: it may be trimmed like any other event.
    fn settle(&self, key: &StreamKey, epoch: Epoch, seq: Seq);

    /// Forgets one log.
    fn drop_stream(&self, key: &StreamKey, epoch: Epoch);

    /// Forgets a session with all its logs.
    fn drop_session(&self, session: &str, epoch: Epoch);

    /// Applies retention. A log goes when its own time (rule 6), or [`retention_ms`](Limits::retention_ms), is over. If
    /// the store outlives its process, a session that was released, or whose owner is gone, goes with everything that
    /// it has, when nobody has written to it or taken it over for [`max_age_ms`](Limits::max_age_ms). Returns when
    /// retention has to be applied next.
    fn sweep(&self, now: Ms) -> Ms;

    /// What is held at the moment. The call does not wait for the store.
    fn usage(&self) -> Usage;

    /// Late outcomes may come from threads that the host does not know. Only then does a host make
    /// itself ready to be woken from there.
    fn answers_elsewhere(&self) -> bool {
        false
    }

    /// What it holds is still there when it is opened again.
    fn outlives_process(&self) -> bool {
        false
    }

    /// No sign of life of this store object was answered for half of the time after which others take it for gone: a session
    /// that it owns may be another's by now. Never where there are no others. The call does not wait for the store.
    fn is_cut_off(&self) -> bool {
        false
    }

    /// Whether other store objects are known to give signs of life: other processes that serve the same clients. The call does
    /// not wait for the store.
    fn has_company(&self) -> bool {
        false
    }

    /// For how many milliseconds the store has been away: it is not reached, or does not answer. None while it is there. The call
    /// does not wait for the store.
    fn away_ms(&self) -> Option<u64> {
        None
    }

    /// Logs what only looking shows: that the store is [away](Self::away_ms), or there again. The engine calls this about once a
    /// second, without locks.
    fn tell_away(&self) {}

    /// For how many milliseconds the store has refused what was to be stored, though it is there: its disk is full, for example.
    /// None while it stores. The call does not wait for the store.
    fn refused_ms(&self) -> Option<u64> {
        None
    }

    /// Tells the store from others of the same server. What a process encrypts for one of them is not read in another.
    fn namespace(&self) -> &str {
        ""
    }

    /// The key for the running hash of each log. A store that encrypts what it keeps has one.
    fn chain_key(&self) -> Option<ChainKey> {
        None
    }

    /// The store makes the event ids itself; ours are not on its wire.
    fn own_ids(&self) -> Option<&dyn OwnIds> {
        None
    }
}

/// A store that makes event ids of its own.
pub trait OwnIds: Send + Sync {
    /// Where in the session's logs an id points.
    fn locate(&self, session: &str, id: &str) -> Option<(StreamNonce, Seq)>;

    /// The id of a position of a stream, the priming position included.
    fn id_at(&self, key: &StreamKey, seq: Seq) -> Option<Box<str>>;

    /// The store whose operations the host performs, if this is one.
    fn host(&self) -> Option<&HostStore> {
        None
    }
}
