//! The command `tailrope`, which the crate `tailrope-cli` has whole.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the command with the words behind its name, prints what it has to say, and gives its exit status.
#[pyfunction]
pub(crate) fn command(py: Python<'_>, words: Vec<OsString>) -> u8 {
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    py.detach(|| tailrope_cli::run(&words))
}
