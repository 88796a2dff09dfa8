//! Long calls of revision 2026-07-28: what of [`task`](crate::task) needs a store, a clock and other processes.
//!
//! A task is a session with one log, whose events are the task's changes. The process that runs the call owns the session, and
//! alone writes the log. Any process answers how the task stands: the owner from its memory, the others from the log.
//! Updates and cancellations come to the owner through the session's inbox. If the owner is gone, the process that is asked for the task
//! next takes the session over, and writes what became of the task.
//!
//! | module | what it does |
//! |---|---|
//! | `call`, `cell`, `change` | a call that runs here, and its task |
//! | `writing`, `records` | writes the task's changes |
//! | `leaving` | lets a task go |
//! | `ended` | the record of a call that has its end |
//! | `mail` | takes what other processes relay |
//! | `query` | answers a request about a task, wherever its owner is: `loading`, `relaying`, `inheriting` |
//! | `following` | looks at tasks that nobody asks for now |
//! | `subscription` | tells subscribers of changes |
//! | `board` | the tasks of an engine, their bounds, and when they expire |

pub(crate) mod board;
mod call;
pub(crate) mod cell;
mod change;
mod ended;
pub(crate) mod following;
mod inheriting;
mod leaving;
mod loading;
mod mail;
pub(crate) mod query;
mod records;
mod relaying;
pub(crate) mod subscription;
mod writing;

pub use call::{CallOptions, CallStep, Context, TaskCall};
pub use query::{TaskAnswer, TaskQuery};
pub use subscription::TaskSubscription;

use crate::store::SessionRecord;
pub(crate) use crate::task::TASK_LOG;

/// What became of an update or a cancellation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Taken,
    /// Not now: it may be asked again.
    NotTaken,
    /// Never: it is too large.
    TooLarge,
}

/// What a store keeps of a task besides its log.
fn record(identity: Option<&str>) -> SessionRecord {
    SessionRecord { principal: identity.map(Into::into), ..SessionRecord::default() }
}
