//! What the server's process has used: processor time and memory, as Linux tells it.

use std::process::Command;
use std::time::Duration;

use tokio::time::sleep;

use crate::http::Result;
use crate::measure::Settings;

/// The processor time of a process so far, all threads. What else runs disturbs it far less than it disturbs rates.
///
/// Taken from the scheduler's count of nanoseconds; the usual one has ticks of 10 ms, which are too coarse for a round
/// of 10,000 events. Threads that have ended are missing from it: a server under test keeps its threads.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration> {
    let mut nanoseconds = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end between the list and the look.
        let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) else {
            continue;
        };
        nanoseconds += text.split_whitespace().next().ok_or("no time in schedstat")?.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}

/// Adds up the processor time of the stretches that are measured, when the server's process is known.
pub(crate) struct Meter {
    pid: Option<u32>,
    used: Duration,
}

impl Meter {
    pub(crate) fn new(pid: Option<u32>) -> Self {
        Self { pid, used: Duration::ZERO }
    }

    /// Where a stretch begins; give it back to `stop`.
    pub(crate) fn start(&self) -> Result<Duration> {
        self.pid.map_or(Ok(Duration::ZERO), cpu_time)
    }

    pub(crate) fn stop(&mut self, start: Duration) -> Result<()> {
        if let Some(pid) = self.pid {
            self.used += cpu_time(pid)?.saturating_sub(start);
        }
        Ok(())
    }

    /// Microseconds for each of `count` calls or events.
    pub(crate) fn us_each(&self, count: usize) -> Option<f64> {
        (self.pid.is_some() && count > 0).then(|| self.used.as_secs_f64() * 1e6 / count as f64)
    }
}

/// Resident memory of the server once it is at rest, without garbage that it has not collected yet.
pub(crate) async fn rss_at_rest(set: &Settings, rest: Duration) -> Result<f64> {
    let pid = set.pid.ok_or("this measurement needs --pid")?;
    sleep(rest).await;
    if set.collects {
        let sent = Command::new("kill").args(["-USR2", &pid.to_string()]).status()?;
        if !sent.success() {
            return Err("the server cannot be told to collect its garbage".into());
        }
        sleep(rest).await;
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS")?;
    let kib: f64 = line.split_whitespace().nth(1).ok_or("no VmRSS")?.parse()?;
    Ok(kib * 1024.0)
}
