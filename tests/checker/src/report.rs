//! What the checker found.

use std::collections::BTreeMap;

use serde::Serialize;

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The invariant's name.
    pub invariant: String,
    /// The session.
    pub session: String,
    /// The stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    /// The connection that shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<String>,
    /// The event that shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// What is wrong.
    pub says: String,
}

/// How much was looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Streams.
    pub streams: u64,
    /// Connections.
    pub connections: u64,
    /// Connections that had a cursor.
    pub resumes: u64,
    /// Events with a mark that were seen, repeats on other connections included.
    pub events: u64,
    /// Events without one.
    pub unmarked: u64,
    /// Bytes of bodies.
    pub bytes: u64,
    /// Comments that announce a gap.
    pub gaps: u64,
    /// Requests that were seen to end with their response.
    pub results: u64,
    /// Requests that were seen to end with an error terminal.
    pub errors: u64,
    /// Violations by invariant.
    pub violations: BTreeMap<String, u64>,
}

/// The verdict on a history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What was broken, in the order in which it was found.
    pub violations: Vec<Violation>,
    /// How much was looked at.
    pub summary: Summary,
}

impl Report {
    /// Whether no rule was broken.
    pub fn is_clean(&self) -> bool {
        self.summary.violations.is_empty()
    }
}
