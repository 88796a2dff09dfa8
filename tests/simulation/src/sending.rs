//! What servers send and clients answer, and what is said of it.

use tailrope_checker::{Fact, N, Probe, Timed, Why};
use tailrope_core::engine::{EngineError, OutgoingMessage, Sent};
use tailrope_core::exchange::Admission;
use tailrope_core::protocol::{Body, Envelope, Head, Kind, Operation, RequestId, jsonrpc};
use tailrope_core::session::OutgoingKind;
use tailrope_core::store::StoreError;

use crate::reader::Asked;
use crate::relaying::Relay;
use crate::world::{Stream, World};

impl World {
    pub(crate) fn call(&mut self, session: usize, node: usize) {
        let is_elsewhere = self.sessions[session].node() != Some(node);
        if (!is_elsewhere && self.home(session).is_none()) || self.streams.len() >= 12 {
            return;
        }
        let request = self.sessions[session].requests + 1;
        self.sessions[session].requests = request;
        let name = self.sessions[session].name.clone();
        self.stream(session, &name, format!("r{request}"), Some(request));
        let home = self.sessions[session].node();
        if self.setup.is_old && [Some(node), home].into_iter().flatten().any(|node| self.nodes[node].is_draining) {
            // Whoever cannot come back is told to ask again.
            self.permit_ends(session, Why::Cancelled);
        }
        let stream = self.streams.len() - 1;
        let request = RequestId::integer(request);
        if is_elsewhere {
            self.relay(stream, node, Relay::Call(request));
        } else {
            self.open(stream, node, Asked::Call(request), Probe::Own);
        }
    }

    /// Whether a handler may run for a stream.
    fn runs(&self, stream: usize) -> bool {
        self.home(self.streams[stream].session).is_some() && self.is_run_by_owner(stream)
    }

    pub(crate) fn mark(&self, stream: usize, n: N) -> String {
        let Stream { session, name, .. } = &self.streams[stream];
        format!("[[{}/{name}/{n}]]", self.sessions[*session].name)
    }

    pub(crate) fn notify(&mut self, stream: usize) {
        if !self.runs(stream) {
            return;
        }
        let n = N::Event(self.streams[stream].emitted + 1);
        self.streams[stream].emitted += 1;
        let related = self.streams[stream].request.map(RequestId::integer);
        let payload = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"t":"{}"}}}}"#,
            self.mark(stream, n)
        );
        self.send(stream, n, OutgoingMessage::notification(related.as_ref(), payload.as_bytes()));
    }

    pub(crate) fn ask(&mut self, stream: usize) {
        let session = self.streams[stream].session;
        if !self.runs(stream) {
            return;
        }
        let n = N::Event(self.streams[stream].emitted + 1);
        self.streams[stream].emitted += 1;
        self.sessions[session].questions += 1;
        let id = RequestId::text_id(&format!("q{}", self.sessions[session].questions));
        self.streams[stream].asked.push(id.clone());
        let related = self.streams[stream].request.map(RequestId::integer);
        let payload = format!(
            r#"{{"jsonrpc":"2.0","id":{},"method":"roots/list","params":{{"t":"{}"}}}}"#,
            id.to_json(),
            self.mark(stream, n)
        );
        self.send(stream, n, OutgoingMessage::request(&id, related.as_ref(), payload.as_bytes()));
    }

    /// The client answers the question that was asked last.
    pub(crate) fn settle(&mut self, stream: usize, node: usize) {
        let session = self.streams[stream].session;
        let is_elsewhere = self.sessions[session].node() != Some(node);
        if !is_elsewhere && self.home(session).is_none() {
            return;
        }
        let Some(id) = self.streams[stream].asked.pop() else { return };
        if is_elsewhere {
            self.count("answers relayed");
            return self.relay_message(session, node, &format!(r#""id":{},"result""#, id.to_json()));
        }
        let Some(handle) = self.home(session) else { return };
        let fields = jsonrpc::Fields::default();
        let (range, params) = (0..0, 0..0);
        let answer = Envelope { kind: Kind::Response, method: None, id: Some(id), range, params, fields };
        handle.received(&Admission::new(Operation::Post(Body::Single(answer)), &Head::default(), b""));
    }

    pub(crate) fn respond(&mut self, stream: usize) {
        let Stream { session, request: Some(request), .. } = self.streams[stream] else { return };
        let Some(generation) = self.sessions[session].generation().filter(|_| self.runs(stream)) else { return };
        if self.streams[stream].run_by.insert(generation, true) == Some(true) {
            return;
        }
        let payload = format!(r#"{{"jsonrpc":"2.0","id":{request},"result":{{"t":"{}"}}}}"#, self.mark(stream, N::End));
        self.send(stream, N::End, OutgoingMessage::response(&RequestId::integer(request), payload.as_bytes()));
    }

    pub(crate) fn cancel(&mut self, stream: usize) {
        let Stream { session, request: Some(request), ref name, .. } = self.streams[stream] else { return };
        let Some(handle) = self.home(session).filter(|_| self.runs(stream)) else { return };
        self.sea().gone(&self.sessions[session].name, Some(name.clone()), Why::Cancelled);
        self.count("requests cancelled");
        handle.cancelled(&RequestId::integer(request));
    }

    pub(crate) fn send(&mut self, stream: usize, n: N, message: OutgoingMessage<'_>) {
        let Some(session) = self.streams.get(stream).map(|stream| stream.session) else { return };
        let Some(handle) = self.home(session) else { return };
        let (name, of) = self.names(stream);
        // Another owner's handler gives the answer that the store has lost once more.
        if n != N::End || !std::mem::replace(&mut self.streams[stream].was_answered, true) {
            self.tell(Fact::Emit { session: name, stream: of, n });
        }
        let is_question = message.kind == OutgoingKind::Request;
        match handle.send(message) {
            Ok(Sent::Pending(token)) => {
                if let Some(host) = &mut self.sessions[session].home {
                    host.pending.insert(token, (stream, n));
                }
            }
            // What comes of it shows in the store, and at the next one.
            Ok(Sent::Ahead) => {
                self.count("messages that ran ahead");
                if n != N::End {
                    self.streams[stream].ahead += 1;
                    let (session, stream) = self.names(stream);
                    self.tell(Fact::Taken { session, stream, n });
                }
            }
            Err(EngineError::Earlier(_)) if !is_question => self.word(stream, n, Ok(true)),
            Ok(Sent::Stored) => self.word(stream, n, Ok(true)),
            Ok(Sent::Dropped) => self.word(stream, n, Ok(false)),
            Err(error) => self.word(stream, n, Err(&error)),
        }
    }

    /// The names of a session and its stream.
    fn names(&self, stream: usize) -> (String, String) {
        let Stream { session, name, .. } = &self.streams[stream];
        (self.sessions[*session].name.clone(), name.clone())
    }

    /// What the server said of an event: it is stored, it was not needed, or it is not stored.
    pub(crate) fn word(&self, stream: usize, n: N, word: Result<bool, &EngineError>) {
        let (session, stream) = self.names(stream);
        self.tell(match word {
            Ok(true) => Fact::Ack { session, stream, n },
            // Nobody is told what became of a response (I9).
            Ok(false) if n == N::End => Fact::Unsure { session, stream, n },
            Err(EngineError::Store(StoreError::TimedOut { .. }) | EngineError::SessionEnded) => {
                Fact::Unsure { session, stream, n }
            }
            Ok(false) | Err(_) if self.had(&session, &stream, n) => Fact::Unsure { session, stream, n },
            Ok(false) | Err(_) => Fact::Refused { session, stream, n },
        });
    }

    /// Whether the store held an event, and may have lost it with a set-back before its sender heard of it. Others may have sent it.
    fn had(&self, session: &str, stream: &str, n: N) -> bool {
        let sea = self.sea();
        let is_it = |fact: &Timed| matches!(&fact.fact, Fact::Kept { session: of, stream: at, n: kept } if (&**of, &**at, *kept) == (session, stream, n));
        sea.was_set_back(session) && sea.facts.iter().any(is_it)
    }

    pub(crate) fn take_outcomes(&mut self, session: usize) {
        let Some(handle) = self.home(session) else { return };
        for (token, outcome) in handle.take_outcomes() {
            let host = self.sessions[session].home.as_mut();
            let Some((stream, n)) = host.and_then(|host| host.pending.remove(&token)) else { continue };
            match outcome {
                Ok(()) if n == N::End => {}
                Ok(()) => self.word(stream, n, Ok(true)),
                Err(EngineError::Earlier(_)) => {
                    self.count("failures told to a later sender");
                    self.word(stream, n, Ok(true));
                }
                Err(error) => self.word(stream, n, Err(&error)),
            }
        }
    }
}
