//! Load client of the benchmarks. `benches/run` drives it; by hand:
//!
//! `tailrope-bench-client --port 8000 [--pid PID] [--seconds 3] [--rounds 3] [--events 10000] MEASURE..`
//! with measures `warm:SESSIONS`, `echo:SESSIONS`, `emit`, `replay`, `poll:SESSIONS`, `resume:SESSIONS`, `memory:SESSIONS`,
//! `event_memory`, `herd:SESSIONS`, `quick:CLIENTS`, `polls:CLIENTS`, and `relay`, which needs another process on the same
//! store: `--there PORT --there-pid PID`.
//!
//! Each measure prints one JSON object on a line of its own. A run against a server that an earlier run has used
//! needs `--first-id`: the plain store of the stock transports tells streams apart by request id alone.

mod check;
mod herd;
mod http;
mod measure;
mod modern;
mod process;
mod relay;
mod session;
mod sse;

use std::io::Write;

use http::Result;
use measure::Settings;

async fn run(measure: &str, set: Settings) -> Result<serde_json::Value> {
    let (name, sessions) = match measure.split_once(':') {
        Some((name, sessions)) => (name, sessions.parse()?),
        None => (measure, 16),
    };
    match name {
        "echo" => measure::echo(set, sessions).await,
        "warm" => measure::warm(set, sessions).await,
        "emit" => measure::emit(set).await,
        "replay" => measure::replay(set).await,
        "poll" => measure::poll(set, sessions).await,
        "resume" => measure::resume(set, sessions).await,
        "memory" => measure::sessions_memory(set, sessions).await,
        "event_memory" => measure::events_memory(set).await,
        "herd" => herd::herd(set, sessions).await,
        "quick" => modern::quick(set, sessions).await,
        "polls" => modern::polls(set, sessions).await,
        "relay" => relay::relay(set).await,
        _ => Err(format!("unknown measure {name}").into()),
    }
}

fn parse(arguments: &[String]) -> Result<(Settings, Vec<String>)> {
    let mut set = Settings {
        port: 0,
        pid: None,
        collects: false,
        there: None,
        there_pid: None,
        seconds: 3.0,
        rounds: 3,
        events: 10_000,
    };
    let mut measures = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let Some(option) = argument.strip_prefix("--") else {
            measures.push(argument.clone());
            continue;
        };
        let value = rest.next().ok_or_else(|| format!("--{option} needs a value"))?;
        match option {
            "port" => set.port = value.parse()?,
            "pid" => set.pid = Some(value.parse()?),
            "collects" => set.collects = value == "1",
            "there" => set.there = Some(value.parse()?),
            "there-pid" => set.there_pid = Some(value.parse()?),
            "seconds" => set.seconds = value.parse()?,
            "rounds" => set.rounds = value.parse()?,
            "events" => set.events = value.parse()?,
            "first-id" => session::set_first_id(value.parse()?),
            _ => return Err(format!("unknown option --{option}").into()),
        }
    }
    if set.port == 0 || measures.is_empty() {
        return Err("usage: tailrope-bench-client --port N [options] MEASURE..".into());
    }
    Ok((set, measures))
}

fn main() -> std::process::ExitCode {
    match tokio::runtime::Builder::new_current_thread().enable_all().event_interval(7).build() {
        Ok(runtime) => runtime.block_on(measure_all()),
        Err(e) => {
            eprintln!("{e}");
            1.into()
        }
    }
}

async fn measure_all() -> std::process::ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (set, measures) = match parse(&arguments) {
        Ok(parsed) => parsed,
        Err(e) => {
            eprintln!("{e}");
            return 2.into();
        }
    };
    for measure in measures {
        match run(&measure, set).await {
            // Written at once: the driver shows measures as they end.
            Ok(report) => {
                if writeln!(std::io::stdout(), "{report}").is_err() {
                    return 1.into();
                }
            }
            Err(e) => {
                eprintln!("{measure}: {e}");
                return 1.into();
            }
        }
    }
    0.into()
}
