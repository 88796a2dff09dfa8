//! Runs the command.

use std::process::Command;

/// Its exit status, and what it prints.
pub(super) fn run(words: &[&str]) -> (i32, String, String) {
    let done = Command::new(env!("CARGO_BIN_EXE_tailrope")).args(words).output().expect("the command runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (done.status.code().expect("it ends by itself"), text(done.stdout), text(done.stderr))
}
