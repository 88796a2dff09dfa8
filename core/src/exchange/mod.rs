//! What a host does with one HTTP exchange, whichever language it is written in. Pure.

mod admission;
mod fault;
mod head;
mod join;
mod origin;
mod principal;
mod relayed;
mod secrets;
mod server_name;
mod shape;
mod turns;

pub use admission::{Action, Admission};
pub use fault::Fault;
pub use head::AnswerHead;
pub use join::Join;
pub use origin::Allowed;
pub use principal::{IDENTITY_HEADERS, Member, Principal, Requester, Rule, Unidentified, is_secret_header, names_user};
pub use relayed::{RELAYED_HEADERS, Relayed, RelayedMethod, Unreadable};
pub use server_name::{asgi_server_name, server_name};
pub use turns::{Pause, Turns};

use crate::protocol::Head;

/// An HTTP request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// The parts of its head that count.
    pub head: Head<'a>,
    /// What is known of its sender.
    pub requester: Requester<'a>,
    /// The server that it is for, if the host knows.
    pub server: Option<&'a str>,
    /// Its body, which counts on POST only.
    pub body: &'a [u8],
}

/// What a host's settings say of its sessions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms<'a> {
    /// The id by which the host knows the session, if it is not the engine's.
    pub session_id: Option<&'a str>,
    /// Requests are answered with a JSON body.
    pub json_response: bool,
    /// The values of the version header that are served, if the dialect leaves that to the host (W-094).
    pub versions: Option<&'a [&'a str]>,
}
