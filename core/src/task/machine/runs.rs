//! The runs of a call: the SDK's handling of it, once for the call itself and once for each round.

use super::io::Output;
use crate::Ms;

/// How long a handler has to end after its connection did. Where answers are JSON bodies, not every SDK looks at that.
const KILL_AFTER_MS: u64 = 500;

#[derive(Debug)]
pub(super) struct Runs {
    /// The run whose answer is awaited.
    current: Option<u32>,
    /// One that was disconnected, and when it is killed.
    ending: Option<(u32, Ms)>,
}

impl Runs {
    pub(super) fn new(current: Option<u32>) -> Self {
        Self { current, ending: None }
    }

    pub(super) fn is_current(&self, run: u32) -> bool {
        self.current == Some(run)
    }

    /// Whether a handler runs whose answer is awaited.
    pub(super) fn is_running(&self) -> bool {
        self.current.is_some()
    }

    /// Whether nothing of any run is left to do.
    pub(super) fn are_over(&self) -> bool {
        self.current.is_none() && self.ending.is_none()
    }

    pub(super) fn start(&mut self, run: u32) {
        self.current = Some(run);
    }

    /// The answer of the current run has come.
    pub(super) fn answered(&mut self) {
        self.current = None;
    }

    /// Nothing more comes of this run. Whether its answer was awaited.
    pub(super) fn ended(&mut self, run: u32) -> bool {
        self.ending = self.ending.filter(|(ending, _)| *ending != run);
        self.is_current(run)
    }

    /// Nobody wants the answer of the current run.
    pub(super) fn cancel(&mut self, now: Ms, out: &mut Vec<Output>) {
        if let Some(run) = self.current.take() {
            out.push(Output::Disconnect { run });
            self.ending = Some((run, now + KILL_AFTER_MS));
        }
    }

    pub(super) fn deadline(&self) -> Ms {
        self.ending.map_or(Ms::NEVER, |(_, at)| at)
    }

    pub(super) fn tick(&mut self, now: Ms, out: &mut Vec<Output>) {
        if let Some((run, _)) = self.ending.filter(|(_, at)| *at <= now) {
            self.ending = None;
            out.push(Output::Kill { run });
        }
    }
}
