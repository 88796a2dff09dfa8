//! What is printed, and on a terminal what is being done.

use std::io::{self, IsTerminal as _, Write};

use serde::Serialize;

pub(crate) struct Terminal {
    shows_progress: bool,
    has_progress: bool,
}

impl Terminal {
    pub(crate) fn new() -> Self {
        Self { shows_progress: io::stderr().is_terminal(), has_progress: false }
    }

    // Nobody may listen any more, which is no fault of what is looked at.

    pub(crate) fn print(&mut self, text: &str) {
        self.clear();
        let mut out = io::stdout().lock();
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    }

    pub(crate) fn json(&mut self, value: &impl Serialize) {
        self.print(&serde_json::to_string_pretty(value).unwrap_or_default());
    }

    pub(crate) fn complain(&mut self, text: &str) {
        self.clear();
        let _ = writeln!(io::stderr(), "{text}");
    }

    /// What is being done, until something is printed.
    pub(crate) fn progress(&mut self, text: &str) {
        if self.shows_progress {
            self.clear();
            self.has_progress = true;
            let mut err = io::stderr().lock();
            let _ = write!(err, "{text}").and_then(|()| err.flush());
        }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.has_progress) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
