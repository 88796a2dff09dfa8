//! What is counted, as the text that Prometheus reads: format 0.0.4.

use std::fmt::Write as _;

use crate::engine::durations::DURATION_BOUNDS_MS;
use crate::engine::stats::{Counter, Kind, Stats};

/// The content type of [`Stats::exposition`].
pub const EXPOSITION_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Where the unit of a number is this, the metric has seconds: Prometheus has base units.
const MS: &str = "_ms";

impl Counter {
    /// The metric of Prometheus that has it, and its label there.
    pub fn metric(&self) -> (String, Option<(&'static str, &'static str)>) {
        let name = self.family.map_or(self.name, |family| family.name);
        let (name, unit) = name.strip_suffix(MS).map_or((name, ""), |name| (name, "_seconds"));
        let total = if self.kind == Kind::Counter { "_total" } else { "" };
        let value = |prefix| self.name.strip_prefix(prefix).unwrap_or(self.name);
        (format!("tailrope_{name}{unit}{total}"), self.family.map(|family| (family.label, value(family.prefix))))
    }
}

impl Stats {
    /// The text that Prometheus reads. Each sample has the label `process` with this value: several processes may share a
    /// port, and a scrape gets to one of them.
    ///
    /// ```
    /// use tailrope_core::engine::{Engine, Options};
    ///
    /// let text = Engine::new(Options::default()).stats().exposition("17");
    /// assert!(text.contains("tailrope_calls_ended_total{outcome=\"result\",process=\"17\"} 0\n"));
    /// ```
    pub fn exposition(&self, process: &str) -> String {
        let mut text = String::new();
        let process = process.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
        let mut before = String::new();
        for (counter, value) in self.entries() {
            let (metric, label) = counter.metric();
            // Writing into a String does not fail.
            if metric != before {
                let about = counter.family.map_or(counter.about, |family| family.about);
                let _ = writeln!(text, "# HELP {metric} {about}\n# TYPE {metric} {}", counter.kind.as_str());
            }
            let _ = write!(text, "{metric}{{");
            if let Some((name, value)) = label {
                let _ = write!(text, "{name}=\"{value}\",");
            }
            let _ = write!(text, "process=\"{process}\"}} ");
            let _ = match counter.name.ends_with(MS) {
                true => writeln!(text, "{}", seconds(value)),
                false => writeln!(text, "{value}"),
            };
            before = metric;
        }
        self.expose_durations(&mut text, &process);
        text
    }

    fn expose_durations(&self, text: &mut String, process: &str) {
        const METRIC: &str = "tailrope_call_duration_seconds";
        let _ = writeln!(text, "# HELP {METRIC} How long calls took, by how they ended.\n# TYPE {METRIC} histogram");
        for (outcome, histogram) in self.durations.entries() {
            let labels = format!("outcome=\"{}\",process=\"{process}\"", outcome.as_str());
            let mut sum = 0;
            for (at, count) in histogram.counts.iter().enumerate() {
                sum += count;
                let bound = DURATION_BOUNDS_MS.get(at).map_or_else(|| "+Inf".to_owned(), |ms| seconds(*ms));
                let _ = writeln!(text, "{METRIC}_bucket{{{labels},le=\"{bound}\"}} {sum}");
            }
            let _ = writeln!(text, "{METRIC}_sum{{{labels}}} {}", seconds(histogram.sum_ms));
            let _ = writeln!(text, "{METRIC}_count{{{labels}}} {sum}");
        }
    }
}

fn seconds(ms: u64) -> String {
    let exact = format!("{}.{:03}", ms / 1_000, ms % 1_000);
    exact.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::engine::{COUNTERS, CallOutcome, Engine, Options};

    #[test]
    fn each_metric_is_described_once_and_has_all_its_samples_behind_that() {
        let stats = Stats { store_away_ms: 61_005, calls_limit: 7, sessions: 3, ..Stats::default() };
        let text = stats.exposition("a\"b\\c\nd");
        let (text, of_durations) = text.split_once("# HELP tailrope_call_duration_seconds ").unwrap();
        assert_eq!(of_durations.lines().count(), 2, "no call has ended");
        let mut described = HashSet::new();
        let (mut metric, mut samples) = (String::new(), 0);
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, about) = help.split_once(' ').unwrap();
                assert!(described.insert(name.to_owned()) && !about.contains('\\'), "{line}");
                metric = name.to_owned();
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let is_counter = metric.ends_with("_total");
                assert_eq!(kind, format!("{metric} {}", if is_counter { "counter" } else { "gauge" }));
            } else {
                assert!(line.starts_with(&format!("{metric}{{")), "{line}");
                samples += 1;
            }
        }
        assert_eq!(samples, COUNTERS.len());
        for line in [
            r#"tailrope_store_away_seconds{process="a\"b\\c\nd"} 61.005"#,
            r#"tailrope_calls_ended_total{outcome="limit",process="a\"b\\c\nd"} 7"#,
            r#"tailrope_sessions{process="a\"b\\c\nd"} 3"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
    }

    #[test]
    fn a_call_counts_for_each_bound_that_it_is_not_longer_than() {
        let engine = Engine::new(Options::default());
        for ms in [0, 10, 11, 300_000, 300_001] {
            engine.0.counters.ended(CallOutcome::Limit, Some(ms));
        }
        engine.0.counters.ended(CallOutcome::Limit, None);
        let text = Stats::of_all([&engine, &Engine::new(Options::default())]).exposition("1");
        let of = |line: &str| text.lines().find_map(|found| found.strip_prefix(line)).unwrap().trim().to_owned();
        for (bound, count) in [("0.01", "2"), ("0.02", "3"), ("120", "3"), ("300", "4"), ("+Inf", "5")] {
            let line =
                format!("tailrope_call_duration_seconds_bucket{{outcome=\"limit\",process=\"1\",le=\"{bound}\"}}");
            assert_eq!(of(&line), count, "{bound}");
        }
        assert_eq!(of("tailrope_call_duration_seconds_count{outcome=\"limit\",process=\"1\"}"), "5");
        assert_eq!(of("tailrope_call_duration_seconds_sum{outcome=\"limit\",process=\"1\"}"), "600.022");
        assert_eq!(of("tailrope_calls_ended_total{outcome=\"limit\",process=\"1\"}"), "6");
    }

    #[test]
    fn engines_that_share_a_store_count_what_it_holds_once() {
        let one = Engine::new(Options::default());
        let beside = Engine::new(Options { store: Some(one.0.store.clone()), ..Options::default() });
        let other = Engine::new(Options::default());
        let counters = |engine: &Engine| engine.0.counters.calls_begun.store(2, crate::sync::atomic::Ordering::Relaxed);
        [&one, &beside, &other].into_iter().for_each(counters);
        let total = Stats::of_all([&one, &beside, &other]);
        assert_eq!((total.calls_begun, total.store_up, total.streams), (6, 1, 0));
        assert_eq!(Stats::of_all([]), Stats { store_up: 1, ..Stats::default() });
    }
}
