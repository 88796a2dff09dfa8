//! The command `tailrope`, which the crate `tailrope-cli` has whole.

use napi_derive::napi;

/// Runs the command with the words behind its name, prints what it has to say, and gives its exit status. The thread that
/// calls does nothing else meanwhile.
#[napi]
#[allow(unreachable_pub, dead_code, reason = "it is exported to JavaScript alone")]
pub fn command(words: Vec<String>) -> u32 {
    u32::from(tailrope_cli::run(&words))
}
