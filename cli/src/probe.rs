//! `tailrope probe URL`: the words of the command line, and its exit status.

use tailrope_probe::{Finding, Kind, Options, Report, Step, UsageError, probe};
use tokio::runtime::Builder;
use tokio::task::LocalSet;

use crate::MISUSE;
use crate::arguments::{Given, Takes};
use crate::terminal::Terminal;

const TAKES: Takes<'_> = Takes {
    flags: &["--json"],
    values: &["--tool", "--arguments", "--header", "--timeout-ms", "--idle-ms", "--only", "--skip", "--require"],
};
const INDENT: usize = 30;

pub(crate) fn run(words: &[String], terminal: &mut Terminal) -> Result<u8, String> {
    let given = Given::read(words, &TAKES)?;
    let options = read(&given).map_err(|fault| fault.to_string())?;
    let is_json = given.has("--json");
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            terminal.complain(&format!("tailrope: the system refuses what connections need: {error}"));
            return Ok(MISUSE);
        }
    };
    let done = LocalSet::new().block_on(&runtime, probe(&options, |step| follow(terminal, &step, is_json)));
    // A name that is being looked up holds nobody.
    runtime.shutdown_background();
    Ok(match done {
        Ok(report) => {
            end(terminal, &report, is_json);
            report.exit
        }
        Err(unusable) => {
            terminal.complain(&format!("tailrope: {unusable}"));
            MISUSE
        }
    })
}

fn read(given: &Given<'_>) -> Result<Options, UsageError> {
    let url = if let [url] = given.rest[..] { url } else { "" };
    let mut options = Options::new(url)?;
    for (name, value) in given.values() {
        options.set(name, value)?;
    }
    options.check()?;
    Ok(options)
}

fn follow(terminal: &mut Terminal, step: &Step<'_>, is_json: bool) {
    match step {
        Step::Begins { check, number, of } => terminal.progress(&format!("{number} of {of}: {}", check.name)),
        Step::Opened(report) if !is_json => terminal.print(&format!("{}\n", head(report))),
        Step::Found(finding) if !is_json => terminal.print(&lines(finding).join("\n")),
        Step::Opened(_) | Step::Found(_) => {}
    }
}

fn end(terminal: &mut Terminal, report: &Report, is_json: bool) {
    if is_json {
        terminal.json(report);
    } else {
        terminal.print(&format!("\n{}\n\n{}", counts(report), report.verdict));
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
