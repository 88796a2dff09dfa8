//! Makes a schedule that fails shorter.

use std::fmt::Write;

use tailrope_checker::Fact;

use crate::schedule::{Schedule, Setup};
use crate::{Outcome, run};

/// Runs that shrinking may take.
const MAX_RUNS: usize = 4_000;

/// A shorter schedule that breaks one of the same invariants: chunks of its decisions are left out as long as
/// that goes, and its place is made simpler.
pub fn shrink(schedule: &Schedule) -> Schedule {
    let wanted = run(schedule).broken();
    let mut runs = 0;
    let mut fails = |candidate: &Schedule| {
        runs += 1;
        runs <= MAX_RUNS && run(candidate).broken().iter().any(|broken| wanted.contains(broken))
    };
    let mut best = schedule.clone();
    loop {
        let before = best.clone();
        let mut size = best.decisions.len().div_ceil(2).max(1);
        loop {
            let mut at = 0;
            while at < best.decisions.len() {
                let mut candidate = best.clone();
                candidate.decisions.drain(at..(at + size).min(best.decisions.len()));
                if fails(&candidate) {
                    best = candidate;
                } else {
                    at += size;
                }
            }
            if size == 1 {
                break;
            }
            size = size.div_ceil(2);
        }
        for simpler in simpler(&best.setup) {
            let candidate = Schedule { setup: simpler, ..best.clone() };
            if fails(&candidate) {
                best = candidate;
            }
        }
        if best == before {
            return best;
        }
    }
}

fn simpler(setup: &Setup) -> Vec<Setup> {
    let with = |change: &dyn Fn(&mut Setup)| {
        let mut setup = setup.clone();
        change(&mut setup);
        setup
    };
    let all = [
        with(&|setup| setup.is_slow = false),
        with(&|setup| setup.adopts = false),
        with(&|setup| setup.nodes = 1),
        with(&|setup| setup.nodes = 2),
        with(&|setup| setup.sessions = 1),
        with(&|setup| setup.hint_ms = 0),
        with(&|setup| setup.max_connection_bytes = 0),
        with(&|setup| setup.retention_ms = 600_000),
        with(&|setup| setup.max_events = 1_000),
        with(&|setup| setup.page_bytes = 65_536),
        with(&|setup| setup.is_paced = false),
        with(&|setup| setup.store_timeout_ms = 0),
    ];
    all.into_iter().filter(|simpler| simpler != setup).collect()
}

impl Schedule {
    /// The schedule with its history, for somebody who looks for the fault.
    pub fn told(&self, outcome: &Outcome) -> String {
        let mut out = format!("{:?}\n", self.setup);
        let mut decisions = outcome.began.iter().enumerate().peekable();
        for (at, timed) in outcome.facts.iter().enumerate() {
            while let Some((number, _)) = decisions.next_if(|(_, began)| **began <= at) {
                let _ = match self.decisions.get(number) {
                    Some(decision) => writeln!(out, "-- {decision:?}"),
                    None => writeln!(out, "-- everything works again"),
                };
            }
            let line = match &timed.fact {
                Fact::Bytes { connection, text: Some(text), .. } => format!("{connection} <- {text:?}"),
                fact => serde_json::to_string(fact).unwrap_or_default(),
            };
            let _ = writeln!(out, "{:>7} {line}", timed.at.unwrap_or_default());
        }
        match &outcome.verdict {
            Ok(report) => {
                for violation in &report.violations {
                    let _ = writeln!(out, "{}", serde_json::to_string(violation).unwrap_or_default());
                }
            }
            Err(panic) => {
                let _ = writeln!(out, "panicked: {panic}");
            }
        }
        out
    }
}
