//! What drains come to, for the log.

use crate::Ms;
use crate::engine::shared::lock;
use crate::sync::Mutex;

/// What the drain has come to that goes on, or that was not told yet.
#[derive(Default)]
pub(crate) struct Drained(Mutex<Option<Tally>>);

/// Numbers of calls, and of sessions and tasks that other processes go on with.
pub(crate) struct Tally {
    since: Ms,
    /// Those that ran when it began.
    calls: usize,
    /// Those that got an error.
    pub(crate) ended: usize,
    pub(crate) handed_over: usize,
    /// Their calls are none that ended here.
    pub(crate) tasks_handed_over: usize,
}

impl Drained {
    /// What has so many calls that run is drained from now on.
    pub(crate) fn begin(&self, now: Ms, calls: usize) {
        let mut tally = lock(&self.0);
        let tally = tally.get_or_insert(Tally { since: now, calls: 0, ended: 0, handed_over: 0, tasks_handed_over: 0 });
        tally.calls += calls;
    }

    pub(crate) fn add(&self, add: impl FnOnce(&mut Tally)) {
        if let Some(tally) = &mut *lock(&self.0) {
            add(tally);
        }
    }

    /// It is over, and so many calls run on, until their process ends.
    pub(crate) fn tell(&self, now: Ms, running: usize) {
        let Some(Tally { since, calls, ended, handed_over, tasks_handed_over }) = lock(&self.0).take() else { return };
        let (took_ms, calls_ended) = (now.since(since), ended + running);
        let calls_done = calls.saturating_sub(calls_ended + tasks_handed_over);
        macro_rules! tell {
            ($level:ident, $text:literal) => {
                tracing::event!(
                    target: "tailrope", tracing::Level::$level,
                    took_ms, calls_done, calls_ended, sessions_handed_over = handed_over, tasks_handed_over, $text
                )
            };
        }
        if calls_ended == 0 {
            tell!(INFO, "drained");
        } else {
            tell!(WARN, "drained, and calls that were still running get an error");
        }
    }
}
