//! The command `tailrope`, which the crate `tailrope-probe` has whole.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the command with the words behind its name, prints what it has to say, and gives its exit status.
#[pyfunction]
pub(crate) fn probe(py: Python<'_>, words: Vec<OsString>) -> u8 {
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    py.detach(|| tailrope_probe::run(&words))
}
