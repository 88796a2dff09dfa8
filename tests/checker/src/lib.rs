#![doc = include_str!("../README.md")]

mod checker;
mod connection;
mod fact;
mod mark;
mod probes;
mod reading;
mod report;
mod stream;
mod verdict;

pub use checker::{BadFact, Checker, FENCE_MS, MAX_TOLD};
pub use fact::{By, Fact, N, Open, Probe, Timed, Why};
pub use mark::{Mark, marks};
pub use report::{Report, Summary, Violation};

/// Everything that one observer saw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// In the order in which it happened.
    pub facts: Vec<Timed>,
}

impl History {
    /// Reads lines of JSON. Empty lines are skipped.
    ///
    /// # Errors
    /// The number of the line that cannot be read, and why.
    pub fn parse(text: &str) -> Result<Self, BadFact> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let facts = lines
            .map(|(at, line)| serde_json::from_str(line).map_err(|error| BadFact(format!("line {}: {error}", at + 1))));
        Ok(Self { facts: facts.collect::<Result<_, _>>()? })
    }
}

/// Judges a whole history.
///
/// # Errors
/// As [`Checker::push`].
pub fn check(history: &History) -> Result<Report, BadFact> {
    let mut checker = Checker::default();
    for fact in &history.facts {
        checker.push(fact)?;
    }
    Ok(checker.finish())
}
