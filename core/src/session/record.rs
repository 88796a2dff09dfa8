//! What a session keeps of a running call for its record, and the record that it makes at the end.

use std::borrow::Cow;

use super::Outcome;
use crate::Ms;
use crate::protocol::{Envelope, Kind, RequestId, StreamNonce, ToolName};

/// What a request asks for, as far as the operator is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Its method; `other` if it is none of MCP's, and empty if nobody knows it.
    pub method: &'static str,
    /// The tool that it calls.
    pub tool: Option<ToolName>,
}

/// The methods of requests that have a name in records: what clients make up has none.
const METHODS: [&str; 18] = [
    "completion/complete",
    "initialize",
    "logging/setLevel",
    "ping",
    "prompts/get",
    "prompts/list",
    "resources/list",
    "resources/read",
    "resources/subscribe",
    "resources/templates/list",
    "resources/unsubscribe",
    "server/discover",
    "tasks/cancel",
    "tasks/get",
    "tasks/list",
    "tasks/result",
    "tools/call",
    "tools/list",
];

impl Asked {
    /// What a `tools/call` of this tool asks for.
    pub fn tool_call(tool: Option<&str>) -> Self {
        Self { method: "tools/call", tool: tool.map(Into::into) }
    }

    /// What a request asks for.
    pub fn of(envelope: &Envelope) -> Self {
        let method = envelope.method.as_deref().unwrap_or_default();
        let known = METHODS.binary_search(&method).ok().map(|at| METHODS[at]);
        Self { method: known.unwrap_or("other"), tool: envelope.fields.tool_name.clone() }
    }

    /// What the request with this id asks for, among the messages of its POST.
    pub fn of_request(envelopes: &[Envelope], id: &RequestId) -> Self {
        let asks = |envelope: &&Envelope| envelope.kind == Kind::Request && envelope.id.as_ref() == Some(id);
        envelopes.iter().find(asks).map(Self::of).unwrap_or_default()
    }
}

/// What is counted of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Its connections, here and in other processes.
    pub connections: u32,
    /// Those of them that came with a cursor.
    pub resumes: u32,
    /// Gaps that readers were told of.
    pub gaps: u32,
}

/// A call that has had its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The stream of the call; none if it had no events.
    pub stream: Option<StreamNonce>,
    /// Its id.
    pub request: RequestId,
    /// What it asked for.
    pub asked: Asked,
    /// When it began; none if this process does not know.
    pub begun: Option<Ms>,
    /// How it ended.
    pub outcome: Outcome,
    /// Why, where there is more to say than the outcome does.
    pub cause: Option<Cow<'static, str>>,
    /// What was counted of its stream until then.
    pub counts: Counts,
}

impl Record {
    /// A call that was not begun.
    pub fn refused(request: RequestId, asked: Asked, cause: &'static str) -> Self {
        let cause = Some(cause.into());
        let (outcome, counts) = (Outcome::Refused, Counts::default());
        Self { stream: None, request, asked, begun: None, outcome, cause, counts }
    }

    /// A call of another process, of which only the log is known.
    pub fn lost(stream: StreamNonce, request: RequestId, outcome: Outcome) -> Self {
        let (asked, counts) = (Asked::default(), Counts::default());
        Self { stream: Some(stream), request, asked, begun: None, outcome, cause: None, counts }
    }

    /// What happened, in words.
    pub fn cause(&self) -> &str {
        self.cause.as_deref().unwrap_or_else(|| self.outcome.cause())
    }
}
