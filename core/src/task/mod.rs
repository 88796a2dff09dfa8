//! Long calls of revision 2026-07-28 as tasks: the extension `io.modelcontextprotocol/tasks` (SEP-2663), made on the wire below
//! every SDK.
//!
//! Pure, as everything in [`protocol`](crate::protocol): a host gives the SDK the call, tells the [`Machine`] what comes of it, and
//! does what the machine says. A task is a session with one call, whose log holds its [`Change`]s, and any process makes the same
//! [`Task`] of them.
//!
//! `T-nn` cites a requirement of the extension.
//!
//! | module | what it decides | requirements |
//! |---|---|---|
//! | `declaration` | who takes part: declarations, the announcement, what becomes of each request | T-01 to T-08, T-24 |
//! | `ladder` | which requests about tasks are taken | T-05, T-19, T-21, T-25 to T-27 |
//! | `machine` | whether a call becomes a task, and what happens to it | T-03, T-13 to T-17, T-20 to T-23 |
//! | `run_reader` | what the SDK answers to a run | T-13 |
//! | `reply` | how the call is answered until then | T-03, T-17 |
//! | `progress` | what a task says of itself | T-11 |
//! | `subscription` | what a subscriber is sent, between the events of the SDK | T-24, T-25 |
//! | `status`, `questions` | how a task stands | T-12 to T-15, T-18, T-20, T-21 |
//! | `change` | how that is stored | T-16 |
//! | `view`, `times` | what clients read of it | T-09 to T-14, T-24 |
//! | `id` | its name | T-27 |

mod call_headers;
mod change;
mod declaration;
mod ending;
mod id;
mod ladder;
mod machine;
mod progress;
mod questions;
mod reply;
mod run_reader;
mod status;
mod subscription;
mod times;
mod view;

use crate::protocol::json;

pub use call_headers::{CallHeaders, Header, PARAM_HEADERS, is_of_message};
pub use change::{Born, Change, What};
pub use declaration::{
    Announcement, Declared, EXTENSION, Policy, Posted, RequestMeta, Route, announce, missing_capability, route,
    subscribed_tasks, with_subscribed_tasks,
};
pub use ending::Ending;
pub use id::{TASK_ID_BYTES, TASK_LOG, TaskId};
pub use ladder::{
    Ask, Response, TaskHead, TaskRequest, not_taken, read_request, reread_request, too_large, unknown_task, unreadable,
};
pub use machine::{Input, Machine, Now, Output, Settings};
pub use progress::Call;
pub use questions::{MAX_ROUNDS, Question, Questions, Source};
pub use reply::Reply;
pub use run_reader::RunReader;
pub use status::{End, Inapplicable, Status, Task};
pub use subscription::{MAX_SUBSCRIBED_TASKS, Subscription};
pub use view::{acknowledged, created, detailed, notification};
