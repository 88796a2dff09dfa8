//! What stores and logs know a session by.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::protocol::hex;

/// Which session: its id, at the server that opened it. Servers that share a store find no sessions of each other (I7).
///
/// A text is the id of a session where the store has those of one server alone.
#[derive(Clone, Copy)]
pub struct SessionId<'a> {
    server: &'a str,
    id: &'a str,
}

impl<'a> SessionId<'a> {
    /// `server` is the name that all processes give the server, or what [`server_name`](crate::exchange::server_name) makes
    /// of the path of its endpoint.
    pub fn new(server: &'a str, id: &'a str) -> Self {
        Self { server, id }
    }

    /// The server; empty where there is only one.
    pub fn server(self) -> &'a str {
        self.server
    }

    /// The id, as the client has it.
    pub fn id(self) -> &'a str {
        self.id
    }
}

impl<'a, T: AsRef<str> + ?Sized> From<&'a T> for SessionId<'a> {
    fn from(id: &'a T) -> Self {
        Self { server: "", id: id.as_ref() }
    }
}

/// What stores and logs know a session by. Its id is a credential: who has it may come back to the session. From this hash, the
/// beginning of SHA-256 in hexadecimal digits of the server, a line feed and the id, nobody gets back to it. Without a server
/// it is that of the id alone.
pub fn session_name<'a>(session: impl Into<SessionId<'a>>) -> Arc<str> {
    let SessionId { server, id } = session.into();
    let mut hash = Sha256::new();
    if !server.is_empty() {
        hash.update(server);
        // No id has one in it: it is the value of a header.
        hash.update("\n");
    }
    hash.update(id);
    hex(&hash.finalize()[..16]).into()
}
