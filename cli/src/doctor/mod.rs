//! `tailrope doctor ADDRESS`: what is wrong with an event store, what that means, and what to do.

mod postgres;
mod redis;
mod sqlite;

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Map, Value};
use tailrope_stores::inspect::{Fact, Facts};

use crate::arguments::{Given, Takes};
use crate::store::Store;
use crate::terminal::Terminal;
use crate::{AMISS, FINE};

/// Clocks that differ by more say something else to people than to programs.
const CLOCKS_MS: u64 = 30_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Ok,
    Warn,
    Fault,
}

/// What came of one check.
#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    outcome: Outcome,
    /// What is so.
    what: String,
    /// What that means, and what to do, where something is wrong.
    means: Option<&'static str>,
    advice: Option<String>,
}

#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn ok(&mut self, check: &'static str, what: impl Into<String>) {
        self.0.push(Finding { check, outcome: Outcome::Ok, what: what.into(), means: None, advice: None });
    }

    fn warn(&mut self, check: &'static str, what: impl Into<String>, means: &'static str, advice: impl Into<String>) {
        self.add(check, Outcome::Warn, what.into(), means, advice.into());
    }

    fn fault(&mut self, check: &'static str, what: impl Into<String>, means: &'static str, advice: impl Into<String>) {
        self.add(check, Outcome::Fault, what.into(), means, advice.into());
    }

    fn add(&mut self, check: &'static str, outcome: Outcome, what: String, means: &'static str, advice: String) {
        self.0.push(Finding { check, outcome, what, means: Some(means), advice: Some(advice) });
    }

    /// Whether the tables, or keys, can be used by this release.
    fn layout(&mut self, facts: &Facts, what: &str) {
        match (facts.text("unusable"), facts.number("version")) {
            (Some(why), _) => self.fault(
                "layout",
                why,
                "servers with this package cannot open the store",
                "name another place, or use the release of the servers that made this one",
            ),
            (None, Some(version)) => self.ok("layout", format!("version {version} of the {what}")),
            (None, None) => {}
        }
    }

    fn clock(&mut self, facts: &Facts) {
        let ours = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let (Some(theirs), Ok(ours)) = (facts.number("now_ms"), i64::try_from(ours)) else { return };
        let apart = ours.abs_diff(theirs);
        if apart <= CLOCKS_MS {
            return self.ok("clock", "the server's clock is ours");
        }
        self.warn(
            "clock",
            format!("the server's clock differs from ours by {} s", apart / 1_000),
            "no owner counts as gone because of that, but stores count ages by the server's clock, and the times of tasks are \
             those of processes",
            "set both by NTP",
        );
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    store: String,
    checks: Vec<Finding>,
    facts: Map<String, Value>,
    exit: u8,
}

pub(crate) fn run(words: &[String], terminal: &mut Terminal) -> Result<u8, String> {
    let given = Given::read(words, &Takes { flags: &["--json"], values: &[] })?;
    let address = given.one("give one address of a store")?;
    let mut store = Store::at(address)?;
    let mut findings = Findings::default();
    let facts = match store.inside.facts() {
        Ok(facts) => {
            judge(address, &facts, &mut findings);
            facts
        }
        Err(what) => {
            findings.fault(
                "reachable",
                what,
                "servers cannot open the store: they do not start, or refuse calls until they can",
                "check the address, the network and the rights; the servers' log names the same",
            );
            Facts::default()
        }
    };
    let is_faulty = findings.0.iter().any(|finding| finding.outcome == Outcome::Fault);
    let exit = if is_faulty { AMISS } else { FINE };
    let report = Report { store: store.shown, checks: findings.0, facts: values(&facts), exit };
    if given.has("--json") {
        terminal.json(&report);
    } else {
        terminal.print(&text(&report));
    }
    Ok(exit)
}

fn judge(address: &str, facts: &Facts, findings: &mut Findings) {
    let scheme = address.split_once(':').map_or("", |(scheme, _)| scheme);
    match scheme {
        "sqlite" => sqlite::judge(facts, findings),
        _ if scheme.starts_with("redis") => redis::judge(scheme, facts, findings),
        _ => postgres::judge(facts, findings),
    }
}

fn values(facts: &Facts) -> Map<String, Value> {
    let value = |fact: &Fact| match fact {
        Fact::Text(text) => Value::from(text.as_str()),
        Fact::Number(number) => Value::from(*number),
        Fact::Flag(flag) => Value::from(*flag),
    };
    facts.0.iter().map(|(name, fact)| ((*name).to_owned(), value(fact))).collect()
}

fn text(report: &Report) -> String {
    let mut lines = vec![report.store.clone(), String::new()];
    for Finding { check, outcome, what, means, advice } in &report.checks {
        let outcome_name = match outcome {
            Outcome::Ok => "ok",
            Outcome::Warn => "warn",
            Outcome::Fault => "fault",
        };
        lines.push(format!("{outcome_name:<6} {check:<14} {what}"));
        lines.extend(means.iter().map(|means| format!("{:22}{means}", "")));
        lines.extend(advice.iter().map(|advice| format!("{:22}-> {advice}", "")));
    }
    let count = |wanted| report.checks.iter().filter(|finding| finding.outcome == wanted).count();
    let (ok, warn, fault) = (count(Outcome::Ok), count(Outcome::Warn), count(Outcome::Fault));
    lines.push(format!("\n{ok} ok, {warn} warn, {fault} fault"));
    lines.join("\n")
}
