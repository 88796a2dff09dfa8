//! How calls are paced, by the name of the tool that they call.

use std::collections::HashMap;

use crate::protocol::{Envelope, Kind, RequestId};
use crate::stream::Paced;

/// How the calls of a tool are paced. What is none is as the engine, or its store, says. Durations are in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// The SSE `retry` of the stream, from its first priming event on.
    pub retry_ms: Option<u32>,
    /// How long a connection that resumes stays open. 0 is pure polling.
    pub hold_ms: Option<u64>,
    /// A connection is closed when it is older. 0 switches that off.
    pub max_connection_ms: Option<u64>,
    /// A connection is closed when it carried more. 0 switches that off.
    pub max_connection_bytes: Option<u64>,
    /// A handler that is silent for so long has its client sent progress. None where there is none, or 0.
    pub heartbeat_ms: Option<u64>,
    /// How long the finished stream, or task, stays readable.
    pub retention_ms: Option<u64>,
    /// A call that takes longer becomes a task, if its client takes tasks. 0: every call.
    pub task_after_ms: Option<u64>,
    /// Only clients that take tasks may call the tool.
    pub requires_task: bool,
}

impl Pace {
    /// What of it is kept with the log.
    pub fn paced(&self) -> Paced {
        let Self { retry_ms, hold_ms, max_connection_ms, max_connection_bytes, retention_ms, .. } = *self;
        Paced { retry_ms, hold_ms, max_connection_ms, max_connection_bytes, retention_ms, closes: 0, closed_at: 0 }
    }
}

/// The paces of tools: by their names, or by what their names begin with.
#[derive(Clone, Debug, Default)]
pub struct Paces {
    named: HashMap<Box<str>, Pace>,
    /// The longest beginnings first.
    begun: Vec<(Box<str>, Pace)>,
}

impl Paces {
    /// Sets the pace of a tool, or of all whose names begin with what is before a `*` at the end.
    ///
    /// # Errors
    /// What a pattern must be, to be said behind it.
    pub fn set(&mut self, pattern: &str, pace: Pace) -> Result<(), &'static str> {
        let (name, is_beginning) = pattern.strip_suffix('*').map_or((pattern, false), |beginning| (beginning, true));
        if name.contains('*') || pattern.is_empty() {
            return Err("must be the name of a tool, or what names begin with and a * at the end");
        }
        if is_beginning {
            self.begun.retain(|(beginning, _)| **beginning != *name);
            let at = self.begun.partition_point(|(beginning, _)| beginning.len() > name.len());
            self.begun.insert(at, (name.into(), pace));
        } else {
            self.named.insert(name.into(), pace);
        }
        Ok(())
    }

    /// The pace of a tool, by the most specific pattern.
    pub fn of(&self, tool: &str) -> Option<&Pace> {
        let begun = || self.begun.iter().find(|(beginning, _)| tool.starts_with(&**beginning));
        self.named.get(tool).or_else(|| begun().map(|(_, pace)| pace))
    }

    /// Whether no tool has one.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && self.begun.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Pace> {
        self.named.values().chain(self.begun.iter().map(|(_, pace)| pace))
    }

    /// The first pace that applies to a message of a call.
    pub fn of_call(&self, envelopes: &[Envelope]) -> Option<CallPace> {
        if self.is_empty() {
            return None;
        }
        let mut requests = envelopes.iter().filter(|envelope| envelope.kind == Kind::Request);
        requests.find_map(|envelope| {
            let pace = *self.of(envelope.fields.tool_name.as_deref()?)?;
            let (request, token) = (envelope.id.clone()?, envelope.fields.progress_token.clone());
            Some(CallPace { pace, request, token })
        })
    }
}

/// How a call is paced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallPace {
    /// The pace of its tool.
    pub pace: Pace,
    /// Which of its requests calls that.
    pub request: RequestId,
    /// The token with which this asked for progress, as JSON.
    pub token: Option<String>,
}
