//! The command `tailrope`, for those who have cargo and neither Python nor Node.

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    ExitCode::from(tailrope_cli::run(&words))
}
