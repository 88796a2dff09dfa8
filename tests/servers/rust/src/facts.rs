//! The file of a call that outlives its process: each fact is a line of JSON.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

pub(crate) struct Facts(File);

impl Facts {
    pub(crate) fn open(path: &str) -> io::Result<Self> {
        Ok(Self(OpenOptions::new().append(true).create(true).open(path)?))
    }

    /// A line of the file is one write. `more` is an object.
    pub(crate) fn tell(&self, fact: &str, more: Value) -> io::Result<()> {
        let now = clock_gettime(ClockId::Monotonic);
        let mut line = json!({ "t": now.tv_sec * 1_000_000_000 + now.tv_nsec, "fact": fact });
        if let (Value::Object(line), Value::Object(more)) = (&mut line, more) {
            line.extend(more);
        }
        (&self.0).write_all(format!("{line}\n").as_bytes())
    }
}
