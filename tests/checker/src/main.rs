//! `tailrope-check [--fence-ms N] [--tell N] [FILE|-]`: see the crate.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::ExitCode;

use tailrope_checker::{Checker, FENCE_MS, MAX_TOLD, Report};

const USAGE: &str = "usage: tailrope-check [--fence-ms N] [--tell N] [FILE|-]";

fn main() -> ExitCode {
    match arguments().and_then(|(checker, file)| run(checker, &file)) {
        Ok(report) => {
            // Whoever closed our output has read enough.
            let _ = print(&report);
            ExitCode::from(u8::from(!report.is_clean()))
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "tailrope-check: {error}");
            ExitCode::from(2)
        }
    }
}

fn arguments() -> Result<(Checker, String), String> {
    let mut arguments = std::env::args().skip(1);
    let (mut fence_ms, mut told, mut file) = (FENCE_MS, MAX_TOLD, None);
    while let Some(argument) = arguments.next() {
        if argument == "--fence-ms" {
            let number = arguments.next().and_then(|number| number.parse().ok());
            fence_ms = number.ok_or(USAGE)?;
        } else if argument == "--tell" {
            let number = arguments.next().and_then(|number| number.parse().ok());
            told = number.ok_or(USAGE)?;
        } else if file.replace(argument).is_some() {
            return Err(USAGE.to_owned());
        }
    }
    Ok((Checker::new(fence_ms).telling(told), file.unwrap_or_else(|| "-".to_owned())))
}

fn run(mut checker: Checker, file: &str) -> Result<Report, String> {
    let input: Box<dyn Read> = match file {
        "-" => Box::new(io::stdin()),
        path => Box::new(File::open(path).map_err(|error| format!("{path}: {error}"))?),
    };
    for (at, line) in BufReader::new(input).lines().enumerate() {
        let number = at + 1;
        let line = line.map_err(|error| format!("line {number}: {error}"))?;
        if line.trim().is_empty() {
            continue;
        }
        let fact = serde_json::from_str(&line).map_err(|error| format!("line {number}: {error}"))?;
        checker.push(&fact).map_err(|error| format!("line {number}: {error}"))?;
    }
    Ok(checker.finish())
}

fn print(report: &Report) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    for violation in &report.violations {
        serde_json::to_writer(&mut out, violation)?;
        out.write_all(b"\n")?;
    }
    serde_json::to_writer(&mut out, &serde_json::json!({ "summary": report.summary }))?;
    out.write_all(b"\n")?;
    out.flush()
}
