//! A request that may enter its session, and what it asks of it.

use std::borrow::Cow;

use bytes::Bytes;

use crate::protocol::{Body, Envelope, Head, Incarnation, Incoming, Kind, Operation, RequestId, Revision};

/// What an admitted request asks of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The request has to be answered: [open](crate::engine::SessionHandle::open) its stream, and give its messages to
    /// the handlers.
    Call,
    /// Notifications and answers only: give them to the handlers.
    Message,
    /// Open the standalone stream.
    Listen,
    /// Continue a stream.
    Resume,
    /// End the session.
    Delete,
}

/// A request that may enter its session.
#[derive(Clone, Debug)]
pub struct Admission {
    operation: Operation,
    /// The revision that the version header names, for sessions whose own revision is not known.
    revision: Option<Revision>,
    /// Messages of the body that hold for the rest of the session.
    lasting: Vec<Bytes>,
    /// What the handlers are given instead of the body.
    rewritten: Option<Bytes>,
}

impl Admission {
    /// `operation` is what admission found `head` and `body` to be.
    pub fn new(operation: Operation, head: &Head<'_>, body: &[u8]) -> Self {
        let revision = head.protocol_version.and_then(Revision::parse);
        let mut admission = Self { operation, revision, lasting: Vec::new(), rewritten: None };
        let lasting = admission.envelopes().iter().filter(|envelope| envelope.lasting().is_some());
        admission.lasting = lasting.map(|envelope| Bytes::copy_from_slice(&body[envelope.range.clone()])).collect();
        admission
    }

    /// Translates the messages of the body to the ids that this server object knows. Returns how many messages are
    /// about requests of another server object: the handlers do not get these.
    pub fn rewrite(&mut self, incarnation: Incarnation, body: &[u8]) -> usize {
        let Operation::Post(messages) = &self.operation else { return 0 };
        if !incarnation.renames() {
            return 0;
        }
        let (mut given, mut is_changed) = (Vec::new(), false);
        for envelope in messages.envelopes() {
            let text = &body[envelope.range.clone()];
            match incarnation.incoming(text) {
                Incoming::Same => given.push(Bytes::copy_from_slice(text)),
                Incoming::Renamed(text) => {
                    is_changed = true;
                    given.push(text);
                }
                Incoming::Foreign => is_changed = true,
            }
        }
        let foreign = messages.envelopes().len() - given.len();
        let rewritten = match messages {
            Body::Batch(_) if !given.is_empty() => [b"[", &*given.join(&b','), b"]"].concat().into(),
            _ => given.pop().unwrap_or_default(),
        };
        self.rewritten = is_changed.then_some(rewritten);
        foreign
    }

    /// What the handlers are given instead of the body, if that differs: in a session that was adopted, the server
    /// object and the client know the server's requests by different ids. Empty if there is nothing for the handlers.
    pub fn rewritten(&self) -> Option<&Bytes> {
        self.rewritten.as_ref()
    }

    /// Whether nothing of the request is for the handlers: all its messages are about requests that they do not know.
    pub fn is_for_nobody(&self) -> bool {
        self.rewritten.as_ref().is_some_and(Bytes::is_empty)
    }

    /// The messages that hold for the rest of the session, as the client wrote them.
    pub fn lasting(&self) -> impl Iterator<Item = (&Envelope, &Bytes)> {
        self.envelopes().iter().filter(|envelope| envelope.lasting().is_some()).zip(&self.lasting)
    }

    /// What the request asks of its session.
    pub fn action(&self) -> Action {
        match &self.operation {
            Operation::Post(body) if body.has_request() => Action::Call,
            Operation::Post(_) => Action::Message,
            Operation::Listen => Action::Listen,
            Operation::Resume(_) => Action::Resume,
            Operation::Delete => Action::Delete,
        }
    }

    /// The status of the answer to a request that opens no connection; none for one that does.
    pub fn status(&self) -> Option<u16> {
        match self.action() {
            Action::Message => Some(202),
            Action::Delete => Some(200),
            Action::Call | Action::Listen | Action::Resume => None,
        }
    }

    /// The revision that the version header names.
    pub fn revision(&self) -> Option<Revision> {
        self.revision
    }

    /// The event id of a resume.
    pub fn last_event_id(&self) -> Option<&str> {
        match &self.operation {
            Operation::Resume(id) => Some(id),
            _ => None,
        }
    }

    /// The messages of a POST, in order.
    pub fn envelopes(&self) -> &[Envelope] {
        match &self.operation {
            Operation::Post(body) => body.envelopes(),
            _ => &[],
        }
    }

    /// The revision that an `initialize` asks for; none for any other request.
    pub fn initialize(&self) -> Option<Revision> {
        let Operation::Post(Body::Single(envelope)) = &self.operation else { return None };
        let asked = envelope.fields.protocol_version.as_deref().and_then(Revision::parse);
        envelope.is_initialize().then(|| asked.unwrap_or(Revision::ASSUMED))
    }

    /// The ids of the requests of a POST.
    pub fn requests(&self) -> Cow<'_, [RequestId]> {
        match self.envelopes() {
            [only] if only.kind == Kind::Request => only.id.as_slice().into(),
            envelopes => {
                let requests = envelopes.iter().filter(|envelope| envelope.kind == Kind::Request);
                requests.filter_map(|envelope| envelope.id.clone()).collect()
            }
        }
    }

    /// Whether it answers requests of the server.
    pub fn has_answers(&self) -> bool {
        self.envelopes().iter().any(|envelope| matches!(envelope.kind, Kind::Response | Kind::ErrorResponse))
    }

    /// The requests that its `notifications/cancelled` name.
    pub fn cancelled(&self) -> impl Iterator<Item = &RequestId> {
        self.envelopes().iter().filter_map(|envelope| envelope.fields.cancelled_request.as_ref())
    }
}
