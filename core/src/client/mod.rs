//! The client's half of one stream: how it comes back when its connection ends (W-043, W-044, W-063, W-066).
//!
//! A server's close is to a client what a network failure is: it waits as long as it was told, asks with GET
//! for what follows the last event id that it has, and goes on until every request of the stream is answered.
//! [`ResumableStream`] decides when to connect, what to deliver and when to give up; its driver makes the
//! connections. Cursor and `retry` belong to the stream and outlive connections that deliver nothing.
//!
//! Pure, like [`protocol`](crate::protocol): time and randomness come in with each input.
//!
//! | module | what it decides | requirements |
//! |---|---|---|
//! | `stream` | the states of a stream, and what each input does | W-044, W-063, W-066, W-104 to W-113, F-70 to F-73, F-80 |
//! | `exchange` | which HTTP exchanges are streams | W-025, W-069 |
//! | `pacing` | how long to wait, and when to give up | W-043, W-112, F-73 to F-76 |
//! | `seen` | which events came before | F-70 |
//! | `failure` | what the requests of a stream that is lost are told | W-085, F-79, F-80 |
//! | `token` | how a stream is handed to a later process | W-113, F-71 |
//! | `repeats` | which requests of 2026-07-28 are sent again | T-10, T-21, T-22 |
//! | `followed` | a task that is followed for a client which knows none | T-01, T-09 to T-14, T-20, T-26 |

mod exchange;
mod failure;
mod followed;
mod pacing;
mod repeats;
mod seen;
mod stream;
mod token;

pub use exchange::{Posted, refused, takes_answer, takes_request};
pub use failure::{Failure, failure_payloads};
pub use followed::{FollowPost, FollowedCall, Next};
pub use pacing::{Options, OptionsError};
pub use repeats::{Repeats, may_repeat};
pub use stream::{Input, Message, Opening, ResumableStream, Step};
pub use token::{Token, TokenError};
