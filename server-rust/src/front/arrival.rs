//! A request that came to the front, as its host gets it.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use tailrope_core::engine::SessionHandle;
use tailrope_core::exchange::Admission;
use tokio::sync::oneshot;

use crate::host::Host;
use crate::pages::Pages;

/// What a front has for its host.
#[derive(Debug)]
pub enum Arrival {
    /// A request that has to be answered.
    Call(Call),
    /// Notifications and answers of a client.
    Message(Message),
    /// A session that [`Engine::tick`](tailrope_core::engine::Engine::tick) has returned, to be dealt with as is said there.
    Idle(SessionHandle),
}

/// What came: an admitted request of a session.
pub struct Asked {
    pub(super) session: SessionHandle,
    pub(super) admission: Admission,
    pub(super) json_response: bool,
    pub(super) parts: Parts,
    pub(super) peer: SocketAddr,
    pub(super) body: Bytes,
}

impl Asked {
    /// The session that it is for.
    pub fn session(&self) -> &SessionHandle {
        &self.session
    }

    /// What it asks of the session.
    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Its head.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Where its connection comes from.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Its body, as the handlers are to take it.
    pub fn body(&self) -> &Bytes {
        self.admission.rewritten().unwrap_or(&self.body)
    }
}

/// Headers and payloads must not get into a log.
impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked").field("session", &self.session.name()).finish_non_exhaustive()
    }
}

/// How the host has decided. If it does not, or declines, the application gets the request.
pub(super) enum Verdict {
    Opened(Pages),
    Accepted,
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) asked: Arc<Asked>,
    pub(super) host: Arc<Host>,
    pub(super) verdict: oneshot::Sender<Verdict>,
}

impl fmt::Debug for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verdict")
    }
}

/// A request that has to be answered. To drop it is to [decline](Self::decline) it.
#[derive(Debug)]
pub struct Call(pub(super) Waiting);

/// Notifications and answers of a client. To drop it is to [decline](Self::decline) it.
#[derive(Debug)]
pub struct Message(pub(super) Waiting);

impl Deref for Call {
    type Target = Asked;

    fn deref(&self) -> &Asked {
        &self.0.asked
    }
}

impl Deref for Message {
    type Target = Asked;

    fn deref(&self) -> &Asked {
        &self.0.asked
    }
}

impl Call {
    /// Opens the stream and the connection of the call. Give the message to the handlers afterwards, if this returns true.
    /// Otherwise the session has ended or refuses the call, and the application answers it. A client that has left
    /// meanwhile changes nothing: it comes back for the answer, or does not.
    pub fn open(self) -> bool {
        let Waiting { asked, host, verdict } = self.0;
        let Asked { session, admission, json_response, .. } = &*asked;
        let opened = Pages::open(&host, |signal| session.open(admission, *json_response, signal, 0));
        let Ok(pages) = opened else { return false };
        // If the client has left, the connection is over, and the call goes on.
        let _ = verdict.send(Verdict::Opened(pages));
        true
    }

    /// The application gets the request.
    pub fn decline(self) {}
}

impl Message {
    /// The client is told that the message is taken.
    pub fn accept(self) {
        // The client may have left.
        let _ = self.0.verdict.send(Verdict::Accepted);
    }

    /// The application gets the request.
    pub fn decline(self) {}
}
