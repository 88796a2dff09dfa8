//! Random schedules of several engines over one simulated store, judged by the checker.
//!
//! A seed decides a [`Schedule`]; running it gives the same history each time. Time, randomness, wake-ups and
//! the store are the simulation's own: no thread, no socket, no waiting.

mod adopting;
mod closing;
mod dice;
mod finale;
mod hosts;
mod inbox;
mod log;
mod loss;
mod node_store;
mod operation;
mod owners;
mod place;
mod reader;
mod relaying;
mod schedule;
mod sea;
mod sending;
mod session;
mod shrink;
mod slow;
mod tasks;
mod time;
mod world;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

pub use place::place;
pub use schedule::Schedule;
pub use shrink::shrink;
use tailrope_checker::{Checker, Report, Timed};
use world::World;

/// How long a fence may take with the hints and the pauses of the simulation, in milliseconds.
const FENCE_MS: u64 = 120_000;

/// What came of a schedule.
#[derive(Debug)]
pub struct Outcome {
    /// What happened.
    pub facts: Vec<Timed>,
    /// With which fact each decision began.
    pub began: Vec<usize>,
    /// What the checker says of it; the text of the panic where something panicked.
    pub verdict: Result<Report, String>,
    /// What was reached, and how often.
    pub coverage: BTreeMap<&'static str, u64>,
}

impl Outcome {
    /// Whether no rule was broken.
    pub fn is_clean(&self) -> bool {
        self.verdict.as_ref().is_ok_and(Report::is_clean)
    }

    /// The invariants that were broken.
    pub fn broken(&self) -> Vec<String> {
        match &self.verdict {
            Ok(report) => report.summary.violations.keys().cloned().collect(),
            Err(_) => vec!["panic".to_owned()],
        }
    }
}

/// Runs a schedule.
///
/// # Panics
/// When something of it is left behind.
pub fn run(schedule: &Schedule) -> Outcome {
    let mut began = Vec::new();
    let mut world = None;
    let lived = catch_unwind(AssertUnwindSafe(|| {
        let world = world.insert(World::new(&schedule.setup));
        for decision in &schedule.decisions {
            began.push(world.sea().facts.len());
            world.step(*decision);
        }
        began.push(world.sea().facts.len());
        world.finish();
    }));
    let (facts, mut coverage) = match &world {
        Some(world) => {
            let mut sea = world.sea();
            (std::mem::take(&mut sea.facts), std::mem::take(&mut sea.coverage))
        }
        None => Default::default(),
    };
    // Every engine has a store, and every store the sea.
    let sea = world.map(|world| Arc::downgrade(&world.sea));
    assert!(sea.is_none_or(|sea| sea.strong_count() == 0), "an engine is left");
    let verdict = lived.map_err(|panic| text(&*panic)).and_then(|()| {
        let mut checker = Checker::new(FENCE_MS).seeing_the_store();
        facts.iter().try_for_each(|fact| checker.push(fact)).map_err(|error| error.to_string())?;
        Ok(checker.finish())
    });
    if let Ok(report) = &verdict {
        let summary = &report.summary;
        for (what, count) in [
            ("resumes", summary.resumes),
            ("gaps seen", summary.gaps),
            ("results seen", summary.results),
            ("errors seen", summary.errors),
            ("events seen", summary.events),
        ] {
            *coverage.entry(what).or_default() += count;
        }
    }
    Outcome { facts, began, verdict, coverage }
}

fn text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}
