//! Requests that come to another process than their session's: they are relayed, each begins once or not at all, and its client is
//! told which.

use std::sync::Arc;

use tailrope_checker::{Fact, Probe, Why};
use tailrope_core::engine::{Connection, SessionHandle, Wake};
use tailrope_core::exchange::{Action, Admission, Relayed, RelayedMethod, Request, Terms};
use tailrope_core::protocol::{Dialect, Head, NotRelayed, Refusal, RequestId};
use tailrope_core::store::MAX_TAKEN;

use crate::reader::Asked;
use crate::world::World;

/// What is relayed.
#[derive(Clone, Debug)]
pub(crate) enum Relay {
    Call(RequestId),
    /// Which of the messages, and its text.
    Message(usize, Arc<str>),
    Delete,
}

/// A message without an answer.
pub(crate) struct Message {
    session: usize,
    /// Of the owner that the session had when it was sent.
    generation: Option<u64>,
    /// How often handlers were given it.
    dispatched: u64,
    /// Which of the session's owners has given it to them last.
    dispatched_by: Option<u64>,
    /// Whether its client was told that it came, or that it does not.
    is_accepted: Option<bool>,
}

/// Whether an answer says that nobody can tell whether a message will begin, or that the process has no time to ask.
pub(crate) fn is_unsure(text: &str) -> bool {
    text.contains(&Dialect::MCP_PYTHON_2.wording.answer_unknown().message)
}

const ACCEPT: &str = "application/json, text/event-stream";

/// A call, as its client sends it.
pub(crate) fn call(id: &RequestId) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{},"method":"tools/call","params":{{"name":"t"}}}}"#, id.to_json())
}

impl Relay {
    fn relayed(&self) -> Relayed {
        let (method, body) = match self {
            Self::Call(id) => (RelayedMethod::Post, call(id)),
            Self::Message(_, text) => (RelayedMethod::Post, text.as_ref().to_owned()),
            Self::Delete => (RelayedMethod::Delete, String::new()),
        };
        Relayed::new(method, body.into(), [("Accept", ACCEPT)], &[], None)
    }
}

impl World {
    pub(crate) fn relay(&mut self, stream: usize, node: usize, relay: Relay) {
        self.open(stream, node, Asked::Relay(relay), Probe::Own);
    }

    /// Relays a message with these members, the last of which gets a value with its number.
    pub(crate) fn relay_message(&mut self, session: usize, node: usize, members: &str) {
        let number = self.messages.len();
        let generation = self.sessions[session].generation();
        self.messages.push(Message { session, generation, dispatched: 0, dispatched_by: None, is_accepted: None });
        let text = format!(r#"{{"jsonrpc":"2.0",{members}:{{"message":{number}}}}}"#);
        self.relay(session, node, Relay::Message(number, text.into()));
    }

    fn is_elsewhere(&self, session: usize, node: usize) -> bool {
        self.sessions[session].node() != Some(node)
    }

    pub(crate) fn tell_server(&mut self, session: usize, node: usize) {
        if self.is_elsewhere(session, node) {
            self.count("notifications relayed");
            self.relay_message(session, node, r#""method":"notifications/progress","params""#);
        }
    }

    /// So many notifications at once that a busy host leaves some in the inbox, which is full by then.
    pub(crate) fn flood(&mut self, session: usize, node: usize) {
        if self.setup.is_busy && self.is_elsewhere(session, node) {
            self.count("floods");
            (0..MAX_TAKEN + 4).for_each(|_| self.tell_server(session, node));
        }
    }

    /// The client cancels a request.
    pub(crate) fn revoke(&mut self, stream: usize, node: usize) {
        let (session, Some(request)) = (self.streams[stream].session, self.streams[stream].request) else { return };
        if !self.is_elsewhere(session, node) {
            return self.cancel(stream);
        }
        self.count("cancellations relayed");
        let members = format!(r#""method":"notifications/cancelled","params":{{"requestId":{request}}},"more""#);
        self.relay_message(session, node, &members);
    }

    pub(crate) fn delete(&mut self, session: usize, node: usize) {
        if self.is_elsewhere(session, node) {
            self.relay(session, node, Relay::Delete);
        } else {
            self.end_session(session);
        }
    }

    /// The process gives a request to the session's owner.
    pub(crate) fn relayed(
        &mut self,
        at: usize,
        handle: &SessionHandle,
        relay: &Relay,
        wake: Arc<dyn Wake>,
    ) -> Result<Connection, Refusal> {
        let relayed = relay.relayed();
        let head = Head {
            method: relayed.method().as_str(),
            accept: Some(ACCEPT),
            content_type: Some("application/json"),
            protocol_version: Some(if self.setup.is_old { "2025-06-18" } else { "2025-11-25" }),
            session_id: Some(handle.id()),
            last_event_id: None,
        };
        let request = Request { head, body: relayed.body(), ..Request::default() };
        let admission = handle.admit(&request, &Terms::default())?;
        self.count("requests relayed");
        handle.relay(&admission, relayed.clone(), wake, at as u64)
    }

    /// A client is told whether what it sent begins. Without `is_sure` nobody could tell.
    pub(crate) fn note_relayed(&mut self, at: usize, is_sure: bool) {
        let (reader, is_sure) = (&self.readers[at], is_sure && !self.is_unsettled(self.readers[at].session));
        let (Some(relay), Some(status)) = (reader.relay.clone(), reader.status) else { return };
        let (stream, session, is_accepted) = (reader.stream, reader.session, status < 300);
        match relay {
            Relay::Call(_) if !is_accepted => {
                self.count("calls that were not relayed");
                self.streams[stream].is_refused |= is_sure;
                // Where a clock was set, its log can be over before its sender has heard of it.
                let is_over = self.sea().has_expired(&self.sessions[session].name, &self.streams[stream].name);
                if is_sure && self.streams[stream].begun > 0 && !is_over {
                    self.broken(session, Some(stream), "its client is told that it does not begin, and it runs");
                }
            }
            Relay::Call(_) => {}
            Relay::Message(number, _) => {
                let message = &mut self.messages[number];
                message.is_accepted = (is_accepted || is_sure).then_some(is_accepted);
                // Nothing is left of a message that came, and the next owner is not there that knows of it.
                let is_sure = is_sure && self.sessions[session].home.is_some();
                if !is_accepted && is_sure && message.dispatched > 0 {
                    self.broken(session, None, "a client is told that its message did not come, and it came");
                }
            }
            Relay::Delete => {
                if is_accepted && self.sea().has_session(&self.sessions[session].name) {
                    self.broken(session, None, "a client is told that its session has ended, and it is there");
                }
            }
        }
    }

    /// A client whose request finds no room is told to come back.
    pub(crate) fn note_no_room(&self, at: usize, text: &str) {
        let refusal = Dialect::MCP_PYTHON_2.wording.not_relayed(NotRelayed::InboxFull);
        if text.contains(&*refusal.message) {
            self.count("requests that no inbox had room for");
            if self.readers[at].status != Some(503) {
                self.broken(self.readers[at].session, None, "a client is not told to come back");
            }
        }
    }

    /// Whether the store has lost some of a session, or it has ended: then a message may come again, or be refused and have run.
    fn is_unsettled(&self, session: usize) -> bool {
        let session = &self.sessions[session];
        session.has_ended || self.sea().was_set_back(&session.name)
    }

    fn broken(&self, session: usize, stream: Option<usize>, says: &str) {
        let stream = stream.map(|stream| self.streams[stream].name.clone());
        let (session, says, invariant) =
            (self.sessions[session].name.clone(), says.to_owned(), Some("relay".to_owned()));
        self.tell(Fact::Hung { session, stream, says, invariant });
    }

    /// Hosts are woken for what was relayed. Whether there was anything.
    pub(crate) fn serve(&mut self) -> bool {
        let mut did = false;
        for session in 0..self.sessions.len() {
            let Some(handle) = self.home(session) else { continue };
            let Some(host) = &mut self.sessions[session].home else { continue };
            host.posted.extend(handle.take_posted());
            if host.posted.len() >= MAX_TAKEN {
                self.count("hosts that take no more");
            }
            if !self.setup.is_busy || self.is_healed {
                did |= self.dispatch(session);
            }
        }
        did
    }

    /// The host takes what was relayed to a session. Whether there was anything.
    pub(crate) fn dispatch(&mut self, session: usize) -> bool {
        let Some(handle) = self.home(session) else { return false };
        let posted =
            self.sessions[session].home.as_mut().map(|host| std::mem::take(&mut host.posted)).unwrap_or_default();
        let did = !posted.is_empty();
        for posted in posted {
            let Some(admission) = posted.admit(&Terms::default()) else {
                self.count("relayed requests that were not admitted");
                self.permit_ends(session, Why::Cancelled);
                continue;
            };
            match admission.action() {
                Action::Call => {
                    let Some(stream) = self.stream_of(session, &admission) else { continue };
                    if posted.begin(&admission) {
                        self.begun(session, stream);
                    } else {
                        self.count("relayed calls that were refused");
                        let name = self.streams[stream].name.clone();
                        self.sea().gone(&self.sessions[session].name, Some(name), Why::Cancelled);
                    }
                }
                Action::Delete => {
                    self.count("sessions ended from elsewhere");
                    self.end_session(session);
                }
                Action::Message | Action::Listen | Action::Resume => {
                    handle.received(&admission);
                    self.came(session, posted.relayed().body());
                    for request in admission.cancelled() {
                        let name = format!("r{}", request.as_text());
                        let streams = &self.streams;
                        let stream = streams.iter().position(|known| known.session == session && known.name == name);
                        stream.into_iter().for_each(|stream| self.cancel(stream));
                    }
                    handle.dispatched(&admission);
                    posted.done();
                }
            }
        }
        did
    }

    fn stream_of(&self, session: usize, admission: &Admission) -> Option<usize> {
        let name = format!("r{}", admission.requests().first()?.as_text());
        self.streams.iter().position(|stream| stream.session == session && stream.name == name)
    }

    /// A handler is given a relayed call.
    fn begun(&mut self, session: usize, stream: usize) {
        self.count("relayed calls that began");
        self.streams[stream].begun += 1;
        // A store that was set back has lost the answer of another owner's handler.
        let generation = self.sessions[session].generation();
        self.streams[stream].run_by.extend(generation.map(|generation| (generation, false)));
        let known = &self.streams[stream];
        // A store that was set back may have lost that the message was taken.
        let is_withdrawn =
            !self.is_unsettled(session) && self.sea().is_withdrawn(&self.sessions[session].name, &known.name);
        // Where a store has lost that a call was begun, together with its owner, or that it was withdrawn, nobody knows of it. So
        // it is where a clock was set and the log is over before its sender has heard that the store has it.
        let is_lost = self.is_unsettled(session) || self.sea().has_expired(&self.sessions[session].name, &known.name);
        for (is_broken, says) in [
            (known.begun > 1 && !(self.sessions[session].adoptions > 0 && is_lost), "it begins twice"),
            (known.is_refused && !is_lost, "its client was told that it does not begin, and it begins"),
            (is_withdrawn, "it is withdrawn, and begins"),
        ] {
            if is_broken {
                self.broken(session, Some(stream), says);
            }
        }
        if self.is_healed {
            self.respond(stream);
        }
    }

    /// Handlers are given a message.
    fn came(&mut self, session: usize, body: &[u8]) {
        let text = String::from_utf8_lossy(body);
        let number = text.rsplit_once(r#""message":"#).and_then(|(_, rest)| rest.trim_end_matches('}').parse().ok());
        let generation = self.sessions[session].generation();
        // That it was withdrawn is lost.
        let is_lost = self.is_unsettled(session);
        let Some(message) = number.and_then(|number: usize| self.messages.get_mut(number)) else {
            return self.broken(session, None, "a message came that nobody sent");
        };
        message.dispatched += 1;
        // Nothing is left of a message that came: the next owner can be told a copy of it that was late.
        let is_twice = generation.is_some_and(|host| message.dispatched_by.replace(host) == Some(host));
        let is_refused = message.is_accepted == Some(false) && !is_lost;
        self.count("relayed messages that came");
        if is_twice {
            self.broken(session, None, "a message comes twice");
        }
        if is_refused {
            self.broken(session, None, "a client was told that its message did not come, and it comes");
        }
    }

    /// Everything worked for long enough: every client has its answer, and what was accepted came.
    pub(crate) fn check_relayed(&self) {
        for reader in self.readers.iter().filter(|reader| reader.is_posting()) {
            self.broken(reader.session, Some(reader.stream), "what was relayed has no answer");
        }
        for message in &self.messages {
            let session = &self.sessions[message.session];
            let is_owned = session.home.as_ref().is_some_and(|host| !host.handle.has_ended());
            // What an owner had taken is lost with it.
            let is_of_owner = session.generation() == message.generation;
            let is_lost = message.is_accepted == Some(true) && message.dispatched == 0 && is_of_owner;
            if is_lost && is_owned && !self.is_unsettled(message.session) {
                self.broken(message.session, None, "a message was accepted and never came");
            }
        }
    }
}
