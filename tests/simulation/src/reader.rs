//! Connections: the process that serves them, what is under way, and what came.

use std::collections::BTreeMap;
use std::sync::Arc;

use tailrope_checker::{By, Fact, Open, Probe};
use tailrope_core::engine::{Clock, Connection, LookUp, SessionHandle, Wake};
use tailrope_core::exchange::Admission;
use tailrope_core::protocol::{Dialect, Head, Operation, Refusal, RequestId, jsonrpc};

use crate::relaying::{Relay, call, is_unsure};
use crate::world::World;

/// What a connection is opened for.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Call(RequestId),
    Listen,
    Resume(Arc<str>),
    Probe(Arc<str>, u64),
    /// At another process than the session's.
    Relay(Relay),
}

impl Asked {
    /// Whether the asker knows which stream it gets.
    fn is_of_stream(&self) -> bool {
        !matches!(self, Self::Relay(Relay::Message(..) | Relay::Delete))
    }

    fn cursor(&self) -> Option<&str> {
        match self {
            Self::Resume(id) | Self::Probe(id, _) => Some(id),
            Self::Call(_) | Self::Listen | Self::Relay(_) => None,
        }
    }
}

/// A POST of this body, as a session takes it.
fn admitted(body: &str) -> Admission {
    let read = jsonrpc::read(body.as_bytes()).expect("it is a message");
    Admission::new(Operation::Post(read), &Head::default(), body.as_bytes())
}

enum State {
    Asked(Asked),
    LookedUp(Asked, LookUp),
    Open(Connection),
    Over,
}

pub(crate) struct Reader {
    pub(crate) stream: usize,
    pub(crate) session: usize,
    pub(crate) node: usize,
    pub(crate) is_stalled: bool,
    probe: Probe,
    /// What it relays.
    pub(crate) relay: Option<Relay>,
    /// The session that its process can adopt.
    pub(crate) view: Option<SessionHandle>,
    /// The last reconnection delay that it was told, in milliseconds.
    pub(crate) retry_ms: Option<u32>,
    /// The process has taken the request up.
    is_told: bool,
    /// How many steps the store had done by then.
    pub(crate) came: u64,
    state: State,
    has_head: bool,
    pub(crate) status: Option<u16>,
    /// The facts of bytes that may still be lost, in order.
    under_way: Vec<usize>,
    /// What came after the last whole event.
    rest: String,
    /// The end of the request came.
    pub(crate) has_terminal: bool,
}

impl Reader {
    pub(crate) fn new(stream: usize, session: usize, node: usize, asked: Asked, probe: Probe) -> Self {
        let relay = if let Asked::Relay(relay) = &asked { Some(relay.clone()) } else { None };
        Self {
            stream,
            session,
            node,
            is_stalled: false,
            probe,
            relay,
            view: None,
            retry_ms: None,
            is_told: false,
            came: 0,
            state: State::Asked(asked),
            has_head: false,
            status: None,
            under_way: Vec::new(),
            rest: String::new(),
            has_terminal: false,
        }
    }

    /// It gets a stream.
    pub(crate) fn is_reading(&self) -> bool {
        matches!(self.state, State::Open(_)) && self.status == Some(200) && self.probe == Probe::Own
    }

    /// It waits for the status of what it relays.
    pub(crate) fn is_posting(&self) -> bool {
        self.relay.is_some() && self.status.is_none() && !self.is_over()
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }
}

impl World {
    /// The request reaches the process: that makes it the newest one, however long it has to wait for the store.
    fn tell_open(&mut self, at: usize, asked: &Asked) {
        let steps = self.sea().steps;
        let Reader { stream, node, probe, is_told, came, .. } = &mut self.readers[at];
        if std::mem::replace(is_told, true) {
            return;
        }
        *came = steps;
        let (stream, node, probe) = (&self.streams[*stream], *node, *probe);
        let pair = if let Asked::Probe(_, pair) = asked { Some(pair.to_string()) } else { None };
        self.tell(Fact::Open(Open {
            connection: format!("c{at}"),
            session: self.sessions[self.readers[at].session].name.clone(),
            stream: (probe == Probe::Own && asked.is_of_stream()).then(|| stream.name.clone()),
            cursor: asked.cursor().map(str::to_owned),
            method: if matches!(asked, Asked::Call(_) | Asked::Relay(_)) { "POST" } else { "GET" }.to_owned(),
            probe,
            pair,
            process: Some(format!("n{node}")),
            ..Open::default()
        }));
    }

    fn head(&mut self, at: usize, status: u16, content_type: Option<&str>) {
        self.readers[at].has_head = true;
        self.readers[at].status = Some(status);
        let content_type = content_type.map(|value| ("content-type".to_owned(), value.to_owned()));
        let headers = BTreeMap::from_iter(content_type);
        self.tell(Fact::Head { connection: format!("c{at}"), status, headers });
    }

    fn refused(&mut self, at: usize, refusal: &Refusal) {
        self.head(at, refusal.status, Some("application/json"));
        self.note_relayed(at, true);
        let text = String::from_utf8_lossy(&refusal.body(&Dialect::MCP_PYTHON_2)).into_owned();
        self.tell(Fact::Bytes { connection: format!("c{at}"), text: Some(text), data: None });
        self.ended(at, By::Server, true);
    }

    fn ended(&mut self, at: usize, by: By, clean: bool) {
        self.tell(Fact::Closed { connection: format!("c{at}"), by, clean });
        (self.readers[at].state, self.readers[at].view) = (State::Over, None);
    }

    /// Gives the request to the session.
    fn admit(&mut self, at: usize, handle: &SessionHandle, asked: &Asked) {
        self.tell_open(at, asked);
        self.offer(at, handle);
        let wake = Arc::clone(&self.bells) as Arc<dyn Wake>;
        let key = at as u64;
        let opened = match asked {
            Asked::Call(request) => handle.open(&admitted(&call(request)), false, wake, key),
            Asked::Listen => handle.listen(wake, key),
            Asked::Resume(id) | Asked::Probe(id, _) => handle.resume(id, None, wake, key),
            Asked::Relay(relay) => self.relayed(at, handle, relay, wake),
        };
        match opened {
            Ok(connection) => {
                self.readers[at].state = State::Open(connection);
                if let Asked::Call(_) = asked {
                    self.begun_at(self.readers[at].stream, self.readers[at].node);
                    // Its first append may have told that the session is another process's.
                    self.note_fenced();
                }
            }
            Err(refusal) => {
                handle.let_go();
                self.refused(at, &refusal);
            }
        }
    }

    /// The process that has the connection goes on with it.
    pub(crate) fn poll(&mut self, at: usize) {
        // What its client is told next may be the end that another process's owner brings.
        self.note_fenced();
        if let State::Asked(asked) = &self.readers[at].state {
            let asked = asked.clone();
            self.tell_open(at, &asked);
            let name = self.sessions[self.readers[at].session].name.clone();
            let engine = self.nodes[self.readers[at].node].engine.clone();
            if let Some(handle) = engine.session(&name, None) {
                self.admit(at, &handle, &asked);
            } else {
                self.count("look-ups of sessions elsewhere");
                let wake = Arc::clone(&self.bells) as Arc<dyn Wake>;
                // Not every host says at once where its client goes on.
                let cursor = asked.cursor().filter(|_| at.is_multiple_of(2));
                match engine.look_up_session(&name, None, cursor, &Dialect::MCP_PYTHON_2, wake, at as u64) {
                    Ok(look_up) => self.readers[at].state = State::LookedUp(asked, look_up),
                    Err(_) => {
                        self.tell_open(at, &asked);
                        self.head(at, 503, None);
                        self.ended(at, By::Server, true);
                    }
                }
            }
        }
        if let State::LookedUp(asked, look_up) = &self.readers[at].state {
            let Some(found) = look_up.take() else { return };
            let asked = asked.clone();
            match found {
                Ok(Some(handle)) => {
                    self.count("sessions found");
                    self.admit(at, &handle, &asked);
                }
                Ok(None) => {
                    self.tell_open(at, &asked);
                    self.head(at, 404, Some("application/json"));
                    self.ended(at, By::Server, true);
                }
                Err(_) => {
                    self.tell_open(at, &asked);
                    self.head(at, 503, None);
                    self.ended(at, By::Server, true);
                }
            }
        }
        while let State::Open(connection) = &self.readers[at].state {
            let poll = connection.poll(self.setup.page_bytes as usize);
            // Asking for more means that what was written before is out.
            self.deliver(at);
            if let Some(head) = poll.head.filter(|_| !self.readers[at].has_head) {
                self.head(at, head.status, head.content_type);
                // Then it may yet begin, as nobody could be asked for long.
                let is_sure = !is_unsure(&poll.text());
                self.note_relayed(at, is_sure);
                self.note_no_room(at, &poll.text());
            }
            if !poll.is_empty() {
                let text = poll.text();
                let mut sea = self.sea();
                let place = sea.facts.len();
                sea.tell(Fact::Bytes { connection: format!("c{at}"), text: Some(text), data: None });
                drop(sea);
                self.readers[at].under_way.push(place);
            }
            if poll.end.is_some() {
                self.deliver(at);
                self.ended(at, By::Server, true);
            } else if poll.is_empty() {
                return;
            }
        }
    }

    /// What is under way arrives.
    pub(crate) fn deliver(&mut self, at: usize) {
        let under_way = std::mem::take(&mut self.readers[at].under_way);
        for place in under_way {
            let text = match &self.sea().facts[place].fact {
                Fact::Bytes { text: Some(text), .. } => text.clone(),
                _ => continue,
            };
            self.arrive(at, &text);
        }
    }

    fn arrive(&mut self, at: usize, text: &str) {
        let now = self.clock.now();
        let reader = &mut self.readers[at];
        if reader.probe != Probe::Own || reader.status != Some(200) {
            return;
        }
        reader.rest.push_str(text);
        // An id counts with its whole event.
        let Some(end) = reader.rest.rfind("\n\n") else { return };
        let whole: String = reader.rest.drain(..end + 2).collect();
        let told = whole.lines().rev().find_map(|line| line.strip_prefix("retry: ")?.parse().ok());
        reader.retry_ms = told.or(reader.retry_ms);
        reader.has_terminal |= whole.contains("/end]]") || whole.contains("\"error\"");
        let at = reader.stream;
        let stream = &mut self.streams[at];
        if whole.contains("[[") {
            stream.last_news = now;
        }
        stream.ids.extend(whole.lines().filter_map(|line| line.strip_prefix("id: ")).map(Arc::from));
    }

    /// The connection breaks. Of what is under way, so many bytes arrive.
    pub(crate) fn lose(&mut self, at: usize, bytes: u64) {
        if self.readers[at].is_over() {
            return;
        }
        let mut left = bytes as usize;
        for place in std::mem::take(&mut self.readers[at].under_way) {
            let came = {
                let mut sea = self.sea();
                let Fact::Bytes { text: Some(text), .. } = &mut sea.facts[place].fact else { continue };
                let cut = (0..=left.min(text.len())).rev().find(|cut| text.is_char_boundary(*cut)).unwrap_or(0);
                text.truncate(cut);
                text.clone()
            };
            left -= came.len().min(left);
            self.arrive(at, &came);
        }
        self.count("connections that broke");
        if self.readers[at].is_told {
            self.ended(at, By::Fault, false);
        } else {
            (self.readers[at].state, self.readers[at].view) = (State::Over, None);
        }
    }
}
