//! What a call costs that comes to another process than the one that has its session.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::check::Call;
use crate::http::Result;
use crate::measure::{Settings, percentile};
use crate::process::Meter;
use crate::session::{Session, next_id};

/// Calls on one side, then as many on the other: so what a machine does meanwhile meets both.
const CALLS: usize = 25;

/// Calls of one session on one side.
struct Side {
    session: Session,
    took: Vec<Duration>,
    /// Of both processes: a call on its owner is none of the other's business.
    meters: [Meter; 2],
}

impl Side {
    fn new(session: Session, pids: [Option<u32>; 2]) -> Self {
        Self { session, took: Vec::new(), meters: pids.map(Meter::new) }
    }

    async fn calls(&mut self) -> Result<()> {
        let mut used = Vec::new();
        for meter in &self.meters {
            used.push(meter.start()?);
        }
        for _ in 0..CALLS {
            let id = next_id();
            let call = Call { id, total: 0, message_bytes: None, text: format!("hello {id}") };
            let start = Instant::now();
            self.session.checked_call("echo", json!({"text": call.text}), &call).await?;
            self.took.push(start.elapsed());
        }
        for (meter, used) in self.meters.iter_mut().zip(used) {
            meter.stop(used)?;
        }
        Ok(())
    }

    fn report(&mut self) -> [(&'static str, Option<f64>); 4] {
        self.took.sort();
        let [here, there] = &self.meters;
        let count = self.took.len();
        [
            ("p50_ms", Some(percentile(&self.took, 50))),
            ("p99_ms", Some(percentile(&self.took, 99))),
            ("owner_cpu_us", here.us_each(count)),
            ("other_cpu_us", there.us_each(count)),
        ]
    }
}

/// Calls of one session, one after the other: some to its owner at `--port`, some to the process at `--there`.
pub(crate) async fn relay(set: Settings) -> Result<Value> {
    let there = set.there.ok_or("this measurement needs --there")?;
    let owned = Session::open(set.port).await?;
    let relayed = owned.at(there);
    let pids = [set.pid, set.there_pid];
    let (mut owned, mut relayed) = (Side::new(owned, pids), Side::new(relayed, pids));
    // What is made lazily, and compiled on the way, is not measured.
    for _ in 0..4 {
        owned.calls().await?;
        relayed.calls().await?;
    }
    (owned, relayed) = (Side::new(owned.session, pids), Side::new(relayed.session, pids));
    let until = Instant::now() + Duration::from_secs_f64(set.seconds);
    while Instant::now() < until {
        owned.calls().await?;
        relayed.calls().await?;
    }
    let mut report = json!({"measure": "relay", "count": owned.took.len(), "faults": 0});
    for (name, side) in [("owned", &mut owned), ("relayed", &mut relayed)] {
        for (field, value) in side.report() {
            report[format!("{name}_{field}")] = json!(value);
        }
    }
    Ok(report)
}
