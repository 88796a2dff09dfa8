//! Whether the server is resumable, in words: what a user wants to know who has not read the checks.

use std::fmt;

use serde::Serialize;

use super::Finding;
use crate::facts::Kind;
use crate::words::{Need, words};

/// Says whether calls were cut while they ran.
const LIVE: &str = "resume-live";

/// Whether clients get every message once, though their connections end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resumable {
    /// Everything that it takes was checked, and nothing was found against it.
    Yes,
    /// Something was found against it.
    No,
    /// Nothing was found against it, but not everything that it takes was checked.
    NotShown,
}

/// The answer to the question why one probes.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// In one word.
    pub resumable: Resumable,
    /// The checks that speak against it, and why; of a resumable server, what else is to be put right.
    pub because: Vec<String>,
    /// Why no call was cut while it ran.
    pub not_live: Option<String>,
}

impl Verdict {
    /// Whether the server is resumable, and calls were cut while they ran to find that out.
    pub(super) fn is_shown(&self) -> bool {
        self.resumable == Resumable::Yes && self.not_live.is_none()
    }

    pub(super) fn of(checks: &[Finding]) -> Self {
        let (mut against, mut missing, mut weak, mut other) = (vec![], vec![], vec![], vec![]);
        let mut not_live = None;
        for check in &words().checks {
            let found = checks.iter().find(|finding| finding.check.name == check.name);
            let (kind, reason) =
                found.map_or((Kind::Skipped, "left out"), |finding| (finding.outcome, finding.reason.as_str()));
            let line = format!("{}: {reason}", check.name);
            if check.name == LIVE && kind == Kind::Skipped {
                not_live = Some(reason.to_owned());
            }
            match (check.resumable, kind) {
                (Need::Ok | Need::NoFault, Kind::Fault) | (Need::Ok, Kind::Warn) => against.push(line),
                (Need::Ok, Kind::Skipped) => missing.push(line),
                (Need::NoFault, Kind::Warn) => weak.push(line),
                (Need::Nothing, Kind::Fault) => other.push(line),
                _ => {}
            }
        }
        // What is only weak elsewhere is the reason where a client could not come back at all.
        if !missing.is_empty() {
            against.append(&mut weak);
        }
        let (resumable, because) = match (against.is_empty(), missing.is_empty()) {
            (false, _) => (Resumable::No, against),
            (true, false) => (Resumable::NotShown, missing),
            (true, true) => (Resumable::Yes, other),
        };
        Self { resumable, because, not_live }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.resumable, &self.not_live) {
            (Resumable::No, _) => f.write_str("Not resumable:")?,
            (Resumable::NotShown, _) => f.write_str("Not shown to be resumable:")?,
            (Resumable::Yes, None) => {
                f.write_str("Resumable: clients get every message once, though their connections end.")?;
            }
            (Resumable::Yes, Some(why)) => {
                write!(f, "Resumable, as far as was tried: no call was cut while it ran ({why}).")?;
            }
        }
        if self.resumable == Resumable::Yes && !self.because.is_empty() {
            f.write_str("\nOther faults:")?;
        }
        self.because.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}
