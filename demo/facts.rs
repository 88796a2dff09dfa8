//! What the demo's programs in Rust report: one line of JSON for each fact, with the time, for the timeline.

use std::io::{self, Write as _};
use std::sync::LazyLock;

use serde_json::{Value, json};
use tokio::time::Instant;

static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);

pub(crate) fn report(what: &str, fields: Value) {
    let mut fact = json!({ "at": STARTED.elapsed().as_secs_f64(), "what": what });
    if let (Value::Object(fact), Value::Object(fields)) = (&mut fact, fields) {
        fact.extend(fields);
    }
    let mut out = io::stdout().lock();
    // Nobody reads it any more when this fails.
    let _ = writeln!(out, "{fact}").and_then(|()| out.flush());
}
