//! How long a finished log is kept.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::caller::{Caller, Log, PATIENCE, progress};
use super::terminal;
use crate::Ms;
use crate::store::{Append, EventStore, SessionRecord};
use crate::stream::Paced;

const SHORT_MS: u64 = 300;
const LONG_MS: u64 = 600_000;

/// What is written to a log, in this order, that says at some time how it is paced.
type Story = fn(&Log, Option<Paced>) -> Vec<Append>;

const STORIES: [(&str, Story); 6] = [
    ("with its creation, and a terminal", |log, paced| {
        vec![Append { paced, ..begun(log) }, behind(log).append(2, &[terminal()])]
    }),
    ("with its creation, and an end that is not in it", |log, paced| {
        vec![Append { paced, ..begun(log) }, Append { end: end(), ..behind(log).append(2, &[]) }]
    }),
    ("later and alone", |log, paced| {
        let said = Append { paced, ..behind(log).append(2, &[]) };
        vec![begun(log), said, behind(log).append(2, &[terminal()])]
    }),
    ("with its end", |log, paced| vec![begun(log), Append { paced, end: end(), ..behind(log).append(2, &[]) }]),
    ("all in one", |log, paced| vec![Append { paced, ..log.append(1, &[progress("a"), terminal()]) }]),
    // The store's own time counts again where the last pace names none, in the place of one that did.
    ("other than before", |log, paced| {
        let other = paced.map_or(LONG_MS + SHORT_MS, |paced| LONG_MS + SHORT_MS - paced.retention_ms.unwrap_or(0));
        let other = Some(Paced { retention_ms: Some(other), ..Paced::default() });
        let last = Some(paced.unwrap_or_default());
        vec![Append { paced: other, ..begun(log) }, Append { paced: last, ..behind(log).append(2, &[terminal()]) }]
    }),
];

/// Checks rule 6: a log is kept for as long as its pace says. `make` gives an empty store with this retention time. `pass`
/// lets time go on until so many milliseconds after the store was made.
///
/// # Panics
/// When the store breaks the rule.
pub fn check_retention(make: &dyn Fn(u64) -> Arc<dyn EventStore>, pass: &dyn Fn(&dyn EventStore, u64)) {
    for (of_store, of_log) in [(LONG_MS, SHORT_MS), (SHORT_MS, LONG_MS)] {
        let store = make(of_store);
        let caller = Caller::new(&*store, Ms(0));
        caller.hold("s", SessionRecord::default());
        let mut logs = Vec::new();
        for (number, (when, story)) in (0..).zip(STORIES) {
            for (at, retention_ms) in (0..).zip([Some(of_log), None]) {
                let log = Log::new("s", 2 * number + at);
                for append in story(&log, retention_ms.map(|_| Paced { retention_ms, ..Paced::default() })) {
                    assert_eq!(caller.write(&log, &append), Ok(()), "rule 6: {append:?}");
                }
                logs.push((log, retention_ms.unwrap_or(of_store), when));
            }
        }
        let begun = Instant::now();
        pass(&*store, 2 * SHORT_MS);
        for (log, _, when) in logs.iter().filter(|(_, kept_ms, _)| *kept_ms == SHORT_MS) {
            while caller.log(log).is_some() {
                assert!(begun.elapsed() < PATIENCE, "rule 6: a log goes when its own time is over, said {when}");
                thread::sleep(Duration::from_millis(10));
                pass(&*store, 2 * SHORT_MS);
            }
        }
        for (log, _, when) in logs.iter().filter(|(_, kept_ms, _)| *kept_ms == LONG_MS) {
            assert!(caller.log(log).is_some(), "rule 6: a log stays until its own time is over, said {when}");
        }
    }
}

fn end() -> Option<Bytes> {
    Some(Bytes::from_static(b"end"))
}

/// The first event of a log.
fn begun(log: &Log) -> Append {
    log.append(1, &[progress("a")])
}

/// The log with that event.
fn behind(log: &Log) -> Log {
    Log { events: vec![progress("a")], ..log.clone() }
}
