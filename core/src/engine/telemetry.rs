//! What happens, in the words of OpenTelemetry's conventions for MCP: the one place that knows their names.
//!
//! A host begins the span of a call when its handler begins, and says where that is in its trace. The rest is told by
//! [observations](Observation), each when it is over. So nothing is held open here, and readers in other processes find the
//! trace in the call's log.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::engine::connections::conn::{Conn, Traced};
use crate::engine::durations::DURATION_BOUNDS_MS;
use crate::engine::lines::shown;
use crate::engine::sessions::SessionHandle;
use crate::engine::sessions::cell::Cell;
use crate::engine::sessions::change::Change;
use crate::engine::shared::{Shared, lock};
use crate::protocol::{Origin, RequestId, Revision};
use crate::session::{Asked, Outcome, Record, TraceParent};
use crate::sync::{Arc, Mutex};

/// How many tools have their names among the attributes of measurements.
const MAX_TOOLS: usize = 200;

/// What the others are called.
const OTHER: &str = "_OTHER";

/// The histograms' bounds in seconds, as the conventions give them.
pub fn boundaries() -> Vec<f64> {
    DURATION_BOUNDS_MS.iter().map(|ms| *ms as f64 / 1_000.0).collect()
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
}

/// An attribute, by its name.
pub type Attribute = (&'static str, Value);

/// Takes observations.
pub trait Observer: Send + Sync {
    /// Whether somebody wants them now.
    fn wants(&self) -> bool;

    /// Takes one. Called without a lock of a session, on any thread: keep it for later.
    fn take(&self, observation: Observation);
}

/// What a host needs for the span of a call that begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallSpan {
    /// What the observation of its end calls the session.
    pub session: Arc<str>,
    /// What that calls the request.
    pub request: String,
    /// The name.
    pub name: String,
    /// What is known at its begin.
    pub attributes: Vec<Attribute>,
}

/// The span that an observation is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spanned {
    /// That of a call, which its host began. It ends now.
    Call {
        /// The session's name.
        session: Arc<str>,
        /// See [`CallSpan::request`].
        request: String,
    },
    /// One that nobody has begun, with this name. It is over.
    Under(TraceParent, &'static str),
}

impl Spanned {
    /// That of a call.
    pub(crate) fn of(session: &Arc<str>, request: &RequestId) -> Self {
        Self::Call { session: Arc::clone(session), request: request.to_json() }
    }
}

/// Something that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Its span, where it has one.
    pub span: Option<Spanned>,
    /// The histogram in which its duration counts, where one does.
    pub instrument: Option<&'static str>,
    /// How long it took, in milliseconds; none if this process does not know.
    pub duration_ms: Option<u64>,
    /// Why it failed, if it did.
    pub error: Option<Cow<'static, str>>,
    /// The attributes of the span.
    pub attributes: Vec<Attribute>,
    /// The attributes of the measurement.
    pub dimensions: Vec<Attribute>,
}

/// The tools that have their names in measurements. What clients make up has none: a name counts once a call of it gave a
/// result.
#[derive(Default)]
pub(crate) struct Tools(Mutex<BTreeSet<Box<str>>>);

impl Tools {
    fn name(&self, tool: &str, outcome: Outcome) -> String {
        let mut known = lock(&self.0);
        if !known.contains(tool) {
            if outcome != Outcome::Result || known.len() >= MAX_TOOLS || shown(tool).len() < tool.len() {
                return OTHER.to_owned();
            }
            known.insert(tool.into());
        }
        tool.to_owned()
    }
}

fn text(name: &'static str, value: impl Into<String>) -> Attribute {
    (name, Value::Text(value.into()))
}

fn number(name: &'static str, value: impl Into<i64>) -> Attribute {
    (name, Value::Number(value.into()))
}

/// What a call asks for.
fn asked_for(asked: &Asked, tool: Option<String>) -> impl Iterator<Item = Attribute> {
    let method = Some(asked.method).filter(|method| !method.is_empty());
    let operation = tool.is_some().then(|| text("gen_ai.operation.name", "execute_tool"));
    let tool = tool.map(|tool| text("gen_ai.tool.name", tool));
    method.map(|method| text("mcp.method.name", method)).into_iter().chain(tool).chain(operation)
}

fn version(revision: Option<Revision>) -> Option<Attribute> {
    revision.map(|revision| text("mcp.protocol.version", revision.as_str()))
}

/// What is observed of a call that has had its end.
pub(crate) fn measured(
    shared: &Shared,
    record: &Record,
    duration_ms: Option<u64>,
    revision: Option<Revision>,
    span: Option<Spanned>,
) -> Observation {
    let Record { asked, outcome, counts, .. } = record;
    let tool = asked.tool.as_deref().map(|tool| shared.tools.name(tool, *outcome));
    let of_counts = [
        number("tailrope.connections", counts.connections),
        number("tailrope.resumes", counts.resumes),
        number("tailrope.gaps", counts.gaps),
        text("tailrope.outcome", outcome.as_str()),
    ];
    Observation {
        span,
        instrument: Some("mcp.server.operation.duration"),
        duration_ms,
        error: (*outcome != Outcome::Result).then(|| record.cause().to_owned().into()),
        attributes: of_counts.into_iter().chain(error_type(*outcome)).collect(),
        dimensions: asked_for(asked, tool).chain(error_type(*outcome)).chain(version(revision)).collect(),
    }
}

/// What the span of a call is to say.
pub(crate) fn call_span(
    session: &Arc<str>,
    request: &RequestId,
    asked: &Asked,
    revision: Option<Revision>,
) -> CallSpan {
    let tool = asked.tool.as_deref().map(|tool| shown(tool).to_owned());
    let name = tool.as_ref().map_or_else(|| asked.method.to_owned(), |tool| format!("{} {tool}", asked.method));
    let attributes = asked_for(asked, tool)
        .chain([text("mcp.session.id", &**session), text("jsonrpc.request.id", request.as_text())])
        .chain(version(revision))
        .collect();
    CallSpan { session: Arc::clone(session), request: request.to_json(), name, attributes }
}

/// What an outcome is called where it is no good one.
fn error_type(outcome: Outcome) -> Option<Attribute> {
    (outcome != Outcome::Result).then(|| text("error.type", outcome.as_str()))
}

impl SessionHandle {
    /// What the span of a call is to say that runs here; none if nobody wants observations, or there is no such call. From
    /// the first one on, each call of the session is observed.
    pub fn call_span(&self, request: &RequestId) -> Option<CallSpan> {
        if !self.cell.shared.is_observed() {
            return None;
        }
        self.cell.change_or(None, |change| {
            let state = &mut *change.state;
            let span = call_span(&self.cell.name, request, state.session.asked(request)?, state.session.revision());
            state.session.record_results(true);
            Some(span)
        })
    }

    /// The span of a call has this place in its trace. It is kept with the call's log, also for other processes.
    pub fn trace_call(&self, request: &RequestId, trace: &str) {
        let Some(trace) = TraceParent::parse(trace) else { return };
        self.cell.change_or((), |change| change.state.session.trace(request, trace));
    }
}

impl Cell {
    /// The session has ended for its client.
    pub(crate) fn observe_end(&self, change: &mut Change<'_>, outcome: Outcome) {
        let has_begun = change.state.session.revision().is_some() && !self.is_elsewhere();
        if !has_begun || !self.shared.is_observed() {
            return;
        }
        let error = error_type(outcome).filter(|_| outcome != Outcome::SessionEnded);
        change.effects.observed.push(Observation {
            span: None,
            instrument: Some("mcp.server.session.duration"),
            duration_ms: Some(change.now.since(change.state.session.begun())),
            error: None,
            attributes: Vec::new(),
            dimensions: error.into_iter().chain(version(change.state.session.revision())).collect(),
        });
    }
}

impl Change<'_> {
    /// A call has had its end.
    pub(crate) fn observe_call(&mut self, record: &Record, duration_ms: Option<u64>) {
        if !self.cell.shared.is_observed() {
            return;
        }
        // It took no time where it was not begun.
        let is_refused = record.outcome == Outcome::Refused;
        let duration_ms = duration_ms.or_else(|| is_refused.then_some(0));
        // A call that was not begun has no span, and its id may be that of one that runs.
        let span = (!is_refused).then(|| Spanned::of(&self.cell.name, &record.request));
        let revision = self.state.session.revision();
        self.effects.observed.push(measured(&self.cell.shared, record, duration_ms, revision, span));
    }

    /// A connection is over.
    pub(crate) fn observe_connection(&mut self, conn: &mut Conn) {
        let Some(Traced { parent, since, replayed }) = conn.traced.take().map(|traced| *traced) else { return };
        let request = match &conn.origin {
            Origin::Request(request) => Some(text("jsonrpc.request.id", request.as_text())),
            _ => None,
        };
        let replayed = number("tailrope.replayed", i64::try_from(replayed).unwrap_or(i64::MAX));
        self.effects.observed.push(Observation {
            span: Some(Spanned::Under(parent, "resume")),
            instrument: None,
            duration_ms: Some(self.now.since(since)),
            error: None,
            attributes: [text("mcp.session.id", &*self.cell.name), replayed].into_iter().chain(request).collect(),
            dimensions: Vec::new(),
        });
    }
}
