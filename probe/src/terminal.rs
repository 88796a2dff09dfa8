//! What is printed: findings as they are made, and on a terminal which check is being made.

use std::io::{self, IsTerminal as _, Write};

use crate::facts::Kind;
use crate::report::{Finding, Report, Step};

const INDENT: usize = 30;

pub(crate) struct Terminal {
    shows_progress: bool,
    has_progress: bool,
}

impl Terminal {
    pub(crate) fn new() -> Self {
        Self { shows_progress: io::stderr().is_terminal(), has_progress: false }
    }

    // Nobody may listen any more, which is no fault of a server.

    pub(crate) fn print(&mut self, text: &str) {
        self.clear();
        let mut out = io::stdout().lock();
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    }

    pub(crate) fn complain(&mut self, text: &str) {
        self.clear();
        let _ = writeln!(io::stderr(), "{text}");
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.has_progress) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    pub(crate) fn follow(&mut self, step: &Step<'_>, is_json: bool) {
        match step {
            Step::Begins { check, number, of } => {
                if self.shows_progress {
                    self.clear();
                    self.has_progress = true;
                    let mut err = io::stderr().lock();
                    let _ = write!(err, "{number} of {of}: {}", check.name).and_then(|()| err.flush());
                }
            }
            Step::Opened(report) if !is_json => self.print(&format!("{}\n", head(report))),
            Step::Found(finding) if !is_json => self.print(&lines(finding).join("\n")),
            Step::Opened(_) | Step::Found(_) => {}
        }
    }

    pub(crate) fn end(&mut self, report: &Report, is_json: bool) {
        if is_json {
            self.print(&serde_json::to_string_pretty(report).unwrap_or_default());
        } else {
            self.print(&format!("\n{}\n\n{}", counts(report), report.verdict));
        }
    }
}

fn head(report: &Report) -> String {
    let about: Vec<&str> =
        [&report.server.name, &report.server.version].into_iter().flatten().map(String::as_str).collect();
    let said = [(!about.is_empty()).then(|| about.join(" ")), report.revision.clone()];
    format!("{}: {}", report.url, said.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

fn lines(finding: &Finding) -> Vec<String> {
    let Finding { check, outcome, reason, evidence } = finding;
    let mut lines = vec![format!("{:<8} {:<20} {reason}", outcome.name(), check.name)];
    if matches!(outcome, Kind::Fault | Kind::Warn) {
        let told = [check.title.clone(), format!("{}: {}", check.requirement, check.link)];
        lines.extend(told.iter().chain(evidence).map(|line| format!("{:INDENT$}{line}", "")));
    }
    lines
}

fn counts(report: &Report) -> String {
    let counts = &report.counts;
    let (ok, warn, fault, skipped) = (counts.ok, counts.warn, counts.fault, counts.skipped);
    let (sessions, calls) = (report.sessions, report.calls);
    format!("{ok} ok, {warn} warn, {fault} fault, {skipped} skipped; {sessions} sessions, {calls} calls of a tool")
}
