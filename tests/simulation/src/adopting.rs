//! Hosts that adopt sessions whose owner is gone.

use std::sync::Arc;

use tailrope_checker::Why;
use tailrope_core::engine::{Adopted, NoWake, OutgoingMessage, Sent, SessionHandle, Wake};
use tailrope_core::exchange::{Fault, Request, Terms};
use tailrope_core::protocol::{Dialect, Head, RequestId, Revision};

use crate::world::{SESSION, World};

/// The key of wake-ups for sessions that can be adopted, with the number of the reader that found the session.
pub(crate) const ADOPTS: u64 = 1 << 40;
/// One of so many adoptions is refused by its host.
const REFUSED: u64 = 7;

impl World {
    fn revision(&self) -> Revision {
        if self.setup.is_old { Revision::V2025_06_18 } else { Revision::V2025_11_25 }
    }

    /// The client opens its session, so that there is something to build another server object from.
    pub(crate) fn initialize(&self, handle: &SessionHandle) {
        let revision = self.revision().as_str();
        let params = format!(r#"{{"protocolVersion":"{revision}"}}"#);
        let body = format!(r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{params}}}"#);
        let head = Head {
            method: "POST",
            accept: Some("application/json, text/event-stream"),
            content_type: Some("application/json"),
            ..Head::default()
        };
        let request = Request { head, body: body.as_bytes(), ..Request::default() };
        let admission = handle.admit(&request, &Terms::default()).expect("it opens the session");
        let answer = handle.open(&admission, true, Arc::new(NoWake), 0);
        self.welcome(handle);
        drop(answer);
    }

    /// A server object answers `initialize`.
    fn welcome(&self, handle: &SessionHandle) -> Option<Sent> {
        let result = format!(r#"{{"protocolVersion":"{}","capabilities":{{}}}}"#, self.revision().as_str());
        let answer = format!(r#"{{"jsonrpc":"2.0","id":0,"result":{result}}}"#);
        handle.send(OutgoingMessage::response(&RequestId::integer(0), answer.as_bytes())).ok()
    }

    /// The host of a reader's process adopts the session that it found.
    pub(crate) fn offer(&mut self, at: usize, view: &SessionHandle) {
        if self.setup.adopts && view.is_elsewhere() {
            view.offer_adoption(Arc::clone(&self.bells) as Arc<dyn Wake>, ADOPTS + at as u64);
            self.readers[at].view = Some(view.clone());
        }
    }

    /// A host was woken for a session that it can adopt.
    pub(crate) fn adopt(&mut self, at: usize) {
        let Some(view) = self.readers[at].view.clone() else { return };
        let wake = Arc::clone(&self.bells) as Arc<dyn Wake>;
        if let Some(adopted) = view.take_adopted(wake, SESSION) {
            let (session, node) = (self.readers[at].session, self.readers[at].node);
            self.adopted(session, node, &adopted);
        }
    }

    fn adopted(&mut self, session: usize, node: usize, adopted: &Adopted) {
        self.adoptions += 1;
        let name = self.sessions[session].name.clone();
        if !self.sea().is_owned_by(&name, self.nodes[node].store.owner) {
            // Its process stood still, and another one has the session by now: it finds that out.
            self.count("adoptions that came too late");
            self.welcome(adopted.session());
            adopted.session().accept_posted();
            let host = self.sessions[session].next_host(node, adopted.session());
            return self.sessions[session].earlier.push(host);
        }
        // What the owner before ran ends with it, also where that has yet to hear of it.
        let ran = |at: &usize| {
            let stream = &self.streams[*at];
            stream.session == session && stream.request.is_some() && self.is_run_by_owner(*at)
        };
        let ran: Vec<usize> = (0..self.streams.len()).filter(ran).collect();
        for stream in ran {
            self.sea().gone(&name, Some(self.streams[stream].name.clone()), Why::OwnerLost);
        }
        self.note_unborn(session);
        let host = self.sessions[session].next_host(node, adopted.session());
        if (self.setup.seed + self.adoptions).is_multiple_of(REFUSED) {
            self.sessions[session].goes_to(None);
            self.count("adoptions that a host refused");
            return adopted.refuse(&Fault::Internal.refusal(&Dialect::MCP_PYTHON_2));
        }
        let handle = adopted.session();
        assert_eq!((adopted.replay().len(), self.welcome(handle)), (1, Some(Sent::Dropped)));
        self.sessions[session].goes_to(Some(host));
        if self.setup.is_old && self.nodes[node].is_draining {
            // What waited for an owner is told to come again.
            self.permit_ends(session, Why::Cancelled);
        }
        handle.accept_posted();
    }
}
