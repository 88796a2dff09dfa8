//! Takes facts one after the other.

use std::collections::HashMap;
use std::fmt;

use crate::connection::Connection;
use crate::fact::{Fact, N, Open, Probe, Timed, base64};
use crate::report::{Report, Summary, Violation};
use crate::stream::{END, Gone, Meaning, Moment, Named, Place, Position, Stream, Word, place};

/// Violations that are told one by one where nobody asks for more; further ones are only counted.
pub const MAX_TOLD: usize = 1_000;
/// How long after its first bytes a reader in another process may take to fence the one before, in milliseconds.
pub const FENCE_MS: u64 = 5_000;

/// A fact that cannot be: the history is no history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadFact(pub String);

impl fmt::Display for BadFact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadFact {}

#[derive(Debug, Default)]
pub(crate) struct Session {
    pub(crate) name: Box<str>,
    pub(crate) streams: HashMap<Box<str>, usize>,
    pub(crate) revision: Option<Box<str>>,
    pub(crate) gone: Gone,
}

/// Judges a history while it is told. See the crate.
#[derive(Debug)]
pub struct Checker {
    pub(crate) fence_ms: u64,
    pub(crate) max_told: usize,
    /// There are facts of what the store holds.
    pub(crate) tells_kept: bool,
    pub(crate) names: HashMap<Box<str>, usize>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) streams: Vec<Stream>,
    pub(crate) connection_names: HashMap<Box<str>, usize>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) report: Report,
    pub(crate) now: Moment,
}

impl Default for Checker {
    fn default() -> Self {
        Self {
            fence_ms: FENCE_MS,
            max_told: MAX_TOLD,
            tells_kept: false,
            names: HashMap::new(),
            sessions: Vec::new(),
            streams: Vec::new(),
            connection_names: HashMap::new(),
            connections: Vec::new(),
            report: Report::default(),
            now: Moment { fact: 0, at: None },
        }
    }
}

impl Checker {
    /// A checker that has been told nothing. `fence_ms`: see I4; [`FENCE_MS`] usually.
    pub fn new(fence_ms: u64) -> Self {
        Self { fence_ms, ..Self::default() }
    }

    /// The same, telling so many violations one by one instead of [`MAX_TOLD`].
    pub fn telling(self, max_told: usize) -> Self {
        Self { max_told, ..self }
    }

    /// The same for an observer that sees into the store: what it does not say is kept is not.
    pub fn seeing_the_store(self) -> Self {
        Self { tells_kept: true, ..self }
    }

    /// Takes the next fact.
    ///
    /// # Errors
    /// A fact that contradicts those before it in a way that no server can be blamed for. It is left out.
    pub fn push(&mut self, fact: &Timed) -> Result<(), BadFact> {
        self.now = Moment { fact: self.now.fact + 1, at: fact.at };
        match &fact.fact {
            Fact::Stream { session, stream, request, revision } => {
                let at = self.stream(session, stream);
                let known = &mut self.streams[at];
                known.request.clone_from(request);
                known.revision = revision.as_deref().map(Into::into);
                let session = &mut self.sessions[known.session];
                if session.revision.is_none() {
                    session.revision = revision.as_deref().map(Into::into);
                }
            }
            Fact::Emit { session, stream, n } => {
                let (now, at) = (self.now, self.stream(session, stream));
                let event = self.streams[at].event_mut(place(*n));
                if event.emitted.replace(now).is_some() {
                    return Err(BadFact(format!("{} is emitted twice", Named(session, stream, place(*n)))));
                }
            }
            Fact::Kept { session, stream, n } => {
                let at = self.stream(session, stream);
                self.tells_kept = true;
                let said = self.now.fact;
                let event = self.streams[at].event_mut(place(*n));
                (event.kept, event.said) = (true, said);
            }
            Fact::Dropped { session, stream, n } => {
                let at = self.stream(session, stream);
                self.streams[at].event_mut(place(*n)).is_dropped = true;
            }
            Fact::Ack { session, stream, n } => self.say(session, stream, *n, Word::Stored)?,
            Fact::Taken { session, stream, n } => self.say(session, stream, *n, Word::Taken)?,
            Fact::Failed { session, stream, n } => self.say(session, stream, *n, Word::Failed)?,
            Fact::Refused { session, stream, n } => self.say(session, stream, *n, Word::Refused)?,
            Fact::Unsure { session, stream, n } => self.say(session, stream, *n, Word::Unsure)?,
            Fact::Open(open) => self.open(open)?,
            Fact::Head { connection, status, headers } => {
                let at = self.connection(connection)?;
                let known = &mut self.connections[at];
                known.status = Some(*status);
                known.headers.clone_from(headers);
                let content_type = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
                known.is_json = content_type.is_some_and(|(_, value)| value.starts_with("application/json"));
                self.answered(at, *status);
            }
            Fact::Bytes { connection, text, data } => {
                let at = self.connection(connection)?;
                if let Some(text) = text {
                    self.read(at, text.as_bytes());
                }
                if let Some(data) = data {
                    let bytes = base64(data).ok_or_else(|| BadFact(format!("not base64: {data:.40}")))?;
                    self.read(at, &bytes);
                }
            }
            Fact::Closed { connection, by, clean } => {
                let at = self.connection(connection)?;
                self.close(at, *by, *clean);
            }
            Fact::Stored { session, stream, ns } => {
                let at = self.stream(session, stream);
                for n in ns {
                    self.streams[at].event_mut(place(*n)).dumped = true;
                }
                self.streams[at].dump = Some(ns.clone());
            }
            Fact::Gone { session, stream, why } => match stream {
                Some(stream) => {
                    let at = self.stream(session, stream);
                    self.streams[at].gone.add(*why);
                }
                None => {
                    let at = self.session(session);
                    self.sessions[at].gone.add(*why);
                }
            },
            Fact::Restored { session, stream } => {
                let at = self.stream(session, stream);
                self.streams[at].gone.is_lost = false;
                let is_open =
                    |connection: &&mut Connection| connection.stream == Some(at) && connection.closed.is_none();
                self.connections.iter_mut().filter(is_open).for_each(|connection| connection.is_unsure = true);
            }
            Fact::Done { session, stream } => {
                let at = self.stream(session, stream);
                self.streams[at].done = true;
            }
            Fact::Hung { session, stream, says, invariant } => self.violate(Violation {
                invariant: invariant.clone().unwrap_or_else(|| "I13".to_owned()),
                session: session.clone(),
                stream: stream.clone(),
                connection: None,
                event: None,
                says: says.clone(),
            }),
            Fact::Note => {}
        }
        Ok(())
    }

    fn session(&mut self, name: &str) -> usize {
        if let Some(at) = self.names.get(name) {
            return *at;
        }
        let at = self.sessions.len();
        self.sessions.push(Session { name: name.into(), ..Session::default() });
        self.names.insert(name.into(), at);
        at
    }

    fn stream(&mut self, session: &str, name: &str) -> usize {
        let session = self.session(session);
        if let Some(at) = self.sessions[session].streams.get(name) {
            return *at;
        }
        let at = self.streams.len();
        self.streams.push(Stream { session, name: name.into(), ..Stream::default() });
        self.sessions[session].streams.insert(name.into(), at);
        at
    }

    fn connection(&self, name: &str) -> Result<usize, BadFact> {
        self.connection_names.get(name).copied().ok_or_else(|| BadFact(format!("connection {name} was not opened")))
    }

    fn say(&mut self, session: &str, stream: &str, n: N, word: Word) -> Result<(), BadFact> {
        let at = self.stream(session, stream);
        let (is_left, said) = (self.gone(at).owner, self.now.fact);
        let event = self.streams[at].event_mut(place(n));
        if event.emitted.is_none() {
            return Err(BadFact(format!("{} is spoken of before it is emitted", Named(session, stream, place(n)))));
        }
        (event.word, event.said) = (word, said);
        event.late = is_left && matches!(word, Word::Stored | Word::Taken | Word::Failed);
        Ok(())
    }

    fn open(&mut self, open: &Open) -> Result<(), BadFact> {
        if self.connection_names.contains_key(open.connection.as_str()) {
            return Err(BadFact(format!("connection {} is opened twice", open.connection)));
        }
        let session = self.session(&open.session);
        let stream = open.stream.as_deref().map(|name| self.stream(&open.session, name));
        let start = stream.map(|at| {
            let is_anew = self.gone(at).is_lost;
            let stream = &mut self.streams[at];
            if is_anew {
                // What a cursor named may be another stream by now.
                return stream.new_unknown();
            }
            let meaning = open.cursor.as_deref().map(|cursor| stream.ids.get(cursor).copied());
            match meaning {
                Some(Some(Meaning::Event(place))) => Position::Behind(place),
                Some(Some(Meaning::Start(position))) => position,
                Some(Some(Meaning::Error)) => Position::Behind(END),
                None if open.method == "POST" => Position::Behind(0),
                Some(None) | None => stream.new_unknown(),
            }
        });
        self.report.summary.connections += 1;
        self.report.summary.resumes += u64::from(open.cursor.is_some());
        self.connection_names.insert(open.connection.as_str().into(), self.connections.len());
        self.connections.push(Connection::new(open.clone(), session, stream, start));
        Ok(())
    }

    /// What is permitted on a stream by now.
    pub(crate) fn gone(&self, stream: usize) -> Gone {
        let stream = &self.streams[stream];
        stream.gone.or(self.sessions[stream.session].gone)
    }

    /// I6, I8: what a resume may be answered with.
    fn answered(&mut self, at: usize, status: u16) {
        let connection = &self.connections[at];
        let (Some(stream), Some(cursor), Probe::Own) =
            (connection.stream, connection.open.cursor.as_deref(), connection.open.probe)
        else {
            return;
        };
        let Some(meaning) = self.streams[stream].ids.get(cursor).copied() else { return };
        if connection.is_unsure || self.gone(stream).permits_loss() {
            return;
        }
        let is_end = match meaning {
            Meaning::Event(place) => place == END,
            Meaning::Start(position) => self.streams[stream].known(position).is_none_or(|place| place == END),
            Meaning::Error => true,
        };
        match status {
            204 if !is_end => {
                self.blame("I6", at, None, "a cursor that is not at the end is told that nothing is left".to_owned());
            }
            400 | 404 | 409 => self.blame("I8", at, None, format!("the session's own cursor is refused with {status}")),
            _ => {}
        }
    }

    /// Notes a violation that a connection shows.
    pub(crate) fn blame(&mut self, invariant: &str, at: usize, event: Option<Place>, says: String) {
        let connection = &self.connections[at];
        let session = &*self.sessions[connection.session].name;
        let stream = connection.stream.map(|stream| self.streams[stream].name.to_string());
        let event = event.map(|place| Named(session, stream.as_deref().unwrap_or("?"), place).to_string());
        self.violate(Violation {
            invariant: invariant.to_owned(),
            session: session.to_owned(),
            stream,
            connection: Some(connection.open.connection.clone()),
            event,
            says,
        });
    }

    /// Notes a violation of a stream.
    pub(crate) fn blame_stream(&mut self, invariant: &str, at: usize, event: Option<Place>, says: String) {
        let stream = &self.streams[at];
        let session = &*self.sessions[stream.session].name;
        let event = event.map(|place| Named(session, &stream.name, place).to_string());
        self.violate(Violation {
            invariant: invariant.to_owned(),
            session: session.to_owned(),
            stream: Some(stream.name.to_string()),
            connection: None,
            event,
            says,
        });
    }

    pub(crate) fn violate(&mut self, violation: Violation) {
        let Summary { violations, .. } = &mut self.report.summary;
        *violations.entry(violation.invariant.clone()).or_default() += 1;
        if self.report.violations.len() < self.max_told {
            self.report.violations.push(violation);
        }
    }
}
