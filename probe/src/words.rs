//! probe.json: what the checks are called.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

/// One check, in words.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// What `--only` and `--skip` take.
    pub name: String,
    /// What has to be so.
    pub title: String,
    /// Where that is written.
    pub requirement: String,
    /// The address of that.
    pub link: String,
    /// Our own names of it: requirements, invariants, known faults.
    #[serde(skip_serializing)]
    pub rules: Vec<String>,
    /// What of it a server needs that is to be called resumable.
    #[serde(skip_serializing)]
    pub resumable: Need,
}

/// What `--require resumable` asks of a check.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Need {
    /// It is made, and well.
    Ok,
    /// It finds no fault.
    NoFault,
    /// It is about something else.
    Nothing,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Words {
    pub checks: Vec<Check>,
}

/// The checks, in the order in which they are made.
pub fn words() -> &'static Words {
    #[allow(clippy::expect_used, reason = "it is part of the program, and every test reads it")]
    static WORDS: LazyLock<Words> =
        LazyLock::new(|| serde_json::from_str(include_str!("../probe.json")).expect("probe.json"));
    &WORDS
}
