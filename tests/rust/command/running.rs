//! Runs the command.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;

/// Its exit status, and what it prints.
pub(super) fn run(words: &[&str]) -> (i32, String, String) {
    answer(words, "")
}

/// The same, where it is answered so.
pub(super) fn answer(words: &[&str], text: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailrope"));
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().expect("the command runs");
    process.stdin.take().expect("its input").write_all(text.as_bytes()).expect("it is taken");
    let done = process.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (done.status.code().expect("it ends by itself"), text(done.stdout), text(done.stderr))
}

/// What it prints with `--json`.
pub(super) fn json(words: &[&str]) -> Value {
    let (status, out, err) = run(&[words, &["--json"]].concat());
    assert_eq!((status, err.as_str()), (0, ""), "{words:?}");
    serde_json::from_str(&out).expect("JSON")
}

/// The address of a server that `tests/services/with` started, with a namespace in which there is nothing yet.
pub(super) fn fresh(variable: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let address = std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set; this sets it: tests/services/with redis postgres -- cargo test -p tailrope-cli")
    });
    let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    format!("{address}{}namespace=command_{process}_{number}", if address.contains('?') { '&' } else { '?' })
}
