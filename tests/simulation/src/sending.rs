//! What servers send and clients answer, and what is said of it.

use tailrope_checker::{Fact, N, Probe, Why};
use tailrope_core::engine::{EngineError, OutgoingMessage, Sent};
use tailrope_core::protocol::{Envelope, Kind, RequestId, jsonrpc};
use tailrope_core::session::OutgoingKind;
use tailrope_core::store::StoreError;

use crate::reader::Asked;
use crate::world::{Stream, World};

impl World {
    pub(crate) fn call(&mut self, session: usize) {
        let Some(handle) = self.home(session) else { return };
        if self.streams.len() >= 12 {
            return;
        }
        let request = self.sessions[session].requests + 1;
        self.sessions[session].requests = request;
        let name = self.sessions[session].name.clone();
        self.stream(session, &name, format!("r{request}"), Some(request));
        let node = self.sessions[session].home.as_ref().map_or(0, |(node, _)| *node);
        if self.setup.is_old && self.nodes[node].is_draining {
            // Whoever cannot come back is told to ask again.
            self.permit_ends(session, Why::Cancelled);
        }
        drop(handle);
        self.open(self.streams.len() - 1, node, Asked::Call(RequestId::integer(request)), Probe::Own);
    }

    pub(crate) fn mark(&self, stream: usize, n: N) -> String {
        let Stream { session, name, .. } = &self.streams[stream];
        format!("[[{}/{name}/{n}]]", self.sessions[*session].name)
    }

    pub(crate) fn notify(&mut self, stream: usize) {
        let session = self.streams[stream].session;
        if self.home(session).is_none() {
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
        if self.home(session).is_none() {
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

    pub(crate) fn settle(&mut self, stream: usize) {
        let Some(handle) = self.home(self.streams[stream].session) else { return };
        let Some(id) = self.streams[stream].asked.pop() else { return };
        let fields = jsonrpc::Fields::default();
        handle.received(&[Envelope { kind: Kind::Response, method: None, id: Some(id), range: 0..0, fields }]);
    }

    pub(crate) fn respond(&mut self, stream: usize) {
        let Some(request) = self.streams[stream].request.filter(|_| !self.streams[stream].is_answered) else { return };
        if self.home(self.streams[stream].session).is_none() {
            return;
        }
        self.streams[stream].is_answered = true;
        let payload = format!(r#"{{"jsonrpc":"2.0","id":{request},"result":{{"t":"{}"}}}}"#, self.mark(stream, N::End));
        self.send(stream, N::End, OutgoingMessage::response(&RequestId::integer(request), payload.as_bytes()));
    }

    pub(crate) fn cancel(&mut self, stream: usize) {
        let Stream { session, request: Some(request), ref name, .. } = self.streams[stream] else { return };
        let Some(handle) = self.home(session) else { return };
        self.sea().gone(&self.sessions[session].name, Some(name.clone()), Why::Cancelled);
        self.count("requests cancelled");
        handle.cancelled(&RequestId::integer(request));
    }

    pub(crate) fn send(&mut self, stream: usize, n: N, message: OutgoingMessage<'_>) {
        let Some(session) = self.streams.get(stream).map(|stream| stream.session) else { return };
        let Some(handle) = self.home(session) else { return };
        let (name, of) = self.names(stream);
        self.tell(Fact::Emit { session: name, stream: of, n });
        let is_question = message.kind == OutgoingKind::Request;
        match handle.send(message) {
            Ok(Sent::Pending(token)) => {
                self.sessions[session].pending.insert(token, (stream, n));
            }
            // What comes of it shows in the store, and at the next one.
            Ok(Sent::Ahead) => {
                self.count("messages that ran ahead");
                if n != N::End {
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
            Ok(false) | Err(_) => Fact::Refused { session, stream, n },
        });
    }

    pub(crate) fn take_outcomes(&mut self, session: usize) {
        let Some((node, handle)) = &self.sessions[session].home else { return };
        if self.nodes[*node].is_paused {
            return;
        }
        for (token, outcome) in handle.take_outcomes() {
            let Some((stream, n)) = self.sessions[session].pending.remove(&token) else { continue };
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
