//! Runs `tests/vectors/answers.json`: what a client is answered, from the engine to the bytes.

use std::collections::HashMap;
use std::sync::Arc;

use crate::kit::common::{Answered, Bench, notification, response};
use crate::kit::vectors::vectors;
use serde::Deserialize;
use serde_json::Value;
use tailrope_core::engine::{Connection, NoWake, Options, OutgoingMessage, SessionHandle};
use tailrope_core::protocol::{Refusal, RequestId, Revision};
use tailrope_core::store::Limits;
use tailrope_core::stream::Drain;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    /// Of every session.
    revision: Option<String>,
    #[serde(default)]
    limits: LimitsSpec,
    steps: Vec<Step>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LimitsSpec {
    max_events_per_stream: Option<usize>,
    retention_ms: Option<u64>,
}

/// A request id as JSON.
#[derive(Deserialize)]
#[serde(transparent)]
struct Id(Value);

impl Id {
    fn id(&self) -> RequestId {
        RequestId::from_json(&self.0.to_string()).unwrap()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Cursor {
    /// The id of this event of what a connection was sent; 0 is the first.
    Event { of: String, at: usize },
    /// The last id that a connection was sent.
    Last { of: String },
    /// The same with the last of these characters replaced by another one.
    Forged { of: String, at: usize },
    /// Any text.
    Text(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Want {
    status: u16,
    content_type: Option<String>,
    #[serde(default)]
    frames: Vec<Value>,
    /// A body that is no event stream.
    body: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Step {
    /// The session that the next steps are for; the first one is "s".
    Session(String),
    /// A POST with requests that is answered with an event stream.
    Call {
        ids: Vec<Id>,
        #[serde(rename = "as")]
        name: String,
    },
    /// A POST that is refused.
    CallRefused {
        ids: Vec<Id>,
        want: Want,
    },
    /// A GET without a cursor.
    Listen {
        #[serde(rename = "as")]
        name: String,
    },
    /// A GET with a cursor.
    Resume {
        cursor: Cursor,
        #[serde(rename = "as")]
        name: String,
    },
    ResumeRefused {
        cursor: Cursor,
        want: Want,
    },
    /// What a connection is sent from its last read on, and why it ends.
    Read {
        of: String,
        frames: Vec<Value>,
        end: Option<String>,
    },
    /// A whole answer.
    Answer {
        of: String,
        want: Want,
    },
    /// Two connections were answered with the same bytes.
    Same {
        of: [String; 2],
    },
    Lose(String),
    Notify {
        name: String,
        related: Option<Id>,
    },
    Respond(Id),
    Cancel(Id),
    Close {
        request: Id,
        retry_ms: Option<u32>,
        hold_ms: Option<u64>,
    },
    CloseRefused(Id),
    Advance {
        ms: u64,
    },
    Drain {
        retry_ms: u32,
    },
    EndSession,
}

struct Run {
    bench: Bench,
    revision: Revision,
    sessions: HashMap<String, SessionHandle>,
    session: String,
    connections: HashMap<String, Connection>,
    ids: HashMap<String, Vec<String>>,
    answers: HashMap<String, Answered>,
}

impl Run {
    fn new(vector: &Vector) -> Self {
        let default = Limits::default();
        let limits = Limits {
            max_events_per_stream: vector.limits.max_events_per_stream.unwrap_or(default.max_events_per_stream),
            retention_ms: vector.limits.retention_ms.unwrap_or(default.retention_ms),
            ..default
        };
        let revision = vector.revision.as_deref().unwrap_or("2025-11-25");
        let mut run = Self {
            bench: Bench::new(Options { limits, ..Options::default() }),
            revision: Revision::parse(revision).unwrap(),
            sessions: HashMap::new(),
            session: String::new(),
            connections: HashMap::new(),
            ids: HashMap::new(),
            answers: HashMap::new(),
        };
        run.enter("s");
        run
    }

    fn enter(&mut self, name: &str) {
        if !self.sessions.contains_key(name) {
            self.sessions.insert(name.to_owned(), self.bench.session(name, self.revision));
        }
        self.session = name.to_owned();
    }

    fn session(&self) -> &SessionHandle {
        &self.sessions[&self.session]
    }

    fn cursor(&self, cursor: &Cursor) -> String {
        match cursor {
            Cursor::Event { of, at } => self.ids[of][*at].clone(),
            Cursor::Last { of } => self.ids[of].last().unwrap().clone(),
            Cursor::Forged { of, at } => {
                let mut text = self.ids[of].last().unwrap().clone().into_bytes();
                text[*at] = if text[*at] == b'A' { b'B' } else { b'A' };
                String::from_utf8(text).unwrap()
            }
            Cursor::Text(text) => text.clone(),
        }
    }

    fn resume(&self, cursor: &Cursor) -> Result<Connection, Refusal> {
        self.session().resume(&self.cursor(cursor), None, Arc::new(NoWake), 0)
    }

    fn keep(&mut self, name: &str, connection: Connection) {
        self.connections.insert(name.to_owned(), connection);
    }

    fn read(&mut self, name: &str) -> &Answered {
        let answered = self.bench.read(&self.connections[name]);
        self.ids.entry(name.to_owned()).or_default().extend(answered.ids());
        self.answers.insert(name.to_owned(), answered);
        &self.answers[name]
    }

    fn step(&mut self, step: &Step) {
        let wake = Arc::new(NoWake);
        match step {
            Step::Session(name) => self.enter(name),
            Step::Call { ids, name } => {
                let ids: Vec<RequestId> = ids.iter().map(Id::id).collect();
                let connection = self.session().call(&ids, None, wake, 0).unwrap();
                self.keep(name, connection);
            }
            Step::CallRefused { ids, want } => {
                let ids: Vec<RequestId> = ids.iter().map(Id::id).collect();
                assert_refused(&self.session().call(&ids, None, wake, 0).unwrap_err(), want);
            }
            Step::Listen { name } => {
                let connection = self.session().listen(wake, 0).unwrap();
                self.keep(name, connection);
            }
            Step::Resume { cursor, name } => {
                let connection = self.resume(cursor).unwrap();
                self.keep(name, connection);
            }
            Step::ResumeRefused { cursor, want } => match self.resume(cursor) {
                Err(refusal) => assert_refused(&refusal, want),
                Ok(connection) => assert_answer(&self.bench.read(&connection), want),
            },
            Step::Read { of, frames, end } => {
                let answered = self.read(of);
                assert_eq!(answered.frames(), *frames);
                assert_eq!(answered.end.map(|end| end.as_str()), end.as_deref());
                assert_eq!((answered.status, answered.content_type), (Some(200), Some("text/event-stream")));
            }
            Step::Answer { of, want } => assert_answer(self.read(of), want),
            Step::Same { of: [one, two] } => {
                let [one, two] = [&self.answers[one], &self.answers[two]];
                assert_eq!((one.status, one.content_type), (two.status, two.content_type));
                assert_eq!(one.text.lines().count(), two.text.lines().count());
                let data = |answered: &Answered| {
                    answered
                        .text
                        .lines()
                        .filter(|line| !line.starts_with("id: "))
                        .map(str::to_owned)
                        .collect::<Vec<_>>()
                };
                assert_eq!(data(one), data(two));
            }
            Step::Lose(name) => self.connections[name].lost(),
            Step::Notify { name, related } => {
                let related = related.as_ref().map(Id::id);
                let message = OutgoingMessage::notification(related.as_ref(), &notification(name));
                self.session().send(message).unwrap();
            }
            Step::Respond(id) => {
                let id = id.id();
                self.session().send(OutgoingMessage::response(&id, &response(&id))).unwrap();
            }
            Step::Cancel(id) => assert!(self.session().cancelled(&id.id())),
            Step::Close { request, retry_ms, hold_ms } => {
                assert!(self.session().close_connection(&request.id(), *retry_ms, *hold_ms));
            }
            Step::CloseRefused(request) => assert!(!self.session().close_connection(&request.id(), None, None)),
            Step::Advance { ms } => self.bench.advance(*ms),
            Step::Drain { retry_ms } => self.bench.engine.drain(Drain::after(*retry_ms)),
            Step::EndSession => self.session().end(),
        }
    }
}

fn assert_refused(refusal: &Refusal, want: &Want) {
    let body: Value = serde_json::from_slice(&refusal.body(&tailrope_core::protocol::Dialect::MCP_PYTHON_2)).unwrap();
    assert_eq!((refusal.status, Some(&body)), (want.status, want.body.as_ref()));
}

fn assert_answer(answered: &Answered, want: &Want) {
    assert_eq!(answered.status, Some(want.status), "{}", answered.text);
    assert_eq!(answered.content_type, want.content_type.as_deref());
    assert!(answered.end.is_some(), "the answer ends");
    match &want.body {
        Some(body) => assert_eq!(serde_json::from_str::<Value>(&answered.text).unwrap(), *body),
        None => assert_eq!(answered.frames(), want.frames),
    }
}

#[test]
fn answers_to_clients() {
    let mut failed = Vec::new();
    for (name, vector) in vectors::<Vector>(include_str!("../../vectors/answers.json")) {
        let mut run = Run::new(&vector);
        for (at, step) in vector.steps.iter().enumerate() {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.step(step)));
            if outcome.is_err() {
                failed.push(format!("{name}, step {at}"));
                break;
            }
        }
    }
    assert!(failed.is_empty(), "failed: {failed:#?}");
}
